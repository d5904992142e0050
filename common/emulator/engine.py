"""The emulator's engine: run kernels of a PTX module on the processor's cores.

The machine itself is C++ (vm/*.cpp), compiled once per machine into the cache. This module turns PTX into its programs
(`ptx`, `lower`), lends it memory, and turns what it found into Python objects.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from common.compiler import toolchain
from common.emulator import lower, ptx
from common.emulator.ptx import PtxError

SOURCES = sorted((Path(__file__).parent / "vm").glob("*.cpp"))
# Contraction would turn a·b + c into an FMA that the kernel did not ask for; the other flags let loops become vector
# code.
FLAGS = ["-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"]

COUNTERS = np.dtype(
    [(name, np.uint64) for name in ("warps", "threads", "sectors", "wavefronts", "conflicts", "bytes", "requests")]
)
TRACE = np.dtype({
    "names": ["launch", "space", "kind", "block", "thread", "seq", "pc", "size", "addr"],
    "formats": ["u2", "u1", "u1", "u4", "u4", "u4", "u4", "u4", "u8"],
})  # fmt: skip
TRACE_SPACES = ("global", "shared", "local")
TRACE_KINDS = ("load", "store", "atomic", "cp.async", "ldmatrix", "wmma")

_FINDING = np.dtype({
    "names": ["problem", "pc", "count", "block", "address", "thread", "size", "other_thread", "other_pc"],
    "formats": ["u4", "u4", "u8", "u8", "u8", "u4", "u4", "u4", "u4"],
})  # fmt: skip
_NOBODY = 0xFFFFFFFF

# Problem numbers of vm.h: kind, and whether the launch ends there (with which cudaError_t).
PROBLEMS = {
    1: ("out of bounds global", 700),
    2: ("out of bounds shared", 700),
    3: ("out of bounds local", 700),
    4: ("null pointer", 700),
    5: ("misaligned", 716),
    6: ("uninitialised global read", 0),
    7: ("uninitialised shared read", 0),
    8: ("shared race", 0),
    9: ("shared race", 0),
    10: ("shared race", 0),
    11: ("barrier divergence", 0),
    12: ("warp divergence", 0),
    13: ("barrier divergence", 719),
    14: ("endless loop", 702),
    15: ("unknown instruction", 719),
    16: ("trap", 719),
    17: ("copy in flight", 0),
}


class _Spec(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("sanitize", ctypes.c_uint32),
        ("param_bytes", ctypes.c_uint32),
        ("allocation_count", ctypes.c_uint32),
        ("params", ctypes.c_char_p),
        ("allocations", ctypes.c_void_p),
        ("trace_first", ctypes.c_uint64),
        ("trace_end", ctypes.c_uint64),
        ("trace_limit", ctypes.c_uint64),
        ("budget", ctypes.c_uint64),
    ]


@lru_cache
def library() -> ctypes.CDLL:
    """The machine, compiled if this is the first time. UserError if there is no C++ compiler."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(
            pool.map(lambda source: toolchain.compile_cxx(source, ["-c", *FLAGS], f"{source.stem}.o"), SOURCES)
        )
    cxx = toolchain.find_cxx()

    def link(out: Path) -> None:
        toolchain.run([cxx, "-shared", "-pthread", *objects, "-o", out / "vm.so"])

    vm = ctypes.CDLL(str(toolchain.cached("vm", [cxx, *objects], link) / "vm.so"))
    pointer, number = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("vm_handlers", ctypes.c_char_p, []),
        ("vm_program", pointer, [ctypes.c_char_p, pointer, pointer, pointer, pointer, pointer]),
        ("vm_free_program", None, [pointer]),
        ("vm_launch", pointer, [pointer, ctypes.POINTER(_Spec)]),
        ("vm_wait", ctypes.c_int, [pointer, ctypes.c_double, pointer]),
        ("vm_cancel", None, [pointer]),
        ("vm_counters", pointer, [pointer]),
        ("vm_findings", number, [pointer, pointer, number]),
        ("vm_trace", pointer, [pointer, pointer]),
        ("vm_output", ctypes.c_char_p, [pointer]),
        ("vm_stopped_by", number, [pointer]),
        ("vm_free_launch", None, [pointer]),
    ):
        function = getattr(vm, name)
        function.restype, function.argtypes = result, arguments
    return vm


def handlers() -> frozenset[str]:
    """The names of all that the machine can do: what `lower` may translate an instruction to."""
    return frozenset(library().vm_handlers().decode().split())


@dataclass(frozen=True)
class Allocation:
    """Global memory that a kernel may touch: `size` bytes at address `base`. `written`: one byte per byte, 0 where
    nobody has written yet (np.uint8, changed by the launch), or None if all of it is initialised."""

    base: int
    size: int
    name: str
    written: np.ndarray | None = None


@dataclass(frozen=True)
class Place:
    """One instruction of a kernel: `pc` is its index. `file` and `line` are the place in the outermost function
    (through inlined calls), `inner_file` and `inner_line` the place where the code stands; line 0 if the PTX has no
    line information. `category`: the kind under which it is counted."""

    pc: int
    text: str
    category: str
    file: str
    line: int
    inner_file: str
    inner_line: int


@dataclass(frozen=True)
class Finding:
    """Something that a kernel must not do; the first occurrence, and how many there were of the same kind at the same
    instruction."""

    kind: str
    message: str
    kernel: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    place: Place
    count: int
    address: int
    size: int
    fatal: bool

    def __str__(self) -> str:
        where = f"{self.place.file}:{self.place.line}" if self.place.line else "PTX"
        times = f" ({self.count} times)" if self.count > 1 else ""
        who = f"{self.kernel}, block {self.block}, thread {self.thread}"
        return f"{self.kind}: {self.message}{times}\n  {who}\n  {where}: {self.place.text}"


@dataclass
class LaunchResult:
    """What one launch did. `counters`: a row per instruction (dtype COUNTERS). `trace`: dtype TRACE, in the order of
    blocks. `output`: what device code printed. `code`: cudaError_t of the launch, 0 if it ran to its end. `blocks`: how
    many ran."""

    counters: np.ndarray
    findings: list[Finding]
    trace: np.ndarray
    output: str
    code: int
    blocks: int
    seconds: float


@dataclass
class KernelInfo:
    """A kernel of a module. `params`: (name, size, alignment, offset in the parameter block), in bytes."""

    name: str
    params: list[tuple[str, int, int, int]]
    param_bytes: int
    static_shared: int
    shared: list[tuple[str, int]]  # the shared variables' names and offsets, in order
    max_threads: int | None
    instructions: list[Place]
    local_bytes: int
    frame_bytes: int
    handle: int = field(repr=False)


@dataclass(frozen=True)
class ModuleVariable:
    name: str
    address: int
    size: int
    space: str


class Module:
    """A PTX module, ready to run. Raises PtxError (a UserError) for text that cannot be read."""

    def __init__(self, text: str):
        self._ptx = ptx.parse(text)
        self.target = self._ptx.target
        self._storage: list[np.ndarray] = []
        self.variables: dict[str, ModuleVariable] = {}
        self._kernels: dict[str, KernelInfo] = {}
        self._handles: list[int] = []
        self._vm = library()
        self._place_variables()
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
        return self._kernels[name]

    def _place_variables(self) -> None:
        for variable in self._ptx.variables.values():
            if variable.space not in ("global", "const") or variable.extern:
                continue
            storage = np.zeros(variable.size + 512, np.uint8)  # a margin on both sides: nothing else lies next to it
            base = -(-(storage.ctypes.data + 256) // max(variable.align, 1)) * max(variable.align, 1)
            self._storage.append(storage)
            self.variables[variable.name] = ModuleVariable(variable.name, base, variable.size, variable.space)
        self.reset()

    def reset(self) -> None:
        """Give the module's variables the values that they start with."""
        addresses = self._addresses()
        for name, place in self.variables.items():
            data = ptx.initial_bytes(self._ptx.variables[name], lambda name: addresses.get(name, 0))
            ctypes.memmove(place.address, data, len(data))

    def _addresses(self) -> dict[str, int]:
        return {name: variable.address for name, variable in self.variables.items()}

    def _build(self, function: ptx.Function) -> KernelInfo:
        program, params, param_bytes = lower.lower(self._ptx, function, self._addresses())
        unknown = np.zeros(len(program.instructions), np.uint8)
        names = "".join(name + "\n" for name in program.names).encode()
        buffers = [
            np.frombuffer(part if len(part) else bytes(8), np.uint8)
            for part in (program.words, program.header, program.constants, program.tables)
        ]
        handle = self._vm.vm_program(names, *(buffer.ctypes.data for buffer in buffers), unknown.ctypes.data)
        self._handles.append(handle)
        files = self._ptx.files
        places = []
        for pc, lowered in enumerate(program.instructions):
            if unknown[pc]:
                lowered.problem = lowered.problem or f"the machine has no '{lowered.name}'"
            at = lowered.location
            text = lowered.text + (f"  [{lowered.problem}]" if lowered.problem else "")
            places.append(
                Place(
                    pc,
                    text,
                    lowered.category,
                    files.get(at.call_file, "") if at else "",
                    at.call_line if at else 0,
                    files.get(at.file, "") if at else "",
                    at.line if at else 0,
                )
            )
        return KernelInfo(
            function.name,
            params,
            param_bytes,
            program.static_shared,
            program.shared,
            function.max_threads,
            places,
            program.header[2],
            program.header[1],
            handle,
        )

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        dynamic_shared: int,
        params: bytes,
        memory: Sequence[Allocation],
        *,
        counters: bool = True,
        sanitize: bool = True,
        trace: range | None = None,
        trace_rows: int = 1_000_000,
        threads: int | None = None,
        instructions: int = 400_000_000,
        progress: Callable[[int, int], None] | None = None,
    ) -> LaunchResult:
        """Run a grid to its end, or to the first finding that is fatal.

        `params`: the kernel's parameter block. `memory`: all that it may touch, besides the module's own variables.
        `trace`: the blocks (linear numbers) whose accesses are recorded, at most `trace_rows` of them. `instructions`:
        how many the warps of a block may execute together before it counts as an endless loop. `progress(done,
        blocks)` is called some times per second. Ctrl-C ends the launch. Raises PtxError if the kernel or the size of
        `params` is wrong."""
        info = self.kernel(kernel)
        if len(params) != info.param_bytes:
            raise PtxError(f"{kernel} takes {info.param_bytes} bytes of parameters, not {len(params)}")
        grid, block = (*grid, 1, 1)[:3], (*block, 1, 1)[:3]
        allocations = [*memory, *(Allocation(v.address, v.size, v.name) for v in self.variables.values())]
        table = np.array(
            [(a.base, a.size, 0 if a.written is None else a.written.ctypes.data) for a in allocations], np.uint64
        ).reshape(-1, 3)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        spec = _Spec(
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*block),
            dynamic_shared,
            threads or cores,
            counters,
            sanitize,
            len(params),
            len(allocations),
            params,
            table.ctypes.data,
            trace.start if trace else 0,
            trace.stop if trace else 0,
            trace_rows,
            instructions,
        )
        vm, start, done = library(), time.perf_counter(), ctypes.c_uint64()
        total = grid[0] * grid[1] * grid[2]
        running = vm.vm_launch(info.handle, ctypes.byref(spec))
        try:
            while not vm.vm_wait(running, 0.1, ctypes.byref(done)):
                if progress:
                    progress(done.value, total)
            if progress:
                progress(done.value, total)
            return self._result(running, info, block, grid, allocations, counters, done.value, start)
        finally:
            vm.vm_cancel(running)
            vm.vm_free_launch(running)

    def _result(
        self, running: int, info: KernelInfo, block, grid, allocations, counters: bool, done: int, start: float
    ) -> LaunchResult:
        vm = library()
        rows = ctypes.c_uint64()
        size = len(info.instructions)
        table = np.zeros(size, COUNTERS)
        if counters:
            ctypes.memmove(table.ctypes.data, vm.vm_counters(running), table.nbytes)
        raw = np.zeros(vm.vm_findings(running, None, 0), _FINDING)
        vm.vm_findings(running, raw.ctypes.data, len(raw))
        address = vm.vm_trace(running, ctypes.byref(rows))
        trace = np.zeros(rows.value, TRACE)
        if rows.value:
            ctypes.memmove(trace.ctypes.data, address, trace.nbytes)
            trace = trace[np.argsort(trace["block"], kind="stable")]
        findings = [_finding(row, info, block, grid, allocations) for row in raw]
        findings.sort(key=lambda finding: (not finding.fatal, finding.place.pc))
        code = next((PROBLEMS[int(row["problem"])][1] for row in raw if PROBLEMS[int(row["problem"])][1]), 0)
        output = vm.vm_output(running).decode(errors="replace")
        return LaunchResult(table, findings, trace, output, code, done, time.perf_counter() - start)

    def __del__(self):
        for handle in getattr(self, "_handles", ()):
            self._vm.vm_free_program(handle)


def _thread(linear: int, block) -> tuple[int, int, int]:
    return linear % block[0], linear // block[0] % block[1], linear // block[0] // block[1]


def _finding(row, info: KernelInfo, block, grid, allocations: list[Allocation]) -> Finding:
    problem, address, size, count = (int(row[name]) for name in ("problem", "address", "size", "count"))
    kind, code = PROBLEMS[problem]
    place = info.instructions[int(row["pc"])]
    other_thread, other_pc = int(row["other_thread"]), int(row["other_pc"])
    someone = "several threads" if other_thread == _NOBODY else f"thread {_thread(other_thread, block)}"
    there = ""
    if other_pc != _NOBODY:
        other = info.instructions[other_pc]
        there = f" at line {other.line}" if other.line else f" by '{other.text}'"
    shared = f"byte {address} of shared memory"
    message = {
        1: lambda: f"{size} bytes at 0x{address:x}, {_nearest(address, size, allocations)}",
        2: lambda: f"{size} bytes at offset {address}, beyond the block's shared memory",
        3: lambda: f"{size} bytes at offset {address}, beyond the thread's {info.local_bytes} bytes of local memory",
        4: lambda: f"{size} bytes at 0x{address:x}",
        5: lambda: f"an access of {size} bytes at 0x{address:x}, which is no multiple of its size",
        6: lambda: f"{size} bytes at 0x{address:x}, {_nearest(address, size, allocations)}, which nobody has written",
        7: lambda: f"{size} bytes at {shared}, which no thread has written",
        8: lambda: f"{shared} is read here and written by {someone}{there}, with no barrier between them",
        9: lambda: f"{shared} is written here and read by {someone}{there}, with no barrier between them",
        10: lambda: f"{shared} is written here and by {someone}{there}, with no barrier between them",
        11: lambda: (
            f"barrier {address}: threads of the block wait at different barriers, here and{there} ({someone})"
        ),
        12: lambda: f"lanes of the mask 0x{address:08x} are not here: only 0x{size:08x} are",
        13: lambda: f"barrier {address}: {size} threads have arrived and wait, and no other thread can come",
        14: lambda: f"the block has executed {address} instructions",
        15: lambda: "the emulator cannot execute it",
        16: lambda: "the kernel trapped",
        17: lambda: f"{shared} is touched while the cp.async of {someone}{there} is still in flight",
    }[problem]()
    index = int(row["block"])
    return Finding(
        kind,
        message,
        info.name,
        _thread(index, grid),
        _thread(int(row["thread"]), block),
        place,
        count,
        address,
        size,
        bool(code),
    )


def _nearest(address: int, size: int, allocations: list[Allocation]) -> str:
    if not allocations:
        return "where nothing is allocated"
    nearest = min(allocations, key=lambda a: max(a.base - address, address + size - a.base - a.size, 0))
    if address + size <= nearest.base:
        return f"{nearest.base - address} bytes before {nearest.name}"
    if address >= nearest.base + nearest.size:
        return f"{address - nearest.base - nearest.size} bytes after the end of {nearest.name} ({nearest.size} bytes)"
    return f"byte {address - nearest.base} of {nearest.name} ({nearest.size} bytes)"
