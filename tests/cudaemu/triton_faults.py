"""Ten kernels for Triton, each right, and with a fault of each kind on request: FAULT is 1: a race, 2: a mask that lets
the tile pass the end. The line of each is marked. The third fault, memory that nobody has set, is the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

RACE, BOUNDS = 1, 2


@triton.jit
def add(x, y, o, n, FAULT: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    mask = i < (n + B if FAULT == 2 else n)
    a = tl.load(x + i, mask=mask)  # bounds, unset
    b = tl.load(y + i, mask=i < n)
    where = i % B if FAULT == 1 else i
    tl.store(o + where, a + b, mask=i < n)  # race


@triton.jit
def softmax(x, o, columns, FAULT: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    mask = i < (B if FAULT == 2 else columns)
    a = tl.load(x + row * columns + i, mask=mask, other=-float("inf"))  # bounds, unset
    e = tl.exp(a - tl.max(a, 0))
    out = row // 2 if FAULT == 1 else row
    tl.store(o + out * columns + i, e / tl.sum(e, 0), mask=i < columns)  # race


@triton.jit
def layer_norm(x, w, o, columns, FAULT: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    inside = i < columns
    a = tl.load(x + row * columns + i, mask=inside, other=0.0)
    mean = tl.sum(a, 0) / columns
    d = tl.where(inside, a - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(d * d, 0) / columns + 1e-5)
    scale = tl.load(w + i, mask=i < (B if FAULT == 2 else columns))  # bounds, unset
    shift = 1 if FAULT == 1 else columns
    tl.store(o + row * shift + i, d * rstd * scale, mask=inside)  # race


@triton.jit
def matmul(a, b, o, m, n, k, FAULT: tl.constexpr, B: tl.constexpr):
    pm, pn = tl.program_id(0), tl.program_id(1)
    i, j, kk = pm * B + tl.arange(0, B), pn * B + tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for at in range(0, k, B):
        more = B if FAULT == 2 else 0
        x = tl.load(a + i[:, None] * k + at + kk[None, :], mask=i[:, None] < m + more, other=0.0)  # bounds, unset
        y = tl.load(b + (at + kk[:, None]) * n + j[None, :], mask=j[None, :] < n, other=0.0)
        acc = tl.dot(x, y, acc)
    row = (i % B if FAULT == 1 else i)[:, None]
    tl.store(o + row * n + j[None, :], acc, mask=(i[:, None] < m) & (j[None, :] < n))  # race


@triton.jit
def scale_in_place(x, y, n, FAULT: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.maximum(i - 1, 0) if FAULT == 1 else i
    mask = i < (n + B if FAULT == 2 else n)
    s = tl.load(y + i, mask=mask)  # bounds, unset
    a = tl.load(x + j, mask=i < n)  # race
    tl.store(x + i, a * s, mask=i < n)  # race


@triton.jit
def transpose(x, o, m, n, FAULT: tl.constexpr, B: tl.constexpr):
    i = (tl.program_id(0) * B + tl.arange(0, B))[:, None]
    j = (tl.program_id(1) * B + tl.arange(0, B))[None, :]
    more = B if FAULT == 2 else 0
    a = tl.load(x + i * n + j, mask=(i < m + more) & (j < n))  # bounds, unset
    step = m - 1 if FAULT == 1 else m
    tl.store(o + j * step + i, a, mask=(i < m) & (j < n))  # race


@triton.jit
def total(x, o, n, FAULT: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + i, mask=i < (n + B if FAULT == 2 else n), other=0.0)  # bounds, unset
    s = tl.sum(a, 0)
    if FAULT == 1:
        before = tl.load(o)  # race
        tl.store(o, before + s)  # race
    else:
        tl.atomic_add(o, s)


@triton.jit
def running_sum(x, o, columns, FAULT: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    a = tl.load(x + row * columns + i, mask=i < (B if FAULT == 2 else columns), other=0.0)  # bounds, unset
    s = tl.cumsum(a, 0)
    out = row * (columns - 3 if FAULT == 1 else columns) + i
    tl.store(o + out, s, mask=i < columns)  # race


@triton.jit
def gather(table, index, o, n, columns, FAULT: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    at = tl.load(index + row + (n if FAULT == 2 else 0))  # bounds
    a = tl.load(table + at * columns + i, mask=i < columns)  # unset
    out = row // 2 if FAULT == 1 else row
    tl.store(o + out * columns + i, a, mask=i < columns)  # race


@triton.jit
def attention(q, k, v, o, length, FAULT: tl.constexpr, B: tl.constexpr, D: tl.constexpr):
    i, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, D)
    rows = i[:, None] < length
    x = tl.load(q + i[:, None] * D + d[None, :], mask=rows, other=0.0)
    top, norm = tl.full((B,), -1e30, tl.float32), tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, D), tl.float32)
    for at in range(0, length, B):
        j = at + tl.arange(0, B)
        there = j < (length + B if FAULT == 2 else length)
        y = tl.load(k + j[None, :] * D + d[:, None], mask=there[None, :], other=0.0)  # bounds, unset
        s = tl.where((j < length)[None, :], tl.dot(x, y), -1e30)
        higher = tl.maximum(top, tl.max(s, 1))
        p, old = tl.exp(s - higher[:, None]), tl.exp(top - higher)
        norm = norm * old + tl.sum(p, 1)
        z = tl.load(v + j[:, None] * D + d[None, :], mask=(j < length)[:, None], other=0.0)
        acc = tl.dot(p.to(z.dtype), z, acc * old[:, None])
        top = higher
    row = (i % B if FAULT == 1 else i)[:, None]
    tl.store(o + row * D + d[None, :], acc / norm[:, None], mask=rows)  # race


def _unset(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def run(name: str, fault: int = 0, unset: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel gives, and what torch does."""
    torch.manual_seed(0)
    hide: Callable[[torch.Tensor], torch.Tensor] = _unset if unset else (lambda x: x)
    options: dict[str, Any] = {"FAULT": fault}
    x, y, o = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    rows, more, w = torch.randn(7, 100), torch.zeros(7, 100), torch.randn(100)
    if name == "add":
        add[(8,)](hide(x), y, o, 1000, B=128, **options)
        return o, x + y
    if name == "softmax":
        softmax[(7,)](hide(rows), more, 100, B=128, **options)
        return more, rows.softmax(-1)
    if name == "layer_norm":
        layer_norm[(7,)](rows, hide(w), more, 100, B=128, **options)
        return more, torch.nn.functional.layer_norm(rows, (100,)) * w
    if name == "matmul":
        a, b, c = torch.randn(70, 64).half(), torch.randn(64, 70).half(), torch.zeros(70, 70)
        matmul[(3, 3)](hide(a), b, c, 70, 70, 64, B=32, **options)
        return c, a.float() @ b.float()
    if name == "scale_in_place":
        expected = x * y
        scale_in_place[(16,)](x, hide(y), 1000, B=64, **options)  # tiles smaller than the block
        return x, expected
    if name == "transpose":
        out = torch.zeros(100, 7)
        transpose[(1, 7)](hide(rows), out, 7, 100, B=16, **options)
        return out, rows.T
    if name == "total":
        s = torch.zeros(1)
        total[(8,)](hide(x), s, 1000, B=128, **options)
        return s, x.sum()[None]
    if name == "running_sum":
        running_sum[(7,)](hide(rows), more, 100, B=128, **options)
        return more, rows.cumsum(-1)
    if name == "gather":
        index = torch.tensor([3, 0, 6, 6, 1, 2, 5])
        gather[(7,)](hide(rows), index, more, 7, 100, B=128, **options)
        return more, rows[index]
    assert name == "attention"
    q, k, v, out = (
        torch.randn(70, 32).half(),
        torch.randn(70, 32).half(),
        torch.randn(70, 32).half(),
        torch.zeros(70, 32),
    )
    attention[(3,)](q, hide(k), v, out, 70, B=32, D=32, **options)
    return out, (q.float() @ k.float().T).softmax(-1) @ v.float()


KERNELS = (add, softmax, layer_norm, matmul, scale_in_place, transpose, total, running_sum, gather, attention)


def lines(kernel: Any, mark: str) -> set[int]:
    """The lines of a kernel that are marked for a fault."""
    first = kernel.starting_line_number
    text = kernel.raw_src if isinstance(kernel.raw_src, list) else kernel.raw_src.splitlines()
    return {first + n for n, line in enumerate(text) if mark in line.partition("#")[2]}
