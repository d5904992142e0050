"""Matrix multiplication: C[M, N] = A[M, K] · B[K, N], all row-major; with B_TRANSPOSED=1, B is given as [N, K]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from common.errors import UserError
from common.problem import TORCH_DTYPES, Problem, Shape, Tensors, whole


class Gemm(Problem):
    name = "gemm"
    formula = "C[M, N] = A[M, K] · B[K, N]"
    symbol = "launch_gemm"
    axes = ("M", "N", "K")
    inner_axes = ("K",)
    input_names = ("A", "B")
    output_names = ("C",)
    output_axes = (("row", "col"),)
    mosaic = ".B;AC"
    bench_shapes = tuple((size, size, size) for size in (1024, 2048, 4096, 8192))
    emulator_shapes = ((256, 256, 256),)

    def parse(self, text: str) -> Shape:
        sizes = tuple(whole(part, f"each size in '{text}'") for part in text.lower().split("x"))
        if len(sizes) not in (1, 3):
            raise UserError(f"'{text}' is not a size: write 4096 for M = N = K = 4096, or MxNxK such as 512x256x1024")
        return sizes * 3 if len(sizes) == 1 else sizes

    def test_shapes(self, multiples: Mapping[str, int]) -> tuple[Shape, ...]:
        def fit(axis: str, size: int) -> int:
            multiple = multiples.get(axis, 1)
            return -(-size // multiple) * multiple

        # Blocks and slices cut off at every edge, unless a multiple forbids it; one K deeper than any ring of tiles.
        shapes = ((1, 1, 1), (150, 70, 33), (70, 270, 233))
        return tuple((fit("M", m), fit("N", n), fit("K", k)) for m, n, k in shapes)

    def shape(self, inputs: Sequence[Tensor], variants: Mapping[str, int]) -> Shape:
        a, b = inputs
        if a.dim() != 2 or b.dim() != 2 or a.shape[1] != _straight(b, variants).shape[0]:
            given = "; here B is given as [N, K]" if variants.get("B_TRANSPOSED") else ""
            raise UserError(f"{self.formula} cannot be computed of A {list(a.shape)} and B {list(b.shape)}{given}")
        return a.shape[0], _straight(b, variants).shape[1], a.shape[1]

    def inputs(
        self, shape: Shape, dtype: str, *, seed: int = 0, device: str = "cpu", variants: Mapping[str, int] = {}
    ) -> Tensors:
        m, n, k = shape
        generator = torch.Generator(device).manual_seed(seed)
        a = torch.randn((m, k), generator=generator, device=device).to(TORCH_DTYPES[dtype])
        b = torch.randn((k, n), generator=generator, device=device).to(TORCH_DTYPES[dtype])
        return a, _straight(b, variants).contiguous()  # the same numbers, whichever way B is given

    def outputs(
        self, shape: Shape, dtype: str, *, device: str | torch.device = "cpu", variants: Mapping[str, int] = {}
    ) -> Tensors:
        m, n, _ = shape
        return (torch.full((m, n), torch.nan, dtype=TORCH_DTYPES[dtype], device=device),)

    def scalars(self, shape: Shape, variants: Mapping[str, int]) -> dict[str, int]:
        return dict(zip(self.axes, shape))

    def reference(self, inputs: Sequence[Tensor], variants: Mapping[str, int]) -> Tensors:
        a, b = inputs
        return (a.double() @ _straight(b, variants).double(),)

    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Mapping[str, int]) -> Tensors:
        a, b = inputs[0], _straight(inputs[1], variants)
        with _precision("fp32"):
            if dtype == "tf32":  # step by step: torch has no TF32 on a CPU, and on a GPU not for every shape
                a, b = _tf32(a), _tf32(b)
            elif not a.is_cuda:  # a CPU may sum 16-bit products in 16 bits: do what a GPU does
                a, b = a.float(), b.float()
            return ((a @ b).to(inputs[0].dtype),)

    def magnitude(self, inputs: Sequence[Tensor], variants: Mapping[str, int]) -> Tensors:
        a, b = inputs
        return (a.double().abs() @ _straight(b, variants).double().abs(),)

    def terms(self, shape: Shape) -> int:
        return shape[2]

    def peers(self, dtype: str, variants: Mapping[str, int]) -> dict[str, Callable[..., Tensor]]:
        def matmul(a: Tensor, b: Tensor) -> Tensor:
            with _precision(dtype):
                return torch.matmul(a, _straight(b, variants))

        return {"cuBLAS": matmul}

    def flops(self, shape: Shape, variants: Mapping[str, int]) -> int:
        m, n, k = shape
        return 2 * m * n * k

    def bytes(self, shape: Shape, dtype: str, variants: Mapping[str, int]) -> int:
        m, n, k = shape
        return (m * k + k * n + m * n) * TORCH_DTYPES[dtype].itemsize


def _straight(b: Tensor, variants: Mapping[str, int]) -> Tensor:
    """B as [K, N], whichever way it is given; and B as it is given, if it is [K, N]."""
    return b.t() if variants.get("B_TRANSPOSED") and b.dim() == 2 else b


def _tf32(x: Tensor) -> Tensor:
    """fp32 rounded to the 10 explicit bits of TF32: to nearest, ties away from zero, as cvt.rna does."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@contextmanager
def _precision(dtype: str) -> Iterator[None]:
    """torch's products of fp32 matrices in full fp32; in TF32 only when that is what is asked for."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


problem = Gemm()
