"""Kernels of the course, broken on purpose: each is a patch in examples/broken/, made of a stage or of an example.

The lines before a patch's first "---" say what was broken and what must come of it:

    Broken: what was done, and what goes wrong by it
    Class:  the kind of the finding (docs/emulator.md), or "refused launch"
    Says:   what its message says, a regular expression
    Line:   a piece of the line, after the edit, at which it is found, or which the message names
    Tool:   the tool of NVIDIA's compute-sanitizer that should find it, or "none"
    Run:    of a stage: the shape, and a dtype or variants other than its defaults; of an example: its arguments
    Arch:   the compute capability that it is compiled for and runs on (default: the oldest that it can)

Exercise, Title, Level, Topic, three Hints and a symptom in prose make an exercise of it (common/practice/exercises.py).

`git apply examples/broken/NAME.patch` breaks the kernel in the working tree; "git apply -R" mends it.
tests/cudaemu/test_broken.py holds the emulator to the suite, sanitizers.py runs it under compute-sanitizer on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from common import course
from common.dtypes import PRECISIONS
from common.practice import patches
from common.stage import Kernel
from docs.hardware.programs import ROOT

FOLDER = ROOT / "examples" / "broken"
DRIVERS = Path(__file__).with_name("drivers")
REFUSED = "refused launch"  # the class of what CUDA refuses to launch: an error code and a reason, no finding
REQUIRED = ("Broken", "Class", "Says", "Line", "Tool")
OPTIONAL = ("Run", "Arch")
PRACTICE = ("Exercise", "Title", "Level", "Topic", "Hint", "Repair", "Keep")


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
    arch: str  # "": the oldest that it can
    patch: patches.Patch

    is_right, is_found = False, True

    @property
    def is_program(self) -> bool:
        """Whether it has a main of its own."""
        return self.source.startswith("examples/")

    @cached_property
    def text(self) -> str:
        """The broken source. ValueError if the patch does not apply to today's."""
        return self.patch.apply(self.before)

    @property
    def before(self) -> str:
        """The source before it was broken."""
        return (ROOT / self.source).read_text()

    @property
    def lines(self) -> set[int]:
        """The lines of the broken source at which it may be found."""
        return {number for number, text in enumerate(self.text.split("\n"), 1) if self.line in text}

    def kernel(self, source: Path) -> Kernel:
        """The stage's kernel, of that source, as `run` asks for it."""
        words = self.run[1:]
        dtype = next((word for word in words if word in PRECISIONS), None)
        variants = {name: int(value) for name, _, value in (word.partition("=") for word in words if word != dtype)}
        return course.load(Path(self.source).parent.name).kernel(dtype, variants, source)

    @property
    def shape(self) -> tuple[int, ...]:
        kernel = self.kernel(ROOT / self.source)
        return kernel.stage.spec.parse(self.run[0], kernel.variants)


@lru_cache
def suite() -> tuple[Broken, ...]:
    """All of them, in the order of their names. ValueError for a patch that is none."""
    return tuple(_read(path) for path in sorted(FOLDER.glob("*.patch")))


def _read(path: Path) -> Broken:
    patch = patches.read(path, REQUIRED, OPTIONAL + PRACTICE, repeated=("Hint",))
    if not patch.source:
        raise ValueError(f"{path.name} changes nothing")
    return Broken(
        path.stem,
        patch.source,
        patch.first("Broken"),
        patch.first("Class"),
        patch.first("Says"),
        patch.first("Line"),
        frozenset(re.split(", *", patch.first("Tool"))) - {"none"},
        tuple(patch.first("Run").split()),
        patch.first("Arch"),
        patch,
    )


def program(broken: Broken, source: str) -> tuple[str, Sequence[str], dict[str, str]]:
    """`source`, the broken text or that of the kernel before, as a program with a main: its text, its arguments, and
    the macros that it is compiled with."""
    if broken.is_program:
        return source, broken.run, {}
    kernel = broken.kernel(ROOT / broken.source)
    spec, shape = kernel.stage.spec, broken.shape
    splits = ()
    if spec.name == "sdpa":
        tensors = [make(shape, kernel.dtype, kernel.variants) for make in (spec.inputs, spec.outputs)]
        splits = (kernel.arguments(*tensors)["splits"],)
    driver = "\n".join((DRIVERS / f"{name}.cu").read_text() for name in ("data", spec.name))
    return source + "\n" + driver, [str(n) for n in (*shape, *splits)], dict(kernel.defines)
