"""The verb `timeline`: stamps in a copy of the kernel, and the timeline that they make."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import kernels
from common import gpu, notebook
from common.measure import contest, timing
from common.measure.stamped import EVENTS, NS, STEPS, room, rows, write
from common.results import runs
from common.results.runs import Record
from common.stage import Kernel
from common.verbs import timeline
from cudaemu.errors import CheckFailed, UserError
from cudaemu.timeline import Kind

STAGES = {  # slices or tiles of a consumer, and of what it does once for each of its tiles
    "h3": {"full": 10, "products": 10, "stores": 1},
    "h4": {"full": 16, "products": 16, "turn": 4, "stores": 4, "drain": 5},
    "h7": {"full_q": 2, "full_k": 8, "full_v": 8, "scores": 8, "values": 8, "turn": 6, "softmax": 8, "stores": 2}
    | {"drain": 2},
}
PRODUCERS = {
    "h3": {"empty": 6, "copy": 10},
    "h4": {"empty": 27, "copy": 32},
    "h7": {"empty_k": 6, "empty_v": 6, "copy_q": 2, "copy_k": 8, "copy_v": 8},
}


@pytest.fixture(scope="module")
def emulations() -> dict[str, tuple[dict, torch.Tensor]]:
    """Of each stage the record, and the stamps that it was made of."""
    found = {}
    for name in STAGES:
        with pytest.MonkeyPatch.context() as patch:
            kept = []
            patch.setattr(
                timeline.stamped, "rows", lambda stamps, *rest, kept=kept: rows(kept.append(stamps) or stamps, *rest)
            )
            found[name] = emulated(name), kept[0]
    return found


def emulated(name: str, source=None) -> dict:
    """A run in the emulator at the size that the patch names."""
    kernel = kernels.load(name).kernel()
    shape = kernel.stage.spec.parse(timeline.read(kernel.stage).first("Emulator"), kernel.variants)
    return timeline.emulated(kernel, source or timeline.with_stamps(kernel), shape, 0, 0)


@pytest.fixture(scope="module")
def records(emulations) -> dict[str, dict]:
    return {name: record for name, (record, _) in emulations.items()}


@pytest.fixture(scope="module")
def stamped(emulations) -> dict[str, torch.Tensor]:
    return {name: stamps for name, (_, stamps) in emulations.items()}


@pytest.fixture(params=STAGES)
def record(request, records) -> dict:
    return records[request.param]


def complete(name: str, record: dict) -> None:
    """Whether everything that a block does was stamped."""
    counted = Counter({(row["group"], row["event"].lower()): len(row["numbers"]) for row in record["rows"]})
    for group, events in ((0, STAGES[name]), (1, STAGES[name]), (2, PRODUCERS[name])):
        assert {event: n for (each, event), n in counted.items() if each == group} == {"block": 1, **events}


@pytest.mark.full
@pytest.mark.parametrize("name", STAGES)
def test_nothing_is_missing(name, records):
    complete(name, records[name])


def test_what_happens_lies_within_what_it_is_part_of(record):
    """Waits and work of a warpgroup one after the other; copies within a phase, products before the next phase."""
    made = timeline.spans(record)
    for first in (0, 4, 8):
        own = made.of(Kind.RUNS, Kind.WAITS, warp=first)
        (block,) = [
            (row["begin"][0], row["end"][0])
            for row in record["rows"]
            if row["event"] == "BLOCK" and row["group"] * 4 == first
        ]
        own.sort(key=lambda span: span.start)
        assert (own[0].start, max(span.end for span in own)) == block
        ends = np.maximum.accumulate([span.end for span in own])
        assert all(span.start <= end for span, end in zip(own[1:], ends)), "no gap between them"
        busy = [span for span in own if span.kind == Kind.RUNS]
        for span in made.of(Kind.DOES, Kind.STORES, warp=first):
            assert any(each.start <= span.start <= span.end <= each.end for each in busy)
    phases = {(span.what, span.number): span for span in made.of(Kind.PHASE)}
    for copy in made.of(Kind.COPY):
        full = phases[copy.what, copy.number]
        assert full.start <= copy.start < copy.end == full.end
        assert copy.end in {wait.end for wait in made.of(Kind.WAITS) if wait.what == copy.what}, "a consumer knows"
        if copy.number:
            assert phases[copy.what.replace("full", "empty"), copy.number - 1].end <= copy.start
    assert all(span.start < span.end for span in made.of(Kind.WGMMA))
    read = {span.end for span in made.of(Kind.WGMMA)}
    assert all(p.end in read for p in phases.values() if "empty" in p.what and "_Q" not in p.what), "by the products"


def test_chrome_has_the_tracks_of_the_emulators_own_timeline(record, tmp_path):
    timeline.spans(record).write(path := tmp_path / "trace.json")
    trace = json.loads(path.read_text())
    assert "not the time of a GPU" in trace["otherData"]["clock"] and trace["otherData"]["left out"] == "nothing"
    tracks = {each["args"]["name"] for each in trace["traceEvents"] if each["name"] == "thread_name"}
    assert {"warp 0", "warp 4", "warp 8", "wgmma of warps 0 to 3", "wgmma of warps 4 to 7"} <= tracks
    rings = {name.split()[1].partition("[")[0] for name in tracks if name.startswith("mbarrier")}
    suffixes = ("_Q", "_K", "_V") if record["rows"][0]["part"] == "attention" else ("",)
    assert rings == {f"shared.{each}{suffix}" for suffix in suffixes for each in ("full", "empty")}


def test_consumers_take_turns(records):
    """In h4 one consumer's products are all issued before the other one's begin; in h7 softmax runs under products."""
    made = timeline.spans(records["h4"])
    first, second = (made.of(Kind.WGMMA, warp=warp) for warp in (0, 4))
    tiles = sorted((mine[4 * n : 4 * n + 4] for mine in (first, second) for n in range(4)), key=lambda t: t[0].start)
    assert [tile[0].warp for tile in tiles] == [0, 4] * 4
    assert all(after[0].start > tile[-1].start for tile, after in zip(tiles, tiles[1:]))
    made = timeline.spans(records["h7"])
    softmax = made.of(Kind.DOES, warp=0)
    values = [span for span in made.of(Kind.WGMMA, warp=0) if span.what == "values"]
    under = [any(v.start < s.start and s.end < v.end for v in values) for s in softmax]
    assert under == [False, True, True, True] * 2, "all but the first of each tile of queries"


@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", STAGES)
def test_a_stamp_that_is_left_out_is_missed(name, records, stamped):
    """A begin or an end alone is refused; without both an event is missing."""
    found = [each for each in EVENTS if each != "TIMER" and stamped[name][0, :, EVENTS.index(each)].any()]
    assert len(found) == len(STAGES[name] | PRODUCERS[name]) + 1
    for event in found:
        for half in (0, 1):
            less = stamped[name].clone()
            less[0, :, EVENTS.index(event), half] = 0
            with pytest.raises(UserError, match=rf"{event} \d+ of warpgroup"):
                rows(less, 0, STEPS)
        with pytest.raises(AssertionError):
            complete(name, {"rows": [row for row in records[name]["rows"] if row["event"] != event]})


def test_the_patch_without_one_of_its_stamps_is_refused():
    stage = kernels.load("h3")
    text = timeline.read(stage).apply(stage.source.read_text())
    assert text.count("    end(Event::PRODUCTS, slice);\n") == 1
    less = write(text.replace("    end(Event::PRODUCTS, slice);\n", ""))
    with pytest.raises(UserError, match="PRODUCTS 0 of warpgroup 0 .*no end"):
        emulated("h3", stage.kernel(source=less))


def test_a_wrong_kernel_has_no_timeline():
    stage = kernels.load("h3")
    text = timeline.read(stage).apply(stage.source.read_text())
    assert text.count("k * sizeof(Element)") == 1
    with pytest.raises(CheckFailed, match="h3_warp_specialized"):
        emulated("h3", stage.kernel(source=write(text.replace("k * sizeof(Element)", "k"))))


def test_what_does_not_fit_is_said(stamped):
    """Numbers beyond the last that has room are not stamped, and the timeline says so."""
    full = stamped["h3"].clone()
    full[0, 0, EVENTS.index("PRODUCTS"), :, :256] = torch.arange(256) * 10 + full[0, 0, EVENTS.index("FULL"), 0, 0]
    full[0, 0, EVENTS.index("PRODUCTS"), 1] += 5
    made = timeline.stamped.timeline(rows(full, 0, STEPS), "gemm", STEPS)
    assert made.left_out == ["launch 0 (gemm): PRODUCTS from 256 on, of warpgroup 0"]
    for block, message in ((1, "must be one of the grid, got 1"), (256, "must be from 0 to 255, got 256")):
        with pytest.raises(UserError, match=message):
            rows(stamped["h3"], block, STEPS)


def test_clocks_become_nanoseconds():
    """By the timer at both ends of the block, from its first stamp on."""
    stamps = room("cpu")
    stamps[3, 1, EVENTS.index("BLOCK"), :, 0] = torch.tensor([5000, 9000])
    stamps[3, 1, EVENTS.index("TIMER"), :, 0] = torch.tensor([10**15, 10**15 + 2000])
    stamps[3, 1, EVENTS.index("SOFTMAX"), :, 7] = torch.tensor([6000, 6100])
    assert rows(stamps, 3, NS) == [
        {"group": 1, "event": "BLOCK", "numbers": [0], "begin": [0], "end": [2000]},
        {"group": 1, "event": "SOFTMAX", "numbers": [7], "begin": [500], "end": [550]},
    ]


# ---- the command ----


@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", STAGES)
def test_files_are_written(name, command, tmp_path):
    trace, picture, saved = tmp_path / "trace.json", tmp_path / "picture.png", tmp_path / "run.json"
    words = ("--device", "emulator", "--trace-events", trace, "--plot", picture, "--json", saved)
    status, out, err = command(kernels.load(name).package, "timeline", *words)
    assert status == 0 and "steps in the emulator, not time" in " ".join(out.split())
    assert {line.split()[0] for line in out.splitlines() if line.split()[:1] and line.split()[0] in "012"} == set("012")
    assert trace.exists() and picture.read_bytes().startswith(b"\x89PNG")
    assert "no file written: without a GPU" in err and not saved.exists()


@pytest.mark.parametrize(
    ("package", "words", "message"),
    [
        ("kernels.02_block_tile", [], "02_block_tile has no stamps.patch; stages that have: h3_warp_specialized, h4_"),
        ("kernels.h3_warp_specialized", ["--sizes", "128x256x64", "128x256x128"], "--sizes must be one size"),
        ("kernels.h3_warp_specialized", ["--plot", "a.jpeg"], "--plot a.jpeg: the name must end in"),
    ],
)
def test_what_cannot_be_done_is_said(command, package, words, message):
    status, _, err = command(package, "timeline", *words)
    assert status == 2 and message in " ".join(err.split())


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """A GPU whose kernels the emulator runs, at 2 clocks per nanosecond; recorded runs lie in a folder of their own."""

    def bind(kernel, inputs, outputs, changed):
        def call():
            into = changed.get("stamps")
            mine = {"stamps": room("cpu")} if into else {}
            kernel.emulate(inputs, outputs, changed={**changed, **mine}, multiprocessors=1)
            if into:
                clock = mine["stamps"][:, :, EVENTS.index("BLOCK")]
                mine["stamps"][:, :, EVENTS.index("TIMER")] = clock // 2
                ctypes.memmove(into, mine["stamps"].data_ptr(), mine["stamps"].nbytes)

        return call

    def interleave(contenders, rounds, round_ms):
        for each, ms in zip(contenders, (1.0, 1.05)):
            each.rounds.append(timing.Round([ms]))

    monkeypatch.setattr(timeline, "DEVICE", "cpu")
    monkeypatch.setattr(timeline.options, "device", lambda stage, args: "gpu")
    monkeypatch.setattr(contest, "build", lambda found: None)
    monkeypatch.setattr(Kernel, "bind", bind)
    monkeypatch.setattr(gpu, "errors", lambda label: nullcontext())
    monkeypatch.setattr(timing, "interleave", interleave)
    monkeypatch.setattr(timing, "estimate", lambda call: 1.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    return tmp_path


def test_a_run_on_a_gpu_is_times_and_its_record_a_figure_of_the_notebook(pretended, command, records):
    stage = kernels.load("h4")
    assert "No run recorded" in notebook.timeline(stage).data
    words = ("--sizes", "256x512x256", "--json", pretended / "timeline-h4.json")
    status, out, err = command(stage.package, "timeline", *words)
    assert status == 0 and "saved" in err
    assert "with stamps 1050.0 µs, without 1000.0 µs (+5.0%)" in out and "(NVIDIA H200, 20" in out
    record = runs.load(pretended / "timeline-h4.json")
    complete("h4", record)
    (block,) = [row for row in record["rows"] if (row["event"], row["group"]) == ("BLOCK", 0)]
    (steps,) = [row for row in records["h4"]["rows"] if (row["event"], row["group"]) == ("BLOCK", 0)]
    assert block["end"][0] - block["begin"][0] == pytest.approx((steps["end"][0] - steps["begin"][0]) / 2, rel=0.1)
    trace = timeline.spans(record).chrome()
    assert trace["otherData"]["clock"].startswith("times of a GPU")
    assert max(each.get("ts", 0) + each.get("dur", 0) for each in trace["traceEvents"]) < block["end"][0] / 1e3 * 1.2
    picture = notebook.timeline(stage)
    (axes,) = picture.axes
    assert "NVIDIA H200, 20" in axes.get_title(loc="left") and axes.get_xlabel().startswith("ns")
    assert all(words in axes.get_title("left") for words in ("NVIDIA H200, 20", "with stamps 1050.0 µs"))
    assert Record(record, record["rows"][0]).case == ("gemm", "fp16", (), "256x512x256")
