"""Verb `handout`: a repository for students, with checks and without solutions."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from common import terminal
from common.classroom import repository
from common.practice import exercises
from common.practice.folder import shown
from common.stage import Stage

LADDER_EXAMPLES = ("02 05 06 --to handed_out", "transpose 02-bug-3 --to handed_out")


def add_ladder_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "exercises", nargs="+", metavar="EXERCISE", help="a stage's number is its step; `practice` lists all"
    )
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="a new folder")


def run_ladder(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    chosen = list({found.name: found for found in map(exercises.find, args.exercises)}.values())
    begins = repository.beginnings(chosen)
    with terminal.progress("writing the handout"):
        repository.handout(chosen, args.to)
    for name, before in begins.items():
        terminal.out.print(f"{name} begins with the student's own {before}", markup=False, soft_wrap=True)
    place = shown(args.to.resolve())
    terminal.out.print(
        f"{place}/ has {len(chosen)} exercises. Try it: make -C {shlex.quote(str(place))} check",
        markup=False,
        soft_wrap=True,
    )
    return 0
