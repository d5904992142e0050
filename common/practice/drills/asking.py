"""`practice drill`: asks in the terminal, or writes a sheet."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from common import terminal
from common.figures.draw import plural
from common.practice.drills.question import COUNT, KINDS, LEVELS, Question, questions
from common.practice.drills.sheets import sheet
from cudaemu.errors import UserError

SUMMARY = "short questions with computed answers: banks, sectors, fragments, occupancy, …"
SKIPPED = "skipped"
MOST = 1000  # questions at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", help="one of those that are listed without it, or all")
    parser.add_argument("--seed", type=whole, metavar="N", help="the same questions again (default: new ones)")
    parser.add_argument("--count", type=whole, default=COUNT, metavar="N", help=f"how many (default: {COUNT})")
    parser.add_argument("--sheet", type=Path, metavar="FILE.md", help="write them to a file, the key beside it")


def whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a whole number, got '{text}'")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Ask in the terminal, or write a sheet; without a kind, list the kinds."""
    if args.kind is None:
        if args.sheet or args.seed is not None:
            raise UserError(f"a drill must be one of {', '.join(KINDS)}, or all")
        listing()
        return 0
    if not 1 <= args.count <= MOST:
        raise UserError(f"--count must be 1 to {MOST}, got {args.count}")
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    asked = questions(args.kind, seed, args.count)
    if args.sheet:
        for path in sheet(args.kind, seed, asked, args.sheet):
            terminal.out.print(f"written: {path}", markup=False, soft_wrap=True)
        return 0
    terminal.out.print(
        f"{plural(len(asked), 'question')}, --seed {seed}. An empty line skips one, q ends.", markup=False
    )
    ask(asked)
    return 0


def listing() -> None:
    """The kinds, by level."""
    table = terminal.table()
    for head in ("drill", "level", "what is asked"):
        table.add_column(head)
    for kind in sorted(KINDS.values(), key=lambda kind: LEVELS.index(kind.level)):
        table.add_row(kind.name, kind.level, kind.title)
    terminal.out.print(table)


def ask(asked: Sequence[Question]) -> int:
    """Ask the questions on stdin; say after each answer whether it is right, and why; return how many were."""
    right = done = 0
    for number, question in enumerate(asked, 1):
        _say(f"\n{number}. {question.text}")
        if question.code:
            _say("\n" + _indented(question.code) + "\n")
        verdict = _answered(question)
        if verdict is None:
            break
        if verdict is not SKIPPED:
            done += 1
            right += verdict is True
        said = {True: "Right.", False: f"No: {question.answer}.", SKIPPED: f"Skipped: {question.answer}."}[verdict]
        _say(f"{said} {question.why}" + (f"\n\n{question.drawing}" if question.drawing else ""))
    _say(f"\n{right} of {done} right" + ("." if done == len(asked) else f", {len(asked) - done} not answered."))
    return right


def _answered(question: Question) -> bool | str | None:
    """Whether the answer that is typed is right, or SKIPPED; None: the reader has had enough."""
    prompt = ", ".join(name or "value" for name in question.parts)
    while True:
        try:
            text = input(f"{prompt}: ").strip()
        except (EOFError, KeyboardInterrupt):
            _say("")
            return None
        if text.lower() in ("q", "quit", "exit"):
            return None
        if not text:
            return SKIPPED
        try:
            return question.judge(text)
        except UserError as error:
            _say(str(error))


def _say(text: str) -> None:
    terminal.out.print(text, markup=False)  # long lines wrap between words


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
