"""Kernels and libraries timed against each other on the GPU: checked first, then in turns within one run.

All contenders of a case are timed interleaved (timing.py), so that their ratios mean something: `together`, those of
all cases of one size are. Nothing is timed before its result has been checked on the very tensors that are then timed.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from common import accuracy, gpu, terminal
from common.measure import ceiling, nvml, stamps, timing
from common.measure.metadata import metadata
from common.problem import Shape
from common.results.runs import Row, Run
from common.stage import Kernel, Stage
from cudaemu.errors import UserError

DEVICE = "cuda"
HOST_CALLS = 200  # per sample of the host's time for a call
WARM_UP_S = 0.1  # of calls before the first sample
SHORT_MS = (
    0.5  # the host's time is that of kernels shorter than this: a sample has many calls, and the queue holds them
)


@dataclass(frozen=True)
class Entry:
    """A kernel that takes part in a run, and as what: "stage" (asked for), "previous" or "first"."""

    kernel: Kernel
    role: str
    previous: Stage | None = None  # the stages that its row is compared with
    first: Stage | None = None


@dataclass(frozen=True)
class Heat:
    """Kernels that compute the same (part, dtype, settings), and the shapes at which they are timed."""

    entries: Sequence[Entry]
    shapes: Sequence[tuple[int, ...]]


def measure(
    heats: Sequence[Heat],
    *,
    rounds: int = timing.ROUNDS,
    round_ms: float = timing.ROUND_MS,
    seed: int = 0,
    together: bool = False,
    sustained: float = 0.0,
) -> Run:
    """Check and time kernels and their peers on the GPU. A run as results/runs.py has it.

    `together`: heats that have a shape in common are timed in the same rounds, so that their rows may be compared.
    `sustained`: after the rounds of a size, each contender runs for so many seconds without a pause, one after the
    other (timing.sustain): turns would have each run at the clock and power of the one before.
    CheckFailed, before anything of that size is timed, if a kernel is wrong; UserError if one cannot be built."""
    kernels = [entry.kernel for heat in heats for entry in heat.entries]
    build(kernels)
    made = metadata("bench") | {"limits": ceiling.limits([kernel.ceiling for kernel in kernels]), "notes": []}
    made |= {"together": together, "power_limit_w": nvml.current().power_limit(), **launches()}
    turns = rounds + 1 + bool(sustained)
    total = sum(len(heat.shapes) * (len(heat.entries) + 1) * turns for heat in heats)
    with terminal.progress("measuring", total=total) as update:
        for group, shape in _turns(heats, together):
            cases = [_prepare(heat.entries, shape, seed, made["notes"], update) for heat in group]
            ready = [each for case in cases for each in case]
            made["rows"] += _time(ready, rounds, round_ms, sustained, made["notes"], update)
    return made


def _turns(heats: Sequence[Heat], together: bool) -> list[tuple[list[Heat], tuple[int, ...]]]:
    """What is timed in the same rounds, one after the other: heats, and the shape."""
    if not together:
        return [([heat], shape) for heat in heats for shape in heat.shapes]
    shapes = dict.fromkeys(shape for heat in heats for shape in heat.shapes)
    return [([heat for heat in heats if shape in heat.shapes], shape) for shape in shapes]


def launches() -> dict[str, Any]:
    """What a run says about launches themselves: {"empty": ms of an empty kernel between the two events, as a row's
    "ms"; "timer_ns": the step of the timer that clocks are counted against}."""
    call = stamps.empty()
    single = timing.sample(call, timing.estimate(call), timing.ROUND_MS)
    return {"empty": timing.summary(single.ms), "timer_ns": stamps.resolution()}


def build(kernels: Sequence[Kernel]) -> None:
    """Build all kernels and what measures them, side by side: nvcc is what takes time."""
    jobs: dict[str, Callable[[], object]] = {kernel.label: kernel.load for kernel in kernels}
    jobs["stamps"] = stamps.load
    jobs |= {each.label: each.load for each in ceiling.needed([kernel.ceiling for kernel in kernels])}
    with terminal.progress("building", total=len(jobs)) as update, ThreadPoolExecutor(os.cpu_count()) as pool:

        def one(label: str) -> None:
            jobs[label]()
            update(f"built {label}", advance=1)

        list(pool.map(one, jobs))


def _prepare(
    entries: Sequence[Entry],
    shape: tuple[int, ...],
    seed: int,
    notes: list[str],
    update: Callable[..., None],
) -> list[tuple[Row, timing.Contender]]:
    """The rows of one heat at one shape, checked and ready to be timed: of the last entry's problem, which also names
    the size in all rows."""
    asked = entries[-1].kernel
    spec = asked.stage.spec
    size = spec.format(shape)
    # one for kernels of one problem and shape: references are large
    instances: dict[tuple[str, Shape], accuracy.Instance] = {}
    made: list[tuple[Row, timing.Contender]] = []
    for entry in entries:
        kernel = entry.kernel
        try:
            own = kernel.stage.spec.like(spec, shape)
            kernel.check_shape(*own)
        except UserError as error:
            notes.append(f"{kernel.dtype} {size}: without {kernel.label}: {error}")
            continue
        update(f"checking {kernel.label} {size}", advance=1)
        with gpu.errors(kernel.label):
            key = (kernel.stage.problem, own)
            if key not in instances:
                instances[key] = accuracy.make(kernel, own, DEVICE, seed)
            instance = instances[key]
            outputs = instance.outputs()
            call = kernel.bind(instance.inputs, outputs)
            call()
            torch.cuda.synchronize()
            accuracies = accuracy.verify(kernel, instance, outputs)
            contender = timing.Contender(kernel.label, call, timing.estimate(call))
            row = _kernel_row(entry, own, size, accuracies)
            if entry.role == "stage" and contender.estimate < SHORT_MS:
                row["host_us"] = host_time(kernel, instance.inputs)
            made.append((row, contender))
    if not made:
        return []
    if (asked.stage.problem, shape) in instances:
        inputs = instances[asked.stage.problem, shape].inputs
    else:  # it cannot take this shape, but its library can
        inputs = spec.inputs(shape, asked.dtype, asked.variants, seed=seed, device=DEVICE)
    instances.clear()
    for name, function in spec.peers(asked.dtype, asked.variants).items():
        library = partial(function, *inputs)
        try:
            contender = timing.Contender(name, library, timing.estimate(library))
        except RuntimeError as error:
            notes.append(f"{asked.dtype} {size}: without {name}: {str(error).splitlines()[0]}")
            continue
        made.append(({"role": "peer", "name": name, "label": name, **_case(asked, shape, size)}, contender))
    return made


def _time(
    made: Sequence[tuple[Row, timing.Contender]],
    rounds: int,
    round_ms: float,
    sustained: float,
    notes: list[str],
    update: Callable[..., None],
) -> list[Row]:
    """The rows, with the times of their contenders."""
    rows = [row for row, _ in made]
    contenders = [contender for _, contender in made]
    sizes = {contender: row["size"] for row, contender in made}
    with nvml.Monitor(nvml.current()) as monitor:

        def turn(contender: timing.Contender) -> None:
            monitor.tag = contender
            update(f"timing {contender.label} {sizes[contender]}", advance=1)

        timing.interleave(contenders, rounds, round_ms, before=turn)
    for row, contender in made:
        flops = row.pop("flops")
        row |= _rates(flops, timing.summary(contender.samples), timing.clock(contender.rounds))
        row |= monitor.summary(contender)
        if sustained:
            update(f"{contender.label} {row['size']}, {sustained:g} s without a pause", advance=1)
            held = timing.sustain(contender.call, row["ms"]["median"], sustained)
            row["sustained"] = held | _rates(flops, held["ms"], held["clock"])
        if timing.rounds_for(contender.estimate, rounds) < rounds:
            notes.append(
                f"{row['dtype']} {row['size']}: {contender.label} takes {contender.estimate:.0f} ms per run and was "
                f"timed {len(contender.samples)} times only"
            )
    return rows


def _rates(flops: int, ms: Mapping[str, float], clock: dict[str, float]) -> Row:
    """A row's times, with what follows from them: its rate and, if the SM clock was counted, the clocks of a run."""
    rates = {"ms": ms, "tflops": flops / ms["median"] / 1e9}
    return rates | ({"clock": clock | {"clocks": round(ms["median"] * clock["ghz"] * 1e6)}} if clock else {})


def _case(kernel: Kernel, shape: tuple[int, ...], size: str) -> Row:
    spec = kernel.stage.spec
    return {
        "part": spec.part,
        "problem": spec.name,
        "dtype": kernel.dtype,
        "settings": kernel.settings,
        "shape": dict(zip(spec.axes, shape)),
        "size": size,
        "flops": spec.flops(shape, kernel.variants),
    }


def _kernel_row(entry: Entry, shape: tuple[int, ...], size: str, accuracies: Sequence[accuracy.Accuracy]) -> Row:
    """A kernel's row before it is timed; `flops` is replaced by `tflops` afterwards."""
    kernel, stage = entry.kernel, entry.kernel.stage
    return {
        "role": entry.role,
        "name": stage.name,
        "label": kernel.label,
        "ladder": stage.ladder,
        "previous": entry.previous and entry.previous.name,
        "first": entry.first and entry.first.name,
        "variants": dict(kernel.variants),
        "defaults": dict(kernel.defaults),
        "default": kernel.default,
        "source": kernel.origin,
        "limit": kernel.ceiling,
        **_case(kernel, shape, size),
        "check": {"error": max(a.error for a in accuracies), "limit": min(a.limit for a in accuracies)},
    }


def host_time(kernel: Kernel, inputs: Sequence[torch.Tensor]) -> dict[str, float]:
    """{"call", "empty"}: µs that the host spends on one call of the stage, and on `torch.empty` of its output."""
    stage, changed = kernel.stage, kernel.changed
    output = stage(*inputs, **changed) if kernel.source == stage.source else None
    if output is None:
        return {}
    first = output[0] if isinstance(output, tuple) else output
    shape, dtype, device = tuple(first.shape), first.dtype, first.device
    run = partial(stage, *inputs, **changed)
    empty = partial(torch.empty, shape, dtype=dtype, device=device)
    call, allocation = host_costs([run, empty], timing.estimate(run))
    return {"call": call, "empty": allocation}


def host_costs(calls: Sequence[Callable[[], object]], estimate: float) -> list[float]:
    """µs that the host spends on each of several calls that take the GPU `estimate` ms at most.

    Medians over samples of HOST_CALLS calls each, the GPU idle before and never waited for. The samples are taken in
    turns: a virtual machine's processor may run at half its speed for a second. WARM_UP_S of them go before, for its
    clock and caches."""
    count = max(1, min(HOST_CALLS, int(20 / max(estimate, 0.1))))  # the queue of launches holds some hundreds

    def sample(call: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        spent = time.perf_counter() - start
        torch.cuda.synchronize()
        return spent / count * 1e6

    with torch.no_grad():
        warm = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < warm:
            for call in calls:
                sample(call)
        turns = [[sample(call) for call in calls] for _ in range(9)]
    return [round(statistics.median(each), 2) for each in zip(*turns)]
