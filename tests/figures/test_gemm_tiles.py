"""The order of a matrix product's tiles: held to what the emulator executes."""

from __future__ import annotations

import numpy as np
import pytest

import cudaemu
import kernels
from common.figures import gemm_tiles
from cudaemu.errors import UserError
from kernels.library.hopper_matmul.choices import CHOICES


def order(tiles_m: int, tiles_n: int, group_m: int) -> np.ndarray:
    """Groups of `group_m` rows of tiles, each walked down before a step to the right."""
    rows = [range(top, min(top + group_m, tiles_m)) for top in range(0, tiles_m, group_m)]
    walked = [(m, n) for group in rows for n in range(tiles_n) for m in group]
    found = np.empty((tiles_m, tiles_n), np.int64)
    for block, place in enumerate(walked):
        found[place] = block
    return found


@pytest.mark.parametrize("group_m", [1, 8])
def test_the_order_of_blocks_is_the_executed_one(group_m: int):
    """Ten rows of tiles: the last group is lower than the others."""
    kernel = kernels.load("09").kernel("fp16", {"GROUP_M": group_m})
    executed, tile = gemm_tiles.executed_order(kernel, (10 * 128, 2 * 256, 32))
    assert tile == (128, 256)
    assert np.array_equal(executed, order(10, 2, group_m))


def test_the_traffic_of_one_wave_is_its_outline():
    """4 × 4 tiles of 128 × 256 in one wave: all rows and all columns once, of 16 that each ask for their own."""
    found = gemm_tiles.traffic(order(4, 4, 4), (128, 256), depth=64, running=16)
    assert (found.a, found.b, found.asked) == (512 * 64 * 2, 1024 * 64 * 2, 16 * (128 + 256) * 64 * 2)
    stripes = gemm_tiles.traffic(order(4, 4, 1), (128, 256), depth=64, running=4)
    assert (stripes.a, stripes.b) == (128 * 64 * 2, 1024 * 64 * 2)


def test_pictures_say_what_the_model_counts():
    orders = {f"GROUP_M = {group}": order(16, 12, group) for group in (1, 12)}
    picture = gemm_tiles.waves(orders, (128, 256), running=36)
    assert picture.texts[0].get_text().startswith("36 blocks at a time need 3,456 rows and columns of A and B with")
    picture = gemm_tiles.group_sizes(order, (4096,), (128, 256), chosen=12)
    assert "a wave reads, GROUP_M = 12 against 1: 1% fewer at 4096" in picture.texts[0].get_text()
    # 512 blocks in four waves, the last of 116: 128 · (128 + 256) · 4096 · 2 bytes on average
    assert "of 403 MB asked for (mean of the waves)" in picture.axes[0].get_title(loc="left")


def test_other_problems_have_no_such_tiles():
    kernel = kernels.load("12").kernel()
    with pytest.raises(UserError, match="has no tiles of C"):
        gemm_tiles.executed_order(kernel, (1, 1, 64, 128))


@pytest.mark.full
def test_the_blocks_of_a_cluster_store_columns_of_their_tile():
    """128 × 64 with K in 2: each block of a cluster adds the sums of half of the columns of each consumer."""
    stage = kernels.load("hopper_matmul")
    kernel, shape = stage.kernel(), (128, 256, 128)
    inputs, outputs = (make(shape, "fp16", kernel.variants) for make in (stage.spec.inputs, stage.spec.outputs))
    reports = {
        name: kernel.emulate(inputs, outputs, changed={"choice": choice}, sanitize=False, trace=cudaemu.Trace())
        for name, choice in {"whole": 0, "split": CHOICES.index("128 × 64, K in 2")}.items()
    }
    assert (reports["whole"].writers("C")[0] == 0).all()
    wanted = np.repeat(range(8), 32)
    assert (reports["split"].writers("C")[0] == wanted).all()
    picture = gemm_tiles.shares(reports)
    assert picture.texts[0].get_text() == "C, 128 × 256, by the block that stores it: 1, 8 blocks at work"
    assert [text.get_text() for text in picture.axes[1].texts] == list("01234567")
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["whole", "split"]
