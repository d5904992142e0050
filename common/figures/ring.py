"""What a ring of shared-memory buffers holds at each turn: a timeline drawn from the copies and reads of one warp.

The trace of a block has each `cp.async` twice, by its global and by its shared address: so the slice that it brings and
the buffer that it brings it to can be read off. A slice is *in flight* from the first of its copies until the wait
before its first read. That this wait waits long enough, and that a barrier follows, is for the sanitizer to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from common.errors import UserError
from common.figures.draw import INK, STYLE, Picture, picture, plural

if TYPE_CHECKING:
    from common.figures.trace import Traced

FLYING, READ, ISSUE, FREE = "#BFE3F7", "#8FCFA0", "#1F5F99", "#F1F1F1"


@dataclass
class Slice:
    """One slice in its buffer; moments count the copies and reads of the warp, in the order of execution."""

    buffer: int
    copies: list[int]  # moments of the warp's cp.async for this slice, of all tensors
    reads: list[int]  # moments of its ldmatrix
    waited: int = 0  # the first moment after the wait for this slice


def slices(traced: Traced, warp: int = 0) -> list[Slice]:
    """The slices of the first tensor that is copied, in the order of the reduction, and all copies that go with them.

    UserError if the kernel does not copy with cp.async and read with ldmatrix.
    """
    copies = {name: [r for r in traced.requests(name) if r.verb == "copy"] for name in traced.tensors}
    first = next((name for name, found in copies.items() if found), None)
    reads = traced.requests(warp=warp, verb="ldmatrix")
    if first is None or not reads:
        raise UserError(f"{traced.label} does not copy with cp.async and read with ldmatrix: it has no ring")
    place = traced.tensors[first]
    row_bytes = place.tensor.shape[-1] * place.tensor.element_size()
    landing = {(r.warp, r.order): r.addresses for r in traced.requests(verb="copy")}
    # A thread copies the same rows of every slice, so its columns in one row tell the slices apart.
    start: dict[tuple[int, int], int] = {}  # (warp, order) -> byte of the row at which lane 0's copy begins
    for request in copies[first]:
        start[request.warp, request.order] = (int(request.addresses[0]) - place.base) % row_bytes
    origin = {number: min(s for (w, _), s in start.items() if w == number) for number, _ in start}
    steps = sorted({at - origin[number] for (number, _), at in start.items()})
    number_of = {step: number for number, step in enumerate(steps)}
    slice_of = {key: number_of[at - origin[key[0]]] for key, at in start.items()}
    base = [min(int(landing[key].min()) for key, n in slice_of.items() if n == number) for number in range(len(steps))]
    bases = sorted(set(base))
    buffer_of_chunk = {
        int(address): bases.index(base[number]) for key, number in slice_of.items() for address in landing[key]
    }

    found = [Slice(bases.index(each), [], []) for each in base]
    events = sorted(
        [r for name in copies for r in copies[name] if r.warp == warp] + reads, key=lambda request: request.order
    )
    copying = reading = 0
    held: dict[int, int] = {}  # buffer -> the slice in it
    for moment, event in enumerate(events):
        if event.verb == "copy":
            copying = slice_of.get((warp, event.order), copying)  # the other tensors' copies follow the first's
            held[found[copying].buffer] = copying
            found[copying].copies.append(moment)
        else:
            buffer = buffer_of_chunk.get(int(event.addresses[0]))
            # Behind the last slice a kernel that reads ahead finds an old one.
            reading = reading if buffer is None else max(reading, held[buffer])
            found[reading].reads.append(moment)
    # A turn is straight-line code: copies behind the last wait before the first read were issued after it.
    waits = [pc for pc, each in enumerate(traced.report.launches[0].code) if "wait_group" in each.text]
    for one in found:
        moment = one.reads[0]
        wait = max((pc for pc in waits if pc < events[moment].pc), default=events[moment].pc)
        while moment and events[moment - 1].verb == "copy" and events[moment - 1].pc > wait:
            moment -= 1
        one.waited = moment
    return found


def in_flight(ring: list[Slice]) -> int:
    """How many slices are in flight, at most, while another one is read to its end."""
    return max(
        sum(other.copies[0] < one.reads[-1] < other.waited for other in ring if other is not one) for one in ring
    )


def ring(*traced: Traced, warp: int = 0, turns: int | None = None) -> Picture:
    """One panel for each kernel: what each buffer of its ring holds, turn by turn, for the first `turns` turns."""
    found = [slices(each, warp) for each in traced]
    turns = min([len(each) for each in found] + ([turns] if turns else []))
    scales = [_turns(each) for each in found]
    buffers = [1 + max(one.buffer for one in each) for each in found]
    lead = max(-scale(0) for scale in scales)
    each_flies = (f"{in_flight(each)} with {plural(rows, 'buffer')}" for each, rows in zip(found, buffers))
    width, tall = 11.0, 0.34
    with matplotlib.rc_context(STYLE):
        takeaway = f"Slices in flight while another one is multiplied: {', '.join(each_flies)}"
        figure = picture(width, 0.75 + sum(0.42 + tall * rows for rows in buffers), takeaway)
        panels = figure.subplots(len(found), 1, height_ratios=buffers, sharex=True, squeeze=False)[:, 0]
        for axes, each, scale, rows, one in zip(panels, found, scales, buffers, traced):
            _panel(axes, each, scale, turns, (width - 1.2) / (turns + lead))
            shared = one.report.launches[0].shared
            axes.set_title(f"{one.label}: {plural(rows, 'buffer')}, {shared:,} bytes of shared memory")
            axes.set_xlim(-lead, turns)
            axes.set_ylim(rows, 0)
            axes.set_yticks(np.arange(rows) + 0.5, [f"buffer {number}" for number in range(rows)])
            before = [-lead / 2] if lead > 0.3 else []
            axes.set_xticks(
                [*before, *np.arange(turns) + 0.5], ["before"] * len(before) + [f"turn {n}" for n in range(turns)]
            )
            axes.tick_params(length=0)
            for side in axes.spines.values():
                side.set_visible(False)
        figure.legend(
            handles=[
                Patch(color=ISSUE, label="a cp.async of the warp"),
                Patch(color=FLYING, label="in flight"),
                Patch(color=READ, label="complete: read by ldmatrix and multiplied"),
                Patch(color=FREE, label="free"),
                Line2D([], [], color=INK, linewidth=2, label="wait for its group, barrier"),
            ],
            loc="outside lower left",
            ncols=5,
        )
    return figure


def _turns(ring: Sequence[Slice]) -> Callable[[float], float]:
    """A scale on which turn t is from t to t + 1: the reads of slice t, and what came since those of t - 1.

    Of the copies before the first read, those of the last slice belong to turn 0, the others come before it.
    """
    early = [one for one in ring if one.copies[0] < ring[0].reads[0]]
    starts = [early[-1].copies[0], *(one.reads[-1] + 1 for one in ring)]
    before = starts[0] / (starts[1] - starts[0])
    return lambda moment: float(np.interp(moment, [0, *starts], [-before, *range(len(starts))]))


def _panel(axes: Axes, ring: Sequence[Slice], scale: Callable[[float], float], turns: int, inch: float) -> None:
    """One kernel's buffers; a turn is `inch` inches wide."""
    rows = 1 + max(one.buffer for one in ring)
    start = scale(0)
    axes.barh(range(rows), turns - start, left=start, height=0.92, align="edge", color=FREE)
    for number, one in enumerate(ring):
        begin, needed, end = scale(one.copies[0]), scale(one.waited), scale(one.reads[-1] + 1)
        for left, middle, right, colour in (
            (begin, scale(one.copies[-1] + 1), needed, FLYING),
            (needed, needed, end, READ),
        ):
            right = min(right, turns)
            if left >= right:
                continue
            axes.barh(one.buffer, right - left, left=left, height=0.92, align="edge", color=colour)
            if (right - middle) * inch > 0.55:
                axes.text(
                    (middle + right) / 2,
                    one.buffer + 0.46,
                    f"slice {number}",
                    ha="center",
                    va="center_baseline",
                    color=INK,
                    bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},  # in front of the lines between turns
                )
        if needed < turns:
            axes.vlines(needed, one.buffer, one.buffer + 0.92, color=INK, linewidth=2)
        ticks = [at for at in (scale(copy + 0.5) for copy in one.copies) if at < turns]
        axes.vlines(ticks, one.buffer, one.buffer + 0.92, color=ISSUE, linewidth=1.0)
    axes.vlines(range(turns + 1), -0.08, rows, color="#777777", linewidth=0.8, linestyles=(0, (3, 2)))
