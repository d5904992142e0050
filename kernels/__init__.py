"""The course's kernels, one package per stage: `load("03")(A, B)` runs stage 03 on two tensors.

The last stage of a ladder has a function that a person would call: `from kernels import attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from common.course import counterpart, ladder, load, names, previous

if TYPE_CHECKING:  # what editors and type checkers are told; the function itself is its stage's
    from torch import Tensor

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]: ...


__all__ = ["counterpart", "ladder", "load", "names", "previous"]


def __getattr__(name: str) -> Callable[..., Any]:
    """A stage's function, `attention`: imported when it is asked for, since it imports torch."""
    for stage in () if name.startswith("_") else ladder():
        if stage.function == name:
            return getattr(stage, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *(stage.function for stage in ladder() if stage.function)])
