"""Verb `grade`: a folder of submissions, checked side by side."""

from __future__ import annotations

import argparse
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from common import terminal
from common.classroom import grading, sandbox
from common.classroom.sandbox import Limits
from common.practice import exercises
from common.practice.check import POINTS
from common.practice.folder import shown, version
from common.stage import Stage
from common.verbs import options
from cudaemu.errors import UserError

LADDER_EXAMPLES = ("submissions --seed 7 # a folder per student", "submissions --exercise NN_name --to grades")


def add_ladder_arguments(parser: argparse.ArgumentParser) -> None:
    usual = Limits()
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a folder with a folder per student, or a student's repository"
    )
    parser.add_argument(
        "--exercise", action="append", metavar="NAME", help="grade these (default: all that any student has)"
    )
    parser.add_argument("--to", type=Path, default=Path("grades"), metavar="DIR", help="default: grades/")
    parser.add_argument(
        "--classroom", action="store_true", help="in a workflow of GitHub: points for GitHub Classroom, and a summary"
    )
    parser.add_argument(
        "--seed", type=options.seed, help="of the hidden inputs and shapes (default: another one each time)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="checks at a time")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="for a check (default: %(default)g)")
    parser.add_argument("--memory", type=float, default=usual.memory / 2**30, help="GiB, for a process of a check")
    parser.add_argument(
        "--without-wall",
        action="store_true",
        help="grade where the wall does not hold: submissions can then read, write and send whatever you can",
    )
    parser.add_argument("--files", type=float, default=usual.files / 2**30, help="GiB that a check may write")


def run_ladder(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    for name in ("jobs", "seconds", "memory", "files"):
        if not 0 < (value := getattr(args, name)) < 1e6:
            raise UserError(f"--{name} must be a number above 0, got {value:g}")
    options.check_writable(args.to / "grades.csv", args.to / "grades.json", args.to / "feedback" / "STUDENT.md")
    places = [_workflow(name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")] if args.classroom else []
    folders = grading.students(args.folder)
    chosen = [exercises.find(name) for name in args.exercise] if args.exercise else grading.asked(folders)
    seed = secrets.randbelow(2**31) if args.seed is None else args.seed
    limits = Limits(args.seconds, int(args.memory * 2**30), int(args.files * 2**30))
    walled = not args.without_wall
    if walled and (fault := sandbox.fault()):
        raise UserError(
            f"the wall around submissions does not hold here: {fault}\nGrade on a machine or in a virtual machine with "
            "Linux 5.12 or newer, where your user, or root, may make namespaces; or, if nothing there matters, with "
            "--without-wall"
        )
    told = sandbox.HOLDS if walled else sandbox.WITHOUT
    terminal.out.print(told, markup=False, soft_wrap=True)
    with terminal.progress("grading", total=len(folders) * len(chosen)) as update:
        rows = grading.grade(folders, chosen, seed, args.jobs, limits, lambda row: update(advance=1), walled)
    settings = {
        "version": version(), "seed": seed, "limits": asdict(limits), "wall": walled, "points": POINTS,
    }  # fmt: skip
    grading.write(rows, args.to, settings)
    if places:
        _report(rows, *places)
    table = terminal.table()
    for column in ("student", *(each.name for each in chosen), "points"):
        table.add_column(column)
    for folder in folders:
        of = [row for row in rows if row.student == folder.name]
        words = [f"{row.points:g} {row.outcome}" for row in of]
        table.add_row(folder.name, *words, f"{sum(row.points for row in of):g} of {POINTS * len(of)}")
    terminal.out.print(table)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in Counter(row.outcome for row in rows).most_common())
    terminal.out.print(f"\n{counted}. Seed {seed}. {shown(args.to)}/ has grades.csv, grades.json and feedback/",
                       markup=False, soft_wrap=True)  # fmt: skip
    return 0


def _workflow(variable: str) -> str:
    """The file that a workflow of GitHub names."""
    if not (path := os.environ.get(variable)):
        raise UserError(f"--classroom needs a workflow of GitHub: {variable} is not set")
    return path


def _report(rows: Sequence[grading.Row], output: str, summary: str) -> None:
    """For the workflow that this runs in: the output `result`, and the pages as its summary."""
    pages = "\n".join(
        grading.feedback(name, [row for row in rows if row.student == name]) for name in {row.student for row in rows}
    )
    for path, text in ((output, f"result={grading.classroom(rows)}\n"), (summary, pages)):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
