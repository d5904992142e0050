"""Launches for tests: a launcher that notes what it is called with, in place of a GPU's (with the fixture cpu_as_gpu,
on CPU tensors), calls from several threads at once, and what a call takes, here and on a GPU."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from common import gpu
from common.calls import Plans
from common.measure import contest, timing
from common.stage import Kernel


class Notes(gpu.Launcher):
    """Appends the arguments of each launch, {name: number}, to `launches`, and does nothing else."""

    def __init__(self, kernel: Kernel, launches: list[dict]):
        self.parameters, self.launches = gpu.signature(kernel.source, kernel.stage.symbol), launches

    def function(self, packed: bytes) -> int:
        values = struct.unpack("".join(gpu.TYPES[kind] for kind in self.parameters.values()), packed)
        self.launches.append(dict(zip(self.parameters, values)))
        return 0


def anew(plans: Plans) -> Plans:
    """Those of the same function, none of which is kept yet."""
    return Plans(plans.prepare, plans.alignment)


def from_four_threads(call: Callable[[], Tensor]) -> list[Tensor]:
    """The results of 200 calls on the GPU, 50 from each of four threads, each with a stream of its own. Raises what a
    call raised."""

    def work() -> list[Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [call() for _ in range(50)]
            torch.cuda.current_stream().synchronize()
        return found

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(work) for _ in range(4)]
        return [each for one in waiting for each in one.result()]


def within(limit: float, call: Callable[[], object], calls: int = 20, rounds: int = 1000) -> bool:
    """Whether a call takes less than so many µs: in one round of some at least, since other programs run here, too."""

    def each() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls * 1e6

    return any(each() < limit for _ in range(rounds))


EMPTY = 2.5  # µs that torch.empty takes on a GPU's host of usual speed


def on_a_usual_host(call: Callable[[], Tensor]) -> float:
    """µs that a call on the GPU costs the host, the least of eight measurements: what else the machine does only adds.
    A host on which torch.empty takes longer than usual is slower by as much."""
    out = call()
    out = out[0] if isinstance(out, tuple) else out
    empty = lambda: torch.empty(out.shape, dtype=out.dtype, device=out.device)  # noqa: E731
    spent = [contest.host_costs([call, empty], timing.estimate(call)) for _ in range(8)]
    return min(whole * EMPTY / max(EMPTY, allocation) for whole, allocation in spent)
