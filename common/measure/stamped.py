"""When a block did what: stamps of the SM's clock that a copy of a kernel writes (stamped.cuh), as a timeline.

`cudaemu.timeline` has the same of the emulator's own events, in steps. Stamps also work on a GPU, and there they are
times. They cost time themselves: the verb `timeline` measures how much.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common.figures import accesses
from cudaemu import Span, Timeline
from cudaemu.errors import UserError
from cudaemu.timeline import NOBODY, WARPS, Kind

HEADER = Path(__file__).with_name("stamped.cuh")
TEXT = HEADER.read_text(encoding="utf-8")
EVENTS = tuple(re.findall(r"^  ([A-Z_]+),", TEXT, re.M))
BLOCKS, GROUPS, NUMBERS = (int(n) for n in re.findall(r"constexpr int (?:BLOCKS|GROUPS|NUMBERS) = (\d+)", TEXT))
RINGS = {"": "PRODUCTS", "_K": "SCORES", "_V": "VALUES", "_Q": "DRAIN"}  # suffix of a ring: with what it is read
PRODUCTS = ("PRODUCTS", "SCORES", "VALUES")
NS, STEPS = "ns", "steps"  # of a GPU; of the emulator's clock
CLOCK = {
    NS: "times of a GPU, from stamps of %clock64 and %globaltimer in the kernel",
    STEPS: "1 µs here is 1 step of the emulator's %clock64, from stamps in the kernel. It is not the time of a GPU",
}

Row = dict[str, Any]  # {"group", "event", "numbers", "begin", "end"}: one kind of event of a warpgroup


def write(kernel: str) -> Path:
    """The file that is compiled: the header, and a kernel that calls it."""
    return accesses.write(TEXT + kernel, "kernel.cu")


def room(device: str) -> Tensor:
    """Memory for the stamps of a launch."""
    return torch.zeros(BLOCKS, GROUPS, len(EVENTS), 2, NUMBERS, dtype=torch.int64, device=device)


def rows(stamps: Tensor, block: int, unit: str) -> list[Row]:
    """What was stamped in a block: since its first stamp, in ns or in the clock's own steps.

    UserError if it was not stamped, or if something has a begin without an end."""
    if not 0 <= block < BLOCKS:
        raise UserError(f"block must be from 0 to {BLOCKS - 1}, got {block}")
    times = stamps[block].cpu().numpy()
    if not times.any():
        raise UserError(f"block must be one of the grid, got {block}: it has no stamps")
    clocks, ns = (times[:, EVENTS.index(event), :, 0] for event in ("BLOCK", "TIMER"))
    if ((begun := times > 0)[:, :, 0] != begun[:, :, 1]).any():
        group, event, number = np.argwhere(begun[:, :, 0] != begun[:, :, 1])[0]
        half = "end" if begun[group, event, 0, number] else "begin"
        raise UserError(f"{EVENTS[event]} {number} of warpgroup {group} must have a begin and an end, got no {half}")
    scale = 1.0
    if unit == NS:
        scale = (ns[:, 1] - ns[:, 0]).sum() / (clocks[:, 1] - clocks[:, 0]).sum()
    first = clocks[clocks > 0].min()
    found = []
    for group, event in np.argwhere(begun.any(axis=(2, 3))):
        if EVENTS[event] == "TIMER":
            continue
        numbers = np.flatnonzero(begun[group, event, 0])
        begin, end = np.rint((times[group, event][:, numbers] - first) * scale).astype(int).tolist()
        row = {"group": int(group), "event": EVENTS[event], "numbers": numbers.tolist(), "begin": begin, "end": end}
        found.append(row)
    return found


def timeline(stamped: Sequence[Row], kernel: str, unit: str, block: int = 0) -> Timeline:
    """The spans that the rows of a block tell of, with the names that the emulator's timeline has."""
    return _Reader(stamped, block).timeline(kernel, unit)


class _Reader:
    def __init__(self, stamped: Sequence[Row], block: int):
        self.block = block
        self.at: dict[str, dict[int, dict[int, tuple[int, int]]]] = defaultdict(dict)  # [event][group][number]
        for row in stamped:
            each = dict(zip(row["numbers"], zip(row["begin"], row["end"], strict=True), strict=True))
            self.at[row["event"]][row["group"]] = each
        self.consumers = sorted({group for event in PRODUCTS for group in self.at[event]})
        self.moments = {  # of a group, in order
            group: sorted({t for event in self.at.values() for pair in event.get(group, {}).values() for t in pair})
            for group in self.at["BLOCK"]
        }
        self.spans: list[Span] = []

    def timeline(self, kernel: str, unit: str) -> Timeline:
        for suffix in RINGS:
            self.ring(suffix)
        for group in self.consumers:
            self.consumer(group)
        for group in self.at["BLOCK"]:
            self.runs(group)
        left_out = [
            f"{event} from {NUMBERS} on, of warpgroup {group}"
            for event, groups in self.at.items()
            for group, numbers in groups.items()
            if NUMBERS - 1 in numbers
        ]
        made = Timeline(clock=CLOCK[unit], step=1e-3 if unit == NS else 1)
        made.add(kernel, self.spans, left_out)
        return made

    def add(self, kind: Kind, group: int, start: int, end: int, what: str = "", number: int = 0) -> None:
        warp = group if group == NOBODY else group * WARPS
        self.spans.append(Span(0, self.block, warp, kind, start, end, what, number))

    def before(self, group: int, moment: int) -> int:
        """The stamp of a group before this one."""
        earlier = [each for each in self.moments[group] if each < moment]
        return earlier[-1] if earlier else moment

    def ring(self, suffix: str) -> None:
        """Copies into a ring, and the phases of its mbarriers. A copy has landed when the first consumer knows."""
        for group, copies in self.at[f"COPY{suffix}"].items():
            waits = self.at[f"EMPTY{suffix}"].get(group, {})
            stages = min(waits, default=len(copies))  # it does not wait for those that nobody has used
            since: dict[str, int] = defaultdict(int)
            for number, (issued, begun) in copies.items():
                stage, turn = number % stages, number // stages
                full, empty = (f"shared.{name}{suffix}[{stage}]" for name in ("full", "empty"))
                if number in waits:
                    self.add(Kind.WAITS, group, *waits[number], empty)
                seen = self.of(f"FULL{suffix}", number)
                landed = max(begun, min(seen.values(), default=begun))
                self.add(Kind.COPY, group, issued, landed, full, turn)
                self.add(Kind.PHASE, min(seen, key=seen.__getitem__, default=NOBODY), since[full], landed, full, turn)
                since[full] = landed
                if released := self.released(suffix, number):
                    last = max(released, key=released.__getitem__)
                    self.add(Kind.PHASE, last, since[empty], released[last], empty, turn)
                    since[empty] = released[last]
                for consumer in seen:
                    self.add(Kind.WAITS, consumer, *self.at[f"FULL{suffix}"][consumer][number], full)

    def of(self, event: str, number: int) -> dict[int, int]:
        """When each group's event of that number ended."""
        return {group: numbers[number][1] for group, numbers in self.at[event].items() if number in numbers}

    def released(self, suffix: str, number: int) -> dict[int, int]:
        """When each consumer had read what the ring held; the place of Q when TMA had read O there."""
        if suffix != "_Q":
            return self.of(RINGS[suffix], number)
        return {group: self.drained(group, stored) for group, stored in self.of("STORES", number).items()}

    def drained(self, group: int, stored: int) -> int:
        """When a group knew that TMA had read what it stored then."""
        return min(end for _, end in self.at["DRAIN"][group].values() if end > stored)

    def consumer(self, group: int) -> None:
        for event in PRODUCTS:
            for number, (issued, done) in self.at[event].get(group, {}).items():
                self.add(Kind.WGMMA, group, self.before(group, issued), done, event.lower(), number)
                self.add(Kind.WAITS, group, self.before(group, done), done, f"wgmma: {event.lower()}")
        for event, what in (("TURN", "its turn"), ("DRAIN", "TMA has read the tile before")):
            for begin, end in self.at[event].get(group, {}).values():
                self.add(Kind.WAITS, group, begin, end, what)
        for begin, end in self.at["SOFTMAX"].get(group, {}).values():
            self.add(Kind.DOES, group, begin, end, "softmax")
        for number, (begin, end) in self.at["STORES"].get(group, {}).items():
            self.add(Kind.STORES, group, begin, end)
            if group in self.at["DRAIN"]:
                self.add(Kind.TMA_STORE, group, end, self.drained(group, end), number=number)

    def runs(self, group: int) -> None:
        """What lies between its waits."""
        ((at, last),) = self.at["BLOCK"][group].values()
        waits = (span for span in self.spans if span.kind == Kind.WAITS and span.warp == group * WARPS)
        for span in sorted(waits, key=lambda span: span.start):
            if span.start > at:
                self.add(Kind.RUNS, group, at, span.start)
            at = max(at, span.end)
        if last > at:
            self.add(Kind.RUNS, group, at, last)
