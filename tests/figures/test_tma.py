"""What the copy engine brings is what the tensor map says: a box, swizzled, with zeros beyond the edges."""

from __future__ import annotations

import numpy as np
import pytest

from common.figures import tma
from cudaemu.errors import UserError

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("swizzle, width", [(0, 24), (32, 16), (64, 32), (128, 64)])
def test_chunks_lie_where_the_swizzle_has_them(swizzle: int, width: int):
    row, col = tma.brought(40, 100, (16, width), swizzle, (8, 16))
    place = np.arange(16 * width) * tma.ELEMENT
    if swizzle:
        place ^= place // 128 % (swizzle // 16) * 16  # bits of the address from 4 on, XOR those from 7 on
    y, x = np.divmod(place // tma.ELEMENT, width)
    assert (row == 8 + y).all() and (col == 16 + x).all()


def test_what_lies_beyond_the_edges_is_zero():
    row, col = tma.brought(20, 90, (8, 64), 128, (16, 64))
    inside = row >= 0
    assert inside.sum() == 4 * 26 and row[inside].min() == 16 and col[inside].max() == 89
    row, _ = tma.brought(12, 40, (8, 32), 64, (-2, 16))
    assert (row >= 0).sum() == 6 * 24


def test_the_picture_shows_both_sides():
    figure = tma.explore()
    matrix, shared = ({text.get_text() for text in axes.texts} - {""} for axes in figure.axes)
    assert matrix == shared - {"0"} == {f"{row}·{chunk}" for row in range(16, 20) for chunk in range(8, 12)}
    assert "75% of its bytes are zeros" in figure.texts[0].get_text()
    assert figure._repr_png_().startswith(PNG)
    assert "zeros" not in tma.explore(corner=(0, 0)).texts[0].get_text()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"box": (8, 128)}, "at most the 128 bytes of the swizzle"),
        ({"box": (8, 60)}, "multiple of 16 bytes"),
        ({"swizzle": 16}, "swizzle must be"),
        ({"rows": 2000}, "65,535"),
    ],
)
def test_explore_refuses_what_tma_cannot_copy(arguments: dict, message: str):
    with pytest.raises(UserError, match=message):
        tma.explore(**arguments)
