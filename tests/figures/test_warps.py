"""How warps work together: a ring of tiles and consumers that take turns, as the kernels execute them."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgba

import kernels
from common.figures import warps
from cudaemu.errors import UserError
from cudaemu.timeline import Kind

SLICES, SLICE, STAGES = 10, 64, 4


@pytest.fixture(scope="module")
def one_warp_copies() -> warps.Run:
    return warps.run(kernels.load("h3"), (128, 256, SLICES * SLICE))


@pytest.fixture(scope="module")
def a_consumer_copies() -> warps.Run:
    return warps.run(kernels.load("h2"), (128, 256, SLICES * SLICE))


@pytest.fixture(scope="module")
def turns() -> dict[int, warps.Run]:
    """h4 with all of C for its one block: consumers that take turns (1: eight tiles), and that share one (0: four)."""
    stage = kernels.load("h4")
    return {
        way: warps.run(stage.kernel(variants={"PING_PONG": way}), (256, 512, 4 * SLICE)) for way in (0, 1)
    }  # fmt: skip


@pytest.fixture(params=["one_warp_copies", "a_consumer_copies"])
def either(request) -> warps.Run:
    return request.getfixturevalue(request.param)


def test_slices_go_round_the_ring(either):
    found = either.slices
    assert [(held.number, held.stage) for held in found] == [(n, n % STAGES) for n in range(SLICES)]
    for held in found:
        assert held.issued < held.full < held.empty
    for held, after in zip(found, found[STAGES:]):
        assert held.empty <= after.issued, "a stage is filled again once it has been read"


def test_who_copies_and_who_multiplies(one_warp_copies, a_consumer_copies):
    assert (a_consumer_copies.producers, a_consumer_copies.consumers) == ([0], [0, 4])
    assert (one_warp_copies.producers, one_warp_copies.consumers) == ([8], [0, 4])
    for run in (one_warp_copies, a_consumer_copies):
        for first in run.consumers:
            assert [span.number for span in run.of(Kind.WGMMA, warp=first)] == list(range(SLICES))


def test_a_producer_waits_for_nothing_but_free_stages(one_warp_copies):
    """And each of its waits ends with the phase of an empty barrier; a consumer that copies is never there in time."""
    barrier, *waits = one_warp_copies.of(Kind.WAITS, warp=8)
    assert barrier.what == "barrier 0" and len(waits) == SLICES - STAGES
    assert [wait.what for wait in waits] == [f"shared.empty[{n % STAGES}]" for n in range(SLICES - STAGES)]
    assert [wait.end for wait in waits] == [held.empty for held in one_warp_copies.slices[: SLICES - STAGES]]


def test_a_producer_that_does_nothing_else_fills_a_stage_sooner(one_warp_copies, a_consumer_copies):
    assert 0 < one_warp_copies.refill < a_consumer_copies.refill / 2


def test_consumers_that_take_turns_multiply_one_after_the_other(turns):
    run = turns[1]
    first, second = (run.of(Kind.WGMMA, warp=warp) for warp in run.consumers)
    assert len(first) == len(second) == 16 and len(run.products) == 8
    tiles = sorted(
        ((*mine[4 * n : 4 * n + 4],) for mine in (first, second) for n in range(4)), key=lambda t: t[0].start
    )
    assert [tile[0].warp for tile in tiles] == [0, 4] * 4
    for tile, after in zip(tiles, tiles[1:]):
        assert after[0].start > tile[-1].start, "all products of a tile have been issued before the next one's first"
    waits = [[w.what for w in run.of(Kind.WAITS, warp=warp) if w.what != "barrier 0"] for warp in run.consumers]
    assert (waits[0].count("barrier 3"), waits[1].count("barrier 4")) == (3, 4), "for its turn"


def test_consumers_that_share_a_tile_stop_multiplying_together(turns):
    run = turns[0]
    first, second = (run.of(Kind.WGMMA, warp=warp) for warp in run.consumers)
    assert len(first) == len(second) == 16 and len(run.products) == 4
    for mine, others in zip(first, second):
        assert mine.start < others.end and others.start < mine.end
    for store in run.of(Kind.STORES, warp=0):
        assert not any(start < store.end and store.start < end for start, end in run.products)
    assert 0 < turns[1].without_product < run.without_product < 1


def test_each_tile_is_stored_by_tma(turns):
    for run in turns.values():
        assert [span.amount for span in run.of(Kind.TMA_STORE)] == [128 * 128 * 2] * 8 and not run.timeline.left_out


def test_kernels_without_a_ring_of_mbarriers():
    run = warps.run(kernels.load("08"), (128, 256, 128))
    with pytest.raises(UserError, match="08_multi_stage fp16 has 0 mbarriers"):
        warps.ring(run)


def test_the_pictures_say_what_was_executed(one_warp_copies, a_consumer_copies, turns):
    picture = warps.ring(a_consumer_copies, one_warp_copies, slices=6)
    said = picture.texts[0].get_text().replace("\n", " ")
    assert f"{one_warp_copies.refill:.0f} steps (h3_warp_specialized fp16)" in said
    below = picture.axes[1]
    assert [label.get_text() for label in below.get_yticklabels()][:2] == ["producer: warp 8", "stage 0"]
    assert {"slice 0", "slice 5", "0", "5"} <= {text.get_text() for text in below.texts}
    assert below.get_xlim()[1] < one_warp_copies.end
    picture = warps.turns(turns[1], turns[0])
    assert [axes.get_title(loc="left") for axes in picture.axes] == [turns[1].label, turns[0].label]
    for axes, run in zip(picture.axes, (turns[1], turns[0])):
        assert [label.get_text() for label in axes.get_yticklabels()][-1] == "either"
        bars = [patch for patch in axes.patches if round(patch.get_y() + patch.get_height() / 2) == 2]
        assert len(bars) == len(run.products), "when either has products under way"
    assert all("not the time of a GPU" in each.axes[-1].get_xlabel() for each in (picture,))


@pytest.fixture(scope="module")
def attention() -> dict[tuple[int, int], warps.Run]:
    """h7 with four tiles of keys, by whether warpgroups take turns and whether scores are weighed under a product."""
    stage = kernels.load("h7")
    ways = [(turns, ahead) for turns in (0, 2) for ahead in (0, 1)]  # two warpgroups take turns
    chosen = {way: dict(zip(("PING_PONG", "SCORES_AHEAD"), way)) | {"HEAD_DIM": 64} for way in ways}
    shape = (1, 1, 1, 128, 512, 64)
    return {way: warps.run(stage.kernel(variants=each), shape, changed={"splits": 1}) for way, each in chosen.items()}


KINDS = {"n128k16": "scores", "n64k16": "values"}  # one line of the kernel, a call, starts both


@pytest.mark.full
def test_two_overlaps_of_attention(attention):
    """Ahead: next scores are there while a product with values goes on. Turns: one warpgroup starts after the other."""
    for (turns, ahead), run in attention.items():
        for first in run.consumers:
            found = run.of(Kind.WGMMA, warp=first)
            scores, values = ([s for s in found if run.group(s, KINDS) == kind] for kind in KINDS.values())
            assert len(scores) == len(values) == 4
            for score, value in zip(scores[1:], values):
                assert value.start < score.end, "started together"
                assert (value.end > score.end) == bool(ahead)
        first, second = (run.of(Kind.WGMMA, warp=warp)[1:-1] for warp in run.consumers)
        assert all((after.start > before.start) == bool(turns) for before, after in zip(first, second))
    idle = {way: run.without_product for way, run in attention.items()}
    assert idle[0, 0] > idle[2, 0] > idle[0, 1] > idle[2, 1] > 0


@pytest.mark.full
def test_a_picture_of_the_overlaps(attention):
    figure = warps.overlaps(attention[0, 0], attention[2, 1], kinds=KINDS)
    shown = [patch.get_facecolor() for axes in figure.axes for patch in axes.patches]
    for colour in warps.PRODUCTS:
        assert shown.count(to_rgba(colour)) == 2 * 2 * 4, "runs × consumers × products of a kind"
    with pytest.raises(UserError, match="must have one of the words nothing"):
        warps.overlaps(attention[0, 0], kinds={"nothing": "scores", "at all": "values"})
