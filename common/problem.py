"""What a family of stages computes, as the harness sees it.

Stages name their problem ("gemm"); the module common.<name> holds the one object, `problem`, that answers all questions
which depend on what is computed. Loader, check, benchmark, counters and figures ask here and know no formula.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.errors import UserError

if TYPE_CHECKING:
    from common.stage import Stage

Shape = tuple[int, ...]
Tensors = tuple[Tensor, ...]

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "tf32": torch.float32}


class Problem(ABC):
    """One computation: its sizes, tensors, reference and yardsticks.

    A *shape* is a tuple of ints in the order of `axes`. `variants` are the macros of the kernel at hand (a causal mask,
    a transposed operand): a problem looks at those that change what is computed and ignores the others. Inputs, outputs
    and references are tuples of tensors in the order of `input_names` and `output_names`.
    """

    name: str
    formula: str
    symbol: str  # the launcher that every kernel of this problem exports
    axes: tuple[str, ...]
    inner_axes: tuple[str, ...]  # axes that are summed over: no output has them
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    output_axes: tuple[tuple[str, ...], ...]  # what the indices of each output are called
    mosaic: str | None = None  # how figures arrange the tensors: ".B;AC" is B above C, A to its left; None: side by side
    bench_shapes: tuple[Shape, ...]  # large enough to fill a GPU
    emulator_shapes: tuple[Shape, ...]  # several blocks, taken by every stage, seconds in the emulator

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the launcher's pointers, in its order."""
        return self.input_names + self.output_names

    @abstractmethod
    def parse(self, text: str) -> Shape:
        """The shape that `--sizes TEXT` means. UserError if it means none."""

    def format(self, shape: Shape) -> str:
        """The shape as a person writes it, and `parse` reads it."""
        return "x".join(map(str, shape))

    @abstractmethod
    def test_shapes(self, multiples: Mapping[str, int]) -> tuple[Shape, ...]:
        """Small shapes of several blocks and several inner slices, ragged along each axis that has no multiple."""

    @abstractmethod
    def shape(self, inputs: Sequence[Tensor], variants: Mapping[str, int]) -> Shape:
        """The shape that these inputs make. UserError if their dimensions do not fit together."""

    @abstractmethod
    def inputs(
        self, shape: Shape, dtype: str, *, seed: int = 0, device: str = "cpu", variants: Mapping[str, int] = {}
    ) -> Tensors:
        """Random normal inputs."""

    @abstractmethod
    def outputs(
        self, shape: Shape, dtype: str, *, device: str | torch.device = "cpu", variants: Mapping[str, int] = {}
    ) -> Tensors:
        """Outputs filled with NaN: what a kernel leaves unwritten stays visible."""

    @abstractmethod
    def scalars(self, shape: Shape, variants: Mapping[str, int]) -> Mapping[str, int | float]:
        """The launcher's arguments between the pointers and the stream, in its order."""

    @abstractmethod
    def reference(self, inputs: Sequence[Tensor], variants: Mapping[str, int]) -> Tensors:
        """The outputs in fp64."""

    @abstractmethod
    def baseline(self, inputs: Sequence[Tensor], dtype: str, variants: Mapping[str, int]) -> Tensors:
        """The outputs as torch computes them in `dtype` with fp32 accumulation: the yardstick for errors."""

    @abstractmethod
    def magnitude(self, inputs: Sequence[Tensor], variants: Mapping[str, int]) -> Tensors:
        """Per output element, the sum of the absolute values that it adds up, in fp64."""

    @abstractmethod
    def terms(self, shape: Shape) -> int:
        """How many products one output element adds up."""

    @abstractmethod
    def peers(self, dtype: str, variants: Mapping[str, int]) -> dict[str, Callable[..., Tensor]]:
        """The library's implementations to compare with: name -> function of the inputs."""

    @abstractmethod
    def flops(self, shape: Shape, variants: Mapping[str, int]) -> int:
        """Floating-point operations of the computation, however a kernel does it."""

    @abstractmethod
    def bytes(self, shape: Shape, dtype: str, variants: Mapping[str, int]) -> int:
        """The least that can be moved: each input read once, each output written once."""


@lru_cache
def load(name: str) -> Problem:
    """The problem of that name."""
    return importlib.import_module(f"common.{name}").problem


def check_tensors(stage: Stage, inputs: Sequence[Tensor]) -> str:
    """The dtype, by the stage's name for it, of inputs that a stage is called with.

    UserError if their number, dtype, device, layout or alignment is not what the stage takes."""
    spec = stage.spec
    if len(inputs) != len(spec.input_names):
        raise UserError(f"{stage.name} takes {len(spec.input_names)} tensors ({', '.join(spec.input_names)})")
    first = inputs[0]
    for name, tensor in zip(spec.input_names, inputs):
        if not isinstance(tensor, Tensor):
            raise UserError(f"{stage.name}: {name} is a torch tensor, not {type(tensor).__name__}")
        if tensor.dtype != first.dtype or tensor.device != first.device:
            raise UserError(
                f"{stage.name} takes tensors of one dtype on one device: {spec.input_names[0]} is {first.dtype} on "
                f"{first.device}, {name} is {tensor.dtype} on {tensor.device}"
            )
        if tensor.device.type not in ("cpu", "cuda"):
            raise UserError(f"{stage.name} takes CUDA or CPU tensors, not {tensor.device.type}")
        if not tensor.is_contiguous():
            raise UserError(f"{stage.name} takes contiguous tensors: pass {name}.contiguous()")
        if tensor.data_ptr() % stage.alignment:
            raise UserError(
                f"{stage.name} reads {stage.alignment} bytes at a time: {name} starts at an address that is no "
                f"multiple of {stage.alignment}; pass {name}.clone()"
            )
    dtypes = {TORCH_DTYPES[dtype]: dtype for dtype in reversed(stage.dtypes)}
    if first.dtype not in dtypes:
        raise UserError(f"{stage.name} takes {', '.join(map(str, reversed(dtypes)))}, not {first.dtype}")
    return dtypes[first.dtype]


def whole(text: str, what: str) -> int:
    """`text` as an int >= 1; UserError naming `what` otherwise."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise UserError(f"{what} is a whole number >= 1, not '{text}'")
    return int(text)
