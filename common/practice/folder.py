"""The reader's folder: practice/NAME/ with the file to write, its task, and what was done so far.

    practice/NAME/kernel.cu        what the reader writes (an example has its own name)
    practice/NAME/TASK.md          what to do
    practice/NAME/.starter.json    what it began with, and of which version of the course
    practice/.progress.json        for each exercise: begun, checked, solved, hints taken

The reader's files are never overwritten: a folder is made whole or not at all, an existing one stays, and a fresh start
moves it aside. Records are replaced atomically, so that an interrupted command leaves the old ones.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import cudaemu
from common import terminal
from common.practice.check import Verdict
from common.practice.exercises import KINDS, ROOT, Exercise
from common.practice.goals import SIGNS, in_words
from cudaemu.errors import UserError

PRACTICE = ROOT / "practice"
PROGRESS, STARTER, TASK = ".progress.json", ".starter.json", "TASK.md"


@dataclass(frozen=True)
class Folder:
    """Where a reader practises one exercise; `root` holds all of them."""

    exercise: Exercise
    root: Path = PRACTICE

    @property
    def path(self) -> Path:
        return self.root / self.exercise.name

    @property
    def source(self) -> Path:
        return self.path / self.exercise.file

    def begin(self) -> Path:
        """Write the starter and its task; returns the file to write. UserError if the folder is there already, or was
        begun and is gone."""
        record = Progress(self.root).of(self.exercise)
        if os.path.lexists(self.path):
            raise UserError(f"{shown(self.path)} exists already; --afresh moves it aside and begins again")
        if record.get("begun"):
            raise UserError(
                f"{shown(self.path)} was begun on {record['begun']} and is gone. If you moved it, move it back, or "
                "name your file with --source; to begin again: --afresh"
            )
        return self._write()

    def afresh(self) -> tuple[Path, Path | None]:
        """Begin again: (the file to write, where the folder that was there is now)."""
        kept = None
        if os.path.lexists(self.path):
            numbers = (number for number in range(1, 1_000_000))
            kept = next(p for n in numbers if not os.path.lexists(p := self.root / f"{self.exercise.name}.kept-{n}"))
            with _writing(self.path):
                os.rename(self.path, kept)
        return self._write(), kept

    def _write(self) -> Path:
        text, task = self._beginning(), page(self.exercise, self.root)
        starter = {"exercise": self.exercise.name, "version": version(), "text": text}
        with _writing(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{self.exercise.name}-", dir=self.root))
            try:
                (made / self.exercise.file).write_text(text, encoding="utf-8")
                (made / TASK).write_text(task, encoding="utf-8")
                (made / STARTER).write_text(json.dumps(starter, indent=1) + "\n", encoding="utf-8")
                made.chmod(0o755)
                os.rename(made, self.path)  # fails if another process has made it meanwhile and written into it
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
        Progress(self.root).note(self.exercise, begun=date.today().isoformat(), version=starter["version"])
        return self.source

    def _beginning(self) -> str:
        """The starter. UserError if it is the reader's solution of another exercise, and that is missing."""
        if not self.exercise.begins:
            return self.exercise.start
        own = self.root / self.exercise.begins / self.exercise.file
        try:
            return own.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"{self.exercise.name} begins with your own solution of {self.exercise.begins}, {shown(own)}: {reason}"
            ) from None

    def existing(self) -> Path:
        """The reader's file. UserError if the exercise was not begun, or the file is not where it was written."""
        if self.source.is_file():
            return self.source
        if not self.path.is_dir():
            begun = Progress(self.root).of(self.exercise).get("begun")
            gone = f"was begun on {begun} and is gone" if begun else "was not begun"
            raise UserError(f"{shown(self.path)} {gone}; name your file with --source, or write a starter: --afresh")
        found = sorted(path.name for path in self.path.glob("*.cu") if path.is_file())
        others = ", ".join(found) or "no other .cu file"
        raise UserError(
            f"{shown(self.source)} is not there (in its folder: {others}); bring it back, name your file with "
            "--source, or begin again, the folder moved aside: --afresh"
        )

    def started_with(self) -> tuple[str, str] | None:
        """(the text that it began with, the version of the course it was of); None where that is not recorded."""
        try:
            found = json.loads((self.path / STARTER).read_text(encoding="utf-8"))
            return str(found["text"]), str(found["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Progress:
    """Progress by exercise, in one small file."""

    def __init__(self, root: Path = PRACTICE):
        self.path = root / PROGRESS

    def read(self) -> dict[str, dict[str, Any]]:
        """By the names of exercises. An unreadable file is moved aside, with a message."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or not all(map(_is_record, found.values())):
                raise ValueError
            return found
        except FileNotFoundError:
            return {}
        except ValueError:
            aside = self.path.with_name(".progress.unreadable.json")
            with _writing(self.path):
                os.replace(self.path, aside)
            terminal.announce(f"{shown(self.path)} cannot be read: it is now {aside.name}, and progress starts over")
            return {}
        except OSError as error:
            raise UserError(f"cannot read {shown(self.path)}: {error.strerror}") from None

    def solved(self) -> set[str]:
        """The names of those that are solved."""
        return {name for name, known in self.read().items() if "solved" in known}

    def of(self, exercise: Exercise) -> dict[str, Any]:
        """What is known of an exercise; empty if nothing is."""
        return self.read().get(exercise.name, {})

    def note(self, exercise: Exercise, **what: Any) -> dict[str, Any]:
        """Record it, in one piece; returns all that is known of the exercise."""
        found = self.read()
        found[exercise.name] = {**found.get(exercise.name, {}), **what}
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".progress-", dir=self.path.parent)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(json.dumps(found, indent=1, sort_keys=True) + "\n")
                os.replace(temporary, self.path)
            except BaseException:
                os.unlink(temporary)
                raise
        return found[exercise.name]

    def checked(self, exercise: Exercise, verdict: Verdict) -> None:
        """Record a check: how many there were, the most points so far, and the day on which it was solved."""
        known = self.of(exercise)
        what: dict[str, Any] = {
            "checks": known.get("checks", 0) + 1,
            "points": max(known.get("points", 0.0), verdict.points),
        }
        if verdict.ok and "solved" not in known:
            what["solved"] = date.today().isoformat()
        self.note(exercise, **what)

    def hint(self, exercise: Exercise) -> int:
        """Take the next hint: how many are taken now."""
        taken = min(self.of(exercise).get("hints", 0) + 1, len(exercise.hints))
        hints: int = self.note(exercise, hints=taken)["hints"]
        return hints


def _is_record(found: Any) -> bool:
    """Whether this is what is known of an exercise, as this or another version of the course writes it."""
    if not isinstance(found, dict):
        return False
    points, counts = found.get("points", 0), (found.get("checks", 0), found.get("hints", 0))
    return type(points) in (int, float) and all(type(count) is int and count >= 0 for count in counts)


def page(exercise: Exercise, root: Path = PRACTICE) -> str:
    """The task, as Markdown: what to write, its signature, what must hold, what to predict, what to type where the
    exercises are in `root`."""
    kernel = exercise.kernel(exercise.solution) if exercise.stage else None
    sizes = exercise.sizes(kernel) if kernel else {}
    parts = [f"# {exercise.name} · {exercise.title}", f"*{KINDS[exercise.kind].partition(':')[0].capitalize()}*, "
             f"{exercise.topic}, level {exercise.level} of 5. You write `{exercise.file}`."]  # fmt: skip
    parts.append(exercise.task)
    if exercise.stage and kernel:
        parts += ["## The launcher", f"```cpp\n{signature(exercise)}\n```", f"It takes: {exercise.stage.limits}."]
        parts += [
            f"`{exercise.file}` must declare the macro `{name}` ({' or '.join(map(str, values))}); it is checked with "
            f"{kernel.variants[name]}: `#ifndef {name}`, `#define {name} {kernel.variants[name]}`, `#endif`."
            for name, values in exercise.declares.items()
            if f"#define {name} " not in exercise.start
        ]
    if exercise.predict:
        questions = "\n".join(f"{number}. {each}" for number, each in enumerate(exercise.predict, 1))
        parts += ["## Predict first, on paper", questions]
    rules = ["the result is right, in the emulator, at all small shapes that the stage's own check tries",
             "the sanitizer finds nothing"]  # fmt: skip
    if exercise.stage is None:
        rules = [
            "the program ends with status 0: it checks its own result",
            "the sanitizer finds nothing, leaks included",
        ]
    if kernel and exercise.kind == "bug":
        shape = kernel.stage.spec.format(exercise.shape(kernel))
        rules[0] = f"the result is right, in the emulator: at {shape}, {kernel.short}, where it was seen, and at others"
    if exercise.limit is not None:
        rules.append(f"the repair changes at most {exercise.limit} lines of code (a line replaced counts twice)")
    if kernel and (exercise.goals or exercise.keeps or exercise.needs):
        at = kernel.stage.spec.format(exercise.shape(kernel))
        each = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
        rules.append(f"counted at {at} ({each}), {kernel.short}:")
    for goal in (*exercise.goals, *exercise.keeps, *exercise.needs):
        bound = goal.value(sizes)
        derived = "" if re.fullmatch(r"[\d.]+", goal.bound) else f" (`{goal.bound}`)"
        rules.append(
            f"  - {in_words(goal.counter)} {SIGNS[goal.sign]} {bound:,.0f}{derived}: `{goal.counter}`"
            + (", or there are no points" if goal in exercise.needs else "")
        )
    listed = "\n".join(each if each.startswith("  ") else f"- {each}" for each in rules)
    typing = command(exercise, root)
    typed = [
        (f"{typing} --check", "check it once"),
        (f"{typing} --watch", "check it whenever you save it"),
        (f"{typing} --hint", f"the next of {len(exercise.hints)} hints"),
    ]
    if not exercise.handed_out:
        typed.append((f"{typing} --solution", "the diff to ours"))
    if exercise.kind == "bug":
        typed.append((f"{typing} --blind", "check it without a report of what is wrong"))
    if exercise.stage and not exercise.handed_out:
        base = Path("practice") if root == PRACTICE else root
        file = f"--source {shlex.quote(str(base / exercise.name / exercise.file))}"
        typed += [
            (f"python -m {exercise.stage.package} count {file}", "its counters beside ours"),
            (f"python -m {exercise.stage.package} show banks {file}", "its banks, drawn to figures/"),
        ]
    commands = "\n".join(f"# {what}\n{words}" for words, what in typed)
    where = "In the root of the repository, where `python` is `.venv/bin/python`:"
    parts += ["## What must hold", listed, "## Commands", where, f"```\n{commands}\n```"]
    return "\n\n".join(parts) + "\n"


def signature(exercise: Exercise) -> str:
    """The launcher's declaration, as our source has it."""
    assert exercise.stage is not None
    text = exercise.solution.read_text(encoding="utf-8")
    found = re.search(rf'extern "C" cudaError_t {exercise.stage.symbol}\([^)]*\)', text)
    if not found:
        raise UserError(f"{exercise.solution} does not export {exercise.stage.symbol}")
    return found[0] + ";"


def command(exercise: Exercise, root: Path = PRACTICE) -> str:
    """The command for it, where the exercises are in `root`."""
    more = "" if root == PRACTICE else f" --folder {shlex.quote(str(root))}"
    if exercise.kind == "step" and exercise.stage:
        return f"python -m {exercise.stage.package} practice{more}"
    return f"python -m kernels practice {exercise.name}{more}"


def version() -> str:
    """The version of the course, with the commit where there is one: "0.2.0 (1a2b3c4d)"."""
    try:
        words = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return f"{cudaemu.__version__} ({done.stdout.strip()})"
    except (OSError, subprocess.CalledProcessError):
        return cudaemu.__version__


def shown(path: Path) -> Path:
    """The path as one types it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns an OSError inside into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {shown(path)}: {error.strerror}") from None
