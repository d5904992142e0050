"""Verb `diff`: the lines of kernel.cu that changed since the stage that this one follows."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from common import course, terminal
from common.stage import Stage
from cudaemu.compiler.toolchain import read
from cudaemu.errors import UserError

EXAMPLES = ("--context 0", "--context 1000 # the whole file")
KERNEL = "__global__"
DEFINITION = re.compile(  # of a helper, with the comment above it
    r"(?:^//[^\n]*\n)*((?:^template[^\n]*\n)?^__device__ [^;{]*\{(?:[^\n]*\}\n|.*?^\}\n))\n?", re.M | re.S
)
STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class Diff:
    """What a stage's kernel.cu changes in that of the stage it follows: unified diff lines, header lines included."""

    lines: tuple[str, ...]

    def count(self, sign: str) -> tuple[int, int]:
        """How many lines are added ("+") or removed ("-"): all of them, and those that hold code."""
        texts = [line[1:].strip() for line in self.lines[2:] if line.startswith(sign)]
        return len(texts), sum(bool(text) and not text.startswith("//") for text in texts)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def summary(self) -> str:
        """ "+41 -17 lines (31 and 12 of code)"."""
        (added, added_code), (removed, removed_code) = self.count("+"), self.count("-")
        return f"+{added} -{removed} lines ({added_code} and {removed_code} of code)"


def diff(stage: Stage, context: int = 3) -> Diff:
    """How a stage's kernel.cu differs from that of the stage it follows. UserError for a stage that follows none."""
    previous = course.previous(stage)
    if previous is None:
        raise UserError(f"{stage.name} follows no stage: there is nothing to compare it with")
    theirs, ours = (read(each.source) for each in (previous, stage))
    old, new = _moved(theirs, ours).splitlines(), ours.splitlines()
    before, after = (f"{each.name}/kernel.cu" for each in (previous, stage))
    return Diff(tuple(difflib.unified_diff(old, new, before, after, n=context, lineterm="")))


def _moved(old: str, new: str) -> str:
    """`old` with the helpers at its end that stand before its kernel and, word for word, behind that of `new`: what has
    only moved is no change. They go without their comments."""
    (before, kernel, rest), (_, _, end) = (text.partition(KERNEL) for text in (old, new))
    found = [match for match in DEFINITION.finditer(before) if match[1] in end]
    for match in found:
        before = before.replace(match[0], "", 1)
    last = sorted((match[1] for match in found), key=end.index)
    return before + kernel + rest + "".join(f"\n{each}" for each in last)


def paint(lines: Sequence[str]) -> Text:
    """Diff lines in the usual colours."""
    styles = ("bold" if number < 2 else STYLES.get(line[:1], "") for number, line in enumerate(lines))
    return Text("\n").join(Text(line, style=style) for line, style in zip(lines, styles))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--context", type=int, default=3, metavar="LINES", help="unchanged lines to show around (default: %(default)s)"
    )


def run(stage: Stage, args: argparse.Namespace) -> int:
    found = diff(stage, max(args.context, 0))
    terminal.out.print(paint(found.lines), soft_wrap=True)
    before = course.previous(stage)
    terminal.out.print(f"\n{before and before.name} -> {stage.name}: {found.summary}", style="bold", markup=False)
    return 0
