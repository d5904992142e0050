"""Q, K and V in e4m3, as attention in fp8 takes them.

Q, K and V are [B, H, N, HEAD_DIM]. 64 rows share a scale: their largest |x| / 448; of V no less than a 16th of its
head's largest scale. Q and K are rotated first: columns get signs, and rows are multiplied with a Hadamard matrix /
√HEAD_DIM (Shah et al., "FlashAttention-3", 2024). V is transposed, [B, H, HEAD_DIM, N], and its keys are in the order
in which wgmma's first operand has the columns of an accumulator: of 16 keys 0, 1, 8, 9, 2, 3, 10, 11, ... `scales` is
[3, B, H, N / 64]: of Q, of K, of V.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from common.problem import Problem, Request, Shape, Tensors, Tolerance, Variants
from common.problems.attention import Attention

ROWS = 64  # that share a scale
LARGEST = 448.0  # that e4m3 has
TINY = 2.0**-80  # the least that counts as the largest of a block
LEAST = 2.0**-4  # of the largest scale of a head of V: the least of the others
SIGNS = 0x9E3779B9  # a column's sign is the parity of the bits of this times its number, modulo 2³²
FP8 = torch.float8_e4m3fn
ORDER = [group + pair for group in (0, 2, 4, 6) for pair in (0, 1, 8, 9)]  # of 16 keys in V


class Quantize(Attention):
    name = "quantize"
    part = "quantize"
    formula = "Q, K, V = scales · (Q8, K8, V8)"
    settings = ("HEAD_DIM", "ROTATE")
    patterns = ("normal", "outliers", "zeros")
    pattern_says = {"outliers": "one column is 100 times as large", "zeros": "the first rows are 0"}

    def output_names(self, variants: Variants) -> tuple[str, ...]:
        return "Q8", "K8", "V8", "scales"

    def output_axes(self, variants: Variants) -> tuple[tuple[str, ...], ...]:
        rows = ("batch", "head", "row", "col")
        return rows, rows, ("batch", "head", "col", "place"), ("tensor", "batch", "head", "block")

    def far_inputs(
        self, multiples: Mapping[str, int], variants: Variants
    ) -> dict[str, tuple[tuple[Shape, Shape], ...]]:
        return {}

    def draw(self, request: Request) -> Tensors:
        made = super().draw(request._replace(pattern="normal"))
        if request.pattern == "outliers":
            for tensor in made:
                tensor[..., 3] *= 100
        if request.pattern == "zeros":
            for tensor in made:
                tensor[..., :ROWS, :] = 0
        return made

    def outputs(self, shape: Shape, dtype: str, variants: Variants, device: str | torch.device = "cpu") -> Tensors:
        b, h, n, d = shape
        rows = torch.empty(shape, dtype=FP8, device=device)
        columns = torch.empty((b, h, d, n), dtype=FP8, device=device)
        scales = torch.empty((3, b, h, -(-n // ROWS)), dtype=torch.float32, device=device)
        return rows, torch.empty_like(rows), columns, scales

    def scalars(self, shape: Shape, variants: Variants, tensors: Sequence[Tensor]) -> dict[str, int | float]:
        b, h, n, d = shape
        return {"B": b, "H": h, "N": n}

    def other_launches(
        self, inputs: Sequence[Tensor], variants: Variants
    ) -> dict[str, Mapping[str, Tensor | int | float | None]]:
        return {}

    def with_scale(self, inputs: Tensors, factor: float) -> tuple[Tensors, Mapping[str, Any]]:
        return inputs, {}  # it has none

    def reference(self, inputs: Sequence[Tensor], variants: Variants) -> Tensors:
        """What is rounded, and the scales."""
        return scaled([each.double() for each in inputs], bool(variants.get("ROTATE", 1)))

    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        return quantized(inputs, bool(variants.get("ROTATE", 1)))

    def tolerances(
        self, inputs: Sequence[Tensor], dtype: str, variants: Variants, references: Tensors
    ) -> tuple[Tolerance, ...]:
        """As everywhere; sums of HEAD_DIM numbers in another order leave the scales some units in the last place."""
        *rounded, scales = Problem.tolerances(self, inputs, dtype, variants, references)
        unit = 2.0**-23 * references[-1].abs()
        element = 8 * unit
        return *rounded, Tolerance(max(scales.whole, 4 * unit.norm().item()), element)

    def peers(self, dtype: str, variants: Variants) -> dict[str, Callable[..., Tensor]]:
        return {}

    def flops(self, shape: Shape, variants: Variants) -> int:
        """Sums and differences of the rotations, and a product for each element."""
        b, h, n, d = shape
        rotate = 2 * int(math.log2(d)) if variants.get("ROTATE", 1) else 0
        return b * h * n * d * (3 + rotate)

    def bytes(self, shape: Shape, dtype: str, variants: Variants) -> int:
        b, h, n, d = shape
        return 3 * b * h * n * (3 * d) + 3 * b * h * (n // ROWS) * 4


def rotated(x: Tensor) -> Tensor:
    """x [..., D] times an orthogonal matrix: random signs, the same for all rows, and a Hadamard matrix / √D."""
    d = x.shape[-1]
    odd = [bin(column * SIGNS % 2**32).count("1") % 2 for column in range(d)]
    x = x * (1 - 2 * torch.tensor(odd, device=x.device)) * d**-0.5
    apart = 1
    while apart < d:
        pairs = x.unflatten(-1, (-1, 2, apart))
        x = torch.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), -2).flatten(-3)
        apart *= 2
    return x


def scaled(inputs: Sequence[Tensor], rotate: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q, K [B, H, N, D] and V [B, H, D, N] divided by their scales, not rounded, and the scales [3, B, H, N / 64].

    Where N is no multiple of 64, zeros fill up the last block, and what they become is cut off."""
    n = inputs[0].shape[2]
    q, k, v = (torch.nn.functional.pad(each, (0, 0, 0, -n % ROWS)) for each in inputs)
    if rotate:
        q, k = rotated(q), rotated(k)
    blocks = [each.unflatten(2, (-1, ROWS)) for each in (q, k, v)]
    scales = torch.stack([each.abs().amax((-2, -1)).clamp(min=TINY) / LARGEST for each in blocks])
    scales[2] = scales[2].maximum(scales[2].amax(-1, keepdim=True) * LEAST)  # so that no weight of the head becomes 0
    q, k, v = ((each / scale[..., None, None]).flatten(2, 3) for each, scale in zip(blocks, scales))
    v = v.mT.unflatten(-1, (-1, 16))[..., ORDER].flatten(-2)
    return q[:, :, :n], k[:, :, :n], v[..., :n].contiguous(), scales


def quantized(inputs: Sequence[Tensor], rotate: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Q8, K8, V8 and scales in torch's fp32 arithmetic."""
    q, k, v, scales = scaled([each.float() for each in inputs], rotate)
    return q.to(FP8), k.to(FP8), v.to(FP8), scales


def dequantized(inputs: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers that Q8, K8, V8 and scales stand for: Q, K (rotated, if they were) and V, [B, H, N, D]."""
    q8, k8, v8, scales = inputs
    back = [ORDER.index(key) for key in range(16)]
    v = v8.to(dtype).unflatten(-1, (-1, 16))[..., back].flatten(-2).mT
    blocks = [each.to(dtype).unflatten(2, (-1, ROWS)) for each in (q8, k8, v)]
    q, k, v = ((each * scale[..., None, None].to(dtype)).flatten(2, 3) for each, scale in zip(blocks, scales))
    return q, k, v.contiguous()


problem = Quantize()
