"""A stage of the course, and a kernel: one stage at one dtype, with one set of variants, from one source file.

What programs call, a kernel of kernels/library, is declared like a stage and has all that a stage has. Both are called
like a torch function: CUDA tensors run on the GPU, CPU tensors in the emulator. Nothing here imports torch until a
kernel runs, so that --help is quick.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common import terminal
from common.calls import Kind, Plan, Plans, Result, Values, check_grad, check_memory, check_places, check_tensors
from common.dtypes import PRECISIONS, torch_dtype
from cudaemu import cpp
from cudaemu.compiler.toolchain import read
from cudaemu.errors import UserError, pick
from cudaemu.hardware import Arch, model
from cudaemu.terminal import if_slow
from cudaemu.units import UNITS

if TYPE_CHECKING:
    from ctypes import CDLL
    from types import ModuleType

    import torch
    from torch import Tensor

    from common.gpu import Launcher
    from common.problem import Problem, Shape, Tensors
    from cudaemu import Report

SLOW = 5.0  # seconds
MAIN = "kernel.cu"  # the source of a stage; what its folder has besides may be in others
KERNELS = Path(__file__).resolve().parent.parent / "kernels"


class Macro(NamedTuple):
    """A macro that can be set from outside, as its source declares it."""

    default: str
    help: str


def macros(source: Path) -> dict[str, Macro]:
    """The macros of a source file: every `#ifndef NAME / #define NAME value  // help / #endif` in it."""
    return {name: Macro(*each) for name, each in cpp.guarded_macros(read(source)).items()}


@dataclass(frozen=True)
class Stage:
    """One step of the course: a directory with a kernel.cu, and what the harness must know about it."""

    package: str  # "kernels.NN_name"
    idea: str
    problem: str = "gemm"  # common.problems.<problem> says what is computed
    ladder: str = ""  # the stages that are compared with one another, by a name; default: the problem's
    follows: str = ""  # the stage, by name or number, that this one changes; default: the one before it in its ladder
    min_arch: str = "8.0"  # the least compute capability; "9.0a": that one alone, with its own instructions
    unit: str = "mma.sync"  # what multiplies, its measured rate is the ceiling: a name of cudaemu/units.py; with the
    # type of the operands, if that is not the dtype: "wgmma e4m3"
    dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32")
    variants: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # macro -> values that it may take
    multiples: Mapping[str, int | str] = field(default_factory=dict)  # axis -> its size is a multiple of this (macro)
    alignment: int = 1  # bytes that the first element of each tensor must be aligned to
    counters: tuple[str, ...] = ()  # the emulator's counters that this stage is about, the first above all
    counted_at: tuple[int, ...] = ()  # where `bench` counts a ladder that ends with this stage; default: the problem's
    together: tuple[str, ...] = ()  # variants that a test combines: several that say what is computed
    test_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # what else a check must visit, and why
    file: str = MAIN  # its source, in the directory
    besides: tuple[Stage, ...] = ()  # other kernels of the same folder, with launchers of their own: tested as well
    function: str = ""  # what programs call instead of the stage: kernels.<function>
    recorded_as: str = ""  # of the library's: the stage that it was, with these variants, when its runs were recorded
    _kernels: dict[Kind, tuple[Kernel, Launcher | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "ladder", self.ladder or self.problem)

    def __hash__(self) -> int:
        return hash(self.package)

    @property
    def name(self) -> str:
        return self.package.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The idea in a few words: what the package's docstring says after "Stage NN: "."""
        text = (sys.modules[self.package].__doc__ or "").partition(": ")[2]
        return text.strip().rstrip(".")

    @property
    def number(self) -> str:
        """The beginning of its name, "03" or "h1": stages are in the order of their names. A kernel of the library has
        no number, and its name in place of one."""
        return self.name if self.of_library else self.name.partition("_")[0]

    @property
    def of_library(self) -> bool:
        """Whether it is what programs call, a kernel of kernels/library, and no step of the course."""
        return self.package.startswith("kernels.library.")

    @cached_property
    def arch(self) -> Arch:
        """The least compute capability that the stage runs on; the only one if it is exact."""
        return Arch.of(self.min_arch)

    def target(self, gpu: str | Arch) -> Arch:
        """What the stage is compiled for, for a GPU of that compute capability. UserError if it does not run there."""
        here = Arch.of(gpu)
        if not self.arch.runs_on(here):
            raise UserError(f"{self.name} needs {self.needs}, got {here}")
        return self.arch if self.arch.exact else here

    @property
    def needs(self) -> str:
        """The GPUs that run the stage, in words."""
        return f"compute capability {self.arch}" + ("" if self.arch.exact else " or newer")

    @property
    def directory(self) -> Path:
        return KERNELS.joinpath(*self.package.split(".")[1:])

    @property
    def source(self) -> Path:
        return self.directory / self.file

    @property
    def symbol(self) -> str:
        """The launcher that every source of the stage exports, "launch_gemm"."""
        return f"launch_{self.problem}"

    @cached_property
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
        newer = [self.needs] if self.arch != Arch(8, 0) else []
        return "; ".join([", ".join(self.dtypes), *(rules or ["any size"]), *newer])

    @property
    def unfit(self) -> str | None:
        """Why this machine cannot run the stage on a GPU, or None if it can."""
        import torch

        from common import gpu

        here = gpu.capability()
        if here is None:
            return "No GPU"
        if not self.arch.runs_on(here):
            return f"{self.name} needs {self.needs}, and {torch.cuda.get_device_name()} has {here}"
        return None

    def announce(self) -> None:
        """Say, once, that the emulator runs the stage, and why."""
        terminal.announce(f"{self.unfit}: running in the emulator (all but the times is as on a GPU).")

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
            raise UserError(f"{source} must declare the macro DTYPE, as {self.source} does, to be compiled for {dtype}")
        label = self.name if source == self.source else str(source)
        for name, value in (variants or {}).items():
            pick(name, [name for name in self.variants if name in declared], "variant", label)
            if type(value) is not int or value not in self.variants[name]:
                allowed = ", ".join(map(str, self.variants[name]))
                raise UserError(f"{self.name}: {name} must be one of {allowed} ({declared[name].help}), got {value!r}")
        defaults = {n: _integer(source, n, declared[n].default) for n in self.variants if n in declared}
        return Kernel(self, dtype or self.dtypes[0], {**defaults, **(variants or {})}, defaults, source)

    def kernels(
        self,
        dtypes: Sequence[str] | None = None,
        source: Path | None = None,
        fixed: Mapping[str, int] | None = None,
    ) -> list[Kernel]:
        """The kernels that a complete test visits: each dtype by default, each other value of each variant in turn; in
        the first dtype also several other values of those in `together`.

        Variants in `fixed` keep that value in all of them."""
        source = Path(source) if source else self.source
        chosen: list[Kernel] = []
        for dtype in dtypes or (self.dtypes if "DTYPE" in macros(source) else self.dtypes[:1]):
            default = self.kernel(dtype, fixed, source)
            values = {name: self.variants[name] for name in default.variants if name not in (fixed or {})}
            others = [{name: value} for name in values for value in values[name] if value != default.variants[name]]
            names = [] if chosen else [name for name in self.together if name in values]
            for each in itertools.product(*(values[name] for name in names)):
                changed = {name: value for name, value in zip(names, each) if value != default.variants[name]}
                others += [changed] if len(changed) > 1 else []
            chosen += [default, *(self.kernel(dtype, {**(fixed or {}), **changed}, source) for changed in others)]
        return chosen

    @cached_property
    def chooser(self) -> ModuleType | None:
        """What the stage chooses for its launches: choices.py of its package, with `choose` and `others`; most have
        none."""
        there = (self.directory / "choices.py").exists()
        return importlib.import_module(f"{self.package}.choices") if there else None

    def __call__(self, *inputs: Tensor, **variants: int) -> Tensor | Tensors:
        """Run the stage: on CUDA tensors on the current stream of their GPU, on CPU tensors in the emulator.

        Returns a new tensor, or a tuple of them if the problem has several outputs. The kernel is built at the first
        call. UserError for tensors that the stage cannot take. torch.compile leaves the call out of its graphs."""
        values = (tuple(variants), *variants.values()) if variants else ()
        outputs = self.call(self._calls, inputs, values)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @cached_property
    def _calls(self) -> Plans[Sequence[Tensor]]:
        return Plans(self.prepare, self.alignment)

    @cached_property
    def _torch_private(self) -> ModuleType:
        from common import torch_private

        return torch_private

    def call(self, calls: Plans[Result], inputs: Sequence[Tensor], values: Values = ()) -> Result:
        """Call a function that takes what this stage takes, where a stage may be called: outside the graphs of
        torch.compile, outside dispatch modes (UserError), without grad (UserError)."""
        private = self._torch_private
        if private.is_compiling():
            result: Result = private.outside_graphs(self.call, calls, inputs, values)
            return result
        if private.known_modes():
            raise UserError(
                f"{self.name} is not a torch operator: it must be called outside make_fx, fake tensors and other modes"
            )
        for each in inputs:
            if private.dual_level() >= 0 or getattr(each, "requires_grad", False) and _grad_enabled():
                self.check_tensors(inputs)
        return calls.call(inputs, values)

    def prepare(self, inputs: Sequence[Tensor], values: Values = ()) -> Plan[Sequence[Tensor]]:
        """The plan of a call with such inputs; `values`, if any, are the names of variants and then their values.

        UserError for tensors, variants or a shape that the stage cannot take."""
        self.check_tensors(inputs)
        names, *numbers = values or ((),)
        dtype = self.torch_dtypes[self.spec.dtype(inputs)]
        device, variants = inputs[0].device, {**self.spec.implied(inputs), **dict(zip(names, numbers))}
        key = (dtype, device, *variants.items(), *map(type, variants.values()))
        try:
            kernel, launcher = self._kernels[key]
        except (KeyError, TypeError):
            kernel = self.kernel(dtype, variants)
            launcher = kernel.launcher(device) if device.type == "cuda" and self.unfit is None else None
            self._kernels[key] = kernel, launcher
        shape = self.spec.shape(inputs, kernel.variants)
        kernel.check_shape(*shape)
        if any(each.is_neg() for each in inputs):
            return lambda inputs, _: self._calls.call([each.resolve_neg() for each in inputs], values)
        outputs = self.spec.outputs(shape, dtype, kernel.variants, "meta")
        return Prepared(kernel, launcher, device, shape, inputs, outputs)

    @property
    def torch_dtypes(self) -> dict[torch.dtype, str]:
        """The dtypes of the tensors that the stage takes, and what it computes such in: of several, its first."""
        found: dict[torch.dtype, str] = {}
        for dtype in self.dtypes:
            found.setdefault(torch_dtype(dtype), dtype)
        return found

    def check_tensors(self, inputs: Sequence[Tensor]) -> None:
        """UserError if the number, dtype, device, layout or alignment of the inputs is not what the stage takes."""
        spec = self.spec
        if len(inputs) != len(spec.input_names):
            raise UserError(
                f"{self.name} takes {len(spec.input_names)} tensors ({', '.join(spec.input_names)}), got {len(inputs)}"
            )
        tensors = dict(zip(spec.input_names, inputs))
        check_tensors(self.name, tensors)
        check_places(self.name, tensors, ("cpu", "cuda"))
        check_memory(self.name, tensors)
        check_grad(self.name, tensors)
        for name, tensor in tensors.items():
            spec.check_layout(name, tensor)
            if tensor.data_ptr() % self.alignment:
                raise UserError(
                    f"{self.name}: {name} must start at an address that is a multiple of {self.alignment}: "
                    f"pass {name}.clone()"
                )
        if spec.dtype(inputs) not in self.torch_dtypes:
            names = ", ".join(map(str, self.torch_dtypes))
            raise UserError(f"{self.name}: the tensors' dtype must be one of {names}; got {spec.dtype(inputs)}")


class Prepared:
    """A kernel with all that a call of one kind (dtypes, shapes, strides, device) needs: what follows from the kind is
    worked out once, and a call allocates and launches."""

    def __init__(
        self,
        kernel: Kernel,
        launcher: Launcher | None,
        device: torch.device,
        shape: Shape,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        extra: Sequence[Tensor | None] = (),
        changed: Mapping[str, int | float] | None = None,
    ):
        """`inputs` and `outputs` are tensors like those of a call, on any device; `extra` are like the problem's
        `extra_names`, None for those that are not wanted. `changed` has numbers of the launcher that differ from the
        problem's. Without a launcher the emulator runs the kernel."""
        spec = kernel.stage.spec
        self.kernel, self.device, self.changed = kernel, device, dict(changed or {})
        self.outputs, self.extra = outputs, dict(zip(spec.extra_names, extra))
        self.launch: Callable[..., Sequence[Tensor]] | None = None
        if launcher is not None:
            chosen = kernel.choices(shape, device)
            numbers = {**spec.scalars(shape, chosen, (*inputs, *outputs)), **self.changed}
            scratch = spec.scratch(shape, chosen, "meta")[len(extra) :]
            self.launch = launcher.bind(device, list(numbers.values()), (*outputs, *extra), scratch)

    def __call__(self, inputs: Sequence[Tensor], addresses: Sequence[int]) -> Sequence[Tensor]:
        """New outputs, and those of `extra` that are wanted; `addresses` are those of the inputs."""
        return self._emulate(inputs) if self.launch is None else self.launch(*addresses)

    def _emulate(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.device.type != "cpu":
            self.kernel.stage.announce()
        outputs = [_on_cpu(like) for like in self.outputs]
        extra = {name: _on_cpu(like) for name, like in self.extra.items() if like is not None}
        self.kernel.emulate_call([tensor.cpu() for tensor in inputs], outputs, {**self.changed, **extra})
        return [each.to(self.device) for each in (*outputs, *extra.values())]


def _grad_enabled() -> bool:
    import torch

    return torch.is_grad_enabled()


def _on_cpu(like: Tensor) -> Tensor:
    """An uninitialised tensor on the CPU, of that size, strides and dtype."""
    import torch

    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")


@dataclass(frozen=True, eq=False)
class Kernel:
    """One stage at one dtype, with one set of variants, from one source file. `Stage.kernel` makes them."""

    stage: Stage
    dtype: str
    variants: Mapping[str, int]  # every macro of the stage that the source declares
    defaults: Mapping[str, int]  # their values in the source
    source: Path
    trial: str = ""  # "trials/NAME.patch", if that made the source of the stage's own

    @property
    def origin(self) -> str | None:
        """What names a source that is not the stage's own: a trial's patch, in the stage's folder, or the file."""
        return None if self.source == self.stage.source else self.trial or str(self.source)

    @property
    def changed(self) -> dict[str, int]:
        """The variants that differ from the source's defaults."""
        return {name: value for name, value in self.variants.items() if value != self.defaults[name]}

    @property
    def settings(self) -> dict[str, int]:
        """The variants that say what is computed, not how."""
        return {name: value for name, value in self.variants.items() if name in self.stage.spec.settings}

    @property
    def default(self) -> bool:
        """Whether the kernel computes as the source's defaults have it, whatever it computes."""
        return not set(self.changed) - set(self.stage.spec.settings)

    @property
    def ceiling(self) -> str:
        """The measured rate that bounds it, as common/measure/ceiling.py names it: "mma.sync fp16", "FMA fp32"."""
        unit, _, operands = self.stage.unit.partition(" ")
        return UNITS[unit].ceiling(operands or self.dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch_dtype(self.dtype)

    @property
    def defines(self) -> dict[str, str]:
        """The macros as the compiler's -D takes them."""
        return {"DTYPE": PRECISIONS[self.dtype].cpp, **{name: str(value) for name, value in self.variants.items()}}

    @property
    def label(self) -> str:
        """In words, "NN_name fp16 MACRO=0": with variants that are not the default, and the file if it is not ours, or
        not kernel.cu."""
        name = self.stage.name if self.stage.file == MAIN else f"{self.stage.name}/{self.stage.file}"
        return " ".join([name, self.short, *([f"({self.origin})"] if self.origin else [])])

    @property
    def short(self) -> str:
        """What distinguishes it from others of its stage and source, "fp16 COALESCED=0"."""
        return " ".join([self.dtype, *(f"{name}={value}" for name, value in self.changed.items())])

    @cached_property
    def multiples(self) -> dict[str, int]:
        """axis -> what its size must be a multiple of, for the axes that are not free."""
        return {axis: m if isinstance(m, int) else self._macro(m) for axis, m in self.stage.multiples.items()}

    def _macro(self, name: str) -> int:
        if name in self.variants:
            return self.variants[name]
        return _integer(self.stage.source, name, macros(self.stage.source)[name].default)

    @cached_property
    def _rules(self) -> tuple[int, ...]:
        return tuple(self.multiples.get(axis, 1) for axis in self.stage.spec.axes)

    @cached_property
    def _all_variants(self) -> dict[str, int]:
        """Every variant of the stage; those that a reader's source does not declare as our own has them."""
        if len(self.variants) == len(self.stage.variants):
            return dict(self.variants)
        return {**self.stage.kernel(self.dtype).variants, **self.variants}

    def check_shape(self, *shape: int) -> None:
        """UserError with the rule and the nearest sizes that work, if this kernel cannot take the shape."""
        for size, multiple in zip(shape, self._rules, strict=True):
            if size < 1 or size % multiple:
                break
        else:
            self.stage.spec.check(shape, self.variants)
            return
        broken = []
        for axis, size, multiple in zip(self.stage.spec.axes, shape, self._rules):
            below, above = size // multiple * multiple, -(-size // multiple) * multiple
            if size < 1:
                broken.append(f"{axis} must be at least 1, got {size}")
            elif size % multiple:
                nearest = f"{below} and {above} are" if below else f"{above} is"
                broken.append(f"{axis} must be a multiple of {multiple}, got {size} ({nearest} nearest)")
        raise UserError(f"{self.stage.name}: {'; '.join(broken)}")

    def test_shapes(self) -> dict[str, Shape]:
        """Small shapes that this kernel takes, by what each is for: the problem's, and those that the stage adds."""
        asked = {why: shape for why, shape in self.stage.test_shapes.items() if self._takes(shape)}
        return {**self.stage.spec.test_shapes(self.multiples, self.variants), **asked}

    def _takes(self, shape: Shape) -> bool:
        try:
            self.stage.spec.check(shape, self.variants)
        except UserError:
            return False
        return all(size % multiple == 0 for size, multiple in zip(shape, self._rules, strict=True))

    def arguments(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], changed: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The launcher's arguments, {name: tensor, None or number} in its order, without the stream.

        `changed` has other values for some of them than the problem gives."""
        spec = self.stage.spec
        shape = spec.shape(inputs, self.variants)
        chosen = self.choices(shape, inputs[0].device)
        scratch = spec.scratch(shape, chosen, inputs[0].device)
        tensors = zip(spec.tensor_names(self.variants), [*inputs, *outputs, *scratch], strict=True)
        return {**dict(tensors), **spec.scalars(shape, chosen, (*inputs, *outputs)), **(changed or {})}

    def choices(self, shape: Shape, device: torch.device) -> dict[str, int]:
        """The variants, and what a launch of that shape chooses on that device: {"splits": 2}."""
        chooser = self.stage.chooser
        return {
            **self.variants,
            **(chooser.choose(shape, self._all_variants, self._multiprocessors(device)) if chooser else {}),
        }

    def other_launches(self, inputs: Sequence[Tensor]) -> dict[str, Mapping[str, Any]]:
        """Launches that compute the same of these inputs in another way, for a check to try, too: the problem's, the
        stage's and both, by what they are, as `changed` of `arguments`."""
        spec, chooser, device = self.stage.spec, self.stage.chooser, inputs[0].device
        shape = spec.shape(inputs, self.variants)
        found = dict(spec.other_launches(inputs, self.variants))
        others = chooser.others(shape, self._all_variants, self._multiprocessors(device)) if chooser else {}
        for what, chosen in others.items():
            scratch = zip(spec.scratch_names, spec.scratch(shape, {**self.variants, **chosen}, device))
            changed = {**chosen, **{name: each for name, each in scratch if name not in spec.extra_names}}
            found[what] = changed
            for also, more in spec.other_launches(inputs, self.variants).items():
                found[f"{what}, {also}"] = {**changed, **more}
        return found

    def _multiprocessors(self, device: torch.device) -> int:
        """How many the GPU has; on the CPU, the GPU that the emulator stands in for."""
        from common import gpu

        return gpu.multiprocessors(device) if device.type == "cuda" else model(self.stage.arch).sms

    # ---- on a GPU ----------------------------------------------------------------------------------------------------

    def load(self, device: Any = None) -> CDLL:
        """The shared object, built for the GPU `device` (default: the current one) unless that was done before."""
        from common import gpu

        here = gpu.capability(device)
        arch = self.stage.target(here) if here else self.stage.arch
        return gpu.load(self.source, self.defines, arch, self.label, self.stage.symbol)

    def launcher(self, device: Any = None) -> Launcher:
        """Its launcher, built for the GPU `device` (default: the current one) unless that was done before."""
        from common import gpu

        return gpu.Launcher(self.load(device), self.source, self.stage.symbol, self.label)

    def bind(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], changed: Mapping[str, Any] | None = None
    ) -> Callable[[], None]:
        """Build the kernel and tie it to CUDA tensors: each call of the result launches it on torch's current stream.

        `changed` are arguments of the launcher as `arguments` takes them. A call does not wait for the kernel.
        UserError if the source does not build, or if a launch is refused."""
        device = inputs[0].device
        arguments = self.arguments(
            inputs, outputs, changed
        )  # its tensors live as long as the closure: so do their addresses
        count = len(self.stage.spec.tensor_names(self.variants))
        addresses = [0 if each is None else each.data_ptr() for each in list(arguments.values())[:count]]
        launch = self.launcher(device).bind(device, list(arguments.values())[count:])

        def call(kept: object = arguments) -> None:
            launch(*addresses)

        return call

    # ---- in the emulator ---------------------------------------------------------------------------------------------

    def emulate(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        *,
        changed: Mapping[str, Any] | None = None,
        again: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]] = (),
        repeat: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
        in_place: bool = False,
        refused_is_error: bool = True,
        **options: Any,
    ) -> Report:
        """Run in the emulator on CPU tensors; `changed` are arguments of the launcher as `arguments` takes them, and
        `options` fields of cudaemu.Options. `again`: inputs and outputs of further launches in the same process;
        `repeat`: of the last one, once more without the host code.
        `in_place`: tensors, which have to be contiguous, are used where they are, and nobody copies them.

        What the sanitizer finds is in the report. UserError if the source does not compile, and, `refused_is_error`, if
        the launch is refused."""
        spec = self.stage.spec
        arguments, *more = (self._passed(*each, changed) for each in ((inputs, outputs), *again))
        given: dict[str, Tensor] = {}
        for each in (arguments, *more) if in_place else ():
            here = {name: tensor for name, tensor in each.items() if hasattr(tensor, "data_ptr")}
            for name, tensor in here.items():  # of several at one address the largest
                before = next((one for one, two in given.items() if two.data_ptr() == tensor.data_ptr()), None)
                if before is None:
                    given[name if name not in given else f"{name} of a later call"] = tensor
                elif given[before].nbytes < tensor.nbytes:
                    given[before] = tensor
            each |= {name: tensor.data_ptr().to_bytes(8, "little") for name, tensor in here.items()}
        arch = Arch.of(options.get("arch") or self.stage.arch)
        with terminal.progress(f"emulating {self.label}", total=1) as update:
            report = self.call_launcher(
                arguments,
                again=[list(each.values()) for each in more],
                repeat=None if repeat is None else list(self._passed(*repeat, changed).values()),
                memory=given,
                outputs=[
                    *spec.output_names(self.variants),
                    *(n for n in spec.scratch_names if n not in spec.given_names),
                ],
                **{
                    "arch": arch,
                    "compiled_for": self.stage.target(arch),
                    "progress": lambda done, total: update(completed=done, total=total),
                    **options,
                },
            )
        if refused_is_error and report.status and not report.findings:
            raise UserError(f"{self.label}: CUDA error {report.status}: {report.error}")
        return report

    def emulate_call(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], changed: Mapping[str, Any]) -> None:
        """Emulate a call of a function, whose caller may not know why it takes so long: after some seconds that is said
        on stderr. CheckFailed for a finding."""
        slow = f"{self.label} runs in the emulator: a first call compiles it, and even small tensors take seconds"
        with if_slow(slow, after=SLOW):
            self.emulate(inputs, outputs, changed=changed).raise_if_findings()

    def _passed(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], changed: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """All arguments as the emulator takes them, by name."""
        arguments = self.arguments(inputs, outputs, changed)
        return {**{name: _stretch(argument) for name, argument in arguments.items()}, "stream": None}

    def prepare(self, arch: str | Arch) -> None:
        """Compile what the emulator needs of it, for that compute capability."""
        import cudaemu

        cudaemu.prepare(self.source, self.stage.symbol, defines=self.defines, arch=arch)

    def call_launcher(self, arguments: Mapping[str, Any], **options: Any) -> Report:
        """Run the launcher in the emulator with all its arguments, by name; `options` are others of cudaemu.run."""
        import cudaemu

        names, values = list(arguments), list(arguments.values())
        return cudaemu.run(self.source, self.stage.symbol, values, names=names, defines=self.defines, **options)

    def executable_lines(self) -> frozenset[int]:
        """The lines of the source that have code in this kernel, as the emulator compiles it."""
        import cudaemu

        arch, symbol = self.stage.arch, self.stage.symbol
        found = cudaemu.executable_lines(self.source, symbol=symbol, arch=arch, defines=self.defines)
        return frozenset().union(*found.values())


def _stretch(argument: Any) -> Any:
    """The one-dimensional stretch of memory that holds a tensor with gaps or with rows in another order."""
    if not hasattr(argument, "data_ptr") or argument.is_contiguous():
        return argument
    length = 1 + sum((size - 1) * stride for size, stride in zip(argument.shape, argument.stride()))
    return argument.as_strided((length,), (1,))


def _integer(source: Path, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{source}: the default of {name} must be a whole number, got '{text}'") from None
