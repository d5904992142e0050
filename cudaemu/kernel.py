"""What the machine and its reports share: a kernel, its instructions, and the memory that it may touch."""

from __future__ import annotations

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


Dim = tuple[int, int, int]  # along x, y, z


@dataclass(frozen=True)
class Configuration:
    """A launch as `<<<>>>` has it: of which kernel, with what. `shared`: dynamic shared memory in bytes; `params`: the
    kernel's parameter block; `cluster`: blocks of a cluster, if the launch names them; `cooperative`: for grid.sync();
    `early`: it may begin before the launch before it has ended."""

    kernel: str
    grid: Dim
    block: Dim
    shared: int = 0
    params: bytes = b""
    cluster: Dim | None = None
    cooperative: bool = False
    early: bool = False


Chain = tuple[tuple[str, int], ...]  # file and line of an instruction, and of the calls that it was inlined through


class Place(NamedTuple):
    """One instruction of a kernel.

    `pc`: its index. `category`: the kind under which it is counted. `file` and `line`: the place in the outermost
    function (through inlined calls); `own_line`: that in its own code, lambdas included; `inner_file` and `inner_line`:
    the place of the code; line 0 if the PTX has no line information. `chain`: all places from that to the outermost
    function, if it was inlined. `problem`: why the machine cannot execute it, and what to do instead. `flops`: of an
    instruction of tensor cores, what it does for one warp: 2·M·N·K, in integers and bits as well; 0 of others."""

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
    flops: int = 0

    @property
    def path(self) -> Chain:
        """All places from that of the code to the one in the outermost function."""
        return self.chain or ((self.file, self.line),)


class Category(NamedTuple):
    """What instructions of a category add to, besides their own number: the counters whose names begin so; "": none."""

    memory: str = ""
    stores: bool = False
    spaces: tuple[str, ...] = ()  # of a generic address: the categories that it may be, in the order of SPACES


SPACES = ("global", "shared", "local")  # of an instruction with a generic address: what it cost says which it was
# All under which instructions are counted (About::category of vm.h, and what lowering names instead).
CATEGORIES = {
    **dict.fromkeys(("fma", "float", "half", "integer", "predicate", "conversion", "move", "mma"), Category()),
    **dict.fromkeys(("shuffle", "vote", "barrier", "mbarrier", "control", "other"), Category()),
    "wgmma": Category("wgmma"),
    "load.global": Category("global_load"),
    "load.shared": Category("shared_load"),
    "load.local": Category("local_load"),
    "load.generic": Category(spaces=tuple(f"load.{space}" for space in SPACES)),
    "load.cluster": Category(),  # counted as the cluster's
    "store.global": Category("global_store", stores=True),
    "store.shared": Category("shared_store", stores=True),
    "store.local": Category("local_store", stores=True),
    "store.generic": Category(stores=True, spaces=tuple(f"store.{space}" for space in SPACES)),
    "store.cluster": Category(stores=True),
    "atomic": Category(),
    "texture": Category(),
    "surface": Category(),
    "ldmatrix": Category("shared_load"),
    "stmatrix": Category("shared_store"),
    "cp.async": Category("cp_async"),
    "bulk.load": Category("bulk_load"),
    "bulk.store": Category("bulk_store"),
    "bulk.cluster": Category(),
}


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
        """Of each instruction: `Place.flops`."""
        return np.array([place.flops for place in self.instructions], np.uint64)

    @cached_property
    def groups(self) -> Groups:
        numbers: dict[tuple[str, int, str], int] = {}
        number = [numbers.setdefault((each.file, each.line, each.category), len(numbers)) for each in self.instructions]
        generic = np.array([bool(CATEGORIES[category].spaces) for _, _, category in numbers], bool)
        order = np.argsort(number, kind="stable")
        every = np.arange(len(numbers))
        starts = np.searchsorted(np.array(number)[order], every)
        has_generic, firsts = bool(generic.any()), every * len(SPACES)
        return Groups(np.array(number, np.int64), list(numbers), generic, has_generic, order, starts, firsts)
