"""Matrix multiplication as programs call it: rows contiguous or further apart, B as [N, K], an fp32 result, and what
often follows a product: C = activation(A · B + bias) + residual.

A check compares the product, and with one more launch what may follow it: at each size something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu

from common.dtypes import torch_dtype
from common.problem import Choose, Drawn, Request, Shape, Tensors, Tolerance, Variants
from common.problems.gemm import CHUNK, Gemm, straight
from cudaemu.errors import UserError

ROW_BYTES = 16  # rows begin at multiples of this
SQUARE = 128  # rows and columns of the squares that a launcher's scratch is counted in
ACTIVATIONS = (lambda x: x, relu, gelu)  # by the launcher's number
IN_PARTS = (13,)  # of these: sums pass through global memory, so that there must be room for them
DRAWN = (-1, 0, 3, 5, 8, 9, 13, 16)  # choices of a tile: the launcher's, and some of each kind
FOLLOWS = {  # a product, in a check: of its arguments those that are given, and the activation
    "with bias": (("bias",), 0),
    "with ReLU and residual": (("residual",), 1),
    "with bias, GELU and residual": (("bias", "residual"), 2),
}


class Matmul(Gemm):
    name = "matmul"
    settings = ("B_TRANSPOSED", "FP32_OUT")
    given_names = ("bias", "residual")
    scratch_names = (*given_names, "sums")
    patterns = ("normal", "strided")
    pattern_says = {"strided": "the rows of each matrix are further apart than they are long"}

    def scratch(
        self, shape: Shape, variants: Variants, device: str | torch.device = "cpu"
    ) -> tuple[None, None, Tensor | None]:
        """No bias, no residual; `room` squares for the sums of a tile's parts, if the launcher may want them."""
        room = variants["room"]
        return None, None, torch.empty((room, SQUARE, SQUARE), device=device) if room else None

    def outputs(self, shape: Shape, dtype: str, variants: Variants, device: str | torch.device = "cpu") -> Tensors:
        m, n, _ = shape
        return (torch.empty((m, n), dtype=_output(torch_dtype(dtype), variants), device=device),)

    def scalars(self, shape: Shape, variants: Variants, tensors: Sequence[Tensor]) -> dict[str, int | float]:
        a, b, c = tensors
        rows = {"a_row": a.stride(0), "b_row": b.stride(0), "c_row": c.stride(0), "residual_row": shape[1]}
        return {**super().scalars(shape, variants, tensors), **rows, "activation": 0} | {
            name: variants[name] for name in ("choice", "room")
        }

    def patterns_at(self, shape: Shape, multiples: Mapping[str, int], variants: Variants) -> tuple[str, ...]:
        """Strides where every axis is ragged, in place of rows side by side: those are everywhere else."""
        ragged = self.test_shapes(multiples, variants).get("ragged in M, N, K")
        return self.patterns[1:] if shape == ragged else self.patterns[:1]

    def draw(self, request: Request) -> Tensors:
        a, b = super().draw(request)
        return (_apart(a, 8), _apart(b, 16)) if request.pattern == "strided" else (a, b)

    def outputs_for(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        """C's rows are apart where A's are."""
        (c,) = super().outputs_for(inputs, dtype, variants)
        return (c if inputs[0].is_contiguous() else _apart(c, 24),)

    def other_launches(
        self, inputs: Sequence[Tensor], variants: Variants
    ) -> dict[str, Mapping[str, Tensor | int | float | None]]:
        """One of those that follow a product."""
        m, n, k = self.shape(inputs, variants)
        what = list(FOLLOWS)[(m + n + k) // CHUNK % len(FOLLOWS)]
        given, activation = FOLLOWS[what]
        generator = torch.Generator(inputs[0].device).manual_seed(m + n + k)
        bias, residual = (
            torch.randn(size, generator=generator, device=inputs[0].device).to(inputs[0].dtype) for size in (n, (m, n))
        )
        addends = {"bias": bias, "residual": _apart(residual, 4)}
        changed = {name: addends[name] for name in given}
        return {what: {**changed, "residual_row": n + 4, "activation": activation}}

    def wanted(
        self,
        inputs: Sequence[Tensor],
        dtype: str,
        variants: Variants,
        references: Tensors,
        tolerances: tuple[Tolerance, ...],
        changed: Mapping[str, Any],
    ) -> tuple[Tensors, tuple[Tolerance, ...]]:
        if "activation" not in changed:
            return references, tolerances
        (product,) = super().baseline([each.float() for each in inputs], "fp32", variants)
        made = _finished(product, changed).to(_output(inputs[0].dtype, variants))
        references = (_finished(references[0], changed),)
        (tolerance,) = self._near(references, (made,))
        addends = sum(each.double().abs() for name in self.given_names if (each := changed.get(name)) is not None)
        return references, (self._with_cuts(tolerance, inputs, variants, addends),)

    def any_launch(
        self, choose: Choose, multiples: Mapping[str, int], dtype: str, variants: Variants, seed: int = 0
    ) -> Drawn:
        """Rows of each matrix have a distance of their own; a product is followed by anything, in any tile."""
        m, n, k = (choose(axis, sizes) for axis, sizes in self.sizes(multiples, variants).items())
        a, b = self.inputs((m, n, k), dtype, variants, seed=seed)
        (c,) = self.outputs((m, n, k), dtype, variants)
        a, b, c = (_apart(each, choose(f"{name}, gap", (8, 16, 40))) for name, each in (("A", a), ("B", b), ("C", c)))
        generator = torch.Generator().manual_seed(seed)
        changed: dict[str, Any] = {"activation": choose("activation", (0, 1, 2))}
        if choose("bias", (False, True)):
            changed["bias"] = torch.randn(n, generator=generator).to(a.dtype)
        if choose("residual", (False, True)):
            gap = choose("residual, gap", (4, 2))
            residual = _apart(torch.randn((m, n), generator=generator).to(a.dtype), gap)
            changed |= {"residual": residual, "residual_row": n + gap}
        choice, rooms = choose("choice", DRAWN), choose("room", (0, 6, 40))
        rooms = rooms or (6 if choice in IN_PARTS else 0)
        room = rooms * -(-m // SQUARE) * -(-n // SQUARE)
        changed |= {"choice": choice, "room": room}
        changed["sums"] = torch.empty((room, SQUARE, SQUARE)) if room else None
        return Drawn((a, b), (c,), changed)

    def refused(self, arguments: Mapping[str, Any], variants: Variants) -> dict[str, Mapping[str, Any]]:
        found = super().refused(arguments, variants)
        values = {"activation": (-1, 3), "choice": (1000,), "room": (-1, 1)}
        rows = {"a_row": "K", "b_row": "K" if variants.get("B_TRANSPOSED") else "N", "c_row": "N"}
        values |= {row: (arguments[axis] - 8,) for row, axis in rows.items()}
        return {**found, **{f"{name} = {each}": {name: each} for name in values for each in values[name]}}

    def check_layout(self, name: str, tensor: Tensor) -> None:
        rows_begin = tensor.dim() != 2 or len(tensor) < 2 or tensor.stride(0) * tensor.element_size() % ROW_BYTES == 0
        if tensor.dim() == 2 and not (tensor.stride(1) == 1 and rows_begin):
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
        """As everywhere, and as _with_cuts says."""
        (found,) = super().tolerances(inputs, dtype, variants, references)
        return (self._with_cuts(found, inputs, variants, 0),)

    def _with_cuts(
        self, found: Tolerance, inputs: Sequence[Tensor], variants: Variants, addends: Tensor | int
    ) -> Tolerance:
        """An fp32 result may also be off by what tensor cores cut off: they align 16 products and the sum so far to the
        largest, and drop what lies below its last place (Fasi et al., "Numerical behavior of NVIDIA tensor cores",
        2021), so at most 2⁻²³ of the magnitude each time, in one direction. `addends` are part of the magnitude."""
        if not variants.get("FP32_OUT"):
            return found
        a, b = inputs
        magnitude = a.double().abs() @ straight(b, variants).double().abs() + addends
        cut = (a.shape[1] / 16 + 8) * 2.0**-23 * magnitude
        return Tolerance(max(found.whole, cut.norm().item()), cut.clamp_(min=found.element))

    def bytes(self, shape: Shape, dtype: str, variants: Variants) -> int:
        m, n, k = shape
        size = torch_dtype(dtype)
        return (m * k + k * n) * size.itemsize + m * n * _output(size, variants).itemsize


def _apart(x: Tensor, gap: int) -> Tensor:
    """The same numbers, with so many elements between the rows, which nobody may use."""
    return torch.cat((x, x.new_full((x.shape[0], gap), torch.nan)), dim=1)[:, :-gap]


def _finished(product: Tensor, changed: Mapping[str, Any]) -> Tensor:
    """activation(product + bias) + residual, in the type of the product."""
    bias, residual = (
        0 if (each := changed.get(name)) is None else each.to(product.dtype) for name in Matmul.given_names
    )
    return ACTIVATIONS[changed["activation"]](product + bias) + residual


def _output(dtype: torch.dtype, variants: Variants) -> torch.dtype:
    return torch.float32 if variants.get("FP32_OUT") else dtype


problem = Matmul()
