"""Public Triton kernels in the emulator, unchanged, each compared with torch on the CPU.

pip install triton liger-kernel fla-core
python -m docs.triton_kernels                   # all that is installed: a table
python -m docs.triton_kernels liger --only rope # one package, one kernel
python -m docs.triton_kernels --path attorch=PATH_OF_A_CHECKOUT --path tutorials=...

A case is a function that yields pairs: what the kernel gave, what torch gives. It passes if all agree (the error's norm
over that of torch's result is at most the case's tolerance) and the sanitizer found nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional as F

os.environ.setdefault("FLA_TILELANG", "0")

Pairs = Iterator[tuple[Any, Any]]


@dataclass
class Case:
    package: str
    name: str
    run: Callable[[], Pairs]
    tolerance: float


CASES: list[Case] = []


def case(package: str, tolerance: float = 1e-4) -> Callable[[Callable[[], Pairs]], Callable[[], Pairs]]:
    def register(function: Callable[[], Pairs]) -> Callable[[], Pairs]:
        CASES.append(Case(package, function.__name__.removeprefix(f"{package}_").strip("_"), function, tolerance))
        return function

    return register


def leaf(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape)).to(dtype).requires_grad_()


def both(kernel: Callable[..., Any], reference: Callable[..., Any], *inputs: Any) -> Pairs:
    """Outputs, and the gradients of all inputs that have one."""
    copies = [
        [
            each.detach().clone().requires_grad_(each.requires_grad) if isinstance(each, torch.Tensor) else each
            for each in inputs
        ]
        for _ in range(2)
    ]
    outs = [_tuple(f(*given)) for f, given in zip((kernel, reference), copies)]
    yield from zip(*outs)
    grads = [torch.randn_like(out) if out.is_floating_point() else None for out in outs[1]]
    for results in outs:
        torch.autograd.backward(
            [out for out in results if out.requires_grad],
            [grad.to(out.dtype).clone() for out, grad in zip(results, grads) if out.requires_grad],
        )
    for mine, theirs in zip(*copies):
        if isinstance(mine, torch.Tensor) and mine.requires_grad:
            yield mine.grad, theirs.grad


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(each for each in value if each is not None) if isinstance(value, (tuple, list)) else (value,)


# ---- liger-kernel ----------------------------------------------------------------------------------------------------


def liger() -> ModuleType:
    return importlib.import_module("liger_kernel.transformers.functional")


def rms(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


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


# ---- fla-core --------------------------------------------------------------------------------------------------------


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help="default: all")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--path", action="append", default=[], metavar="NAME=FOLDER", help="a checkout")
    parser.add_argument("--arch", default="9.0")
    args = parser.parse_args()
    import cudaemu
    import cudaemu.triton as device

    device.use(arch=args.arch)
    failures = 0
    for each in CASES:
        if (args.packages and each.package not in args.packages) or args.only not in each.name:
            continue
        device.reports.clear()
        torch.manual_seed(0)
        start = time.process_time()
        error, told = 0.0, ""
        try:
            for got, expected in each.run():
                got, expected = got.detach().double(), expected.detach().double()
                error = max(error, float((got - expected).norm() / expected.norm().clamp(min=1e-30)))
                if not torch.isfinite(got).all():
                    error = float("inf")
        except (Exception, cudaemu.CheckFailed) as problem:
            told = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
            if "-v" in sys.argv or os.environ.get("VERBOSE"):
                traceback.print_exc()
        found = device.report().findings
        if not told and not error <= each.tolerance:
            told = "differs"
        if found:
            told += f" {len(found)} findings"
            if os.environ.get("VERBOSE"):
                print(*found, sep="\n")
        failures += bool(told)
        seconds = time.process_time() - start
        print(
            f"| {each.package} | {each.name} | {len(device.reports)} | {error:.0e} | {seconds:.0f} s "
            f"| {told.strip() or 'right'} |",
            flush=True,
        )
    return failures


if __name__ == "__main__":
    sys.exit(main())
