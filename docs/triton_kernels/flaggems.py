"""FlagGems: torch's operators in Triton, among them scans and sorts in which blocks depend on each other."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from docs.triton_kernels.cases import NotHere, Pairs, case, rms


def gems(name: str) -> Any:
    os.environ.setdefault("GEMS_VENDOR", "nvidia")  # or it asks nvidia-smi
    try:
        return getattr(importlib.import_module("flag_gems").ops, name)
    except ImportError as error:
        raise NotHere from error


def pairs(got: Any, expected: Any) -> Pairs:
    yield from zip(*(each if isinstance(each, tuple) else (each,) for each in (got, expected)))


def operator(name: str, tolerance: float, inputs: Callable[[], tuple[Any, ...]], reference: Callable[..., Any]) -> None:
    def run() -> Pairs:
        given = inputs()
        yield from pairs(gems(name)(*given), reference(*given))

    run.__name__ = name
    case("flaggems", tolerance)(run)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.float() @ b.float()


HALF = torch.float16
operator("softmax", 1e-4, lambda: (drawn(7, 300), -1), torch.softmax)
operator("log_softmax", 1e-4, lambda: (drawn(7, 300), -1), torch.log_softmax)
operator("cumsum", 1e-4, lambda: (drawn(3, 5000), 1), torch.cumsum)
operator("sort", 0, lambda: (drawn(3, 700), 1), lambda x, dim: tuple(torch.sort(x, dim=dim, stable=True)))
operator("topk", 0, lambda: (drawn(3, 2500), 9), lambda x, k: tuple(torch.topk(x, k)))
operator("argmax", 0, lambda: (drawn(9000),), torch.argmax)
operator("mv", 1e-3, lambda: (drawn(70, 300), drawn(300)), torch.mv)
operator("mm", 1e-3, lambda: (drawn(70, 96, dtype=HALF), drawn(96, 80, dtype=HALF)), product)
operator(
    "bmm",
    1e-3,
    lambda: (drawn(3, 40, 64, dtype=HALF), drawn(3, 64, 48, dtype=HALF)),
    product,
)
operator("index_select", 0, lambda: (drawn(20, 30), 0, torch.randint(0, 20, (11,))), torch.index_select)
operator("gather", 0, lambda: (drawn(20, 30), 1, torch.randint(0, 30, (20, 7))), torch.gather)
operator("isin", 0, lambda: (torch.randint(0, 99, (300,)), torch.randint(0, 99, (20,))), torch.isin)
operator("rms_norm", 1e-4, lambda: (drawn(9, 200), [200], drawn(200), 1e-6), lambda x, _, w, eps: rms(x, w, eps))
operator("var_mean", 1e-4, lambda: (drawn(9, 200), [1]), lambda x, dim: torch.var_mean(x, dim))
operator(
    "conv2d",
    1e-3,
    lambda: (drawn(2, 16, 12, 12), drawn(16, 16, 3, 3), drawn(16), 1, 1),
    lambda x, w, b, stride, padding: F.conv2d(x, w, b, stride, padding),
)
operator(
    "scaled_dot_product_attention",
    2e-3,
    lambda: tuple(drawn(1, 2, 64, 64, dtype=HALF) for _ in range(3)),
    lambda q, k, v: F.scaled_dot_product_attention(q.float(), k.float(), v.float()),
)
