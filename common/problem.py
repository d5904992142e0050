"""What a family of stages computes, as the harness sees it.

Stages name their problem ("gemm"); the module common.problems.<name> holds one object, `problem`, for everything that
depends on what is computed. Loader, check, benchmark, counters and figures use it and know no formula.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from cudaemu.errors import UserError

T = TypeVar("T")
Shape = tuple[int, ...]
Tensors = tuple[Tensor, ...]
Variants = Mapping[str, int]


class Tolerance(NamedTuple):
    """How far an output may be from its fp64 reference.

    `whole` bounds ‖out − ref‖ (Frobenius), `element` every |out − ref|: a number, or a tensor of the output's shape."""

    whole: float
    element: float | Tensor


class Request(NamedTuple):
    """What inputs are wanted, as `Problem.inputs` takes it."""

    shape: Shape
    dtype: str
    variants: Variants
    seed: int
    device: str | torch.device
    pattern: str


class Choose(Protocol):
    """Who draws: one of the options, for what is named."""

    def __call__(self, name: str, options: Sequence[T], /) -> T: ...


class Drawn(NamedTuple):
    """A launch that was drawn: inputs, outputs for it to fill, and the launcher's arguments that are not those that the
    problem gives."""

    inputs: Tensors
    outputs: Tensors
    changed: Mapping[str, Any]


FAR = 2**32  # elements: their numbers fit into no integer of 32 bits


class Problem(ABC):
    """One computation: its sizes, tensors, reference and yardsticks.

    A *shape* is a tuple of ints in the order of `axes`. `variants` are the macros of the kernel at hand: those in
    `settings` change what is computed (a transposed operand, a causal mask), the others only how, and a problem ignores
    them. `scratch` and `scalars` also find there what the stage chooses for a launch (`Kernel.choices`). Inputs,
    outputs and references are tuples of tensors in the order of `input_names` and `output_names`; references, and what
    else is said of outputs, go on with `extra_names`.
    """

    name: str
    part: str  # of the course: problems of a part convert their shapes into each other's, and share libraries
    formula: str
    axes: tuple[str, ...]
    inner_axes: tuple[str, ...]  # axes that are summed over: no output has them
    settings: tuple[str, ...] = ()  # macros that say what is computed
    input_names: tuple[str, ...]
    scratch_names: tuple[str, ...] = ()
    extra_names: tuple[str, ...] = ()  # of scratch that a launch may ask for as outputs, null otherwise; a check does
    given_names: tuple[str, ...] = ()  # of scratch that a launch may bring as inputs, null otherwise
    mosaic: str | None = (
        None  # how figures arrange the tensors: ".B;AC" is B above C, A to its left; None: side by side
    )
    slack: float = 1.25  # how many times the baseline's error, over a whole output, a kernel's may be
    patterns: tuple[str, ...] = ("normal",)  # kinds of inputs that `inputs` can make; a test tries each of them
    pattern_says: Mapping[str, str] = {}  # what a reader should know of each, "normal" apart

    @abstractmethod
    def output_names(self, variants: Variants) -> tuple[str, ...]:
        """Names of the outputs."""

    @abstractmethod
    def output_axes(self, variants: Variants) -> tuple[tuple[str, ...], ...]:
        """What the indices of each output are called."""

    def tensor_names(self, variants: Variants) -> tuple[str, ...]:
        """Names of the launcher's pointers, in its order."""
        return self.input_names + self.output_names(variants) + self.scratch_names

    def scratch(
        self, shape: Shape, variants: Variants, device: str | torch.device = "cpu"
    ) -> tuple[Tensor | None, ...]:
        """More memory that a launcher uses, uninitialised, named by `scratch_names`; None: a null pointer."""
        return ()

    def implied(self, inputs: Sequence[Tensor]) -> dict[str, int]:
        """The settings that the inputs of a call decide, such as a head dimension; the others are given."""
        return {}

    # ---- shapes ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def parse(self, text: str, variants: Variants) -> Shape:
        """The shape that `--sizes TEXT` means. UserError if it means none."""

    def format(self, shape: Shape) -> str:
        """The shape as a person writes it, and `parse` reads it."""
        return "x".join(map(str, shape))

    @abstractmethod
    def bench_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        """Shapes large enough to fill a GPU."""

    def tune_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        """Shapes typical of what people run: tile shapes are chosen for a GPU by them."""
        return self.bench_shapes(variants)

    @abstractmethod
    def emulator_shapes(self, variants: Variants) -> tuple[Shape, ...]:
        """Shapes of several blocks that every stage takes, seconds in the emulator: the smallest first; at the last, no
        multiprocessor of an A100 is empty, and launchers choose as for large ones."""

    @abstractmethod
    def test_shapes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, Shape]:
        """Small shapes, by what each is for: several blocks and slices, ragged along each axis that has no multiple."""

    def patterns_at(self, shape: Shape, multiples: Mapping[str, int], variants: Variants) -> tuple[str, ...]:
        """The kinds of inputs that a test tries at a shape: all of them at the last of `test_shapes`, at others normal
        ones."""
        deepest = list(self.test_shapes(multiples, variants).values())[-1]
        return self.patterns if shape == deepest else self.patterns[:1]

    def wide_shapes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, Shape]:
        """Shapes with sizes beyond 16 bits, by what they are; seconds in the emulator."""
        return {}

    def far_inputs(
        self, multiples: Mapping[str, int], variants: Variants
    ) -> dict[str, tuple[tuple[Shape, Shape], ...]]:
        """Inputs so large that offsets leave 32 bits, or sizes what a grid's axes have, by what they are: of each the
        size, and that of its last part, which alone is not zeros. What the last parts make is the last part of the
        output, and the last block's."""
        return {}

    @abstractmethod
    def figure_shape(self, multiples: Mapping[str, int], variants: Variants) -> Shape:
        """A shape whose pictures are small: a few tiles along each axis of the output, a few slices along others."""

    @abstractmethod
    def shape(self, inputs: Sequence[Tensor], variants: Variants) -> Shape:
        """The shape that these inputs make. UserError if their dimensions do not fit together."""

    def check(self, shape: Shape, variants: Variants) -> None:
        """UserError if kernels with these macros cannot take the shape, whatever their multiples are."""

    def like(self, other: Problem, shape: Shape) -> Shape:
        """The shape of this problem that is the same computation as `shape` of another problem of its part."""
        return shape

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def inputs(
        self,
        shape: Shape,
        dtype: str,
        variants: Variants,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        pattern: str = "normal",
    ) -> Tensors:
        """Random inputs of one of the `patterns`: "normal" is random normal."""
        return self.draw(Request(shape, dtype, variants, seed, device, pattern))

    @abstractmethod
    def draw(self, request: Request) -> Tensors:
        """The inputs that `inputs` is asked for."""

    @abstractmethod
    def outputs(self, shape: Shape, dtype: str, variants: Variants, device: str | torch.device = "cpu") -> Tensors:
        """Uninitialised outputs for a kernel to fill."""

    def outputs_for(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        """The same for these inputs, whose layout may say how outputs lie."""
        return self.outputs(self.shape(inputs, variants), dtype, variants, inputs[0].device)

    @abstractmethod
    def scalars(self, shape: Shape, variants: Variants, tensors: Sequence[Tensor]) -> Mapping[str, int | float]:
        """The launcher's arguments between pointers and stream, in its order; `tensors` are inputs and outputs."""

    def check_layout(self, name: str, tensor: Tensor) -> None:
        """UserError if a kernel of this problem cannot take a tensor with these strides."""
        if not tensor.is_contiguous():
            raise UserError(f"{name} must be contiguous: pass {name}.contiguous()")

    def dtype(self, inputs: Sequence[Tensor]) -> torch.dtype:
        """The element type that the inputs have in common. UserError naming the one that differs."""
        for name, tensor in zip(self.input_names, inputs, strict=True):
            if tensor.dtype != inputs[0].dtype:
                first = self.input_names[0]
                raise UserError(f"{name} must have {first}'s dtype, {inputs[0].dtype}; got {tensor.dtype}")
        return inputs[0].dtype

    # ---- right and wrong ---------------------------------------------------------------------------------------------

    @abstractmethod
    def reference(self, inputs: Sequence[Tensor], variants: Variants) -> Tensors:
        """The outputs in fp64."""

    @abstractmethod
    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Variants) -> Tensors:
        """The outputs as torch computes them in `dtype` with fp32 accumulation: the yardstick for errors."""

    def tolerances(
        self, inputs: Sequence[Tensor], dtype: str, variants: Variants, references: Tensors
    ) -> tuple[Tolerance, ...]:
        """How far each output may be from its reference: no element further than twice the baseline's furthest, and the
        whole no further than `slack` times the baseline's distance.

        Rounding once is what the baseline does. Rounding every product as well makes the error of the whole 1.41 times
        as large, cutting bits off instead of rounding twice as large."""
        return self._near(references, self.baseline(inputs, dtype, variants))

    def _near(self, references: Tensors, baselines: Tensors) -> tuple[Tolerance, ...]:
        """These tolerances, of outputs that torch computes with those errors."""
        found = []
        for reference, baseline in zip(references, baselines, strict=True):
            off = (baseline.double() - reference).abs_()
            off = off[off.isfinite()]  # where the reference is not finite, the output has to equal it
            found.append(Tolerance(self.slack * off.norm().item(), 2 * off.max().item() if len(off) else 0.0))
        return tuple(found)

    def other_launches(
        self, inputs: Sequence[Tensor], variants: Variants
    ) -> dict[str, Mapping[str, Tensor | int | float | None]]:
        """Launches of these inputs in another way, for a check to try, too, by what they are: the launcher's arguments
        that differ. `extra_names` among them are judged like outputs."""
        return {}

    def wanted(
        self,
        inputs: Sequence[Tensor],
        dtype: str,
        variants: Variants,
        references: Tensors,
        tolerances: tuple[Tolerance, ...],
        changed: Mapping[str, Any],
    ) -> tuple[Tensors, tuple[Tolerance, ...]]:
        """References and tolerances of a launch with these arguments: the given ones if it computes the same."""
        return references, tolerances

    # ---- any launch --------------------------------------------------------------------------------------------------

    @abstractmethod
    def sizes(self, multiples: Mapping[str, int], variants: Variants) -> dict[str, tuple[int, ...]]:
        """Of each axis the sizes that a draw takes: one, ragged, whole; no more than some tiles."""

    def any_launch(
        self, choose: Choose, multiples: Mapping[str, int], dtype: str, variants: Variants, seed: int = 0
    ) -> Drawn:
        """A launch that kernels with these multiples take. All arguments of the launcher are drawn: a test holds each
        of them to several values."""
        shape = tuple(choose(axis, sizes) for axis, sizes in self.sizes(multiples, variants).items())
        inputs = self.inputs(shape, dtype, variants, seed=seed, pattern=choose("inputs", self.patterns))
        return Drawn(inputs, self.outputs_for(inputs, dtype, variants), {})

    def refused(self, arguments: Mapping[str, Any], variants: Variants) -> dict[str, Mapping[str, Any]]:
        """What a launcher has to refuse, by what it is: arguments that differ from these, which it takes."""
        found: dict[str, Mapping[str, Any]] = {}
        for name in (*self.input_names, *self.output_names(variants)):
            found[f"a null pointer for {name}"] = {name: None}
        for axis in self.axes:
            if axis in arguments:
                found |= {f"{axis} = {size}": {axis: size} for size in (0, -1)}
        return found

    # ---- time --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def peers(self, dtype: str, variants: Variants) -> dict[str, Callable[..., Tensor]]:
        """The library's implementations to compare with: name -> function of the inputs."""

    @abstractmethod
    def flops(self, shape: Shape, variants: Variants) -> int:
        """Floating-point operations of the computation, independent of the kernel."""

    @abstractmethod
    def bytes(self, shape: Shape, dtype: str, variants: Variants) -> int:
        """The fewest bytes possible: each input read once, each output written once."""


@lru_cache
def load(name: str) -> Problem:
    """The problem of that name."""
    problem: Problem = importlib.import_module(f"common.problems.{name}").problem
    return problem


def whole_number(text: str, what: str) -> int:
    """`text` as an int >= 1; UserError naming `what` otherwise."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise UserError(f"{what} must be a whole number >= 1, got '{text}'")
    return int(text)
