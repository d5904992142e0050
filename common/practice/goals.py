"""Goals in numbers: what any solution may execute and move at most."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from common.counts import SECTOR
from common.figures.loop import sass_loop
from common.stage import Kernel
from cudaemu import Launch, Report, Timeline
from cudaemu.timeline import Kind
from cudaemu.trace import Access, Space
from cudaemu.units import TENSOR_UNITS

COMPARE: dict[str, Callable[[float, float], bool]] = {"=": operator.eq, "<=": operator.le, ">=": operator.ge}
SIGNS = {"=": "=", "<=": "≤", ">=": "≥"}
ARITHMETIC: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# All others are counters of the emulator.
GROUP = 4  # warps of a warpgroup
SHARED_BYTES = "shared_bytes"  # of the launch whose blocks take the most
BLOCKS = "blocks"  # of the launch that has the most
READ, WRITTEN = "sectors_read", "sectors_written"  # of global memory, by plain accesses and by copies
EARLY, FIRST_BLOCKS = "early_sectors", 32  # a trace of the first blocks says what they share
BEHIND = "ldmatrix_behind_barrier"  # in the machine code of the main loop, up to the next mma
MOVED = "setmaxnreg"  # different ones that ran
COPYING, UNDER_WAY = TIMED = ("warpgroups_that_do_both", "products_under_way")  # a timeline of block 0 says so


@dataclass(frozen=True)
class Goal:
    """A counter, how it is compared, and with what: a number, or arithmetic with the sizes of the problem."""

    counter: str
    sign: str
    bound: str

    @classmethod
    def of(cls, text: str) -> Goal:
        """The goal that a line such as "global_load_sectors <= M*N*K/256" says. ValueError if it says none."""
        found = re.fullmatch(r"([a-z_.]+) (<=|>=|=) (\S.*)", text)
        if not found:
            raise ValueError(f"a goal must be COUNTER = | <= | >= NUMBER, got '{text}'")
        goal = cls(*found.groups())
        _tree(goal.bound)
        return goal

    def value(self, sizes: Mapping[str, int]) -> float:
        """The bound at these sizes. ValueError for a name that is none of them."""
        return _value(_tree(self.bound), sizes)

    def judge(self, counted: Mapping[str, int], sizes: Mapping[str, int]) -> Judged:
        """Whether these counters meet the goal. A missing counter is 0."""
        bound, value = self.value(sizes), counted.get(self.counter, 0)
        return Judged(self.counter, value, self.sign, bound, COMPARE[self.sign](value, bound))


@dataclass(frozen=True)
class Judged:
    """A goal, what was counted, and whether that meets it."""

    counter: str
    value: float
    sign: str
    bound: float
    met: bool

    @property
    def text(self) -> str:
        """What it requires: "bank conflicts of loads = 0"."""
        return f"{in_words(self.counter)} {SIGNS[self.sign]} {_number(self.bound)}"

    def __str__(self) -> str:
        return f"{self.text}: {_number(self.value)}" + ("" if self.met else ", not met")


WORDS = {  # for readers; what is not here is written as it is, with blanks
    "instructions": "warp instructions",
    "instructions.barrier": "barriers",
    **{f"instructions.{unit.category}": f"{unit.category} instructions" for unit in TENSOR_UNITS},
    "instructions.fma": "FMA instructions",
    "instructions.shuffle": "shuffles",
    "instructions.integer": "integer instructions",
    "instructions.mbarrier": "mbarrier instructions",
    "shared_load_conflicts": "bank conflicts of loads",
    "shared_store_conflicts": "bank conflicts of stores",
    "shared_load_wavefronts": "wavefronts of shared loads",
    "shared_store_wavefronts": "wavefronts of shared stores",
    READ: "sectors read",
    WRITTEN: "sectors written",
    SHARED_BYTES: "bytes of shared memory per block",
    BLOCKS: "blocks of the launch",
    "wgmma_bytes": "bytes that wgmma reads from shared memory",
    EARLY: f"different sectors that the first {FIRST_BLOCKS} blocks read",
    MOVED: "different setmaxnreg that ran",
    COPYING: "warpgroups that both copy by TMA and multiply",
    UNDER_WAY: "% of the steps with products under way",
    BEHIND: "ldmatrix between the loop's barrier and the next mma, in machine code for 9.0",
}


def in_words(counter: str) -> str:
    """The name of a counter as a reader calls it."""
    return WORDS.get(counter, counter.replace("instructions.", "instructions ").replace("_", " "))


def counted(report: Report) -> dict[str, int]:
    """All that goals can be about, of all launches of a run."""
    flat = report.counters.flat()
    ways = ("global_{}_sectors", "cp_async_sectors", "bulk_{}_sectors")  # whichever way they go
    read, written = (
        sum(flat.get(way.format(what), 0) for way in ways if what == "load" or "{" in way) for what in ("load", "store")
    )
    shared = max((launch.shared for launch in report.launches), default=0)
    blocks = max((math.prod(launch.grid) for launch in report.launches), default=0)
    moved = sum(map(_moved, report.launches))
    return {**flat, READ: read, WRITTEN: written, SHARED_BYTES: shared, BLOCKS: blocks, MOVED: moved}


def early_sectors(trace: np.ndarray) -> int:
    """How many different sectors of global memory the blocks of a trace read: few, if they share rows and columns."""
    loads = trace[(trace["space"] == Space.GLOBAL) & np.isin(trace["kind"], (Access.LOAD, Access.CP_ASYNC))]
    return len(np.unique(loads["addr"] // SECTOR))  # no load is longer than half a sector


def _moved(launch: Launch) -> int:
    """How many different setmaxnreg a launch has executed."""
    ran = launch.executed
    return sum("setmaxnreg" in place.text and place.path in ran for place in launch.code)


def timed(timeline: Timeline) -> dict[str, int]:
    """COPYING and UNDER_WAY, of block 0 of the first launch. A product is under way until its warpgroup has waited."""
    products, copies = timeline.of(Kind.WGMMA), timeline.of(Kind.COPY)
    both = {each.warp // GROUP for each in products} & {each.warp // GROUP for each in copies}
    covered, last = 0, min((each.start for each in products), default=0)
    first = last
    for each in sorted(products, key=lambda span: span.start):
        covered += max(0, each.end - max(each.start, last))
        last = max(last, each.end)
    return {COPYING: len(both), UNDER_WAY: 100 * covered // max(1, last - first)}


def ldmatrix_behind_barrier(kernel: Kernel) -> int:
    """How many ldmatrix the main loop has between a barrier and the next mma. UserError if there is no such loop."""
    loop = sass_loop(kernel)
    following = {
        barrier: min((at for at in loop.mma if at > barrier), default=loop.length) for barrier in loop.barriers
    }
    return max(
        (sum(barrier < load.place < mma for load in loop.loads) for barrier, mma in following.items()), default=0
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise ValueError(f"a bound must be arithmetic, got '{text}'") from None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name) and node.id in sizes:
        return sizes[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return ARITHMETIC[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    raise ValueError(
        f"a bound's terms must be numbers or among {', '.join(sizes) or 'no sizes'}, got '{ast.unparse(node)}'"
    )
