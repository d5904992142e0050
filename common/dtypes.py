"""The element types of kernels: the names that --dtype takes, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cudaemu import dtypes
from cudaemu.units import MMA

if TYPE_CHECKING:
    import torch


class Precision(NamedTuple):
    """The type of the inputs' elements, and how they are multiplied."""

    element: dtypes.DType
    flop_per_mma: int | None = None  # of one mma.sync of its largest shape, by a warp; None: there is none

    @property
    def cpp(self) -> str:
        """The type in a kernel.cu, for its macro DTYPE: "half"."""
        return self.element.cpp[0]

    @property
    def torch(self) -> torch.dtype:
        """The dtype of the tensors."""
        import torch

        dtype: torch.dtype = getattr(torch, self.element.name)
        return dtype


PRECISIONS = {
    "fp16": Precision(dtypes.DTYPES["float16"], MMA.flop(bits=16)),
    "bf16": Precision(dtypes.DTYPES["bfloat16"], MMA.flop(bits=16)),
    "fp32": Precision(dtypes.DTYPES["float32"]),
    "tf32": Precision(dtypes.DTYPES["float32"], MMA.flop(bits=32)),
    "e4m3": Precision(dtypes.DTYPES["float8_e4m3fn"], MMA.flop(bits=8)),
    "e5m2": Precision(dtypes.DTYPES["float8_e5m2"], MMA.flop(bits=8)),
}


def torch_dtype(dtype: str) -> torch.dtype:
    """The dtype of the tensors of kernels that compute in `dtype`, "bf16"."""
    return PRECISIONS[dtype].torch
