"""Draft of common/problems/attention.py: the mathematics of Part II, as plain functions of tensors.

O = softmax(Q · Kᵀ · scale) · V per batch and head; Q, K, V and O are [B, H, N, D]. A shape is (B, H, N, D).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
LOG2_E = math.log2(math.e)

Shape = tuple[int, int, int, int]
Inputs = tuple[Tensor, Tensor, Tensor]


def default_scale(shape: Shape) -> float:
    """1 / √D, as torch.nn.functional.scaled_dot_product_attention has it."""
    return shape[3] ** -0.5


def inputs(shape: Shape, dtype: str, *, seed: int = 0, device: str = "cpu") -> Inputs:
    """Random normal Q, K, V: with the default scale, logits are nearly normal too."""
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, device=device).to(TORCH_DTYPES[dtype]) for _ in range(3))


def _huge(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return q * 55, k * 55  # logits of standard deviation 55² ≈ 3000: the extremes of a few hundred keys reach ±1e4


def _equal(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return q, k[:, :, :1].expand_as(k)  # every key is the same: O is the mean of V, whatever the logit


def _equal_huge(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return _equal(*_huge(q, k, generator), generator)


def _dominated(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # One key per head that every query likes by 4 · 8 · √D more than the rest: 256 for D = 64.
    sign = torch.randn(k.shape[3], generator=generator, device=k.device).sign()
    chosen = torch.randint(k.shape[2], k.shape[:2], generator=generator, device=k.device)
    one_hot = torch.nn.functional.one_hot(chosen, k.shape[2])[..., None]
    return q + 4 * sign, torch.where(one_hot > 0, 8 * sign, k)


def _low(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # All logits near -1e4: whoever takes 0 for the first maximum has weights of 0 and divides 0 by 0.
    size = math.sqrt(1e4 / math.sqrt(k.shape[3]))
    return q + size, k - size


def _rising(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    # Keys that every query likes better from tile to tile, by 4 in 64 keys: each tile corrects all that came before.
    steps = torch.arange(k.shape[2], device=k.device, dtype=k.dtype)[:, None] / 16
    return q + 1, k + steps / math.sqrt(k.shape[3])


def _falling(q: Tensor, k: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    q, k = _rising(q, k, generator)
    return q, k.flip(2)


HARD: dict[str, Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]] = {
    "huge": _huge,
    "equal": _equal,
    "equal_huge": _equal_huge,
    "dominated": _dominated,
    "low": _low,
    "rising": _rising,
    "falling": _falling,
}


def hard_inputs(shape: Shape, dtype: str, kind: str, *, seed: int = 0, device: str = "cpu") -> Inputs:
    """Q, K, V on which an online softmax fails if it is careless; `kind` is a name in HARD. For the default scale."""
    generator = torch.Generator(device).manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=generator, device=device) for _ in range(3))
    q, k = HARD[kind](q, k, generator)
    return tuple(tensor.to(TORCH_DTYPES[dtype]).contiguous() for tensor in (q, k, v))


def outputs(shape: Shape, dtype: str, *, device: str = "cpu") -> tuple[Tensor]:
    """O filled with NaN: what a kernel leaves unwritten stays visible."""
    return (torch.full(shape, torch.nan, dtype=TORCH_DTYPES[dtype], device=device),)


def reference(qkv: Inputs, scale: float) -> tuple[Tensor]:
    """O in fp64, of the 16-bit inputs as they are."""
    q, k, v = (tensor.double() for tensor in qkv)
    return (torch.softmax(q @ k.mT * scale, dim=-1) @ v,)


def baseline(qkv: Inputs, scale: float) -> tuple[Tensor]:
    """O as torch computes it in 16 bits with fp32 accumulation: the yardstick for errors.

    On a GPU, torch's own FlashAttention. On a CPU its arithmetic, in one step instead of tile by tile: scores and
    softmax in fp32, the exponent as one FMA of the score with scale · log₂e and the scaled maximum, weights rounded to
    16 bits before they meet V, their sum not rounded, O rounded once. (torch's own CPU kernel subtracts first, and is
    six times more accurate in fp16 where logits reach 1e4; FlashAttention's kernels are not.)
    """
    q, k, v = qkv
    if q.is_cuda:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return (torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale),)
    scores = q.float() @ k.float().mT
    scale_log2 = torch.tensor(scale, dtype=torch.float32) * LOG2_E
    largest = scores.amax(-1, keepdim=True) * scale_log2
    exponents = (scores.double() * scale_log2.double() - largest.double()).float()  # an FMA: rounded once
    weights = torch.exp2(exponents)
    sums = weights.sum(-1, keepdim=True)
    return ((weights.to(q.dtype).float() @ v.float() / sums).to(q.dtype),)


def unfused(qkv: Inputs, scale: float) -> Tensor:
    """The part's starting point: three kernels, and the N × N scores in global memory between them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*qkv, scale=scale)


def peers(scale: float) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """The library's implementations on a GPU: name -> function of Q, K, V."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def with_backend(backend: SDPBackend) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)

        return attention

    names = {"FA2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION, "unfused": SDPBackend.MATH}
    return {name: with_backend(backend) for name, backend in names.items()}


def flops(shape: Shape) -> int:
    """Floating-point operations of both products, without a mask."""
    b, h, n, d = shape
    return 4 * b * h * n * n * d


def bytes(shape: Shape, dtype: str) -> int:
    """The least that can be moved: Q, K and V read once, O written once."""
    b, h, n, d = shape
    return 4 * b * h * n * d * TORCH_DTYPES[dtype].itemsize
