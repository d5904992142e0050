"""Verb `new`: the skeleton of a stage, made of the stage that it changes; and what a stage still lacks."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import course, terminal
from common.practice import exercises
from common.stage import Stage
from cudaemu.errors import UserError

LADDER_EXAMPLES = ("17_name --after 11",)

TO_SAY = "what it changes, and why"  # until somebody has said it


def add_ladder_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of its folder: NN_name or hN_name, with the next number")
    parser.add_argument("--after", required=True, metavar="STAGE", help="the stage that it changes")


def run_ladder(stages: Sequence[Stage], args: argparse.Namespace) -> int:
    made = make(args.name, course.load(args.after))
    out = terminal.out
    out.print(f"kernels/{made.name}/ has the code of {made.follows}. Change it; then:", markup=False)
    out.print(f"  python -m {made.package} test\n  python -m {made.package} diff\nStill to do:", markup=False)
    for each in missing(made):
        out.print(f"  {each}", markup=False, soft_wrap=True)
    out.print("  CHANGELOG.md: what users will notice", markup=False)
    return 0


def make(name: str, before: Stage) -> Stage:
    """Write the folder of a stage that follows `before`. UserError if the name is no stage's, or its number not the
    next."""
    wanted = next_numbers()
    found = re.fullmatch(rf"({course.NUMBER})((?:_[a-z0-9]+)+)", name)
    if found is None:
        names = " or ".join(f"{number}_name" for number in wanted)
        raise UserError(f"a stage's name must be {names}, in lower case; got '{name}'")
    number, words = found[1], found[2][1:].replace("_", " ")
    if number not in wanted:
        taken = next((f" ({number} is {each})" for each in course.names() if each.startswith(f"{number}_")), "")
        raise UserError(f"the next stage must be {wanted[0]} or {wanted[1]}, got '{name}'{taken}")
    folder = before.directory.parent / name
    if folder.exists():
        raise UserError(f"kernels/{name} is there, and is no stage: it must be removed first")
    folder.mkdir()
    for file in ("__main__.py", "choices.py"):
        if (before.directory / file).exists():
            shutil.copy(before.directory / file, folder / file)
    head = f"// Stage {number} · {words}: {TO_SAY}."
    for source in {each.source for each in (before, *before.besides)}:
        text = source.read_text(encoding="utf-8")
        (folder / source.name).write_text("\n".join([head, *text.split("\n")[1:]]), encoding="utf-8")
    (folder / "__init__.py").write_text(_declaration(number, before), encoding="utf-8")
    importlib.invalidate_caches()
    course.look_again()
    return course.load(name)


def next_numbers() -> tuple[str, str]:
    """Those of a stage that is added: "17", "h9"."""
    numbers = [name.partition("_")[0] for name in course.names()]
    plain, hopper = ([number for number in numbers if number.isdecimal() == decimal] for decimal in (True, False))
    return f"{len(plain) + 1:02}", f"h{len(hopper) + 1}"


def _declaration(number: str, before: Stage) -> str:
    """__init__.py of a stage, with the fields of the stage before but for its own."""
    text = (before.directory / "__init__.py").read_text(encoding="utf-8")
    (call,) = (node.value for node in ast.parse(text).body if isinstance(node, ast.Assign))
    assert isinstance(call, ast.Call)
    fields = {str(each.arg): ast.get_source_segment(text, each) for each in call.keywords}
    own = {"package": fields["package"], "idea": f'idea="{TO_SAY}"', "follows": f'follows="{before.name}"'}
    kept = {name: field for name, field in fields.items() if name not in (*own, "function")}
    head = f'"""Stage {number}: {TO_SAY}."""\n\nfrom common.stage import Stage\n\n'
    return f"{head}stage = Stage(\n" + "".join(f"    {each},\n" for each in {**own, **kept}.values()) + ")\n"


def missing(stage: Stage) -> Iterator[str]:
    """What a stage of the course must have and this one lacks: "FILE: what is to be there"."""
    root, name, before = stage.directory.parent.parent, stage.name, course.previous(stage)
    kernel, readme, script = _text(stage.source), _text(root / "README.md"), _text(root / "docs/results/record.sh")
    if TO_SAY in kernel:
        yield f"kernels/{name}/kernel.cu: in its head, {TO_SAY}"
    if before and kernel.partition("\n")[2] == _text(before.source).partition("\n")[2]:
        yield f"kernels/{name}/kernel.cu: what is new; all is as in {before.name}"
    if TO_SAY in _text(stage.directory / "__init__.py"):
        yield f"kernels/{name}/__init__.py: in its first line and as its idea, {TO_SAY}"
    if name != course.names()[0] and not list(stage.directory.glob("practice/step.*")):
        yield f"kernels/{name}/practice/step.md: the exercise to write it (the keys: common/practice/exercises.py)"
    patches = f"{exercises.BROKEN.relative_to(exercises.ROOT)}/{stage.number}-NAME.patch"
    if not any(f"+++ b/kernels/{name}/kernel.cu\n" in _text(each) for each in exercises.BROKEN.glob("*.patch")):
        yield f"{patches}: a mistake in it that the sanitizer finds (the keys: docs/hardware/suite.py)"
    if not (root / "notebooks" / f"{name}.ipynb").exists():
        yield f"notebooks/{name}.ipynb: its notebook, run by python -m common.notebook {name}"
    if f"| [{name}](kernels/{name}/kernel.cu) · [notebook](notebooks/{name}.ipynb) |" not in readme:
        yield "README.md: under The course, a row with links to its kernel.cu and its notebook"
    if not any(stage.number in each.split() for each in re.findall(r'^\w+="([\w ]*)"$', script, re.MULTILINE)):
        yield "docs/results/record.sh: its number, in the list of its ladder"
    if not re.search(rf"^\| {name} ", _text(root / "docs/performance.md"), re.MULTILINE):
        yield "docs/performance.md: its row in a ladder (docs/results/record.sh ladders, then python -m common.results)"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
