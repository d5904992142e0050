"""The course's kernels, one package per stage: `load("03")(A, B)` runs stage 03 on two tensors.

The last stage of a ladder has a function for programs to call: `from kernels import attention, matmul`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

# `python -m kernels…` begins here: Ctrl-C ends it without a traceback, until common/cli.py runs.
_starts = sys.argv[:1] == ["-m"] and f" -m {__name__}" in " ".join(sys.orig_argv)
if _starts and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from common.course import counterpart, ladder, load, names, previous  # noqa: E402

if TYPE_CHECKING:  # for editors and type checkers; the functions themselves are in their stages
    import torch
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

    def matmul(
        a: Tensor,
        b: Tensor,
        *,
        bias: Tensor | None = None,
        activation: str | None = None,
        residual: Tensor | None = None,
        out: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor: ...


__all__ = ["counterpart", "ladder", "load", "names", "previous"]


def __getattr__(name: str) -> Callable[..., Any]:
    """A stage's function, `attention`: imported when it is asked for, since it imports torch."""
    for stage in () if name.startswith("_") else ladder():
        if stage.function == name:
            return getattr(stage, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *(stage.function for stage in ladder() if stage.function)])
