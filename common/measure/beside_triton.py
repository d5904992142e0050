"""Triton's kernels of examples/triton beside the course's functions and torch's, on a GPU.

    python -m common.measure.beside_triton --json docs/results/triton.json

Each result is compared with torch's first; then all take turns, with a cold L2 before each run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from rich.console import Group
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from common import terminal
from common.measure import timing
from common.measure.metadata import metadata, record
from common.packages import version
from common.results import measured
from common.results.runs import Row, Run
from cudaemu.errors import UserError
from kernels.library.attention import attention
from kernels.library.matmul import matmul

SIZES = {"product": (1024, 2048, 4096, 8192), "attention": (1024, 4096, 16384)}
TOKENS, HEAD_DIM = 16384, 128  # of attention: queries in all heads and batches, and columns
NEAR = 4e-3  # of the norm of torch's result: both round to fp16
TORCH = "torch"
Calls = dict[str, Callable[[], Tensor]]


def into(kernel: Callable[..., Any], *tensors: Tensor, out: Tensor, **options: Any) -> Tensor:
    """What a launcher of examples/triton writes."""
    kernel(*tensors, out, **options)
    return out


def products(size: int, device: str = "cuda") -> Calls:
    """C = A · B, M = N = K, fp16: whose kernel -> its call."""
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator, device=device).half() for _ in range(2))
    triton = partial(into, importlib.import_module("examples.triton.matmul").matmul, a, b, out=torch.empty_like(a))
    return {
        TORCH: lambda: torch.matmul(a, b),
        "kernels.matmul": lambda: matmul(a, b),
        "Triton, pointers": partial(triton, block_k=64, stages=3),
        "Triton, descriptors": partial(triton, block_k=64, stages=4, tma=True),
    }


def attentions(n: int, device: str = "cuda") -> Calls:
    """O = softmax(Q · Kᵀ / √D) · V of 16 heads, fp16, no mask: whose kernel -> its call."""
    generator = torch.Generator(device).manual_seed(0)
    shape = max(1, TOKENS // n), 16, n, HEAD_DIM
    q, k, v = (torch.randn(shape, generator=generator, device=device).half() for _ in range(3))
    kernel = importlib.import_module("examples.triton.attention").attention
    triton = partial(into, kernel, q, k, v, out=torch.empty_like(q), block_kv=128, warps=8)
    return {
        TORCH: lambda: scaled_dot_product_attention(q, k, v),
        "kernels.attention": lambda: cast("Tensor", attention(q, k, v)),
        "Triton, pointers": triton,
        "Triton, descriptors": partial(triton, tma=True),
    }


def measure(problem: str, size: int, calls: Calls) -> list[Row]:
    """The rows of a size. UserError if a result is wrong: then nothing is timed."""
    right = calls[TORCH]().float()
    for name, call in calls.items():
        off = ((call().float() - right).norm() / right.norm()).item()
        if not off <= NEAR:
            raise UserError(f"{name}, {problem} {size}: off by {off:.1e} of the norm, {NEAR:.1e} is allowed")
    contenders = [timing.Contender(name, call, timing.estimate(call)) for name, call in calls.items()]
    timing.interleave(contenders)
    return [{"problem": problem, "size": size, **each.row} for each in contenders]


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m common.measure.beside_triton", description=about)
    return record(parser, lambda _: measure_all(), table, arguments)


def measure_all() -> Run:
    """A run of all sizes. UserError without Triton."""
    run = metadata("triton") | {"triton": version("triton")}
    if run["triton"] is None:
        raise UserError("Triton must be installed: pip install triton (docs/triton.md)")
    with terminal.progress("beside Triton", total=sum(map(len, SIZES.values()))) as update:
        for problem, make in (("product", products), ("attention", attentions)):
            for size in SIZES[problem]:
                run["rows"] += measure(problem, size, make(size))
                update(advance=1)
    return run


def table(run: Run) -> Group:
    """A run, a table per problem."""
    tables = []
    for problem in SIZES:
        made = terminal.table()
        head, body = measured.triton_cells(run, problem)
        for column in head:
            made.add_column(column, justify="right")
        for row in body:
            made.add_row(*row)
        tables.append(terminal.titled(f"{problem}: {run['gpu']}, {run['date'][:10]}", made))
    return Group(*tables)


if __name__ == "__main__":
    sys.exit(main())
