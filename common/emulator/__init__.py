"""Run an unchanged kernel.cu without a GPU: its launcher, its kernels, the hardware's counters and a sanitizer.

nvcc compiles the source to host code and PTX (toolchain). The host code runs against a stand-in CUDA runtime
(runtime.cpp, memory), which hands each launch to the engine (engine, vm/): a virtual machine that executes the PTX of
all threads. What comes back is a `Report`.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from torch import Tensor

from common import toolchain
from common.emulator import engine
from common.emulator.memory import Allocation, Arena, LaunchRequest, Runtime, multiprocessors, resident_blocks
from common.emulator.report import (
    METRICS,
    Counters,
    Finding,
    Launch,
    Report,
    Trace,
    count,
    explain,
    readable,
)
from common.errors import UserError
from common.resources import GPUS, select_gpus

__all__ = ["METRICS", "Counters", "Finding", "Launch", "Report", "Trace", "run", "run_ptx"]

Argument = Tensor | int | float | None
Dim = tuple[int, int, int]
Progress = Callable[[int, int], None]  # blocks done, blocks of this launch


def run(
    source: Path,
    symbol: str,
    args: Sequence[Argument],
    *,
    names: Sequence[str],
    defines: Mapping[str, str] | None = None,
    arch: int = 80,
    outputs: Sequence[str] = (),
    counters: bool = True,
    sanitize: bool = True,
    trace: Trace | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Report:
    """Call the launcher `symbol` of a kernel source in the emulator.

    `args` are the launcher's, in its order, and `names` what reports call them: contiguous CPU tensors, which are
    copied to guarded memory and back; ints (C int), floats (C float); None for a null pointer and for the default stream.
    `defines` are macros for the compiler, `arch` is the compute capability * 10 to compile for and whose limits hold.
    Tensors named in `outputs` start uninitialised: a kernel that reads what it has not written is reported.
    `trace` asks for the executed memory accesses, `threads` limits the cores. UserError if the source does not compile,
    has no such launcher, or uses an instruction that the emulator does not know.
    """
    started = time.monotonic()
    build = toolchain.compile_host(source, defines, str(arch))
    (gpu,) = select_gpus([str(arch)])
    session = _Session(build.ptx, names, args, outputs, counters, sanitize, trace, progress, threads, gpu, defines)
    runtime = Runtime(build.so, gpu, session.arena, session.launch)
    for name in session.module.kernel_names:
        shared = session.module.static_shared(name)
        if shared > STATIC_SHARED_LIMIT:
            raise UserError(
                f"{source}: {name} declares {shared} bytes of shared memory; more than "
                f"{STATIC_SHARED_LIMIT} have to be dynamic (extern __shared__), with cudaFuncSetAttribute"
            )
        runtime.describe(name, shared, 0, session.module.max_threads(name))
    if not hasattr(runtime.library, symbol):
        raise UserError(f'{source} does not export {symbol}: it must define extern "C" cudaError_t {symbol}(...)')
    status = runtime.call(symbol, session.c_arguments())
    session.arena.download()
    return session.report(status, runtime.error_string(status) if status else "", started)


def run_ptx(
    ptx: str,
    kernel: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int,
    args: Sequence[Argument],
    *,
    names: Sequence[str] | None = None,
    shared: int = 0,
    outputs: Sequence[str] = (),
    counters: bool = True,
    sanitize: bool = True,
    trace: Trace | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Report:
    """Launch one kernel of a PTX module, with `shared` bytes of dynamic shared memory; the rest is as in `run`."""
    started = time.monotonic()
    names = names or [f"argument {position}" for position in range(len(args))]
    session = _Session(ptx, names, args, outputs, counters, sanitize, trace, progress, threads)
    if kernel not in session.module.kernel_names:
        raise UserError(f"the PTX has no kernel '{kernel}', it has {', '.join(session.module.kernel_names) or 'none'}")
    status = session.execute(kernel, _dim(grid), _dim(block), shared, session.pack(kernel))
    session.arena.download()
    return session.report(status, "", started)


STATIC_SHARED_LIMIT = 48 << 10  # bytes; ptxas refuses more on every GPU


@lru_cache(maxsize=64)
def _module(ptx: str) -> engine.Module:
    return engine.Module(ptx)


class _Session:
    """One run: its memory, and what its launches left."""

    def __init__(self, ptx, names, args, outputs, counters, sanitize, trace, progress, threads, gpu=GPUS[-1], defines=None):
        if len(names) != len(args):
            raise ValueError(f"{len(args)} arguments with {len(names)} names")
        self.module = _module(ptx)
        self.module.reset()
        self.arena = Arena()
        self.tensors: dict[str, Allocation] = {}
        self.values: list[int | float | None] = []
        for name, arg in zip(names, args):
            if isinstance(arg, Tensor):
                self.tensors[name] = self.arena.upload(name, arg, initialised=name not in outputs)
                arg = self.tensors[name].base
            self.values.append(arg)
        self.pointers = [isinstance(arg, Tensor) or arg is None for arg in args]
        for variable in (*self.module.variables.values(), *filter(None, [self.module.heap])):
            self.arena.adopt(variable.name, variable.address, variable.size)
        self.options = {"counters": counters, "sanitize": sanitize, "threads": threads, "progress": progress}
        self.gpu, self.defines = gpu, defines
        self.trace = trace
        self.launches: list[Launch] = []
        self.findings: dict[tuple, Finding] = {}
        self.notes: dict[tuple, Finding] = {}
        self.lines: dict[tuple[str, int], Counters] = {}
        self.rows: list[np.ndarray] = []

    def c_arguments(self) -> list[object]:
        """The launcher's arguments, for ctypes."""
        values: list[object] = []
        for value, pointer in zip(self.values, self.pointers):
            if pointer:
                values.append(ctypes.c_void_p(value))
            elif isinstance(value, float):
                values.append(ctypes.c_float(value))
            else:
                values.append(ctypes.c_int(value) if -(2**31) <= value < 2**31 else ctypes.c_longlong(value))
        return values

    def pack(self, kernel: str) -> bytes:
        """The arguments as the kernel's parameters, each as wide as the PTX declares it."""
        info = self.module.kernel(kernel)
        if len(info.params) != len(self.values):
            raise UserError(f"{kernel} takes {len(info.params)} arguments, not {len(self.values)}")
        params = bytearray(info.param_bytes)
        for (_, size, _, offset), value in zip(info.params, self.values):
            if isinstance(value, float):
                params[offset : offset + size] = struct.pack("<f" if size == 4 else "<d", value)
            else:
                params[offset : offset + size] = ((value or 0) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        return bytes(params)

    def launch(self, request: LaunchRequest) -> int:
        """What the stand-in runtime calls for a `<<<>>>` that is within the limits."""
        info = self.module.kernel(request.kernel)
        for cluster in (request.cluster, info.cluster):
            if cluster != (1, 1, 1):
                raise UserError(
                    f"{readable(request.kernel)} runs in clusters of {' x '.join(map(str, cluster))} blocks, which the "
                    "emulator does not have: launch it without clusters, or run it on a GPU"
                )
        params = bytearray(info.param_bytes)
        for position, (_, size, _, offset) in enumerate(info.params):
            params[offset : offset + size] = ctypes.string_at(request.arguments[position], size)
        return self.execute(
            request.kernel, request.grid, request.block, request.shared, bytes(params), request.cooperative
        )

    def execute(
        self, kernel: str, grid: Dim, block: Dim, shared: int, params: bytes, cooperative: bool = False
    ) -> int:
        """Run one launch and keep what it leaves; a cudaError_t."""
        info = self.module.kernel(kernel)
        blocks = grid[0] * grid[1] * grid[2]
        traced = None
        if self.trace is not None:
            left = self.trace.max_rows - sum(map(len, self.rows))
            traced = {"trace": self.trace.blocks or range(blocks), "trace_rows": left}
        memory = [
            engine.Allocation(a.base, a.size, a.name, a.written)
            for a in self.arena.allocations
            if a.mapping is not None  # the engine enters its own
        ]
        place = {
            "multiprocessors": multiprocessors(self.gpu),
            "resident": resident_blocks(self.gpu, block[0] * block[1] * block[2], info.static_shared + shared),
            "cooperative": cooperative,
        }
        options = {**self.options, **(traced or {}), **place}
        result = self.module.launch(kernel, grid, block, shared, params, memory, **options)
        print(result.output, end="")
        for finding in result.findings:
            if finding.kind == "unknown instruction":
                place = finding.place
                where = f"{place.file}:{place.own_line}: " if place.file else ""
                raise UserError(f"{where}the emulator cannot execute `{place.text}`: {place.problem}")
            explained = explain(finding, info, self.arena, self.defines)
            self.findings[explained.where] = explained.again(self.findings.get(explained.where))
        for note in result.notes:
            explained = explain(note, info, self.arena, self.defines)
            self.notes[explained.where] = explained.again(self.notes.get(explained.where))
        total, lines = count(result.counters, info.instructions)
        for line, counters in lines.items():
            self.lines.setdefault(line, Counters()).__iadd__(counters)
        result.trace["launch"] = len(self.launches)
        self.rows.append(result.trace)
        self.launches.append(
            Launch(readable(kernel), grid, block, info.static_shared + shared, total, info.instructions)
        )
        return result.code

    def report(self, status: int, error: str, started: float) -> Report:
        total = Counters()
        for launch in self.launches:
            total += launch.counters
        rows = np.concatenate(self.rows) if self.rows else np.empty(0, engine.TRACE)
        seconds = time.monotonic() - started
        return Report(
            status,
            error,
            self.launches,
            total,
            self.lines,
            list(self.findings.values()),
            rows,
            seconds,
            self.tensors,
            self.arena,
            list(self.notes.values()),
        )


def _dim(size: Sequence[int] | int) -> Dim:
    x, y, z = (*((size,) if isinstance(size, int) else size), 1, 1)[:3]
    return x, y, z
