"""`attention` on scores of many kinds, beside the libraries, on a GPU.

    python -m common.measure.any_scores --json docs/results/scores.json

How fast attention is depends on its data: on how often a maximum moves, and on the power that the numbers take. Each
result is compared with fp64 first; then all take turns on the same tensors, with a cold L2 before each run.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from rich.console import Group
from torch import Tensor

from common import problem, terminal
from common.dtypes import torch_dtype
from common.measure import timing
from common.measure.metadata import metadata, record
from common.results import measured
from common.results.runs import Row, Run
from cudaemu.errors import UserError
from kernels.library.attention import attention

OURS, LIBRARIES = "kernels.attention", ("FA2", "cuDNN", "FA-CuTe")
TOKENS, WIDTH = 16384, 2048  # B · N, and H · D
SIZES = 2048, 8192
CASES = [(dtype, d, causal) for dtype in ("fp16", "bf16") for d in (128, 64) for causal in (0, 1)]
ROUNDS, ROUND_MS = 3, 20.0
ALLOWED = 2.0  # error, as a multiple of the largest of the libraries'

Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _times(factor: float) -> Change:
    return lambda q, k, _: (q * factor, k * factor)


def _outliers(q: Tensor, k: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    some = torch.arange(q.shape[-1], device=q.device) < 4
    return torch.where(some, q * 20, q), torch.where(some, k * 10, k)


def _liked(weight: Callable[[Tensor], Tensor]) -> Change:
    """All queries lean towards a direction; key number j of N has weight(j / N) of it."""

    def change(q: Tensor, k: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        place = torch.arange(k.shape[2], device=k.device)[:, None] / k.shape[2]
        return q + 4 * direction, k + weight(place) * direction

    return change


KINDS: dict[str, Change] = {  # what Q and K, random normal numbers, become
    "normal": lambda q, k, _: (q, k),
    "Q and K × 3": _times(3),
    "Q and K × 10": _times(10),
    "4 channels × 20 in Q, × 10 in K": _outliers,
    "the first keys liked by all queries": _liked(lambda place: 20.0 * (place < 0.002)),
    "rising over the keys": _liked(lambda place: 40 * place),
    "falling over the keys": _liked(lambda place: 40 * (1 - place)),
    "sigmoid of normal": lambda q, k, _: (q.sigmoid(), k.sigmoid()),
}


def inputs(kind: str, shape: tuple[int, int, int, int], dtype: torch.dtype, device: str = "cuda") -> list[Tensor]:
    """Q, K and V of shape [B, H, N, D], the same for every contender."""
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, device=device) for _ in range(3))
    direction = torch.randn(shape[-1], generator=generator, device=device)
    return [each.to(dtype) for each in (*KINDS[kind](q, k, direction / direction.norm()), v)]


def error(out: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> float:
    """‖O − reference‖ / ‖reference‖ of the first head, with a reference in fp64."""
    q, k, v, out = (each[0, 0].double() for each in (q, k, v, out))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    right = scores.softmax(-1) @ v
    return float((out - right).norm() / right.norm())


def measure(kind: str, size: int, dtype: str, head_dim: int, causal: int) -> list[Row]:
    """The rows of a case. UserError if ours is wrong: then nothing is timed."""
    shape = max(1, TOKENS // size), WIDTH // head_dim, size, head_dim
    q, k, v = inputs(kind, shape, torch_dtype(dtype))
    peers = problem.load("sdpa").peers(dtype, {"CAUSAL": causal})
    calls: dict[str, Callable[[], Tensor]] = {
        OURS: lambda: cast("Tensor", attention(q, k, v, is_causal=bool(causal))),
        **{name: partial(peers[name], q, k, v) for name in LIBRARIES if name in peers},
    }
    off = {name: error(call(), q, k, v, bool(causal)) for name, call in calls.items()}
    most = ALLOWED * max(off[name] for name in calls if name != OURS)
    if not off[OURS] <= most:
        raise UserError(f"{kind}, {dtype}, {shape}: ours is off by {off[OURS]:.1e} of the norm, {most:.1e} is allowed")
    contenders = [timing.Contender(name, call, timing.estimate(call)) for name, call in calls.items()]
    timing.interleave(contenders, ROUNDS, ROUND_MS)
    flop = 4 * math.prod(shape) * size / (1 + causal)
    case = {"scores": kind, "dtype": dtype, "head_dim": head_dim, "causal": causal, "size": size}
    rows = [{**case, "error": off[each.label], **each.row} for each in contenders]
    return [{**row, "tflops": flop / row["ms"]["median"] / 1e9} for row in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m common.measure.any_scores", description=about)
    return record(parser, lambda _: measure_all(), table, arguments)


def measure_all() -> Run:
    """A run of all kinds of scores, element types, head dimensions and sizes, with and without a causal mask."""
    run = metadata("scores")
    with terminal.progress("any scores", total=len(CASES) * len(SIZES) * len(KINDS)) as update:
        for dtype, head_dim, causal in CASES:
            for size in SIZES:
                for kind in KINDS:
                    run["rows"] += measure(kind, size, dtype, head_dim, causal)
                    update(advance=1)
    return run


def table(run: Run) -> Group:
    """A run, a table per element type and head dimension."""
    tables = []
    for dtype, head_dim in dict.fromkeys((dtype, head_dim) for dtype, head_dim, _ in CASES):
        made = terminal.table()
        head, body = measured.scores_cells(run, dtype, head_dim)
        for column in head:
            made.add_column(column, justify="right")
        for row in body:
            made.add_row(*row)
        tables.append(terminal.titled(f"{dtype}, D = {head_dim}: {run['gpu']}, {run['date'][:10]}", made))
    return Group(*tables)


if __name__ == "__main__":
    sys.exit(main())
