"""The SM clock of a timed launch: small kernels right before and after it read %clock64 and %globaltimer on every SM.

They run in the launch's own stream, outside the two events that time it, so that their time is in no result; a test on
the GPU checks that they do not change it either (tests/measure/test_stamps.py). Between two stamps are the launch and a
few microseconds without work. The timer moves in steps (`resolution`, 32 ns on an H200): clocks and nanoseconds are
summed over all launches before they are divided.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from common import gpu
from cudaemu.errors import UserError

SOURCE = Path(__file__).with_name("stamp.cu")
SLOTS = 512  # of a stamp, one per number that an SM can have: numbers may have gaps
TICKS = 4096  # readings of the timer, from which `resolution` takes the smallest step


class Counted(NamedTuple):
    """What passed between two stamps, summed over launches and SMs."""

    clocks: int
    ns: int


def load() -> ctypes.CDLL:
    """stamp.cu, built for the current GPU."""
    return gpu.load(SOURCE, {}, gpu.capability() or "8.0", "stamps")


_library = lru_cache(lambda capability: load())


def _launcher(name: str) -> Callable[..., None]:
    """A launcher of stamp.cu, for torch's current stream. It raises UserError if CUDA refuses the launch."""
    function = getattr(_library(gpu.capability()), name)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def launch(*arguments: object) -> None:
        if status := function(*arguments, stream):
            raise UserError(f"measuring the SM clock: CUDA error {status}")

    return launch


class Stamps:
    """Room for two stamps around each of `launches` launches; `mark` before and after each, `counted` at the end."""

    def __init__(self, launches: int):
        self.readings = torch.zeros(2 * launches, SLOTS, 2, dtype=torch.int64, device="cuda")
        self._launch = _launcher("launch_stamp")
        self._next = self.readings.data_ptr()
        self._step = self.readings.stride(0) * self.readings.element_size()
        self._sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count

    def mark(self) -> None:
        """Launch the next stamp on the stream that was torch's current one at first."""
        self._launch(ctypes.c_void_p(self._next), ctypes.c_int(SLOTS), ctypes.c_int(self._sms))
        self._next += self._step

    def counted(self) -> Counted:
        """Waits for the GPU. UserError if the stamps cannot be of a clock."""
        return counted(self.readings)


def counted(readings: Tensor) -> Counted:
    """Clocks and nanoseconds between the stamps of each pair, over all SMs that have both.

    `readings`: int64 [2 · launches, SLOTS, 2], (clocks, ns) of each SM; 0 where an SM wrote nothing."""
    pairs = readings.view(-1, 2, *readings.shape[1:])
    there = (pairs[..., 1] > 0).all(dim=1)  # [launches, SLOTS]
    passed = (pairs[:, 1] - pairs[:, 0])[there].sum(dim=0)
    clocks, ns = (int(each) for each in passed.tolist())
    if ns <= 0 or not 0.05 < clocks / ns < 5:
        raise UserError(
            f"stamps around {len(pairs)} launches must give a plausible SM clock, got {clocks} clocks in {ns} ns"
        )
    return Counted(clocks, ns)


def resolution() -> int:
    """The smallest step in which the GPU's timer (%globaltimer) moves, in ns."""
    times = torch.zeros(TICKS, dtype=torch.int64, device="cuda")
    _launcher("launch_ticks")(ctypes.c_void_p(times.data_ptr()), ctypes.c_int(TICKS))
    steps = times.diff()
    return int(steps[steps > 0].min())


def empty() -> Callable[[], None]:
    """A call that launches a kernel which does nothing."""
    return _launcher("launch_empty")
