"""The exercises: what to write, in which file, from which starter, and what must hold.

Each is a page or a patch (common/practice/patches.py) next to its subject:

    kernels/NN_name/practice/step.md       turn the stage before into this one; step.patch: start from what it leaves
    kernels/NN_name/practice/NAME.patch    a hole: the patch takes a piece out of kernel.cu
    examples/broken/NAME.patch             a bug, if the patch says "Exercise: NAME"; its prose is the symptom
    common/practice/first/NAME.patch       a first kernel: a hole in one of the examples

In a repository made by `handout` there are no solutions: each exercise is a page, NAME.md, and its starter,
NAME.start.cu (or the key Begins names the exercise whose solution, the reader's own, is the starter); a stage's
kernel.cu has its macros and declares its launcher.

The keys of a page: Title, Topic, Level (1 to 5), three Hints; Goal (any number, common/practice/goals.py): what the
starter misses, if it runs at all; Keep (likewise): what must not get worse; Needs (likewise): the other bound, what any
solution has, without which there are no points; Repair: "host", where a program's bug is in its host code; Run: the
shape at which these are counted, with a dtype or variants if not the default, or a program's arguments; Predict: what
to answer on paper first; then the task in prose.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from common import course
from common.dtypes import PRECISIONS
from common.gpu import signature
from common.practice import patches
from common.practice.goals import Goal
from common.practice.patches import Patch
from common.stage import KERNELS, Kernel, Stage, macros
from cudaemu.errors import UserError

ROOT = KERNELS.parent
BROKEN = ROOT / "examples" / "broken"
FIRST = Path(__file__).with_name("first")

PAGE = ("Title", "Topic", "Level", "Hint")
MORE = ("Goal", "Keep", "Needs", "Run", "Predict", "Arch", "Limit", "File", "Begins", "Repair")
REPEATED = ("Hint", "Goal", "Keep", "Needs", "Predict")
OF_A_BUG = (
    *("Broken", "Class", "Says", "Line", "Tool", "Run", "Arch", "Exercise", "Title", "Level", "Topic", "Hint"),
    *("Keep", "Repair"),
)
HINTS = 3
START = ".start.cu"  # beside a page that was handed out
KINDS = {  # what a reader is asked for
    "first": "a first kernel: write it",
    "step": "the step: turn the kernel before into this one",
    "hole": "the hole: write the piece that is missing",
    "bug": "the bug: find it and repair it in few lines",
}
TOPICS = (
    "first kernels",
    "global memory",
    "shared memory",
    "synchronisation",
    "tensor cores",
    "asynchronous copies",
    "edges",
    "attention",
    "Hopper",
)
FIRST_STEPS = (  # the first kernels, in the order in which they are easiest
    *("vector_add", "transpose", "reduce_shuffle", "histogram", "softmax", "scan_block", "gemv", "layer_norm"),
    *("reduce_bandwidth", "top_k", "rms_norm", "softmax_registers", "layer_norm_registers", "scan_tiles"),
)
SLACK = 2  # a repair may change this many times as many lines as ours, plus this many


@dataclass(frozen=True)
class Exercise:
    """Something to write, in one source file.

    `solution` is our own file. `start` is the starter, which does not pass. A `stage`'s source is
    called by its launcher, on tensors; without a stage it is a program that checks itself."""

    name: str  # of the reader's folder: "NN_name", "NN-hole", "NN-bug-1", "transpose"
    kind: str  # one of KINDS
    patch: Patch
    solution: Path
    stage: Stage | None = None

    @property
    def title(self) -> str:
        return self.patch.first("Title")

    @property
    def topic(self) -> str:
        return self.patch.first("Topic")

    @property
    def level(self) -> int:
        return int(self.patch.first("Level"))

    @property
    def task(self) -> str:
        """What to do, in Markdown."""
        return self.patch.prose

    @property
    def hints(self) -> tuple[str, ...]:
        return self.patch.fields["Hint"]

    @property
    def predict(self) -> tuple[str, ...]:
        return self.patch.fields.get("Predict", ())

    @property
    def words(self) -> tuple[str, ...]:
        """What Run says: the shape with a dtype or variants, or a program's arguments."""
        return tuple(self.patch.first("Run").split())

    @property
    def arch(self) -> str:
        """The compute capability that it is compiled for and runs on; "": the oldest that it can."""
        return self.patch.first("Arch")

    @cached_property
    def goals(self) -> tuple[Goal, ...]:
        return tuple(map(Goal.of, self.patch.fields.get("Goal", ())))

    @cached_property
    def keeps(self) -> tuple[Goal, ...]:
        """What must hold as well, and holds in the starter if that is right."""
        return tuple(map(Goal.of, self.patch.fields.get("Keep", ())))

    @cached_property
    def needs(self) -> tuple[Goal, ...]:
        """What any solution has: goals that say "at most" are met by a kernel that does nothing, or the task of an
        earlier stage."""
        return tuple(map(Goal.of, self.patch.fields.get("Needs", ())))

    @property
    def limit(self) -> int | None:
        """How many lines of code a repair may change; None where it does not matter."""
        if limit := self.patch.first("Limit"):
            return int(limit)
        return SLACK * self.patch.lines + SLACK if self.kind == "bug" else None

    @property
    def file(self) -> str:
        """The name of the file that the reader writes."""
        return self.solution.name

    @property
    def begins(self) -> str:
        """The exercise whose solution, the reader's own, is this one's starter; "" if the starter is ours."""
        return self.patch.first("Begins")

    @property
    def handed_out(self) -> bool:
        """Whether there is no solution here."""
        return bool(self.begins) or self.patch.path.with_suffix(START).is_file()

    @cached_property
    def start(self) -> str:
        """What the reader begins with: ours with the patch applied, or the whole kernel of the stage before; "" if it
        is the reader's own.

        UserError if the patch does not fit the current source."""
        if self.handed_out:
            return "" if self.begins else self.patch.path.with_suffix(START).read_text(encoding="utf-8")
        if not self.patch.source:
            before = course.previous(self.stage) if self.stage else None
            if before is None:
                raise UserError(f"{self.name}: there is no stage before it, and its page has no patch")
            return before.source.read_text(encoding="utf-8")
        try:
            return self.patch.apply(self.solution.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"the exercise {self.name} must be made from the current course: {error}") from None

    @property
    def declares(self) -> Mapping[str, tuple[int, ...]]:
        """Those that say what is computed, and their values: a source must declare them. One that may be 0 is 0 where
        it is not declared."""
        if self.stage is None:
            return {}
        settings, variants = self.stage.spec.settings, self.stage.variants
        return {name: variants[name] for name in settings if 0 not in variants.get(name, (0,))}

    def kernel(self, source: Path) -> Kernel:
        """The kernel that Run asks for, of this source. UserError if it cannot be read, or if the source lacks the
        launcher or a macro that says what is computed."""
        assert self.stage is not None
        signature(source, self.stage.symbol)
        declared = macros(source)
        for name, values in self.declares.items():
            if name not in declared:
                default = self.stage.kernel().variants[name]
                raise UserError(
                    f"{source} must declare the macro {name} ({' or '.join(map(str, values))}): "
                    f"#ifndef {name}, #define {name} {default}, #endif"
                )
        words = self.words[1:]
        dtype = next((word for word in words if word in PRECISIONS), None)
        given = dict(word.split("=") for word in words if "=" in word)
        return self.stage.kernel(dtype, {name: int(value) for name, value in given.items()}, source)

    def shape(self, kernel: Kernel) -> tuple[int, ...]:
        """The shape at which goals are counted."""
        spec = kernel.stage.spec
        return spec.parse(self.words[0], kernel.variants) if self.words else spec.emulator_shapes(kernel.variants)[0]

    def sizes(self, kernel: Kernel) -> Mapping[str, int]:
        """What a goal may name: the axes of the problem, at that shape."""
        return dict(zip(kernel.stage.spec.axes, self.shape(kernel)))


@lru_cache
def catalogue() -> tuple[Exercise, ...]:
    """All, in the order in which to take them: first kernels, then by stage the step, its holes, its bugs. The
    library's kernels have no step."""
    paths = sorted((*FIRST.glob("*.md"), *FIRST.glob("*.patch")))
    steps = {name: number for number, name in enumerate(FIRST_STEPS)}
    found = [_first(path) for path in sorted(paths, key=lambda path: steps.get(path.stem, len(steps)))]
    bugs = _bugs()
    for stage in course.everything():
        folder = stage.directory / "practice"
        for path in sorted((*folder.glob("*.md"), *folder.glob("*.patch")), key=lambda path: path.stem != "step"):
            kind = "step" if path.stem == "step" else "bug" if path.stem.startswith("bug") else "hole"
            name = stage.name if kind == "step" else f"{stage.number}-{path.stem}"
            found.append(_of(stage, path, kind, name))
        found += [each for each in bugs if each.stage is stage]
    return (*found, *(each for each in bugs if each.stage is None))


def part(exercise: Exercise) -> str:
    """The part of the course that it belongs to."""
    if exercise.stage is None:
        return "first kernels" if exercise.kind == "first" else "examples"
    if exercise.stage.number.startswith("h"):
        return "Part III"
    return "Part II" if exercise.stage.spec.part == "attention" else "Part I"


def following(exercise: Exercise | None, done: Container[str]) -> Exercise | None:
    """The one to take next: the next that is not among `done`, behind `exercise` if one is given, and of the main way:
    a first kernel or a step, where there is one; else anything that is left."""
    found = list(catalogue())
    at = 0 if exercise is None else found.index(exercise) + 1
    left = [each for each in (*found[at:], *found[:at]) if each.name not in done]
    return next((each for each in left if each.kind in ("first", "step")), left[0] if left else None)


def of_stage(stage: Stage) -> tuple[Exercise, ...]:
    """The exercises of a stage."""
    return tuple(each for each in catalogue() if each.stage is stage)


def find(text: str, stage: Stage | None = None) -> Exercise:
    """The exercise of that name; a stage's number may be left out, and alone it means its step.

    UserError, with the likeliest names, if there is none."""
    chosen = {each.name: each for each in (of_stage(stage) if stage else catalogue())}
    short = {name.split("-", 1)[-1]: name for name in chosen} if stage else {}
    if re.fullmatch(rf"\d|{course.NUMBER}", text) and not stage:
        text = course.load(text).name
    name = short.get(text, text)
    if name not in chosen:
        likely = difflib.get_close_matches(name, [*chosen, *short], n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(likely)}?" if likely else ""
        raise UserError(f"no exercise '{text}'.{hint} python -m kernels practice lists them")
    return chosen[name]


def _of(stage: Stage, path: Path, kind: str, name: str) -> Exercise:
    return Exercise(name, kind, patches.read(path, PAGE, MORE, REPEATED), stage.source, stage)


def _first(path: Path) -> Exercise:
    patch = patches.read(path, PAGE, MORE, REPEATED)
    kind = "bug" if re.search(r"-bug-\d+$", path.stem) else "first"
    return Exercise(path.stem, kind, patch, ROOT / (patch.source or patch.first("File")))


def _bugs() -> list[Exercise]:
    found = []
    for path in sorted(BROKEN.glob("*.patch")):
        patch = patches.read(path, (), OF_A_BUG, REPEATED)
        if name := patch.first("Exercise"):
            solution = ROOT / patch.source
            stage = course.load(solution.parent.name) if solution.is_relative_to(KERNELS) else None
            found.append(Exercise(name, "bug", patch, solution, stage))
    return sorted(found, key=lambda each: each.name)
