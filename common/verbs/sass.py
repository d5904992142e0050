"""Verb `sass`: the machine code of a stage's kernel: counts by kind, and the listing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from rich.console import Group

from common import terminal
from common.stage import Stage
from common.verbs import options
from cudaemu.compiler import sass
from cudaemu.compiler.sass import Instruction
from cudaemu.compiler.symbols import readable
from cudaemu.errors import UserError

EXAMPLES = ("--full", "--grep 'LDS|STS' --arch 9.0")


def select(instructions: Sequence[Instruction], pattern: str | None) -> list[Instruction]:
    """The instructions whose text matches; UserError for a pattern that is not a regular expression."""
    try:
        return [i for i in instructions if re.search(pattern or "", i.text)]
    except re.error as error:
        raise UserError(f"--grep must be a regular expression, got '{pattern}': {error}") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_kernel(parser)
    options.add_arch(parser)
    parser.add_argument("--full", action="store_true", help="print the whole listing")
    parser.add_argument("--grep", metavar="REGEX", help="print only the instructions that match")


def run(stage: Stage, args: argparse.Namespace) -> int:
    targets = [stage.target(arch) for arch in args.arch or [stage.arch]]
    for kernel in options.all_kernels(stage, args):
        for target in targets:
            with terminal.progress(f"compiling {kernel.label} for {target}"):
                functions = sass.functions(kernel.source, kernel.defines, target)
            if not functions:
                raise UserError(f"{kernel.source} defines no kernel (a __global__ function), so it has no machine code")
            for name, instructions in functions.items():
                title = f"{kernel.label}, {readable(name)} for {target}"
                if args.full or args.grep:
                    _print_listing(title, select(instructions, args.grep))
                else:
                    terminal.out.print(_table(title, instructions))
    return 0


def _print_listing(title: str, instructions: Sequence[Instruction]) -> None:
    terminal.out.print(f"{title}: {len(instructions)} instructions", style="bold", markup=False)
    for instruction in instructions:
        terminal.out.print(f"{instruction.address:05x}  {instruction.text}", markup=False, soft_wrap=True)


def _table(title: str, instructions: Sequence[Instruction]) -> Group:
    made = terminal.table()
    made.add_column("kind", no_wrap=True)
    made.add_column("number", justify="right")
    made.add_column("instructions")
    for group, opcodes in sass.histogram(instructions).items():
        each = (f"{number} {opcode}" for opcode, number in opcodes.most_common())
        made.add_row(group, str(opcodes.total()), ", ".join(each))
    note = "how often each occurs in the code, not how often it runs; --full prints the listing"
    return terminal.titled(f"{title}: {len(instructions)} instructions", made, note)
