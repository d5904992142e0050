"""Kernels of the course, broken on purpose: each is a patch in broken/, made of a stage or of an example.

The lines before a patch's first "---" say what was broken and what must come of it:

    Broken: what was done, and what goes wrong by it
    Class:  the kind of the finding (docs/emulator.md), or "refused launch"
    Says:   what its message says, a regular expression
    Line:   a piece of the line, after the edit, at which it is found, or which the message names
    Tool:   the tool of NVIDIA's compute-sanitizer that should find it, or "none"
    Run:    of a stage: the shape, and a dtype or variants other than its defaults; of an example: its arguments

`git apply tests/emulator/broken/NAME.patch` breaks the kernel in the working tree; "git apply -R" mends it.
test_broken.py holds the emulator to the suite, sanitizers.py runs it under compute-sanitizer on a GPU.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from common import course, emulator
from common.compiler import toolchain
from common.emulator.report import Report
from common.problem import TORCH_DTYPES
from common.stage import Kernel

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("broken")
REFUSED = "refused launch"  # the class of what CUDA refuses to launch: an error code and a reason, no finding
REQUIRED = ("Broken", "Class", "Says", "Line", "Tool")
OPTIONAL = ("Run",)


@dataclass(frozen=True)
class Hunk:
    """A piece of a unified diff: from `line` on, `old` stands in the source; `new` comes in its place."""

    line: int  # from 1
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class Broken:
    """A kernel, or a whole program, with one defect."""

    name: str  # "07-no-wait"
    source: str  # what is patched, from the repository's root
    what: str
    kind: str
    says: str
    line: str
    tools: frozenset[str]  # of compute-sanitizer that should find it
    run: tuple[str, ...]
    hunks: tuple[Hunk, ...]

    @property
    def is_program(self) -> bool:
        """Whether it has a main of its own."""
        return self.source.startswith("examples/")

    @cached_property
    def text(self) -> str:
        """The broken source. ValueError if the patch does not apply to today's."""
        lines = (ROOT / self.source).read_text().split("\n")
        shift = 0
        for hunk in self.hunks:
            at = hunk.line - 1 + shift
            places = [i for i in range(len(lines)) if tuple(lines[i : i + len(hunk.old)]) == hunk.old]
            if not places:
                gone = next((line for line in hunk.old if line not in lines), hunk.old[0])
                raise ValueError(f"{self.name}.patch does not apply to {self.source}: it has no '{gone.strip()}' there")
            at = min(places, key=lambda place: abs(place - at))
            lines[at : at + len(hunk.old)] = hunk.new
            shift = at - (hunk.line - 1) + len(hunk.new) - len(hunk.old)
        return "\n".join(lines)

    @property
    def path(self) -> Path:
        """The broken source as a file that stays: what is compiled from it is found in the cache the next time."""
        return _kept(self.name, Path(self.source).name, self.text)

    @property
    def lines(self) -> set[int]:
        """The lines of the broken source at which it may be found."""
        return {number for number, text in enumerate(self.text.split("\n"), 1) if self.line in text}

    def kernel(self, source: Path) -> Kernel:
        """The stage's kernel, of that source, as `run` asks for it."""
        return _kernel(self, source)

    @property
    def shape(self) -> tuple[int, ...]:
        kernel = self.kernel(ROOT / self.source)
        return kernel.stage.spec.parse(self.run[0], kernel.variants)


def _kept(folder: str, name: str, text: str) -> Path:
    path = toolchain.cache_dir() / "tests" / "broken" / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    return path


def _kernel(broken: Broken, source: Path) -> Kernel:
    stage = course.load(Path(broken.source).parent.name)
    words = broken.run[1:]
    dtype = next((word for word in words if word in TORCH_DTYPES), None)
    variants = {name: int(value) for name, _, value in (word.partition("=") for word in words if word != dtype)}
    return stage.kernel(dtype, variants, source)


@lru_cache
def suite() -> tuple[Broken, ...]:
    """All of them, in the order of their names. ValueError for a patch that is none."""
    return tuple(_read(path) for path in sorted(FOLDER.glob("*.patch")))


def _read(path: Path) -> Broken:
    head, dashes, diff = path.read_text().partition("\n--- ")
    fields = {}
    for line in head.split("\n"):
        key, colon, value = line.partition(":")
        if not colon or key not in REQUIRED + OPTIONAL or key in fields:
            raise ValueError(f"{path.name}: '{line}' is none of the lines that a patch here begins with")
        fields[key] = value.strip()
    if missing := [key for key in REQUIRED if key not in fields]:
        raise ValueError(f"{path.name} does not say '{missing[0]}:'")
    source, hunks = _hunks(path.name, dashes.lstrip("\n") + diff)
    return Broken(
        path.stem,
        source,
        fields["Broken"],
        fields["Class"],
        fields["Says"],
        fields["Line"],
        frozenset(re.split(", *", fields["Tool"])) - {"none"},
        tuple(fields.get("Run", "").split()),
        hunks,
    )


def _hunks(name: str, diff: str) -> tuple[str, tuple[Hunk, ...]]:
    """The file that a unified diff changes, and its pieces."""
    header = re.match(r"--- a/(\S+)\n\+\+\+ b/(\S+)\n(?=@@ )", diff)
    if not header or header[1] != header[2]:
        raise ValueError(f"{name} changes no single file, named with a/ and b/")
    hunks = []
    for piece in re.split(r"^(?=@@ )", diff[header.end() :], flags=re.M)[1:]:
        first, *lines = piece.rstrip("\n").split("\n")
        numbers = re.match(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@", first)
        old = tuple(line[1:] for line in lines if line[:1] != "+")
        new = tuple(line[1:] for line in lines if line[:1] != "-")
        if not numbers or (len(old), len(new)) != (int(numbers[2] or 1), int(numbers[3] or 1)):
            raise ValueError(f"{name}: the piece '{first}' is not as long as it says")
        hunks.append(Hunk(int(numbers[1]), old, new))
    return header[1], tuple(hunks)


def emulate(broken: Broken) -> Report:
    """Run it in the emulator: a stage's launcher with the problem's tensors, an example as a program."""
    if broken.is_program:
        return emulator.program(broken.path, broken.run, counters=False, patience=60, leaks=True)
    kernel, shape = broken.kernel(broken.path), broken.shape
    spec = kernel.stage.spec
    inputs = spec.inputs(shape, kernel.dtype, kernel.variants)
    outputs = spec.outputs(shape, kernel.dtype, kernel.variants)
    return kernel.emulate(inputs, outputs, counters=False, refused_is_error=False)


def program(broken: Broken, source: str) -> tuple[str, Sequence[str], dict[str, str]]:
    """`source`, the broken text or that of the kernel before, as a program with a main: its text, its arguments, and
    the macros that it is compiled with."""
    if broken.is_program:
        return source, broken.run, {}
    kernel = broken.kernel(ROOT / broken.source)
    spec, shape = kernel.stage.spec, broken.shape
    splits = ()
    if spec.name == "sdpa":
        inputs = spec.inputs(shape, kernel.dtype, kernel.variants)
        splits = (spec.scalars(shape, kernel.variants, (*inputs, inputs[0]))["splits"],)
    driver = (FOLDER / f"{spec.name}.cu").read_text()
    return source + "\n" + driver, [str(n) for n in (*shape, *splits)], dict(kernel.defines)
