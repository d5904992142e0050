"""What the machine and its reports share: a kernel, its instructions, and the memory that it may touch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

# Of each instruction, as the machine counts it (vm.h says what).
COUNTERS = np.dtype(
    [
        (name, np.uint64)
        for name in (
            *("warps", "threads", "sectors", "wavefronts", "conflicts", "bytes", "requests"),
            *("cluster_requests", "cluster_bytes"),
        )
    ]
)


@dataclass(frozen=True)
class Region:
    """Global memory that a kernel may touch: `size` bytes at address `base`. `written`: one byte per byte, 0 where
    it was never written (np.uint8, changed by the launch), or None if all of it is initialised. `whole`: a byte that
    is not 0 if all of it is, whatever `written` says; a launch that finds it so sets it."""

    base: int
    size: int
    name: str
    written: np.ndarray | None = None
    whole: np.ndarray | None = None


class Place(NamedTuple):
    """One instruction of a kernel.

    `pc`: its index. `category`: the kind under which it is counted. `file` and `line`: the place in the outermost
    function (through inlined calls); `own_line`: that in its own code, lambdas included; `inner_file` and `inner_line`:
    the place of the code; line 0 if the PTX has no line information. `chain`: all places from that to the outermost
    function, if it was inlined. `problem`: why the machine cannot execute it, and
    what to do instead."""

    pc: int
    text: str
    category: str
    file: str
    line: int
    inner_file: str
    inner_line: int
    own_line: int = 0
    chain: tuple[tuple[str, int], ...] = ()
    problem: str = ""


SPACES = ("global", "shared", "local")  # of an instruction with a generic address: what it cost says which it was


class Groups(NamedTuple):
    """A kernel's instructions by what they are counted as: file, line and category."""

    number: np.ndarray  # of each instruction, in `keys`
    keys: list[tuple[str, int, str]]
    generic: np.ndarray  # whether those of a key have a generic address
    has_generic: bool  # whether any has
    order: np.ndarray  # the instructions, those of a key side by side
    starts: np.ndarray  # where those of each key begin there
    firsts: np.ndarray  # of each key, where it has no generic address: its number * len(SPACES)


@dataclass
class KernelInfo:
    """A kernel of a module. `params`: (name, size, alignment, offset in the parameter block), in bytes."""

    name: str
    params: list[tuple[str, int, int, int]]
    param_bytes: int
    static_shared: int
    shared: list[tuple[str, int, int]]  # the shared variables' names, offsets and sizes, in order
    max_threads: int | None
    instructions: list[Place]
    local_bytes: int
    frame_bytes: int
    cluster: tuple[int, ...] | None  # blocks of a cluster along x, y, z, if the kernel says so
    handle: int = field(repr=False)

    @cached_property
    def flops(self) -> np.ndarray:
        """Of each instruction that tensor cores execute, what it does for one warp: 2·M·N·K, in integers and bits as
        well; 0 of others. Four warps share a wgmma, and wmma counts as two instructions, but for doubles."""
        shapes = [
            re.search(r"\bm(\d+)n(\d+)k(\d+)", place.text) if place.category in ("mma", "wgmma") else None
            for place in self.instructions
        ]
        shared = {"wgmma": 4, "wmma": 2, "wmma of doubles": 1}
        return np.array(
            [
                2 * math.prod(map(int, shape.groups())) // shared.get(_instruction(place.text), 1) if shape else 0
                for place, shape in zip(self.instructions, shapes, strict=True)
            ],
            np.uint64,
        )

    @cached_property
    def groups(self) -> Groups:
        numbers: dict[tuple[str, int, str], int] = {}
        number = [numbers.setdefault((each.file, each.line, each.category), len(numbers)) for each in self.instructions]
        generic = np.array([category.endswith(".generic") for _, _, category in numbers], bool)
        order = np.argsort(number, kind="stable")
        every = np.arange(len(numbers))
        starts = np.searchsorted(np.array(number)[order], every)
        has_generic, firsts = bool(generic.any()), every * len(SPACES)
        return Groups(np.array(number, np.int64), list(numbers), generic, has_generic, order, starts, firsts)


def _instruction(text: str) -> str:
    name = text.split(".")[0]
    return "wmma of doubles" if name == "wmma" and ".m8n8k4." in text else name
