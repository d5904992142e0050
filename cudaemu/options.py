"""How a source is compiled and run: the options of every function of the emulator."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cudaemu import hardware
from cudaemu.errors import BadOption
from cudaemu.hardware import Arch
from cudaemu.process import HostFinding
from cudaemu.report import Finding, Trace
from cudaemu.timeline import Events

Progress = Callable[[int, int], None]  # blocks done, blocks in all

_MACRO = re.compile(r"[A-Za-z_]\w*(\([\w\s,.]*\))?")


OLDER = ("12",)  # releases of CUDA whose headers can be asked for

_MOST = 1 << 20  # of cores, multiprocessors, launches


@dataclass(frozen=True)
class Options:
    """How a source is compiled (the fields from `arch` to `cuda`) and how it is run (the others).

    Every field has a default: `Options(arch="9.0", counters=False)`. Values are checked here, and a UserError says what
    a field must be. Instances are immutable; `replace` makes a new one."""

    arch: str | Arch = "8.0"
    """The compute capability of the emulated GPU and of its code, such as "8.6" or "9.0a"."""
    compiled_for: str | Arch | None = None
    """The compute capability to compile for, if it is older than that of the GPU."""
    defines: Mapping[str, str | int] = field(default_factory=dict)
    """Macros and their values: {"TILE": 32}, nvcc's -DTILE=32."""
    flags: Sequence[str] = ()
    """More options for nvcc, one per element: ["-std=c++20", "--extended-lambda"]."""
    include: Sequence[Path | str] = ()
    """Folders to search for headers, nvcc's -I."""
    sources: Sequence[Path | str] = ()
    """The program's other files: sources of CUDA, C++ and C, objects and libraries of the host."""
    cuda: str | None = None
    """The CUDA whose headers the source is written for, if it is older than the compiler: "12", from pip's packages.
    None: the compiler's own."""

    multiprocessors: int | None = None
    """How many multiprocessors the GPU has. None: as many as the largest GPU of `arch`."""
    counters: bool = True
    """Count what is executed and moved. False is faster."""
    sanitize: bool = True
    """Look for races, uninitialised reads, divergent barriers, ... False is faster. Wild addresses are always found."""
    strict: bool = False
    """Notes are findings, and rules are checked, too, of which it is disputed whether hardware needs them kept: see
    docs/emulator.md. For programs that must not depend on that."""
    leaks: bool = False
    """Memory that a program has not freed when it ends is a finding, too."""
    trace: Trace | None = None
    """Which memory accesses to record. None: none of them."""
    events: Events | None = None
    """Blocks to make a timeline of, `Report.timeline`: waits, copies, products. None: none."""
    blocks: range | None = None
    """The blocks of each launch that run, by linear number: range(8), or range(-1, 0) for the last one, since negative
    numbers count from the end of the grid, and 0 after them is that end. Clusters run whole. None: all."""
    refused_launch: int | None = None
    """The number, from 1, of a launch to refuse with cudaErrorLaunchOutOfResources, as a GPU does that has too few
    registers for it: does the host code look? None: none."""
    threads: int | None = None
    """How many cores to use. None: all of them."""
    timeout: float | None = None
    """Seconds that host code may run without calling CUDA before it is ended. None: 60 for a function, no limit for a
    program. float("inf"): no limit."""
    progress: Progress | None = None
    """Called now and then during a launch, with the number of finished blocks and that of all blocks."""
    on_finding: Callable[[Finding | HostFinding], None] | None = None
    """Called with each finding as soon as it is made."""
    on_refusal: Callable[[int, str], None] | None = None
    """Called with each CUDA error that host code gets, a cudaError_t, and its reason."""

    def __post_init__(self) -> None:
        if not self.target.runs_on(self.gpu.arch):
            raise _wrong("compiled_for", f"a compute capability that runs on arch, {self.arch}", str(self.compiled_for))
        object.__setattr__(self, "defines", dict(_macros(self.defines)))
        object.__setattr__(self, "flags", tuple(_words("flags", self.flags, str)))
        for name in ("include", "sources"):
            object.__setattr__(self, name, tuple(_words(name, getattr(self, name), str, Path)))
        if self.cuda not in (None, *OLDER):
            raise _wrong("cuda", f"{' or '.join(map(repr, OLDER))}, or None for the compiler's own CUDA", self.cuda)
        for name in ("counters", "sanitize", "strict", "leaks"):
            if not isinstance(value := getattr(self, name), bool):
                raise _wrong(name, "True or False", value)
        for name in ("multiprocessors", "refused_launch", "threads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST):
                raise _wrong(name, f"a whole number from 1 to {_MOST:,}, or None", value)
        if self.blocks is not None and not (isinstance(self.blocks, range) and self.blocks.step == 1):
            raise _wrong("blocks", "a range of steps of 1, or None", self.blocks)
        if self.trace is not None and not isinstance(self.trace, Trace):
            raise _wrong("trace", "a Trace or None", self.trace)
        if self.events is not None and not isinstance(self.events, Events):
            raise _wrong("events", "Events or None", self.events)
        if self.timeout is not None and not (isinstance(self.timeout, (int, float)) and self.timeout > 0):
            raise _wrong("timeout", "a number of seconds above 0, or None", self.timeout)
        for name in ("progress", "on_finding", "on_refusal"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise _wrong(name, "a function, or None", value)

    def __repr__(self) -> str:
        """Only the fields that are not the default."""
        made = ((item, getattr(self, item.name)) for item in fields(self))
        told = (f"{item.name}={value!r}" for item, value in made if value not in (item.default, {}))
        return f"Options({', '.join(told)})"

    def replace(self, **changes: Any) -> Options:
        """These options with other values for some fields. TypeError for a name that is not a field."""
        names = [item.name for item in fields(self)]
        for name in changes:
            if name not in names:
                likely = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean '{likely[0]}'?" if likely else f": there are {', '.join(names)}"
                raise TypeError(f"there is no option '{name}'{hint}")
        return replace(self, **changes) if changes else self

    @property
    def macros(self) -> dict[str, str]:
        """`defines` with their values as text."""
        return {name: str(int(value) if isinstance(value, bool) else value) for name, value in self.defines.items()}

    @property
    def target(self) -> Arch:
        """The compute capability to compile for."""
        return Arch.of(self.compiled_for or self.arch)

    @property
    def gpu(self) -> hardware.Gpu:
        """The GPU that is emulated."""
        gpu = hardware.model(self.arch)
        return replace(gpu, sms=self.multiprocessors) if self.multiprocessors else gpu


# Fields that are settled when a source is compiled.
COMPILING = ("arch", "compiled_for", "defines", "flags", "include", "sources", "cuda")


def check_text(name: str, value: object, what: str) -> None:
    """UserError unless an argument is a str; `what` says what it must be."""
    if not isinstance(value, str):
        raise _wrong(name, what, value)


def check_words(name: str, value: object, what: str, *kinds: type) -> None:
    """UserError unless an argument is a sequence of such, str by default, that hold no NUL."""
    wanted = kinds or (str,)
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _wrong(name, what, value)
    for word in value:
        if not isinstance(word, wanted) or "\0" in str(word):
            raise _wrong(name, what, word)


def _wrong(name: str, wanted: str, value: object) -> BadOption:
    return BadOption(f"{name} must be {wanted}, got {value!r}")


def _macros(defines: object) -> Mapping[str, str | int]:
    if not isinstance(defines, Mapping):
        raise _wrong("defines", 'macros and their values, such as {"TILE": 32}', defines)
    for name, value in defines.items():
        if not isinstance(name, str) or not _MACRO.fullmatch(name):
            raise _wrong("defines", "macros and their values; a macro's name is a C++ identifier", name)
        if not isinstance(value, (str, int)):
            raise _wrong(f"defines[{name!r}]", "text or a whole number", value)
    return defines


def _words(name: str, values: object, *kinds: type) -> Sequence[Any]:
    what = {"flags": "nvcc's words, one each", "include": "folders", "sources": "files"}[name]
    if isinstance(values, (str, Path)) or not isinstance(values, Sequence):
        raise _wrong(name, f"a list of {what}", values)
    for value in values:
        if not isinstance(value, kinds):
            raise _wrong(name, f"a list of {what}", value)
    return values


DEFAULTS = Options()
