"""What the buffers of shared memory hold, turn by turn: a timeline drawn from the copies and reads of one warp.

The trace of a block has each `cp.async` twice, by its global and by its shared address: so the trace shows the tensor
that it reads and the buffer that it writes. Copies between two `cp.async.commit_group` are a group, and what a group
brings is a slice: of the tensors that come together in every group (A and B of a product), or of one tensor (K, V). A
slice is *in flight* from the first of its copies until the wait before its first read. The sanitizer checks that this
wait is long enough and that a barrier follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from common.figures.draw import INK, Picture, picture, plural, styled
from cudaemu.errors import UserError

if TYPE_CHECKING:
    from common.figures.accesses import Request, Traced

FLYING, READ, ISSUE, FREE = "#BFE3F7", "#8FCFA0", "#1F5F99", "#F1F1F1"


@dataclass
class Slice:
    """What one group of copies brings to one buffer; moments count the warp's copies and reads as executed."""

    tensors: tuple[str, ...]
    number: int  # among the slices of these tensors
    buffer: int  # by their addresses in shared memory, from 0
    copies: list[int]  # moments of the warp's cp.async
    reads: list[int]  # moments of its ldmatrix
    group: int  # of the warp's copies, in order: what comes in one group is waited for at once
    waited: int = 0  # the first moment after that wait


def slices(traced: Traced, warp: int = 0) -> list[Slice]:
    """The slices that a warp copies, in the order of its copies.

    UserError if the kernel does not copy with cp.async and read with ldmatrix, or if warps copy in different groups."""
    copies = {name: [r for r in traced.requests(name) if r.verb == "copy"] for name in traced.tensors}
    reads = traced.requests(warp=warp, verb="ldmatrix")
    landings = sorted(traced.requests(verb="copy"), key=lambda r: (r.warp, r.order))
    if not landings or not reads:
        raise UserError(f"{traced.label} does not copy with cp.async and read with ldmatrix: it has no ring")
    tensor_of = {(r.warp, r.order): name for name, found in copies.items() for r in found}
    # What each group of each warp brings: [group][tensor], the landings. A copy that only fills with zeros has no
    # tensor of its own: it belongs to the one before it.
    groups: dict[int, list[dict[str, list[Request]]]] = {}
    between = _Commits(traced, {w: [r.order for r in reads if r.warp == w] for w in {r.warp for r in reads}})
    before: Request | None = None
    name = next(iter(tensor_of.values()))
    for request in landings:
        mine = groups.setdefault(request.warp, [])
        if before is None or before.warp != request.warp or between(before, request):
            mine.append({})
        name = tensor_of.get((request.warp, request.order), name)
        mine[-1].setdefault(name, []).append(request)
        before = request
    kinds = _together([set(group) for group in groups[warp]])
    # A slice's place in shared memory is that of all warps' copies for it: the n-th of its kind in each warp.
    found: list[Slice] = []
    base: list[int] = []
    slice_of: dict[int, list[int]] = {}  # 16-byte chunk -> the slices that come there, in order
    for number, kind in ((n, kind) for n, group in enumerate(groups[warp]) for kind in kinds if kind[0] in group):
        count = sum(one.tensors == kind for one in found)
        own = [r for tensor in kind for r in groups[warp][number][tensor]]
        everyones = []
        for others in groups.values():
            theirs = [group for group in others if kind[0] in group]
            if theirs and count >= len(theirs):
                raise UserError(f"{traced.label}: its warps copy {kind[0]} in different numbers of groups")
            everyones += [r for tensor in kind for r in theirs[count].get(tensor, [])] if theirs else []
        addresses = np.concatenate([r.addresses for r in everyones])
        for address in np.unique(addresses).tolist():
            slice_of.setdefault(address, []).append(len(found))
        base.append(int(addresses.min()))
        found.append(Slice(kind, count, 0, [r.order for r in own], [], number))
    for one, address in zip(found, base):
        one.buffer = sorted(set(base)).index(address)
    _fill_in(found, slice_of, traced, reads)
    return sorted(found, key=lambda one: one.copies[0])


class _Commits:
    """Whether a warp ends its group of copies between two of them: by the place of both in the code."""

    def __init__(self, traced: Traced, reads: dict[int, list[int]]):
        code = traced.report.launches[0].code
        self.commits = [pc for pc, each in enumerate(code) if "commit_group" in each.text]
        self.jumps = [pc for pc, each in enumerate(code) if re.search(r"\bbra\b", each.text)]
        self.reads = reads  # of each warp, the orders of its reads of shared memory

    def __call__(self, one: Request, other: Request) -> bool:
        end = other.pc
        if one.pc >= other.pc:  # a loop came round, and its end is the jump after the first copy,
            end = next((jump for jump in self.jumps if jump > one.pc), one.pc)
            if any(one.order < read < other.order for read in self.reads.get(one.warp, [])):
                return bool(self.commits)  # unless it is a long one
        return any(one.pc < commit < end for commit in self.commits)


def _together(groups: Sequence[set[str]]) -> list[tuple[str, ...]]:
    """The tensors, those that come in the same groups together."""
    kinds: dict[tuple[int, ...], list[str]] = {}
    for name in dict.fromkeys(name for group in groups for name in sorted(group)):
        kinds.setdefault(tuple(n for n, group in enumerate(groups) if name in group), []).append(name)
    return [tuple(names) for names in kinds.values()]


def _fill_in(found: list[Slice], slice_of: dict[int, list[int]], traced: Traced, reads: Sequence[Request]) -> None:
    """Moments instead of orders; whose content each read finds; when the warp has waited for it."""
    copy_at = {order: number for number, one in enumerate(found) for order in one.copies}
    order_of = sorted([*copy_at, *(r.order for r in reads if int(r.addresses[0]) in slice_of)])
    moment_of = {order: moment for moment, order in enumerate(order_of)}
    pc_of = {r.order: r.pc for r in [*traced.requests(warp=reads[0].warp, verb="copy"), *reads]}
    begun: set[int] = set()
    newest: dict[tuple[str, ...], int] = {}
    read_at = {r.order: int(r.addresses[0]) for r in reads}
    for order in order_of:
        if order in copy_at:
            begun.add(copy_at[order])
            continue
        held = [number for number in slice_of[read_at[order]] if number in begun]
        if held:  # after the last slice a kernel that reads ahead finds an old one
            kind = found[held[-1]].tensors
            newest[kind] = max(newest.get(kind, 0), held[-1])
            found[newest[kind]].reads.append(moment_of[order])
    for one in found:
        one.copies = [moment_of[order] for order in one.copies]
    # A turn is straight-line code: what comes between the last wait and the first read came after that wait.
    waits = [pc for pc, each in enumerate(traced.report.launches[0].code) if "wait_group" in each.text]
    for one in found:
        moment = one.reads[0] if one.reads else len(order_of)
        first = pc_of[order_of[min(moment, len(order_of) - 1)]]
        wait = max((pc for pc in waits if pc < first), default=first)
        while moment and wait < pc_of[order_of[moment - 1]] < first:
            moment -= 1
        one.waited = moment
    for one in found:
        one.waited = min(other.waited for other in found if other.group == one.group)


def moving(ring: Sequence[Slice]) -> list[Slice]:
    """The slices that are followed by more: not a tile that comes once and stays, such as attention's Q."""
    return [one for one in ring if one.reads and sum(other.tensors == one.tensors for other in ring) > 1]


def in_flight(ring: list[Slice]) -> int:
    """How many slices are in flight, at most, while another one is read to its end."""
    flying = (
        sum(other.copies[0] < one.reads[-1] < other.waited for other in ring if other is not one)
        for one in moving(ring)
    )
    return max(flying, default=0)


def ring(*traced: Traced, warp: int = 0, turns: int | None = None) -> Picture:
    """One panel for each kernel: what each buffer of its ring holds, turn by turn, for the first `turns` turns."""
    found = [slices(each, warp) for each in traced]
    for one, each in zip(traced, found):
        if not moving(each):
            raise UserError(f"{one.label}: block {one.block} copies one tile of each tensor; its ring does not turn")
    turns = min([len(moving(each)) for each in found] + ([turns] if turns else []))
    scales = [_turns(each) for each in found]
    rows_of = [1 + max(one.buffer for one in each) for each in found]
    buffers = [len({one.buffer for one in moving(each)}) for each in found]  # without one that keeps its tile
    lead = max(-scale(0) for scale in scales)
    told_apart = len(set(buffers)) == len(buffers)
    names = [
        f"with {plural(rows, 'buffer')}" if told_apart else f"in {one.label}" for one, rows in zip(traced, buffers)
    ]
    each_flies = (f"{in_flight(each)} {name}" for each, name in zip(found, names))
    width, tall = 11.0, 0.34
    with styled():
        several = any(len({one.tensors for one in moving(each)}) > 1 for each in found)
        takeaway = f"{'Tiles' if several else 'Slices'} in flight during a product: "
        figure = picture(width, 0.75 + sum(0.42 + tall * rows for rows in rows_of), takeaway + ", ".join(each_flies))
        panels = figure.subplots(len(found), 1, height_ratios=rows_of, sharex=True, squeeze=False)[:, 0]
        for axes, each, scale, rows, ringed, one in zip(panels, found, scales, rows_of, buffers, traced):
            _panel(axes, each, scale, turns, (width - 1.2) / (turns + lead))
            shared = one.report.launches[0].shared
            own = ", and one for what stays" if rows > ringed else ""
            axes.set_title(f"{one.label}: {plural(ringed, 'buffer')}{own}, {shared:,} bytes of shared memory")
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
                Patch(color=READ, label="complete: read by ldmatrix"),
                Patch(color=FREE, label="free"),
                Line2D([], [], color=INK, linewidth=2, label="wait for its group, barrier"),
            ],
            loc="outside lower left",
            ncols=5,
        )
    return figure


def _turns(ring: Sequence[Slice]) -> Callable[[float], float]:
    """A scale on which turn t is from t to t + 1: the reads of the t-th slice, and what came since those before.

    Of the copies before the first read, those of the last slice belong to turn 0, the others come before it.
    """
    tiles = sorted(moving(ring), key=lambda one: one.reads[0])
    early = [one for one in tiles if one.copies[0] < tiles[0].reads[0]]
    starts = np.maximum.accumulate([early[-1].copies[0], *(one.reads[-1] + 1 for one in tiles)])
    before = starts[0] / (starts[1] - starts[0])
    return lambda moment: float(np.interp(moment, [0, *starts], [-before, *range(len(starts))]))


def _name(one: Slice, ring: Sequence[Slice]) -> str:
    """ "K 2"; without a number if there is only one of its kind."""
    words = ", ".join(one.tensors)
    return f"{words} {one.number}" if sum(other.tensors == one.tensors for other in ring) > 1 else words


def _panel(axes: Axes, ring: Sequence[Slice], scale: Callable[[float], float], turns: int, inch: float) -> None:
    """One kernel's buffers; a turn is `inch` inches wide."""
    rows = 1 + max(one.buffer for one in ring)
    start = scale(0)
    axes.barh(range(rows), turns - start, left=start, height=0.92, align="edge", color=FREE)
    alone = len({one.tensors for one in ring}) == 1
    for one in ring:
        begin, needed = scale(one.copies[0]), scale(one.waited)
        end = scale(one.reads[-1] + 1) if one.reads else needed
        name = f"slice {one.number}" if alone else _name(one, ring)
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
                    name,
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
