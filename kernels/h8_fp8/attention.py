"""`attention(q, k, v)`: attention in fp8 of tensors in 16 bits, both kernels of the stage one after the other."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from common.stage import Kernel, Prepared
from kernels.h8_fp8 import stage
from kernels.h8_fp8.quantize import stage as quantize


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q · kᵀ / √D) · v for each head, the products in e4m3.

    q, k and v: [B, H, N, D], contiguous; fp16 or bf16, D 64 or 128, N a multiple of 128; on a GPU of compute capability
    9.0, or anywhere else, where the emulator computes. Returns O, of q's shape and dtype. There is no backward.

    UserError (a ValueError) for tensors that do not fit."""
    quantized = quantize(q, k, v)
    kernel = _kernel(q.dtype, q.shape[-1])
    output = torch.empty_like(q, device="meta")
    launcher = kernel.launcher(q.device) if q.is_cuda and stage.unfit is None else None
    call = Prepared(kernel, launcher, q.device, tuple(q.shape), quantized, (output,))
    return call(quantized, [each.data_ptr() for each in quantized])[0]


@lru_cache
def _kernel(dtype: torch.dtype, head_dim: int) -> Kernel:
    return stage.kernel(stage.torch_dtypes[dtype], {"HEAD_DIM": head_dim})
