"""Verb `practice`: the reader writes, the course checks."""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rich.table import Table

from common import terminal
from common.practice import drawn, exercises, folder
from common.practice.check import COMPILE, POINTS, RUN, Verdict, check
from common.practice.exercises import HINTS, KINDS, TOPICS, Exercise
from common.practice.folder import PRACTICE, Folder, Progress, shown
from common.stage import Stage
from common.verbs import options
from common.verbs.diff import paint
from common.verbs.watching import Key, watch
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError, pick

EXAMPLES = (
    "--watch # check it whenever you save it",
    "--hint # the next of three",
    "--check --source my_kernel.cu # a file that is somewhere else",
)
LADDER_EXAMPLES = (
    "--kind bug --level 2 # some of them",
    "NN_name # write its starter, or check what you wrote",
)
BAR = 40  # columns
PARTS = {
    "diagnose": "common.practice.diagnose",
    "drill": "common.practice.drills.asking",
    "interview": "common.practice.interview",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "exercise", nargs="?", metavar="EXERCISE", help="default: the step; `python -m kernels practice` lists them"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="check what you wrote, once; the default if there is any")
    what.add_argument("--watch", action="store_true", help="check again whenever the source changes, until Ctrl-C")
    what.add_argument("--hint", action="store_true", help=f"the next of {HINTS} hints")
    what.add_argument("--solution", action="store_true", help="the diff from yours to ours")
    what.add_argument("--afresh", action="store_true", help="start over; what you wrote is moved aside, not lost")
    parser.add_argument("--blind", action="store_true", help="do not say what is wrong and where")
    parser.add_argument("--source", type=Path, metavar="FILE.cu", help="your file, if it is not in its folder")
    parser.add_argument(
        "--folder", type=Path, default=PRACTICE, metavar="DIR", help="where your exercises are (default: practice/)"
    )
    parser.add_argument("--minutes", type=int, metavar="N", help="with --watch: say how much of N minutes is left")
    options.add_seed(parser)


def add_ladder_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--list", action="store_true", help="list all exercises, by topic and level")
    parser.add_argument("--topic", metavar="TOPIC", help=f"list only these: {', '.join(TOPICS)}")
    parser.add_argument("--level", type=int, choices=range(1, 6), help="list only these")
    parser.add_argument("--kind", choices=tuple(KINDS), help="list only these")


def run(stage: Stage, args: argparse.Namespace) -> int:
    if args.exercise is not None:
        return _practise(exercises.find(args.exercise, stage), args)
    found = exercises.of_stage(stage)
    step = next((each for each in found if each.kind == "step"), None)
    if step is None:
        others = ", ".join(each.name for each in found) or "none"
        raise UserError(f"{stage.name} has no step to practise. Its exercises: {others}")
    return _practise(step, args)


def run_ladder(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    if args.exercise is not None:
        return _practise(exercises.find(args.exercise), args)
    if args.check or args.watch or args.hint or args.solution or args.afresh or args.source:
        raise UserError("name the exercise: python -m kernels practice EXERCISE")
    if args.list or args.topic is not None or args.level is not None or args.kind is not None:
        _list(args)
    else:
        _next_one(args)
    return 0


# ---- where the reader is ---------------------------------------------------------------------------------------------


def _next_one(args: argparse.Namespace) -> None:
    """The exercise to take next, and how much of each part is done."""
    progress = Progress(args.folder)
    _bars(progress)
    done = progress.solved()
    chosen = exercises.following(None, done)
    if chosen is None:
        terminal.out.print("\nAll exercises are solved.", markup=False)
    else:
        begun, typed = Folder(chosen, args.folder).path.exists(), folder.command(chosen, args.folder)
        terminal.out.print(f"\nNext: {chosen.name}, {chosen.title}", style="bold", markup=False, soft_wrap=True)
        terminal.out.print(f"  {KINDS[chosen.kind]}; level {chosen.level} of 5", markup=False)
        what = "check what you wrote" if begun else "write its starter and its task"
        terminal.out.print(f"  {typed}   # {what}", markup=False, soft_wrap=True)
        terminal.out.print(f"  {typed} --watch   # check at each save; keys: hint, next", markup=False, soft_wrap=True)
    terminal.out.print("\nAll of them: python -m kernels practice --list", markup=False)
    terminal.out.print("Questions: python -m kernels practice " + ", ".join(PARTS), markup=False)
    _say_python()


def _bars(progress: Progress) -> None:
    """A bar for each part of the course."""
    solved = progress.solved()
    parts: dict[str, list[bool]] = {}
    for each in exercises.catalogue():
        parts.setdefault(exercises.part(each), []).append(each.name in solved)
    for name, flags in parts.items():
        full = round(BAR * sum(flags) / len(flags))
        bar = "█" * full + "░" * (BAR - full)
        terminal.out.print(f"{name:<14}{bar} {sum(flags):>3} of {len(flags)}", markup=False)


def _say_python() -> None:
    """What to type where `python` is another one than this."""
    if said := other_python():
        terminal.announce(said)


def other_python() -> str:
    """ "" if the word `python` starts this environment's, else what to type instead."""
    found = shutil.which("python")
    if found and Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        return ""
    mine = shown(Path(sys.executable))
    activate = Path(sys.executable).with_name("activate")
    once = f", or once in this shell: source {shown(activate)}" if activate.is_file() else ""
    return f"`python` is {found or 'no program'} here: type {mine} instead{once}"


# ---- the list --------------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> None:
    """All exercises, or those asked for, by topic and level, with what is done."""
    topic = None if args.topic is None else pick(args.topic, TOPICS, "topic", "practice")
    chosen = [
        each
        for each in exercises.catalogue()
        if topic in (None, each.topic) and args.level in (None, each.level) and args.kind in (None, each.kind)
    ]
    done = Progress(args.folder).read()
    made = terminal.table()
    made.add_column("exercise", no_wrap=True)
    made.add_column("level", justify="right")
    made.add_column("kind")
    made.add_column("what")
    made.add_column("done", no_wrap=True)
    for heading in TOPICS:
        of_topic = sorted((each for each in chosen if each.topic == heading), key=lambda each: each.level)
        if of_topic:
            made.add_row(f"[bold]{heading}")
        for each in of_topic:
            made.add_row(f"  {each.name}", str(each.level), each.kind, each.title, _done(done.get(each.name, {})))
    terminal.out.print(made)
    solved = sum("solved" in done.get(each.name, {}) for each in chosen)
    terminal.out.print(f"\n{solved} of {len(chosen)} solved", markup=False)
    unknown = sorted(set(done) - {each.name for each in exercises.catalogue()})
    if unknown:
        terminal.out.print(f"of another version of the course: {', '.join(unknown)}", markup=False)
    for kind, what in KINDS.items():
        if any(each.kind == kind for each in chosen):
            terminal.out.print(f"  {kind}: {what}", markup=False)
    terminal.out.print(
        "\npython -m kernels practice EXERCISE   writes its starter, or checks what you wrote", markup=False
    )
    for word in PARTS:
        terminal.out.print(f"python -m kernels practice {word} --help", markup=False)


def _done(record: dict[str, Any]) -> str:
    if "solved" in record:
        return "solved"
    if record.get("points"):
        return f"{record['points']:g} of {POINTS}"
    return "begun" if "begun" in record else ""


# ---- one exercise ----------------------------------------------------------------------------------------------------


def _practise(exercise: Exercise, args: argparse.Namespace) -> int:
    place = Folder(exercise, args.folder)
    if args.minutes is not None and (args.minutes < 1 or not args.watch):
        raise UserError(f"--minutes must be at least 1, and with --watch, got {args.minutes}")
    if args.watch and not args.source and not place.path.exists():
        _begun(place, place.begin(), args)
    if args.hint:
        _hint(exercise, args)
        return 0
    if args.solution:
        return _solution(place, args)
    if args.afresh:
        source, kept = place.afresh()
        if kept:
            terminal.out.print(f"What you had is in {shown(kept)}", markup=False, soft_wrap=True)
        return _begun(place, source, args)
    if not (args.check or args.watch or args.source or place.path.exists()):
        return _begun(place, place.begin(), args)
    source = args.source or place.existing()
    if not args.source:
        _say_version(place)
    if args.watch:
        return _watch(place, source, args)
    return _check(place, source, args)


def _hint(exercise: Exercise, args: argparse.Namespace) -> None:
    number = Progress(args.folder).hint(exercise)
    hint = f"Hint {number} of {len(exercise.hints)}: {exercise.hints[number - 1]}"
    terminal.out.print(hint, markup=False, soft_wrap=True)


def _left(minutes: int, since: float) -> str:
    """How much of a timed round is left."""
    left = minutes - (time.monotonic() - since) / 60
    return f"{left:.0f} of {minutes} minutes left" if left > 0 else f"the {minutes} minutes are over"


def _watch(place: Folder, source: Path, args: argparse.Namespace) -> int:
    """Check at each save; the key n goes on to the next exercise, whose starter is written."""
    following = exercises.following(place.exercise, Progress(args.folder).solved() | {place.exercise.name})
    keys = {
        "h": Key("hint", lambda: _hint(place.exercise, args)),
        "s": Key("solution", lambda: _solution(place, args)),
        "l": Key("list", lambda: _bars(Progress(args.folder))),
        "q": Key("quit", lambda: None, ends=True),
    }
    chosen: list[tuple[Folder, Path]] = []
    if following:
        after = Folder(following, args.folder)
        keys["n"] = Key(f"next: {following.name}", lambda: chosen.append((after, _open(after, args))), ends=True)
    since = time.monotonic()

    def checked() -> None:
        _check(place, source, args)
        if args.minutes:
            terminal.out.print(_left(args.minutes, since), style="bold", markup=False)

    watch(source, checked, keys)
    return _watch(*chosen[0], args) if chosen else 0


def _open(place: Folder, args: argparse.Namespace) -> Path:
    """The reader's file of an exercise; its starter, if it was not begun."""
    if place.path.exists():
        return place.existing()
    source = place.begin()
    _begun(place, source, args)
    return source


def _begun(place: Folder, source: Path, args: argparse.Namespace) -> int:
    exercise = place.exercise
    typed = folder.command(exercise, args.folder)
    terminal.out.print(f"{exercise.name}: {exercise.title}", style="bold", markup=False, soft_wrap=True)
    terminal.out.print(f"Read   {shown(place.path / folder.TASK)}", markup=False, soft_wrap=True)
    terminal.out.print(f"Write  {shown(source)}", markup=False, soft_wrap=True)
    terminal.out.print(f"Check  {typed}   (--watch: whenever you save it; --hint)", markup=False, soft_wrap=True)
    if exercise.stage:
        others = [each.name for each in exercises.of_stage(exercise.stage) if each is not exercise]
        if others:
            terminal.out.print(f"Also of this stage: {', '.join(others)}", markup=False, soft_wrap=True)
    _say_python()
    return 0


def _say_version(place: Folder) -> None:
    """Whether the starter was written by another version of the course, whose task it may have been."""
    known = place.started_with()
    if known and known[0] != place.exercise.start:
        terminal.announce(
            f"{shown(place.path)} was begun with version {known[1]} of the course, whose starter was different. Your "
            f"file is checked against the current task, version {folder.version()}; --afresh starts over and keeps it."
        )


def _solution(place: Folder, args: argparse.Namespace) -> int:
    exercise = place.exercise
    if exercise.handed_out:
        raise UserError(f"there is no solution of {exercise.name} here: it was handed out without one")
    source = args.source or (place.source if place.source.is_file() else None)
    mine, name = (toolchain.read(source), str(shown(source))) if source else (exercise.start, "the starter")
    ours = exercise.solution.read_text(encoding="utf-8")
    theirs = str(exercise.solution.relative_to(exercises.ROOT))
    lines = list(difflib.unified_diff(mine.splitlines(), ours.splitlines(), name, theirs, lineterm=""))
    terminal.out.print(paint(lines) if lines else f"{name} is our solution, word for word", soft_wrap=True)
    Progress(args.folder).note(exercise, solution=date.today().isoformat())
    return 0


def _check(place: Folder, source: Path, args: argparse.Namespace) -> int:
    exercise, progress = place.exercise, Progress(args.folder)
    known = place.started_with()
    verdict = check(source, exercise, seed=args.seed, start=known[0] if known else None)
    _tell(exercise, verdict, source, args.blind)
    progress.checked(exercise, verdict)
    if exercise.kind == "first" and not {COMPILE, RUN} & {each.kind for each in verdict.findings}:
        terminal.out.print(drawn.accesses(source, exercise), markup=False)
    if verdict.ok and (following := exercises.following(exercise, progress.solved())):
        terminal.out.print(f"Next: {folder.command(following, args.folder)}", markup=False)
    return 0 if verdict.ok else 1


def _tell(exercise: Exercise, verdict: Verdict, source: Path, blind: bool) -> None:
    out = terminal.out
    out.print(f"{exercise.name}: {shown(source)}", style="bold", markup=False, soft_wrap=True)
    for finding in verdict.findings:
        where = f" ({finding.where})" if finding.where else ""
        if blind:
            out.print(f"{finding.kind}{where}; --blind hides what and where", style="red", markup=False)
        else:
            out.print(f"{finding.kind}{where}", style="red", markup=False, soft_wrap=True)
            out.print(finding.report, markup=False, soft_wrap=True)
    if verdict.right:
        times = "1 check" if verdict.checks == 1 else f"{verdict.checks} checks"
        out.print(f"right, and no rule broken ({times} in the emulator)", markup=False)
    if verdict.goals or verdict.keeps or verdict.needs:
        out.print(_goals(verdict))
    if source.is_file() and toolchain.read(source) == exercise.start:
        out.print(f"{source.name} is the unchanged starter", markup=False)
    if verdict.ok:
        out.print(f"Solved: {POINTS} of {POINTS} points", style="green", markup=False)
    else:
        what = "something is wrong" if verdict.findings else "not every goal is met"
        out.print(f"Not solved yet, {what}: {verdict.points:g} of {POINTS} points", markup=False)


def _goals(verdict: Verdict) -> Table:
    made = terminal.table()
    for column, justify in (("goal", "left"), ("counted", "right"), ("", "left")):
        made.add_column(column, justify=justify)  # type: ignore[arg-type]
    for goal in (*verdict.goals, *verdict.keeps, *verdict.needs):
        made.add_row(goal.text, f"{goal.value:,.0f}", "met" if goal.met else "[red]missed")
    return made
