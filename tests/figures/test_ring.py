"""The timeline of the ring: slices, buffers, waits and reads as the kernels execute them."""

from __future__ import annotations

import pytest

import kernels
from common import show, timeline
from common.errors import UserError

SLICES, SLICE = 6, 32


def traced(number: int, **variants: int) -> show.Traced:
    return show.trace(kernels.load(number), (128, 256, SLICES * SLICE), **variants)


@pytest.fixture(scope="module")
def rings() -> dict[int, list[timeline.Slice]]:
    """Buffers -> slices: stage 07 has one, the variants of 08 as many as they say."""
    return {1: timeline.slices(traced(7))} | {n: timeline.slices(traced(8, STAGES=n)) for n in (2, 3, 5)}


@pytest.mark.parametrize("buffers", [1, 2, 3, 5])
def test_slices_go_round_the_ring(rings, buffers):
    ring = rings[buffers]
    assert [one.buffer for one in ring] == [number % buffers for number in range(SLICES)]
    assert timeline.in_flight(ring) == buffers - 1
    assert {len(one.copies) for one in ring} == {6} and {len(one.reads) for one in ring} == {16}
    moments = sorted(moment for one in ring for moment in one.copies + one.reads)
    assert moments == list(range(len(moments)))


@pytest.mark.parametrize("buffers", [1, 2, 3, 5])
def test_the_order_that_makes_a_ring_right(rings, buffers):
    """A slice is copied, waited for, read; its buffer is filled again only when all of it has been read."""
    ring = rings[buffers]
    for one in ring:
        assert one.copies[-1] < one.waited <= one.reads[0]
    for one, after in zip(ring, ring[buffers:]):
        assert one.reads[-1] < after.copies[0]


def test_where_the_wait_stands(rings):
    """Stage 07 waits behind its copies; stage 08 before those of the same turn, as long as there are any."""
    assert all(one.waited == one.reads[0] for one in rings[1])
    assert [one.reads[0] - one.waited for one in rings[3]] == [6] * (SLICES - 2) + [0] * 2


def test_later_rings_and_kernels_without_one():
    for number in (9, 10):
        ring = timeline.slices(show.trace(kernels.load(number), (128, 256, 512)))
        assert timeline.in_flight(ring) >= 1 and len(ring) > 1 + max(one.buffer for one in ring)
    with pytest.raises(UserError, match="06_padding fp16 does not copy with cp.async"):
        timeline.slices(traced(6))


def test_the_headline_says_what_was_executed():
    picture = timeline.ring(traced(7), traced(8, STAGES=2), turns=3)
    said = "Slices in flight while another one is multiplied: 0 with 1 buffer, 1 with 2 buffers"
    assert picture.texts[0].get_text() == said
    titles = [axes.get_title(loc="left").split(":")[0] for axes in picture.axes]
    assert titles == ["07_cp_async fp16", "08_multi_stage fp16 STAGES=2"]
