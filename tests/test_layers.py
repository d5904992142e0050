"""The house: every file has its floor, imports run down or along, never up; private names stay at home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = {  # the lowest first: a floor's name -> its files and folders
    "words that all use": ("common/__init__.py", "common/errors.py", "common/hardware.py", "common/terminal.py"),
    "compilers": ("common/compiler/",),
    "the emulator": ("common/emulator/",),
    "what is computed": ("common/problem.py", "common/problems/"),
    "stages": ("common/stage.py",),
    "the course": ("common/course.py", "common/tiles.py"),
    "what a kernel does: right or wrong, how much": ("common/accuracy.py", "common/counts.py"),
    "figures": ("common/figures/",),
    "recorded runs": ("common/results/",),
    "measuring on a GPU": ("common/measure/",),
    "verbs": ("common/verbs/",),
    "front doors": ("common/cli.py", "common/notebook.py"),
    "the kernels": ("kernels/",),
}
FILES = sorted(
    path.relative_to(ROOT).as_posix() for top in ("common", "kernels") for path in (ROOT / top).rglob("*.py")
)


def places(file: str) -> list[int]:
    """The floors that claim a file: exactly one, if all is well."""
    return [
        number
        for number, claims in enumerate(LAYERS.values())
        if any(file == claim or (claim.endswith("/") and file.startswith(claim)) for claim in claims)
    ]


def file_of(module: str) -> str | None:
    """The file of a module of ours, "common.errors" -> "common/errors.py"; None for one of somebody else's."""
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


@pytest.mark.parametrize("file", FILES)
def test_every_file_has_one_floor(file: str):
    assert len(places(file)) == 1


def test_every_floor_is_there():
    missing = [claim for claims in LAYERS.values() for claim in claims if not (ROOT / claim).exists()]
    assert not missing


@pytest.mark.parametrize("file", FILES)
def test_imports_do_not_run_up(file: str):
    names = list(LAYERS)
    (floor,) = places(file)
    up = {other: names[places(other)[0]] for other in uses(file) if places(other)[0] > floor}
    assert not up, f"{file} is on the floor '{names[floor]}'"


def test_no_file_imports_itself_in_a_circle():
    try:
        tuple(TopologicalSorter({file: uses(file) for file in FILES}).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("file", FILES)
def test_private_names_stay_at_home(file: str):
    taken = [f"{module}.{name}" for module, name in imported(tree(file)) if private(name) and file_of(module)]
    modules = {name for module, name in imported(tree(file)) if name and file_of(f"{module}.{name}")}
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            taken += [f"{node.value.id}.{node.attr}"] if private(node.attr) else []
    assert not taken


def test_the_emulator_stands_on_the_compilers_alone():
    """It runs any kernel.cu: what a stage, a problem or a figure is, it need not know."""
    known = {target for file in FILES if file.startswith("common/emulator/") for target in uses(file)}
    below = ("common/emulator/", "common/compiler/", *LAYERS["words that all use"])
    assert not [target for target in known if not target.startswith(below)]


def test_the_tests_of_this_file_see_imports_wherever_they_stand():
    code = """
from typing import TYPE_CHECKING
import common.errors as words
if TYPE_CHECKING:
    from common.verbs import bench
def inside():
    from common.stage import Stage, _integer
"""
    assert set(imported(ast.parse(code))) == {
        ("typing", "TYPE_CHECKING"),
        ("common.errors", ""),
        ("common.verbs", "bench"),
        ("common.stage", "Stage"),
        ("common.stage", "_integer"),
    }
