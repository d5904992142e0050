"""liger-kernel: training's usual layers and losses, forward and backward."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional as F

from docs.triton_kernels.cases import Pairs, both, case, leaf, rms


def liger() -> ModuleType:
    return importlib.import_module("liger_kernel.transformers.functional")


@case("liger")
def liger_rms_norm() -> Pairs:
    yield from both(lambda x, w: liger().liger_rms_norm(x, w, 1e-6), rms, leaf(4, 9, 200), leaf(200))


@case("liger")
def liger_fused_add_rms_norm() -> Pairs:
    def reference(x: Any, r: Any, w: Any) -> Any:
        return rms(x + r, w), x + r

    yield from both(
        lambda x, r, w: liger().liger_fused_add_rms_norm(x, r, w, 1e-6, 0.0, "llama", False),
        reference,
        *(leaf(3, 7, 200), leaf(3, 7, 200), leaf(200)),
    )


@case("liger")
def liger_layer_norm() -> Pairs:
    yield from both(
        lambda x, w, b: liger().liger_layer_norm(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (200,), w, b, 1e-5),
        *(leaf(3, 7, 200), leaf(200), leaf(200)),
    )


@case("liger")
def liger_group_norm() -> Pairs:
    yield from both(
        lambda x, w, b: liger().liger_group_norm(x, w, b, 8, 4, 1e-5),
        lambda x, w, b: F.group_norm(x, 4, w, b, 1e-5),
        *(leaf(2, 8, 50), leaf(8), leaf(8)),
    )


@case("liger")
def liger_swiglu() -> Pairs:
    yield from both(liger().liger_swiglu, lambda a, b: F.silu(a) * b, leaf(5, 300), leaf(5, 300))


@case("liger")
def liger_geglu() -> Pairs:
    yield from both(liger().liger_geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, leaf(5, 300), leaf(5, 300))


@case("liger")
def liger_relu_squared() -> Pairs:
    yield from both(liger().liger_relu_squared, lambda x: F.relu(x) ** 2, leaf(5, 300))


@case("liger")
def liger_softmax() -> Pairs:
    yield from both(liger().liger_softmax, lambda x: F.softmax(x, -1), leaf(6, 500))


@case("liger")
def liger_sparsemax() -> Pairs:
    def reference(x: torch.Tensor) -> torch.Tensor:
        z = x.sort(-1, descending=True).values
        c = z.cumsum(-1)
        k = torch.arange(1, x.shape[-1] + 1)
        support = (1 + k * z > c).sum(-1, keepdim=True)
        tau = (c.gather(-1, support - 1) - 1) / support
        return (x - tau).clamp(min=0)

    yield from both(liger().liger_sparsemax, reference, leaf(6, 100))


@case("liger")
def liger_cross_entropy() -> Pairs:
    target = torch.randint(0, 777, (33,))
    yield from both(
        lambda x: liger().liger_cross_entropy(x, target), lambda x: F.cross_entropy(x, target), leaf(33, 777)
    )


@case("liger")
def liger_cross_entropy_smoothed() -> Pairs:
    target = torch.randint(0, 777, (33,))
    target[::5] = -100
    yield from both(
        lambda x: liger().liger_cross_entropy(x, target, label_smoothing=0.1),
        lambda x: F.cross_entropy(x, target, label_smoothing=0.1),
        leaf(33, 777),
    )


@case("liger")
def liger_fused_linear_cross_entropy() -> Pairs:
    target = torch.randint(0, 300, (24,))
    yield from both(
        lambda x, w: liger().liger_fused_linear_cross_entropy(x, w, target),
        lambda x, w: F.cross_entropy(x @ w.T, target),
        *(leaf(24, 64), leaf(300, 64)),
    )


@case("liger")
def liger_kl_div() -> Pairs:
    target = torch.randn(6, 200).softmax(-1)
    yield from both(
        lambda x: liger().liger_kl_div(x.log_softmax(-1), target, reduction="batchmean"),
        lambda x: F.kl_div(x.log_softmax(-1), target, reduction="batchmean"),
        leaf(6, 200),
    )


def jsd(p: torch.Tensor, q: torch.Tensor, beta: float = 0.5) -> torch.Tensor:
    """Of log probabilities: mean over rows."""
    m = ((1 - beta) * p.exp() + beta * q.exp()).log()
    each = beta * q.exp() * (q - m) + (1 - beta) * p.exp() * (p - m)
    return each.sum(-1).mean()


@case("liger")
def liger_jsd() -> Pairs:
    target = torch.randn(6, 200).log_softmax(-1)
    yield from both(
        lambda x: liger().liger_jsd(x.log_softmax(-1), target), lambda x: jsd(x.log_softmax(-1), target), leaf(6, 200)
    )


@case("liger")
def liger_fused_linear_jsd() -> Pairs:
    teacher, weight = torch.randn(16, 48), torch.randn(120, 48)
    yield from both(
        lambda x, w: liger().liger_fused_linear_jsd(x, w, teacher, weight),
        lambda x, w: jsd((x @ w.T).log_softmax(-1), (teacher @ weight.T).log_softmax(-1)),
        *(leaf(16, 48), leaf(120, 48)),
    )


@case("liger")
def liger_tvd() -> Pairs:
    target = torch.randn(6, 200).softmax(-1)
    yield from both(
        lambda x: liger().liger_tvd(x.softmax(-1), target, reduction="batchmean"),
        lambda x: 0.5 * (x.softmax(-1) - target).abs().sum(-1).mean(),
        leaf(6, 200),
    )


def rotate(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


@case("liger")
def liger_rope() -> Pairs:
    at = torch.outer(torch.arange(10.0), 1e4 ** (-torch.arange(0, 32) / 32.0))
    cos, sin = (torch.cat((f(at), f(at)), -1)[None] for f in (torch.cos, torch.sin))
    yield from both(
        lambda q, k: liger().liger_rope(q, k, cos, sin),
        lambda q, k: tuple(x * cos[:, None] + rotate(x) * sin[:, None] for x in (q, k)),
        *(leaf(2, 4, 10, 64), leaf(2, 2, 10, 64)),
    )


@case("liger")
def liger_dyt() -> Pairs:
    yield from both(
        liger().liger_dyt, lambda x, a, g, b: g * torch.tanh(a * x) + b, leaf(5, 200), leaf(1), leaf(200), leaf(200)
    )


@case("liger")
def liger_poly_norm() -> Pairs:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    yield from both(
        lambda x, w, b: liger().liger_poly_norm(x, w, b, 1e-6, False),
        lambda x, w, b: w[0] * norm(x**3) + w[1] * norm(x**2) + w[2] * norm(x) + b,
        *(leaf(5, 200), leaf(3), torch.randn(()).requires_grad_()),
    )


@case("liger", 1e-3)
def liger_multi_token_attention() -> Pairs:
    def reference(scores: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        probabilities = scores.masked_fill(~mask, -1e9).softmax(-1)
        return F.conv2d(probabilities, w, None, padding=1).masked_fill(~mask, 0.0)

    yield from both(
        lambda s, w: liger().liger_multi_token_attention(s, w, None, 1, 1),
        reference,
        *(leaf(1, 2, 32, 32), leaf(2, 2, 3, 3)),
    )
