"""Time lines: who waited for whom and how long, in steps that can be counted; copies, groups; as Chrome reads them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudaemu
from cudaemu import Events, Span, Timeline, timeline
from cudaemu.errors import UserError
from cudaemu.timeline import Kind
from docs.hardware import suite
from tests.cudaemu.machine import launch
from tests.cudaemu.sources import broken_source

ROOT = Path(__file__).parents[2]
WARP = "shr.u32 %r2, %r0, 5; setp.eq.u32 %p0, %r2, 0; setp.eq.u32 %p2, %r0, 0;"  # %p0: of warp 0; %p2: thread 0
WORK = "add.u32 %r9, %r9, 1;" * 100
WAIT = "{0}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [m], {1}; @!%p1 bra {0};"
INIT = (
    WARP
    + ".shared .align 16 .b32 s[64]; .shared .align 8 .b64 m; @%p2 mbarrier.init.shared::cta.b64 [m], {}; bar.sync 0;"
)
EXPECT = "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [m], {};"
COPY = "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd0], 256, [m];"


def spans(body: str, *, events: range = range(1), **options: Any) -> list[Span]:
    options = {"block": (64,)} | options
    result = launch(body, np.zeros(1024, np.uint32), events=events, **options)
    return timeline.read(result.events, 0, result.places)


def of(found: Iterable[Span], kind: Kind, warp: int | None = None) -> list[Span]:
    return [span for span in found if span.kind == kind and warp in (None, span.warp)]


def length(found: Iterable[Span], warp: int) -> int:
    return max(span.end for span in found if span.warp == warp and span.kind in (Kind.RUNS, Kind.WAITS))


def test_who_comes_first_to_a_barrier_waits_for_the_last():
    found = spans(WARP + f"@%p0 bra B; {WORK} B: bar.sync 0;")
    (wait,) = of(found, Kind.WAITS)
    (before, after) = of(found, Kind.RUNS, 0)
    assert (wait.warp, wait.what, wait.over) == (0, "barrier 0", True)
    assert wait.end - wait.start == 100 and (before.end, after.start) == (wait.start, wait.end)
    assert length(found, 0) == length(found, 1)


def test_who_only_arrives_does_not_wait():
    found = spans(WARP + f"@%p0 bra W; {WORK} bar.arrive 1, 64; bra OUT; W: bar.sync 1, 64; {WORK} OUT:")
    assert [(w.warp, w.what) for w in of(found, Kind.WAITS)] == [(0, "barrier 1")]
    assert length(found, 0) - length(found, 1) == pytest.approx(100, abs=3)


def test_a_barrier_serves_again():
    """Each warp is late once."""
    body = WARP + f"@%p0 bra B; {WORK} B: bar.sync 0; @!%p0 bra C; {WORK} {WORK} C: bar.sync 0;"
    assert [(w.warp, w.end - w.start) for w in of(spans(body), Kind.WAITS)] == [(0, 100), (1, 200)]


@pytest.mark.parametrize("work", [1, 300])  # the waiting warp polls for a while, whatever turns the machine gives it
def test_looking_again_takes_no_steps(work):
    body = INIT.format(1) + f"@!%p0 bra PRODUCE; {WAIT.format('L', 0)} {WORK} bra OUT; PRODUCE:"
    body += WORK * work + "setp.eq.u32 %p3, %r1, 0; @%p3 mbarrier.arrive.shared::cta.b64 _, [m]; OUT:"
    found = spans(body)
    (wait,) = [w for w in of(found, Kind.WAITS) if w.what.startswith("shared")]
    (phase,) = of(found, Kind.PHASE)
    assert (wait.warp, wait.end) == (0, phase.end) and (phase.warp, phase.number, phase.amount) == (1, 0, 1)
    assert wait.end - wait.start == pytest.approx(100 * work, abs=6)
    assert length(found, 0) - wait.end == pytest.approx(100, abs=5)


def test_phases_follow_one_another():
    body = INIT.format(64) + "".join(
        "mbarrier.arrive.shared::cta.b64 _, [m];" + WAIT.format(f"L{n}", n % 2) for n in range(3)
    )
    phases = of(spans(body), Kind.PHASE)
    assert [(p.number, p.amount, p.what) for p in phases] == [(n, 64, "shared + 256") for n in range(3)]
    assert [p.start for p in phases[1:]] == [p.end for p in phases[:-1]]


def test_a_copy_lands_when_a_warp_first_looks():
    """And a look that comes late has not waited. An arrival that comes later than the copy ends the phase."""
    body = INIT.format(1) + EXPECT.format(256) + COPY + WORK + WAIT.format("L", 0) + "bar.sync 0;"
    found = spans(body)
    (copy,) = of(found, Kind.COPY)
    assert (copy.warp, copy.amount, copy.number, copy.over) == (0, 256, 0, True)
    assert copy.end - copy.start == pytest.approx(100, abs=3)
    assert not [w for w in of(found, Kind.WAITS) if w.what.startswith("shared")]


def test_what_never_ends_is_told():
    """Bytes that do not come: the launch ends in a deadlock."""
    body = INIT.format(1) + EXPECT.format(512) + COPY + "@!%p0 bra OUT;" + WAIT.format("L", 0) + "OUT: bar.sync 0;"
    found = spans(body)
    assert [p.over for p in of(found, Kind.PHASE)] == [False]
    assert {(w.warp, w.what, w.over) for w in of(found, Kind.WAITS) if not w.over} == {
        (0, "shared + 256", False),
        (1, "barrier 0", False),
    }


def test_groups_of_copies_without_an_mbarrier():
    body = INIT.format(1) + "".join(
        f"cp.async.ca.shared.global [s], [%rd0], 4; cp.async.commit_group; {WORK}" for _ in range(3)
    )
    found = of(spans(body + "cp.async.wait_group 1; cp.async.wait_group 0;"), Kind.CP_ASYNC, 0)
    assert [(g.number, g.amount) for g in found] == [(0, 128), (1, 128), (2, 128)]
    first, second, third = found
    assert first.end == second.end == third.end - 1
    assert second.start - first.start == third.start - second.start == 102


def test_stores_by_tma_end_with_their_wait():
    body = INIT.format(1) + "mov.u32 %r3, s; mad.lo.u32 %r3, %r0, 4, %r3; st.shared.u32 [%r3], %r0;"
    body += "fence.proxy.async.shared::cta; bar.sync 0; @!%p2 bra OUT;"
    body += "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [s], 256; cp.async.bulk.commit_group;" + WORK
    found = spans(body + "cp.async.bulk.wait_group 0; OUT:")
    (store,) = of(found, Kind.TMA_STORE)
    assert (store.warp, store.amount, store.end - store.start) == (0, 256, 102)
    assert sorted((s.warp, s.amount) for s in of(found, Kind.STORES)) == [(0, 1), (1, 1)]


def test_barriers_and_mbarriers_of_a_cluster():
    """Block 1 is late at the cluster's barrier, then arrives at block 0's mbarrier."""
    sync = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    body = (
        INIT.format(1) + "mov.u32 %r9, %cluster_ctarank; setp.eq.u32 %p3, %r9, 0; mapa.shared::cluster.u32 %r8, m, 0;"
    )
    body += f"@%p3 bra B; {WORK} B: {sync} @%p3 bra WAIT; {WORK} {WORK} @!%p2 bra OUT;"
    body += "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8]; bra OUT; WAIT:"
    body += WAIT.format("L", 0).replace("parity.shared", "parity.acquire.cluster.shared") + "OUT:" + sync
    found = spans(body, events=range(1), block=(32,), grid=(2,), cluster=(2,))  # the whole cluster
    assert {span.block for span in found} == {0, 1}
    waits = [w for w in of(found, Kind.WAITS) if w.block == 0]
    assert [w.what for w in waits] == ["barrier of the cluster", "shared + 256"]
    assert waits[0].end - waits[0].start == pytest.approx(100, abs=2)
    assert waits[1].end - waits[1].start == pytest.approx(200, abs=4)
    (phase,) = of(found, Kind.PHASE)
    assert (phase.block, phase.end) == (0, waits[1].end)


def test_only_what_was_asked_for():
    body, arrays = "bar.sync 0; bar.sync 0;", np.zeros(4, np.uint32)
    assert not len(launch(body, arrays, grid=(3,)).events)
    result = launch(body, arrays, grid=(3,), events=range(1, 3))
    assert set(result.events["block"]) == {1, 2} and not result.events_left_out
    cut = launch(body, arrays, grid=(3,), events=range(3), most_events=4)
    assert len(cut.events) == 4 and cut.events_left_out == len(result.events) // 2 * 3 - 4
    assert timeline.read(cut.events, 0, cut.places)
    with pytest.raises(UserError, match=r"blocks must .*range\(0, 0\)"):
        Events(blocks=range(0))
    with pytest.raises(UserError, match="most must .*got 0"):
        Events(most=0)


def test_tracks_hold_what_is_side_by_side_or_inside():
    """Two groups of a warpgroup that overlap lie on two tracks; a copy lies within its phase."""
    at = {"launch": 0, "block": 0, "warp": 0}
    made = Timeline()
    made.add(
        "k",
        [
            Span(**at, kind=Kind.WGMMA, start=0, end=20, what="m64n8k16", amount=4),
            Span(**at, kind=Kind.WGMMA, start=10, end=30, what="m64n8k16", amount=4, number=1),
            Span(**at, kind=Kind.WGMMA, start=20, end=40, what="m64n8k16", amount=4, number=2),
            Span(**at, kind=Kind.COPY, start=5, end=9, what="full", amount=128),
            Span(**at, kind=Kind.PHASE, start=0, end=9, what="full", amount=1),
        ],
        ["2 of 3 blocks"],
    )
    made.add("k", [Span(1, 0, 0, Kind.RUNS, 0, 7)], [])
    written = made.chrome()
    rows = [row for row in written["traceEvents"] if row["ph"] == "X"]
    tracks = {row["args"]["group"]: row["tid"] for row in rows if row["cat"] == "wgmma"}
    assert tracks[0] == tracks[2] != tracks[1]
    assert next(row["ts"] for row in rows if row["cat"] == "runs") == 40, "the second launch comes after the first"
    assert (
        "2 of 3 blocks" in written["otherData"]["left out"] and "not the time of a GPU" in written["otherData"]["clock"]
    )
    nested(written)


def nested(written: dict[str, Any]) -> None:
    """As chrome://tracing takes it: complete events with names, numbers, and no two of a track that only overlap."""
    processes = {row["pid"] for row in written["traceEvents"] if row["name"] == "process_name"}
    named = {(row["pid"], row["tid"]) for row in written["traceEvents"] if row["name"] == "thread_name"}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in written["traceEvents"]:
        assert row["ph"] in "XM" and isinstance(row["name"], str) and isinstance(row["args"], dict)
        if row["ph"] == "X":
            assert row["pid"] in processes and (row["pid"], row["tid"]) in named
            assert row["ts"] >= 0 and row["dur"] >= 0 and row["cat"]
            tracks.setdefault((row["pid"], row["tid"]), []).append((row["ts"], row["ts"] + row["dur"]))
    for rows in tracks.values():
        for start, end in rows:
            assert not any(start < other < end < beyond for other, beyond in rows)


def test_the_command_writes_a_file_and_says_what_it_leaves_out(tmp_path):
    path = tmp_path / "events.json"
    words = [
        "--arch",
        "9.0",
        "--trace-events",
        str(path),
        "--trace-blocks",
        "1",
        str(ROOT / "examples" / "tma_ring.cu"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "cudaemu", *words], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert f"{path} leaves out launch 0" in done.stderr and "blocks" in done.stderr
    written = json.loads(path.read_text())
    nested(written)
    rows = written["traceEvents"]
    names = {row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert {"warp 0", "warp 2", "mbarrier full[0] and its copies", "mbarrier empty[2] and its copies"} <= names
    copies = [row for row in rows if row["name"] == "copy"]
    source = (ROOT / "examples" / "tma_ring.cu").read_text().splitlines()
    assert {row["args"]["bytes"] for row in copies} == {32 * 64 * 4} and {row["args"]["warp"] for row in copies} == {2}
    assert all("load_tile(" in source[row["args"]["line"] - 1] for row in copies)
    assert any(row["name"] == "waits: empty[0]" for row in rows)


@pytest.mark.core(every=2)
@pytest.mark.parametrize("name", ["tma_ring-parity-of-empty", "tma_tile-bytes-too-many"])
def test_what_is_left_out_of_a_launch_that_deadlocks(name):
    """Its blocks have not ended, and some have never begun: what it shows and what it leaves out are all."""
    broken = next(each for each in suite.suite() if each.name == name)
    report = cudaemu.program(broken_source(broken), broken.run, arch="9.0", counters=False, events=Events(range(2)))
    assert {finding.kind for finding in report.findings} == {"deadlock"}
    shown, blocks = len({span.block for span in report.timeline.spans}), math.prod(report.launches[0].grid)
    assert 0 < shown <= 2 and blocks > 2
    (told,) = report.timeline.left_out
    assert told.endswith(f": {blocks - shown} of {blocks} blocks (the launch ended early)")


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        Timeline().write(tmp_path / "no" / "file.json")
