"""The course's kernels, one package per stage: `load("03")(A, B)` runs stage 03 on two tensors.

kernels/library has functions for programs to call: `from kernels import attention, attention_fp8, matmul`.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import TYPE_CHECKING, Any

# `python -m kernels…` begins here: Ctrl-C ends it without a traceback, until common/cli.py runs.
_starts = sys.argv[:1] == ["-m"] and f" -m {__name__}" in " ".join(sys.orig_argv)
if _starts and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from common.course import counterpart, ladder, load, names, previous  # noqa: E402

if TYPE_CHECKING:  # for editors and type checkers; in truth they come when they are asked for, since they import torch
    from kernels.library.attention import attention
    from kernels.library.attention_fp8 import attention_fp8
    from kernels.library.matmul import matmul

__all__ = ["attention", "attention_fp8", "counterpart", "ladder", "load", "matmul", "names", "previous"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    globals()[name] = function = getattr(importlib.import_module(f"{__name__}.library.{name}"), name)
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
