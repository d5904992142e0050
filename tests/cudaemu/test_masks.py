"""What lanes of a warp do together, with masks of every kind: groups of lanes at once, apart, some of them gone."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import cudaemu
from tests.cudaemu import rows, sources
from tests.cudaemu.machine import executed, kinds, launch

LANE = np.arange(32)
SHOW = "mad.wide.u32 %rd1, %r1, 4, %rd0; st.global.u32 [%rd1], %r3;"
# %r10: the mask of the lane's group. Halves; lanes with the same remainder; halves of which one is in the other's gaps.
HALVES = "setp.lt.u32 %p7, %r1, 16; selp.b32 %r10, 0x0000ffff, 0xffff0000, %p7;"
THREES = "rem.u32 %r9, %r1, 3; mov.b32 %r10, 0x49249249; shl.b32 %r10, %r10, %r9;"
GROUPS = {
    "halves": (HALVES, LANE // 16),
    "threes": (THREES, LANE % 3),
}
ALL = ("mov.b32 %r10, -1;", 0 * LANE)
TOGETHER = {  # what each lane computes from the lanes of its group: PTX, and the same of the members' numbers
    "ballot": (
        "and.b32 %r4, %r1, 1; setp.ne.u32 %p1, %r4, 0; vote.sync.ballot.b32 %r3, %p1, %r10;",
        lambda lanes: sum(1 << lane for lane in lanes if lane % 2),
    ),
    "any": (
        "setp.eq.u32 %p1, %r1, 4; vote.sync.any.pred %p2, %p1, %r10; selp.u32 %r3, 1, 0, %p2;",
        lambda lanes: int(4 in lanes),
    ),
    "all": (
        "setp.lt.u32 %p1, %r1, 16; vote.sync.all.pred %p2, %p1, %r10; selp.u32 %r3, 1, 0, %p2;",
        lambda lanes: int(max(lanes) < 16),
    ),
    "uni": (
        "setp.lt.u32 %p1, %r1, 16; vote.sync.uni.pred %p2, %p1, %r10; selp.u32 %r3, 1, 0, %p2;",
        lambda lanes: int(len({lane < 16 for lane in lanes}) == 1),
    ),
    "add": ("redux.sync.add.u32 %r3, %r1, %r10;", sum),
    "max": ("redux.sync.max.u32 %r3, %r1, %r10;", max),
    "match any": (
        "mov.u32 %r4, 7; match.any.sync.b32 %r3, %r4, %r10;",
        lambda lanes: sum(1 << lane for lane in lanes),
    ),
    "match all": (
        "shr.u32 %r4, %r1, 4; match.all.sync.b32 %r3|%p1, %r4, %r10; selp.u32 %r5, 1, 0, %p1; add.u32 %r3, %r3, %r5;",
        lambda lanes: sum(1 << lane for lane in lanes) + 1 if len({lane // 16 for lane in lanes}) == 1 else 0,
    ),
    "shuffle": (
        "brev.b32 %r4, %r10; clz.b32 %r5, %r4; clz.b32 %r4, %r10; sub.u32 %r4, 31, %r4;"
        "shfl.sync.idx.b32 %r3, %r1, %r4, 31, %r10; shl.b32 %r3, %r3, 8; or.b32 %r3, %r3, %r5;",
        lambda lanes: max(lanes) << 8 | min(lanes),
    ),
    "elect": (
        "elect.sync %r4|%p1, %r10; selp.u32 %r3, 1, 0, %p1;",
        lambda lanes: lambda lane: int(lane == min(lanes)),
    ),
}


def expected(group: np.ndarray, function) -> np.ndarray:
    members = {number: [int(lane) for lane in LANE[group == number]] for number in set(group.tolist())}
    values = {number: function(lanes) for number, lanes in members.items()}
    out = [value(lane) if callable(value := values[number]) else value for lane, number in enumerate(group.tolist())]
    return np.array(out, np.uint32)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("name", TOGETHER)
def test_groups_of_a_converged_warp(name, groups):
    """All lanes execute the instruction at once, each with the mask of its group."""
    (masks, group), (body, function) = GROUPS[groups], TOGETHER[name]
    c = np.full(32, 0xDEADBEEF, np.uint32)
    result = launch(masks + body + SHOW, c)
    assert not result.findings
    assert np.array_equal(c, expected(group, function))


@pytest.mark.parametrize("name", TOGETHER)
def test_groups_that_come_apart(name):
    """The halves come one after the other; the second goes through other code before."""
    body, function = TOGETHER[name]
    c = np.full(32, 0xDEADBEEF, np.uint32)
    late = f"{HALVES} @!%p7 bra WORK; bra.uni MEET; WORK: mul.lo.u32 %r20, %r1, %r1; bra.uni MEET; MEET: {body}"
    result = launch(late + SHOW, c)
    assert not result.findings
    assert np.array_equal(c, expected(LANE // 16, function))


def both_branches(name: str, masks: str) -> str:
    """Odd lanes execute it in one branch of an `if`, with other registers than even ones in the other branch."""
    body = TOGETHER[name][0]
    other = re.sub(r"%([rp])([1-5])\b", lambda at: at[0] if at[0] == "%r1" else f"%{at[1]}{int(at[2]) + 1}", body)
    assert other != body
    return f"""{masks} and.b32 %r20, %r1, 1; setp.ne.u32 %p0, %r20, 0; @%p0 bra ODD;
        {body} add.u32 %r3, %r3, 0; bra.uni END;
        ODD: {other} mov.u32 %r3, %r4; END: {SHOW}"""


@pytest.mark.parametrize("groups", [ALL, *GROUPS.values()], ids=["all", *GROUPS])
@pytest.mark.parametrize("name", TOGETHER)
def test_both_branches_of_an_if(name, groups):
    """PTX asks for the same instruction and mask, not for the same place: the lanes of both branches meet."""
    masks, group = groups
    c = np.full(32, 0xDEADBEEF, np.uint32)
    result = launch(both_branches(name, masks), c)
    assert not result.findings
    assert np.array_equal(c, expected(group, TOGETHER[name][1]))


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [ALL, *GROUPS.values()], ids=["all", *GROUPS])
@pytest.mark.parametrize("name", TOGETHER)
def test_a_gpu_agrees_about_both_branches(name, groups):
    needs = (9, 0) if name == "elect" else (8, 0)
    if torch.cuda.get_device_capability() < needs:
        pytest.skip(f"{name} needs compute capability {needs[0]}.{needs[1]}")
    masks, group = groups
    text = f""".version 8.0
        .target sm_{needs[0]}{needs[1]}
        .address_size 64
        .visible .entry k(.param .u64 p0)
        {{
            .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<2>;
            ld.param.u64 %rd0, [p0]; cvta.to.global.u64 %rd0, %rd0;
            mov.u32 %r1, %laneid;
            {both_branches(name, masks)}
            ret;
        }}"""
    c = np.full(32, 0xDEADBEEF, np.uint32)
    out = torch.from_numpy(c.view(np.uint8))
    rows.launch(text, (1, 1, 1), 32, [out])
    assert np.array_equal(c, expected(group, TOGETHER[name][1]))


APART = "setp.lt.u32 %p7, %r1, 16; @%p7 bra LOW; {} bra.uni END; LOW: {} END: ret;"


@pytest.mark.parametrize(
    ("high", "low"),
    [
        ("shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;", "shfl.sync.idx.b32 %r3, %r1, 1, 31, -1;"),
        ("vote.sync.ballot.b32 %r3, %p7, -1;", "vote.sync.any.pred %p1, %p7, -1;"),
        ("match.any.sync.b32 %r3, %r1, -1;", "match.all.sync.b32 %r3|%p1, %r1, -1;"),
        ("redux.sync.add.u32 %r3, %r1, -1;", "redux.sync.min.u32 %r3, %r1, -1;"),
        ("shfl.sync.idx.b32 %r3, %r1, 1, 31, -1;", "shfl.sync.idx.b32 %r3, %r1, 1, 31, 0x00ffffff;"),
        ("movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r1;",) * 2,
    ],
)
def test_other_qualifiers_do_not_meet(high, low):
    """Nor do other masks, nor what is `.aligned`: one half waits in vain, and the finding says where the other is."""
    finding, *more = launch(APART.format(high, low), np.zeros(32, np.uint32)).findings
    assert finding.kind == "warp divergence" and not more, "then the others are alone"
    assert (finding.place.text + ";", finding.other_place.text + ";") == (high, low)
    assert finding.other_thread == (0, 0, 0) and finding.other_place != finding.place and "waits" in finding.message


def test_meetings_at_two_places_that_leave_lanes_behind():
    """Some lanes of a mask come to one barrier and all to another: they meet first, and then some are alone."""
    body = """setp.ge.u32 %p6, %r1, 16; @%p6 bra LAST; setp.ge.u32 %p7, %r1, 8; @%p7 bra SKIP; bar.warp.sync 0xffff;
        SKIP: bar.warp.sync 65535; LAST: bar.warp.sync -1;"""
    (finding,) = launch(body, np.zeros(32, np.uint32)).findings
    assert finding.kind == "warp divergence" and finding.place.text == "bar.warp.sync 65535"
    assert finding.other_place.text == "bar.warp.sync 0xffff" and "counted as one" in finding.message


def test_what_lanes_bring_from_another_place_may_be_undefined():
    """A ballot that a lane in the other branch takes part in with a predicate that was never set."""
    body = APART.replace("ret;", f"{SHOW} ret;").format(
        "setp.eq.u32 %p1, %r1, 40; vote.sync.ballot.b32 %r3, %p1, -1;", "vote.sync.ballot.b32 %r3, %p2, -1;"
    )
    assert kinds(launch(body, np.zeros(32, np.uint32))) == ["undefined value"]


def test_a_group_need_not_wait_for_another():
    """Lanes 0 to 15 vote among themselves while the others are far away and never come."""
    c = np.full(32, 0xDEADBEEF, np.uint32)
    body = f"""{HALVES} @!%p7 bra AWAY; setp.gt.u32 %p1, %r1, 12; vote.sync.ballot.b32 %r3, %p1, 0xffff; {SHOW}
        AWAY: bar.warp.sync -1;"""
    result = launch(body, c)
    assert not result.findings
    assert (c[:16] == 0xE000).all() and (c[16:] == 0xDEADBEEF).all()


def test_lanes_that_have_exited_are_not_waited_for():
    """The others wait first, and lanes 16 to 31 exit afterwards."""
    c = np.full(32, 0xDEADBEEF, np.uint32)
    body = f"""setp.ge.u32 %p0, %r1, 16; @%p0 bra LEAVE; setp.gt.u32 %p1, %r1, 12; vote.sync.ballot.b32 %r3, %p1, -1;
        {SHOW} ret; LEAVE: exit;"""
    result = launch(body, c)
    assert not result.findings
    assert (c[:16] == 0xE000).all()


def test_barriers_of_a_warp_meet_wherever_they_stand():
    """`__syncwarp()` in both branches: each half waits for the other at its own."""
    c = np.full(32, 0xDEADBEEF, np.uint32)
    body = f"""
        .shared .align 4 .b32 s[32];
        mov.u32 %r2, s; mad.lo.u32 %r2, %r1, 4, %r2; xor.b32 %r4, %r1, 16; mov.u32 %r5, s; mad.lo.u32 %r4, %r4, 4, %r5;
        setp.lt.u32 %p0, %r1, 16; @%p0 bra LOW;
        st.shared.u32 [%r2], %r1; {{}} ld.shared.u32 %r3, [%r4]; bra.uni END;
        LOW: st.shared.u32 [%r2], %r1; bar.warp.sync -1; ld.shared.u32 %r3, [%r4];
        END: {SHOW}"""
    result = launch(body.format("bar.warp.sync -1;"), c)
    assert not result.findings and np.array_equal(c, LANE ^ 16)
    assert executed(result, "st.global") == 1, "they go on together"
    assert "shared race" in kinds(launch(body.format(""), c)), "one half waits and the other does not come"


@pytest.mark.parametrize(
    ("body", "left_out"),
    [
        ("shfl.sync.bfly.b32 %r3, %r1, 1, 31, 0x0000ffff;", 0xFFFF0000),
        ("setp.eq.u32 %p0, %r1, 9; vote.sync.any.pred %p1, %p0, 0xfffffffe;", 1),
        ("redux.sync.add.u32 %r3, %r1, 0x7fffffff;", 0x80000000),
    ],
)
def test_a_lane_that_its_mask_leaves_out(body, left_out):
    (finding,) = launch(body, np.zeros(32, np.uint32)).findings
    assert finding.kind == "lane outside its mask" and f"0x{left_out:08x}" in finding.message
    assert finding.thread == ((left_out & -left_out).bit_length() - 1, 0, 0) and finding.place.text in body


def test_the_lanes_that_the_mask_names_get_what_they_asked_for():
    c = np.zeros(32, np.uint32)
    result = launch("setp.ne.u32 %p0, %r1, 99; vote.sync.ballot.b32 %r3, %p0, 0x000000ff;" + SHOW, c)
    assert kinds(result) == ["lane outside its mask"] and (c[:8] == 0xFF).all()


COOPERATIVE_GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void kernel(int *out, const int *labels) {
  const int t = threadIdx.x;
  const auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  out[t] = tile.any(t == 3);
  out[64 + t] = cg::reduce(tile, t, cg::plus<int>());
  const auto same = cg::labeled_partition(cg::coalesced_threads(), labels[t]);
  out[128 + t] = cg::reduce(same, 1, cg::plus<int>());
  out[192 + t] = same.shfl(t, 0);
  if (t % 3 == 0) {
    const auto third = cg::coalesced_threads();
    out[256 + t] = cg::reduce(third, t, cg::greater<int>());
    out[320 + t] = third.any(t == 33);
  }
}
extern "C" cudaError_t launch(int *out, const int *labels) {
  kernel<<<1, 64>>>(out, labels);
  return cudaGetLastError();
}
"""


@pytest.mark.full
def test_cooperative_groups():
    labels = torch.arange(64, dtype=torch.int32) * 7 % 5
    out = torch.full((6, 64), -1, dtype=torch.int32)
    report = cudaemu.run(
        sources.source(COOPERATIVE_GROUPS, "cooperative_groups"), "launch", [out, labels], names=["o", "l"]
    )
    assert report.ok, report
    t, label = np.arange(64), labels.numpy()
    warp, third = t // 32, t % 3 == 0
    same = (warp[:, None] == warp) & (label[:, None] == label)
    threes = (warp[:, None] == warp) & third
    assert np.array_equal(out[0], t // 16 == 0)
    assert np.array_equal(out[1], [t[t // 16 == n // 16].sum() for n in t])
    assert np.array_equal(out[2], same.sum(1))
    assert np.array_equal(out[3], same.argmax(1))
    assert np.array_equal(out[4], np.where(third, (threes * t).max(1), -1))
    assert np.array_equal(out[5], np.where(third, warp == 1, -1))
