"""The verb `bench`: who takes part, what is printed, and what there is instead where there is no GPU."""

from __future__ import annotations

import json
import re

import pytest
import torch
from rich.text import Text

import kernels
from common import accuracy, course
from common.measure import contest
from common.results import runs
from common.results.runs import Record
from common.verbs import bench
from cudaemu.errors import CheckFailed, UserError
from tests.printed import shown

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.fixture
def heats(monkeypatch, fake_gpu, parse):
    """heats(stages, *words): the contests that a command line asks for; one stage, or several for the ladder."""

    def asked(stages, *words):
        found: list[contest.Heat] = []
        monkeypatch.setattr(bench, "_measure", lambda given, args: found.extend(given) or 0)
        args = parse(bench, *words)
        assert (bench.run(stages[0], args) if len(stages) == 1 else bench.run_ladder(stages, args)) == 0
        return found

    return asked


def roles(heat: contest.Heat) -> list[tuple[str, str]]:
    return [(entry.kernel.label, entry.role) for entry in heat.entries]


# ---- who takes part ----


def test_a_stage_is_measured_beside_the_first_and_the_previous_one(heats):
    (heat,) = heats([kernels.load("03")], "--dtype", "fp32", "--sizes", "1024", "2048")
    assert roles(heat) == [
        ("01_naive fp32", "first"),
        ("02_block_tile fp32", "previous"),
        ("03_thread_tile fp32", "stage"),
    ]
    assert list(heat.shapes) == [(1024,) * 3, (2048,) * 3]
    assert [role for _, role in roles(heats([kernels.load("02")])[0])] == ["previous", "stage"]
    assert [role for _, role in roles(heats([kernels.load("01")])[0])] == ["stage"]


def test_each_dtype_is_a_contest_of_its_own(heats):
    stage = kernels.load("03")
    found = heats([stage], "--dtype", "all")
    assert [roles(heat)[-1][0] for heat in found] == [f"03_thread_tile {dtype}" for dtype in stage.dtypes]
    assert all(len({entry.kernel.dtype for entry in heat.entries}) == 1 for heat in found)


def test_variants_are_swept_with_all(heats, parse):
    first = kernels.load("01")
    (heat,) = heats([first], "--variant", "COALESCED=all")
    assert [entry.kernel.variants["COALESCED"] for entry in heat.entries] == list(first.variants["COALESCED"])
    last = next(stage for stage in kernels.ladder() if "B_TRANSPOSED" in stage.variants)
    straight, turned = heats([last], "--variant", "all")
    assert {entry.kernel.settings.get("B_TRANSPOSED", 0) for entry in straight.entries} == {0}
    assert [entry.kernel.settings["B_TRANSPOSED"] for entry in turned.entries] == [1], "no other stage computes that"
    others = [entry.kernel.changed for entry in straight.entries if entry.role == "stage"]
    assert others[0] == {} and len(others) == 1 + sum(
        len(values) - 1 for name, values in last.variants.items() if name != "B_TRANSPOSED"
    )
    deep = heats([last], "--variant", "all", "--variant", "STAGES=2")[0]
    assert {entry.kernel.variants["STAGES"] for entry in deep.entries if entry.role == "stage"} == {2}
    for words, message in (
        (["COALESCE=all"], "COALESCE"),
        (["COALESCED=some"], "NAME=VALUE"),
        (["all", "COALESCED=all"], "among"),
    ):
        with pytest.raises(UserError, match=message):
            bench.run(first, parse(bench, *(part for word in words for part in ("--variant", word))))


def test_a_readers_kernel_is_measured_beside_the_stages_own(heats, edited, fake_gpu):
    stage = kernels.load("03")
    mine = edited(stage)
    (heat,) = heats([stage], "--source", mine)
    assert [entry.kernel.source for entry in heat.entries if entry.role == "stage"] == [stage.source, mine]
    made = contest.measure([contest.Heat(heat.entries, [(128, 128, 128)])], rounds=1)
    assert [row["source"] for row in made["rows"] if row["role"] == "stage"] == [None, str(mine)]


def test_the_whole_course_is_a_contest_per_part_and_dtype(heats, second_part, parse):
    stages = [*kernels.ladder()[:3], *second_part]
    gemm, scaling = heats(stages)
    assert [label for label, _ in roles(gemm)] == ["01_naive fp16", "02_block_tile fp16", "03_thread_tile fp16"]
    assert [label for label, _ in roles(scaling)] == ["98_scale fp16", "99_scale_all fp16"]
    assert list(scaling.shapes) == [(2, 64, 8)] and (1024,) * 3 in gemm.shapes
    assert scaling.entries[1].previous is second_part[0] and scaling.entries[0].previous is None
    found = heats(stages, "--dtype", "all")
    assert [(len(heat.entries), heat.entries[0].kernel.dtype) for heat in found] == [
        (3, "fp16"),
        (2, "fp16"),
        (3, "bf16"),
        (2, "bf16"),
        (3, "fp32"),
    ]
    (halved,) = heats(stages, "--variant", "HALVES=1")
    assert roles(halved) == [("99_scale_all fp16 HALVES=1", "stage")], "the others cannot compute that"
    assert [len(heat.entries) for heat in heats(stages, "--variant", "HALVES=0")] == [3, 2]
    with pytest.raises(UserError, match="--dtype must .*'fp8'"):
        bench.run_ladder(stages, parse(bench, "--dtype", "fp8"))
    with pytest.raises(UserError, match="--variant STAGES must "):
        bench.run_ladder(stages, parse(bench, "--variant", "STAGES=3"))


@pytest.mark.parametrize(
    "words, message",
    [
        (["--repeat", "0"], "--repeat must be"),
        (["--sustained", "-1"], "--sustained must be a number of seconds >= 0, got -1"),
        (["--sustained", "nan"], "--sustained must be a number of seconds >= 0, got nan"),
        (["--sustained", "inf"], "--sustained must be a number of seconds >= 0, got inf"),
        (["--plot", "run.jpeg"], "must end in .png, .svg, .pdf"),
        (["--json", f"{__file__}/run.json"], "cannot write .*/run.json"),
        (["--sizes", "0"], "must be a whole number >= 1"),
    ],
)
def test_what_would_fail_after_the_run_is_refused_before_it(fake_gpu, parse, words, message):
    with pytest.raises(UserError, match=message):
        bench.run(kernels.load("01"), parse(bench, *words))
    assert fake_gpu.log == []


# ---- a run ----


def test_a_run_is_printed_saved_and_drawn(fake_gpu, command, tmp_path):
    path, picture = tmp_path / "run.json", tmp_path / "run.png"
    words = ("--sizes", "128", "256", "--dtype", "fp16,fp32", "--repeat", "2", "--json", path, "--plot", picture)
    status, out, err = command("kernels.03_thread_tile", "bench", *words)
    assert status == 0 and "saved" in err and "drawn" in err
    made = runs.load(path)
    assert len(made["rows"]) == 2 * 2 * 4  # dtypes, sizes, contenders
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert max(map(len, out.splitlines())) <= 80
    assert [line for line in out.splitlines() if "2026" in line or "20" in line and line.startswith("fp")]
    assert "a call takes 9.5 µs of the host's time, 2.5 µs of them for torch.empty" in out
    assert "peak: peak FMA fp32: 300,000 FLOP per clock, measured 2026-11-21" in out
    assert "an empty kernel takes 2.0 µs" in out and " 1.500" in out
    assert not made["together"]
    command("kernels.03_thread_tile", "bench", *words, "--together")
    assert runs.load(path)["together"]


def test_printed_ratios_are_those_of_the_run(fake_gpu):
    entries = bench._one_stage([kernels.load("03").kernel()], _Args())[0].entries
    made = contest.measure([contest.Heat(entries, [(128, 128, 128)])], rounds=1)
    (table,) = bench.record_tables([Record(made, row) for row in made["rows"]], "here and now")
    lines = [line.split() for line in shown(table).splitlines() if line]
    assert lines[0] == ["fp16,", "128", "(here", "and", "now)"]
    found = {words[0]: words[1:] for words in lines[2:]}
    assert list(found) == ["01_naive", "02_block_tile", "03_thread_tile", "cuBLAS"]
    assert found["01_naive"][3:5] == ["6.2%", "0.0%"]
    assert found["02_block_tile"][3:6] == ["2.00", "12.5%", "0.0%"]
    assert found["03_thread_tile"][3:6] == ["4.00", "50.0%", "0.0%"]


class _Args:
    source, sizes = None, None


def test_a_sustained_run_is_a_second_table_beside_the_bursts(fake_gpu, command, tmp_path):
    """Its ratios and clocks are its own; the record keeps both; without the option there is one table."""
    path = tmp_path / "run.json"
    words = ("--sizes", "128", "--repeat", "2", "--json", path)
    _, without, _ = command("kernels.03_thread_tile", "bench", *words)
    assert "pause" not in without and "sustained" not in path.read_text()
    fake_gpu.log.clear()
    status, out, _ = command("kernels.03_thread_tile", "bench", *words, "--sustained", "2.5")
    assert status == 0 and max(map(len, out.splitlines())) <= 80
    kinds = [what for what, _ in fake_gpu.log]
    assert kinds[-12:] == ["time"] * 8 + ["sustain"] * 4, "four contenders, after two rounds of bursts"
    assert [what for kind, what in fake_gpu.log if kind == "sustain"] == [(ms, 2.5) for ms in (8.0, 4.0, 1.0, 0.5)]
    tables = [line.split()[1:] for line in out.splitlines() if line.startswith("03_thread_tile")]
    flops = 2 * 128**3
    assert [row[0] for row in tables] == ["1", "1.25"] and [row[-1] for row in tables] == ["1.500", "1.200"]
    assert [row[3:5] for row in tables] == [["4.00", "50.0%"]] * 2
    assert "2.5 s without a pause: " in out and "the second half is timed" in out
    row = next(row for row in runs.load(path)["rows"] if row["name"] == "03_thread_tile")
    held = row["sustained"]
    assert (row["ms"]["median"], held["ms"]["median"], held["seconds"]) == (1.0, 1.25, 2.5)
    assert row["tflops"] == pytest.approx(flops / 1e9) and held["tflops"] == pytest.approx(flops / 1.25e9)
    assert (row["clock"]["clocks"], held["clock"]["clocks"]) == (1_500_000, 1_500_000)


def test_names_stay_whole_at_eighty_columns(fake_gpu):
    """The longest name of the course with the longest variant, two libraries, numbers of every width."""
    times = {"median": 123.4567, "p20": 100.0, "p80": 140.0, "n": 50}
    case = {"part": "gemm", "problem": "gemm", "dtype": "fp16", "settings": {}, "shape": {"M": 1}, "size": "1"}
    named = {"name": "10_register_double_buffer", "previous": "09_swizzle", "limit": "l", "clock": {"ghz": 1.7534}}
    labels = ["10_register_double_buffer fp16", "10_register_double_buffer fp16 SLICE_BYTES=64"]
    rows = [
        {"role": "stage", "label": label, "default": True, "ms": times, "tflops": 435.1, **named} for label in labels
    ]
    rows += [{"role": "peer", "name": name, "label": name, "ms": times, "tflops": 611.0} for name in ("SDPA", "cuDNN")]
    made = {"rows": [row | case for row in rows], "limits": {"l": {"name": "peak", "tflops": 652.0, "date": ""}}}
    text = shown(bench.record_tables([Record(made, row) for row in made["rows"]], "t")[0])
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert text.count("10_register_double_buffer") == 2 and "SLICE_BYTES=64" in text and "% cuDNN" in text
    assert "123.5" in text and "1.753" in text


def test_a_wrong_kernel_ends_the_run(fake_gpu, monkeypatch, command):
    monkeypatch.setattr(accuracy, "explain", lambda kernel, *_: f"{kernel.label} is wrong")
    fake_gpu.wrong.add("02_block_tile")
    status, out, err = command("kernels.03_thread_tile", "bench", "--sizes", "128")
    assert (status, out) == (1, "") and err.startswith("02_block_tile fp16, 128: 02_block_tile fp16 is wrong")


def test_a_size_that_the_stage_cannot_take_is_refused_and_in_the_ladder_noted(fake_gpu, command, tmp_path):
    status, _, err = command("kernels.03_thread_tile", "bench", "--sizes", "100")
    assert status == 2 and "multiple of 128" in err and fake_gpu.log == []
    status, out, _ = command("kernels", "bench", "01", "02", "03", "--sizes", "100", "--quick")
    assert status == 2, "the last one's own sizes are asked for"
    status, out, _ = command("kernels", "bench", "03", "01", "02", "--sizes", "100", "--quick")
    assert status == 0 and "fp16 100: without 03_thread_tile fp16: 03_thread_tile: M must be" in " ".join(out.split())


# ---- without a GPU ----


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """One recorded run of stages 01 and 02 at 4096."""
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    times = {"median": 2.0, "p20": 1.9, "p80": 2.1, "n": 50}
    case = {"part": "gemm", "problem": "gemm", "dtype": "fp16", "settings": {}, "size": "4096"}
    case |= {"shape": dict.fromkeys("MNK", 4096), "ms": times}
    about = {"role": "stage", "variants": {}, "defaults": {}, "default": True, "source": None, "limit": "FMA fp32"}
    rows = [
        {"name": "01_naive", "label": "01_naive fp16", "tflops": 34.35, **about, **case},
        {"name": "02_block_tile", "label": "02_block_tile fp16", "tflops": 68.7, **about, **case}
        | {"previous": "01_naive"},
        {"role": "peer", "name": "cuBLAS", "label": "cuBLAS", "tflops": 687.0, **case},
    ]
    head = {"schema": 2, "kind": "bench", "command": "", "date": "2026-11-21T10:00:00+00:00", "commit": "abc"}
    head |= {"gpu": "NVIDIA H200", "driver": "580", "cuda": "13.0", "torch": "2.11.0"}
    (tmp_path / "one.json").write_text(json.dumps(head | {"rows": rows}))


@without_gpu
def test_without_a_gpu_the_emulator_checks_and_counts_and_recorded_times_are_marked(recorded, command):
    status, out, err = command("kernels.02_block_tile", "bench", "--sizes", "64")
    assert status == 0 and "No GPU: running in the emulator" in err or err == ""
    out = " ".join(out.split())
    assert "02_block_tile fp16, 64: right" in out
    assert "counted in the emulator" in out and "global_load_sectors" in out
    assert "fp16, 4096 (recorded, not measured now: NVIDIA H200, 2026-11-21)" in out
    assert "2.00 10.0%" in out and "more: --details" in out


@without_gpu
def test_head_dims_are_counted_each_at_its_own_shape(command):
    words = "--variant", "HEAD_DIM=all", "--sizes", "1x1x64"
    status, out, err = command("kernels.13_split_q", "bench", *words)
    out = " ".join(out.split())
    assert status == 0 and out.count("1x1x64, counted in the emulator") == 2, err
    assert out.index("fp16 HEAD_DIM=64, 1x1x64: right") < out.index("13_split_q fp16, 1x1x64: right")
    assert "fp16 HEAD_DIM=64, 4096 (recorded" in out and "fp16 HEAD_DIM=128, 4096 (recorded" in out


@without_gpu
def test_details_are_all_counters(recorded, command):
    brief, full = (command("kernels.02_block_tile", "bench", "--sizes", "64", *w).out for w in ((), ("--details",)))
    assert "instructions.barrier" in full and "instructions.barrier" not in brief and "▸ " in full
    assert len(full.splitlines()) > len(brief.splitlines()) + 10


@without_gpu
def test_the_ladder_without_a_gpu_is_one_screen(recorded, command):
    """A row per stage: right or not, the counter that it is about before and after, what was recorded."""
    status, out, _ = command("kernels", "bench", "01", "02", "--sizes", "64")
    assert status == 0 and len(out.splitlines()) <= 12 and max(map(len, out.splitlines())) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line[:3] in ("01_", "02_")}
    assert rows["01_naive"][0] == rows["02_block_tile"][0] == "ok"
    assert rows["02_block_tile"][-3:] == ["68.7", "2.00", "10.0%"] and "→" in rows["02_block_tile"]
    assert "recorded: 4096 on NVIDIA H200, 2026-11-21" in " ".join(out.split()) and "next: python -m kernels." in out


@without_gpu
def test_the_ladder_without_a_gpu_has_the_stages_that_compute_the_dtype(recorded, command):
    """No other dtype is counted under its name."""
    status, out, _ = command("kernels", "bench", "01", "04", "--sizes", "128", "--dtype", "fp32")
    assert status == 0 and ", fp32: checked" in out and "01_naive" in out and "04_wmma" not in out
    for name in ("fp99", ""):
        status, out, err = command("kernels", "bench", "01", "--dtype", name)
        assert status == 2 and f"got '{name}'" in err and not out


def test_the_driver_s_reasons_for_the_clock_are_told_with_their_shares():
    """Of the row in which it was seen most; rows that nobody asked for say nothing."""
    case = {"part": "gemm", "dtype": "fp16", "settings": {}, "size": "64", "role": "peer"}
    rows = [case | {"limited_by": each} for each in ({"power cap": 0.25}, {}, {"power cap": 0.754})] + [case]
    said = bench.footnotes([Record({"rows": []}, row) for row in rows])
    assert [line for line in said if "power cap" in line and "75%" in line]
    assert not [line for line in bench.footnotes([Record({"rows": []}, case)]) if "driver" in line]


def test_a_ladder_s_last_line_is_what_was_gained():
    """Sums of counters, first stage and last; what did not fall, and what nobody needs any more, is left out."""
    stages = course.ladder(kernels.load(1))
    first = {"global_load_sectors": 1000, "instructions.barrier": 8}
    last = {"global_load_sectors": 40, "cp_async_sectors": 60, "instructions.barrier": 16}
    counted = {stages[0].name: first, stages[-1].name: last}
    assert bench._gain(stages, counted) == ["from 01_naive to 11_any_shape: sectors read 1k → 100 (÷ 10)"]
    assert bench._gain(stages, {stages[0].name: first}) == [] == bench._gain(stages[:1], counted)
    by_tma = {"cp_async_sectors": 0, "bulk_load_sectors": 50}  # sectors, however they are copied
    assert "→ 50 (÷ 20)" in bench._gain(stages, {**counted, stages[-1].name: by_tma})[0]


def test_a_stage_is_compared_only_with_one_that_computes_the_same(parse):
    """h1 follows 09 of another ladder, a product as well; h6 follows h3, which is no attention."""
    for number, said in (("h1", "65 → 0"), ("h6", "– → 0")):
        stage = kernels.load(number)
        before = course.previous(stage)
        assert before.ladder != stage.ladder
        counted = {before.name: {stage.counters[0]: 65}, stage.name: {}}
        text = shown(bench._ladder_table([stage], counted, {stage.name: Text("ok")}, "256", parse(bench)))
        assert said in text and ("65" in text) == (number == "h1")


@pytest.mark.full
@without_gpu
def test_the_ladder_on_hopper_ends_on_a_gain(command):
    """Counted at the problem's size, and the first one beside the stage of Part I it follows."""
    status, out, _ = command("kernels", "bench", "h1", "h4", "h5")
    lines = " ".join(out.split())
    assert status == 0
    assert re.search(r"h1_wgmma \(after 09\) ok ldmatrix [\d.]+k → 0 ", lines)
    old, new = re.search(r"h5_final ok TMA bytes ([\d.]+)k → ([\d.]+)k", lines).groups()
    assert float(new) < float(old)
    assert "from h1_wgmma to h5_final:" in lines and "÷" in lines.partition("from h1_wgmma to")[2]


@pytest.mark.parametrize("number", [1, 12, "h1", "h6"])
def test_the_ladder_of_a_part_stays_whole_at_eighty_columns(number, parse):
    stages = course.ladder(kernels.load(number))
    counters = {stage.counters[0]: 1_230_000 for stage in stages}
    counted = dict.fromkeys([stage.name for stage in stages], counters)
    text = shown(bench._ladder_table(stages, counted, {s.name: Text("ok") for s in stages}, "256", parse(bench)))
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert text.count(" 1.23M → 1.23M ") == len(stages) - 1 and text.count(" ok ") == len(stages)


@without_gpu
def test_without_a_gpu_a_wrong_kernel_shows_no_counters(edited, command):
    stage = kernels.load("02")
    mine = edited(stage, ("sum += float", "sum -= float"))
    status, out, err = command(stage.package, "bench", "--sizes", "64", "--source", mine)
    assert status == 1 and "wrong result" in err and "counted in the emulator" not in out


@without_gpu
def test_in_the_ladder_a_wrong_stage_is_named_and_the_others_go_on(recorded, command, monkeypatch):
    def emulated(kernel, *rest, real=bench._emulated, **more):
        if kernel.stage.number == "01":
            raise CheckFailed("01_naive fp16, 64: wrong result")
        return real(kernel, *rest, **more)

    monkeypatch.setattr(bench, "_emulated", emulated)
    status, out, err = command("kernels", "bench", "01", "02", "--sizes", "64")
    assert status == 1 and "01_naive fp16, 64: wrong result" in err
    verdicts = [line.split()[1] for line in out.splitlines() if line[:3] in ("01_", "02_")]
    assert verdicts == ["no", "ok"]


@without_gpu
def test_nothing_is_saved_where_nothing_was_measured(recorded, command, tmp_path):
    _, _, err = command("kernels.02_block_tile", "bench", "--sizes", "64", "--json", tmp_path / "new.json")
    assert "no file written" in err and not (tmp_path / "new.json").exists()
