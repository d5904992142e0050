"""A timeline of blocks: when each warp ran and what it waited for, what was copied and multiplied in the background.

The machine notes events (trace.EventKind) in an order in which they happened. From them `read` makes spans of time, in
*steps*, not in the time of a GPU. A warp takes one step for each of its instructions; all warps of a block take theirs
at once; a wait ends at the step of the thread that ends it, and polling takes no steps. What runs in the background
takes none either. A copy on an mbarrier lands when a warp first tests for it, as late as hardware may, and a group of
wgmma ends when its warps have waited for it. So a timeline shows what the program orders and what may overlap, not how
long anything takes on a GPU.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from cudaemu.errors import UserError
from cudaemu.kernel import Place
from cudaemu.trace import EventKind

WARPS = 4  # of a warpgroup
NOBODY = -1
CLUSTER, OTHERS = "barrier of the cluster", "wgmma of the other warps"  # for what a warp waits
CLOCK = "1 µs here is 1 step: one instruction of a warp in the emulator. It is not the time of a GPU"


@dataclass(frozen=True)
class Events:
    """Blocks to make a timeline of (linear indices; clusters are taken whole), and the most events per launch."""

    blocks: range = range(4)
    most: int = 1_000_000

    def __post_init__(self) -> None:
        if not isinstance(self.blocks, range) or not self.blocks or self.blocks.step != 1 or self.blocks.start < 0:
            raise UserError(f"blocks must be a range of at least one block, such as range(4), got {self.blocks!r}")
        if not isinstance(self.most, int) or self.most < 1:
            raise UserError(f"most must be a whole number, at least 1, got {self.most!r}")


class Kind(str, Enum):
    """What a span of time is."""

    RUNS = "runs"
    """Of a warp: it executes instructions."""
    WAITS = "waits"
    """Of a warp: at a barrier, for an mbarrier, or for wgmma of its warpgroup."""
    STORES = "stores"
    """Of a warp, while it runs: from the first store to the last, with no other event between."""
    DOES = "does"
    """Of a warp, while it runs: what the program itself says. The emulator does not know such things."""
    PHASE = "phase"
    """Of an mbarrier."""
    COPY = "copy"
    """In the background, on an mbarrier: from its issue until it has landed."""
    TMA_STORE = "store by TMA"
    """In the background: from its issue until its thread has waited for its group."""
    CP_ASYNC = "cp.async"
    """A group of a warp, in the background: from its first copy until the warp has waited for it."""
    WGMMA = "wgmma"
    """A group of a warpgroup, in the background: from its first wgmma until the last of the warps has waited for it."""


@dataclass(frozen=True)
class Span:
    """From step `start` to step `end` of a launch, both counted from the beginning of the block.

    `kind`: see cudaemu.timeline.Kind. `block`: its linear index. `warp`: who; of a phase who ended it (NOBODY: it did
    not end); of a WGMMA the first of the warpgroup. `what`: the barrier, the mbarrier (`shared.full[0]`, where the
    source tells), the shape of a WGMMA. `number`: of the phase or of the group, from 0. `amount`: arrivals of a phase,
    bytes of a copy or a store, wgmma of a group, store instructions of a STORES. `line`: of the source, where it began;
    of a phase where it ended, 0 for a RUNS. `over`: False if it had not ended when the kernel did, or where the events
    end."""

    launch: int
    block: int
    warp: int
    kind: Kind
    start: int
    end: int
    what: str = ""
    number: int = 0
    amount: int = 0
    line: int = 0
    over: bool = True


@dataclass
class Timeline:
    """The spans of some blocks, in the order of launch, block and start; `left_out` says in words what is missing.

    `clock`: what their steps are. `step`: how many microseconds `chrome` shows for one."""

    spans: list[Span] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)  # of each launch
    clock: str = CLOCK
    step: float = 1

    def of(self, *kinds: Kind, launch: int = 0, block: int = 0, warp: int | None = None) -> list[Span]:
        """Spans of these kinds (default: all) of a block, or of one of its warps."""
        return [
            span
            for span in self.spans
            if (span.launch, span.block) == (launch, block)
            and (not kinds or span.kind in kinds)
            and warp in (None, span.warp)
        ]

    def add(self, kernel: str, spans: Iterable[Span], left_out: Iterable[str]) -> None:
        """Those of one launch more."""
        self.kernels.append(kernel)
        self.spans += sorted(spans, key=lambda span: (span.block, span.start, span.warp))
        self.left_out += [f"launch {len(self.kernels) - 1} ({kernel}): {each}" for each in left_out]

    def chrome(self) -> dict[str, Any]:
        """As the JSON object that chrome://tracing and ui.perfetto.dev read: a process for each block, a track for each
        warp, each mbarrier (its phases, and in them the copies), each warpgroup's products, each warp's own copies."""
        rows: list[dict[str, Any]] = []
        begin, pids = 0, dict[tuple[int, int], int]()
        for launch, kernel in enumerate(self.kernels):
            spans = [span for span in self.spans if span.launch == launch]
            for block in dict.fromkeys(span.block for span in spans):
                pid = pids.setdefault((launch, block), len(pids))
                name = f"launch {launch}: {kernel}, block {block}"
                rows += _named(pid, "process", name, pid)
                for tid, (track, held) in enumerate(_tracks(span for span in spans if span.block == block)):
                    rows += _named(pid, "thread", track, tid, tid)
                    rows += [_row(pid, tid, begin, span, self.step) for span in held]
            begin += max((span.end for span in spans), default=0)
        about = {"clock": self.clock, "left out": "; ".join(self.left_out) or "nothing"}
        return {"traceEvents": rows, "displayTimeUnit": "ms", "otherData": about}

    def write(self, path: Path | str) -> None:
        """Write `chrome()` to a file. UserError if that cannot be done."""
        try:
            Path(path).write_text(json.dumps(self.chrome()) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error


# ---- as Chrome has it ------------------------------------------------------------------------------------------------


def _named(pid: int, what: str, name: str, order: int, tid: int = 0) -> list[dict[str, Any]]:
    common = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**common, "name": f"{what}_name", "args": {"name": name}},
        {**common, "name": f"{what}_sort_index", "args": {"sort_index": order}},
    ]


def _row(pid: int, tid: int, begin: int, span: Span, step: float) -> dict[str, Any]:
    args: dict[str, Any] = {"line": span.line} if span.line else {}
    if span.kind in (Kind.PHASE, Kind.TMA_STORE, Kind.CP_ASYNC, Kind.WGMMA):
        args["phase" if span.kind == Kind.PHASE else "group"] = span.number
    if span.amount:
        units = {Kind.PHASE: "arrivals", Kind.WGMMA: "wgmma", Kind.STORES: "stores"}
        args[units.get(span.kind, "bytes")] = span.amount
    if span.kind in (Kind.PHASE, Kind.COPY):
        args["warp"] = span.warp  # who ended it, or issued it
    if not span.over:
        args["never"] = "ended"
    name = {
        Kind.PHASE: f"phase {span.number}",
        Kind.WAITS: f"waits: {span.what}",
        Kind.WGMMA: f"{span.amount} × {span.what}" if span.amount else span.what,
        Kind.DOES: span.what,
    }
    return {
        "ph": "X",
        "name": name.get(span.kind, span.kind.value),
        "cat": span.kind.value,
        "ts": (begin + span.start) * step,
        "dur": (span.end - span.start) * step,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def _tracks(spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """Names of tracks and what lies on each. What lies on one is side by side or one within the other."""
    found: dict[tuple[int, int, str], list[Span]] = defaultdict(list)
    for span in spans:
        if span.kind in (Kind.RUNS, Kind.WAITS, Kind.STORES, Kind.DOES):
            found[0, span.warp, f"warp {span.warp}"].append(span)
        elif span.kind == Kind.WGMMA:
            found[1, span.warp, f"wgmma of warps {span.warp} to {span.warp + WARPS - 1}"].append(span)
        elif span.kind in (Kind.TMA_STORE, Kind.CP_ASYNC):
            found[3, span.warp, f"{span.kind.value}, warp {span.warp}"].append(span)
        else:
            found[2, 0, f"mbarrier {span.what} and its copies"].append(span)
    tracks = []
    for key in sorted(found):
        lanes: list[list[Span]] = []
        stacks: list[list[int]] = []  # the ends of what is open on each
        for span in sorted(found[key], key=lambda span: (span.start, -span.end, span.kind != Kind.PHASE)):
            for stack in stacks:
                while stack and stack[-1] <= span.start:
                    stack.pop()
            free = next((n for n, stack in enumerate(stacks) if not stack or span.end <= stack[-1]), len(lanes))
            if free == len(lanes):
                lanes.append([])
                stacks.append([])
            lanes[free].append(span)
            stacks[free].append(span.end)
        tracks += [(key[-1], lane) for lane in lanes]
    return tracks


# ---- from events to spans --------------------------------------------------------------------------------------------


def read(
    events: np.ndarray, launch: int, code: Sequence[Place], name: Callable[[int, int], str] | None = None
) -> list[Span]:
    """The spans of one launch's events (dtype trace.EVENT). `code`: the kernel's instructions; `name(offset, pc)`: what
    is at an offset in shared memory, for the instruction that made an mbarrier there."""
    reader = _Reader(launch, code, name)
    for event in events.tolist():
        reader.take(_Event(*event))
    return reader.finish()


@dataclass(frozen=True, slots=True)
class _Event:
    step: int
    launch: int
    block: int
    warp: int
    pc: int
    kind: int
    there: int
    at: int
    number: int


_Key = tuple[Any, ...]  # of what is waited for, or of a group: the kind, and where


@dataclass
class _Warp:
    ahead: int = 0  # its time, less the instructions that it has executed
    waits: dict[_Key, tuple[int, str, int]] = field(default_factory=dict)  # since when, for what, and where it does
    polls: _Key | None = None  # the one of `waits` for which it looks again and again, if it does nothing else
    waited: list[tuple[int, int, str, int, bool]] = field(default_factory=list)  # from, to, for what, where, is it over
    last: int = 0
    ended: bool = False


@dataclass
class _Mbarrier:
    name: str
    since: int = 0  # this phase
    latest: int = 0  # what it has waited for, so far
    number: int = 0
    arrivals: int = 0
    copies: list[tuple[int, _Event]] = field(default_factory=list)  # on their way


@dataclass
class _Group:
    first: int
    issued: int = 0  # the last of it
    end: int = 0
    amount: int = 0
    pc: int = 0
    waited: set[int] = field(default_factory=set)  # warps that have


class _Reader:
    def __init__(self, launch: int, code: Sequence[Place], name: Callable[[int, int], str] | None):
        self.launch, self.code, self.name = launch, code, name
        self.warps: dict[tuple[int, int], _Warp] = defaultdict(_Warp)
        self.barriers: dict[tuple[int, int], int] = {}  # the last arrival at a barrier of a block, until it is passed
        self.passed: set[tuple[int, int]] = set()
        self.clusters: dict[tuple[int, int], int] = defaultdict(int)  # the last arrival at a barrier of a cluster
        self.mbarriers: dict[tuple[int, int], _Mbarrier] = {}
        self.groups: dict[_Key, dict[int, _Group]] = defaultdict(dict)
        self.spans: list[Span] = []

    def take(self, e: _Event) -> None:
        warp = self.warps[e.block, e.warp]
        now = warp.ahead + e.step
        if warp.polls:
            if e.kind in _WHILE_POLLING:
                now = warp.waits[warp.polls][0] + 1
            else:  # of other lanes
                warp.polls = None
        if e.kind not in (EventKind.LANDED, EventKind.MBARRIER_END):  # these happen to an mbarrier
            warp.last = max(warp.last, now)
        _HANDLERS[e.kind](self, e, warp, now)

    def add(self, kind: Kind, block: int, warp: int, start: int, end: int, pc: int | None = None, **more: Any) -> None:
        self.spans.append(Span(self.launch, block, warp, kind, start, end, line=self.line(pc), **more))

    def line(self, pc: int | None) -> int:
        return self.code[pc].line if pc is not None and pc < len(self.code) else 0

    def go_on(self, e: _Event, warp: _Warp, key: _Key, what: str, now: int, until: int) -> None:
        """The warp has waited until then, if it had to. (What it waits for may have been over before it looked.)"""
        warp.polls = None
        since, what, pc = warp.waits.pop(key, (now, what, e.pc))
        end = max(now, until)
        if end > since + 1:
            warp.waited.append((since, end, what, pc, True))
        warp.ahead = end - e.step
        warp.last = max(warp.last, end)

    # ---- barriers

    def barrier_arrive(self, e: _Event, warp: _Warp, now: int) -> None:
        key = e.block, e.at
        if key in self.passed:
            self.passed.remove(key)
            del self.barriers[key]
        self.barriers[key] = max(self.barriers.get(key, 0), now)
        if e.number:
            warp.waits["barrier", e.at, e.pc] = now, f"barrier {e.at}", e.pc

    def barrier_pass(self, e: _Event, warp: _Warp, now: int) -> None:
        self.passed.add((e.block, e.at))
        self.go_on(e, warp, ("barrier", e.at, e.pc), f"barrier {e.at}", now, self.barriers[e.block, e.at])

    def cluster_arrive(self, e: _Event, warp: _Warp, now: int) -> None:
        self.clusters[e.there, e.at] = max(self.clusters[e.there, e.at], now)

    def cluster_wait(self, e: _Event, warp: _Warp, now: int) -> None:
        warp.waits["cluster", e.at] = now, CLUSTER, e.pc

    def cluster_pass(self, e: _Event, warp: _Warp, now: int) -> None:
        self.go_on(e, warp, ("cluster", e.at), CLUSTER, now, self.clusters[e.there, e.at])

    # ---- mbarriers and their copies

    def mbarrier(self, e: _Event) -> _Mbarrier:
        return self.mbarriers[e.there, e.at]

    def mbarrier_init(self, e: _Event, warp: _Warp, now: int) -> None:
        name = self.name(e.at, e.pc) if self.name else ""
        self.mbarriers[e.there, e.at] = _Mbarrier(name or f"shared + {e.at:,}", now)

    def mbarrier_arrive(self, e: _Event, warp: _Warp, now: int) -> None:
        m = self.mbarrier(e)
        m.latest, m.arrivals = max(m.latest, now), m.arrivals + e.number

    def mbarrier_expect(self, e: _Event, warp: _Warp, now: int) -> None:
        """The copies that bring bytes report them."""

    def mbarrier_end(self, e: _Event, warp: _Warp, now: int) -> None:
        m = self.mbarrier(e)
        end = max(m.latest, m.since)
        more: dict[str, Any] = {"what": m.name, "number": m.number, "amount": m.arrivals}
        self.add(Kind.PHASE, e.there, e.warp, m.since, end, e.pc, **more)
        m.number, m.since, m.latest, m.arrivals = m.number + 1, end, 0, 0

    def mbarrier_wait(self, e: _Event, warp: _Warp, now: int) -> None:
        warp.polls = key = "mbarrier", e.there, e.at
        warp.waits.setdefault(key, (now, self.mbarrier(e).name, e.pc))

    def mbarrier_pass(self, e: _Event, warp: _Warp, now: int) -> None:
        m = self.mbarrier(e)
        self.go_on(e, warp, ("mbarrier", e.there, e.at), m.name, now, m.since)

    def copy(self, e: _Event, warp: _Warp, now: int) -> None:
        self.mbarrier(e).copies.append((now, e))

    def landed(self, e: _Event, warp: _Warp, now: int) -> None:
        m = self.mbarrier(e)
        issued, by = m.copies.pop(0)
        end = max(issued, now)
        m.latest = max(m.latest, end)
        self.copied(m, issued, by, end)

    def copied(self, m: _Mbarrier, issued: int, by: _Event, end: int, over: bool = True) -> None:
        more: dict[str, Any] = {"what": m.name, "number": m.number, "amount": by.number, "over": over}
        self.add(Kind.COPY, by.there, by.warp, issued, end, by.pc, **more)

    # ---- groups

    def issue(self, key: _Key, e: _Event, now: int, amount: int) -> None:
        group = self.groups[key].setdefault(e.at, _Group(now, pc=e.pc))
        group.first, group.issued = min(group.first, now), max(group.issued, now)
        group.amount += amount

    def done(self, kind: Kind, key: _Key, e: _Event, now: int) -> None:
        for number in [number for number in self.groups[key] if number < e.at]:
            group = self.groups[key].pop(number)
            self.add(kind, e.block, e.warp, group.first, now, group.pc, number=number, amount=group.amount)

    def bulk_store(self, e: _Event, warp: _Warp, now: int) -> None:
        self.issue((e.kind, e.block, e.warp, e.there), e, now, e.number)

    def bulk_done(self, e: _Event, warp: _Warp, now: int) -> None:
        self.done(Kind.TMA_STORE, (EventKind.BULK_STORE, e.block, e.warp, e.there), e, now)

    def cp_async(self, e: _Event, warp: _Warp, now: int) -> None:
        self.issue((e.kind, e.block, e.warp), e, now, e.number)

    def cp_async_done(self, e: _Event, warp: _Warp, now: int) -> None:
        self.done(Kind.CP_ASYNC, (EventKind.CP_ASYNC, e.block, e.warp), e, now)

    def wgmma(self, e: _Event, warp: _Warp, now: int) -> None:
        self.issue((e.kind, e.block, e.warp // WARPS), e, now, e.warp % WARPS == 0)

    def wgmma_wait(self, e: _Event, warp: _Warp, now: int) -> None:
        warp.polls = ("wgmma",)
        warp.waits.setdefault(("wgmma",), (now, OTHERS, e.pc))

    def wgmma_pass(self, e: _Event, warp: _Warp, now: int) -> None:
        groups = self.groups[EventKind.WGMMA, e.block, e.warp // WARPS]
        over = {n: group for n, group in groups.items() if n < e.at and e.warp not in group.waited}
        self.go_on(e, warp, ("wgmma",), OTHERS, now, max((group.issued for group in over.values()), default=now))
        for number, group in over.items():
            group.end = max(group.end, warp.ahead + e.step)
            group.waited.add(e.warp)
            if len(group.waited) == WARPS:
                self.multiplied(e.block, e.warp, number, groups.pop(number))

    def multiplied(self, block: int, warp: int, number: int, group: _Group, over: bool = True) -> None:
        text = self.code[group.pc].text if group.pc < len(self.code) else ""
        shape = re.search(r"m\d+n\d+k\d+", text)
        more: dict[str, Any] = {
            "what": shape[0] if shape else "",
            "number": number,
            "amount": group.amount,
            "over": over,
        }
        self.add(Kind.WGMMA, block, warp // WARPS * WARPS, group.first, group.end, group.pc, **more)

    # ---- warps

    def store(self, e: _Event, warp: _Warp, now: int) -> None:
        self.add(Kind.STORES, e.block, e.warp, now, now + e.at, e.pc, amount=e.number)
        warp.last = max(warp.last, now + e.at)

    def exit(self, e: _Event, warp: _Warp, now: int) -> None:
        warp.ended = True

    def finish(self) -> list[Span]:
        """What has not ended ends with the last step."""
        last = max((warp.last for warp in self.warps.values()), default=0)
        for (block, number), warp in self.warps.items():
            for key, (since, what, pc) in {} if warp.ended else warp.waits.items():
                if key == warp.polls or key[0] in ("barrier", "cluster"):
                    warp.waited.append((since, last, what, pc, False))
            at, end = 0, warp.last if warp.ended else last
            for since, until, what, pc, over in sorted(warp.waited):
                if since > at:
                    self.add(Kind.RUNS, block, number, at, since)
                self.add(Kind.WAITS, block, number, since, until, pc, what=what, over=over)
                at = max(at, until)
            if end > at:
                self.add(Kind.RUNS, block, number, at, end)
        for (there, _), m in self.mbarriers.items():
            if m.copies or m.arrivals:
                begun: dict[str, Any] = {"what": m.name, "number": m.number, "amount": m.arrivals, "over": False}
                self.add(Kind.PHASE, there, NOBODY, m.since, max(last, m.since), **begun)
            for issued, by in m.copies:
                self.copied(m, issued, by, last, over=False)
        for (kind, block, warp, *_), groups in self.groups.items():
            for number, group in groups.items():
                group.end = last
                if kind == EventKind.WGMMA:
                    self.multiplied(block, warp * WARPS, number, group, over=False)
                else:
                    what = Kind.TMA_STORE if kind == EventKind.BULK_STORE else Kind.CP_ASYNC
                    more: dict[str, Any] = {"number": number, "amount": group.amount, "over": False}
                    self.add(what, block, warp, group.first, last, group.pc, **more)
        return self.spans


_WHILE_POLLING = (
    *(EventKind.LANDED, EventKind.MBARRIER_END),
    *(EventKind.MBARRIER_WAIT, EventKind.MBARRIER_PASS, EventKind.WGMMA_WAIT, EventKind.WGMMA_PASS),
)
_HANDLERS: Mapping[int, Callable[[_Reader, _Event, _Warp, int], None]] = {
    kind: getattr(_Reader, kind.name.lower()) for kind in EventKind
}
