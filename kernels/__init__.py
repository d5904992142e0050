"""The course's kernels, one package per stage: `load("03")(A, B)` runs stage 03 on two tensors."""

from __future__ import annotations

import importlib
import re
import sys
from functools import lru_cache

from common.errors import UserError
from common.stage import KERNELS, Kernel, Stage, pick


@lru_cache
def names() -> tuple[str, ...]:
    """The stages' names in the order of the course: "01_naive", ..."""
    found = (path.parent.name for path in KERNELS.glob("*/__init__.py"))
    return tuple(sorted(name for name in found if re.match(r"\d\d_", name)))


@lru_cache
def ladder() -> list[Stage]:
    """All stages in the order of the course."""
    return [importlib.import_module(f"kernels.{name}").stage for name in names()]


def load(stage: str | int) -> Stage:
    """The stage of that number or name: 3, "3", "03" or "03_thread_tile". UserError if there is none."""
    text = str(stage)
    if re.fullmatch("[0-9]+", text):
        text = next((name for name in names() if int(name[:2]) == int(text)), text)
    return importlib.import_module(f"kernels.{pick(text, names(), 'stage', 'the course')}").stage


def part(stage: Stage) -> list[Stage]:
    """The stages of this one's part of the course, in order: those whose problems stand in one ladder."""
    return [each for each in ladder() if each.spec.part == stage.spec.part]


def previous(stage: Stage) -> Stage | None:
    """The stage before this one in its part; None for a part's first."""
    before = [each for each in part(stage) if each.number < stage.number]
    return before[-1] if before else None


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


class _Unknown:
    """Asked last where kernels.NAME is: the error for a stage that is not there names those that are."""

    @staticmethod
    def find_spec(module: str, *_: object) -> None:
        package, _, name = module.rpartition(".")
        if package == __name__ and name != "__main__":
            try:
                pick(name, names(), "stage", "the course")
            except UserError as error:
                raise ModuleNotFoundError(str(error), name=module) from None


sys.meta_path.append(_Unknown)  # type: ignore[arg-type]
