from __future__ import annotations

import json
import random
from argparse import ArgumentParser
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from common.timing import Contender

import kernels
from common import bench, ceiling, check, cli, gpu, nvml, results, timing, toolchain
from common.errors import CheckFailed, UserError


def parse(*words):
    parser = ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(words)


# --- timing ---


def test_contenders_take_turns_and_none_always_follows_the_same():
    order = []
    contenders = [Contender(name, call=lambda: None, estimate=1.0) for name in "abc"]
    timing.interleave(
        contenders,
        rounds=6,
        round_ms=10,
        sampler=lambda call, estimate, ms: [ms, ms],
        before=lambda c: order.append(c.label),
    )
    assert [sorted(order[turn : turn + 3]) for turn in range(0, 18, 3)] == [list("abc")] * 6
    for name in "abc":
        assert len({before for before, after in zip(order, order[1:]) if after == name} - {name}) == 2
    assert [len(c.samples) for c in contenders] == [12, 12, 12]


def test_a_slow_contender_takes_part_in_fewer_rounds_but_at_least_one():
    fast, slow, endless = (
        Contender(name, lambda: None, estimate)
        for name, estimate in (("fast", 1.0), ("slow", timing.SLOW_MS / 2), ("endless", 100 * timing.SLOW_MS))
    )
    timing.interleave([fast, slow, endless], rounds=5, sampler=lambda *_: [1.0])
    assert [len(c.samples) for c in (fast, slow, endless)] == [5, 2, 1]


def test_drift_meets_all_contenders():
    """A clock that slows down by a half during the run must not favour either of two equal kernels."""
    now = [0.0]

    def sampler(call, estimate, ms):
        now[0] += 1
        return [1.0 + now[0] / 20]

    contenders = [Contender(name, lambda: None, 1.0) for name in "ab"]
    timing.interleave(contenders, rounds=10, sampler=sampler)
    a, b = (timing.summary(c.samples)["median"] for c in contenders)
    assert a == pytest.approx(b, rel=0.03)


def test_summary_is_median_and_the_middle_three_fifths():
    samples = [float(x) for x in range(1, 12)]
    random.Random(0).shuffle(samples)
    assert timing.summary(samples) == {"median": 6.0, "p20": 3.0, "p80": 9.0, "n": 11}
    assert timing.summary([4.0]) == {"median": 4.0, "p20": 4.0, "p80": 4.0, "n": 1}


def test_monitor_keeps_the_samples_of_each_tag_apart():
    class Device:
        clock = 1000.0

        def sm_clock(self):
            return self.clock

        def power(self):
            return None

    device = Device()
    with nvml.Monitor(device, period=0.001) as monitor:
        for tag, clock in (("one", 1500.0), ("two", 1900.0)):
            monitor.tag, device.clock = tag, clock
            seen = len(monitor.samples)
            while len(monitor.samples) < seen + 5:
                pass
    assert monitor.summary("two")["sm_mhz"]["median"] == 1900.0
    assert monitor.summary("one")["sm_mhz"]["median"] == 1500.0
    assert monitor.summary()["sm_mhz"]["min"] <= 1500.0
    assert "power_w" not in monitor.summary()


# --- who takes part ---


def test_a_stage_is_measured_beside_the_first_and_the_previous_one():
    third = kernels.load("03")
    found = bench.entries(third, "fp32", parse())
    assert [(e.kernel.label, e.role) for e in found] == [
        ("01_naive fp32", "first"),
        ("02_block_tile fp32", "previous"),
        ("03_thread_tile fp32", "stage"),
    ]
    assert [e.role for e in bench.entries(kernels.load("02"), "fp16", parse())] == ["previous", "stage"]
    assert [e.role for e in bench.entries(kernels.load("01"), "fp16", parse())] == ["stage"]


def test_a_variant_is_swept_with_all():
    first = kernels.load("01")
    assert [k.variants for k in bench.sweep(first, "fp16", parse("--variant", "COALESCED=all"))] == [
        {"COALESCED": value} for value in first.variants["COALESCED"]
    ]
    with pytest.raises(UserError, match="COALESCE"):
        bench.sweep(first, "fp16", parse("--variant", "COALESCE=all"))
    with pytest.raises(UserError, match="NAME=VALUE"):
        bench.sweep(first, "fp16", parse("--variant", "COALESCED=some"))


def test_a_readers_kernel_is_measured_beside_the_stages_own(tmp_path):
    stage = kernels.load("03")
    mine = tmp_path / "mine.cu"
    mine.write_text(stage.source.read_text())
    found = bench.entries(stage, "fp16", parse("--source", str(mine)))
    assert [e.kernel.source for e in found if e.role == "stage"] == [stage.source, mine]
    row = bench.kernel_row(found[-1], "fp16", (256, 256, 256), [SimpleNamespace(error=0.0, limit=1.0)])
    assert row["source"] == str(mine)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--repeat", "0"], "--repeat takes a whole number >= 1"),
        (["--plot", "run.jpeg"], "must end in .png, .svg, .pdf"),
        (["--json", f"{__file__}/run.json"], "cannot write .*/run.json"),
    ],
)
def test_what_would_fail_after_the_run_is_refused_before_it(words, message):
    with pytest.raises(UserError, match=message):
        bench.run(kernels.load("01"), parse(*words))


def test_all_dtypes():
    third = kernels.load("03")
    assert bench.dtypes(third, parse("--dtype", "all")) == list(third.dtypes)
    assert bench.dtypes(third, parse()) == [third.dtypes[0]]


# --- a run on a GPU that is made of torch on the CPU ---


@pytest.fixture
def fake_gpu(monkeypatch):
    """Kernels are torch's own product, times are those in `speeds` (ms); returns the log of what happened."""
    log, wrong = [], set()
    speeds = {"01_naive": 8.0, "02_block_tile": 4.0, "03_thread_tile": 1.0, "cuBLAS": 0.5}

    def bind(kernel, inputs, outputs):
        def call():
            for output, right in zip(outputs, kernel.stage.spec.baseline(inputs, kernel.dtype, kernel.variants)):
                output.copy_(right * (1.25 if kernel.stage.name in wrong else 1.0))
            log.append(("run", kernel.label))

        return call

    def sample(call, estimate, round_ms):
        turn = [t for t in log if t[0] == "time"][-1][1]
        return [speeds[turn] * scale for scale in (0.9, 1.0, 1.1)]

    interleave = timing.interleave

    def logged(contenders, rounds, round_ms, before):
        def turn(contender):
            log.append(("time", contender.label.split()[0]))
            before(contender)

        interleave(contenders, rounds, round_ms, sampler=sample, before=turn)

    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "bind", bind)
    monkeypatch.setattr(gpu, "unfit", lambda stage: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(timing, "interleave", logged)
    monkeypatch.setattr(timing, "estimate", lambda call: 1.0)
    monkeypatch.setattr(nvml, "current", lambda: SimpleNamespace(sm_clock=lambda: 1980.0, power=lambda: 300.0))
    monkeypatch.setattr(bench, "build", lambda chosen, dtypes: log.append(("build", [k.label for k in chosen])))
    monkeypatch.setattr(
        ceiling,
        "limits",
        lambda keys: {key: {"name": f"peak {key}", "tflops": 600.0, "date": "2026-11-21"} for key in keys},
    )
    return SimpleNamespace(log=log, wrong=wrong)


def test_a_run_checks_then_times_and_saves_what_it_prints(fake_gpu, tmp_path, capsys):
    path, picture = tmp_path / "run.json", tmp_path / "run.png"
    words = ["--sizes", "128", "256", "--dtype", "fp16,fp32", "--repeat", "2", "--json", str(path)]
    assert bench.run(kernels.load("03"), parse(*words, "--plot", str(picture))) == 0
    made = results.load(path)
    assert len(made["rows"]) == 2 * 2 * 4  # dtypes, sizes, contenders
    wanted = ("03_thread_tile", "fp32", 256)
    (row,) = [r for r in made["rows"] if (r["name"], r["dtype"], r["shape"]["M"]) == wanted]
    assert row["ms"]["median"] == 1.0 and row["ms"]["n"] == 6
    assert row["tflops"] == pytest.approx(2 * 256**3 / 1.0 / 1e9)
    assert 0 < row["check"]["error"] <= row["check"]["limit"]
    assert (row["role"], row["number"], row["previous"], row["first"]) == ("stage", 3, "02_block_tile", "01_naive")
    record = results.Record(made, row)
    assert (record.times(record.previous), record.times(record.first), record.times(record.peer)) == (4.0, 8.0, 0.5)
    assert picture.read_bytes().startswith(b"\x89PNG")
    sizes = next(i for i, (what, _) in enumerate(fake_gpu.log) if what == "time")
    assert fake_gpu.log[0][0] == "build"
    assert {entry for entry in fake_gpu.log[1:sizes]} == {
        ("run", f"{name} fp16") for name in ("01_naive", "02_block_tile", "03_thread_tile")
    }


def test_a_wrong_kernel_is_never_timed(fake_gpu, monkeypatch):
    monkeypatch.setattr(check, "explain", lambda kernel, *_: f"{kernel.label} is wrong")
    fake_gpu.wrong.add("02_block_tile")
    with pytest.raises(CheckFailed, match="02_block_tile fp16 is wrong"):
        bench.run(kernels.load("03"), parse("--sizes", "128"))
    assert not [entry for entry in fake_gpu.log if entry[0] == "time"]


def test_the_ladder_leaves_out_what_a_stage_cannot_take_and_says_so(fake_gpu, tmp_path, capsys):
    path = tmp_path / "run.json"
    args = parse("--sizes", "100", "128", "--quick", "--json", str(path))
    assert bench.run_ladder(kernels.ladder()[:3], args) == 0
    made = results.load(path)
    assert {(r["name"], r["shape"]["M"]) for r in made["rows"]} == {
        (name, size) for name in ("01_naive", "02_block_tile", "03_thread_tile", "cuBLAS") for size in (100, 128)
    } - {("03_thread_tile", 100)}
    assert any("100" in note and "03_thread_tile" in note for note in made["notes"])
    with pytest.raises(UserError, match="multiple of 128"):
        bench.run(kernels.load("03"), parse("--sizes", "100"))
    with pytest.raises(UserError, match="no stage has dtype 'fp8'"):
        bench.run_ladder(kernels.ladder()[:3], parse("--dtype", "fp8"))


def test_printed_ratios_are_those_of_the_run(fake_gpu):
    found = bench.entries(kernels.load("03"), "fp16", parse())
    made = bench.measure({"fp16": found}, {"fp16": [(128, 128, 128)]}, rounds=1)
    table = bench.table(made, "fp16")
    cells = {column.header: list(column.cells) for column in table.columns}
    names = ["128", "01_naive", "02_block_tile", "03_thread_tile", "cuBLAS"]
    assert [str(name).strip() for name in cells["size, kernel"]] == names
    assert cells["× prev."] == ["", "", "2.00", "4.00", ""]
    assert cells["× first"] == ["", "", "2.00", "8.00", ""]
    assert cells["% of\ncuBLAS"] == ["", "6.2%", "12.5%", "50.0%", ""]
    assert cells["MHz"][3] in ("1980", "")
    assert "peak fp16, 600 TFLOP/s, measured 2026-11-21" in table.caption


# --- without a GPU ---


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_emulator_checks_and_counts_and_recorded_times_are_marked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    times = {"median": 2.0, "p20": 1.9, "p80": 2.1, "n": 50}
    shape = dict.fromkeys("MNK", 4096)
    rows = [
        {
            "role": "stage",
            "name": "02_block_tile",
            "label": "02_block_tile fp16",
            "number": 2,
            "problem": "gemm",
            "dtype": "fp16",
            "variants": {},
            "default": True,
            "shape": shape,
            "ms": times,
            "tflops": 68.7,
        },
        {
            "role": "peer",
            "name": "cuBLAS",
            "label": "cuBLAS",
            "problem": "gemm",
            "dtype": "fp16",
            "shape": shape,
            "ms": times,
            "tflops": 687.0,
        },
    ]
    head = {
        "schema": 1,
        "kind": "bench",
        "command": "",
        "date": "2026-11-21T10:00:00+00:00",
        "commit": "abc",
        "gpu": "NVIDIA H200",
        "driver": "580",
        "cuda": "13.0",
        "torch": "2.11.0",
    }
    (tmp_path / "one.json").write_text(json.dumps(head | {"rows": rows}))
    assert bench.run(kernels.load("02"), parse("--sizes", "64")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "02_block_tile fp16, 64x64x64: right" in out
    assert "counted in the emulator" in out and "global_load_sectors" in out
    assert "recorded, not measured now: fp16 on NVIDIA H200, 2026-11-21 (docs/results/one.json)" in out
    assert "10.0%" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_a_wrong_kernel_shows_no_counters(tmp_path, capsys):
    stage = kernels.load("02")
    mine = tmp_path / "mine.cu"
    text = stage.source.read_text()
    mine.write_text(text.replace("sum += float", "sum -= float"))
    assert mine.read_text() != text
    assert bench.run(stage, parse("--sizes", "64", "--source", str(mine))) == 1
    shown = capsys.readouterr()
    assert "wrong result" in shown.err
    assert "counted in the emulator" not in shown.out


# --- the ceilings ---


@pytest.mark.parametrize("setting", ceiling.ALL, ids=lambda c: c.label)
def test_the_ceilings_inner_loop_is_nothing_but_arithmetic(setting):
    """In SASS: one tensor instruction per tile, ldmatrix only if asked for, and nothing in local memory."""
    from common import sass

    cubin = toolchain.cubin(setting.source, setting.defines, "90")
    unit, kernel_name = ("fp32", "fma_kernel") if setting.operation else ("tensor cores", "mma_kernel")
    (kernel,) = (code for name, code in sass.parse(toolchain.disassemble(cubin.path)).items() if kernel_name in name)
    jumps = ((int(i.text.split()[-1], 16), i.address) for i in kernel if i.opcode == "BRA")
    loops = [sass.histogram([i for i in kernel if to <= i.address <= jump]) for to, jump in jumps if to < jump]
    loop = max(loops, key=lambda found: found.get(unit, Counter()).total())
    work = {name: counter.total() for name, counter in loop.items()}
    if setting.operation:
        assert work["fp32"] >= 32 and work["fp32"] % 32 == 0
        assert sum(work.values()) - work["fp32"] < work["fp32"] / 16
    else:
        per_step = 64 if setting.dtype == "tf32" else 32
        assert work["tensor cores"] % per_step == 0
        steps = work["tensor cores"] // per_step
        assert work.get("ldmatrix", 0) == (8 * steps if setting.operands == "shared memory" else 0)
        others = sum(n for name, n in work.items() if name not in ("tensor cores", "ldmatrix"))
        assert others <= 8, loop


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_kernel_stays_below_the_ceiling_on_the_gpu():
    limits = ceiling.limits(["fp16", "fp32"])
    assert limits["fp16"]["tflops"] > limits["fp32"]["tflops"] > 1
    stage = kernels.load("03")
    made = bench.measure({"fp32": bench.entries(stage, "fp32", parse())}, {"fp32": [(2048, 2048, 2048)]}, rounds=2)
    speed = {row["name"]: row["tflops"] for row in made["rows"]}
    assert speed["01_naive"] < speed["03_thread_tile"] < limits["fp32"]["tflops"]
    assert all(row["ms"]["n"] >= 2 for row in made["rows"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_clock_and_power_can_be_read_on_the_gpu():
    device = nvml.current()
    assert nvml.driver_version()
    assert 100 < device.sm_clock() < 5000
    assert 1 < device.power() < 2000


def test_help_of_bench_names_its_options(capsys):
    with pytest.raises(SystemExit):
        cli.main("kernels.03_thread_tile", ["bench", "--help"])
    out = capsys.readouterr().out
    assert all(word in out for word in ("--sizes", "--dtype", "--variant", "--json", "--plot", "--quick", "examples"))
