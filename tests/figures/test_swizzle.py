"""The layout explorer: its arithmetic is held to what the emulator executes."""

from __future__ import annotations

import numpy as np
import pytest

import kernels
from common.figures import accesses, layout, swizzle
from cudaemu.errors import UserError

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("width, column", [(32, 0), (32, 24), (64, 8), (256, 248)])
def test_xor_is_free_of_conflicts_for_any_eight_rows(width: int, column: int):
    for first in range(16):
        rows = np.arange(first, first + 8)
        offsets = layout.tile_offset(rows, np.full(8, column), width=width, element=2, xor=True)
        assert layout.wavefronts(offsets, 16).count == 1


@pytest.mark.parametrize("xor", [0, 1])
def test_the_model_reads_in_as_many_wavefronts_as_the_kernel(xor: int):
    """One x4 brings four matrices: A's from rows of 32 elements, B's from rows of 256."""
    model = {layout.column_read(width=width, xor=bool(xor)).count * 4 for width in (32, 256)}
    traced = accesses.run(kernels.load("09"), (128, 256, 32), SWIZZLE=xor)
    assert {r.banks.count for r in traced.patterns(verb="ldmatrix")} == model


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"width": 20}, "whole chunks"),
        ({"padding": 4}, "whole chunks"),
        ({"width": 24, "swizzle": True}, "power of two"),
        ({"column": 4}, "first of a chunk"),
        ({"column": 32}, "below 32"),
    ],
)
def test_explore_refuses_what_ldmatrix_cannot_read(arguments: dict, message: str):
    with pytest.raises(UserError, match=message):
        swizzle.explore(**arguments)


@pytest.mark.parametrize("arguments", [{}, {"swizzle": True}, {"width": 24}, {"width": 256, "padding": 8, "column": 8}])
def test_explore_says_what_the_model_counts(arguments: dict):
    figure = swizzle.explore(**arguments)
    names = {"swizzle": "xor"}
    count = layout.column_read(**{"width": 32} | {names.get(k, k): v for k, v in arguments.items()}).count
    assert f"take {count} wavefront" in figure.texts[0].get_text()
    assert figure._repr_png_().startswith(PNG)
