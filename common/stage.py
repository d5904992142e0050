"""A stage of the course, and a kernel: one stage at one dtype, with one set of variants, from one source file.

Nothing here imports torch until a kernel runs, so that --help is quick.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from common.emulator import Report
    from common.problem import Problem

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
CPP_TYPES = {"fp16": "half", "bf16": "__nv_bfloat16", "fp32": "float", "tf32": "float"}


class Macro(NamedTuple):
    """A macro that can be set from outside, as its source declares it."""

    default: str
    help: str


def macros(source: Path) -> dict[str, Macro]:
    """The macros of a source file: every `#ifndef NAME / #define NAME value  // help / #endif` in it."""
    declaration = re.compile(r"^#ifndef (\w+)\n#define \1 +(\S+)(?: +// *(.*))?\n#endif", re.MULTILINE)
    return {name: Macro(value, text or "") for name, value, text in declaration.findall(read(source))}


def read(source: Path) -> str:
    """The text of a source file; UserError if it cannot be read."""
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read {source}: {reason}") from error


def pick(text: str, names: Sequence[str], what: str, owner: str) -> str:
    """`text` if it is one of `names`; otherwise a UserError that lists them, and the likeliest."""
    if text in names:
        return text
    likely = difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{likely[0]}'?" if likely else ""
    raise UserError(f"{owner} has no {what} '{text}'.{hint} It has: {', '.join(names) or 'none'}")


@dataclass(frozen=True)
class Stage:
    """One step of the course: a directory with a kernel.cu, and what the harness must know about it."""

    package: str  # "kernels.03_thread_tile"
    title: str
    idea: str
    problem: str = "gemm"  # common.<problem> says what is computed
    min_arch: int = 80  # compute capability × 10
    dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32")
    variants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # macro -> values that it may take
    multiples: Mapping[str, int | str] = field(default_factory=dict)  # axis -> its size is a multiple of this (macro)
    alignment: int = 1  # bytes that the first element of each tensor must be aligned to
    counters: tuple[str, ...] = ()  # the emulator's counters that this stage is about

    @property
    def name(self) -> str:
        return self.package.rpartition(".")[2]

    @property
    def number(self) -> int:
        return int(self.name.partition("_")[0])

    @property
    def directory(self) -> Path:
        return KERNELS / self.name

    @property
    def source(self) -> Path:
        return self.directory / "kernel.cu"

    @property
    def previous(self) -> Stage | None:
        """The stage before this one, if it computes the same problem."""
        from kernels import ladder

        before = [stage for stage in ladder() if stage.number < self.number]
        return before[-1] if before and before[-1].problem == self.problem else None

    @property
    def spec(self) -> Problem:
        """What this stage computes: the Problem that `problem` names."""
        from common import problem

        return problem.load(self.problem)

    @property
    def limits(self) -> str:
        """What the stage takes, in a line: "fp16, bf16; M and N multiples of 128"."""
        alike = {rule: [axis for axis, m in self.multiples.items() if m == rule] for rule in self.multiples.values()}
        rules = [
            f"{' and '.join(axes)} multiples of {m}" if len(axes) > 1 else f"{axes[0]} a multiple of {m}"
            for m, axes in alike.items()
        ]
        newer = [f"compute capability {self.min_arch / 10:.1f} or newer"] if self.min_arch > 80 else []
        return "; ".join([", ".join(self.dtypes), *(rules or ["any size"]), *newer])

    def kernel(
        self, dtype: str | None = None, variants: Mapping[str, int] | None = None, source: Path | None = None
    ) -> Kernel:
        """One kernel of this stage; macros that are not given keep the default that the source declares.

        UserError for a dtype, variant or value that the stage does not have, or a source that cannot be read."""
        source = Path(source) if source else self.source
        declared = macros(source)
        if dtype is not None:
            pick(dtype, self.dtypes, "dtype", self.name)
        if "DTYPE" not in declared and dtype not in (None, self.dtypes[0]):
            raise UserError(f"{source} has no macro DTYPE to set to {dtype}; declare it as {self.source} does")
        label = self.name if source == self.source else str(source)
        for name, value in (variants or {}).items():
            pick(name, [name for name in self.variants if name in declared], "variant", label)
            if value not in self.variants[name]:
                allowed = ", ".join(map(str, self.variants[name]))
                raise UserError(f"{name}={value}: {self.name} takes {name} = {allowed} ({declared[name].help})")
        resolved = {}
        for name in self.variants:
            if name in declared:
                resolved[name] = (variants or {}).get(name, _integer(source, name, declared[name].default))
        return Kernel(self, dtype or self.dtypes[0], resolved, source)

    def kernels(self, dtypes: Sequence[str] | None = None, source: Path | None = None) -> list[Kernel]:
        """The kernels that a complete test visits: each dtype by default, each other value of each variant in turn."""
        source = Path(source) if source else self.source
        declared = macros(source)
        chosen = []
        for dtype in dtypes or (self.dtypes if "DTYPE" in declared else self.dtypes[:1]):
            default = self.kernel(dtype, source=source)
            others = [
                self.kernel(dtype, {name: value}, source)
                for name, values in self.variants.items()
                for value in values
                if name in declared and value != default.variants[name]
            ]
            chosen += [default, *others]
        return chosen

    def __call__(self, *inputs: Tensor, **variants: int) -> Tensor | tuple[Tensor, ...]:
        """Run the stage: on CUDA tensors on the current stream of their GPU, on CPU tensors in the emulator.

        Returns a new tensor, or a tuple of them if the problem has several outputs. UserError for tensors that the
        stage cannot take."""
        from common import gpu, problem

        dtype = problem.check_tensors(self, inputs)
        kernel = self.kernel(dtype, variants)
        shape = self.spec.shape(inputs, kernel.variants)
        kernel.check_shape(*shape)
        outputs = self.spec.outputs(shape, dtype, device=inputs[0].device, variants=kernel.variants)
        if inputs[0].is_cuda and gpu.unfit(self) is None:
            kernel.launch(inputs, outputs)
        elif inputs[0].is_cuda:
            gpu.announce(self)
            on_cpu = tuple(output.cpu() for output in outputs)
            kernel.emulate([tensor.cpu() for tensor in inputs], on_cpu).raise_if_findings()
            for output, result in zip(outputs, on_cpu):
                output.copy_(result)
        else:
            kernel.emulate(inputs, outputs).raise_if_findings()
        return outputs[0] if len(outputs) == 1 else outputs


@dataclass(frozen=True, eq=False)
class Kernel:
    """One stage at one dtype, with one set of variants, from one source file. `Stage.kernel` makes them."""

    stage: Stage
    dtype: str
    variants: Mapping[str, int]  # every macro of the stage that the source declares, defaults included
    source: Path

    @cached_property
    def changed(self) -> dict[str, int]:
        """The variants that differ from the source's defaults."""
        return {name: v for name, v in self.variants.items() if str(v) != macros(self.source)[name].default}

    @property
    def defines(self) -> dict[str, str]:
        """The macros as the compiler's -D takes them."""
        return {"DTYPE": CPP_TYPES[self.dtype], **{name: str(value) for name, value in self.variants.items()}}

    @property
    def label(self) -> str:
        """In words, "01_naive fp16 COALESCED=0": with the variants that are not the default, and the file if not ours."""
        words = [self.stage.name, self.dtype, *(f"{name}={value}" for name, value in self.changed.items())]
        return " ".join(words if self.source == self.stage.source else [*words, f"({self.source})"])

    @property
    def multiples(self) -> dict[str, int]:
        """axis -> what its size must be a multiple of, for the axes that are not free."""
        return {axis: m if isinstance(m, int) else self._macro(m) for axis, m in self.stage.multiples.items()}

    def _macro(self, name: str) -> int:
        if name in self.variants:
            return self.variants[name]
        return _integer(self.stage.source, name, macros(self.stage.source)[name].default)

    def check_shape(self, *shape: int) -> None:
        """UserError with the rule and the nearest sizes that work, if this kernel cannot take the shape."""
        broken = []
        for axis, size in zip(self.stage.spec.axes, shape, strict=True):
            multiple = self.multiples.get(axis, 1)
            below, above = size // multiple * multiple, -(-size // multiple) * multiple
            if size < 1:
                broken.append(f"{axis} >= 1, not {size}")
            elif size % multiple:
                nearest = f"are {below} and {above}" if below else f"is {above}"
                broken.append(f"{axis} a multiple of {multiple}: nearest to {size} {nearest}")
        if broken:
            raise UserError(f"{self.stage.name} needs {'; '.join(broken)}")

    def test_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Small shapes that this kernel takes: several blocks, several slices, ragged where it may be."""
        return self.stage.spec.test_shapes(self.multiples)

    def arguments(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[dict[str, Any], str]:
        """The launcher's arguments, {name: tensor or number} in its order without the stream, and its symbol."""
        spec = self.stage.spec
        scalars = spec.scalars(spec.shape(inputs, self.variants), self.variants)
        return {**dict(zip(spec.tensor_names, [*inputs, *outputs], strict=True)), **scalars}, spec.symbol

    def launch(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Run on the GPU that holds the tensors, on torch's current stream, without waiting for the end."""
        from common import gpu

        gpu.bind(self, inputs, outputs)()

    def emulate(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], **options: Any) -> Report:
        """Run in the emulator on CPU tensors; `options` are those of emulator.run.

        UserError if the source does not compile or the launch is refused. What the sanitizer finds is in the report."""
        from common import emulator, terminal

        arguments, symbol = self.arguments(inputs, outputs)
        with terminal.progress(f"emulating {self.label}", total=1) as update:
            report = emulator.run(
                self.source,
                symbol,
                [*arguments.values(), None],
                names=[*arguments, "stream"],
                defines=self.defines,
                outputs=self.stage.spec.output_names,
                **{
                    "arch": self.stage.min_arch,
                    "progress": lambda done, total: update(completed=done, total=total),
                    **options,
                },
            )
        if report.status and not report.findings:
            raise UserError(f"{self.label}: CUDA error {report.status}: {report.error}")
        return report


def _integer(source: Path, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{source}: the default of {name} is a whole number in other stages, not '{text}'") from None
