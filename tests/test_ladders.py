"""A second ladder, of one GPU generation alone: found, listed, compared, compiled and emulated like the first."""

from __future__ import annotations

import json

import pytest

import kernels
from common import accuracy, course
from common.measure import shared_loads
from common.results import documents, plot, runs
from common.verbs import resources
from cudaemu import hardware
from cudaemu.compiler import sass
from cudaemu.errors import UserError


def test_it_is_found_after_the_numbered_stages(hopper):
    assert course.names()[-1] == hopper.name == "h99_registers" and hopper.number == "h99"
    assert kernels.load("h99") is kernels.load("h99_registers") is hopper is course.ladder()[-1]
    assert course.ladder(hopper) == [hopper] and hopper not in course.ladder(course.load("09"))
    with pytest.raises(UserError, match="Did you mean 'h99_registers'"):
        kernels.load("h99_register")


def test_it_follows_a_stage_of_another_ladder(hopper, command):
    assert course.previous(hopper) is course.load("09") and course.previous(course.load("10")) is course.load("09")
    before = course.counterpart(course.previous(hopper), hopper.kernel("bf16"))
    assert before is not None and before.label == "09_swizzle bf16"
    done = command("kernels.h99_registers", "diff")
    assert done.status == 0 and "09_swizzle -> h99_registers: +" in done.out and "+  asm volatile" in done.out


def test_it_is_listed_with_what_it_needs(hopper, command):
    listed = command("kernels").out
    assert "h99_registers (after 09)" in listed and "registers moved between warps" in listed
    assert "takes: fp16, bf16; any size; compute capability 9.0a\n" in command("kernels.h99_registers").out


@pytest.mark.full
def test_it_is_compiled_for_its_own_compute_capability(hopper):
    """The instruction that ptxas takes for sm_90a alone is in the machine code, wherever a GPU of 9.0 is asked for."""
    kernel, gpu = hopper.kernel(), hardware.model("9.0")
    with pytest.raises(UserError, match="setmaxnreg"):
        sass.functions(kernel.source, kernel.defines, gpu.arch)
    (code,) = sass.functions(kernel.source, kernel.defines, hopper.target(gpu.arch)).values()
    assert code
    (taken,) = resources.measure(kernel, gpu, [(64, 64, 16)]).values()
    assert taken.usage.registers > 0 and taken.launch is not None and taken.launch.block == (1024, 1, 1)
    assert shared_loads.machine_code(kernel, "gemm_kernel", gpu.arch) == {}  # it compiles, and loads nothing from there


@pytest.mark.core(every=4)
@pytest.mark.parametrize("words", [("resources",), ("sass",), ("resources", "--arch", "9.0"), ("sass", "--arch", "90")])
def test_verbs_that_compile_it(hopper, command, words):
    done = command("kernels.h99_registers", *words)
    assert done.status == 0 and ("9.0 H200" in done.out if words[0] == "resources" else "for 9.0a" in done.out)
    assert "8.0 A100" not in done.out and "10.0 B200" not in done.out


@pytest.mark.parametrize("verb", ["resources", "sass"])
def test_no_other_gpu_has_it(hopper, command, verb):
    done = command("kernels.h99_registers", verb, "--arch", "10.0")
    assert done.status == 2 and "h99_registers needs compute capability 9.0a, got 10.0" in done.err


def test_it_runs_in_the_emulator_as_a_gpu_that_has_it(hopper):
    kernel = hopper.kernel()
    assert accuracy.check(kernel, (40, 40, 8), "emulator").ok
    instance = accuracy.make(kernel, (40, 40, 8))
    with pytest.raises(UserError, match="h99_registers needs .*9.0a, got 8.0"):
        kernel.emulate(instance.inputs, instance.outputs(), arch="8.0")


def test_it_is_counted_beside_the_stage_that_it_follows(hopper, command):
    done = command("kernels.h99_registers", "count", "--sizes", "256")
    assert done.status == 0 and "09_swizzle" in done.out and "h99_registers" in done.out


def test_without_a_gpu_each_ladder_has_its_table(hopper, command, monkeypatch):
    monkeypatch.setattr(type(hopper), "unfit", "No GPU")
    done = command("kernels", "bench", "09", "h99", "--sizes", "256")
    assert done.status == 0 and done.out.count("C[M, N] = A[M, K] · B[K, N]") == 2
    (row,) = (line for line in done.out.splitlines() if line.startswith("h99_registers"))
    assert "(after 09) ok" in row and "→" in row


def test_on_a_gpu_it_is_timed_beside_the_stage_that_it_follows(hopper, fake_gpu, command, tmp_path, monkeypatch):
    fake_gpu.speeds.update({"09_swizzle": 1.0, "h99_registers": 0.25})
    file = tmp_path / "run.json"
    done = command("kernels.h99_registers", "bench", "--sizes", "256", "--json", file)
    assert done.status == 0, done.err
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert set(rows) >= {"09_swizzle", "h99_registers", "cuBLAS"}
    own = rows["h99_registers"]
    assert (own["ladder"], own["part"], own["limit"]) == ("gemm on Hopper", "gemm", "wgmma fp16")
    assert (own["previous"], own["first"], rows["09_swizzle"]["ladder"]) == ("09_swizzle", None, "gemm")
    monkeypatch.setattr(runs, "RESULTS", tmp_path)
    climbed = runs.rungs("gemm on Hopper", "fp16")
    assert [record.row["name"] for record in climbed if record.row["role"] != "peer"] == ["09_swizzle", "h99_registers"]
    assert climbed[1].times(climbed[1].previous) == pytest.approx(4.0)
    table = documents.TABLES["ladder"]("gemm on Hopper", "fp16")
    assert "| h99_registers | " in table and " 4.00 |" in table
    assert [record.row["name"] for record in runs.rungs("gemm", "fp16")] == ["09_swizzle", "cuBLAS"]
    assert plot.plot(climbed, "a second ladder").axes


def test_attention_on_hopper_is_a_ladder_of_its_own():
    """Its first stage changes one that computes products, and is not compared with it."""
    first, last, fp8 = course.load("h6"), course.load("h7"), course.load("h8")
    assert course.ladder(first) == [first, last, fp8]
    assert course.previous(last) is first and course.previous(fp8) is last
    assert course.previous(first) is course.load("h3") and first not in course.ladder(course.load("h3"))
    assert course.counterpart(course.load("h3"), first.kernel()) is None
    small = course.counterpart(first, last.kernel("bf16", {"HEAD_DIM": 64}))
    assert small is not None and small.label == "h6_wgmma_attention bf16 HEAD_DIM=64"
    assert course.counterpart(first, last.kernel("fp16", {"CAUSAL": 1})) is None
    assert course.counterpart(last, fp8.kernel()).ceiling == "wgmma fp16" and fp8.kernel("bf16").ceiling == "wgmma e4m3"
