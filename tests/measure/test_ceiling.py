"""The ceilings: what their loops are made of, and what they are called."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import kernels
from common.compiler import sass
from common.measure import ceiling, contest


@pytest.mark.parametrize("setting", ceiling.ALL, ids=lambda each: each.label)
def test_the_inner_loop_is_nothing_but_arithmetic(setting):
    """In SASS: one tensor instruction per tile, ldmatrix only if asked for, and nothing in local memory."""
    functions = sass.functions(ceiling.SOURCE, setting.defines, "90")
    unit, kernel_name = ("fp32", "fma_kernel") if setting.operation else ("tensor cores", "mma_kernel")
    (kernel,) = (code for name, code in functions.items() if kernel_name in name)
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


def test_every_kernel_has_a_ceiling_that_is_measured():
    keys = {kernel.ceiling for stage in kernels.ladder() for kernel in stage.kernels()}
    assert {each.key for each in ceiling.needed(sorted(keys))} == keys
    assert ceiling.needed(["mma.sync fp16", "FMA fp32", "mma.sync fp16", "wgmma fp16"]) == [
        ceiling.LIMITS["mma.sync fp16"],
        ceiling.LIMITS["FMA fp32"],
    ]


def test_without_a_gpu_nothing_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ceiling.main([]) == 2
    assert capsys.readouterr().err.startswith("error: ceilings are times: they need a GPU")


@pytest.mark.alone
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_kernel_stays_below_the_ceiling_on_the_gpu():
    limits = ceiling.limits(["mma.sync fp16", "FMA fp32"])
    assert limits["mma.sync fp16"]["tflops"] > limits["FMA fp32"]["tflops"] > 1
    entries = [contest.Entry(kernels.load(name).kernel("fp32"), "stage") for name in ("01", "03")]
    made = contest.measure([contest.Heat(entries, [(2048, 2048, 2048)])], rounds=2)
    speed = {row["name"]: row["tflops"] for row in made["rows"]}
    assert speed["01_naive"] < speed["03_thread_tile"] < limits["FMA fp32"]["tflops"]
    assert all(row["ms"]["n"] >= 2 for row in made["rows"])
