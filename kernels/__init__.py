"""The course's kernels, one package per stage: `load("03")(A, B)` runs stage 03 on two tensors.

The last stage of a part has a function that a person would call: `from kernels import attention`.
"""

from __future__ import annotations

import sys
from typing import Any

from common.course import counterpart, ladder, load, names, previous
from cudaemu.errors import UserError, pick

__all__ = ["counterpart", "ladder", "load", "names", "previous"]


def __getattr__(name: str) -> Any:
    """A stage's function, `attention`: found when it is asked for, since it imports torch."""
    for stage in () if name.startswith("_") else ladder():
        if stage.function == name:
            return getattr(stage, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


class _Unknown:
    """Asked last where kernels.NAME is: the error for a stage that is not there names those that are."""

    @staticmethod
    def find_spec(module: str, *where: object) -> None:
        package, _, name = module.rpartition(".")
        if package == __name__ and name != "__main__":
            try:
                pick(name, names(), "stage", "the course")
            except UserError as error:
                raise ModuleNotFoundError(str(error), name=module) from None


sys.meta_path.append(_Unknown)
