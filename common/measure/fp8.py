"""Attention in fp8 on a GPU with what quantizing takes, beside the kernel in 16 bits.

    python -m common.measure.fp8 --json docs/results/fp8.json

The attention kernel that the one in fp8 follows; quantizing and the one in fp8, one after the other; and each alone,
quantizing also without rotation. Each result is checked first; then all take turns, with a cold L2 before each run.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

import torch
from rich.console import Group
from torch import Tensor

from common import course, terminal
from common.measure import timing
from common.measure.metadata import metadata, record
from common.problem import Shape
from common.results import measured
from common.results.runs import Row, Run
from cudaemu.errors import UserError
from kernels.library.attention_fp8 import quantize, stage

SIZES = (512, 1024, 2048, 4096, 8192, 16384)  # queries, and keys, of a head
HEAD_DIMS = (128, 64)
ALONE, QUANTIZE, PLAIN = "attention in fp8", "quantizing", "quantizing, not rotated"
BOTH = "both"
NEAR = {False: 4e-3, True: 0.08}  # of the norm of what is right: without and with 8 bits


def ways(shape: Shape, device: str = "cuda") -> tuple[dict[str, Callable[[], object]], dict[str, Tensor]]:
    """{name: call} for fp16 Q, K and V of a shape (B, H, N, D), and {name: the output of that call} for those that
    make one."""
    generator = torch.Generator(device).manual_seed(0)
    inputs = tuple(torch.randn(shape, generator=generator, device=device).half() for _ in range(3))
    before, variants = course.previous(stage), {"HEAD_DIM": shape[-1]}
    assert before is not None
    outputs = {name: torch.empty_like(inputs[0]) for name in (before.name, BOTH)}
    quantized = quantize.spec.outputs(shape, "fp16", variants, device)
    unrotated = quantize.spec.outputs(shape, "fp16", variants, device)
    first = quantize.kernel("fp16", variants).bind(inputs, quantized)
    second = stage.kernel("fp16", variants).bind(quantized, (outputs[BOTH],))
    calls: dict[str, Callable[[], object]] = {
        before.name: before.kernel("fp16", variants).bind(inputs, (outputs[before.name],)),
        BOTH: lambda: (first(), second()),
        ALONE: second,
        QUANTIZE: first,
        PLAIN: quantize.kernel("fp16", {**variants, "ROTATE": 0}).bind(inputs, unrotated),
    }
    q, k, v = inputs
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v).float()
    for name, output in outputs.items():
        calls[name]()
        off = ((output.float() - right).norm() / right.norm()).item()
        if not off <= NEAR[name == BOTH]:
            raise UserError(f"{name}, {shape}: off by {off:.1e} of the norm, {NEAR[name == BOTH]:.1e} is allowed")
    return calls, outputs


def measure(n: int, head_dim: int) -> list[Row]:
    """The rows of a size, 16,384 queries in all and heads of 2,048 columns together. UserError if a result is wrong:
    then nothing is timed."""
    shape = (math.ceil(16384 / n), 2048 // head_dim, n, head_dim)
    calls, _ = ways(shape)
    contenders = [timing.Contender(name, call, timing.estimate(call)) for name, call in calls.items()]
    timing.interleave(contenders)
    flops = stage.spec.flops(shape, {})
    return [{"size": n, "head_dim": head_dim, "flops": flops, **each.row} for each in contenders]


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m common.measure.fp8", description=about)
    return record(parser, lambda _: measure_all(), table, arguments)


def measure_all() -> Run:
    """A run of all sizes."""
    run = metadata("fp8")
    with terminal.progress("fp8", total=len(SIZES) * len(HEAD_DIMS)) as update:
        for head_dim in HEAD_DIMS:
            for n in SIZES:
                run["rows"] += measure(n, head_dim)
                update(advance=1)
    return run


def table(run: Run) -> Group:
    """A run, a row per size."""
    made = terminal.table()
    head, body = measured.fp8_cells(run)
    for column in head:
        made.add_column(column, justify="right")
    for row in body:
        made.add_row(*row)
    return terminal.titled(f"{run['gpu']}, {run['date'][:10]}", made)


if __name__ == "__main__":
    sys.exit(main())
