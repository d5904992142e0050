"""A layer's product: C = activation(A · B + bias), rows side by side.

A check compares the product, and with one more launch what may follow it: at each size something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu

from common.problem import Choose, Drawn, Shape, Tensors, Tolerance, Variants
from common.problems.gemm import CHUNK, Gemm

ACTIVATIONS = (lambda x: x, relu, gelu)  # by the launcher's number


class Linear(Gemm):
    name = "linear"
    given_names: tuple[str, ...] = ("bias",)
    scratch_names: tuple[str, ...] = given_names
    follows: ClassVar[Mapping[str, tuple[tuple[str, ...], int]]] = {
        "with bias": (("bias",), 0),
        "with bias and ReLU": (("bias",), 1),
        "with bias and GELU": (("bias",), 2),
    }  # a product, in a check: of its arguments those that are given, and the activation

    def scratch(
        self, shape: Shape, variants: Variants, device: str | torch.device = "cpu"
    ) -> tuple[Tensor | None, ...]:
        """No bias."""
        return (None,)

    def scalars(self, shape: Shape, variants: Variants, tensors: Sequence[Tensor]) -> dict[str, int | float]:
        return {**super().scalars(shape, variants, tensors), "activation": 0}

    def other_launches(
        self, inputs: Sequence[Tensor], variants: Variants
    ) -> dict[str, Mapping[str, Tensor | int | float | None]]:
        """One of those that follow a product."""
        m, n, k = shape = self.shape(inputs, variants)
        what = list(self.follows)[(m + n + k) // CHUNK % len(self.follows)]
        given, activation = self.follows[what]
        generator = torch.Generator(inputs[0].device).manual_seed(m + n + k)
        addends = self._addends(shape, inputs[0], generator)
        return {what: {**{name: addends[name] for name in given}, "activation": activation}}

    def _addends(self, shape: Shape, like: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """What may be added to a product, of `like`'s dtype and device."""
        return {"bias": torch.randn(shape[1], generator=generator, device=like.device).to(like.dtype)}

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
        (product,) = Gemm.baseline(self, [each.float() for each in inputs], "fp32", variants)
        (like,) = self.outputs(self.shape(inputs, variants), dtype, variants, "meta")
        references, made = (self._finished(references[0], changed),), self._finished(product, changed).to(like.dtype)
        return references, self._near(references, (made,))

    def _finished(self, product: Tensor, changed: Mapping[str, Any]) -> Tensor:
        """activation(product + bias) + residual, in the type of the product."""
        bias, residual = (
            0 if (each := changed.get(name)) is None else each.to(product.dtype) for name in ("bias", "residual")
        )
        return ACTIVATIONS[changed["activation"]](product + bias) + residual

    def any_launch(
        self, choose: Choose, multiples: Mapping[str, int], dtype: str, variants: Variants, seed: int = 0
    ) -> Drawn:
        inputs, outputs, _ = super().any_launch(choose, multiples, dtype, variants, seed)
        changed: dict[str, Any] = {"activation": choose("activation", (0, 1, 2))}
        if choose("bias", (False, True)):
            changed |= self._addends(self.shape(inputs, variants), inputs[0], torch.Generator().manual_seed(seed))
        return Drawn(inputs, outputs, changed)

    def refused(self, arguments: Mapping[str, Any], variants: Variants) -> dict[str, Mapping[str, Any]]:
        found = super().refused(arguments, variants)
        return {**found, **{f"activation = {each}": {"activation": each} for each in (-1, 3)}}


problem = Linear()
