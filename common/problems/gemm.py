"""Matrix multiplication: C[M, N] = A[M, K] · B[K, N], all row-major; with B_TRANSPOSED=1, B is given as [N, K]."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from common.dtypes import torch_dtype
from common.problem import FAR, Problem, Request, Shape, Tensors, Tolerance, Variants, whole_number
from cudaemu.errors import UserError

BLOCK = 32  # rows, columns and depth of the smallest tile of any stage
CHUNK = (
    8  # elements of 16 bits in the 16 bytes that a thread copies at a time: a multiple of no more leaves axes ragged
)


class Gemm(Problem):
    name = "gemm"
    part = "gemm"
    formula = "C[M, N] = A[M, K] · B[K, N]"
    axes = ("M", "N", "K")
    inner_axes = ("K",)
    settings: tuple[str, ...] = ("B_TRANSPOSED",)
    input_names = ("A", "B")
    mosaic = ".B;AC"

    def output_names(self, variants: Variants) -> tuple[str, ...]:
        return ("C",)

    def output_axes(self, variants: Variants) -> tuple[tuple[str, ...], ...]:
        return (("row", "col"),)

    def parse(self, text: str, variants: Variants) -> Shape:
        sizes = tuple(whole_number(part, f"each size in '{text}'") for part in text.lower().split("x"))
        if len(sizes) not in (1, 3):
            raise UserError(
                "a size must be a number, such as 4096 for M = N = K = 4096, or MxNxK such as 512x256x1024, "
                f"got '{text}'"
            )
        return sizes * 3 if len(sizes) == 1 else sizes

    def format(self, shape: Shape) -> str:
        return str(shape[0]) if len(set(shape)) == 1 else super().format(shape)

    def bench_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        return tuple((size, size, size) for size in (1024, 2048, 4096, 8192))

    def emulator_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        return ((256, 256, 256),)

    def test_shapes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, Shape]:
        m, n, k = (max(BLOCK, multiples.get(axis, 1)) for axis in self.axes)
        whole = {"several whole blocks, several turns of any ring": (2 * m, 3 * n, 12 * k)}
        ragged = {"M": (150, 128, 128), "N": (128, 133, 128), "K": (128, 128, 71), "M, N, K": (300, 133, 329)}
        cut = {
            f"ragged in {axes}": shape
            for axes, shape in ragged.items()
            if all(multiples.get(axis, 1) <= CHUNK for axis in axes.split(", "))
        }
        shapes = {"the least": (1, 1, 1), **whole, **cut, "K deep, offsets beyond 16 bits": (64, 64, 4616)}
        return self._fit(multiples, shapes)

    def wide_shapes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, Shape]:
        return self._fit(multiples, {"M beyond 16 bits": (33000, 1, 1), "N beyond 16 bits": (1, 33000, 1)})

    def far_inputs(
        self, multiples: Mapping[str, int], variants: Variants
    ) -> dict[str, tuple[tuple[Shape, Shape], ...]]:
        depth = 256  # and rows or columns of the matrix that is not so large
        far = FAR // depth + BLOCK
        shapes = self._fit(multiples, {"A": (far, depth, depth), "B": (depth, far, depth)})

        def sizes(m: int, n: int, k: int) -> tuple[Shape, Shape]:
            return (m, k), (n, k) if variants.get("B_TRANSPOSED") else (k, n)

        return {
            f"more than 2³² elements of {name} and C": tuple(zip(sizes(m, n, k), sizes(BLOCK, BLOCK, k)))
            for name, (m, n, k) in shapes.items()
        }

    def _fit(self, multiples: Mapping[str, int], shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """The next larger shapes that the multiples allow."""
        steps = [multiples.get(axis, 1) for axis in self.axes]
        return {
            why: tuple(-(-size // step) * step for size, step in zip(shape, steps)) for why, shape in shapes.items()
        }

    def figure_shape(self, multiples: Mapping[str, int], variants: Variants) -> Shape:
        m, n, k = (multiples.get(axis, 1) for axis in self.axes)
        return 2 * max(32, m), 2 * max(32, n), max(64, 4 * k)

    def shape(self, inputs: Sequence[Tensor], variants: Variants) -> Shape:
        a, b = inputs
        m, inner = a.shape if a.dim() == 2 else (0, -1)
        k, n = straight(b, variants).shape if b.dim() == 2 else (-2, 0)
        if inner != k:
            given = "; here B is given as [N, K]" if variants.get("B_TRANSPOSED") else ""
            raise UserError(f"{self.formula} cannot be computed of A {list(a.shape)} and B {list(b.shape)}{given}")
        return m, n, k

    def draw(self, request: Request) -> Tensors:
        (m, n, k), device, dtype = request.shape, request.device, torch_dtype(request.dtype)
        generator = torch.Generator(device).manual_seed(request.seed)
        a = torch.randn((m, k), generator=generator, device=device).to(dtype)
        b = torch.randn((k, n), generator=generator, device=device).to(dtype)
        return a, straight(b, request.variants).contiguous()  # the same numbers, whichever way B is given

    def outputs(self, shape: Shape, dtype: str, variants: Variants, device: str | torch.device = "cpu") -> Tensors:
        m, n, _ = shape
        return (torch.empty((m, n), dtype=torch_dtype(dtype), device=device),)

    def scalars(self, shape: Shape, variants: Variants, tensors: Sequence[Tensor]) -> dict[str, int | float]:
        return dict[str, int | float](zip(self.axes, shape))

    def reference(self, inputs: Sequence[Tensor], variants: Variants) -> Tensors:
        a, b = inputs
        return (a.double() @ straight(b, variants).double(),)

    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        a, b = inputs[0], straight(inputs[1], variants)
        with _precision("fp32"):
            if dtype == "tf32":  # step by step: torch has no TF32 on a CPU, and on a GPU not for every shape
                a, b = _tf32(a), _tf32(b)
            elif not a.is_cuda:  # a CPU may sum 16-bit products in 16 bits: do what a GPU does
                a, b = a.float(), b.float()
            return ((a @ b).to(inputs[0].dtype),)

    def tolerances(
        self, inputs: Sequence[Tensor], dtype: str, variants: Variants, references: Tensors
    ) -> tuple[Tolerance, ...]:
        """As everywhere; an fp32 result may also be off by what rounding errors of its sums amount to in all
        likelihood, √n · 2⁻²⁴ · Σ|terms| for a sum of n terms (Higham and Mary, "A new approach to probabilistic
        rounding error analysis", SIAM J. Sci. Comput. 41, 2019): the kernel may sum in any order."""
        ((whole, element),) = super().tolerances(inputs, dtype, variants, references)
        if dtype != "fp32":
            return (Tolerance(whole, element),)
        a, b = inputs
        magnitude = a.double().abs() @ straight(b, variants).double().abs()
        terms = a.shape[1]
        finite = magnitude[magnitude.isfinite()]
        whole = max(whole, _growth(terms, magnitude.numel()) * finite.norm().item())
        return (Tolerance(whole, magnitude.mul_(_growth(terms, 1)).clamp_(min=element)),)

    def peers(self, dtype: str, variants: Variants) -> dict[str, Callable[..., Tensor]]:
        def matmul(a: Tensor, b: Tensor) -> Tensor:
            with _precision(dtype):
                return torch.matmul(a, straight(b, variants))

        return {"cuBLAS": matmul}

    def sizes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, tuple[int, ...]]:
        found = {}
        for axis in self.axes:
            step = multiples.get(axis, 1)
            found[axis] = tuple(dict.fromkeys(-(-size // step) * step for size in (1, 40, 64, 150, 300)))
        return found

    def flops(self, shape: Shape, variants: Variants) -> int:
        m, n, k = shape
        return 2 * m * n * k

    def bytes(self, shape: Shape, dtype: str, variants: Variants) -> int:
        m, n, k = shape
        return (m * k + k * n + m * n) * torch_dtype(dtype).itemsize


def _growth(terms: int, elements: int) -> float:
    """Bound of the error of a sum of `terms` in fp32, as a fraction of the sum of the terms' magnitudes.

    λ√n·u, with λ near 1 for an average over many elements and 6 for a single one; never more than the certain n·u."""
    return min((1 + 5 / math.sqrt(elements)) * math.sqrt(terms), terms) * 2.0**-24


def straight(b: Tensor, variants: Variants) -> Tensor:
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
