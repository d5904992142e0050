"""The layout explorer and the figures of stages 09 and 10: their arithmetic is held to what the emulator executes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from common.sass import Instruction  # noqa: E402

import kernels  # noqa: E402
from common import explorer, layout, show  # noqa: E402
from common.errors import UserError  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("width, column", [(32, 0), (32, 24), (64, 8), (256, 248)])
def test_xor_is_free_of_conflicts_for_any_eight_rows(width: int, column: int):
    for first in range(16):
        rows = np.arange(first, first + 8)
        offsets = layout.tile_offset(rows, np.full(8, column), width=width, element=2, xor=True)
        assert layout.wavefronts(offsets, 16).count == 1


@pytest.mark.parametrize("swizzle", [0, 1])
def test_the_model_reads_in_as_many_wavefronts_as_the_kernel(swizzle: int):
    """One x4 brings four matrices: A's from rows of 32 elements, B's from rows of 256."""
    model = {layout.column_read(width=width, xor=bool(swizzle)).count * 4 for width in (32, 256)}
    traced = show.trace(kernels.load("09"), (128, 256, 32), SWIZZLE=swizzle)
    assert {r.banks.count for r in traced.patterns(verb="ldmatrix")} == model


@pytest.mark.parametrize("group_m", [1, 8])
def test_order_of_blocks_is_the_executed_one(group_m: int):
    """Ten rows of tiles: the last group is lower than the others."""
    kernel = kernels.load("09").kernel("fp16", {"GROUP_M": group_m})
    executed, tile = explorer.executed_order(kernel, (10 * 128, 2 * 256, 32))
    assert tile == (128, 256)
    assert np.array_equal(executed, explorer.order(10, 2, group_m))


def test_traffic_of_one_wave_is_its_outline():
    """4 × 4 tiles of 128 × 256 in one wave: all rows and all columns once, of 16 that each ask for their own."""
    found = explorer.traffic((512, 1024, 64), (128, 256), group_m=4, running=16)
    assert (found.a, found.b, found.asked) == (512 * 64 * 2, 1024 * 64 * 2, 16 * (128 + 256) * 64 * 2)
    stripes = explorer.traffic((512, 1024, 64), (128, 256), group_m=1, running=4)
    assert (stripes.a, stripes.b) == (128 * 64 * 2, 1024 * 64 * 2)


def test_main_loop_finds_the_first_use_of_each_fragment():
    listing = [
        "LDSM.16.M88.4 R8, [R2]",  # before the loop
        "HMMA.16816.F32 R20, R8.reuse, R12, R20",  # 0: the loop begins
        "LDSM.16.M88.4 R8, [R3]",  # 1: used in the next turn, as place 5 + 0
        "BAR.SYNC.DEFER_BLOCKING 0x0",  # 2
        "LDSM.16.MT88.4 R12, [R4]",  # 3: used by the mma that follows
        "HMMA.16816.F32 R24, R16, R14, R24",  # 4
        "@!P0 BRA 0x10",
    ]
    loop = explorer.main_loop([Instruction(16 * n, text) for n, text in enumerate(listing)])
    assert (loop.mma, loop.barriers, loop.copies, loop.length) == ((0, 4), (2,), (), 5)
    assert loop.loads == (explorer.Load(1, 5, 1, "A"), explorer.Load(3, 4, 0, "B"))
    with pytest.raises(UserError, match="no loop with tensor instructions"):
        explorer.main_loop([Instruction(0, "EXIT")])


def test_double_buffering_leaves_no_mma_without_its_fragments():
    """In the machine code: after the barrier of stage 09 the tensor cores wait for ldmatrix, in stage 10 they do not."""
    before = explorer.sass_loop(kernels.load("09").kernel("fp16"))
    after = explorer.sass_loop(kernels.load("10").kernel("fp16"), function="ILi3E")
    assert min(load.between for load in before.loads) == 0 < min(load.between for load in after.loads)
    assert len(after.loads) == 2 * len(before.loads) and len(after.mma) == 2 * len(before.mma)  # slices twice as deep


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
        explorer.explore(**arguments)


@pytest.mark.parametrize("arguments", [{}, {"swizzle": True}, {"width": 24}, {"width": 256, "padding": 8, "column": 8}])
def test_explore_says_what_the_model_counts(arguments: dict):
    figure = explorer.explore(**arguments)
    names = {"swizzle": "xor"}
    count = layout.column_read(**{"width": 32} | {names.get(k, k): v for k, v in arguments.items()}).count
    assert f"take {count} wavefront" in figure.texts[0].get_text()
    assert figure._repr_png_().startswith(PNG)
