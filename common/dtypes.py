"""The element types of kernels: the names that --dtype takes, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cudaemu import dtypes

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

        return getattr(torch, self.element.name)


def _mma(m: int, n: int, k: int) -> int:
    return 2 * m * n * k


PRECISIONS = {
    "fp16": Precision(dtypes.DTYPES["float16"], _mma(16, 8, 16)),
    "bf16": Precision(dtypes.DTYPES["bfloat16"], _mma(16, 8, 16)),
    "fp32": Precision(dtypes.DTYPES["float32"]),
    "tf32": Precision(dtypes.DTYPES["float32"], _mma(16, 8, 8)),
    "e4m3": Precision(dtypes.DTYPES["float8_e4m3fn"], _mma(16, 8, 32)),
    "e5m2": Precision(dtypes.DTYPES["float8_e5m2"], _mma(16, 8, 32)),
}


def torch_dtype(dtype: str) -> torch.dtype:
    """The dtype of the tensors of kernels that compute in `dtype`, "bf16"."""
    return PRECISIONS[dtype].torch
