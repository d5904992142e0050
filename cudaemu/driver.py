"""The emulator as this process's CUDA driver: `import cudaemu.driver`, and Numba, CuPy or cuda.core find a GPU.

The driver's library, libcuda.so.1, is loaded before they look for it: host/libcuda.cpp, the same stand-in that runs the
host code of .cu files. What it asks of the device comes here by a call, for the device is in this process. `reports`
has a `Report` for each launch, `report()` one of all of them; `use(arch="8.0")` chooses another GPU, before anything is
loaded, and `use(sanitize=False)` other options at any time.

The command `cudaemu python script.py` runs a script that knows nothing of this.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import gc
import os
import re
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudaemu import engine, front_ends, terminal
from cudaemu.calls import session_of
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from cudaemu.options import COMPILING, Options
from cudaemu.process import HERE, Host, HostFinding, Reader, Request, source_line
from cudaemu.report import Finding, Report, joined
from cudaemu.timeline import Timeline

if TYPE_CHECKING:
    from cudaemu.torch_cuda import Lent

__all__ = ["clear", "report", "reports", "use"]

DEFAULTS = Options(arch="9.0")
SETTLED = tuple(name for name in COMPILING if name != "arch")  # options that such kernels do not have
NOTHING = ".version 8.0\n.target sm_50\n.address_size 64\n"  # a module: those with kernels are loaded later
NOT_SUPPORTED = 801  # of CUresult

reports: list[Report] = []  # of each launch, in order
_active: list[_Driver] = []

_SERVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_PLACE = ctypes.CFUNCTYPE(ctypes.c_uint64)


@lru_cache
def library() -> Path:
    """The driver's library, compiled if this is the first time. UserError if there is no nvcc or C++ compiler."""
    flags = ["-shared", "-O1", "-std=c++17", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs"]
    flags += [f"-Wl,--version-script={HERE / 'libcuda.map'}", f"-I{toolchain.find_nvcc().include}"]
    return toolchain.compile_cxx(HERE / "libcuda.cpp", flags, "libcuda.so", after=["-ldl", "-lrt"])


class _Driver(Host):
    """The device behind the driver's library. Requests come in the thread that has called CUDA."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._stack = ExitStack()  # of what lives as long as the process
        self.session = self._stack.enter_context(session_of(NOTHING, options, "the module"))
        self.session.on_finding = self._found_now
        super().__init__(Path(), options.gpu, self.session, refused=self._say)
        self._kinds = {0: "device memory", 1: "managed memory", 2: "pinned memory", 3: "registered memory"}
        self._places: dict[tuple[str, int, str], int] = {}  # of Python, by number
        self._said: set[str] = set()
        self._told: set[tuple[object, ...]] = set()  # findings
        self._in_words = {Request.LAUNCH: struct.pack("=IiIII", 0, NOT_SUPPORTED, 0, 0, 0)}
        self._lent: Lent | None = None
        self.used = False  # something has been asked of the device
        loaded = ctypes.CDLL(str(library()))
        loaded.emulator_answer.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        loaded.emulator_answer.restype = None
        self._answer_to: Callable[..., None] = loaded.emulator_answer
        self._kept = _SERVE(self._served), _PLACE(self._place)
        if error := loaded.emulator_serve(*self._kept, self.session.arena.file):
            raise UserError(f"the emulator cannot map the device's memory: {os.strerror(error)}")
        atexit.register(loaded.emulator_end)

    def _served(self, at: int, size: int, answer: int) -> None:
        collecting = gc.isenabled()
        gc.disable()  # finalizers call CUDA
        try:
            data = ctypes.string_at(at, size)
            request, reader = Request(int.from_bytes(data[:4], sys.byteorder)), Reader(data, 8)
            self.used |= request is not Request.HELLO
            try:
                said = self._answer(request, reader)
            except UserError as error:
                self._refuse(NOT_SUPPORTED, str(error), (self._place(),))
                said = self._in_words.get(request, b"")
            except KeyboardInterrupt:
                _thread.interrupt_main()
                said = self._in_words.get(request, b"")
            self._answer_to(answer, said, len(said))
        finally:
            if collecting:
                gc.enable()

    def use_torch(self) -> None:
        from cudaemu.torch_cuda import Lent, start

        self._lent = self._lent or Lent(self.session.arena, start(self.options.gpu).storages)

    def lend(self, tensor: Any) -> object:
        self.use_torch()
        assert self._lent
        return self._lent.add(self._name_of("a tensor", [self._place()]), tensor)

    def _answer(self, request: Request, reader: Reader) -> bytes:
        if request is Request.LAUNCH and self._lent is not None:
            self._lent.renew()
        try:
            return super()._answer(request, reader)
        finally:
            if request is Request.LAUNCH:
                reports.append(self.rest())
                self.collect()

    def rest(self) -> Report:
        """A report of what has come since the last launch."""
        code, why = self.ended.refusals[-1] if self.ended.refusals else (0, "")
        return self.session.report(code, why)

    def collect(self) -> None:
        """From now on, reports are of what comes."""
        session = self.session
        self.ended.refusals, session.launches, session.rows = [], [], []
        session.findings, session.notes, session.sums = {}, {}, {}
        session.timeline, session.started = Timeline(), time.monotonic()

    def _found_now(self, finding: Finding | HostFinding) -> None:
        if self.options.on_finding and finding.where not in self._told:
            self._told.add(finding.where)
            self.options.on_finding(finding)

    def _say(self, code: int, why: str) -> None:
        if self.options.on_refusal:
            self.options.on_refusal(code, why)
        elif why not in self._said:
            self._said.add(why)
            terminal.say(f"CUDA error {code}: {why}", "yellow")

    def _print(self, text: str) -> None:
        terminal.show(text)

    def _where(self) -> tuple[str, int, str]:
        return self._locate((self._place(),))

    def _place(self) -> int:
        """The number of the line of Python that has called, of which `_locate` knows more."""
        frame = next(front_ends.users_frames(), None)
        found = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame else ("", 0, "")
        return self._places.setdefault(found, len(self._places))

    def _locate(self, offsets: Sequence[int]) -> tuple[str, int, str]:
        return list(self._places)[offsets[0]] if offsets else ("", 0, "")

    def _name_of(self, name: str, offsets: Sequence[int]) -> str:
        file, line, _ = self._locate(offsets)
        if not line:
            return name
        code = source_line(file, line)
        given = re.search(r"\bbyref\((\w+)\)", code) or re.match(r"(?:\w+\s*,\s*)*([A-Za-z_]\w*)\s*=[^=]", code)
        return f"{given[1]} ({name}, line {line})" if given else f"{name} (line {line})"


def use(**options: Any) -> None:
    """Make the emulator this process's CUDA driver, or change how it runs kernels.

    `arch`: the compute capability (default: "9.0", an H100 with all that is its own); it cannot be changed once it is
    chosen. The other options are those of `cudaemu.Options` that concern a run: `sanitize`, `counters`, `threads`,
    `on_finding`, ... UserError for an option that is none or that concerns compiling, or if a driver is loaded."""
    for name in SETTLED:
        if name in options:
            raise UserError(f"{name} is an option for CUDA sources, and these kernels are compiled elsewhere")
    made = (_active[0].options if _active else DEFAULTS).replace(**options)
    if not _active and _is_loaded():
        raise UserError("the driver's library is loaded already: import cudaemu.driver before what uses CUDA")
    if not _active or made.gpu != _active[0].options.gpu:
        if _active and _active[0].used:
            raise UserError(f"arch must be chosen before CUDA is used, which has seen {_active[0].options.arch}")
        engine.library()
        _active[:] = [_Driver(made)]
        front_ends.prepare(_active[0], library())
        return
    driver = _active[0]
    with session_of(NOTHING, made) as like:  # its settings
        driver.session.settings, driver.session.trace, driver.session.events = like.settings, like.trace, like.events
    driver.options = made


def _is_loaded() -> bool:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return bool(re.search(r"/libcuda\.so", maps))


def report() -> Report:
    """One report of all launches so far, and of what the host's calls have met since."""
    return joined([*reports, _active[0].rest()])


def clear() -> None:
    """Forget all reports: the next one begins here."""
    reports.clear()
    _active[0].collect()


use()
