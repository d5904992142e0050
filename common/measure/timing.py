"""Times of GPU calls: sampled with a cold L2, the contenders of a run interleaved, reported as median and spread.

The SM clock of each sample is counted around that very launch (stamps.py)."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Round(NamedTuple):
    """What was measured of one contender in one round."""

    ms: list[float]  # of single runs
    clocks: int = 0  # of all SMs, between the stamps around each run
    ns: int = 0  # the same in nanoseconds


Call = Callable[[], object]
Sampler = Callable[[Call, float, float], Round]

WARMUP_MS = 25.0  # before the samples of a round, per contender
ROUND_MS = 60.0  # of samples per round and contender; triton.testing.do_bench has 25 and 100 by default
CLEAR_BYTES = 512 << 20  # far more than any L2; so long to read that most calls are launched when their turn comes
CLEAR_MS = 0.15  # what that takes, roughly
MOST_CLEARS = 10  # before a run whose launch takes the host longer
ROUNDS = 5
PARTS = 10  # of the timed half of a sustained run: its median and spread are of their means
SLOW_MS = 700.0  # a contender slower than its share of this in all rounds together gets fewer rounds


@dataclass(eq=False)
class Contender:
    """Something that is timed against others: a call that launches one run of it on torch's current stream."""

    label: str
    call: Call
    estimate: float = 0.0  # ms per run, roughly
    rounds: list[Round] = field(default_factory=list)

    @property
    def samples(self) -> list[float]:
        """Times of single runs, in ms."""
        return [ms for each in self.rounds for ms in each.ms]

    @property
    def row(self) -> dict[str, Any]:
        """What a recorded run says of it: its name, times and clock."""
        return {"name": self.label, "ms": summary(self.samples), "clock": clock(self.rounds)}


def summary(samples: Sequence[float]) -> dict[str, float]:
    """{"median", "p20", "p80", "n"} of times in ms; percentiles are interpolated between samples."""
    if len(samples) == 1:
        return {"median": samples[0], "p20": samples[0], "p80": samples[0], "n": 1}
    fifths = statistics.quantiles(samples, n=5, method="inclusive")
    return {"median": statistics.median(samples), "p20": fifths[0], "p80": fifths[3], "n": len(samples)}


def clock(rounds: Sequence[Round]) -> dict[str, float]:
    """{"ghz", "min", "max"}: the SM clock of all these rounds together, and that of the slowest and the fastest round.

    {} where nothing was stamped."""
    each = [one.clocks / one.ns for one in rounds if one.ns]
    if not each:
        return {}
    mean = sum(one.clocks for one in rounds) / sum(one.ns for one in rounds)
    return {"ghz": round(mean, 4), "min": round(min(each), 4), "max": round(max(each), 4)}


def rounds_for(estimate: float, rounds: int) -> int:
    """In how many of the rounds a contender of `estimate` ms per run takes part: all, unless it is slow."""
    return max(1, min(rounds, int(SLOW_MS / max(estimate, 1e-6))))


def interleave(
    contenders: Sequence[Contender],
    rounds: int = ROUNDS,
    round_ms: float = ROUND_MS,
    sampler: Sampler | None = None,
    before: Callable[[Contender], object] = lambda _: None,
) -> None:
    """Add rounds to every contender, in turns: whatever drifts (clock, temperature) meets all of them.

    Each round has an order of its own (drawn from a fixed seed): what a contender can reach depends on how warm the one
    before it left the GPU, and no contender should always follow the same one. `before(contender)` is called ahead of
    each turn.
    """
    sampler = sampler or sample
    order = random.Random(0)
    for turn in range(rounds):
        for contender in order.sample(contenders, len(contenders)):
            if turn < rounds_for(contender.estimate, rounds):
                before(contender)
                contender.rounds.append(sampler(contender.call, contender.estimate, round_ms))


def sample(call: Call, estimate: float, round_ms: float) -> Round:
    """Single runs, each with the L2 cache cleared before and stamps around it; about `round_ms` of them, one at
    least."""
    from common.measure.stamps import Stamps

    per_run = estimate + CLEAR_MS
    slow = estimate > round_ms / 4
    runs = max(1, int(round_ms / per_run))
    stamps = Stamps(runs)
    ms = timed_runs(call, 0 if slow else max(1, int(WARMUP_MS / per_run)), runs, stamps.mark)
    return Round(ms, *stamps.counted())


@lru_cache
def _filler(device: int) -> Tensor:
    import torch

    return torch.zeros(CLEAR_BYTES // 4, device=device)


def timed_runs(call: Call, warmup: int, runs: int, mark: Callable[[], object] = lambda: None) -> list[float]:
    """Times of `runs` single runs between CUDA events, in ms, the L2 cleared before each; `warmup` runs go before.

    `mark` is called before the first and after the second event of each run: what it launches is not timed.

    It is cleared by reading something else. Writing, as triton.testing.do_bench does, leaves it full of lines that are
    written back while the call runs, which slows a call that reads device memory at full speed.

    Where the GPU gets to a run before the host has launched all of it, more is read before the later runs."""
    import torch

    filler = _filler(torch.cuda.current_device())
    clears = 1
    for _ in range(warmup):
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    for start, end in events:
        for _ in range(clears):
            filler.sum()
        mark()
        start.record()
        call()
        end.record()
        clears += start.query() and clears < MOST_CLEARS
        mark()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def estimate(call: Call) -> float:
    """Roughly, ms per run: the second of two runs. The first may build or choose a kernel, as a library's does."""
    return timed_runs(call, 1, 1)[0]


def sustain(call: Call, ms_per_run: float, seconds: float) -> dict[str, Any]:
    """Runs that follow each other without a pause for about `seconds`: {"seconds", "ms": summary, "clock": clock} and
    what NVML says of that time.

    The first half brings clock and power to where they stay; the second is timed, in PARTS parts: a sample is the mean
    of one. L2 is not cleared: it holds what the run before left there. Runs shorter than their launch leave pauses."""
    import torch

    from common.measure import nvml
    from common.measure.stamps import Stamps

    half = max(1, int(seconds * 1e3 / ms_per_run / 2))
    parts = min(PARTS, half)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(parts + 1)]
    stamps = Stamps(1)
    with nvml.Monitor(nvml.current()) as monitor:
        for _ in range(half):
            call()
        stamps.mark()
        events[0].record()
        for event in events[1:]:
            for _ in range(half // parts):
                call()
            event.record()
        stamps.mark()
        torch.cuda.synchronize()
    monitor.samples = monitor.samples[len(monitor.samples) // 2 :]  # the half that was timed
    ms = [start.elapsed_time(end) / (half // parts) for start, end in zip(events, events[1:])]
    return {
        "seconds": seconds,
        "ms": summary(ms),
        "clock": clock([Round(ms, *stamps.counted())]),
        **monitor.summary(),
    }
