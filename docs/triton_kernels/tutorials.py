"""Triton's own tutorials, by their functions, at small sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from docs.triton_kernels.cases import Pairs, attend, both, case, file, leaf


def tutorial(name: str) -> Any:
    return file("tutorials", f"{name}.py")


@case("tutorials")
def tutorials_02_fused_softmax() -> Pairs:
    x = torch.randn(37, 781)
    yield tutorial("02-fused-softmax").softmax(x), x.softmax(-1)


@case("tutorials", 1e-3)
def tutorials_03_matrix_multiplication() -> Pairs:
    a, b = torch.randn(96, 64).half(), torch.randn(64, 80).half()
    yield tutorial("03-matrix-multiplication").matmul(a, b), a.float() @ b.float()


@case("tutorials")
def tutorials_05_layer_norm() -> Pairs:
    yield from both(
        lambda x, w, b: tutorial("05-layer-norm").layer_norm(x, (200,), w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (200,), w, b, 1e-5),
        *(leaf(37, 200), leaf(200), leaf(200)),
    )


def _attention(causal: bool) -> Pairs:
    """[batch, heads, length, features]"""

    def reference(q: Any, k: Any, v: Any) -> Any:
        each = [attend(*(x[0].transpose(0, 1) for x in (q, k, v)), causal, 0.5).transpose(0, 1)]
        return torch.stack(each)

    inputs = [leaf(1, 2, 128, 64, dtype=torch.float16, scale=0.5) for _ in range(3)]
    yield from both(
        lambda q, k, v: tutorial("06-fused-attention").attention(q, k, v, causal, 0.5, not causal), reference, *inputs
    )


@case("tutorials", 3e-3)
def tutorials_06_fused_attention_causal() -> Pairs:
    yield from _attention(True)


@case("tutorials", 3e-3)
def tutorials_06_fused_attention() -> Pairs:
    yield from _attention(False)


def _group(transposed: bool) -> Any:
    sizes = [(128, 128, 64), (256, 128, 32)]  # tiles must be full
    a = [torch.randn(m, k).half() for m, _, k in sizes]
    b = [torch.randn(k, n).half() for _, n, k in sizes]
    return a, [x.T.contiguous() for x in b] if transposed else b, [x.float() @ y.float() for x, y in zip(a, b)]


@case("tutorials", 1e-3)
def tutorials_08_grouped_gemm() -> Pairs:
    a, b, expected = _group(False)
    yield from zip(tutorial("08-grouped-gemm").group_gemm_fn(a, b), expected)


@case("tutorials", 1e-3)
def tutorials_08_grouped_gemm_tma() -> Pairs:
    a, b, expected = _group(True)
    yield from zip(tutorial("08-grouped-gemm").group_gemm_tma_fn(a, b), expected)


def _persistent(name: str, *more: Any, transposed: bool = True) -> Pairs:
    a, b = torch.randn(192, 128).half(), torch.randn(128, 256).half()
    given = b.T.contiguous() if transposed else b
    module = tutorial("09-persistent-matmul")
    yield getattr(module, name)(a, given, *more), a.float() @ b.float()


@case("tutorials", 1e-3)
def tutorials_09_matmul() -> Pairs:
    yield from _persistent("matmul", transposed=False)


@case("tutorials", 1e-3)
def tutorials_09_matmul_tma() -> Pairs:
    yield from _persistent("matmul_tma", False)


@case("tutorials", 1e-3)
def tutorials_09_matmul_persistent() -> Pairs:
    yield from _persistent("matmul_persistent", transposed=False)


@case("tutorials", 1e-3)
def tutorials_09_matmul_tma_persistent() -> Pairs:
    yield from _persistent("matmul_tma_persistent", False)


@case("tutorials", 1e-3)
def tutorials_09_matmul_descriptor_persistent() -> Pairs:
    yield from _persistent("matmul_descriptor_persistent", False)


@case("tutorials", 1e-3)
def tutorials_09_matmul_descriptor_persistent_warp_specialized() -> Pairs:
    yield from _persistent("matmul_descriptor_persistent", True)
