"""Runs the host code of a .cu file in a process of its own, so that a crash does not end this one.

That process runs host/runner.cpp, which opens the shared object and calls its launcher or its main. The stand-in
runtime in there (host/runtime.cpp) knows streams, events, limits and error codes; for the device it sends requests to
this process, through a socket: one request, one answer. Device memory is a file that both processes map (memory.py).
"""

from __future__ import annotations

import codecs
import ctypes
import linecache
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from cudaemu import compute, cpp, hardware, link, memory, randoms
from cudaemu.compiler import cache, toolchain
from cudaemu.compiler.symbols import UNNAMED
from cudaemu.errors import UserError
from cudaemu.hardware import Gpu
from cudaemu.kernel import Configuration
from cudaemu.memory import Arena
from cudaemu.terminal import hold_standard_descriptors

# One name for it, and so one build, also in notebooks, which find this by way of "..".
HERE = Path(__file__).resolve().with_name("host")
LIBRARIES = {"thrust": "Thrust", "cub": "CUB", "cooperative_groups": "cooperative groups", "cuda": "libcu++"}
TOOLKIT = re.compile(r"/(nvidia/[^/]+|cuda[-.\d]*)/(targets/[^/]+/)?include/")  # its headers
CUTLASS = re.compile(r"/include/(cute|cutlass)/")
GO_PRINT, GO_LOOK = 1, 2  # answers to a launch that goes on, other than 0: print this; say where the program is
SUCCESS, INVALID_VALUE, UNKNOWN = 0, 1, 999  # of cudaError_t
WROTE_HERE = "the host code wrote to a file descriptor that it has not opened: the emulator uses it"
KILLED_FOR_SILENCE = "the host code has run for {:.0f} s without calling CUDA or ending: an endless loop?"
_SOON = 50e-6  # seconds
_HEAD = 8  # bytes before what a request says: its kind, and how long it is
_NAME = 64  # bytes of the name of the last call
_FEW_INSTRUCTIONS = 64  # bytes
_STACK_REACH = 1 << 16  # bytes: a fault so near to the stack pointer is the stack's end


class Request(IntEnum):
    """The stand-in runtime's requests; the numbers and the layouts are those of host/channel.h."""

    HELLO = 1
    KERNEL = 2
    LAUNCH = 3
    ALLOCATE = 4
    RELEASE = 5
    FIND = 6
    OUTSIDE = 7
    SYMBOL = 8
    REFUSED = 9
    FAULT = 10
    SIGNATURE = 11
    RESULT = 12
    NOTE = 13
    MEMORY = 14
    EXTENSION = 15
    OCCUPANCY = 16
    SHARED_ROOM = 17
    UNWRITTEN = 18
    REMARK = 19
    MODULE = 20
    MOVED = 21
    DONE = 22
    UNORDERED = 23
    LINK = 24
    KERNELS = 25
    COMPUTE = 26


# What the runtime knows of the device: the fields of host/channel.h's Device and their types, as `struct` has them.
DEVICE = dict.fromkeys(("base", "bytes", "total_memory", "free_memory"), "Q") | dict.fromkeys(
    ("major", "minor", "multiprocessors", "l2_bytes", "shared_per_block", "shared_per_multiprocessor",
     "threads_per_multiprocessor", "blocks_per_multiprocessor"), "i"
)  # fmt: skip


@dataclass(frozen=True)
class HostFinding:
    """A rule that the host code broke: the first of the `count` times at this line."""

    kind: str  # "host crash", "device pointer on the host", "wrong stream" ...
    message: str
    file: str = ""
    line: int = 0
    function: str = ""
    count: int = 1
    kernel: str = "host code"
    ptx: str = ""

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.message}"]
        if self.file:
            where = f"{Path(self.file).name}:{self.line}"
            lines.append(f"    at {where}, host code" + (f", in {self.function}" if self.function else ""))
            if text := source_line(self.file, self.line):
                lines.append(f"    {self.line:>4} | {text}")
        if self.count > 1:
            lines.append(f"    and {self.count - 1} more of this kind at this line")
        return "\n".join(lines)

    @property
    def where(self) -> tuple[object, ...]:
        """The key that merges findings: the kind, and the line of the source."""
        return self.kind, self.file, self.line or self.message

    source = where

    def more(self, count: int) -> HostFinding:
        """This finding, `count` times more."""
        return replace(self, count=self.count + count)


@dataclass(frozen=True)
class ParameterType:
    """A parameter of a launcher, as the compiler sees it (host/call.h)."""

    kind: str  # p pointer, s signed, u unsigned, f floating, b bool, e enumeration, c class, S stream
    pointee: str  # of a pointer: the same of what it points to
    constant: bool  # of a pointer: whether it points to const
    size: int
    pointee_size: int
    name: str  # "const float*"


@dataclass(frozen=True)
class KernelDescription:
    """What the runtime has to know of a kernel. `params`: offset and size of each parameter."""

    static_shared: int
    local: int
    launch_bounds: int  # 0: none
    param_bytes: int
    ptx_version: int  # 80: compiled for compute capability 8.0
    params: Sequence[tuple[int, int]]
    cluster: tuple[int, ...] | None  # blocks of a cluster along x, y, z, if the kernel says so
    name: str  # readable


@dataclass(frozen=True)
class Served:
    """The result of a launch: a cudaError_t, whether the device is lost, and whether device memory may hold undefined
    values, so that copies and fills must be reported (`Request.MOVED`)."""

    code: int
    fatal: bool
    undefined: bool
    refused: str = ""  # why it was not begun
    touched: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.uint64))  # as engine.Past.touched has it


class Device(Protocol):
    """The interface behind the host code's requests; session.py implements it."""

    arena: Arena
    stubs: frozenset[str] = frozenset()  # host functions that stand for kernels: not the user's code

    @property
    def meets_host(self) -> bool:
        """Whether the last launch is made for the host to touch managed memory while it runs."""
        ...

    @property
    def sanitizes(self) -> bool:
        """Whether kernels are checked, and mark what they write."""
        ...

    def describe(self, kernel: str) -> KernelDescription | None: ...

    def launch(
        self,
        configuration: Configuration,
        printed: Callable[[str], None],
        where: Callable[[], tuple[str, int, str]],
        tells: bool = False,
    ) -> Served:
        """Run it; `printed` takes what the kernel prints, as it runs; `where` asks for file, line and function of the
        learner's code that launched it; `tells`: whether the result shall say what it touched."""
        ...

    def symbol(self, name: str) -> tuple[int, int] | None:
        """Address and size of a variable of the module."""
        ...

    def load(self, ptx: str) -> int:
        """The number of one more module, whose names are then "module1:name". UserError if it cannot be read."""
        ...

    def kernels(self, module: str) -> list[str]:
        """The names of the kernels of a module that was loaded: of "module1:"."""
        ...

    def found(self, finding: HostFinding) -> None: ...

    def read_by_host(self, address: int, size: int) -> None:
        """These bytes of device memory go to the host, so that they should have been set."""
        ...

    def written_by_host(self, address: int, size: int) -> None: ...

    def copied(self, to: int, source: int, size: int) -> None:
        """From device memory to device memory."""
        ...

    def noted(self, finding: HostFinding) -> None:
        """Something that may be intended: it is reported, but is not a finding."""
        ...


@dataclass
class Ended:
    """How the host code's process ended. `status`: what the launcher returned, or None if it did not return.
    `code`: the exit status, negative for a signal. `error`: why the launcher's status is what it is."""

    code: int = 0
    status: int | None = None
    error: str = ""
    result: bytes = b""  # of a function of a PyTorch extension, as extension.py reads it
    last_call: str = ""
    crashed: bool = False
    refusals: list[tuple[int, str]] = field(default_factory=list)


@lru_cache
def runner() -> Path:
    """The program that runs host code, compiled if this is the first time."""
    return toolchain.compile_cxx(HERE / "runner.cpp", ["-O1", "-std=c++17", "-ldl"], "runner", after=["-ldl"])


class Host:
    """One process that runs host code. `run` serves it until it ends."""

    def __init__(
        self,
        so: Path,
        gpu: Gpu,
        device: Device,
        arguments: Sequence[Callable[[list[ParameterType]], bytes]] = (),
        argv: Sequence[str] = ("launcher",),
        own_terminal: bool = False,
        timeout: float | None = 60,
        environment: Mapping[str, str] | None = None,
        refused: Callable[[int, str], None] | None = None,
        extension: Callable[[str | None], bytes] | None = None,
        returned: Callable[[bytes], None] | None = None,
    ):
        """`arguments` pack the launcher's arguments once their types are known, those of one call after the other's;
        the first that fails is the last. `argv` is main's. With `own_terminal`
        the program has this process's streams, otherwise what it prints is printed here. `timeout`: seconds of host
        code between two CUDA calls after which it is ended. `refused` hears of errors with their reasons. `extension`
        packs the arguments of a function of a PyTorch extension, given its parameters (None: there is no such
        function), and `returned` gets its result while the process still holds the memory."""
        self.so, self.gpu, self.device = so, gpu, device
        self.arguments, self.argv, self.own_terminal, self.timeout = list(arguments), argv, own_terminal, timeout
        self._types: list[ParameterType] = []
        self._calls_a_launcher = bool(self.arguments)
        self.environment, self.refused = environment or {}, refused
        self.extension, self.returned = extension, returned
        self.ended = Ended()
        self._kinds = {0: "cudaMalloc", 1: "cudaMallocManaged", 2: "cudaMallocHost", 3: "cudaHostRegister"}
        self._allocated = 0
        self._streams: dict[Any, _Passed] = {}  # of the program, to be passed on
        self._open = True  # the channel
        self._heard, self._known_calls = 0.0, 0
        self._callers: dict[int, Sequence[int]] = {}  # of an allocation, by its address: where it was made
        self._allocating: dict[tuple[int, ...], None] = {}  # all places where one was made, in their order
        self._freeing: dict[int, Sequence[int]] = {}  # of what is freed, by its address: where that was
        self._generators: dict[int, randoms.Generator] = {}  # of cuRAND, by the numbers of their states

    def run(self) -> Ended:
        """Run the host code to its end, serving its requests. An exception in a request ends it and is raised here."""
        hold_standard_descriptors()
        ours, theirs = socket.socketpair()
        arena = self.device.arena
        command = [str(runner()), str(self.so), *self.argv]
        environment = {**os.environ, **self.environment, "EMULATOR_CHANNEL": f"{theirs.fileno()},{arena.file}"}
        pipes: dict[str, Any] = {}
        if not self.own_terminal:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            with ours, theirs:
                process = subprocess.Popen(command, env=environment, pass_fds=(theirs.fileno(), arena.file), **pipes)
                theirs.close()
                arena.host = process.pid
                self._channel, self._process, self._heard = ours, process, time.monotonic()
                if not self.own_terminal:
                    self._streams = {process.stdout: _Passed(sys.stdout), process.stderr: _Passed(sys.stderr)}
                try:
                    self._serve()
                except BaseException:
                    process.kill()
                    raise
                finally:
                    self._finish(process)
        except OSError as error:
            where = f"; CUDAEMU_CACHE must be a folder that programs can run from, got {cache.folder()}"
            said = f"the host code's process does not start: {error.strerror}"
            raise UserError(said + (where if isinstance(error, PermissionError) else "")) from error
        self._say_how_it_ended(process.returncode)
        return self.ended

    # ---- the conversation --------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (asked := self._hear()) is not None:
            request, reader = asked
            answer = self._answer(request, reader)
            self._heard = time.monotonic()
            self._send(answer)

    def _send(self, answer: bytes) -> None:
        with suppress(BrokenPipeError):  # the other side is gone: the next read notices
            self._channel.sendall(struct.pack("=I", len(answer)) + answer)

    def _hear(self) -> tuple[Request, Reader] | None:
        """The next request, passing on what the program prints meanwhile; None if there will be none."""
        while True:
            waiting = [*([self._channel] if self._open else []), *self._streams]
            ready = _ready(waiting) if waiting else []
            for stream in ready:
                if stream is not self._channel and not self._streams[stream].take(stream):
                    del self._streams[stream]
            if self._channel in ready:
                if asked := _receive(self._channel):
                    with suppress(ValueError):
                        return Request(int.from_bytes(asked[:4], sys.byteorder)), Reader(asked, _HEAD)
                    self.ended.crashed = True
                    self._found("host crash", WROTE_HERE)
                    self._process.kill()
                self._open = False
            if not waiting or (self.own_terminal and not self._open):
                return None
            if not ready and self._process.poll() is not None:
                return None  # a child that inherited its channel and streams may still run
            if self.timeout and self._open and time.monotonic() - self._heard > self.timeout:
                if self._known_calls != (calls := self._calls()):  # those that needed nothing from here
                    self._heard, self._known_calls = time.monotonic(), calls
                    continue
                self.ended.crashed = True
                self._found("endless host code", KILLED_FOR_SILENCE.format(self.timeout) + self._after())
                self._process.kill()
                self.timeout = None

    def _print(self, text: str) -> None:
        """Have the program print, among what it prints itself, what a kernel that runs has printed."""
        self._tell(GO_PRINT, text.encode(errors="replace"))

    def _where(self) -> tuple[str, int, str]:
        """File, line and function of the user's code that waits for a kernel."""
        return self._locate(self._tell(GO_LOOK).offsets())

    def _tell(self, what: int, data: bytes = b"") -> Reader:
        """Have the program, which waits for a kernel, do something; its answer."""
        self._send(struct.pack("=I", what) + data)
        asked = self._hear()
        if asked is not None and asked[0] is not Request.DONE:
            raise RuntimeError(f"a program that waits for a kernel asks for {asked[0].name}")
        return Reader(struct.pack("=I", 0), 0) if asked is None else asked[1]

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        self.device.arena.host = None
        while True:
            try:
                process.wait()
                break
            except KeyboardInterrupt:
                process.kill()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        self.ended.last_call = self._last_call()
        ctypes.memset(self.device.arena.base, 0, memory.PAGE)

    def _last_call(self) -> str:
        """The program's last CUDA call, as its runtime records it in the first page of memory."""
        return ctypes.string_at(self.device.arena.base, _NAME).split(b"\0")[0].decode(errors="replace")

    def _calls(self) -> int:
        """How many it has made."""
        return ctypes.c_uint64.from_address(self.device.arena.base + _NAME).value

    def _after(self) -> str:
        name = self._last_call()
        return f"; its last CUDA call was {name}" if name else "; it had not called CUDA"

    def _say_how_it_ended(self, code: int) -> None:
        self.ended.code = code
        if code == 127 and not self.ended.last_call and self.ended.status is None and self.arguments is not None:
            raise UserError(f"{self.so} cannot be loaded: see the message above")
        if self.ended.crashed or self.ended.status is not None:
            return
        after = f"; its last CUDA call was {self.ended.last_call}" if self.ended.last_call else ""
        if code < 0:
            self.ended.crashed = True
            self._found("host crash", f"the host code was ended by {_signal_name(-code)}{after}")
        elif self._calls_a_launcher or self.extension is not None:
            self.ended.crashed = True
            self._found(
                "host exit", f"the launcher ended the process with exit status {code} instead of returning{after}"
            )

    def _answer(self, request: Request, reader: Reader) -> bytes:
        answer = _ANSWERS[request](self, reader)
        if reader.left:
            raise RuntimeError(f"{request.name} has {reader.left} bytes more in host/*.h than in process.py")
        return answer

    def _hello(self, reader: Reader) -> bytes:
        gpu = self.gpu
        fields = {
            "base": self.device.arena.base,
            "bytes": memory.ARENA_BYTES,
            "total_memory": memory.total_memory(),
            "free_memory": self.device.arena.available(),
            "major": gpu.arch.major,
            "minor": gpu.arch.minor,
            "multiprocessors": gpu.sms,
            "l2_bytes": gpu.l2_mb << 20,
            "shared_per_block": gpu.shared_per_block,
            "shared_per_multiprocessor": gpu.shared_kb * 1024,
            "threads_per_multiprocessor": gpu.warps * 32,
            "blocks_per_multiprocessor": gpu.blocks,
        }
        return struct.pack("=" + "".join(DEVICE.values()), *(fields[name] for name in DEVICE))

    def _kernel(self, reader: Reader) -> bytes:
        found = self.device.describe(reader.text())
        if found is None:
            return b""
        head = struct.pack(
            "=QQ4I",
            *(found.static_shared, found.local, found.launch_bounds, found.param_bytes),
            *(found.ptx_version, len(found.params)),
        )
        params = b"".join(struct.pack("=II", *param) for param in found.params)
        cluster = struct.pack("=3I", *(found.cluster or (0, 0, 0)))
        return head + params + cluster + found.name.encode()

    def _launch(self, reader: Reader) -> bytes:
        sizes = reader.take("9I")
        cooperative, early, shared = reader.take("IIQ")
        kernel, params = reader.text(), reader.data()
        (tells,) = reader.take("I")
        served = self.device.launch(
            Configuration(
                kernel,
                grid=sizes[:3],
                block=sizes[3:6],
                shared=shared,
                params=params,
                cluster=sizes[6:] if sizes[6] else None,
                cooperative=bool(cooperative),
                early=bool(early),
            ),
            self._print,
            self._where,
            bool(tells),
        )
        self._heard = time.monotonic()
        if served.refused:
            self._refuse(served.code, served.refused)
        head = struct.pack("=IiIII", 0, served.code, served.fatal, served.undefined, len(served.touched))
        return head + served.touched.tobytes()

    def _allocate(self, reader: Reader) -> bytes:
        size, kind, offset = reader.take("QQQ")
        offsets = reader.offsets()
        self._allocated += 1
        call = self._kinds[kind]
        made = self.device.arena.allocate(f"{call} {self._allocated}", size, offset, initialised=kind != 0)
        if made is None:
            free = self.device.arena.available()
            self._refuse(2, f"{call}: {size:,} bytes, and {free:,} of the device's memory are free", offsets)
            return struct.pack("=Q", 0)
        self._allocating[offsets] = None
        made.mapped = kind != 0
        made.called = lambda: self._name_of(made.name, offsets)
        if kind != 3:  # which nobody has to free
            self._callers[made.base] = offsets
        return struct.pack("=Q", made.base)

    def _name_of(self, name: str, offsets: Sequence[int]) -> str:
        """The name in the source of the pointer that got an allocation: "d_in (cudaMalloc 1, line 30)"."""
        file, line, _ = self._locate(offsets)
        if not line:
            return name
        names = _given(source_line(file, line))
        given = names[0] if len(names) == 1 else self._given_there(names, file, line, offsets)
        return f"{given} ({name}, line {line})" if given else f"{name} (line {line})"

    def _given_there(self, names: list[str], file: str, line: int, offsets: Sequence[int]) -> str:
        """Of the pointers that one line gives to calls, that of one call; nothing if it is not sure which that is."""
        here = [made for made in self._allocating if self._locate(made)[:2] == (file, line)]
        calls = list(dict.fromkeys(map(self._own_frame, here)))  # in the order in which they were first made
        return names[calls.index(self._own_frame(offsets))] if len(calls) == len(names) else ""

    def _own_frame(self, offsets: Sequence[int]) -> int:
        """The innermost place in the user's code."""
        return next((offset for offset in offsets if self._locate((offset,))[1]), 0)

    def find_leaks(self) -> None:
        """Report the memory that the host code allocated and did not free, now that it has ended."""
        arena = self.device.arena
        for allocation in arena.allocations:
            if allocation.base in self._callers and not allocation.variable:
                message = f"{arena.describe(allocation.base).removesuffix(' + 0 bytes')}: {allocation.size:,} bytes"
                place = self._locate(self._callers[allocation.base])
                self.device.found(HostFinding("leak", f"{message}, not freed when the program ends", *place))

    def _release(self, reader: Reader) -> bytes:
        (address,) = reader.take("Q")
        arena, here = self.device.arena, reader.offsets()
        found = next((a for a in arena.allocations if a.base == address and not a.variable and a.array is None), None)
        if found is None and (freed := next((a for a in arena.freed if a.base == address), None)):
            file, line, _ = self._locate(self._freeing.get(address, ()))
            name = freed.describe(address).removesuffix(" + 0 bytes")
            why = f"{name} was freed before" + (f", at {Path(file).name}:{line}" if line else "")
            self.device.found(HostFinding("double free", why, *self._locate(here)))
            return struct.pack("=i", INVALID_VALUE) + f"cudaFree: {why}".encode()
        if found is None:
            why = f"cudaFree: {arena.describe(address)} is not the start of an allocation"
            return struct.pack("=i", INVALID_VALUE) + why.encode()
        arena.free(found)
        self._freeing[address] = here
        self.device.written_by_host(address, found.size)  # the next owner starts afresh
        return struct.pack("=i", SUCCESS)

    def _find(self, reader: Reader) -> bytes:
        found = self.device.arena.find(*reader.take("Q"))
        return struct.pack("=QQ", *((found.base, found.size) if found else (0, 0)))

    def _outside(self, reader: Reader) -> bytes:
        """A copy or a fill goes outside of memory, or beyond its end."""
        call, arena = reader.text(), self.device.arena
        address, size = reader.take("QQ")
        found = arena.find(address)
        end = f" (it has {found.base + found.size - address:,} from there)" if found else ""
        return f"{call}: {size:,} bytes at {arena.describe(address)}{end}".encode()

    def _moved(self, reader: Reader) -> bytes:
        """The stand-in has copied, or filled (no source), while undefined values were in device memory."""
        to, source, size = reader.take("QQQ")
        if to in self.device.arena and source in self.device.arena:
            self.device.copied(to, source, size)
        elif to in self.device.arena:
            self.device.written_by_host(to, size)
        else:
            self.device.read_by_host(source, size)
        return b""

    def _compute(self, reader: Reader) -> bytes:
        """Work of a library on device memory (host/library.h)."""
        call, operation = reader.text(), reader.text()
        undefined, count = reader.take("II")
        operands = [_operand(reader) for _ in range(count)]
        (count,) = reader.take("I")
        numbers, here = reader.take(f"{count}q"), reader.offsets()
        device = self.device
        work = compute.Work(
            *(call, device.arena, operands, numbers),
            found=lambda kind, message: device.found(HostFinding(kind, message, *self._locate(here))),
            reads=device.read_by_host if undefined else None,
            sets=device.written_by_host if undefined else None,
            marked=device.sanitizes,
            kept=self._generators,
        )
        return struct.pack("=i", compute.run(operation, work)) + work.results

    def _unwritten(self, reader: Reader) -> bytes:
        """Note unwritten memory that is copied to the host, except single bytes, which are padding."""
        call, arena = reader.text(), self.device.arena
        address, size = reader.take("QQ")
        if self.device.sanitizes and (found := arena.find(address)):
            start = address - found.base
            words = found.unwritten(slice(start, start + size // 4 * 4)).reshape(-1, 4).all(axis=1)
            first, missing = arena.describe(address + 4 * int(words.argmax())), 4 * int(words.sum())
            message = f"{call}: {missing:,} of {size:,} bytes have never been written, the first at {first}"
            self.device.noted(HostFinding("uninitialised copy to the host", message))
        return b""

    def _remark(self, reader: Reader) -> bytes:
        self.device.noted(HostFinding(reader.text(), reader.text()))
        return b""

    def _symbol(self, reader: Reader) -> bytes:
        return struct.pack("=QQ", *(self.device.symbol(reader.text()) or (0, 0)))

    def _module(self, reader: Reader) -> bytes:
        try:
            return struct.pack("=I", self.device.load(reader.text()))
        except UserError as error:
            return struct.pack("=I", 0) + f"the module cannot be loaded: {error}".encode()

    def _link(self, reader: Reader) -> bytes:
        """Several texts of PTX as one, or why that cannot be."""
        parts = [(reader.text(), reader.text()) for _ in range(reader.take("I")[0])]
        try:
            linked = link.link([text for _, text in parts], [name for name, _ in parts], relocatable=True)
        except UserError as error:
            return struct.pack("=I", 0) + f"linking fails: {error}".encode()
        return struct.pack("=I", 1) + linked.encode()

    def _kernels(self, reader: Reader) -> bytes:
        names = self.device.kernels(reader.text())
        return struct.pack("=I", len(names)) + b"".join(name.encode() + b"\0" for name in names)

    def _memory(self, reader: Reader) -> bytes:
        return struct.pack("=Q", self.device.arena.available())

    def _occupancy(self, reader: Reader) -> bytes:
        threads, shared = reader.take("IQ")
        return struct.pack("=i", hardware.occupancy(self.gpu, threads, None, shared).blocks)

    def _shared_room(self, reader: Reader) -> bytes:
        return struct.pack("=Q", hardware.shared_room(self.gpu, *reader.take("I")))

    def _refused(self, reader: Reader) -> bytes:
        (code,) = reader.take("i")
        self._refuse(code, reader.text(), reader.offsets())
        return b""

    def _refuse(self, code: int, why: str, offsets: Sequence[int] = ()) -> None:
        file, line, _ = self._locate(offsets)
        why += f" ({Path(file).name}:{line})" if line else ""
        self.ended.refusals.append((code, why))
        if self.refused:
            self.refused(code, why)

    def _fault(self, reader: Reader) -> bytes:
        number, address, early, stack = reader.take("iQIQ")
        is_full = number == signal.SIGSEGV and abs(address - stack) < _STACK_REACH
        find = locate if is_full else locate_fault
        file, line, function = find(self.so, reader.offsets(), self.device.stubs)
        arena = self.device.arena
        if early and self.device.meets_host:
            return b""
        if early:
            what = f"{arena.describe(address)} while a kernel may still use it: cudaDeviceSynchronize is missing"
            self.device.found(HostFinding("managed memory too early", what, file, line, function))
            return b""
        self.ended.crashed = True
        after = self._after()
        if address in arena:
            what = f"host code reads or writes {arena.describe(address)}, which only kernels and copies may{after}"
            self.device.found(HostFinding("device pointer on the host", what, file, line, function))
        elif is_full:
            what = f"the host code's stack is full: endless recursion, or large local arrays{after}"
            self.device.found(HostFinding("host crash", what, file, line, function))
        else:
            at = f" at address {address:#x}" if address else ""
            self.device.found(HostFinding("host crash", f"{_signal_name(number)}{at}{after}", file, line, function))
        return b""

    def _note(self, reader: Reader) -> bytes:
        kind, message = reader.text(), reader.text()
        self.device.found(HostFinding(kind, message, *self._locate(reader.offsets())))
        return b""

    def _unordered(self, reader: Reader) -> bytes:
        """Work in one stream, or host code (no name), touches what earlier work of another stream may still use."""
        address, earlier_writes, writes = reader.take("QII")
        before, now = reader.text(), reader.text()
        there, here = self._locate(reader.offsets()), reader.offsets()
        place = f" ({Path(there[0]).name}:{there[1]})" if there[1] else ""
        what = self.device.arena.describe(address)
        if now:
            help_ = "cudaEventRecord behind it and cudaStreamWaitEvent in this stream, or a synchronisation, is missing"
            said = (
                f"{now} {'writes' if writes else 'reads'} {what}, which {before}{place} "
                f"{'writes' if earlier_writes else 'reads'} in another stream and may still be at: {help_}"
            )
            self.device.found(HostFinding("race between streams", said, *self._locate(here)))
        elif not self.device.meets_host:
            said = (
                f"{what}, which {before}{place} may still {'write' if earlier_writes else 'read'}: "
                "cudaStreamSynchronize, or cudaEventSynchronize of an event behind it, is missing"
            )
            place_here = locate_fault(self.so, here, self.device.stubs)
            self.device.found(HostFinding("pinned memory too early", said, *place_here))
        return b""

    def _found(self, kind: str, message: str) -> None:
        self.device.found(HostFinding(kind, message))

    def _signature(self, reader: Reader) -> bytes:
        for _ in range(reader.take("I")[0]):
            kind, pointee, constant = reader.take("ccc")
            size, pointee_size = reader.take("II")
            text = reader.text()
            named = re.search(r"T = (.*?)(?:;.*)?\]$", text)
            name = named[1] if named else text
            kinds = kind.decode(), pointee.decode(), constant != b"\0"
            self._types.append(ParameterType(*kinds, size, pointee_size, name))
        return self._next_arguments()

    def _next_arguments(self) -> bytes:
        return self.arguments.pop(0)(self._types) if self.arguments else b""

    def _result(self, reader: Reader) -> bytes:
        (self.ended.status,) = reader.take("i")
        self.ended.error = reader.text()
        self.ended.result = reader.data()
        if self.returned is not None and self.ended.status == 0:
            self.returned(self.ended.result)
        return self._next_arguments() if self.ended.status == 0 else b""

    def _extension(self, reader: Reader) -> bytes:
        (known,) = reader.take("I")
        return self.extension(reader.text() if known else None) if self.extension else b""

    def _locate(self, offsets: Sequence[int]) -> tuple[str, int, str]:
        """File, line and function of the innermost frame in the user's code."""
        return locate(self.so, tuple(offsets), self.device.stubs)


_REQUESTS = frozenset(Request)
_ANSWERS: Mapping[Request, Callable[[Host, Reader], bytes]] = {
    Request.HELLO: Host._hello,
    Request.KERNEL: Host._kernel,
    Request.LAUNCH: Host._launch,
    Request.ALLOCATE: Host._allocate,
    Request.RELEASE: Host._release,
    Request.FIND: Host._find,
    Request.OUTSIDE: Host._outside,
    Request.SYMBOL: Host._symbol,
    Request.REFUSED: Host._refused,
    Request.FAULT: Host._fault,
    Request.SIGNATURE: Host._signature,
    Request.RESULT: Host._result,
    Request.NOTE: Host._note,
    Request.MEMORY: Host._memory,
    Request.EXTENSION: Host._extension,
    Request.OCCUPANCY: Host._occupancy,
    Request.SHARED_ROOM: Host._shared_room,
    Request.UNWRITTEN: Host._unwritten,
    Request.REMARK: Host._remark,
    Request.MODULE: Host._module,
    Request.MOVED: Host._moved,
    Request.UNORDERED: Host._unordered,
    Request.LINK: Host._link,
    Request.KERNELS: Host._kernels,
    Request.COMPUTE: Host._compute,
}  # DONE answers what is said while a kernel runs
_layout = lru_cache(struct.Struct)


class Reader:
    """The fields of a request, one after the other."""

    def __init__(self, data: bytes, at: int):
        self._data, self._at = data, at

    def take(self, layout: str) -> tuple[Any, ...]:
        fields = _layout("=" + layout)
        self._at += fields.size
        return fields.unpack_from(self._data, self._at - fields.size)

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self._at

    def data(self) -> bytes:
        (size,) = self.take("I")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.data().decode(errors="replace")

    def offsets(self) -> tuple[int, ...]:
        (count,) = self.take("I")
        return self.take(f"{count}Q")


def _operand(reader: Reader) -> compute.Operand:
    name, (type_, how) = reader.text(), reader.take("II")
    shape, steps = reader.take("3q"), reader.take("3q")
    at, count = reader.take("QI")
    return compute.Operand(name, type_, how, shape, steps, at, reader.take(f"{count}Q"), reader.data())


class _Passed:
    """A stream of the program, passed on to one of this process (None: it has none) as text."""

    def __init__(self, to: TextIO | None):
        self.to, self.decoder = to, codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, stream: Any) -> bool:
        """Pass on what is there; False if the stream has ended."""
        piece = os.read(stream.fileno(), 1 << 16)
        if self.to is not None:
            self.to.write(self.decoder.decode(piece, final=not piece))
        return bool(piece)


def _ready(waiting: Sequence[Any]) -> list[Any]:
    """Those from which something can be read within half a second. For the first _SOON it does not sleep: to wake up
    takes longer than the program takes from one launch to the next."""
    until = time.perf_counter() + _SOON
    while not (ready := select.select(waiting, [], [], 0)[0]) and time.perf_counter() < until:
        os.sched_yield()
    return ready or select.select(waiting, [], [], 0.5)[0]


def _receive(channel: socket.socket) -> bytes:
    """A whole request: one is made at a time. Nothing if the other side is gone; as it is if that is no request."""
    got, size = b"", _HEAD
    while len(got) < size:
        try:
            piece = channel.recv(1 << 16)
        except ConnectionResetError:
            return b""
        if not piece:
            return b""
        got += piece
        if len(got) >= _HEAD:
            known = int.from_bytes(got[:4], sys.byteorder) in _REQUESTS
            size = _HEAD + int.from_bytes(got[4:8], sys.byteorder) if known else _HEAD
    return got


@lru_cache(maxsize=1024)
def locate(so: Path, offsets: tuple[int, ...], stubs: frozenset[str] = frozenset()) -> tuple[str, int, str]:
    """File, line and function of the first of these places in a shared object that is in the user's source."""
    file, line, function = next((place for place in _places(so, offsets) if _is_users(place, stubs)), ("", 0, ""))
    return file, line, function.partition("(")[0]


def locate_fault(so: Path, offsets: tuple[int, ...], stubs: frozenset[str] = frozenset()) -> tuple[str, int, str]:
    """Likewise, if the first is an instruction that has failed. One to which the compiler gave no line seems to be on
    the line before; among the first ones of a function, where that begins: what is meant then is the line that
    follows."""
    begin = _begin_of_function(so, offsets[0]) if offsets else None
    first = next(_places(so, () if begin is None else (begin,)), ("", 0, ""))
    if first == next(_places(so, offsets[:1]), None):
        following = tuple(range(offsets[0] + 1, offsets[0] + 1 + _FEW_INSTRUCTIONS))
        for place in _places(so, following):
            if place != first and place[2] == first[2] and _is_users(place, stubs):
                return *place[:2], place[2].partition("(")[0]
    return locate(so, offsets, stubs)


def _places(so: Path, offsets: tuple[int, ...]) -> Iterator[tuple[str, int, str]]:
    """Of each place those that it was expanded in after its own."""
    said = ""
    with suppress(UserError):
        said = toolchain.run(["addr2line", "-e", so, "-i", "-f", "-C", *map(hex, offsets)]) if offsets else ""
    lines = said.splitlines()
    for function, place in zip(lines[::2], lines[1::2]):
        file, _, line = re.sub(r" \(discriminator \d+\)$", "", place).rpartition(":")
        yield file, int(line) if line.isdigit() else 0, function


def _is_users(place: tuple[str, int, str], stubs: frozenset[str]) -> bool:
    file, line, function = place
    foreign = file.startswith(("/usr/", "??", str(HERE))) or bool(library_of(file))
    foreign = foreign or function.replace(UNNAMED, "").partition("(")[0].partition("<")[0] in stubs
    return not foreign and not Path(file).name.startswith(("emulator_", "tmpxft")) and line > 0


def _begin_of_function(so: Path, offset: int) -> int | None:
    begins: list[int] = []
    with suppress(UserError):
        symbols = [line.split() for line in toolchain.run(["nm", "--defined-only", so]).splitlines()]
        begins = [int(words[0], 16) for words in symbols if len(words) == 3 and words[1] in "tTwW"]
    return max((begin for begin in begins if begin <= offset), default=None)


def library_of(file: str) -> str:
    """The library that a source file belongs to, of the toolkit or CUTLASS; nothing if it is of none."""
    path = os.path.normpath(file)
    if CUTLASS.search(path):
        return "CUTLASS"
    headers = TOOLKIT.search(path)
    if not headers:
        return ""
    names = path[headers.end() :].split(os.sep)
    return next((told for name, told in LIBRARIES.items() if name in names), "the CUDA toolkit")


def source_line(file: str, line: int) -> str:
    linecache.checkcache(file)  # the user may have edited it since
    return linecache.getline(file, line).strip()


def _given(line: str) -> list[str]:
    """The pointers that a line gives to allocating functions: "d_in" of `cudaMalloc((void **)&d_in, bytes);`. Nothing
    of a line with several that are perhaps not all executed, in the order in which they stand there."""
    code, names = cpp.code(line), []
    for found in re.finditer(r"(?:Malloc\w*|HostAlloc)\s*\(", code):
        first = (cpp.arguments(code, found.end() - 1) or [""])[0]
        given = re.search(r"&\s*([\w.\[\]>-]+)\)?$", first)
        names.append(given[1] if given else "")
    in_doubt = re.search(r"\b(if|else|for|while|case|return)\b|\?|&&|\|\||\{", code)
    return names if len(names) == 1 or not in_doubt else []


def _signal_name(number: int) -> str:
    words: dict[int, str] = {
        signal.SIGSEGV: "a segmentation fault",
        signal.SIGABRT: "abort (an assertion or an uncaught exception)",
        signal.SIGFPE: "an arithmetic exception (a division by zero?)",
        signal.SIGBUS: "a bus error",
        signal.SIGILL: "an illegal instruction",
    }
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{words[number]} ({name})" if number in words else name
