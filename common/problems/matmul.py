"""Matrix multiplication as programs call it: rows contiguous or further apart, B as [N, K], an fp32 result, and what
often follows a product: C = activation(A · B + bias) + residual.

A check compares the product alone; what follows it is tested through `kernels.matmul`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from common.dtypes import torch_dtype
from common.problem import Shape, Tensors, Tolerance, Variants
from common.problems.gemm import Gemm, straight
from cudaemu.errors import UserError

ROW_BYTES = 16  # rows begin at multiples of this


class Matmul(Gemm):
    name = "matmul"
    settings = ("B_TRANSPOSED", "FP32_OUT")
    scratch_names = given_names = ("bias", "residual")

    def scratch(self, shape: Shape, variants: Variants, device: str | torch.device = "cpu") -> tuple[None, None]:
        return None, None

    def outputs(self, shape: Shape, dtype: str, variants: Variants, device: str | torch.device = "cpu") -> Tensors:
        m, n, _ = shape
        return (torch.empty((m, n), dtype=_output(torch_dtype(dtype), variants), device=device),)

    def scalars(self, shape: Shape, variants: Variants, tensors: Sequence[Tensor]) -> dict[str, int | float]:
        a, b, c = tensors
        rows = {"a_row": a.stride(0), "b_row": b.stride(0), "c_row": c.stride(0), "residual_row": shape[1]}
        return {**super().scalars(shape, variants, tensors), **rows, "activation": 0, "choice": variants["choice"]}

    def other_launches(
        self, inputs: Sequence[Tensor], variants: Variants
    ) -> dict[str, Mapping[str, Tensor | int | float | None]]:
        """With zeros added."""
        m, n, _ = self.shape(inputs, variants)
        zeros = [inputs[0].new_zeros(size) for size in ((n,), (m, n))]
        return {"with bias and residual": dict(zip(self.scratch_names, zeros))}

    def check_layout(self, name: str, tensor: Tensor) -> None:
        if tensor.dim() == 2 and (tensor.stride(1) != 1 or tensor.stride(0) * tensor.element_size() % ROW_BYTES):
            raise UserError(
                f"{name} must have contiguous rows that begin at multiples of {ROW_BYTES} bytes, got the strides "
                f"{tensor.stride()}: pass {name}.contiguous()"
            )

    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        if not variants.get("FP32_OUT"):
            return super().baseline(inputs, dtype, variants)
        a, b = inputs
        return (a.float() @ straight(b, variants).float(),)

    def tolerances(
        self, inputs: Sequence[Tensor], dtype: str, variants: Variants, references: Tensors
    ) -> tuple[Tolerance, ...]:
        """As everywhere. An fp32 result may also be off by what tensor cores cut off: they align 16 products and the
        sum so far to the largest, and drop what lies below its last place (Fasi et al., "Numerical behavior of NVIDIA
        tensor cores", 2021), so at most 2⁻²³ of the magnitude each time, in one direction."""
        ((whole, element),) = super().tolerances(inputs, dtype, variants, references)
        if not variants.get("FP32_OUT"):
            return (Tolerance(whole, element),)
        a, b = inputs
        magnitude = a.double().abs() @ straight(b, variants).double().abs()
        cut = (a.shape[1] / 16 + 8) * 2.0**-23 * magnitude
        return (Tolerance(max(whole, cut.norm().item()), cut.clamp_(min=element)),)

    def bytes(self, shape: Shape, dtype: str, variants: Variants) -> int:
        m, n, k = shape
        size = torch_dtype(dtype)
        return (m * k + k * n) * size.itemsize + m * n * _output(size, variants).itemsize


def _output(dtype: torch.dtype, variants: Variants) -> torch.dtype:
    return torch.float32 if variants.get("FP32_OUT") else dtype


problem = Matmul()
