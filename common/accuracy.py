"""When is a result right? An instance of a problem, with what its outputs must be, and how far a kernel's are off.

References and tolerances are computed before a kernel runs, from inputs of which copies are kept: a kernel that writes
to its inputs changes neither, and is reported.

An output is right if it is finite wherever its fp64 reference is within the range of the dtype, and its error, over the
whole tensor and at its worst element, is within the problem's tolerances: those compare with the error that torch makes
in the same dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch

from common import terminal
from common.problem import Problem, Shape, Tensors, Tolerance, Variants
from cudaemu import hardware
from cudaemu.calls import compiled_once
from cudaemu.errors import CheckFailed, UserError
from cudaemu.hardware import Arch
from cudaemu.kernel import Chain

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from common.stage import Kernel

    Owners = dict[str, tuple[np.ndarray, np.ndarray]]  # output -> the block and the thread of each element

Reached = dict[str, tuple[set[Chain], set[Chain]]]  # instance of a kernel -> what of its code ran, and all of it

SHOWN = 8  # wrong elements in a report
LOCATE_FLOPS = 2 * 256**3  # how much work a report may spend on finding a thread: seconds in the emulator


@dataclass(frozen=True)
class Accuracy:
    """How far one output is from fp64.

    `error` and `limit` are ‖out − ref‖ / ‖ref‖ (Frobenius); `worst` and `worst_limit` the largest |out − ref| of an
    element as a fraction of the root mean square of ref (of 1, if ref is zero); `wrong` the number of elements beyond
    their limit, of `total`; `first` the first of them as (index, got, want), or those furthest off if only the whole
    is; `within` along each axis the least and the largest index of a wrong element, if there is one."""

    name: str
    error: float
    limit: float
    worst: float
    worst_limit: float
    wrong: int
    total: int
    first: tuple[tuple[tuple[int, ...], float, float], ...]
    within: tuple[tuple[int, int], ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        return self.wrong == 0 and self.error <= self.limit

    @property
    def ratio(self) -> float:
        """The error as a multiple of what is allowed; infinite if it is NaN."""
        ratio = self.error / self.limit if self.limit else self.error
        return math.inf if math.isnan(ratio) else ratio


@dataclass(frozen=True)
class Instance:
    """Inputs of a problem, what the outputs must be, and copies of the inputs. `make` makes one."""

    spec: Problem
    shape: Shape
    dtype: str
    variants: Variants
    inputs: Tensors
    copies: Tensors
    references: Tensors
    tolerances: tuple[Tolerance, ...]

    def launched_with(self, changed: Mapping[str, Any]) -> Instance:
        """The same inputs, with what the outputs must be of a launch with these arguments."""
        given = self.inputs, self.dtype, self.variants, self.references, self.tolerances
        references, tolerances = self.spec.wanted(*given, changed)
        return replace(self, references=references, tolerances=tolerances)

    def outputs(self) -> Tensors:
        """New outputs for a kernel to fill, full of NaN: what it leaves unwritten stays visible."""
        made = self.spec.outputs_for(self.inputs, self.dtype, self.variants)
        return tuple(output.fill_(torch.nan) for output in made)

    def judge(self, outputs: Tensors) -> list[Accuracy]:
        """The accuracy of each output, then of each extra one if there are any."""
        names = self.spec.output_names(self.variants)
        names += self.spec.extra_names if len(outputs) > len(names) else ()
        wanted = self.references[: len(names)], self.tolerances[: len(names)]
        return [_accuracy(*each) for each in zip(names, outputs, *wanted, strict=True)]

    def overwritten(self) -> dict[str, str]:
        """The inputs that the kernel has changed, each with a sentence; they are restored."""
        said = {}
        for name, tensor, copy in zip(self.spec.input_names, self.inputs, self.copies):
            changed = tensor.view(torch.uint8) != copy.view(torch.uint8)  # bytes: NaN is equal to itself
            if changed.any():
                count = int(changed.view(*tensor.shape, -1).any(-1).sum())
                first = _unravel(int(changed.flatten().nonzero()[0]) // tensor.element_size(), tensor.shape)
                index = ", ".join(map(str, first))
                elements = "1 element" if count == 1 else f"{count} elements"
                said[name] = f"the kernel writes to its input {name}: {elements} changed, the first {name}[{index}]"
                tensor.copy_(copy)
        return said


def make(
    kernel: Kernel, shape: Shape, device: str | torch.device = "cpu", seed: int = 0, pattern: str = "normal"
) -> Instance:
    """Random inputs for a kernel, as one of its problem's patterns has them, and what the outputs must be."""
    kernel.check_shape(*shape)
    inputs = kernel.stage.spec.inputs(shape, kernel.dtype, kernel.variants, seed=seed, device=device, pattern=pattern)
    return given(kernel, inputs)


def given(kernel: Kernel, inputs: Tensors) -> Instance:
    """The instance that these inputs make."""
    return _of(kernel.stage.spec, kernel.dtype, kernel.settings, inputs)


def _of(spec: Problem, dtype: str, settings: Variants, inputs: Tensors) -> Instance:
    references = spec.reference(inputs, settings)
    tolerances = spec.tolerances(inputs, dtype, settings, references)
    copies = tuple(tensor.clone() for tensor in inputs)
    return Instance(spec, spec.shape(inputs, settings), dtype, settings, inputs, copies, references, tolerances)


@lru_cache(maxsize=64)  # megabytes each, at most
def _small(
    spec: Problem, shape: Shape, dtype: str, settings: tuple[tuple[str, int], ...], seed: int, pattern: str
) -> Instance:
    """An instance on the CPU, for all kernels that compute the same: a stage's variants get it one after the other."""
    return _of(spec, dtype, dict(settings), spec.inputs(shape, dtype, dict(settings), seed=seed, pattern=pattern))


def _accuracy(name: str, output: Tensor, reference: Tensor, tolerance: Tolerance) -> Accuracy:
    want = reference.to(output.dtype).double()  # beyond what the dtype holds it is infinite, and so must the output be
    got = output.double()
    off = (got - reference).abs_()
    wrong = ~(off <= tolerance.element)  # true where off is NaN
    if not (finite := want.isfinite()).all():
        exact = (got == want) | (got.isnan() & want.isnan())
        off = torch.where(finite, off, torch.where(exact, 0.0, torch.inf))
        wrong = torch.where(finite, wrong, ~exact)
    norm = torch.where(finite, reference, 0.0).norm().item()
    rms = norm / math.sqrt(reference.numel())
    scale, unit = (norm, rms) if norm else (1.0, 1.0)
    error = off.norm().item()
    indices = wrong.flatten().nonzero().flatten()
    if not len(indices) and not error <= tolerance.whole:
        indices = off.flatten().topk(min(SHOWN, off.numel())).indices
    first = []
    for flat in indices[:SHOWN].tolist():
        index = _unravel(flat, output.shape)
        first.append((index, output[index].item(), reference[index].item()))
    element = tolerance.element
    furthest = torch.where(finite, element, 0.0).max().item() if isinstance(element, torch.Tensor) else element
    return Accuracy(
        name,
        error / scale,
        tolerance.whole / scale,
        off.max().item() / unit,  # NaN if there is one
        furthest / unit,
        int(wrong.sum()),
        wrong.numel(),
        tuple(first),
        tuple((int(along.min()), int(along.max())) for along in wrong.nonzero().T) if wrong.any() else (),
        tuple(output.shape),
    )


def _unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        flat, last = divmod(flat, size)
        index.append(last)
    return tuple(reversed(index))


@dataclass(frozen=True)
class Complaint:
    """Something that is wrong in a check: `text`, of the check that `title` names. The same `key` in several checks is
    one mistake."""

    title: str
    text: str
    key: tuple[object, ...]

    def __str__(self) -> str:
        return f"{self.title}: {self.text}"


@dataclass(frozen=True)
class Result:
    """One run of a kernel, judged: `complaints` are what is wrong with it.

    `broken`: the sanitizer found something; `notes`: what it notes besides, which is no failure. `lines` are the
    numbers of the source's lines that ran (None: not asked for). `reached` has for each instance of a kernel the code
    that ran, and all of its code."""

    kernel: Kernel
    shape: Shape
    device: str
    accuracies: tuple[Accuracy, ...]
    complaints: tuple[Complaint, ...]
    why: str = ""
    lines: frozenset[int] | None = None
    broken: bool = False
    reached: Reached = field(default_factory=dict)
    notes: tuple[Complaint, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.complaints

    @property
    def report(self) -> str:
        """All that is wrong; nothing if all is right."""
        return "\n".join(map(str, self.complaints))


def check(
    kernel: Kernel, shape: Shape, device: str, seed: int = 0, pattern: str = "normal", counters: bool = False
) -> Result:
    """Run a kernel on random inputs, on the "gpu" or in the "emulator" with its sanitizer, and judge it: once, and once
    for each other launch that its problem has for the shape. The result is that of the worst of them.

    "emulator 8.6" emulates a GPU of that compute capability instead of the oldest that the stage runs on. It has few
    multiprocessors: launchers that choose by how many tiles there are choose as for large shapes, and a check is short.

    A kernel that cannot be launched or that breaks a rule has failed; UserError if it cannot be built."""
    spec = kernel.stage.spec
    where, _, arch = device.partition(" ")
    title = f"{kernel.label}, {spec.format(shape)}" + ("" if pattern == "normal" else f", {pattern} inputs")
    title += f", compute capability {arch}" if arch else ""
    place = torch.device("cpu" if where == "emulator" else "cuda")
    launch = partial(emulate, arch=arch) if where == "emulator" else _launch
    if device == "gpu":
        from common import gpu

        kernel.load()  # a source that does not compile is not a failed check
        try:
            with gpu.errors(kernel.label):
                instance = make(kernel, shape, place, seed, pattern)
        except UserError as error:
            return Result(kernel, shape, device, (), _stopped(title, error))
    else:
        kernel.check_shape(*shape)
        instance = _small(spec, shape, kernel.dtype, tuple(kernel.settings.items()), seed, pattern)
        instance.overwritten()  # changed by an earlier kernel that stopped half-way: restored
    launches: dict[str, Mapping[str, Any]] = {title: {}}
    for what, changed in kernel.other_launches(instance.inputs).items():
        launches[f"{title}, {what}"] = changed
    with compiled_once():
        results = [
            launch(kernel, instance.launched_with(changed), title, changed, counters)
            for title, changed in launches.items()
        ]
    lines = [result.lines for result in results if result.lines is not None]
    reached = united(result.reached for result in results)
    lines_ = frozenset().union(*lines) if lines else None
    notes = tuple(note for result in results for note in result.notes)
    return replace(max(results, key=_badness), device=device, lines=lines_, reached=reached, notes=notes)


def united(all_reached: Iterable[Reached]) -> Reached:
    """What several runs have reached together, instance by instance."""
    found: Reached = {}
    for reached in all_reached:
        for name, (ran, code) in reached.items():
            before = found.get(name, (set(), set()))
            found[name] = before[0] | ran, before[1] | code
    return found


def _badness(result: Result) -> tuple[bool, float]:
    return not result.ok, max((each.ratio for each in result.accuracies), default=math.inf)


def _stopped(title: str, why: object) -> tuple[Complaint, ...]:
    return (Complaint(title, str(why), ("stopped", str(why))),)


def _launch(
    kernel: Kernel, instance: Instance, title: str, changed: Mapping[str, Any], counters: bool = False
) -> Result:
    """Run a kernel once on the GPU; `changed` are arguments of the launcher as Kernel.arguments takes them."""
    from common import gpu

    try:
        with gpu.errors(kernel.label):
            outputs = instance.outputs()
            kernel.bind(instance.inputs, outputs, changed)()
            torch.cuda.synchronize()
    except UserError as error:
        return Result(kernel, instance.shape, "gpu", (), _stopped(title, error))
    accuracies, complaints = _judge(kernel, instance, outputs + _extras(instance, changed), title)
    return Result(kernel, instance.shape, "gpu", accuracies, tuple(complaints))


def emulate(
    kernel: Kernel,
    instance: Instance,
    title: str,
    changed: Mapping[str, Any],
    counters: bool = False,
    arch: str | Arch = "",
    outputs: Tensors = (),
) -> Result:
    """Run a kernel once in the emulator; `changed` are arguments of the launcher as Kernel.arguments takes them, and
    `outputs` those that it fills, if they are not to be the instance's."""
    outputs = outputs or instance.outputs()
    refusals: list[str] = []
    report = kernel.emulate(
        instance.inputs,
        outputs,
        changed=changed,
        counters=counters,
        refused_is_error=False,
        arch=arch or kernel.stage.arch,
        multiprocessors=hardware.SLICE,
        on_refusal=lambda code, why: refusals.append(f"{code}: {why}"),
    )
    lines, reached = None, dict[str, tuple[set[Chain], set[Chain]]]()
    if counters:
        for each in report.launches:
            done, code = reached.setdefault(each.kernel, (set(), set()))
            done |= each.executed
            code |= {place.path for place in each.code if place.line}
        source = str(kernel.source.resolve())
        ran = (number for (file, number), c in report.lines.items() if file == source and c["instructions"])
        lines = frozenset(ran) - {0}
    found = [Complaint(title, f"the sanitizer found\n{each}", each.source) for each in report.findings]
    notes = tuple(Complaint(title, str(each), each.source) for each in report.notes)
    if report.status:  # stopped half-way: there is no result to judge
        broken = tuple(found) or _stopped(title, f"CUDA error {report.status}: {report.error}")
        result = Result(kernel, instance.shape, "emulator", (), broken, lines=lines, broken=bool(found), notes=notes)
        return replace(result, reached=reached)
    accuracies, wrong = _judge(kernel, instance, outputs + _extras(instance, changed), title, hardware.SLICE)
    if wrong and refusals:
        unseen = f"the launcher must return CUDA error {refusals[0]}, as cudaGetLastError() does, got cudaSuccess"
        wrong.insert(0, Complaint(title, unseen, ("refused", refusals[0])))
    all_ = (*found, *wrong)
    result = Result(kernel, instance.shape, "emulator", accuracies, all_, lines=lines, broken=bool(found), notes=notes)
    return replace(result, reached=reached)


def _extras(instance: Instance, changed: Mapping[str, Any]) -> Tensors:
    """The extra outputs that a launch with these arguments was asked for."""
    return tuple(changed[name] for name in instance.spec.extra_names if name in changed)


def _judge(
    kernel: Kernel, instance: Instance, outputs: Tensors, title: str, multiprocessors: int | None = None
) -> tuple[tuple[Accuracy, ...], list[Complaint]]:
    """The accuracy of each output, and what is wrong with them and with the inputs."""
    accuracies = tuple(instance.judge(outputs))
    complaints = [Complaint(title, said, ("overwritten", name)) for name, said in instance.overwritten().items()]
    if not all(accuracy.ok for accuracy in accuracies):
        text = explain(kernel, instance.shape, accuracies, multiprocessors)
        wrong = (accuracy.name for accuracy in accuracies if not accuracy.ok)
        complaints.append(Complaint(title, text, ("wrong result", kernel.short, *wrong)))
    return accuracies, complaints


def verify(kernel: Kernel, instance: Instance, outputs: Tensors) -> list[Accuracy]:
    """The accuracy of each output; CheckFailed with the first wrong elements and their threads if one is wrong."""
    found = instance.judge(outputs)
    said = instance.overwritten()
    title = f"{kernel.label}, {instance.spec.format(instance.shape)}"
    if said:
        raise CheckFailed(f"{title}: {'; '.join(said.values())}")
    if not all(accuracy.ok for accuracy in found):
        raise CheckFailed(f"{title}: {explain(kernel, instance.shape, found)}")
    return found


def explain(
    kernel: Kernel, shape: Shape, found: Sequence[Accuracy], multiprocessors: int | None = None, far: bool = False
) -> str:
    """Which elements are wrong and how, and which blocks and threads wrote them, on a GPU with that many
    multiprocessors (None: on a whole one). `far`: a smaller size would be right."""
    spec = kernel.stage.spec
    owners = _owners(kernel, shape, multiprocessors)
    lines = ["wrong result"]
    for accuracy, axes in zip(found, spec.output_axes(kernel.variants)[: len(found)], strict=True):
        if accuracy.ok:
            continue
        wrong = f"{accuracy.wrong} of {accuracy.total} elements are wrong" if accuracy.wrong else "none stands out"
        wrong += _within(accuracy, axes)
        lines.append(f"  {accuracy.name}: relative error {accuracy.error:.2e}, allowed {accuracy.limit:.2e}; {wrong}")
        rows = [(*axes, "got", "want", "block", "thread")]
        for index, got, want in accuracy.first:
            block, thread = _owner(owners, accuracy.name, index, got)
            rows.append((*map(str, index), f"{got:.6g}", f"{want:.6g}", block, thread))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines += ["    " + "  ".join(word.rjust(width) for word, width in zip(row, widths)) for row in rows]
    if owners is None and not far:
        lines.append("  (a smaller size would name the block and the thread of each: --sizes)")
    return "\n".join(lines)


def _within(accuracy: Accuracy, axes: Sequence[str]) -> str:
    """Where all wrong elements are, along the axes of which they take a part."""
    parts = [
        f"{axis} {first}" + (f" to {last}" if last > first else "")
        for axis, (first, last), size in zip(axes, accuracy.within, accuracy.shape)
        if (first, last) != (0, size - 1)
    ]
    return f", all of them in {', '.join(parts)}" if parts and accuracy.wrong > 1 else ""


def _owner(owners: Owners | None, name: str, index: tuple[int, ...], got: float) -> tuple[str, str]:
    if owners is None or name not in owners:  # an extra output
        return "?", "?"
    blocks, threads = owners[name]
    block, thread = int(blocks[index]), int(threads[index])
    if block < 0:
        return "none", "never written" if math.isnan(got) else "none"
    return str(block), f"{thread} (warp {thread // 32}, lane {thread % 32})"


def _owners(kernel: Kernel, shape: Shape, multiprocessors: int | None) -> Owners | None:
    """Who writes each element, {output: (block, thread)}: traced in the emulator, with the inner axes cut short.

    None if that would take long, or if the kernel fails there."""
    from cudaemu import Trace

    spec = kernel.stage.spec
    least = tuple(kernel.multiples.get(a, 1) if a in spec.inner_axes else size for a, size in zip(spec.axes, shape))
    if spec.flops(least, kernel.variants) > LOCATE_FLOPS:
        return None
    inputs = spec.inputs(least, kernel.dtype, kernel.variants)
    outputs = spec.outputs(least, kernel.dtype, kernel.variants)
    rows = 8_000_000
    with terminal.progress("finding the threads of the wrong elements"):
        try:
            options: dict[str, Any] = {"trace": Trace(max_rows=rows), "multiprocessors": multiprocessors}
            report = kernel.emulate(inputs, outputs, counters=False, sanitize=False, **options)
        except UserError:
            return None
    names = spec.output_names(kernel.variants)
    return None if len(report.trace) >= rows else {name: report.writers(name) for name in names}
