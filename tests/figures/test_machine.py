"""What warps do on the machine: the model of a scheduler, lanes that take part, what fits on an SM."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.figures import accesses, machine
from cudaemu import hardware
from cudaemu.errors import UserError

HALVES = """
__global__ void kernel(float *a, float *b) {
  if (threadIdx.x % 2) a[threadIdx.x] = 1; else b[threadIdx.x] = 1;
}
extern "C" cudaError_t launch(float *a, float *b) {
  kernel<<<1, 32>>>(a, b);
  return cudaGetLastError();
}
"""


@pytest.mark.parametrize("warps, work, wait", [(1, 1, 9), (2, 4, 28), (4, 4, 28), (8, 4, 28), (16, 4, 28), (3, 1, 0)])
def test_a_scheduler_is_as_busy_as_its_warps_can_keep_it(warps, work, wait):
    """warps · work instructions in each work + wait clocks, and never more than one per clock."""
    order = machine.issued(warps, work, wait, 40 * (work + wait))
    busy = (order[len(order) // 2 :] >= 0).mean()
    assert busy == pytest.approx(min(1, warps * work / (work + wait)), abs=0.01)
    assert set(order) <= set(range(-1, warps))
    runs = [np.flatnonzero(order == warp) for warp in range(warps) if (order == warp).any()]
    for clocks in runs:  # after its load a warp waits
        loads = clocks[work - 1 :: work][: len(clocks[work::work])]
        assert (clocks[work::work] - loads > wait).all()


def test_the_figure_says_how_busy_it_is():
    picture = machine.hiding([1, 8], 4, 28)
    titles = [axes.get_title(loc="left") for axes in picture.axes]
    assert titles == [f"{warps}: an instruction is issued in {share} of the clocks"
                      for warps, share in (("1 warp", "12%"), ("8 warps", "100%"))]  # fmt: skip
    assert "8 warps fill 100%" in picture.texts[0].get_text().replace("\n", " ")


def test_lanes_that_took_the_other_branch_are_switched_off():
    traced = accesses.snippet(HALVES, a=torch.zeros(32), b=torch.zeros(32))
    picture = machine.active(traced.requests("a") + traced.requests("b"), "two ways")
    assert "2 requests, on average 50% of the lanes" in picture.texts[0].get_text()
    assert len({label.get_text() for label in picture.axes[0].get_yticklabels()}) == 1  # both stand in one line
    lanes = sorted(int(text.get_text()) for text in picture.axes[0].texts)
    assert lanes == list(range(32))  # each takes part in one of the two
    with pytest.raises(UserError, match="by their tensor's name"):
        machine.active(traced.requests(), "shared memory")


def test_registers_decide_how_many_warps_fit():
    gpu = hardware.model("9.0")
    picture = machine.residents(gpu, 256, [0, 100 * 1024], {"here": 127})
    free, full = (line.get_xydata() for line in picture.axes[0].lines[:2])
    assert dict(free)[32] == 64 and dict(free)[127] == 16 and dict(free)[222] == 8
    assert dict(full)[32] == 16 and (full[:, 1] <= free[:, 1]).all()
    assert picture.axes[0].texts[0].xy == (127, 16)
