"""The host code of a .cu file, run in a process of its own: whatever it does, it does not do it to this one.

That process runs host/runner.cpp, which opens the shared object and calls its launcher or its main. The stand-in
runtime in there (host/runtime.cpp) knows streams, events, limits and error codes; what concerns the device it asks
here, through a socket: one request, one answer. Device memory is a file that both processes map (memory.py).
"""

from __future__ import annotations

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from cudaemu import cpp, hardware, memory
from cudaemu.compiler import toolchain
from cudaemu.compiler.symbols import UNNAMED
from cudaemu.errors import UserError
from cudaemu.hardware import Gpu
from cudaemu.memory import Arena

# One name for it, and so one build, also in notebooks, which find this by way of "..".
HERE = Path(__file__).resolve().with_name("host")
TOOLKIT = re.compile(r"/(nvidia/[^/]+|cuda[-.\d]*)/(targets/[^/]+/)?include/")  # its headers
SUCCESS, INVALID_VALUE, UNKNOWN = 0, 1, 999  # cudaSuccess, cudaErrorInvalidValue, cudaErrorUnknown
KILLED_FOR_SILENCE = "the host code has run for {:.0f} s without calling CUDA or ending: an endless loop?"
_STACK_REACH = 1 << 16  # bytes: a fault so near to the stack pointer is the stack's end


class Request(IntEnum):
    """What the stand-in runtime asks; the numbers and the layouts are those of runtime.cpp."""

    HELLO = 1
    KERNEL = 2
    LAUNCH = 3
    ALLOCATE = 4
    RELEASE = 5
    FILL = 6
    COPY = 7
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


@dataclass(frozen=True)
class HostFinding:
    """A rule that the host code broke: the first of the `count` times that this line broke it."""

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
            if text := _source_line(self.file, self.line):
                lines.append(f"    {self.line:>4} | {text}")
        if self.count > 1:
            lines.append(f"    and {self.count - 1} more of this kind at this line")
        return "\n".join(lines)

    @property
    def where(self) -> tuple[object, ...]:
        return self.kind, self.file, self.line or self.message

    def more(self, count: int) -> HostFinding:
        """This finding, met `count` times more."""
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
class HostLaunch:
    """What a `<<<>>>` within the limits asked for. `early`: it may begin before the one before it has ended."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None  # if the launch or the kernel names one
    shared: int  # dynamic, bytes
    params: bytes
    cooperative: bool
    early: bool


@dataclass(frozen=True)
class Served:
    """What a launch came to: a cudaError_t, whether the device is lost by it, what the kernel printed."""

    code: int
    fatal: bool
    output: str


class Device(Protocol):
    """What the host code's requests need; session.py has the one that emulates."""

    arena: Arena
    meets_host: bool  # the last launch uses the system's scope: managed memory may be touched meanwhile
    stubs: frozenset[str] = frozenset()  # host functions that stand for kernels: no place of the learner's

    def describe(self, kernel: str) -> KernelDescription | None: ...

    def launch(self, request: HostLaunch) -> Served: ...

    def symbol(self, name: str) -> tuple[int, int] | None:
        """Address and size of a variable of the module."""
        ...

    def found(self, finding: HostFinding) -> None: ...

    def read_by_host(self, address: int, size: int) -> None:
        """These bytes of device memory go to the host; so that they should have been set."""
        ...

    def written_by_host(self, address: int, size: int) -> None: ...

    def copied(self, to: int, source: int, size: int) -> None:
        """From device memory to device memory."""
        ...

    def noted(self, finding: HostFinding) -> None:
        """Something that may be meant: it is told, but is no finding."""
        ...


@dataclass
class Ended:
    """How the host code's process ended. `status`: what the launcher returned, or None if it did not come to that.
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
        arguments: Callable[[list[ParameterType]], bytes] | None = None,
        argv: Sequence[str] = ("launcher",),
        own_terminal: bool = False,
        timeout: float | None = 60,
        environment: Mapping[str, str] | None = None,
        refused: Callable[[int, str], None] | None = None,
        extension: Callable[[str | None], bytes] | None = None,
        returned: Callable[[bytes], None] | None = None,
    ):
        """`arguments` packs the launcher's arguments once their types are known; `argv` is main's. With `own_terminal`
        the program has this process's streams, otherwise what it prints is printed here. `timeout`: seconds of host
        code between two CUDA calls after which it is ended. `refused` hears of errors with their reasons. `extension`
        packs the arguments of a function of a PyTorch extension, given its parameters (None: there is no such
        function), and `returned` gets its result while the process still holds the memory."""
        self.so, self.gpu, self.device = so, gpu, device
        self.arguments, self.argv, self.own_terminal, self.timeout = arguments, argv, own_terminal, timeout
        self.environment, self.refused = environment or {}, refused
        self.extension, self.returned = extension, returned
        self.ended = Ended()
        self._kinds = {0: "cudaMalloc", 1: "cudaMallocManaged", 2: "cudaMallocHost"}
        self._allocated = 0
        self._callers: dict[int, Sequence[int]] = {}  # of an allocation, by its address: where it was made

    def run(self) -> Ended:
        """Run the host code to its end, serving its requests. What a request raises ends it, and comes out here."""
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
                try:
                    self._serve(ours, process)
                except BaseException:
                    process.kill()
                    raise
                finally:
                    self._finish(process)
        except OSError as error:
            raise UserError(f"the host code's process does not start: {error.strerror}") from error
        self._say_how_it_ended(process.returncode)
        return self.ended

    # ---- the conversation --------------------------------------------------------------------------------------------

    def _serve(self, channel: socket.socket, process: subprocess.Popen) -> None:
        streams: dict[Any, Any] = {}
        if not self.own_terminal:
            streams = {process.stdout: sys.stdout, process.stderr: sys.stderr}
        waiting: list[Any] = [channel, *streams]
        heard = time.monotonic()
        while waiting:
            ready, _, _ = select.select(waiting, [], [], 0.5)
            for source in ready:
                if source is not channel:
                    if not self._pump(source, streams[source]):
                        waiting.remove(source)
                    continue
                head = _receive(channel, 8)
                if not head:
                    waiting.remove(channel)
                    if self.own_terminal:
                        return
                    continue
                kind, size = struct.unpack("=II", head)
                answer = self._answer(Request(kind), _Reader(_receive(channel, size)))
                heard = time.monotonic()
                try:
                    channel.sendall(struct.pack("=I", len(answer)) + answer)
                except BrokenPipeError:
                    waiting.remove(channel)
            if self.timeout and channel in waiting and time.monotonic() - heard > self.timeout:
                self.ended.crashed = True
                self._found("endless host code", KILLED_FOR_SILENCE.format(self.timeout) + self._after())
                process.kill()
                self.timeout = None
            if channel not in waiting and process.poll() is not None:
                for stream, to in streams.items():  # a grandchild may hold the pipe open: take what is there
                    while select.select([stream], [], [], 0)[0] and self._pump(stream, to):
                        pass
                return

    @staticmethod
    def _pump(stream: Any, to: Any) -> bool:
        piece = os.read(stream.fileno(), 1 << 16)
        to.write(piece.decode(errors="replace"))
        return bool(piece)

    def _finish(self, process: subprocess.Popen) -> None:
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

    def _last_call(self) -> str:
        name = ctypes.string_at(self.device.arena.base, 64).split(b"\0")[0].decode(errors="replace")
        ctypes.memset(self.device.arena.base, 0, 64)
        return name

    def _after(self) -> str:
        name = ctypes.string_at(self.device.arena.base, 64).split(b"\0")[0].decode(errors="replace")
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
        elif self.arguments is not None or self.extension is not None:
            self.ended.crashed = True
            self._found(
                "host exit", f"the launcher ended the process with exit status {code} instead of returning{after}"
            )

    def _answer(self, request: Request, reader: _Reader) -> bytes:
        return getattr(self, "_" + request.name.lower())(reader) or b""

    def _hello(self, reader: _Reader) -> bytes:
        gpu = self.gpu
        return struct.pack(
            "=4Q8i",
            *(self.device.arena.base, memory.ARENA_BYTES, memory.total_memory(), memory.available_memory()),
            gpu.arch.major,
            gpu.arch.minor,
            *(gpu.sms, gpu.l2_mb << 20, gpu.shared_per_block, gpu.shared_kb * 1024, gpu.warps * 32, gpu.blocks),
        )

    def _kernel(self, reader: _Reader) -> bytes:
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

    def _launch(self, reader: _Reader) -> bytes:
        sizes = reader.take("9I")
        cooperative, early, shared = reader.take("IIQ")
        kernel, params = reader.text(), reader.data()
        served = self.device.launch(
            HostLaunch(
                *(kernel, sizes[:3], sizes[3:6], sizes[6:] if sizes[6] else None),
                *(shared, params, bool(cooperative), bool(early)),
            )
        )
        return struct.pack("=iI", served.code, served.fatal) + served.output.encode(errors="replace")

    def _allocate(self, reader: _Reader) -> bytes:
        size, kind = reader.take("QQ")
        offsets = reader.offsets()
        self._allocated += 1
        call = self._kinds[kind]
        made = self.device.arena.allocate(f"{call} {self._allocated}", size, initialised=kind != 0)
        if made is None:
            free = memory.available_memory()
            self._refuse(2, f"{call}: {size:,} bytes, and {free:,} of the device's memory are free")
            return struct.pack("=Q", 0)
        made.called = lambda: self._name_of(made.name, offsets)
        self._callers[made.base] = offsets
        return struct.pack("=Q", made.base)

    def _name_of(self, name: str, offsets: Sequence[int]) -> str:
        """What the source calls the pointer that an allocation was given to: "d_in (cudaMalloc 1, line 30)"."""
        file, line, _ = self._locate(offsets)
        if not line:
            return name
        given = _given(_source_line(file, line))
        return f"{given} ({name}, line {line})" if given else f"{name} (line {line})"

    def find_leaks(self) -> None:
        """Report the memory that the host code has asked for and not freed, now that it has ended."""
        arena = self.device.arena
        for allocation in arena.allocations:
            if allocation.base in self._callers and not allocation.variable:
                message = f"{arena.describe(allocation.base).removesuffix(' + 0 bytes')}: {allocation.size:,} bytes"
                place = self._locate(self._callers[allocation.base])
                self.device.found(
                    HostFinding("leak", f"{message}, which nobody has freed when the program ends", *place)
                )

    def _release(self, reader: _Reader) -> bytes:
        (address,) = reader.take("Q")
        arena = self.device.arena
        found = next((a for a in arena.allocations if a.base == address and not a.variable and a.array is None), None)
        if found is None:
            self._refuse(INVALID_VALUE, f"cudaFree: {arena.describe(address)} is not the start of an allocation")
            return struct.pack("=i", INVALID_VALUE)
        arena.free(found)
        self.device.written_by_host(address, found.size)  # whoever gets it next begins anew
        return struct.pack("=i", SUCCESS)

    def _range(self, call: str, address: int, size: int) -> tuple[Any, slice] | None:
        """The allocation that a copy or a fill goes to, and which of its bytes; None (and a refusal) if not within."""
        arena = self.device.arena
        found = arena.find(address)
        if found is None or address + size > found.base + found.size:
            end = f" (it has {found.base + found.size - address:,} from there)" if found else ""
            self._refuse(INVALID_VALUE, f"{call}: {size:,} bytes at {arena.describe(address)}{end}")
            return None
        return found, slice(address - found.base, address - found.base + size)

    def _fill(self, reader: _Reader) -> bytes:
        address, size = reader.take("QQ")
        if place := self._range(reader.text(), address, size):
            place[0].written[place[1]] = 1
            self.device.written_by_host(address, size)
        return struct.pack("=i", SUCCESS if place else INVALID_VALUE)

    def _copy(self, reader: _Reader) -> bytes:
        to, source, size = reader.take("QQQ")
        call, misdirected, arena = reader.text(), reader.text(), self.device.arena
        if misdirected:
            self.device.noted(HostFinding("wrong direction", misdirected))
        places: dict[int, tuple[Any, slice]] = {}
        for address in (to, source):
            if address in arena:
                place = self._range(call, address, size)
                if place is None:
                    return struct.pack("=i", INVALID_VALUE)
                places[address] = place
        if to in places:
            target, where = places[to]
            origin = places.get(source)
            target.written[where] = 1 if origin is None else origin[0].written[origin[1]]
            if origin is None:
                self.device.written_by_host(to, size)
            else:
                self.device.copied(to, source, size)
        elif source in places:
            self._look_at_copied(call, *places[source])
            self.device.read_by_host(source, size)
        return struct.pack("=i", SUCCESS)

    def _look_at_copied(self, call: str, allocation: Any, where: slice) -> None:
        """Note what nobody has written and is copied to the host, but for single bytes: they pad structures."""
        written = allocation.written[where]
        words = written[: len(written) // 4 * 4].reshape(-1, 4).any(axis=1)
        if not words.all():
            first = self.device.arena.describe(allocation.base + where.start + 4 * int(words.argmin()))
            size = 4 * int((~words).sum())
            message = f"{call}: {size:,} of {len(written):,} bytes have never been written, the first at {first}"
            self.device.noted(HostFinding("uninitialised copy to the host", message))

    def _symbol(self, reader: _Reader) -> bytes:
        return struct.pack("=QQ", *(self.device.symbol(reader.text()) or (0, 0)))

    def _memory(self, reader: _Reader) -> bytes:
        return struct.pack("=Q", memory.available_memory())

    def _occupancy(self, reader: _Reader) -> bytes:
        threads, shared = reader.take("IQ")
        return struct.pack("=i", hardware.occupancy(self.gpu, threads, None, shared).blocks)

    def _shared_room(self, reader: _Reader) -> bytes:
        return struct.pack("=Q", hardware.shared_room(self.gpu, *reader.take("I")))

    def _refused(self, reader: _Reader) -> bytes:
        (code,) = reader.take("i")
        self._refuse(code, reader.text())
        return b""

    def _refuse(self, code: int, why: str) -> None:
        self.ended.refusals.append((code, why))
        if self.refused:
            self.refused(code, why)

    def _fault(self, reader: _Reader) -> bytes:
        number, address, early, stack = reader.take("iQIQ")
        file, line, function = self._locate(reader.offsets())
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
        elif number == signal.SIGSEGV and abs(address - stack) < _STACK_REACH:
            what = f"the host code's stack is full: endless recursion, or large local arrays{after}"
            self.device.found(HostFinding("host crash", what, file, line, function))
        else:
            at = f" at address {address:#x}" if address else ""
            self.device.found(HostFinding("host crash", f"{_signal_name(number)}{at}{after}", file, line, function))
        return b""

    def _note(self, reader: _Reader) -> bytes:
        kind, message = reader.text(), reader.text()
        self.device.found(HostFinding(kind, message, *self._locate(reader.offsets())))
        return b""

    def _found(self, kind: str, message: str) -> None:
        self.device.found(HostFinding(kind, message))

    def _signature(self, reader: _Reader) -> bytes:
        types = []
        for _ in range(reader.take("I")[0]):
            kind, pointee, constant = reader.take("ccc")
            size, pointee_size = reader.take("II")
            text = reader.text()
            named = re.search(r"T = (.*?)(?:;.*)?\]$", text)
            name = named[1] if named else text
            types.append(ParameterType(kind.decode(), pointee.decode(), constant != b"\0", size, pointee_size, name))
        return self.arguments(types) if self.arguments else b""

    def _result(self, reader: _Reader) -> bytes:
        (self.ended.status,) = reader.take("i")
        self.ended.error = reader.text()
        self.ended.result = reader.data()
        if self.returned is not None and self.ended.status == 0:
            self.returned(self.ended.result)
        return b""

    def _extension(self, reader: _Reader) -> bytes:
        (known,) = reader.take("I")
        return self.extension(reader.text() if known else None) if self.extension else b""

    def _locate(self, offsets: Sequence[int]) -> tuple[str, int, str]:
        """File, line and function of the innermost frame that is the learner's own."""
        return locate(self.so, tuple(offsets), self.device.stubs)


class _Reader:
    """The fields of a request, one after the other."""

    def __init__(self, data: bytes):
        self._data, self._at = data, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize("=" + layout)
        self._at += size
        return struct.unpack("=" + layout, self._data[self._at - size : self._at])

    def data(self) -> bytes:
        (size,) = self.take("I")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.data().decode(errors="replace")

    def offsets(self) -> tuple[int, ...]:
        (count,) = self.take("I")
        return self.take(f"{count}Q")


def _receive(channel: socket.socket, size: int) -> bytes:
    """So many bytes, or nothing if the other side is gone."""
    pieces = []
    while size:
        try:
            piece = channel.recv(min(size, 1 << 20))
        except ConnectionResetError:
            return b""
        if not piece:
            return b""
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


@lru_cache(maxsize=1024)
def locate(so: Path, offsets: tuple[int, ...], stubs: frozenset[str] = frozenset()) -> tuple[str, int, str]:
    """File, line and function of the first of these places in a shared object that is in the learner's source."""
    if not offsets:
        return "", 0, ""
    try:
        said = toolchain.run(["addr2line", "-e", so, "-i", "-f", "-C", *map(hex, offsets)])
    except UserError:
        return "", 0, ""
    lines = said.splitlines()
    for function, place in zip(lines[::2], lines[1::2]):
        file, _, line = place.partition(" ")[0].rpartition(":")
        foreign = file.startswith(("/usr/", "??", str(HERE))) or bool(TOOLKIT.search(os.path.normpath(file)))
        foreign = foreign or function.replace(UNNAMED, "").partition("(")[0].partition("<")[0] in stubs
        if not foreign and not Path(file).name.startswith(("emulator_", "tmpxft")) and line.isdigit():
            return file, int(line), function.partition("(")[0]
    return "", 0, ""


def _source_line(file: str, line: int) -> str:
    linecache.checkcache(file)  # the learner may have edited it since
    return linecache.getline(file, line).strip()


def _given(line: str) -> str:
    """The pointer that a line gives to an allocating function: "d_in" of `cudaMalloc((void **)&d_in, bytes);`."""
    code = cpp.code(line)
    if found := re.search(r"(?:Malloc\w*|HostAlloc)\s*\(", code):
        first = (cpp.arguments(code, found.end() - 1) or [""])[0]
        if given := re.search(r"&\s*([\w.\[\]>-]+)\)?$", first):
            return given[1]
    return ""


def _signal_name(number: int) -> str:
    words: dict[int, str] = {
        signal.SIGSEGV: "a segmentation fault",
        signal.SIGABRT: "abort (an assertion or an exception that nobody caught)",
        signal.SIGFPE: "an arithmetic exception (a division by zero?)",
        signal.SIGBUS: "a bus error",
        signal.SIGILL: "an illegal instruction",
    }
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{words[number]} ({name})" if number in words else name
