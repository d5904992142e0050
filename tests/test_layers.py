"""The house: every file has its floor, imports run down or along, never up; private names stay at home."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from common import course

ROOT = Path(__file__).resolve().parent.parent

LAYERS = {  # the lowest first: a floor's name -> its files and folders
    "words that all use": (
        "common/__init__.py",
        "common/packages.py",
        "cudaemu/cpp.py",
        "cudaemu/dtypes.py",
        "cudaemu/errors.py",
        "cudaemu/features.py",
        "cudaemu/hardware.py",
        "cudaemu/interrupts.py",
        "cudaemu/terminal.py",
        "cudaemu/units.py",
    ),
    "compilers": ("cudaemu/compiler/",),
    "the emulator": ("cudaemu/",),
    "the course's tables": ("common/terminal.py",),
    "the GPU's loader": ("common/gpu.py", "common/torch_private.py"),
    "what is computed": ("common/dtypes.py", "common/problem.py", "common/problems/"),
    "stages": ("common/calls.py", "common/stage.py"),
    "the course": ("common/course.py", "common/tiles.py"),
    "the library": ("kernels/library/",),
    "what a kernel does: right or wrong, how much": (
        "common/accuracy.py",
        "common/launcher_check.py",
        "common/counts.py",
    ),
    "figures": ("common/figures/",),
    "recorded runs": ("common/results/",),
    "measuring on a GPU": ("common/measure/",),
    "practice": ("common/practice/",),
    "verbs": ("common/verbs/",),
    "the classroom": ("common/classroom/",),
    "front doors": ("common/cli.py", "common/notebook.py"),
    "the kernels": (
        "kernels/",
        *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("kernels/library/*/__main__.py")),
    ),
}
FILES = sorted(
    path.relative_to(ROOT).as_posix() for top in ("cudaemu", "common", "kernels") for path in (ROOT / top).rglob("*.py")
)


def places(file: str) -> list[int]:
    """The floors that claim a file, by the longest of their claims: exactly one, if all is well."""
    claims = [
        (len(claim), number)
        for number, names in enumerate(LAYERS.values())
        for claim in names
        if file == claim or (claim.endswith("/") and file.startswith(claim))
    ]
    return [number for length, number in claims if length == max(claims)[0]]


def file_of(module: str) -> str | None:
    """The file of a module of ours, "cudaemu.errors" -> "cudaemu/errors.py"; None for one of somebody else's."""
    path = module.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if (ROOT / file).is_file()), None)


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of each import in a file, in functions and under TYPE_CHECKING, too; name "": the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from ((node.module or "", alias.name) for alias in node.names)


@lru_cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@lru_cache
def uses(file: str) -> frozenset[str]:
    """The files of ours that a file imports."""
    found = set()
    for module, name in imported(tree(file)):
        target = file_of(f"{module}.{name}") if name else None
        found.add(target or file_of(module))
    return frozenset(found - {None, file})


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_every_file_has_one_floor():
    assert not [file for file in FILES if len(places(file)) != 1]


def test_every_floor_is_there():
    missing = [claim for claims in LAYERS.values() for claim in claims if not (ROOT / claim).exists()]
    assert not missing


def test_imports_do_not_run_up():
    names = list(LAYERS)
    up = [
        f"{file} ({names[floor]}) imports {other} ({names[places(other)[0]]})"
        for file in FILES
        for floor in places(file)
        for other in sorted(uses(file))
        if places(other)[0] > floor
    ]
    assert not up


def test_no_file_imports_itself_in_a_circle():
    try:
        tuple(TopologicalSorter({file: uses(file) for file in FILES}).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_private_names_stay_at_home():
    taken = []
    for file in FILES:
        names = list(imported(tree(file)))
        taken += [f"{file}: {module}.{name}" for module, name in names if private(name) and file_of(module)]
        modules = {name for module, name in names if name and file_of(f"{module}.{name}")}
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                taken += [f"{file}: {node.value.id}.{node.attr}"] if private(node.attr) else []
    assert not taken


def test_no_stage_is_named_below_the_stages():
    """What one stage needs is said by that stage: common/ and cudaemu/ would go stale with the next one."""
    stage = re.compile(rf"{'|'.join(course.names())}|[Ss]tages? (\d|{course.NUMBER})\b|kernels/({course.NUMBER})")
    paths = (path for top in ("common", "cudaemu") for path in (ROOT / top).rglob("*"))
    texts = {path: path.read_text() for path in paths if path.suffix in (".py", ".cu", ".cuh", ".cpp", ".h")}
    lines = [(path, line.strip()) for path, text in texts.items() for line in text.splitlines()]
    assert len(texts) > 80 and not [f"{path.relative_to(ROOT)}: {line}" for path, line in lines if stage.search(line)]


def test_the_emulator_knows_nothing_of_the_course():
    """It runs any .cu file, and is installed alone."""
    course = {
        target for file in FILES if file.startswith("cudaemu/") for target in uses(file) if target[:8] != "cudaemu/"
    }
    assert not course


def test_the_tests_of_this_file_see_imports_wherever_they_stand():
    code = """
from typing import TYPE_CHECKING
import cudaemu.errors as words
if TYPE_CHECKING:
    from common.verbs import bench
def inside():
    from common.stage import Stage, _integer
"""
    assert set(imported(ast.parse(code))) == {
        ("typing", "TYPE_CHECKING"),
        ("cudaemu.errors", ""),
        ("common.verbs", "bench"),
        ("common.stage", "Stage"),
        ("common.stage", "_integer"),
    }
