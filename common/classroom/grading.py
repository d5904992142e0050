"""Grading: each exercise of each student is checked in a process of its own; a page of feedback per student.

    DIR/STUDENT/NAME/FILE             or DIR/STUDENT/practice/NAME/FILE: what one student wrote of the exercise NAME;
    DIR/practice/NAME/FILE            likewise, where DIR is one student's repository
    OUT/grades.csv grades.json        a row per student and exercise; the JSON has all that the check said
    OUT/feedback/STUDENT.md           a page per student, in words

The check is the one that students run (common/practice/check.py), with other inputs and one more shape, both drawn from
a seed; it sees to it that the kernels do the work (common/practice/honest.py). Whatever a submission does, it gets a
row.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.classroom import repository, sandbox
from common.classroom.sandbox import Limits
from common.practice import exercises
from common.practice.check import CHEAT, COMPILE, POINTS, RULE, RUN, WRONG, Finding, check
from common.practice.exercises import Exercise
from common.practice.folder import command
from common.practice.goals import Judged
from common.problem import Shape
from common.stage import Kernel
from cudaemu import build, calls, engine, process
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import UserError
from cudaemu.process import TOOLKIT

SOLVED, MISSED, STARTER = "solved", "goals missed", "the starter"
MISSING, EMPTY, LATE, DIED = "missing", "empty", "time limit", "check ended"
LARGEST = 1 << 20  # bytes of a source
LONGEST = 250  # bytes of a student's name: a page of feedback is called so
HOST_SECONDS = 10.0  # that a launcher may run without calling CUDA
HIDDEN_FLOPS = 2 * 128**3  # of the hidden shape, at most: what the emulator does in a second
ADVICE = {
    SOLVED: "Right, and every goal is met.",
    MISSED: "The result is right and no rule is broken. What is left is in the table: the counters that are not there "
    "yet.",
    STARTER: "This is the starter as it was given out. If you wrote something, it was not saved or not pushed.",
    MISSING: "The file is not where the starter was. Was it moved or renamed, or not pushed?",
    EMPTY: "The file has nothing in it. Was it saved?",
    COMPILE: "The compiler refuses it. Begin with the first message: later ones often follow from it.",
    RUN: "It compiles, but does not run to its end: a crash of the launcher, a refused launch, no launcher.",
    RULE: "A rule is broken, which a GPU may let pass today and not tomorrow. The report names the line.",
    WRONG: "The result is wrong. The report has the first wrong elements and the threads that wrote them.",
    LATE: "The check ran out of time. A loop that does not end, or a wait for something that never "
    "comes, in the kernel or in the launcher?",
    DIED: "The check ended before it had a result: it took too much memory, or the host code ended it.",
    CHEAT: "The result may be right, but the kernel must compute it, anew at each call and from its inputs "
    "alone, as the task asks.",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The result of one exercise of one student."""

    student: str
    exercise: str
    outcome: str  # a key of ADVICE
    points: float = 0.0
    where: str = ""  # "300x133x329 fp16"
    report: str = ""
    goals: tuple[Judged, ...] = ()
    checks: int = 0
    seconds: float = field(default=0.0, compare=False)


def students(root: Path) -> list[Path]:
    """The folders of the students, or the folder itself if it is one student's: with practice/ in it. UserError if
    there are none."""
    if (sandbox.folder_of(root, "DIR") / "practice").is_dir():
        found = [root.resolve()]
    else:
        found = sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    if not found:
        raise UserError(f"{root} must have a folder for each student, got none")
    for path in found:
        try:
            fits = len(path.name.encode()) <= LONGEST
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise UserError(
                f"a student's folder must have a name of UTF-8, {LONGEST} bytes at most; rename {path.name!r}"
            )
    return found


def submitted(student: Path, exercise: Exercise) -> Path:
    """Where a student's file of an exercise is, or would be."""
    places = [folder / exercise.name / exercise.file for folder in (student, student / "practice")]
    return next((place for place in places if os.path.lexists(place)), places[0])


def asked(folders: Iterable[Path]) -> list[Exercise]:
    """The exercises of which any student has a folder. UserError if there is none."""
    names = {
        path.name for each in folders for top in (each, each / "practice") if top.is_dir() for path in top.iterdir()
    }
    found = [exercise for exercise in exercises.catalogue() if exercise.name in names]
    if not found:
        raise UserError("no student's folder has an exercise of this course; name those to grade: --exercise 02")
    return found


def grade(
    folders: Sequence[Path],
    chosen: Sequence[Exercise],
    seed: int,
    jobs: int,
    limits: Limits,
    done: Callable[[Row], None] = lambda row: None,
    walled: bool = True,
) -> list[Row]:
    """A row per student and exercise, in this order; `done` hears of each as it is there. `walled`: behind the wall."""
    tools = _tools()

    def one(which: tuple[Path, Exercise]) -> Row:
        row = _row(*which, seed, limits, tools, course, walled)
        done(row)
        return row

    with tempfile.TemporaryDirectory(prefix="course-") as made, ThreadPoolExecutor(jobs) as pool:
        os.chmod(made, 0o755)  # a check of root's runs as another user
        course = repository.course_for(Path(made), chosen)
        return list(pool.map(one, [(student, exercise) for student in folders for exercise in chosen]))


def _tools() -> list[str]:
    """What a check may use of the cache: the compiled emulator, built now if need be, and no kernel."""
    words = [sys.executable, "-m", "common.classroom.grading", "tools"]
    done = subprocess.run(words, cwd=exercises.ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the emulator cannot be built: {done.stderr.strip()[-2000:]}")
    lines: list[str] = json.loads(done.stdout)
    return lines


def _make_tools() -> list[str]:
    made: list[Path] = []
    get = cache.get

    def noted(*args: Any, **more: Any) -> Path:
        made.append(get(*args, **more))
        return made[-1]

    cache.get = noted
    engine.library()
    process.runner()
    build.runtime_object(toolchain.find_nvcc())
    found = dict.fromkeys(path for product in made for path in (product.parent / cache.LOCK, product))
    return [str(path.relative_to(cache.folder())) for path in found]


def _row(
    student: Path,
    exercise: Exercise,
    seed: int,
    limits: Limits,
    tools: Sequence[str],
    course: Mapping[str, Path],
    walled: bool,
) -> Row:
    """Its row, whatever happens."""
    row, source, began = Row(student.name, exercise.name, MISSING), submitted(student, exercise), time.monotonic()
    theirs = os.path.join(os.path.realpath(student), source.relative_to(student))
    if os.path.realpath(source) != theirs or not source.is_file():  # a link could name a file that is not the student's
        return replace(row, report=f"there is no file {source.relative_to(student)}")
    try:
        with open(source, "rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        return replace(row, report=f"cannot read {source.relative_to(student)}: {error.strerror}")
    if not text.strip():
        return replace(row, outcome=EMPTY)
    if len(text) > LARGEST:
        return replace(row, outcome=COMPILE, report=f"a source must have at most {LARGEST:,} bytes, got more")
    if text.decode(errors="replace") == exercise.start:
        return replace(row, outcome=STARTER)
    given = {"text": base64.b64encode(text).decode(), "exercise": exercise.name, "seed": seed, "limits": asdict(limits)}
    words = ["env", "-C", str(exercises.ROOT), sys.executable, "-m", "common.classroom.grading", "check"]
    ran = sandbox.run(words, limits, cache.folder(), tools, json.dumps(given).encode(), course, walled)
    seconds = round(time.monotonic() - began, 1)
    if ran.late:
        return replace(row, outcome=LATE, report=f"more than {limits.seconds:g} s", seconds=seconds)
    try:
        found = json.loads(ran.sent)
        found["goals"] = tuple(Judged(**goal) for goal in found["goals"])
        return replace(row, **found, seconds=seconds)
    except (ValueError, KeyError, TypeError):
        said = "\n".join(ran.said.splitlines()[-8:])
        return replace(row, outcome=DIED, report=f"exit status {ran.status}\n{said}".strip(), seconds=seconds)


# ---- behind the wall -------------------------------------------------------------------------------------------------


def judge(source: Path, exercise: Exercise, seed: int) -> dict[str, Any]:
    """The fields of a row, from its outcome on."""
    shapes = None
    if exercise.stage is not None:
        try:
            kernel = exercise.kernel(source)
            shapes = [hidden_shape(kernel, seed), *kernel.test_shapes().values()]
        except UserError:
            shapes = None  # the check says it
    verdict = check(source, exercise, seed=seed, shapes=shapes)
    found: dict[str, Any] = {
        "checks": verdict.checks,
        "goals": [asdict(g) for g in (*verdict.goals, *verdict.keeps, *verdict.needs)],
    }
    for finding in verdict.findings:
        return {**found, **_of(finding, source)}
    return {**found, "outcome": SOLVED if verdict.ok else MISSED, "points": verdict.points}


def _of(finding: Finding, source: Path) -> dict[str, Any]:
    return {"outcome": finding.kind, "where": finding.where, "report": _own(finding.report, source)}


def _own(report: str, source: Path) -> str:
    """The report without what it quotes of other files than the student's: a compiler's message of one of those has a
    line of it."""
    kept, own = [], True
    for line in report.splitlines():
        if place := re.match(r"(\S[^:(]*)[:(]\d+[:)]", line):
            own = Path(place[1]).name in (source.name, "") or bool(TOOLKIT.search(place[1])) or "/" not in place[1]
        if own:
            kept.append(line.replace(f"{source.parent}/", ""))
    return "\n".join(kept) or "the compiler refuses it, at a place that is not in your file"


def _flops(kernel: Kernel, shape: Shape) -> int:
    return kernel.stage.spec.flops(shape, kernel.variants)


def hidden_shape(kernel: Kernel, seed: int) -> Shape:
    """A small shape that the kernel takes and that its own check does not try, if there is one; the seed draws it."""
    draw, known = random.Random(seed), list(kernel.test_shapes().values())
    found = []
    for _ in range(200):
        shape = tuple(
            draw.choice(sizes) + draw.choice((0, 1, 2)) * kernel.multiples.get(axis, 7)
            for axis, sizes in zip(kernel.stage.spec.axes, zip(*known))
        )
        with suppress(UserError):
            kernel.check_shape(*shape)
            if shape not in known:
                found.append(shape)
    small = [shape for shape in found if _flops(kernel, shape) <= HIDDEN_FLOPS]
    if small:
        return small[0]
    return min(found, key=lambda shape: _flops(kernel, shape)) if found else known[0]


def main() -> None:
    """One check: the request comes in as JSON, the result goes out as JSON, through a descriptor that nobody else
    has."""
    given = json.load(sys.stdin)
    result = sandbox.enter(Limits(**given["limits"]))
    exercise = exercises.find(given["exercise"])
    calls.FUNCTION_TIMEOUT = HOST_SECONDS
    with redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / exercise.file
        source.write_bytes(base64.b64decode(given["text"]))
        try:
            found = judge(source, exercise, given["seed"])
        except UserError as error:
            found = {"outcome": RUN, "report": str(error), "goals": []}
    with open(result, "w", encoding="utf-8") as file:
        json.dump(found, file)


# ---- what comes out --------------------------------------------------------------------------------------------------


def write(rows: Sequence[Row], out: Path, settings: dict[str, Any]) -> None:
    """grades.csv, grades.json and a page per student in `out`. UserError if it cannot be written."""
    try:
        (out / "feedback").mkdir(parents=True, exist_ok=True)
        with open(out / "grades.csv", "w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(("student", "exercise", "points", "of", "outcome", "where", "seconds"))
            for row in rows:
                words = (row.student, row.exercise, f"{row.points:g}", POINTS, row.outcome, row.where, row.seconds)
                table.writerow(
                    [f"'{word}" if str(word).startswith(("=", "+", "-", "@")) else word for word in words]
                )  # no formulas
        found = {**settings, "rows": [asdict(row) for row in rows]}
        (out / "grades.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        for student in dict.fromkeys(row.student for row in rows):
            page = feedback(student, [row for row in rows if row.student == student])
            (out / "feedback" / f"{student}.md").write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}") from None


def feedback(student: str, rows: Sequence[Row]) -> str:
    """A student's page, in Markdown."""
    points = sum(row.points for row in rows)
    parts = [f"# {student}: {points:g} of {POINTS * len(rows)} points"]
    for row in rows:
        exercise = exercises.find(row.exercise)
        parts += [f"## {exercise.name} · {exercise.title}: {row.points:g} of {POINTS}", ADVICE[row.outcome]]
        if row.goals:
            lines = [f"| {g.text} | {g.value:,.0f} | {'met' if g.met else 'missed'} |" for g in row.goals]
            parts.append("\n".join(["| goal | counted | |", "| --- | --- | --- |", *lines]))
        if row.report:
            fence = "`" * max(3, 1 + max((len(each) for each in _ticks(row.report)), default=0))
            where = f"At {row.where}:\n\n" if row.where else ""
            parts.append(f"{where}{fence}\n{_shortened(row.report)}\n{fence}")
        if row.outcome != SOLVED:
            parts.append(f"A hint: {exercise.hints[0]}\n\nTo see it yourself: `{command(exercise)} --check`")
    return "\n\n".join(parts) + "\n"


def classroom(rows: Sequence[Row]) -> str:
    """The rows as a result that GitHub Classroom's reporter takes: JSON in base64, a test per exercise.

    The form is that of github.com/classroom-resources/autograding-command-grader."""
    tests = [
        {
            "name": row.exercise, "status": "pass" if row.outcome == SOLVED else "fail", "score": row.points,
            "message": ADVICE[row.outcome], "test_code": "", "filename": "", "line_no": 0, "duration": row.seconds,
        }
        for row in rows
    ]  # fmt: skip
    status = "pass" if all(row.outcome == SOLVED for row in rows) else "fail"
    found = {"version": 1, "status": status, "max_score": POINTS * len(rows), "tests": tests}
    return base64.b64encode(json.dumps(found).encode()).decode()


def _ticks(text: str) -> list[str]:
    return ["".join(each) for each in text.replace("\n", " ").split() if set(each) == {"`"}]


def _shortened(report: str, lines: int = 30) -> str:
    told = report.splitlines()
    return "\n".join(told[:lines] + ([f"... and {len(told) - lines} lines more"] if len(told) > lines else []))


__all__ = ["ADVICE", "Row", "asked", "classroom", "feedback", "grade", "hidden_shape", "students", "submitted", "write"]

if __name__ == "__main__":
    if sys.argv[1:] == ["tools"]:
        print(json.dumps(_make_tools()))
    else:
        main()
