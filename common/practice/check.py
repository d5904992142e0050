"""Is it solved? Checks a source against an exercise: right at every shape, no rule broken, goals met.

`check` needs only the source and the exercise: no reader's folder, no record of progress, no GPU. It can run in a
process of its own, with other seeds and shapes than the reader sees.
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cudaemu
from common import accuracy, terminal
from common.accuracy import Result
from common.practice import honest
from common.practice.exercises import Exercise
from common.practice.goals import (
    BEHIND,
    EARLY,
    FIRST_BLOCKS,
    TIMED,
    Goal,
    Judged,
    counted,
    early_sectors,
    ldmatrix_behind_barrier,
    timed,
)
from common.practice.patches import is_code
from common.problem import Shape
from common.stage import Kernel
from cudaemu import Events, Options, Report, Trace
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import CheckFailed, ToolFailed, UserError
from cudaemu.units import UNITS

POINTS = 10  # of an exercise
SHIFT, SHIFTS = "INPUTS_FROM", 40  # of a program's inputs: a macro, and how many values it may have
PROGRAM_SECONDS = 60.0  # that a program may run without calling CUDA
COMPILE, RUN, RULE, WRONG = "does not compile", "does not run", "breaks a rule", "wrong result"
CHEAT = "not by the kernel"


@dataclass(frozen=True)
class Finding:
    """What is wrong: one of COMPILE, RUN, RULE, WRONG and CHEAT; where, "256x768x384 fp16"; and the whole report."""

    kind: str
    where: str
    report: str


@dataclass(frozen=True)
class Verdict:
    """The result of a check. Goals, what must not get worse (`keeps`), and what any solution has (`needs`) are only
    counted if nothing is wrong."""

    exercise: str
    checks: int  # that were begun: shapes, or a program
    findings: tuple[Finding, ...]
    goals: tuple[Judged, ...]
    keeps: tuple[Judged, ...]
    needs: tuple[Judged, ...]

    @property
    def right(self) -> bool:
        """Whether the result is right and no rule is broken."""
        return not self.findings

    @property
    def ok(self) -> bool:
        return self.right and all(goal.met for goal in (*self.goals, *self.keeps, *self.needs))

    @property
    def points(self) -> float:
        """Of POINTS: those of the goals that are met, of all if there are none; half, if something has got worse; none,
        if it lacks what any solution has.

        The starter gets none: it is wrong, or misses every goal."""
        share = sum(goal.met for goal in self.goals) / len(self.goals) if self.goals else 1.0
        share *= self.right and all(each.met for each in self.needs)
        return round(POINTS * share * (1 if all(each.met for each in self.keeps) else 0.5), 2)

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return {**asdict(self), "right": self.right, "ok": self.ok, "points": self.points}


def check(
    source: Path, exercise: Exercise, *, seed: int = 0, shapes: Sequence[Shape] | None = None, start: str | None = None
) -> Verdict:
    """Check a source against an exercise, in the emulator with its sanitizer; stop at the first shape that is wrong.

    `seed` is that of the random inputs. `shapes`: those to try (default: all small ones that the stage's own check
    tries). `start`: what changed lines are counted from (default: the exercise's own beginning). UserError if there is
    no such file or no compiler."""
    toolchain.read(source)
    toolchain.find_nvcc()
    toolchain.find_cxx()
    try:
        if said := honest.read(source, exercise):
            return _failed(exercise, 0, CHEAT, "", said)
    except ToolFailed as error:
        return _failed(exercise, 0, COMPILE, "", str(error))
    run = _program if exercise.stage is None else _stage
    return run(source, exercise, seed, shapes, exercise.start if start is None else start)


def _stage(source: Path, exercise: Exercise, seed: int, shapes: Sequence[Shape] | None, start: str) -> Verdict:
    tried = 0
    where = ""
    try:
        kernel = exercise.kernel(source)
        format_shape = kernel.stage.spec.format
        chosen = list(kernel.test_shapes().values() if shapes is None else shapes)
        if exercise.kind == "bug":  # the shape at which it shows comes first
            chosen = list(dict.fromkeys([exercise.shape(kernel), *chosen]))
        trials = [(shape, pattern) for shape in chosen for pattern in _patterns(kernel, shape == chosen[-1])]
        with terminal.progress(f"checking {exercise.name}", total=len(trials)) as update:
            for shape, pattern in trials:
                inputs = "" if pattern == "normal" else f", {pattern} inputs"
                where, tried = f"{format_shape(shape)} {kernel.short}{inputs}", tried + 1
                update(f"checking {exercise.name} {format_shape(shape)}")
                result = accuracy.check(kernel, shape, f"emulator {exercise.arch}".strip(), seed, pattern)
                if not result.ok:
                    says = kernel.stage.spec.pattern_says.get(pattern)
                    said = f"{pattern} inputs: {says}\n{result.report}" if says else result.report
                    return _failed(exercise, tried, _kind(result), where, said)
                update(advance=1)
        counts: dict[str, int] = {}
        tensor = UNITS[kernel.stage.unit.partition(" ")[0]].tensor
        if tensor or exercise.goals or exercise.keeps or exercise.needs:
            shape = exercise.shape(kernel)
            where, tried = f"{format_shape(shape)} {kernel.short}", tried + 1
            named = {goal.counter for goal in (*exercise.goals, *exercise.keeps)}
            report = _counted(kernel, shape, seed, EARLY in named, not named.isdisjoint(TIMED))
            if report.findings:
                return _failed(exercise, tried, RULE, where, str(report))
            counts = counted(report) | ({EARLY: early_sectors(report.trace)} if EARLY in named else {})
            if not named.isdisjoint(TIMED):
                counts |= timed(report.timeline)
            if BEHIND in named:
                counts |= {BEHIND: ldmatrix_behind_barrier(kernel)}
        if chosen and (said := honest.look(exercise, kernel, chosen, seed)):
            return _failed(exercise, tried, CHEAT, "", said)
        needs = [Goal("tensor_flops", ">=", str(kernel.stage.spec.flops(shape, kernel.variants)))] if tensor else []
        return _judged(exercise, tried, counts, exercise.sizes(kernel), source, start, needs)
    except CheckFailed as error:
        return _failed(exercise, tried, WRONG, where, str(error))
    except ToolFailed as error:
        return _failed(exercise, tried, COMPILE, where, str(error))
    except UserError as error:
        return _failed(exercise, tried, RUN, where, str(error))


def _patterns(kernel: Kernel, last: bool) -> Sequence[str]:
    """Kinds of inputs: all of them at the last shape, normal ones at the others."""
    patterns = kernel.stage.spec.patterns
    return patterns if last else patterns[:1]


def _program(source: Path, exercise: Exercise, seed: int, shapes: Sequence[Shape] | None, start: str) -> Verdict:
    where = " ".join([source.name, *exercise.words])
    options = Options(leaks=True, timeout=PROGRAM_SECONDS)
    options = options.replace(arch=exercise.arch) if exercise.arch else options
    shifted = options.replace(defines={**options.macros, SHIFT: str(1 + seed % SHIFTS)})
    try:
        with terminal.progress(f"running {where}"):
            if honest.repairs_host(exercise):
                report = cudaemu.program(source, exercise.words, options=options)
            else:  # the host code, which says whether the result is right, is ours
                report = cudaemu.program(_starter(exercise), exercise.words, kernels=source, options=shifted)
    except ToolFailed as error:
        return _failed(exercise, 1, COMPILE, where, str(error))
    except UserError as error:
        return _failed(exercise, 1, RUN, where, str(error))
    if report.findings:
        return _failed(exercise, 1, RULE, where, str(report))
    if report.status:
        return _failed(exercise, 1, WRONG, where, report.error or report.outcome)
    counts = counted(report)
    return _judged(exercise, 1, counts, {}, source, start)


def _starter(exercise: Exercise) -> Path:
    """The starter, `varied`, as a file. It is always the same one, so that it is compiled once for each shift."""
    folder = cache.folder() / "starters" / exercise.name
    path, text = folder / exercise.file, varied(exercise.start)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    return path


def varied(text: str) -> str:
    """A program whose inputs are those of the indices SHIFT further on: in[i] = float(i % 13) becomes (i + SHIFT) % 13.
    A kernel that has the answers of the file's own inputs has the wrong ones."""
    loop = re.compile(r"(^ +for \((?:int|size_t) i = 0;.*?; \+\+i\) )(.*\[i\] = .*)", re.MULTILINE)
    index = re.compile(r"(?<![\w\[.])i(?![\w\]])")
    return loop.sub(lambda found: found[1] + index.sub(f"(i + {SHIFT})", found[2]), text)


def _failed(exercise: Exercise, tried: int, kind: str, where: str, report: str) -> Verdict:
    return Verdict(exercise.name, tried, (Finding(kind, where, report),), (), (), ())


def _kind(result: Result) -> str:
    """What is wrong with a result that is not right."""
    if result.broken:
        return RULE
    if not result.accuracies:
        return RUN
    return RULE if all(each.ok for each in result.accuracies) else WRONG  # right, but it wrote to an input


def _counted(kernel: Kernel, shape: Shape, seed: int, early: bool, at_a_time: bool) -> Report:
    """A run on a whole GPU, for its counters, with a trace of the first blocks if `early` and a timeline of block 0 if
    `at_a_time`. CheckFailed if its result is wrong: a kernel that does nothing moves nothing."""
    instance = accuracy.make(kernel, shape, seed=seed)
    outputs = instance.outputs()
    with terminal.progress(f"counting {kernel.label} {kernel.stage.spec.format(shape)}"):
        trace = Trace(range(FIRST_BLOCKS)) if early else None
        events = Events(range(1)) if at_a_time else None
        report = kernel.emulate(instance.inputs, outputs, trace=trace, events=events)
    if not report.findings:
        accuracy.verify(kernel, instance, outputs)
    return report


def _judged(
    exercise: Exercise, tried: int, counts: Mapping[str, int], sizes: Mapping[str, int], source: Path, start: str,
    needs: Sequence[Goal] = (),
) -> Verdict:  # fmt: skip
    """The verdict on a source that is right: its goals, what it needs (of the exercise, and `needs`), and of a bug
    whether the repair is small."""
    goals, keeps, needed = (
        [goal.judge(counts, sizes) for goal in each]
        for each in (exercise.goals, exercise.keeps, (*exercise.needs, *needs))
    )
    if exercise.limit is not None:
        lines = changed_lines(start, toolchain.read(source))
        keeps.append(Judged("changed lines", lines, "<=", exercise.limit, lines <= exercise.limit))
    return Verdict(exercise.name, tried, (), tuple(goals), tuple(keeps), tuple(needed))


def changed_lines(before: str, after: str) -> int:
    """How many lines of code were removed, and how many added."""
    diff = difflib.ndiff(before.splitlines(), after.splitlines())
    return sum(line[:2] in ("- ", "+ ") and is_code(line[2:]) for line in diff)
