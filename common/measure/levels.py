"""The memory levels of the GPU at hand: bytes per clock (bandwidth.cu and, where it has TMA, hopper.cu), and clocks of
latency (latency.cu).

`python -m common.measure.ceiling` measures them beside the arithmetic units. Rates and latencies are taken inside the
kernels, by the clock of each SM, so that the frequency of that clock cancels out.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common import gpu
from common.measure import nvml, timing
from common.results.runs import Row
from cudaemu.errors import UserError
from cudaemu.units import WGMMA

RATES = Path(__file__).with_name("bandwidth.cu")
LATENCIES = Path(__file__).with_name("latency.cu")
HOPPER = Path(__file__).with_name("hopper.cu")
HOPPER_ARCH = WGMMA.least
DEVICE = "cuda"
RUNS = 9  # of each kernel, after one that warms up

# What bandwidth.cu, latency.cu and hopper.cu have as constants.
THREADS = 1024
STAMP = 5  # 64-bit words: SM, clock before and after, nanoseconds before and after
WORD = 16  # bytes of what a lane reads at once
SHARED_STEP = 64 * 32 * WORD  # bytes that a block reads or writes per step, of shared memory
CHUNK = 8 * THREADS * WORD  # likewise, of L2 and device memory
L1_HALF = 32 << 10  # likewise, of L1
TMA_CHUNK = 16 << 10  # that a block receives per step, by TMA
LINKS = 128  # the number of links in a chain is a multiple of this

PAGE = 2 << 20  # bytes whose addresses are translated together
FILLER = 256 << 20  # bytes that push everything out of any GPU's L2
LARGEST = 4 << 30  # bytes of the region for device memory, where there is room
SMALLEST = 64 << 20  # bytes that all the kernels fit into

Launch = Callable[..., int]  # a launcher of these sources; its status


@dataclass(frozen=True)
class Run:
    """One run of a kernel that leaves stamps: what each block's SM counted, and how long all of them took."""

    stamps: Tensor  # [blocks, STAMP]

    @property
    def clocks(self) -> float:
        """Clocks of a block: the median."""
        median: float = statistics.median((self.stamps[:, 2] - self.stamps[:, 1]).tolist())
        return median

    @property
    def seconds(self) -> float:
        """From the first block's beginning to the last one's end."""
        return (int(self.stamps[:, 4].max()) - int(self.stamps[:, 3].min())) * 1e-9

    @property
    def mhz(self) -> float:
        """The SMs' clock meanwhile: the median."""
        ns = self.stamps[:, 4] - self.stamps[:, 3]
        median: float = statistics.median(((self.stamps[:, 2] - self.stamps[:, 1]) / ns * 1e3).tolist())
        return median

    def check(self) -> None:
        """UserError unless each block had an SM of its own: rates per SM would be wrong."""
        if len(set(self.stamps[:, 0].tolist())) != len(self.stamps):
            raise UserError("two blocks shared an SM, so rates per SM are not known: is the GPU in use?")


def spread(values: list[float]) -> dict[str, float]:
    """{"median", "min", "max", "n"}, as clocks and powers have it."""
    return {
        "median": round(statistics.median(values), 1),
        "min": round(min(values), 1),
        "max": round(max(values), 1),
        "n": len(values),
    }


def call(function: Launch, *arguments: Tensor | int | None) -> None:
    """A launcher of these sources or of ceiling.cu, on torch's current stream; UserError if it fails."""
    values: list[object] = []
    for argument in arguments:
        if argument is None or isinstance(argument, Tensor):
            values.append(ctypes.c_void_p(None if argument is None else argument.data_ptr()))
        else:
            values.append(ctypes.c_longlong(argument))  # an int parameter reads the lower half of its 8-byte slot
    status = function(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if status:
        raise UserError(f"measuring what the GPU can do: CUDA error {status}")


def has_tma() -> bool:
    """Whether the current GPU runs hopper.cu."""
    here = gpu.capability()
    return here is not None and HOPPER_ARCH.runs_on(here)


def sources() -> list[Path]:
    """What the current GPU runs of them."""
    return [RATES, LATENCIES, *([HOPPER] if has_tma() else [])]


def load(source: Path) -> ctypes.CDLL:
    """One of them, built for the current GPU."""
    arch = HOPPER_ARCH if source == HOPPER else gpu.capability() or "8.0"
    return gpu.load(source, {}, arch, source.stem)


def power_of_two(limit: float) -> int:
    """The largest power of two up to this."""
    return 1 << int(limit).bit_length() - 1


class Levels:
    """What is measured, on the current GPU; `rows` measures it all in about two seconds.

    UserError if too little of its memory is free."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.sms = properties.multi_processor_count
        self.in_l2 = power_of_two(properties.L2_cache_size / 3)  # with room to spare, and far more than L1
        free, _ = torch.cuda.mem_get_info()
        self.large = power_of_two(min(LARGEST, free / 3))
        if self.large < max(4 * properties.L2_cache_size, SMALLEST):
            raise UserError(f"{free >> 20} MB are free on the GPU, too little to measure its memory: free some")
        self.memory = torch.empty(self.large // 4, dtype=torch.int32, device=DEVICE).random_()
        self.sink = torch.empty(self.sms * THREADS, dtype=torch.int32, device=DEVICE)
        self.stamps = torch.empty(self.sms, STAMP, dtype=torch.int64, device=DEVICE)
        self.device = nvml.current()

    @cached_property
    def rates(self) -> ctypes.CDLL:
        return load(RATES)

    @cached_property
    def latencies(self) -> ctypes.CDLL:
        return load(LATENCIES)

    def runs(self, blocks: int, launcher: Launch, *arguments: Tensor | int) -> Iterator[Run]:
        """RUNS runs of a kernel with this many blocks, each with an SM of its own; a run before that warms up."""
        for number in range(RUNS + 1):
            call(launcher, *arguments)
            torch.cuda.synchronize()
            run = Run(self.stamps[:blocks].cpu())
            run.check()
            if number:
                yield run

    # ---- rates -------------------------------------------------------------------------------------------------------

    def per_clock(self, key: str, name: str, amount: float, runs: Iterable[Run], unit: str = "byte/clock/SM") -> Row:
        """A row: `amount` per block and run, in `unit`."""
        runs = list(runs)
        values = timing.summary([amount / run.clocks for run in runs])
        return {
            "key": key,
            "name": name,
            "value": values["median"],
            "unit": unit,
            "samples": values,
            "sm_mhz": spread([run.mhz for run in runs]),
        }

    def per_second(self, key: str, name: str, per_block: float, runs: Iterable[Run]) -> Row:
        """A row: `per_block` bytes per block and run, in TB/s of all SMs and in bytes per clock of one."""
        runs = list(runs)
        values = timing.summary([per_block * len(run.stamps) / run.seconds / 1e12 for run in runs])
        row = self.per_clock(key, name, per_block, runs)
        per_clock = {"value": row["value"], "unit": row["unit"]}
        return row | {"value": values["median"], "unit": "TB/s", "samples": values, "per_clock": per_clock}

    def shared(self) -> Iterator[Row]:
        steps, all_sms = 8192, (self.sink, self.stamps, self.sms)
        for key, name, launcher, *how in (
            ("shared load", "ld.shared.v4, no conflicts", self.rates.launch_shared, 0),
            ("shared store", "st.shared.v4, no conflicts", self.rates.launch_shared_store),
            ("ldmatrix", "ldmatrix.x4, no conflicts", self.rates.launch_shared, 1),
        ):
            runs = self.runs(self.sms, launcher, *how, *all_sms, steps)
            yield self.per_clock(key, f"shared memory: {name}", SHARED_STEP * steps, runs)

    def copies(self) -> Iterator[Row]:
        """ldmatrix in half of the warps beside cp.async in the other half; cp.async alone: on one SM."""
        copied = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        for key, name, steps, loads in (
            ("ldmatrix + cp.async", "ldmatrix.x4 beside cp.async from L2 (read + written)", 16384, 1),
            ("cp.async", "cp.async from L2, alone on the GPU (written)", 8192, 0),
        ):
            arguments = (self.sink, self.stamps, self.memory, self.in_l2 // WORD, steps, loads, copied)
            values, clocks, parts = [], [], []
            for run in self.runs(1, self.rates.launch_both, *arguments):
                written, read = int(copied) * 32 * WORD, loads * steps * SHARED_STEP // 2
                parts.append((read / run.clocks, written / run.clocks))
                values.append(sum(parts[-1]))
                clocks.append(run.mhz)
            summary = timing.summary(values)
            yield {
                "key": key,
                "name": f"shared memory: {name}",
                "value": summary["median"],
                "unit": "byte/clock/SM",
                "samples": summary,
                "parts": {part: statistics.median(each) for part, each in zip(("ldmatrix", "cp.async"), zip(*parts))},
                "sm_mhz": spread(clocks),
            }

    def caches(self) -> Iterator[Row]:
        steps = 4096
        requests = L1_HALF / 128
        for key, name, wide, broadcast, amount, unit in (
            ("L1", "L1: loads of 16 bytes per lane that hit", 1, 0, L1_HALF, "byte/clock/SM"),
            ("L1 requests", "L1: loads of 4 bytes per lane that hit", 0, 0, requests, "request/clock/SM"),
            ("L1 broadcasts", "L1: loads of 4 bytes, one for all lanes, that hit", 0, 1, requests, "request/clock/SM"),
        ):
            own = (wide, broadcast, self.sink, self.stamps, self.memory, self.sms, steps)
            yield self.per_clock(key, name, amount * steps, self.runs(self.sms, self.rates.launch_l1, *own), unit)
        chunks = self.in_l2 // CHUNK
        mb = self.in_l2 >> 20
        for key, name, blocks, steps in (
            ("L2", f"L2 → all SMs: {mb} MB read again and again", self.sms, 400),
            ("L2, one SM", f"L2 → one SM, alone on the GPU: {mb} MB read again and again", 1, 512),
        ):
            warm = 4 * -(-chunks // blocks)
            shared = (self.sink, self.stamps, self.memory, self.in_l2 // WORD, blocks, steps, warm)
            yield self.per_second(key, name, CHUNK * steps, self.runs(blocks, self.rates.launch_sweep, *shared))

    def tma(self) -> Iterator[Row]:
        """What TMA brings to the SMs from L2: each chunk to one SM, or to eight, with and without multicast."""
        if not has_tma():
            return
        chunks, steps, launcher = self.in_l2 // TMA_CHUNK, 4096, load(HOPPER).launch_tma
        for name, cluster, alike in (
            ("", 1, 1),
            (", each chunk to 2 SMs", 1, 2),
            (", each chunk to 2 SMs by multicast", 2, 1),
            (", each chunk to 8 SMs", 1, 8),
            (", each chunk to 8 SMs, by multicast to 2", 2, 4),
        ):
            blocks = self.sms // (cluster * alike) * cluster * alike
            shared = (self.sink, self.stamps, self.memory, chunks, alike, blocks, steps)
            runs = self.runs(blocks, launcher, cluster, *shared)
            yield self.per_second(f"L2, TMA{name}", f"L2 → all SMs by TMA{name}", TMA_CHUNK * steps, runs)

    def dram(self) -> Iterator[Row]:
        steps = self.large // CHUNK // self.sms
        read = (self.sink, self.stamps, self.memory, self.large // WORD, self.sms, steps, 0)
        name = f"device memory: {self.large >> 20:,} MB read once"
        yield self.per_second("DRAM read", name, CHUNK * steps, self.runs(self.sms, self.rates.launch_sweep, *read))
        steps = self.large // 2 // CHUNK // self.sms
        copy = (self.stamps, self.memory, self.large // 2 // WORD, self.sms, steps)
        name = f"device memory: {self.large >> 21:,} MB copied (read + written)"
        yield self.per_second("DRAM copy", name, 2 * CHUNK * steps, self.runs(self.sms, self.rates.launch_copy, *copy))

    # ---- latencies ---------------------------------------------------------------------------------------------------

    def latency(self, key: str, name: str, measure: Callable[[], float]) -> Row:
        """A row in clocks, of RUNS values of `measure`."""
        values, clocks = [], []
        for _ in range(RUNS + 1):
            values.append(measure())
            clocks.append(self.device.sm_clock())
        summary = timing.summary(values[1:])
        row = {"key": key, "name": name, "value": summary["median"], "unit": "clocks", "samples": summary}
        known = [clock for clock in clocks[1:] if clock]
        return row | ({"sm_mhz": spread(known)} if known else {})

    def chains(self) -> Iterator[Row]:
        """Chains in one warp or, the barrier, in one block of eight."""
        links, clocks = 64 * LINKS, torch.empty(1, dtype=torch.int64, device=DEVICE)
        last, code = clocks.clone(), self.latencies
        for key, name, launcher, *result in (
            ("latency FMA", "an FMA that needs the one before it", code.launch_fma, self.sink),
            ("latency shuffle", "a shuffle that needs the one before it", code.launch_shuffle, self.sink),
            ("latency mma.sync", "mma.sync m16n8k16 on the same accumulators", code.launch_mma, self.sink),
            ("latency barrier", "__syncthreads of 8 warps", code.launch_barrier),
            ("latency shared", "shared memory: 32 KB", code.launch_shared, last),
        ):
            arguments = (links, clocks, *result)

            def measure(launcher: Launch = launcher, arguments: tuple[Any, ...] = arguments) -> float:
                call(launcher, *arguments)
                return int(clocks) / links

            yield self.latency(key, name, measure)

    def chases(self) -> Iterator[Row]:
        """One thread that reads lines which point to one another, or each to itself."""
        last = torch.empty(1, dtype=torch.int64, device=DEVICE)
        clocks = torch.empty(1024, dtype=torch.int64, device=DEVICE)
        filler = torch.empty(FILLER, dtype=torch.int8, device=DEVICE)

        def chase(through_l1: int, stride: int, lines: int, page: int, warm: int, links: int, cold: bool) -> float:
            push = (filler, FILLER) if cold else (None, 0)
            arguments = (through_l1, self.memory, stride, lines, page, warm, links, *push, clocks, last)
            call(self.latencies.launch_chase, *arguments)
            return int(clocks[0]) / links

        yield self.latency("latency L1", "L1: 16 KB", lambda: chase(1, 128, 128, 0, 128, 8 * LINKS, False))
        found: list[list[float]] = []

        def slices() -> float:
            stride = self.in_l2 // len(clocks) + 128
            call(self.latencies.launch_slices, self.memory, stride, len(clocks), LINKS, clocks, last)
            found.append(sorted((clocks / LINKS).tolist()))
            return statistics.median(found[-1])

        middle = self.latency("latency L2", f"L2: {len(clocks):,} lines, each read alone; the median", slices)
        ends = {"nearest": [each[0] for each in found[1:]], "farthest": [each[-1] for each in found[1:]]}
        for end, values in ends.items():
            summary = timing.summary(values)
            yield middle | {
                "key": f"latency L2 {end}",
                "name": f"L2: the {end} of these lines",
                "value": summary["median"],
                "samples": summary,
            }
        yield middle
        near = (0, 4096 + 128, 8192, PAGE, 0, 32 * LINKS, True)
        yield self.latency("latency DRAM", "device memory: lines of 32 MB, addresses translated", lambda: chase(*near))
        lines = power_of_two(self.large // (PAGE + 128))
        far = (0, PAGE + 128, lines, 0, 0, min(lines, 8 * LINKS), True)
        name = f"device memory: lines of {lines:,} pages of 2 MB, a new one at each step"
        if lines >= LINKS:
            yield self.latency("latency DRAM page", name, lambda: chase(*far))

    def launches(self) -> Iterator[Row]:
        count = 1000
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        values = []
        for _ in range(RUNS + 1):
            begin.record()
            call(self.latencies.launch_empty, count)
            end.record()
            torch.cuda.synchronize()
            values.append(begin.elapsed_time(end) / count * 1e3)
        summary = timing.summary(values[1:])
        name = "an empty kernel, launched again and again"
        yield {"key": "launch", "name": name, "value": summary["median"], "unit": "µs", "samples": summary}

    def rows(self) -> Iterator[Row]:
        """Everything, a row of a ceiling run at a time."""
        parts = (self.shared, self.copies, self.caches, self.tma, self.dram, self.chains, self.chases, self.launches)
        for part in parts:
            yield from part()


COUNT = 29  # rows at most, for a progress bar
