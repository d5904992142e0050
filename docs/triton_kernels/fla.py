"""fla-core: linear attention in its many forms, forward and backward, beside the recurrence."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.nn import functional as F

from docs.triton_kernels.cases import Pairs, both, case, leaf, rms


def fla(name: str) -> Any:
    """A function of fla.ops, "gla.chunk_gla"."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"fla.ops.{module}"), function)


def recurrent(q: Any, k: Any, v: Any, g: Any = None, beta: Any = None, scale: float | None = None) -> torch.Tensor:
    """Linear attention, step by step: the state S of each head decays by exp(g) (per head, or per row), and gets
    k v; with `beta`, v is replaced by beta (v - what S has for k), the delta rule. Tensors have the shape [batch, time,
    heads, features]."""
    batch, time_, heads, rows = q.shape
    scale = rows**-0.5 if scale is None else scale
    state = q.new_zeros(batch, heads, rows, v.shape[-1])
    out = []
    for t in range(time_):
        if g is not None:
            decay = g[:, t].exp()
            state = state * (decay[..., None, None] if decay.dim() == 2 else decay[..., None])
        value = v[:, t]
        if beta is not None:
            value = beta[:, t, :, None] * (value - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * value[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, scale * q[:, t]))
    return torch.stack(out, 1)


def qkv(time_: int = 100, heads: int = 2, rows: int = 32, columns: int = 32) -> tuple[torch.Tensor, ...]:
    return leaf(1, time_, heads, rows), leaf(1, time_, heads, rows), leaf(1, time_, heads, columns)


def gate(*shape: int) -> torch.Tensor:
    return F.logsigmoid(torch.randn(*shape)).requires_grad_()


def unit(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, dim=-1)


@case("fla", 1e-2)
def fla_chunk_linear_attn() -> Pairs:
    yield from both(
        lambda q, k, v: fla("linear_attn.chunk_linear_attn")(q, k, v, normalize=False)[0], recurrent, *qkv()
    )


@case("fla")
def fla_fused_recurrent_linear_attn() -> Pairs:
    yield from both(
        lambda q, k, v: fla("linear_attn.fused_recurrent_linear_attn")(q, k, v, normalize=False)[0], recurrent, *qkv(64)
    )


@case("fla", 1e-2)
def fla_chunk_simple_gla() -> Pairs:
    yield from both(lambda *x: fla("simple_gla.chunk_simple_gla")(*x)[0], recurrent, *qkv(), gate(1, 100, 2))


@case("fla")
def fla_fused_recurrent_simple_gla() -> Pairs:
    yield from both(lambda *x: fla("simple_gla.fused_recurrent_simple_gla")(*x)[0], recurrent, *qkv(64), gate(1, 64, 2))


@case("fla", 1e-2)
def fla_parallel_simple_gla() -> Pairs:
    yield from both(lambda *x: fla("simple_gla.parallel_simple_gla")(*x)[0], recurrent, *qkv(), gate(1, 100, 2))


@case("fla", 1e-2)
def fla_chunk_gla() -> Pairs:
    yield from both(lambda *x: fla("gla.chunk_gla")(*x)[0], recurrent, *qkv(), gate(1, 100, 2, 32))


@case("fla")
def fla_fused_recurrent_gla() -> Pairs:
    yield from both(lambda *x: fla("gla.fused_recurrent_gla")(*x)[0], recurrent, *qkv(64), gate(1, 64, 2, 32))


def retention_gates(heads: int, time_: int) -> torch.Tensor:
    return (1 - 2.0 ** (-5 - torch.arange(heads))).log().expand(1, time_, heads)


@case("fla", 1e-2)
def fla_chunk_retention() -> Pairs:
    yield from both(
        lambda *x: fla("retention.chunk_retention")(*x)[0],
        lambda q, k, v: recurrent(q, k, v, retention_gates(2, 100)),
        *qkv(),
    )


@case("fla", 1e-2)
def fla_parallel_retention() -> Pairs:
    yield from both(
        lambda *x: fla("retention.parallel_retention")(*x)[0],
        lambda q, k, v: recurrent(q, k, v, retention_gates(2, 100)),
        *qkv(),
    )


@case("fla", 2e-2)
def fla_chunk_delta_rule() -> Pairs:
    def kernel(q: Any, k: Any, v: Any, b: Any) -> Any:  # it takes bf16 alone
        given = (each.bfloat16() for each in (q, unit(k), v, b.sigmoid()))
        return fla("delta_rule.chunk_delta_rule")(*given)[0].float()

    yield from both(kernel, lambda q, k, v, b: recurrent(q, unit(k), v, beta=b.sigmoid()), *qkv(), leaf(1, 100, 2))


@case("fla")
def fla_fused_recurrent_delta_rule() -> Pairs:
    def kernel(q: Any, k: Any, v: Any, b: Any) -> Any:
        return fla("delta_rule.fused_recurrent_delta_rule")(q, unit(k), v, b.sigmoid())[0]

    yield from both(kernel, lambda q, k, v, b: recurrent(q, unit(k), v, beta=b.sigmoid()), *qkv(64), leaf(1, 64, 2))


@case("fla", 2e-2)
def fla_chunk_gated_delta_rule() -> Pairs:
    def kernel(q: Any, k: Any, v: Any, g: Any, b: Any) -> Any:
        return fla("gated_delta_rule.chunk_gated_delta_rule")(q, unit(k), v, g, b.sigmoid())[0]

    yield from both(
        kernel,
        lambda q, k, v, g, b: recurrent(q, unit(k), v, g, b.sigmoid()),
        *(*qkv(), gate(1, 100, 2), leaf(1, 100, 2)),
    )


@case("fla", 2e-2)
def fla_chunk_kda() -> Pairs:
    def kernel(q: Any, k: Any, v: Any, g: Any, b: Any) -> Any:
        return fla("kda.chunk_kda")(q, unit(k), v, g, b.sigmoid())[0]

    yield from both(
        kernel,
        lambda q, k, v, g, b: recurrent(q, unit(k), v, g, b.sigmoid()),
        *(*qkv(), gate(1, 100, 2, 32), leaf(1, 100, 2)),
    )


@case("fla")
def fla_chunk_hgrn() -> Pairs:
    def reference(x: Any, g: Any) -> Any:
        h, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = g[:, t].exp() * h + x[:, t]
            out.append(h)
        return torch.stack(out, 1)

    yield from both(lambda x, g: fla("hgrn.chunk_hgrn")(x, g)[0], reference, leaf(2, 70, 48), gate(2, 70, 48))


def softmax_attention(q: Any, k: Any, v: Any, g: Any = None) -> torch.Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if g is not None:
        total = g.cumsum(1).transpose(1, 2)
        scores = scores + total[..., :, None] - total[..., None, :]
    mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(~mask, -1e30).softmax(-1), v)


@case("fla", 1e-2)
def fla_parallel_attn() -> Pairs:
    yield from both(fla("attn.parallel_attn"), softmax_attention, *qkv())


@case("fla", 1e-2)
def fla_parallel_forgetting_attn() -> Pairs:
    yield from both(fla("forgetting_attn.parallel_forgetting_attn"), softmax_attention, *qkv(), gate(1, 100, 2))


@case("fla", 1e-2)
def fla_parallel_based() -> Pairs:
    yield from both(
        lambda q, k, v: fla("based.parallel_based")(q, k, v, use_norm=True),
        lambda q, k, v: fla("based.naive.naive_parallel_based")(
            *(each.transpose(1, 2) for each in (q, k, v)), use_norm=True
        ).transpose(1, 2),
        *qkv(64, 2, 16, 32),
    )


def fla_module(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"fla.modules.{module}"), function)


@case("fla")
def fla_rms_norm() -> Pairs:
    yield from both(
        lambda x, w: fla_module("layernorm.rms_norm")(x, w, None, eps=1e-6), rms, leaf(3, 7, 200), leaf(200)
    )


@case("fla")
def fla_l2norm() -> Pairs:
    yield from both(lambda x: fla_module("l2norm.l2norm")(x), unit, leaf(3, 7, 96))


@case("fla")
def fla_causal_conv1d() -> Pairs:
    def reference(x: Any, w: Any) -> Any:
        padded = F.pad(x.transpose(1, 2), (w.shape[1] - 1, 0))
        return F.silu(F.conv1d(padded, w[:, None], groups=w.shape[0]).transpose(1, 2))

    def kernel(x: Any, w: Any) -> Any:
        return fla_module("convolution.causal_conv1d")(x, w, activation="silu")[0]

    yield from both(kernel, reference, leaf(2, 50, 64), leaf(64, 4))
