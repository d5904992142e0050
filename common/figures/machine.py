"""What the machine does with warps: which lanes take part, how waiting is hidden, how many fit on an SM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Patch

from common.figures import layout
from common.figures.draw import FAINT, GRID, HUES, INK, WASTED, Picture, bare, picture, plural, rectangles, styled
from cudaemu import hardware
from cudaemu.errors import UserError

if TYPE_CHECKING:
    from common.figures.accesses import Request
    from cudaemu.hardware import Gpu


def active(requests: Sequence[Request], what: str) -> Picture:
    """A row per executed request of a warp, in order: the lanes that take part, and those that wait for the others.

    UserError if there is no request."""
    if not requests:
        raise UserError(f"{what}: no requests to show; those to global memory are asked for by their tensor's name")
    requests = sorted(requests, key=lambda request: request.order)
    taking = sum(len(request.lanes) for request in requests) / (layout.WARP * len(requests))
    takeaway = f"{what}: {plural(len(requests), 'request')}, on average {taking:.0%} of the lanes take part"
    with styled():
        figure = picture(10, 0.75 + 0.24 * len(requests), takeaway)
        axes = figure.subplots()
        rows, lanes = np.divmod(np.arange(layout.WARP * len(requests)), layout.WARP)
        on = np.array([lane in set(requests[row].lanes.tolist()) for row, lane in zip(rows, lanes)])
        hue = HUES[requests[0].warp % len(HUES)]
        labels = [str(lane) if taken else "" for lane, taken in zip(lanes, on)]
        rectangles(axes, lanes, rows, 1, 1, [hue if taken else FAINT for taken in on], labels, inch=(0.26, 0.24))
        axes.set_xlim(0, layout.WARP)
        axes.set_ylim(len(requests), 0)
        axes.set_xticks([])
        axes.set_yticks(np.arange(len(requests)) + 0.5, [f"line {request.line}" for request in requests])
        bare(axes)
        handles = [Patch(color=hue, label="active lanes"), Patch(color=FAINT, label="switched off")]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def issued(warps: int, work: int, wait: int, clocks: int) -> np.ndarray:
    """The warp that a scheduler issues in each clock, -1 for none.

    Each warp issues `work` instructions, the last of which is a load, and can go on `wait` clocks after that; of those
    that can, the one that could first is taken until it waits."""
    since, left, order = [0] * warps, [work] * warps, []  # since when (or from when on) a warp can go on
    for clock in range(clocks):
        able = [warp for warp in range(warps) if since[warp] <= clock]
        warp = min(able, key=since.__getitem__, default=-1)
        order.append(warp)
        if warp >= 0:
            left[warp] -= 1
            if not left[warp]:
                since[warp], left[warp] = clock + 1 + wait, work
    return np.array(order)


def hiding(counts: Sequence[int], work: int, wait: int, clocks: int = 96) -> Picture:
    """How more warps hide the same wait: for each number of warps on a scheduler its clocks, a row per warp."""
    orders = {warps: issued(warps, work, wait, max(clocks, 20 * (work + wait))) for warps in counts}
    busy = {warps: (order[len(order) // 2 :] >= 0).mean() for warps, order in orders.items()}
    most = max(busy, key=busy.__getitem__)
    takeaway = (
        f"A wait of {wait} clocks after every {work} instructions: {most} warps fill {busy[most]:.0%} of the clocks"
    )
    with styled():
        figure = picture(10, 0.8 + 0.35 * len(counts) + 0.15 * sum(counts), takeaway)
        ratios = [warps + 1 for warps in counts]
        panels = np.atleast_1d(figure.subplots(len(counts), 1, sharex=True, height_ratios=ratios))
        for axes, (warps, order) in zip(panels, orders.items()):
            clock = np.flatnonzero(order[:clocks] >= 0)
            rectangles(axes, np.zeros(warps), np.arange(warps), clocks, 1, FAINT)
            hues = [HUES[warp % len(HUES)] for warp in order[clock]]
            rectangles(axes, clock, order[clock], 1, 1, hues)
            axes.set(xlim=(0, clocks), ylim=(warps, 0), yticks=[])
            axes.set_title(f"{plural(warps, 'warp')}: an instruction is issued in {busy[warps]:.0%} of the clocks")
            bare(axes)
        panels[-1].set_xlabel("clock of one scheduler")
        handles = [Patch(color=HUES[0], label="issues (a hue per warp)"), Patch(color=FAINT, label="waits")]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def residents(gpu: Gpu, threads: int, shared: Sequence[int], marks: dict[str, int] | None = None) -> Picture:
    """Warps on an SM over registers per thread, for blocks of `threads` threads; a line per bytes of shared memory.

    `marks`: name -> registers of kernels to point at, on the first line."""
    registers = np.arange(16, gpu.registers_per_thread + 1)
    what = f"{gpu.devices.split(',')[0]}: warps that fit on an SM, in blocks of {threads} threads"
    with styled():
        figure = picture(8, 3.2, what)
        axes = figure.subplots()
        for number, each in enumerate(shared):
            dashes = "-" if number == 0 else (0, (4 / number, 4))  # what lies below others is seen between them
            fit = [hardware.occupancy(gpu, threads, int(count), each).warps for count in registers]
            label = f"{each / 1024:g} KB of shared memory per block"
            axes.step(registers, fit, where="mid", color=HUES[number], linewidth=3, linestyle=dashes, label=label)
        for name, count in (marks or {}).items():
            here = (count, hardware.occupancy(gpu, threads, count, shared[0]).warps)
            axes.plot(*here, "o", color=INK, markersize=4)
            axes.annotate(name, here, xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8)
        axes.set(xlabel="registers per thread", ylabel="resident warps", xlim=(16, 255), ylim=(0, gpu.warps * 1.08))
        axes.set_yticks(np.arange(0, gpu.warps + 1, 8))
        axes.grid(color=GRID, linewidth=0.5)
        axes.spines[["top", "right"]].set_color(WASTED)
        axes.legend()
    return figure
