"""`attention_fp8(q, k, v)`: attention in fp8 of tensors in 16 bits, both launchers of stage h8 one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common import course
from common.calls import Plan, Plans, Values
from common.stage import Prepared

stage = course.load("h8")
(quantize,) = stage.besides


def attention_fp8(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q · kᵀ / √D) · v for each head, the products in e4m3.

    q, k and v: [B, H, N, D], contiguous; fp16 or bf16, D 64 or 128, N a multiple of 128; on a GPU of compute capability
    9.0, or anywhere else, where the emulator computes. Returns O, of q's shape and dtype. There is no backward.

    UserError (a ValueError) for tensors that do not fit."""
    return quantize.call(_plans, (q, k, v))


def _prepare(tensors: Sequence[Tensor], values: Values) -> Plan[Tensor]:
    """The plan of such a call. UserError for tensors that do not fit."""
    first, q = quantize.prepare(tensors), tensors[0]
    kernel = stage.kernel(stage.torch_dtypes[q.dtype], {"HEAD_DIM": q.shape[-1]})
    launcher = kernel.launcher(q.device) if q.device.type == "cuda" and stage.unfit is None else None
    inputs = quantize.spec.outputs(tuple(q.shape), kernel.dtype, kernel.variants, "meta")
    output = torch.empty(q.shape, dtype=q.dtype, device="meta")
    second = Prepared(kernel, launcher, q.device, tuple(q.shape), inputs, (output,))

    def call(tensors: Sequence[Tensor], addresses: Sequence[int]) -> Tensor:
        quantized = first(tensors, addresses)
        return second(quantized, [each.data_ptr() for each in quantized])[0]

    return call


_plans: Plans[Tensor] = Plans(_prepare, quantize.alignment)
