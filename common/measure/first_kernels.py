"""The first kernels of examples/ on a GPU: their time beside that of torch, and their bytes per second.

    python -m common.measure.first_kernels --json docs/results/first-kernels.json

Each is checked against torch at the size that is timed, then both take turns, with a cold L2 before each run. Bytes are
the fewest possible: every input read once, every output written once.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Group
from torch import Tensor

from common import gpu, terminal
from common.measure import timing
from common.measure.metadata import metadata, record
from common.results.runs import Row, Run
from cudaemu.errors import UserError

SOURCE = Path(__file__).with_name("first_kernels.cu")
K = 10  # of top-k
ROUNDS, ROUND_MS = 3, 40.0


@dataclass(frozen=True)
class First:
    """One kernel: its launcher's name is launch_NAME, and that takes `inputs`, `outputs`, `extra` and `sizes`."""

    name: str
    size: str  # for readers
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sizes: tuple[int, ...]
    torch: str  # what the library's is called
    library: Callable[[], object]
    expected: Callable[[], Sequence[Tensor | None]]  # None: not judged
    extra: tuple[Tensor, ...] = ()
    near: float = 1e-4  # how far from the library's an element may be, as a share of the largest

    @property
    def bytes(self) -> int:
        """The fewest bytes that can be moved."""
        return sum(each.nbytes for each in (*self.inputs, *self.outputs))


def all_of_them(scale: int = 1, device: str = "cuda") -> list[Callable[[], First]]:
    """What makes each of them, one at a time to save memory; `scale` divides the sizes, for tests."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    long, rows, columns = (1 << 26) // scale, 16384 // scale, 4096

    def vector_add() -> First:
        a, b = normal(long), normal(long)
        size = f"{long:,} floats"
        return First("vector_add", size, (a, b), (empty(long),), (long,), "a + b", lambda: a + b, lambda: [a + b])

    def transpose() -> First:
        x, side = normal(8192 // scale, 8192), 8192 // scale
        return First(
            *("transpose", f"{side} × 8192 floats", (x,), (empty(8192, side),), (side, 8192)),
            *("x.t().contiguous()", lambda: x.t().contiguous(), lambda: [x.t()]),
        )

    def reduction(name: str) -> First:
        x = normal(2 * long)
        total = x.double().sum().float()[None]
        near = max(1.0, 0.01 * abs(total.item())) / abs(total.item())  # of a sum of as many numbers around 0
        size = f"{2 * long:,} floats"
        return First(name, size, (x,), (empty(1),), (2 * long,), "x.sum()", lambda: x.sum(), lambda: [total], near=near)

    def scan(name: str) -> First:
        x = torch.randint(-4, 5, (long,), generator=generator, device=device, dtype=torch.int32)
        return First(
            *(name, f"{long:,} ints", (x,), (empty(long, dtype=torch.int32),), (long,), "x.cumsum(0)"),
            *(lambda: x.cumsum(0, dtype=torch.int32), lambda: [x.cumsum(0, dtype=torch.int32)]),
            extra=(empty(-(-long // 128) + 1, dtype=torch.int64),),  # a state per block of 128 or more, and a counter
            near=0,
        )

    def histogram() -> First:
        x = torch.randint(0, 256, (4 * long,), generator=generator, device=device, dtype=torch.uint8)
        return First(
            *("histogram", f"{4 * long:,} bytes", (x,), (empty(256, dtype=torch.int32),), (4 * long,)),
            *("torch.bincount(x)", lambda: torch.bincount(x, minlength=256)),
            lambda: [torch.bincount(x, minlength=256).int()],
            near=0,
        )

    def softmax(name: str) -> First:
        x = normal(rows, columns)
        return First(
            *(name, f"{rows} × {columns} floats", (x,), (empty(rows, columns),), (rows, columns)),
            *("x.softmax(-1)", lambda: x.softmax(-1), lambda: [x.softmax(-1)]),
        )

    def layer_norm(name: str) -> First:
        x, gamma, beta = normal(rows, columns), normal(columns), normal(columns)
        norm = torch.nn.functional.layer_norm
        return First(
            *(name, f"{rows} × {columns} floats", (x, gamma, beta), (empty(rows, columns),), (rows, columns)),
            *("F.layer_norm", lambda: norm(x, (columns,), gamma, beta), lambda: [norm(x, (columns,), gamma, beta)]),
        )

    def rms_norm() -> First:
        x, gamma = normal(rows, 2 * columns, dtype=torch.half), normal(2 * columns, dtype=torch.half)
        norm, out = torch.nn.functional.rms_norm, empty(rows, 2 * columns, dtype=torch.half)
        return First(
            *("rms_norm", f"{rows} × {2 * columns} halves", (x, gamma), (out,), (rows, 2 * columns), "F.rms_norm"),
            *(lambda: norm(x, (2 * columns,), gamma, 1e-6), lambda: [norm(x, (2 * columns,), gamma, 1e-6)]),
            near=2e-3,
        )

    def gemv() -> First:
        a, x = normal(rows, 4 * columns, dtype=torch.half), normal(4 * columns, dtype=torch.half)
        return First(
            *("gemv", f"{rows} × {4 * columns} halves", (a, x), (empty(rows),), (rows, 4 * columns)),
            *("A @ x", lambda: a @ x, lambda: [(a.double() @ x.double()).float()]),
        )

    def top_k() -> First:
        x = normal(rows, columns)
        outputs = empty(rows, K), empty(rows, K, dtype=torch.int32)
        return First(
            *("top_k", f"{rows} × {columns} floats, k = {K}", (x,), outputs, (rows, columns, K), f"x.topk({K})"),
            *(lambda: x.topk(K), lambda: [x.topk(K).values, None]),
        )

    return [
        *(vector_add, transpose, partial(reduction, "reduce_shuffle"), partial(reduction, "reduce_bandwidth")),
        *(partial(scan, "scan_look_back"), partial(scan, "scan_tiles"), histogram),
        *(partial(softmax, "softmax"), partial(softmax, "softmax_registers")),
        *(partial(layer_norm, "layer_norm"), partial(layer_norm, "layer_norm_registers")),
        *(rms_norm, gemv, top_k),
    ]


def call(library: ctypes.CDLL, first: First) -> Callable[[], None]:
    """What launches it once on torch's current stream; UserError if CUDA refuses."""
    function = getattr(library, f"launch_{first.name}")
    tensors = [ctypes.c_void_p(each.data_ptr()) for each in (*first.inputs, *first.outputs, *first.extra)]
    arguments = [*tensors, *map(ctypes.c_int, first.sizes)]

    def launch() -> None:
        if status := function(*arguments, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)):
            raise UserError(f"{first.name}: CUDA error {status}")

    return launch


def wrong(first: First) -> str | None:
    """What is wrong with the outputs; None if nothing is."""
    for number, (mine, right) in enumerate(zip(first.outputs, first.expected())):
        if right is None:
            continue
        off = (mine.double() - right.double()).abs().max().item()
        if not off <= first.near * right.double().abs().max().item():
            return f"{first.name}: output {number} is off by {off:g}"
    return None


def measure(library: ctypes.CDLL, first: First) -> Row:
    """The row of a run. UserError if the result is wrong: then it is not timed."""
    launch = call(library, first)
    for each in first.outputs:
        each.fill_(-1)
    launch()
    torch.cuda.synchronize()
    if said := wrong(first):
        raise UserError(said)
    mine, theirs = timing.Contender(first.name, launch), timing.Contender(first.torch, first.library)
    for contender in (mine, theirs):
        contender.estimate = timing.estimate(contender.call)
    timing.interleave([mine, theirs], ROUNDS, ROUND_MS)
    return {
        "name": first.name,
        "size": first.size,
        "bytes": first.bytes,
        "ms": timing.summary(mine.samples),
        "clock": timing.clock(mine.rounds),
        "peer": {"name": first.torch, "ms": timing.summary(theirs.samples)},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m common.measure.first_kernels", description=about)
    return record(parser, lambda _: measure_all(), table, arguments)


def measure_all() -> Run:
    """A run of all of them."""
    library = gpu.load(SOURCE, {}, gpu.capability() or "8.0", "first kernels")
    run, makers = metadata("first_kernels"), all_of_them()
    with terminal.progress("first kernels", total=len(makers)) as update:
        for make in makers:
            run["rows"].append(measure(library, make()))
            update(advance=1)
    return run


def table(run: Run) -> Group:
    """A run, a row per kernel."""
    made = terminal.table()
    for column in ("kernel", "size", "µs", "TB/s", "torch", "µs", "× torch"):
        made.add_column(column, justify="right" if column in ("µs", "TB/s", "× torch") else "left")
    for row in run["rows"]:
        mine, theirs = row["ms"]["median"], row["peer"]["ms"]["median"]
        made.add_row(
            *(row["name"], row["size"], f"{mine * 1e3:.0f}", f"{row['bytes'] / mine / 1e9:.2f}"),
            *(row["peer"]["name"], f"{theirs * 1e3:.0f}", f"{theirs / mine:.2f}"),
        )
    return terminal.titled(f"{run['gpu']}, {run['date'][:10]}", made)


if __name__ == "__main__":
    sys.exit(main())
