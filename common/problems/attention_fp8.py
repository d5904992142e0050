"""Attention of Q, K and V in e4m3 with scales, as problem `quantize` makes them; O is in 16 bits.

The exact result is that of the numbers that the bytes and scales stand for: how far these are from the numbers that
they were made of is not the kernel's error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from common.dtypes import torch_dtype
from common.problem import Request, Shape, Tensors, Variants
from common.problems.attention import FEW_SCORES, LOG2_E, Attention
from common.problems.quantize import FP8, ROWS, dequantized, quantized
from cudaemu.errors import UserError

ROOM = 4  # the largest weight is 2^ROOM


class AttentionFp8(Attention):
    name = "attention_fp8"
    input_names = ("Q8", "K8", "V8", "scales")
    # Logits of 10⁴, as other problems try them, are beyond 8 bits, and the sums of their products are, too.
    patterns = ("normal", "dominated", "rising", "falling", "low", "sizes")
    pattern_says = {**Attention.pattern_says, "sizes": "keys and values of other sizes in each block of them"}

    def far_inputs(
        self, multiples: Mapping[str, int], variants: Variants
    ) -> dict[str, tuple[tuple[Shape, Shape], ...]]:
        return {}

    def shape(self, inputs: Sequence[Tensor], variants: Variants) -> Shape:
        q, k, v, scales = inputs
        b, h, n, d = q.shape if q.dim() == 4 else (0, 0, 0, 0)
        if not b or k.shape != q.shape or v.shape != (b, h, d, n) or scales.shape != (3, b, h, -(-n // ROWS)):
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(self.input_names, inputs))
            raise UserError(
                f"Q8 and K8 must be [B, H, N, D], V8 [B, H, D, N] and scales [3, B, H, N / {ROWS}]; got {shapes}"
            )
        return b, h, n, d

    def dtype(self, inputs: Sequence[Tensor]) -> torch.dtype:
        """fp16: what a call makes. UserError naming the input that is not e4m3, or scales that are not fp32."""
        for name, tensor in zip(self.input_names, inputs, strict=True):
            wanted = torch.float32 if name == "scales" else FP8
            if tensor.dtype != wanted:
                raise UserError(f"{name} must have the dtype {wanted}; got {tensor.dtype}")
        return torch.float16

    def draw(self, request: Request) -> Tensors:
        shape, pattern = request.shape, request.pattern
        q, k, v = super().draw(request._replace(pattern="normal") if pattern in ("low", "sizes") else request)
        if pattern == "low":  # all logits near -100
            size = math.sqrt(100 / math.sqrt(shape[-1]))
            q, k = q + size, k - size
        if pattern == "sizes":  # each block of keys and values is another number of times as large as the first
            block = torch.arange(shape[2], device=q.device)[:, None] // ROWS
            k, v = k * (1 + block % 3), v * 2.0 ** (block * 5 % 13 - 6)
        return quantized((q, k, v))

    def reference(self, inputs: Sequence[Tensor], variants: Variants) -> Tensors:
        return super().reference(dequantized(inputs, torch.float64), variants)

    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        """The kernel's arithmetic in one step instead of tile by tile.

        A weight is 2^(score + log₂(scale of V) - m + ROOM), and is rounded to e4m3 before it meets V and is summed up.
        m is half a power of two below the largest score + log₂(scale of V) of its row: the kernel's m lags behind it,
        too, and so the largest weight is rounded like the others."""
        q8, k8, v8, scales = inputs
        q, k, _ = dequantized(inputs, torch.float32)
        _, _, v = dequantized((q8, k8, v8, torch.ones_like(scales)), torch.float32)
        v_scale = scales[2].repeat_interleave(ROWS, -1)[:, :, None]
        out = torch.empty(q.shape, dtype=torch_dtype(dtype), device=q.device)
        for batch in range(q.shape[0]):  # by head: N × N scores take memory
            for head in range(q.shape[1]):
                scores = q[batch, head] @ k[batch, head].mT * (self.scale(q.shape) * LOG2_E)
                exponents = scores + v_scale[batch, head].log2()
                weights = torch.exp2(exponents - (exponents.amax(-1, keepdim=True) - 0.5) + ROOM).to(FP8).float()
                sums = (weights / v_scale[batch, head]).sum(-1, keepdim=True)
                out[batch, head] = (weights @ v[batch, head] / sums).to(out.dtype)
        return (out,)

    def other_launches(
        self, inputs: Sequence[Tensor], variants: Variants
    ) -> dict[str, Mapping[str, Tensor | int | float | None]]:
        """Another scale, where that is cheap."""
        q, scales = inputs[0], inputs[3]
        if q.shape[:2] != (1, 1) or q.shape[2] ** 2 > FEW_SCORES:
            return {}
        half = torch.cat((scales[:1] / 2, scales[1:]))
        return {"half of Q at twice the scale": {"scales": half, "scale": self.scale(q.shape) * 2}}

    def with_scale(self, inputs: Tensors, factor: float) -> tuple[Tensors, Mapping[str, Any]]:
        q, k, v, scales = inputs
        divided = torch.cat((scales[:1] / factor, scales[1:]))
        return inputs, {"scales": divided, "scale": self.scale(q.shape) * factor}

    def peers(self, dtype: str, variants: Variants) -> dict[str, Callable[..., Tensor]]:
        """The others' in 16 bits, of the same numbers: torch has no attention in fp8."""
        kept: dict[int, Tensors] = {}

        def of_numbers(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def call(*inputs: Tensor) -> Tensor:
                place = inputs[0].data_ptr()
                if place not in kept:  # once: it is not what is timed
                    kept.clear()
                    kept[place] = dequantized(inputs, torch_dtype(dtype))
                return attention(*kept[place])

            return call

        return {name: of_numbers(each) for name, each in super().peers(dtype, variants).items()}

    def bytes(self, shape: Shape, dtype: str, variants: Variants) -> int:
        b, h, n, d = shape
        return b * h * n * d * (3 + torch_dtype(dtype).itemsize) + 12 * b * h * (n // ROWS)


problem = AttentionFp8()
