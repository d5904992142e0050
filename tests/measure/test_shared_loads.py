"""What ptxas made of plain shared loads: which PTX loads are one in the machine code, and what those cost."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest

import kernels
from common import counts
from common.figures import layout
from common.measure import shared_loads
from common.measure.shared_loads import partition
from cudaemu import Trace

LANE = np.arange(32)


def request(addresses: np.ndarray, lanes: np.ndarray = LANE) -> np.ndarray:
    return np.stack([lanes, addresses]).astype(np.int64)


def row(count: int, size: int, start: int = 0) -> dict[int, list[np.ndarray]]:
    """Loads of `size` bytes one after the other, the same for all lanes, executed twice in other rows of a tile."""
    return {pc: [request(LANE * 0 + start + base + pc * size) for base in (0, 1024)] for pc in range(count)}


def test_what_was_not_merged_is_left_alone():
    executed = row(4, 4)
    assert partition(dict.fromkeys(range(4), 4), executed, Counter({4: 4})) == [[0], [1], [2], [3]]
    assert partition(dict.fromkeys(range(4), 4), executed, Counter({4: 8})) == [[0], [1], [2], [3]], "the line, twice"
    assert partition({0: 4, 1: 4}, {}, Counter({4: 2})) == [[0], [1]], "not even executed"


def test_neighbours_are_merged_where_the_code_has_wide_loads():
    executed = row(8, 4)
    widths = dict.fromkeys(range(8), 4)
    assert partition(widths, executed, Counter({16: 2})) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert partition(widths, executed, Counter({8: 4})) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert partition(widths, executed, Counter({16: 4})) == [[0, 1, 2, 3], [4, 5, 6, 7]], "the line, twice"
    assert partition(widths, row(8, 4, start=8), Counter({8: 2, 16: 1})) == [[0, 1], [2, 3, 4, 5], [6, 7]], "aligned"


def test_others_in_the_same_line_stay_as_they_are():
    """As in 02_block_tile: a row of A, read by all lanes, and a column of B."""
    executed = row(4, 2) | {
        10 + k: [request(4096 + k * 64 + LANE * 2), request(8192 + k * 64 + LANE * 2)] for k in range(4)
    }
    widths = dict.fromkeys(executed, 2)
    groups = partition(widths, executed, Counter({8: 1, 2: 4}))
    assert groups is not None and sorted(groups) == [[0, 1, 2, 3], [10], [11], [12], [13]]


@pytest.mark.parametrize(
    "made",
    [
        Counter({16: 1}),  # bytes are missing
        Counter({16: 2, 4: 1}),  # or too many
        Counter({8: 1, 4: 6}),  # which two of the eight?
        Counter({}),
    ],
)
def test_what_does_not_fit_in_one_way_is_not_guessed(made):
    assert partition(dict.fromkeys(range(8), 4), row(8, 4), made) is None


def test_loads_that_are_no_neighbours_cannot_be_one():
    apart = {0: [request(LANE * 4)], 1: [request(LANE * 4 + 64)]}
    other_lanes = {0: [request(LANE * 4)], 1: [request(LANE[:16] * 4 + 4, LANE[:16])]}
    now_and_then = {0: [request(LANE * 4)] * 2, 1: [request(LANE * 4 + 4)]}
    moving = {0: [request(LANE * 8), request(LANE * 8)], 1: [request(LANE * 8 + 4), request(LANE * 8 + 12)]}
    for executed in (apart, other_lanes, now_and_then, moving, {0: [request(LANE * 8)]}):
        assert partition({0: 4, 1: 4}, executed, Counter({8: 1})) is None
    assert partition({0: 4, 1: 4}, {pc: moving[pc][:1] for pc in moving}, Counter({8: 1})) == [[0, 1]]


@pytest.mark.parametrize(
    "ptx, width",
    [
        ("ld.shared.u16 %rs1, [%r1+2]", 2),
        ("@%p1 ld.shared.f32 %f1, [%r1]", 4),
        ("ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r1]", 16),
        ("ld.volatile.shared.v2.b32 {%r1, %r2}, [tile+8]", 8),
        ("ld.relaxed.cta.shared::cta.b64 %rd1, [%r1]", 8),
    ],
)
def test_widths_of_ptx(ptx, width):
    assert shared_loads._width(ptx) == width


@pytest.mark.parametrize("opcode, width", [("LDS", 4), ("LDS.U16", 2), ("LDS.S8", 1), ("LDS.64", 8), ("LDS.U.128", 16)])
def test_widths_of_machine_code(opcode, width):
    assert shared_loads._opcode_width(opcode) == width


@pytest.mark.core(every=3)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_the_counts_of_block_tile_follow_from_its_loop(dtype):
    """For each k a warp reads one element of A, the same for all, and 32 of B; A's are merged to what the code has."""
    kernel = kernels.load("02").kernel(dtype)
    shape = (64, 64, 64)
    report = counts.emulate(kernel, shape, sanitize=False, arch="9.0", trace=Trace(blocks=range(1)))
    steps = prod(shape) // 32  # of all warps together
    made = shared_loads.machine_code(kernel, "gemm_kernel", "9.0")
    (widths,) = (found for found in made.values())
    loads_of_a = sum(widths.values()) - 32  # of the 32 k of a slice
    each = layout.wavefronts(LANE * 0, max(widths), load=True).count  # 2 for 16 bytes: half a warp at a time
    assert shared_loads.merged(kernel, report, "9.0") == {
        "shared_load_wavefronts": steps + steps * loads_of_a * each // 32,
        "shared_load_conflicts": 0,
    }
    assert report.counters["shared_load_wavefronts"] == 2 * steps
    assert (loads_of_a < 32) == (dtype != "bf16"), "what ptxas of CUDA 13.0 does; its own affair"


def test_blocks_that_differ_are_not_taken_for_one_another():
    """A ragged problem: block 0 is whole, others are cut off; the loads of all are the same in number, though."""
    kernel = kernels.load("02").kernel("fp16")
    report = counts.emulate(kernel, (64, 64, 64), sanitize=False, arch="9.0", trace=Trace(blocks=range(1)))
    key = next(key for key, found in report.lines.items() if found["shared_load_wavefronts"])
    report.lines[key].shared_load_wavefronts += 1
    assert shared_loads.merged(kernel, report, "9.0") is None


def test_a_kernel_without_plain_loads_needs_no_machine_code(monkeypatch):
    kernel = kernels.load("05").kernel()
    report = counts.emulate(kernel, (128, 256, 32), sanitize=False, trace=Trace(blocks=range(1)))
    monkeypatch.setattr(shared_loads, "machine_code", lambda *_: pytest.fail("asked for"))
    found = shared_loads.merged(kernel, report, "9.0")
    assert found == {name: report.counters[name] for name in shared_loads.COUNTERS} and found["shared_load_conflicts"]
