"""The command line: `python -m kernels.NN_name VERB` for one stage, `python -m kernels VERB` for the whole ladder.

A verb is a module of common/verbs or common/classroom with two functions, imported when it is used:
    add_arguments(parser)           its options; common/verbs/options.py has those that verbs share
    run(stage, args) -> int         the exit status
and, where it has more to say about itself, EXAMPLES and LADDER_EXAMPLES (for --help: words that may follow the verb;
the comment after a # is printed on the line above, {dtype} and {variant} are replaced by a dtype and a variant of the
stage), run_ladder(stages, args) -> int (all stages at once; otherwise `run` is called for each in turn),
add_ladder_arguments(parser) (if the ladder's verb takes other words than stage names) and PARTS: commands that may
follow the ladder's verb, each with the module that has its SUMMARY, add_arguments(parser) and run(args) -> int.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from common import course, terminal, tiles
from common.stage import Stage, macros
from common.verbs import options
from cudaemu.errors import UserError, pick

VERBS = {
    "test": "is it right, and does it keep the rules? (GPU and emulator)",
    "bench": "how fast is it, beside the library? (no GPU: counters)",
    "count": "what does it execute and move? (emulator)",
    "show": "draw which thread touches what (emulator)",
    "diff": "what changed since the stage it follows?",
    "resources": "registers, spills, shared memory, occupancy (compiler)",
    "sass": "the machine code that the GPU runs (compiler)",
    "profile": "the hardware's own counters (GPU with ncu)",
    "timeline": "when does a block wait, copy, multiply? (stages with stamps)",
    "practice": "you write, the course checks: exercises (emulator)",
    "tune": "which tiles are best on this GPU? (GPU; stages with a table)",
}
CLASSROOM = {  # verbs of common/classroom, of the ladder only
    "grade": "grade a folder of submissions (emulator)",
    "handout": "make a repository for students: exercises and checks, no solutions",
}
LADDER_ONLY = {**CLASSROOM, "new": "make the skeleton of a stage, and say what it lacks"}
LADDER_VERBS = ("list", "test", "bench", "profile", "practice", *LADDER_ONLY)


def main(package: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 when all is well, 1 for a wrong kernel, 2 for what the user can fix."""
    # At exit Python would collect garbage among torch's objects: 15 % of a short command's time.
    atexit.register(gc.freeze)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # its threads would spin on cores that compilers need
    terminal.leave(lambda: _dispatch(package, list(sys.argv[1:] if argv is None else argv)))


def _dispatch(package: str, argv: list[str]) -> int:
    program = f"python -m {package}"
    ladder = package == "kernels"
    stages = course.ladder() if ladder else [course.load(package.rpartition(".")[2])]
    if not argv or argv[0] in ("-h", "--help"):
        _overview(program, stages, ladder)
        return 0
    verb = pick(argv[0], LADDER_VERBS if ladder else tuple(VERBS), "verb", program)
    if verb == "list":
        _Parser(prog=f"{program} list", description="The stages of the course.").parse_args(argv[1:])
        terminal.out.print(_list(stages))
        return 0
    module = importlib.import_module(f"common.{'classroom' if verb in CLASSROOM else 'verbs'}.{verb}")
    if ladder and (part := getattr(module, "PARTS", {}).get(next(iter(argv[1:]), ""))):
        return _part(f"{program} {verb} {argv[1]}", importlib.import_module(part), argv[2:])
    templates = ("", *getattr(module, "LADDER_EXAMPLES" if ladder else "EXAMPLES", ()))
    examples = "".join(_example(f"{program} {verb}", template, stages) for template in templates)
    parser = _Parser(
        prog=f"{program} {verb}",
        description=f"{verb}: {({**VERBS, **LADDER_ONLY})[verb]}",
        epilog=f"examples:{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if ladder and hasattr(module, "add_ladder_arguments"):
        module.add_ladder_arguments(parser)
        return int(module.run_ladder(stages, parser.parse_args(argv[1:])))
    if ladder:
        parser.add_argument("stages", nargs="*", metavar="STAGE", help="only these, such as 01 03 (default: all)")
    module.add_arguments(parser)
    args = parser.parse_args(argv[1:])
    if not ladder:
        if getattr(args, "trial", None):
            args.source = options.write_trial(stages[0], args.trial)
        return int(module.run(stages[0], args))
    for option in ("source", "trial", "watch"):
        if getattr(args, option, None):
            raise UserError(f"--{option} must be given to one stage: python -m kernels.NN_name {verb}")
    chosen = [course.load(text) for text in args.stages] or stages
    if not chosen:
        raise UserError("there is no stage here: python -m kernels practice lists the exercises")
    if hasattr(module, "run_ladder"):
        return int(module.run_ladder(chosen, args))
    return max(int(module.run(stage, args)) for stage in chosen)


def _part(program: str, module: ModuleType, argv: list[str]) -> int:
    """A command that follows a verb of the ladder."""
    parser = _Parser(prog=program, description=module.SUMMARY, allow_abbrev=False)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(argv)))


def _example(program: str, template: str, stages: list[Stage]) -> str:
    """Lines for --help: a verb's template with the first stage's own words; none if it has no variant to name.
    (A handout may have no stage.)"""
    dtype = stages[0].dtypes[-1] if stages else "fp16"
    kernels = stages[0].kernels([dtype]) if stages else ()
    changed = next((kernel.changed for kernel in kernels if kernel.changed), {})
    variant, value = next(iter(changed.items()), (None, None))
    if variant is None and "{variant}" in template:
        return ""
    words, _, comment = template.format(dtype=dtype, variant=variant, value=value).partition("#")
    return (f"\n  # {comment.strip()}" if comment else "") + f"\n  {program} {words}".rstrip()


class _Parser(argparse.ArgumentParser):
    """argparse with the printing of help and the errors of this package."""

    def print_help(self, file: object = None) -> None:
        terminal.out.print(self.format_help(), end="", markup=False, soft_wrap=True)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}\nSee {self.prog} --help")


def _overview(program: str, stages: list[Stage], ladder: bool) -> None:
    out = terminal.out
    if ladder:
        out.print(_list(stages))
        out.print(f"\n{program} list | test | bench | profile [STAGE ...]   all stages or some", markup=False)
        out.print(f"{program} practice [EXERCISE]  exercises: you write", markup=False)
        for verb, summary in LADDER_ONLY.items():
            out.print(f"{f'{program} {verb}':<37}  {summary}", markup=False)
        out.print("python -m kernels.NN_name VERB                         one stage; its verbs:", markup=False)
    else:
        (stage,) = stages
        out.print(f"Stage {stage.name}", style="bold", markup=False)
        out.print(f"{stage.idea}\n", markup=False)
        out.print(f"takes: {stage.limits}\nsource: {_relative(stage.source)}", markup=False)
        if stage.function:
            out.print(f"in Python: from kernels import {stage.function}", markup=False)
        declared = macros(stage.source)
        for name, values in stage.variants.items():
            choices = " | ".join(map(str, values))
            out.print(f"variant {name} = {choices} (default {declared[name].default})", markup=False)
            out.print(Padding(Text(declared[name].help), (0, 0, 0, 4)))
        out.print(f"\n{program} VERB [--help]", markup=False)
    table = _two_columns()
    for verb, summary in VERBS.items():
        if ladder or _has(stages[0], verb):
            table.add_row(f"  {verb}", summary)
    out.print(table)
    if stages:
        out.print(f"\nStart with:  python -m {stages[0].package} test", markup=False)


def _has(stage: Stage, verb: str) -> bool:
    """Whether there is something for the verb to work on."""
    if verb == "timeline":
        return (stage.directory / "stamps.patch").exists()
    return verb != "tune" or bool(tiles.macros(stage))


def _list(stages: list[Stage]) -> Table:
    """A line per stage."""
    table = _two_columns()
    above = ""
    for stage in stages:
        before = course.previous(stage)
        table.add_row(course.rung(stage.name, before.name if before else "", above), stage.summary)
        above = stage.name
    return table


def _two_columns() -> Table:
    table = terminal.table()
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column()
    return table


def _relative(path: Path) -> Path:
    with suppress(OSError):  # the current folder is gone
        if path.is_relative_to(here := Path.cwd()):
            return path.relative_to(here)
    return path
