"""The course: its stages in order, its ladders, and which stage each one follows.

Stages are found by their folders, kernels/NN_name or kernels/hN_name, and imported by name: nothing in common/ names a
stage. Kernels that programs call, kernels/library/NAME, are found likewise: they have all that a stage has, and are no
steps of the course.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache

from common.stage import KERNELS, Kernel, Stage
from cudaemu.errors import pick

NUMBER = r"\d\d|h[1-9]\d?"  # of a stage: what the name of its folder begins with, and the only place that says so


def order(name: str) -> list[str | int]:
    """What to sort names by: h9 comes before h10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


@lru_cache
def names() -> tuple[str, ...]:
    """The stages' names in the order of the course: first NN_name, then hN_name."""
    found = (path.parent.name for path in KERNELS.glob("*/__init__.py"))
    return tuple(sorted((name for name in found if re.match(rf"({NUMBER})_", name)), key=order))


@lru_cache
def library() -> tuple[str, ...]:
    """The names of the library's kernels."""
    return tuple(sorted(path.parent.name for path in KERNELS.glob("library/*/__init__.py")))


@lru_cache
def _stages() -> list[Stage]:
    return [_import(name) for name in names()]


def look_again() -> None:
    """To be called when a stage's folder has come or gone."""
    names.cache_clear()
    library.cache_clear()
    _stages.cache_clear()


def ladder(stage: Stage | None = None) -> list[Stage]:
    """The stages of this one's ladder, in order; without a stage those of the whole course."""
    return _stages() if stage is None else [each for each in _stages() if each.ladder == stage.ladder]


def everything() -> list[Stage]:
    """All stages, and the library's kernels behind them."""
    return [*_stages(), *map(load, library())]


def load(stage: str | int) -> Stage:
    """The stage of that name or number: 3, "3", "03" or "h1"; or the library's kernel of that name. UserError if there
    is none."""
    text = str(stage)
    number = f"{int(text):02}" if re.fullmatch("[0-9]+", text) else text
    text = next((name for name in names() if name.startswith(f"{number}_")), text)
    return _import(pick(text, (*names(), *library()), "stage", "the course"))


def previous(stage: Stage) -> Stage | None:
    """The stage that this one follows; None for one that follows none."""
    if stage.follows:
        return load(stage.follows)
    return next((each for each in reversed(ladder(stage)) if order(each.name) < order(stage.name)), None)


def rung(name: str, before: str, above: str) -> str:
    """A stage's name in a list, with the number of the one `before` that it follows if that is not the one `above`."""
    return name if before in ("", above) else f"{name} (after {before.partition('_')[0]})"


def counterpart(stage: Stage | None, kernel: Kernel) -> Kernel | None:
    """The default kernel of another stage that computes the same as `kernel`: dtype and settings.

    None if that stage does not have them."""
    if stage is None or kernel.dtype not in stage.dtypes:
        return None
    settings = {}
    for name, value in kernel.settings.items():
        if value in stage.variants.get(name, ()):
            settings[name] = value
        elif value:
            return None
    return stage.kernel(kernel.dtype, settings)


def _import(name: str) -> Stage:
    package = f"kernels.library.{name}" if name in library() else f"kernels.{name}"
    stage: Stage = importlib.import_module(package).stage
    return stage
