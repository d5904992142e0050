"""What it saves that a product and what follows it are one kernel: `kernels.matmul` on a GPU, three ways.

    python -m common.measure.fused --json docs/results/fused.json

The product alone; bias, GELU and residual in its kernel; and the product, then a second kernel for these, which
torch.compile makes. Each result is checked first; then all take turns, with a cold L2 before each run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
from rich.console import Group
from torch import Tensor
from torch.nn.functional import gelu

from common import terminal
from common.measure import timing
from common.measure.metadata import metadata, record
from common.results import measured
from common.results.runs import Row, Run
from cudaemu.errors import UserError
from kernels.library.matmul import matmul

SIZES = (1024, 2048, 4096, 8192)  # M = N = K
ALONE, ONE, TWO = "product alone", "product, bias, GELU and residual: one kernel", "the same: two kernels"
NEAR = 4e-3  # of the norm of what is right: fp16 rounds a number by half of 2⁻¹⁰, the second kernel's input too


def after(product: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """What follows the product, for a kernel of its own."""
    return gelu(product + bias) + residual


def ways(
    size: int, second: Callable[..., Tensor], device: str = "cuda"
) -> dict[str, tuple[Callable[[], Tensor], Tensor]]:
    """{name: (call, what it has to return, fp32)} for matrices of fp16 with `size` rows and columns; `second` is
    `after`, or a kernel that does the same."""
    generator = torch.Generator(device).manual_seed(0)
    a, b, residual = (torch.randn(size, size, generator=generator, device=device).half() for _ in range(3))
    b /= size**0.5  # GELU of numbers around 1, not of large ones alone
    bias = torch.randn(size, generator=generator, device=device).half()
    product = a.float() @ b.float()
    right = after(product, bias.float(), residual.float())
    return {
        ALONE: (lambda: matmul(a, b), product),
        ONE: (lambda: matmul(a, b, bias=bias, activation="gelu", residual=residual), right),
        TWO: (lambda: second(matmul(a, b), bias, residual), right),
    }


def measure(size: int, second: Callable[..., Tensor]) -> list[Row]:
    """The rows of a size. UserError if a result is wrong: then nothing is timed."""
    made = ways(size, second)
    for name, (call, right) in made.items():
        off = ((call().float() - right).norm() / right.norm()).item()
        if not off <= NEAR:
            raise UserError(f"{name}, {size}: off by {off:.1e} of the norm, {NEAR:.1e} is allowed")
    contenders = [timing.Contender(name, call, timing.estimate(call)) for name, (call, _) in made.items()]
    timing.interleave(contenders)
    return [{"size": size, **each.row} for each in contenders]


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m common.measure.fused", description=about)
    return record(parser, lambda _: measure_all(), table, arguments)


def measure_all() -> Run:
    """A run of all sizes."""
    run, second = metadata("fused"), torch.compile(after, dynamic=False)
    with terminal.progress("fused", total=len(SIZES)) as update:
        for size in SIZES:
            run["rows"] += measure(size, second)
            update(advance=1)
    return run


def table(run: Run) -> Group:
    """A run, a row per size."""
    made = terminal.table()
    head, body = measured.fused_cells(run)
    for column in head:
        made.add_column(column, justify="right")
    for row in body:
        made.add_row(*row)
    return terminal.titled(f"{run['gpu']}, {run['date'][:10]}", made)


if __name__ == "__main__":
    sys.exit(main())
