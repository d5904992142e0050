"""The emulator's engine: run kernels of a PTX module on the processor's cores.

The machine itself is C++ (vm/*.cpp), compiled once per machine into the cache. This module turns PTX into its programs
(`ptx`, `lower`), gives it memory, and turns its results into Python objects.
"""

from __future__ import annotations

import codecs
import ctypes
import math
import os
import re
import struct
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from cudaemu import features, lower, ptx, terminal
from cudaemu.compiler import cache, toolchain
from cudaemu.compiler.symbols import readable
from cudaemu.errors import UserError
from cudaemu.findings import NOBODY, NOTES, PASSED_ON, SAME_BLOCK, Memory, Problem, Violation, explain, placed
from cudaemu.hardware import Gpu, round_up
from cudaemu.kernel import COUNTERS, Configuration, KernelInfo, Place, Region
from cudaemu.lower import core, description
from cudaemu.lower.description import Description
from cudaemu.lower.tensor import ELEMENTS
from cudaemu.ptx import Location, PtxError
from cudaemu.trace import EVENT, TRACE, Access, EventKind, Space

SOURCES = sorted(Path(__file__).resolve().with_name("vm").glob("*.cpp"))
# Contraction would turn a·b + c into an FMA that the kernel did not ask for; the other flags let loops become vector
# code.
FLAGS = [
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
]
# A machine that looks for its own mistakes: docs/emulator.md, "A mistake of the emulator's own".
SANITIZE = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
if os.environ.pop("CUDAEMU_SANITIZE", ""):
    os.environ.pop("LD_PRELOAD", None)  # of AddressSanitizer: for this process, not for those that it starts
    FLAGS += SANITIZE

_NO_TRACE, _NO_EVENTS = np.zeros(0, TRACE), np.zeros(0, EVENT)
MOST_BLOCKS = 1 << 28  # of a launch: even empty ones would take the machine a quarter of an hour
CONSTANT_BYTES = 64 << 10  # of a module; ptxas refuses more on every GPU
HEAP_BYTES = 8 << 20  # for malloc of device code, as CUDA has it by default

_FINDING = np.dtype({
    "names": [
        "problem", "pc", "count", "block", "address", "thread", "size", "other_thread", "other_pc", "other_block",
        "other_launch", "nth",
    ],
    "formats": ["u4", "u4", "u8", "u8", "u8", "u4", "u4", "u4", "u4", "u8", "u8", "u8"],
})  # fmt: skip


class _Spec(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("explicit_cluster", ctypes.c_uint32),
        ("dynamic_shared", ctypes.c_uint32),
        ("shared_window", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("sanitize", ctypes.c_uint32),
        ("param_bytes", ctypes.c_uint32),
        ("allocation_count", ctypes.c_uint32),
        ("allocations", ctypes.c_void_p),
        ("trace_first", ctypes.c_uint64),
        ("trace_end", ctypes.c_uint64),
        ("trace_limit", ctypes.c_uint64),
        ("event_first", ctypes.c_uint64),
        ("event_end", ctypes.c_uint64),
        ("event_limit", ctypes.c_uint64),
        ("budget", ctypes.c_uint64),
        ("resident", ctypes.c_uint64),
        ("multiprocessors", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("heap", ctypes.c_void_p),
        ("before", ctypes.c_void_p),
        ("kept", ctypes.c_uint32),
        ("strict", ctypes.c_uint32),
        ("undefined", ctypes.c_void_p),
        ("first_block", ctypes.c_uint64),
        ("end_block", ctypes.c_uint64),
    ]

    @classmethod
    def packed(cls, **fields: Any) -> bytes:
        """The structure of these fields, several times as fast as by ctypes. KeyError if one is missing."""
        packer, in_order = cls._packer()
        grid, block, cluster, *others = in_order(fields)
        return packer.pack(*grid, *block, *cluster, *others)

    @classmethod
    @lru_cache
    def _packer(cls) -> tuple[struct.Struct, Callable[[dict[str, Any]], tuple[Any, ...]]]:
        letters = {ctypes.c_uint32: "I", ctypes.c_uint32 * 3: "3I", ctypes.c_uint64: "Q", ctypes.c_void_p: "P"}
        layout = "@" + "".join(letters[each[1]] for each in cls._fields_)
        return struct.Struct(layout), itemgetter(*(each[0] for each in cls._fields_))


@lru_cache
def library() -> ctypes.CDLL:
    """The machine, compiled if this is the first time. UserError if there is no C++ compiler."""
    lock, told = threading.Lock(), list[str]()

    def tell() -> None:
        with lock:
            if not told:
                told.append("building the emulator from its C++ sources, once: this takes up to a minute ...")
                terminal.say(told[0])

    def compiled(source: Path) -> Path:
        return toolchain.compile_cxx(source, ["-c", *FLAGS], f"{source.stem}.o", building=tell)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, SOURCES))
    cxx = toolchain.find_cxx()
    words = [cxx, "-shared", "-pthread", *(flag for flag in FLAGS if flag.startswith("-fsanitize=")), *objects]

    def link(out: Path) -> None:
        toolchain.run([*words, "-o", out / "vm.so"])

    made = cache.get("vm", words, link) / "vm.so"
    try:
        vm = ctypes.CDLL(str(made))
    except OSError as error:
        where = f"CUDAEMU_CACHE must be a folder that programs can run from, got {cache.folder()}"
        raise UserError(f"the emulator cannot be loaded: {error}\n{where}") from error
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("vm_instructions", ctypes.c_char_p, []),
        ("vm_problems", ctypes.c_char_p, []),
        ("vm_constants", ctypes.c_char_p, []),
        ("vm_kinds", ctypes.c_char_p, []),
        ("vm_mirrors", ctypes.c_char_p, []),
        ("vm_specials", ctypes.c_char_p, []),
        ("vm_heap", pointer, [number, ctypes.POINTER(ctypes.c_uint64)]),
        ("vm_clear_heap", None, [pointer]),
        ("vm_free_heap", None, [pointer]),
        ("vm_undefined", pointer, []),
        ("vm_clear_undefined", None, [pointer]),
        ("vm_free_undefined", None, [pointer]),
        ("vm_any_undefined", ctypes.c_int, [pointer]),
        ("vm_define", None, [pointer, number, number]),
        ("vm_copy_undefined", None, [pointer, number, number, number]),
        ("vm_undefined_at", None, [pointer, number, number, pointer]),
        ("vm_undefined_store", ctypes.c_uint32, [pointer, ctypes.c_uint32]),
        ("vm_program", pointer, [ctypes.c_char_p, *[pointer] * 6, ctypes.c_uint32]),
        ("vm_free_program", None, [pointer]),
        ("vm_launch", pointer, [pointer, ctypes.c_char_p, ctypes.c_char_p]),
        ("vm_wait", ctypes.c_int, [pointer, ctypes.c_double, pointer]),
        ("vm_cancel", None, [pointer]),
        ("vm_counters", pointer, [pointer]),
        ("vm_findings", number, [pointer, pointer, number]),
        ("vm_trace", pointer, [pointer, pointer]),
        ("vm_events", pointer, [pointer, pointer, pointer]),
        ("vm_output", ctypes.c_char_p, [pointer]),
        ("vm_keep", ctypes.c_int, [pointer, ctypes.c_uint32]),
        ("vm_touched", number, [pointer, pointer, number]),
        ("vm_free_launch", None, [pointer]),
    ):
        function = getattr(vm, name)
        function.restype, function.argtypes = result, arguments
    _check_mirrors(vm)
    return vm


def _check_mirrors(vm: ctypes.CDLL) -> None:
    """RuntimeError if a number, a name or a layout differs between Python and C++."""

    def said(text: bytes) -> dict[str, int]:
        return {name: int(value) for name, value in (pair.split() for pair in text.decode().splitlines())}

    flags, kinds, numbers = said(vm.vm_constants()), tuple(vm.vm_kinds().decode().split()), said(vm.vm_mirrors())
    elements = {name.upper(): number for name, number in ELEMENTS.items()}
    enums: dict[str, Mapping[str, int]] = {
        "Space": dict(Space.__members__),
        "TraceKind": dict(Access.__members__),
        "EventKind": dict(EventKind.__members__),
        "Element": elements,
    }
    layouts = {"Finding": _FINDING, "Counters": COUNTERS, "TraceRow": TRACE, "Event": EVENT}
    ours = {f"{enum}.{name}": int(value) for enum, members in enums.items() for name, value in members.items()}
    for structure, dtype in layouts.items():
        offsets = {name: field[1] for name, field in (dtype.fields or {}).items()}
        ours |= {f"{structure}.{name}": offset for name, offset in offsets.items()} | {structure: dtype.itemsize}
    ours |= {f"LaunchSpec.{name}": getattr(_Spec, name).offset for name, *_ in _Spec._fields_}
    ours["LaunchSpec"] = ctypes.sizeof(_Spec)
    ours |= {f"ProgramHeader.{name}": 4 * number for number, name in enumerate(core.Header._fields)}
    ours["ProgramHeader"] = 4 * len(core.Header._fields)
    differ = sorted(name for name in numbers.keys() | ours.keys() if numbers.get(name) != ours.get(name))
    if flags != dict(core.Flag.__members__) or kinds != tuple(core.Kind.__members__):
        differ.append("the flags and kinds of lower/core.py")
    if vm.vm_specials().decode().split() != list(core.SPECIALS):
        differ.append("the special registers of lower/core.py")
    if differ:
        raise RuntimeError(f"Python and the machine's C++ must agree, and differ in {', '.join(differ)}")


@lru_cache
def instructions() -> dict[str, Description]:
    """The machine's instructions: what `lower` may translate one of PTX to."""
    return description.read(library().vm_instructions().decode())


@lru_cache
def problems() -> tuple[Problem, ...]:
    """All that the machine can find, by number."""
    rows = (line.split("|") for line in library().vm_problems().decode().splitlines())
    return tuple(Problem(name, kind, int(code)) for name, kind, code in rows)


MOST_RANGES = 1 << 16  # of memory that a launch touched


class Past:
    """A finished launch, and where it touched global memory: kept for launches that may begin before its end."""

    MOST = 16  # in a row; those before them count as over

    def __init__(
        self, module: Module, handle: int, info: KernelInfo, configuration: Configuration, before: Past | None
    ):
        self.module, self.handle, self.info, self.configuration = module, handle, info, configuration
        number: int = before.number + 1 if before else 1
        self.before = before if module.vm.vm_keep(handle, number > self.MOST) else None
        self.number: int = number if self.before else 1

    def ago(self, launches: int) -> Past:
        """This one (1), the one before it (2), ..."""
        past = self
        for _ in range(launches - 1):
            assert past.before is not None
            past = past.before
        return past

    def touched(self) -> np.ndarray:
        """Which global memory: rows of first address, end, and bits: 1 read, 2 written, 4 by atomics or as a flag.

        No rows if these are more than MOST_RANGES."""
        rows = np.empty((MOST_RANGES, 3), np.uint64)
        count: int = self.module.vm.vm_touched(self.handle, rows.ctypes.data, len(rows))
        found: np.ndarray = rows[:count].copy()
        return found

    def __del__(self) -> None:
        self.module.vm.vm_free_launch(self.handle)


class Undefined:
    """The undefined bits in global memory, from launch to launch (vm/undefined.cpp)."""

    MOST = 1 << 16  # stores that are distinguished

    def __init__(self) -> None:
        self.vm = library()
        self.handle: int = self.vm.vm_undefined()

    def __bool__(self) -> bool:
        """Whether there may be any."""
        return bool(self.vm.vm_any_undefined(self.handle))

    def clear(self) -> None:
        self.vm.vm_clear_undefined(self.handle)

    def define(self, address: int, size: int) -> None:
        """The host has written there, or the memory is new."""
        self.vm.vm_define(self.handle, address, size)

    def copy(self, to: int, source: int, size: int) -> None:
        self.vm.vm_copy_undefined(self.handle, to, source, size)

    def stores(self, address: int, size: int) -> list[int]:
        """The numbers (`LaunchResult.stores`) of the stores that wrote undefined bits to these bytes."""
        if not self:
            return []
        seen = np.zeros(self.MOST, np.uint8)
        self.vm.vm_undefined_at(self.handle, address, size, seen.ctypes.data)
        return [int(number) for number in np.flatnonzero(seen) if number]

    def store(self, pc: int) -> int:
        """The number of the store at an instruction of the launch that was the last."""
        return int(self.vm.vm_undefined_store(self.handle, pc))

    def __del__(self) -> None:
        self.vm.vm_free_undefined(self.handle)


@dataclass(frozen=True)
class Settings:
    """How the machine runs a launch. `strict`: what is disputed is looked for. `trace`: the blocks (linear numbers)
    whose accesses are recorded, at most `trace_rows` of them; `events`: those whose events are, with their clusters,
    at most `most_events`. `instructions`: how many the warps of a block may execute together before it counts as an
    endless loop. `progress(done, blocks)` is called some times per second. `blocks`: those that run, by their linear
    numbers, which may count from the end (options.py), in whole clusters. `threads`: of the processor; None: one on
    each of its cores."""

    counters: bool = True
    sanitize: bool = True
    strict: bool = False
    trace: range | None = None
    trace_rows: int = 1_000_000
    events: range | None = None
    most_events: int = 1_000_000
    threads: int | None = None
    instructions: int = 400_000_000
    progress: Callable[[int, int], None] | None = None
    multiprocessors: int = 132
    blocks: range | None = None


DEFAULTS = Settings()
_NO_BLOCKS = range(0)


@dataclass
class LaunchResult:
    """What one launch did. `counters`: a row per instruction (dtype COUNTERS). `notes`: findings that look harmless.
    `stores`: stores of undefined values, by number: findings if the host reads what they wrote (`Undefined.stores`).
    `trace`: dtype TRACE, in the order of blocks. `events`: dtype EVENT, those of a cluster together, in the order in
    which they came; `events_left_out`: how many were too many. `output`: what device code printed. `code`: cudaError_t
    of the launch, 0 if it ran to its end. `blocks`: how many ran to their end, of `total` that
    were to. `past`: the launch, if it was to be kept."""

    counters: np.ndarray
    findings: list[Violation]
    notes: list[Violation]
    stores: dict[int, Violation]
    trace: np.ndarray
    events: np.ndarray
    events_left_out: int
    output: str
    code: int
    blocks: int
    seconds: float
    past: Past | None = None
    total: int = 0


class Module:
    """A PTX module, ready to run. Raises PtxError (a UserError) for text that cannot be read.

    `place(name, size, align)` gives the addresses of its variables, and `zero(address, size)` fills one with zeros;
    without it, they are in the module's own memory. `tiles`: a compiler of tiles made it, such as Triton: several
    threads may hold the same element."""

    def __init__(
        self,
        text: str,
        place: Callable[[str, int, int], int] | None = None,
        zero: Callable[[int, int], None] = lambda address, size: None,
        tiles: bool = False,
    ):
        self._ptx = ptx.parse(text, lazily=True)
        self._place, self._zero, self._tiles = place, zero, tiles
        self.target = self._ptx.target
        first = re.search(r"(?:sm|compute)_(\d+)", self.target)
        self.ptx_version = int(first[1]) if first else 0  # 80: for compute capability 8.0
        self._storage: list[np.ndarray] = []
        self.variables: dict[str, Region] = {}
        self._kernels: dict[str, KernelInfo] = {}
        self._handles: list[int] = []
        self._memory: tuple[Sequence[Region], Sequence[Region], np.ndarray, int] | None = None
        self._wary: dict[str, KernelInfo] = {}  # kernels that follow what is undefined in global memory as well
        self.vm = library()
        self.undefined = Undefined()
        self._addresses = {name: core.FUNCTION_WINDOW + 16 * number for number, name in enumerate(self._ptx.functions)}
        constant = sum(each.size for each in self._ptx.variables.values() if each.space == "const" and not each.extern)
        if constant > CONSTANT_BYTES:
            raise PtxError(
                f"the __constant__ variables must take at most {CONSTANT_BYTES:,} bytes together, got {constant:,}"
            )
        self._place_variables()
        self.heap: Region | None = None
        self._heap = None
        if "malloc" in self._ptx.functions:
            base = ctypes.c_uint64()
            self._heap = self.vm.vm_heap(HEAP_BYTES, ctypes.byref(base))
            self.heap = Region(base.value, HEAP_BYTES, "the device's heap")
        self.kernel_names = [
            function.name for function in self._ptx.functions.values() if function.entry and function.defined
        ]

    @property
    def kernels(self) -> dict[str, KernelInfo]:
        return {name: self.kernel(name) for name in self.kernel_names}

    def kernel(self, name: str) -> KernelInfo:
        """The kernel of that name, lowered on first use. PtxError if there is none."""
        if name not in self._kernels:
            if name not in self.kernel_names:
                raise PtxError(f"the module has no kernel '{name}'; it has {', '.join(self.kernel_names) or 'none'}")
            self._kernels[name] = self._build(self._ptx.functions[name])
            self._ptx.functions[name].forget()
        return self._kernels[name]

    def _prepared(self, name: str) -> KernelInfo:
        """The kernel as it has to be for the memory that there is. Mostly nothing undefined is in global memory."""
        info = self.kernel(name)
        if not self.undefined:
            return info
        if name not in self._wary:
            self._wary[name] = self._build(self._ptx.functions[name], wary=True)
            self._ptx.functions[name].forget()
        return self._wary[name]

    def lines(self, name: str) -> set[tuple[str, int]]:
        """File and line of all that a kernel may execute, as its places have them; without lowering it."""
        if name in self._kernels:
            return {(place.file, place.line) for place in self._kernels[name].instructions}
        function = self._ptx.functions[name]
        reached = [self._ptx.functions[each] for each in core.reach(self._ptx, function)]
        locations = {each.location for part in reached for each in part.instructions}
        function.forget()
        return {(self._ptx.files.get(at.call_file, ""), at.call_line) for at in locations if at and at.line}

    def parameter_types(self, name: str) -> list[tuple[str, int]]:
        """Type and size in bytes of each parameter of a kernel, as the PTX declares them: ("u64", 8), ("f32", 4)."""
        return [(param.type, param.size) for param in self._ptx.functions[name].arguments]

    def _place_variables(self) -> None:
        for variable in self._ptx.variables.values():
            if variable.space not in ("global", "const") or variable.extern:
                continue
            if self._place is not None:
                base = self._place(variable.name, variable.size, max(variable.align, 1))
            else:
                align = max(variable.align, 1)
                # A margin on both sides: nothing lies next to it.
                try:
                    storage = np.zeros(variable.size + 512 + align, np.uint8)
                except MemoryError:
                    what = f"{readable(variable.name)} must fit into this machine's memory"
                    raise UserError(f"{what}, got {variable.size:,} bytes") from None
                base = -(-(storage.ctypes.data + 256) // align) * align
                self._storage.append(storage)
            self.variables[variable.name] = Region(base, variable.size, readable(variable.name))
            self._addresses[variable.name] = base
        self._write_variables()

    def _write_variables(self) -> None:
        for name, place in self.variables.items():
            data = ptx.initial_bytes(self._ptx.variables[name], lambda name: self._addresses.get(name, 0))
            self._zero(place.base, place.size)
            ctypes.memmove(place.base, data, len(data))

    def reset(self) -> None:
        """Give the module's variables the values that they start with, and take back what device code has allocated."""
        self._write_variables()
        self.undefined.clear()
        if self._heap:
            self.vm.vm_clear_heap(self._heap)

    def static_shared(self, name: str) -> int:
        """Bytes of shared memory that a kernel declares with their size; without lowering it."""
        return ptx.shared_bytes(self._ptx, self._ptx.functions[name])

    def max_threads(self, name: str) -> int | None:
        """The most threads per block that a kernel says it has, if it says so."""
        return self._ptx.functions[name].max_threads

    def _build(self, function: ptx.Function, wary: bool = False) -> KernelInfo:
        program, params, param_bytes = lower.lower(
            self._ptx, function, self._addresses, instructions(), wary, self._tiles
        )
        names = "".join(name + "\n" for name in program.names).encode()
        header = array("I", program.header)
        parts = (program.words, header, program.functions, program.constants, program.tables, program.flows)
        buffers = [np.frombuffer(part if len(part) else bytes(8), np.uint8) for part in parts]
        handle = self.vm.vm_program(names, *(buffer.ctypes.data for buffer in buffers), len(program.flows))
        self._handles.append(handle)
        files = self._ptx.files
        places: list[Place] = []
        location: Location | None = None
        at: tuple[str, int, str, int, int, tuple[tuple[str, int], ...]] = ("", 0, "", 0, 0, ())
        for pc, lowered in enumerate(program.instructions):
            if lowered.location is not location:
                location = lowered.location
                if location and location.line:  # line 0: the compiler moved it; then its neighbour's
                    outer, inner = files.get(location.call_file, ""), files.get(location.file, "")
                    chain = tuple((files.get(number, ""), line) for number, line in location.chain)
                    at = (outer, location.call_line, inner, location.line, location.own_line, chain)
            problem = f"{lowered.problem}. {features.way_round(lowered.text)}." if lowered.problem else ""
            places.append(Place(pc, lowered.text, lowered.category, *at, problem, lowered.flops))
        return KernelInfo(
            function.name,
            params,
            param_bytes,
            program.static_shared,
            program.shared,
            function.max_threads,
            places,
            program.header.local_bytes,
            program.header.frame_bytes,
            function.directives.get("reqnctapercluster"),
            handle,
        )

    def launch(
        self,
        configuration: Configuration,
        memory: Sequence[Region],
        settings: Settings = DEFAULTS,
        *,
        resident: int | None = None,
        keep: bool = False,
        before: Past | None = None,
        printed: Callable[[str], None] | None = None,
    ) -> LaunchResult:
        """Run a grid to its end, or to the first finding that is fatal.

        `memory`: all that it may touch, besides the module's own variables. `resident`: how many blocks the GPU holds
        at a time (default: 16 on each of its multiprocessors), so that one may wait for another. `keep`: the result has
        a `past`; `before`: that of the launch before, which may still run (vm/dependent.cpp). `printed` is called some
        times per second with what device code has printed since, which is then not in the result. Ctrl-C ends the
        launch. Raises PtxError if the kernel, the size of its parameters, the grid or the cluster is wrong."""
        kernel, params = configuration.kernel, configuration.params
        info = self._prepared(kernel) if settings.sanitize else self.kernel(kernel)
        if len(params) != info.param_bytes:
            raise PtxError(f"the parameters of {kernel} must have {info.param_bytes} bytes, got {len(params)}")
        grid = configuration.grid
        cluster = configuration.cluster or info.cluster
        together = (*(cluster or ()), 1, 1, 1)[:3]
        if cluster and any(not each or blocks % each for blocks, each in zip(grid, together)):
            raise PtxError(f"{kernel}: the grid must be a multiple of the cluster {together}, got {grid}")
        first, end = _some(settings.blocks, math.prod(grid), math.prod(together))
        total = end - first
        if total > MOST_BLOCKS:
            raise PtxError(
                f"{readable(kernel)}: the grid must have at most {MOST_BLOCKS:,} blocks in the emulator, got {total:,}"
            )
        regions, table = self._table(memory)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        trace, events = settings.trace or _NO_BLOCKS, settings.events or _NO_BLOCKS
        spec = _Spec.packed(
            grid=grid,
            block=configuration.block,
            cluster=together,
            explicit_cluster=cluster is not None,
            dynamic_shared=configuration.shared,
            shared_window=round_up(info.static_shared + configuration.shared, Gpu.shared_unit),
            threads=settings.threads or cores,
            count=settings.counters,
            sanitize=settings.sanitize,
            param_bytes=len(params),
            allocation_count=len(regions),
            allocations=table,
            trace_first=trace.start,
            trace_end=trace.stop,
            trace_limit=settings.trace_rows,
            event_first=events.start,
            event_end=events.stop,
            event_limit=settings.most_events,
            budget=settings.instructions,
            resident=resident or 16 * settings.multiprocessors,
            multiprocessors=settings.multiprocessors,
            cooperative=configuration.cooperative,
            heap=self._heap or 0,
            before=before.handle if before else 0,
            kept=keep,
            strict=settings.strict,
            undefined=self.undefined.handle,
            first_block=first,
            end_block=end,
        )
        counters, progress = settings.counters, settings.progress
        vm, start, done = library(), time.perf_counter(), ctypes.c_uint64()
        said: list[str] = []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end within a character

        def take_output() -> None:
            if text := decoder.decode(vm.vm_output(running)):
                (printed or said.append)(text)

        running, kept = vm.vm_launch(info.handle, spec, params), False
        try:
            while not vm.vm_wait(running, 0.1, ctypes.byref(done)):
                take_output()
                if progress:
                    progress(done.value, total)
            take_output()
            if progress:
                progress(done.value, total)
            result = self._result(running, info, configuration, regions, counters, done.value, start, before)
            result.output, result.total = "".join(said), total
            if keep:
                result.past, kept = Past(self, running, info, configuration, before), True
            return result
        finally:
            if not kept:
                vm.vm_cancel(running)
                vm.vm_free_launch(running)

    def _table(self, memory: Sequence[Region]) -> tuple[Sequence[Region], int]:
        """All that a launch may touch, and the address of where it lies, as the machine reads it. The last one is kept:
        most launches are given the very same list."""
        if self._memory is None or self._memory[0] is not memory:
            regions = [*memory, *self.variables.values()]
            places = [(r.base, r.size, _start(r.written), _start(r.whole)) for r in regions]
            table = np.array(places, np.uint64)
            self._memory = memory, regions, table, table.ctypes.data
        return self._memory[1], self._memory[3]

    def _result(
        self,
        running: int,
        info: KernelInfo,
        configuration: Configuration,
        regions: Sequence[Region],
        counters: bool,
        done: int,
        start: float,
        before: Past | None,
    ) -> LaunchResult:
        vm = library()
        rows = ctypes.c_uint64()
        size = len(info.instructions)
        if counters:
            counted = ctypes.string_at(vm.vm_counters(running), size * COUNTERS.itemsize)
            table = np.frombuffer(counted, COUNTERS)
        else:
            table = np.zeros(size, COUNTERS)
        address = vm.vm_trace(running, ctypes.byref(rows))
        trace = _NO_TRACE
        if rows.value:
            trace = np.zeros(rows.value, TRACE)
            ctypes.memmove(trace.ctypes.data, address, trace.nbytes)
            trace = trace[np.argsort(trace["block"], kind="stable")]
        left_out = ctypes.c_uint64()
        address = vm.vm_events(running, ctypes.byref(rows), ctypes.byref(left_out))
        events = _NO_EVENTS
        if rows.value:
            events = np.zeros(rows.value, EVENT)
            ctypes.memmove(events.ctypes.data, address, events.nbytes)
        seconds = time.perf_counter() - start
        found = vm.vm_findings(running, None, 0)
        if not found:
            return LaunchResult(table, [], [], {}, trace, events, left_out.value, "", 0, done, seconds)
        raw = np.zeros(found, _FINDING)
        vm.vm_findings(running, raw.ctypes.data, len(raw))
        raw = raw[np.lexsort((raw["pc"], raw["problem"]))]
        findings = [_violation(row, info, configuration, Memory(info, regions), before) for row in raw]
        code = next((code for row in raw if (code := problems()[int(row["problem"])].code)), 0)
        notes = [each for each in findings if each.kind in NOTES]
        stores = {self.undefined.store(each.place.pc): each for each in findings if each.problem == PASSED_ON}
        findings = [each for each in findings if each.kind not in NOTES and each.problem != PASSED_ON]
        findings = [each for each in findings if not _of_the_compiler(each, Memory(info, regions))]
        findings = [each for each in findings if not _of_a_library(each)]
        return LaunchResult(table, findings, notes, stores, trace, events, left_out.value, "", code, done, seconds)

    def __del__(self) -> None:
        for handle in getattr(self, "_handles", ()):
            self.vm.vm_free_program(handle)
        if getattr(self, "_heap", None):
            self.vm.vm_free_heap(self._heap)


def _some(blocks: range | None, total: int, together: int) -> tuple[int, int]:
    """The first of the blocks that run, and the end, in whole clusters of so many `together`."""
    if blocks is None:
        return 0, total
    first = blocks.start if blocks.start >= 0 else total + blocks.start
    to_the_last = blocks.start < 0 and blocks.stop == 0
    end = total + blocks.stop if blocks.stop < 0 or to_the_last else blocks.stop
    first, end = max(first, 0) // together * together, -(-min(end, total) // together) * together
    return min(first, end), end


def _start(marks: np.ndarray | None) -> int:
    return 0 if marks is None else marks.ctypes.data


def _thread(linear: int, block: Sequence[int]) -> tuple[int, int, int]:
    return linear % block[0], linear // block[0] % block[1], linear // block[0] // block[1]


def _of_the_compiler(found: Violation, memory: Memory) -> bool:
    """Is it about shared memory that the compiler keeps? What cooperative groups do there counts on how warps run."""
    about_shared = found.problem.startswith("RACE_") or found.problem == "SHARED_UNINITIALISED"
    return about_shared and memory.named(placed(found.address)[0]).startswith(ptx.RESERVED)


IGNORED_BY_LIBRARIES = {  # file -> problem
    # Thrust's set operations compare what is past the ends, and ignore the outcome.
    "thrust/system/cuda/detail/set_operations.h": "UNDEFINED_BRANCH",
    # CUB's merge sort reads the keys after the ends of its runs, and takes none of them.
    "cub/block/block_merge_sort.cuh": "SHARED_UNINITIALISED",
}


def _of_a_library(found: Violation) -> bool:
    """Is it about something that Thrust or CUB reads and then ignores?"""
    places = [*found.place.chain, (found.place.inner_file, 0)]
    return any(
        found.problem == problem and file.endswith(name)
        for name, problem in IGNORED_BY_LIBRARIES.items()
        for file, _ in places
    )


def _violation(
    row: np.void, info: KernelInfo, configuration: Configuration, memory: Memory, before: Past | None
) -> Violation:
    problem, launches_ago = problems()[int(row["problem"])], int(row["other_launch"])
    other = before.ago(launches_ago) if before and launches_ago else None
    other_info, of_other = (other.info, other.configuration) if other else (info, configuration)
    other_thread, other_pc, other_block = (int(row[f"other_{what}"]) for what in ("thread", "pc", "block"))
    place = info.instructions[int(row["pc"])]
    constant = problem.name == "GLOBAL_BOUNDS" and place.text.startswith("ld.const")
    found = Violation(
        problem=problem.name,
        kind="out of bounds constant" if constant else problem.kind,
        kernel=info.name,
        block=_thread(int(row["block"]), configuration.grid),
        thread=_thread(int(row["thread"]), configuration.block),
        place=place,
        count=int(row["count"]),
        address=int(row["address"]),
        size=int(row["size"]),
        fatal=bool(problem.code),
        other_thread=None if other_thread == NOBODY else _thread(other_thread, of_other.block),
        other_block=None if other_block == SAME_BLOCK else _thread(other_block, of_other.grid),
        other_place=None if other_pc == NOBODY else other_info.instructions[other_pc],
        other_kernel=other.info.name if other else "",
        launches_ago=launches_ago,
        dynamic_shared=configuration.shared,
    )
    return replace(found, message=explain(found, memory))
