"""The ceilings: what their loops are made of, and what they are called."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import cudaemu
import kernels
from common import course
from common.measure import ceiling, contest, levels
from cudaemu import hardware
from cudaemu.compiler import sass

GPU = hardware.model("9.0")
SETTINGS = [(each, warps) for each in ceiling.ALL for warps in each.warps]
NAMES = [f"{each.key}, {warps} warps" for each, warps in SETTINGS]


@pytest.mark.core(every=13)
@pytest.mark.parametrize(("setting", "warps"), SETTINGS, ids=NAMES)
def test_the_inner_loop_is_nothing_but_arithmetic(setting, warps):
    """In SASS: one tensor instruction per tile, ldmatrix only if asked for, and nothing in local memory."""
    kernel_name = (f"mma_kernelILi{warps}E", "fma_kernel", "power_kernel", "maximum_kernel")[setting.operation]
    kernel_name = "wgmma_kernel" if setting.arch else kernel_name
    unit = "fp32" if setting.operation else "tensor cores"
    found = sass.functions(setting.source, setting.defines, setting.arch or GPU.arch)
    (kernel,) = (code for name, code in found.items() if kernel_name in name)
    jumps = ((int(i.text.split()[-1], 16), i.address) for i in kernel if i.opcode == "BRA")
    loops = [sass.histogram([i for i in kernel if to <= i.address <= jump]) for to, jump in jumps if to < jump]
    loop = max(loops, key=lambda found: found.get(unit, Counter()).total())
    work = {name: counter.total() for name, counter in loop.items()}
    if setting.operation:
        (opcode, count), *rest = loop["fp32"].most_common()
        assert opcode.startswith(("FFMA", "MUFU.EX2", "FMNMX")[setting.operation - 1]) and not rest
        assert count >= 32 and count % 32 == 0
        assert sum(work.values()) - count < count / 8
    elif setting.arch:
        products = sum(n for opcode, n in loop["tensor cores"].items() if "GMMA" in opcode)
        steps, rest = divmod(products, 4)
        assert steps and not rest and work["tensor cores"] == products + 2 * steps, loop  # and its fence, its wait
        assert not {"memory", "local", "ldmatrix"} & set(work) and sum(work.values()) < 28 * steps, loop
    else:
        per_step = (64 if setting.dtype == "tf32" else 32) * 8 // warps
        assert work["tensor cores"] % per_step == 0
        steps = work["tensor cores"] // per_step
        assert work.get("ldmatrix", 0) == (8 * steps if setting.operands == "shared memory" else 0)
        others = sum(n for name, n in work.items() if name not in ("tensor cores", "ldmatrix"))
        assert others <= 8, loop


@pytest.mark.core(every=13)
@pytest.mark.parametrize(("setting", "warps"), SETTINGS, ids=NAMES)
def test_the_operations_are_those_that_are_claimed(setting, warps):
    """In the emulator: what two more steps execute is what is claimed of them; sums stay finite."""
    counted, sinks = [], []
    for steps in (1, 3):
        sink, stamps = torch.zeros(GPU.sms * warps * 32), torch.zeros(GPU.sms, levels.STAMP, dtype=torch.int64)
        report = cudaemu.run(
            setting.source,
            "launch_ceiling",
            [sink, stamps, steps, warps, None],
            names=["sink", "stamps", "steps", "warps", "stream"],
            defines=setting.defines,
            arch=setting.arch or GPU.arch,
            sanitize=False,
        )
        assert report.status == 0, report.error
        assert stamps[:, 0].tolist() == list(range(GPU.sms))
        counted.append(report.counters)
        sinks.append(sink)
    if setting.arch:
        flops = counted[1].tensor_flops - counted[0].tensor_flops
        assert flops == 2 * setting.per_step * GPU.sms and torch.isfinite(sinks[1]).all()
        return
    kind = ("mma", "fma", "float", "float")[setting.operation]
    more = (counted[1][f"instructions.{kind}"] - counted[0][f"instructions.{kind}"]) / GPU.sms
    per_instruction = (2 * 16 * 8 * ceiling_k(setting), 2 * 32, 32 / 2, 32)[setting.operation]  # a power has a negation
    assert 2 * setting.per_step == more * per_instruction
    assert torch.isfinite(sinks[1]).all()


def ceiling_k(setting: ceiling.Ceiling) -> int:
    """How deep one mma is."""
    return 8 if setting.dtype == "tf32" else 16


def test_every_kernel_has_a_ceiling_that_is_measured():
    keys = {kernel.ceiling for stage in course.everything() for kernel in stage.kernels()}
    assert {each.key for each in ceiling.needed(sorted(keys))} == keys
    assert ceiling.needed(["mma.sync fp16", "FMA fp32", "mma.sync fp16"]) == [
        ceiling.LIMITS["mma.sync fp16"],
        ceiling.LIMITS["FMA fp32"],
    ]


@pytest.mark.parametrize("here, has", [(None, False), ("8.0", False), ("9.0", True), ("10.0", False)])
def test_wgmma_is_measured_where_it_is(monkeypatch, here, has):
    monkeypatch.setattr(ceiling.gpu, "capability", lambda: here)
    assert any(each.key.startswith("wgmma") for each in ceiling.here()) is has is levels.has_tma()
    assert (levels.HOPPER in levels.sources()) is has


@pytest.mark.parametrize("highest, tflops", [(2000.0, 528.0), (None, 475.2)])
def test_the_peak_is_what_an_sm_does_per_clock_at_the_highest_clock(monkeypatch, tmp_path, highest, tflops):
    """Whatever clock it was measured at: 2000 FLOP · 132 SMs · 2000 MHz, or that clock if no highest one is known."""
    row = {"key": "mma.sync fp16", "name": "mma.sync", "value": 410.0, "unit": "TFLOP/s"}
    row["per_clock"] = {"value": 2000.0, "unit": "FLOP/clock/SM", "mhz": 1800.0}
    measured = []
    monkeypatch.setattr(ceiling, "_cache", lambda: tmp_path / "cache.json")
    head = ceiling.metadata("ceiling") | {"sms": 132, "highest_mhz": highest}
    monkeypatch.setattr(ceiling, "head", lambda: head)
    monkeypatch.setattr(ceiling, "measure", lambda each: measured.append(each.key) or row)
    for _ in range(2):
        peak = ceiling.limits(["mma.sync fp16", "mma.sync fp16"])["mma.sync fp16"]
        assert peak["tflops"] == pytest.approx(tflops) and peak["name"] == "mma.sync"
    assert measured == ["mma.sync fp16"]  # once per GPU


def test_without_a_gpu_nothing_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ceiling.main([]) == 2
    assert capsys.readouterr().err.startswith("error: ceilings are times: they need a GPU")


@pytest.mark.alone
@pytest.mark.gpu
def test_a_kernel_stays_below_the_ceiling_on_the_gpu():
    limits = ceiling.limits(["mma.sync fp16", "FMA fp32"])
    assert limits["mma.sync fp16"]["tflops"] > limits["FMA fp32"]["tflops"] > 1
    if levels.has_tma():
        assert ceiling.limits(["wgmma fp16"])["wgmma fp16"]["tflops"] > limits["mma.sync fp16"]["tflops"]
    entries = [contest.Entry(kernels.load(name).kernel("fp32"), "stage") for name in ("01", "03")]
    made = contest.measure([contest.Heat(entries, [(2048, 2048, 2048)])], rounds=2)
    speed = {row["name"]: row["tflops"] for row in made["rows"]}
    assert speed["01_naive"] < speed["03_thread_tile"] < limits["FMA fp32"]["tflops"]
    assert all(row["ms"]["n"] >= 2 for row in made["rows"])
