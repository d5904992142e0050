"""`attention(q, k, v)`: attention in fp8 of tensors in 16 bits, both launchers of the stage one after the other."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from common.problem import Tensors
from common.stage import Prepared
from kernels.h8_fp8 import stage

(quantize,) = stage.besides


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q · kᵀ / √D) · v for each head, the products in e4m3.

    q, k and v: [B, H, N, D], contiguous; fp16 or bf16, D 64 or 128, N a multiple of 128; on a GPU of compute capability
    9.0, or anywhere else, where the emulator computes. Returns O, of q's shape and dtype. There is no backward.

    UserError (a ValueError) for tensors that do not fit."""
    quantized = cast(Tensors, quantize(q, k, v))
    call = _prepared(q.dtype, q.device, q.shape)
    return call(quantized, [each.data_ptr() for each in quantized])[0]


@lru_cache(maxsize=1024)
def _prepared(dtype: torch.dtype, device: torch.device, shape: torch.Size) -> Prepared:
    """All that a call of that kind needs, worked out once."""
    kernel = stage.kernel(stage.torch_dtypes[dtype], {"HEAD_DIM": shape[-1]})
    launcher = kernel.launcher(device) if device.type == "cuda" and stage.unfit is None else None
    inputs = quantize.spec.outputs(shape, kernel.dtype, kernel.variants, "meta")
    output = torch.empty(shape, dtype=dtype, device="meta")
    return Prepared(kernel, launcher, device, tuple(shape), inputs, (output,))
