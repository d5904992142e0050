"""The course: its stages in order, its parts, and which stage comes before which.

Stages are found by their folders, kernels/NN_name, and imported by name: nothing in common/ names one of them.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache

from common.stage import KERNELS, Kernel, Stage
from cudaemu.errors import pick


@lru_cache
def names() -> tuple[str, ...]:
    """The stages' names in the order of the course: "01_naive", ..."""
    found = (path.parent.name for path in KERNELS.glob("*/__init__.py"))
    return tuple(sorted(name for name in found if re.match(r"\d\d_", name)))


@lru_cache
def ladder() -> list[Stage]:
    """All stages in the order of the course."""
    return [_import(name) for name in names()]


def load(stage: str | int) -> Stage:
    """The stage of that number or name: 3, "3", "03" or "03_thread_tile". UserError if there is none."""
    text = str(stage)
    if re.fullmatch("[0-9]+", text):
        text = next((name for name in names() if int(name[:2]) == int(text)), text)
    return _import(pick(text, names(), "stage", "the course"))


def part(stage: Stage) -> list[Stage]:
    """The stages of this one's part of the course, in order: those whose problems stand in one ladder."""
    return [each for each in ladder() if each.spec.part == stage.spec.part]


def previous(stage: Stage) -> Stage | None:
    """The stage before this one in its part; None for a part's first."""
    for each in reversed(ladder()):
        if each.number < stage.number and (each.problem == stage.problem or each.spec.part == stage.spec.part):
            return each
    return None


def counterpart(stage: Stage | None, kernel: Kernel) -> Kernel | None:
    """The default kernel of another stage of the part that computes the same as `kernel`: dtype and settings.

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
    return importlib.import_module(f"kernels.{name}").stage
