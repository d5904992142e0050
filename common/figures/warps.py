"""How the warps of one block work together, as it ran in the emulator: a ring of tiles, and consumers that take turns.

run = warps.run(stage, shape)     then warps.ring(run), warps.turns(run, other), warps.overlaps(run, kinds=…)

The axis counts the steps of cudaemu.timeline, which are not the time of a GPU: an instruction of a warp is one step,
copies and products take none. Who waits for whom is as on a GPU; how long is not.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from common import counts
from common.figures.draw import HUES, INK, Picture, picture, plural, styled
from common.figures.ring import FLYING, FREE, ISSUE, READ
from common.stage import Stage
from cudaemu import Events, Span
from cudaemu.errors import UserError
from cudaemu.timeline import WARPS, Kind

if TYPE_CHECKING:
    from common.stage import Kernel
    from cudaemu import Timeline

RUNNING, WAITING, STORING = "#DCDCEC", "#EFEFEF", "#EE8866"
PRODUCTS = READ, HUES[0]  # of kinds of products, one below the other
WIDTH = 11.0  # of a picture, in inches
BARS = WIDTH - 2.2  # ... of its bars, about
STEPS = "steps: one instruction of a warp each, in the emulator; not the time of a GPU"


@dataclass(frozen=True)
class Held:
    """A slice in a stage of the ring: from the step at which its copy was issued, over that at which it was there, to
    that at which the consumers had read it."""

    number: int  # among all that pass through the ring
    stage: int
    issued: int
    full: int
    empty: int


class Run:
    """The timeline of one block of a kernel, in its first launch."""

    def __init__(
        self,
        timeline: Timeline,
        label: str,
        source: Sequence[str] = (),
        block: int = 0,
        unit: str = "steps",
        axis: str = STEPS,
    ):
        self.label, self.block = label, block
        self.unit, self.axis = unit, axis  # of its times: a word, and what the axis says
        self.timeline = timeline
        self.source = source  # the lines of the file

    def of(self, *kinds: Kind, warp: int | None = None) -> list[Span]:
        return self.timeline.of(*kinds, block=self.block, warp=warp)

    @cached_property
    def producers(self) -> list[int]:
        """Warps that copy into the ring."""
        return sorted({span.warp for span in self.of(Kind.COPY)})

    @cached_property
    def consumers(self) -> list[int]:
        """The first warps of the warpgroups that multiply."""
        return sorted({span.warp for span in self.of(Kind.WGMMA)})

    @cached_property
    def end(self) -> int:
        return max(span.end for span in self.of())

    @cached_property
    def slices(self) -> list[Held]:
        """What passes through the ring, in order. UserError if the kernel has no full and empty mbarriers."""
        phases: dict[str, list[Span]] = {}
        for span in self.of(Kind.PHASE):
            phases.setdefault(span.what, []).append(span)
        copies: dict[tuple[str, int], list[Span]] = {}
        for span in self.of(Kind.COPY):
            copies.setdefault((span.what, span.number), []).append(span)
        filled = {name for name, _ in copies}
        full, empty = (
            sorted((n for n in phases if (n in filled) == is_full), key=_natural) for is_full in (True, False)
        )
        if not full or len(full) != len(empty):
            raise UserError(f"{self.label} has {len(full)} mbarriers on which copies complete and {len(empty)} others")
        found = []
        for stage, (fills, empties) in enumerate(zip(full, empty)):
            for turn, phase in enumerate(phases[fills]):
                issued = min(copy.start for copy in copies[fills, phase.number])
                read = phases[empties][turn].end if turn < len(phases[empties]) else self.end
                found.append(Held(turn * len(full) + stage, stage, issued, phase.end, read))
        return sorted(found, key=lambda held: held.number)

    @cached_property
    def products(self) -> list[tuple[int, int]]:
        """The stretches of steps in which some product is in flight, in order."""
        found: list[tuple[int, int]] = []
        for span in sorted(self.of(Kind.WGMMA), key=lambda span: span.start):
            if found and span.start <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], span.end)
            else:
                found.append((span.start, span.end))
        return found

    def group(self, span: Span, kinds: Mapping[str, str]) -> str:
        """The one of `kinds` whose word is in the source line of a product or its name, such as m64n128k32. UserError
        unless it is exactly one."""
        line = f"{self.source[span.line - 1].strip() if span.line else ''} {span.what}".strip()
        found = [kind for word, kind in kinds.items() if word in line]
        if len(found) != 1:
            words = ", ".join(kinds)
            raise UserError(f"{self.label}: line {span.line} must have one of the words {words}, got {line!r}")
        return found[0]

    @property
    def passes(self) -> str:
        """What passes from one moment to another."""
        return "time" if self.unit == "ns" else self.unit

    @property
    def without_product(self) -> float:
        """In which share of the steps from the first product to the last none is issued and not yet waited for."""
        first, last = self.products[0][0], self.products[-1][1]
        return 1 - sum(end - start for start, end in self.products) / (last - first)

    @property
    def refill(self) -> float:
        """Steps from the end of an empty phase to the copy that it allows, the median of all."""
        found = {(held.stage, held.number): held for held in self.slices}
        stages = 1 + max(held.stage for held in self.slices)
        after = ((held, found.get((held.stage, held.number + stages))) for held in self.slices)
        return statistics.median(later.issued - held.empty for held, later in after if later)


def _natural(name: str) -> list[Any]:
    """Names in the order of the numbers in them."""
    return [int(part.replace(",", "")) if part[:1].isdigit() else part for part in re.split(r"([\d,]+)", name)]


def run(kernel: Stage | Kernel, shape: Sequence[int], **options: Any) -> Run:
    """Run a kernel in the emulator on random inputs, on a GPU of one multiprocessor, and record what its block 0 does.

    `options`: fields of cudaemu.Options."""
    chosen = kernel.kernel() if isinstance(kernel, Stage) else kernel
    settled: dict[str, Any] = {"multiprocessors": 1, "events": Events(range(1)), "counters": False} | options
    report = counts.emulate(chosen, shape, **settled)
    return Run(report.timeline, chosen.label, chosen.source.read_text(encoding="utf-8").splitlines())


# ---- pictures --------------------------------------------------------------------------------------------------------


def _bar(
    axes: Axes, row: float, start: float, end: float, colour: str, label: str = "", height: float = 0.86, **more: Any
) -> None:
    """A bar, as far as it lies within the axis; its label only where it fits."""
    left, right = axes.get_xlim()
    start, end = max(start, left), min(end, right)
    if start >= end:
        return
    axes.barh(row, end - start, left=start, height=height, color=colour, edgecolor="white", linewidth=0.4, **more)
    if (end - start) / (right - left) * BARS > 0.075 * len(label):
        axes.text((start + end) / 2, row, label, ha="center", va="center_baseline", color=INK, fontsize=7.5)


def _rows(axes: Axes, names: Sequence[str], end: float) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _warp(axes: Axes, row: float, each: Run, warp: int, height: float = 0.86) -> None:
    """When a warp runs, and when it waits."""
    for span in each.of(Kind.RUNS, warp=warp):
        _bar(axes, row, span.start, span.end, RUNNING, height=height)
    for span in each.of(Kind.WAITS, warp=warp):
        _bar(axes, row, span.start, span.end, WAITING, height=height, hatch="////")
    for span in each.of(Kind.DOES, warp=warp):
        _bar(axes, row, span.start, span.end, STORING, span.what, height=height)


def _consumer(first: int) -> str:
    return f"consumer: warps {first} to {first + WARPS - 1}"


def ring(*runs: Run, slices: int = 8) -> Picture:
    """One panel for each kernel: its producer, each stage of its ring and its consumers, for the first `slices`."""
    stages = [1 + max(held.stage for held in each.slices) for each in runs]
    rows = [1 + number + len(each.consumers) for each, number in zip(runs, stages)]
    let_on: list[Line2D] = []  # in the legend, if there are such lines
    refills = ", ".join(f"{each.refill:.0f} {each.unit}" + f" ({each.label})" * (len(runs) > 1) for each in runs)
    takeaway = f"A free stage waits for its next copy (median): {refills}"
    with styled():
        figure = picture(WIDTH, 0.55 + sum(0.75 + 0.27 * number for number in rows), takeaway)
        panels = figure.subplots(len(runs), 1, height_ratios=[number + 1 for number in rows], squeeze=False)[:, 0]
        for axes, each, number in zip(panels, runs, stages):
            end = max(held.empty for held in each.slices[:slices]) * 1.02
            both = ", a consumer too" if {w // WARPS * WARPS for w in each.producers} & set(each.consumers) else ""
            names = [f"producer: warp {each.producers[0]}{both}", *(f"stage {stage}" for stage in range(number))]
            _rows(axes, [*names, *map(_consumer, each.consumers)], end)
            axes.barh(range(1, number + 1), end, height=0.86, color=FREE)
            _warp(axes, 0, each, each.producers[0])
            issued = [span.start for span in each.of(Kind.COPY) if span.start < end]
            axes.vlines(issued, -0.43, 0.43, color=ISSUE, linewidth=0.8)
            for held in each.slices:
                _bar(axes, 1 + held.stage, held.issued, held.full, FLYING, f"slice {held.number}")
                _bar(axes, 1 + held.stage, held.full, held.empty, READ, str(held.number))
            for wait in each.of(Kind.WAITS, warp=each.producers[0]):
                for_empty = "empty" in wait.what  # stamps are a little later than what they tell of
                over = [h for h in each.slices if h.empty == wait.end or for_empty and h.empty < wait.end]
                if over and wait.end < end:  # it was the end of an empty phase that ended the wait
                    let = max(over, key=lambda held: held.empty)
                    axes.vlines(wait.end, -0.43, 1 + let.stage + 0.43, color=INK, linewidth=0.9)
                    let_on = [Line2D([], [], color=INK, linewidth=0.9, label="empty is over, the producer goes on")]
            for row, first in enumerate(each.consumers, number + 1):
                _warp(axes, row, each, first)
                for span, held in zip(each.of(Kind.WGMMA, warp=first), each.slices):
                    _bar(axes, row, span.start, span.end, READ, str(held.number))
            axes.set_title(f"{each.label}: {plural(number, 'stage')}", loc="left")
        panels[-1].set_xlabel(runs[-1].axis)
        figure.legend(
            handles=[
                Patch(color=ISSUE, label="a copy is issued"),
                Patch(color=FLYING, label="its copy is under way"),
                Patch(color=READ, label="it is there, and multiplied"),
                Patch(color=FREE, label="free"),
                Patch(color=RUNNING, label="the warp runs"),
                Patch(facecolor=WAITING, hatch="////", edgecolor="white", label="the warp waits"),
                *let_on,
            ],
            loc="outside lower left",
            ncols=4,
        )
    return figure


def turns(*runs: Run, end: int | None = None) -> Picture:
    """One panel for each kernel: when its consumers multiply, store, and wait; and when either has products under way.
    `end`: the last step shown, by default each run's."""
    takeaway = "Who multiplies, stores and waits, and in which order"
    rows = [1 + len(each.consumers) for each in runs]
    with styled():
        figure = picture(WIDTH, 0.55 + sum(0.75 + 0.33 * number for number in rows), takeaway)
        panels = figure.subplots(len(runs), 1, height_ratios=[number + 1 for number in rows], squeeze=False)[:, 0]
        for axes, each in zip(panels, runs):
            _rows(axes, [*map(_consumer, each.consumers), "either"], end or each.end)
            for row, first in enumerate(each.consumers):
                _warp(axes, row, each, first)
                for span in each.of(Kind.WGMMA, warp=first):
                    _bar(axes, row, span.start, span.end, READ)
                for span in each.of(Kind.STORES, warp=first):
                    _bar(axes, row, span.start, span.end, STORING)
                for span in each.of(Kind.TMA_STORE, warp=first):
                    _bar(axes, row + 0.36, span.start, span.end, ISSUE, height=0.14)
            for start, end in each.products:
                _bar(axes, len(each.consumers), start, end, READ)
            axes.set_title(each.label, loc="left")
        panels[-1].set_xlabel(runs[-1].axis)
        figure.legend(
            handles=[
                Patch(color=READ, label="products under way"),
                Patch(color=STORING, label="stores to shared memory, or straight to C"),
                Patch(color=ISSUE, label="its store by TMA, until it is waited for"),
                Patch(color=RUNNING, label="other instructions"),
                Patch(facecolor=WAITING, hatch="////", edgecolor="white", label="waits"),
            ],
            loc="outside lower left",
            ncols=5,
        )
    return figure


def overlaps(*runs: Run, kinds: Mapping[str, str], ends: Sequence[int] = ()) -> Picture:
    """One panel for each kernel: when its consumers execute instructions and wait, and below that when products of two
    kinds are under way for them. `kinds`: for a word of the source line that starts a product, what that computes.
    `ends`: the last step shown of each, by default the longest run's. Runs in other units have axes of their own."""
    mixed = len({each.unit for each in runs}) > 1
    shares = ", ".join(f"{each.without_product:.0%}" + f" ({each.passes})" * mixed for each in runs)
    passes = "run" if mixed else runs[0].passes
    takeaway = f"Share of the {passes} without products under way (issued, not yet waited for): {shares}"
    colours = dict(zip(kinds.values(), PRODUCTS, strict=True))
    lasts = ends or [max(each.end for each in runs)] * len(runs)
    named = dict.fromkeys(span.what for each in runs for span in each.of(Kind.DOES))
    with styled():
        figure = picture(WIDTH, 0.75 + sum(0.75 + 0.25 * mixed + 0.5 * len(each.consumers) for each in runs), takeaway)
        panels = figure.subplots(len(runs), 1, sharex=not mixed, squeeze=False)[:, 0]
        for axes, each, last in zip(panels, runs, lasts, strict=True):
            _rows(axes, [*map(_consumer, each.consumers)], last)
            for row, first in enumerate(each.consumers):
                _warp(axes, row - 0.22, each, first, height=0.42)
                for span in each.of(Kind.WGMMA, warp=first):
                    kind = each.group(span, kinds)
                    place = row + 0.11 + 0.2 * list(colours).index(kind)
                    _bar(axes, place, span.start, span.end, colours[kind], height=0.2)
            axes.set_title(each.label + f": {each.without_product:.0%}" * (len(runs) > 1), loc="left")
            if mixed or each is runs[-1]:
                axes.set_xlabel(each.axis)
        figure.legend(
            handles=[
                Patch(color=RUNNING, label="the warp executes instructions"),
                Patch(facecolor=WAITING, hatch="////", edgecolor="white", label="it waits"),
                *(Patch(color=STORING, label=what) for what in named),
                *(Patch(color=colour, label=f"{kind} under way") for kind, colour in colours.items()),
            ],
            loc="outside lower left",
            ncols=5,
        )
    return figure
