"""What no single launch shows: is the launcher right as well, and are numbers wide enough?

A launcher refuses the sizes that its kernel cannot take, tells of a launch that CUDA refuses, and leaves nothing behind
that the next call in the same process would trip over. `check` looks at that in the emulator, where launches can be
refused on purpose and need not run. `check_far` lets kernels touch what lies beyond 2³² elements: in the emulator the
last block alone runs, and the rest of such tensors takes no memory.
"""

from __future__ import annotations

import math
import mmap
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from common import accuracy
from common.accuracy import Complaint, Instance, Result
from common.dtypes import torch_dtype
from common.problem import Choose, Shape, Tensors
from common.stage import Kernel
from cudaemu.errors import UserError
from cudaemu.report import Report

T = TypeVar("T")
NO_BLOCK, LAST_BLOCK = range(0), range(-1, 0)
GUARD = 1 << 30  # bytes on either side of a tensor: who goes astray there does not meet another one
NO_RESERVE = 0x4000  # of <sys/mman.h>, which Python's mmap does not have everywhere: addresses alone, no memory


def check(kernel: Kernel, seed: int = 0) -> Result:
    """Whether the launcher does its part, in the emulator, and launches of anything that it takes are right. UserError
    if the kernel cannot be built."""
    spec, shapes = kernel.stage.spec, list(kernel.test_shapes().values())
    least = min(shapes, key=lambda shape: spec.flops(shape, kernel.variants))
    deck = Deck(seed)
    drawn = [check_any(kernel, deck, seed + number) for number in range(LAUNCHES)]
    said = [complaint for result in drawn for complaint in result.complaints]
    kinds = _sequences(kernel, shapes, seed)
    said += [*_takes_what_it_must_refuse(kernel, least, seed), *_says_nothing(kernel, kinds)]
    said += _leaves_something(kernel, least, shapes, list(kinds.values()), seed)
    return Result(kernel, least, "emulator", (), tuple(said))


def _complaint(kernel: Kernel, text: str, key: tuple[object, ...] = ()) -> Complaint:
    return Complaint(f"{kernel.label}, the launcher", text, key or ("launcher", text))


def _complaints(kernel: Kernel, what: str, report: Report, wrong: Sequence[str] = ()) -> list[Complaint]:
    """What is wrong with launches: the findings and wrong results of any check, so that who has told them already, in
    another check, only counts them."""
    found = [_complaint(kernel, f"{what}: the sanitizer found\n{each}", each.source) for each in report.findings]
    if report.status and not found:
        found.append(_complaint(kernel, f"{what}: {report}"))
    if wrong and not found:
        key = ("wrong result", kernel.short, *wrong[1:])
        found.append(_complaint(kernel, f"{what}: the result is wrong{wrong[0]}", key))
    return found


def _takes_what_it_must_refuse(kernel: Kernel, least: Shape, seed: int) -> list[Complaint]:
    """Arguments that no kernel of the problem takes have to be refused. So have sizes next to a multiple, and half-way
    to the next one, or their result has to be right."""
    inputs, outputs = tensors(kernel, least, seed)
    said = []
    arguments = kernel.arguments(inputs, outputs)
    for what, changed in kernel.stage.spec.refused(arguments, kernel.variants).items():
        report = _run(kernel, inputs, outputs, changed=changed, blocks=NO_BLOCK)
        if not report.status or report.launches:
            said.append(_complaint(kernel, f"{what} is not refused: it must return cudaErrorInvalidValue"))
    unchecked = replace(kernel, stage=replace(kernel.stage, multiples={}))
    for position, axis in enumerate(kernel.stage.spec.axes):
        multiple = kernel.multiples.get(axis, 1)
        for more in sorted({1, multiple // 2}) if multiple > 1 else ():
            shape = tuple(size + more * (position == at) for at, size in enumerate(least))
            inputs, outputs = tensors(unchecked, shape, seed)
            report = _run(unchecked, inputs, outputs)
            if report.status and not report.launches:
                continue
            rule = f"{axis} must be a multiple of {multiple}"
            what = f"{rule}, and {kernel.stage.spec.format(shape)} is not refused (cudaErrorInvalidValue)"
            # A result is looked at only where there is one: a finding may have another cause than the size.
            wrong = [] if report.findings or report.status else _wrong(unchecked, inputs, outputs)
            said += _complaints(kernel, what, report, wrong)
    return said


def _says_nothing(kernel: Kernel, kinds: Mapping[tuple[str, ...], tuple[Tensors, Tensors]]) -> list[Complaint]:
    """Each launch in turn is refused, of each sequence of launches that a shape takes: the launcher has to return that.
    No block runs."""
    for launches, (inputs, outputs) in kinds.items():
        for number in range(1, len(launches) + 1):
            refusals: list[str] = []
            report = _run(
                *(kernel, inputs, outputs),
                blocks=NO_BLOCK,
                refused_launch=number,
                on_refusal=lambda code, why, refusals=refusals: refusals.append(f"CUDA error {code}: {why}"),
            )
            if refusals and not report.status:
                said = "a launch was refused, and nobody looked (cudaGetLastError): cudaSuccess came back for"
                return [_complaint(kernel, f"{said} {refusals[0]}")]
    return []


def _sequences(kernel: Kernel, shapes: Sequence[Shape], seed: int) -> dict[tuple[str, ...], tuple[Tensors, Tensors]]:
    """Each sequence of kernels that one of the shapes takes, and inputs and outputs of the least such shape."""
    found: dict[tuple[str, ...], tuple[Tensors, Tensors]] = {}
    for shape in sorted(shapes, key=lambda shape: kernel.stage.spec.flops(shape, kernel.variants)):
        inputs, outputs = tensors(kernel, shape, seed)
        report = _run(kernel, inputs, outputs, blocks=NO_BLOCK)
        found.setdefault(tuple(launch.kernel for launch in report.launches), (inputs, outputs))
    return found


def _leaves_something(
    kernel: Kernel, least: Shape, shapes: Sequence[Shape], kinds: Sequence[tuple[Tensors, Tensors]], seed: int
) -> list[Complaint]:
    """Calls in one process do not disturb each other: the same twice; other inputs; other sizes, whichever kernels they
    take, in both orders; other sizes at the same addresses. And a call waits for the one before even if it may begin
    early. `kinds`: a call of each sequence of kernels."""
    first, other, again = (tensors(kernel, least, each) for each in (seed, seed + 1, seed))
    size = kernel.stage.spec.format(least)
    report = _run(kernel, *first, again=[other, again])
    what = f"called with {size}, with other inputs, and with the first ones again, in one process"
    if said := _complaints(kernel, what, report, wrong := _wrong(kernel, *first)):
        return said  # what a single call does
    if not all(_bytes(one, two) for one, two in zip(first[1], again[1])):
        return [_complaint(kernel, f"{what}: the third result is not that of the first call")]
    if wrong := _wrong(kernel, *other):
        return [_complaint(kernel, f"{what}: the second result is wrong{wrong[0]}")]
    report = _run(kernel, *first, again=[first])
    if said := _complaints(kernel, "called twice in a row, for the same output", report):
        return said
    calls = [tensors(kernel, shape, seed) for shape in shapes]
    report = _run(kernel, *calls[0], again=calls[1:], blocks=NO_BLOCK)
    if said := _complaints(kernel, "all test sizes launched in one process", report):
        return said
    others = sorted((shape for shape in shapes if shape != least), key=partial(_cost, kernel))
    several = [call for call in kinds if _cost(kernel, kernel.stage.spec.shape(call[0], kernel.variants)) <= CHEAP]
    if len(several) < 2:  # one kernel: another size of it
        several = [first, *(tensors(kernel, shape, seed) for shape in others[:1])]
    for order in (several, several[::-1]):
        if said := _one_after_the_other(kernel, order):
            return said
    return _at_the_same_addresses(kernel, least, others[0], seed) if others else []


def _one_after_the_other(kernel: Kernel, calls: Sequence[tuple[Tensors, Tensors]]) -> list[Complaint]:
    """Each of these calls, in one process, is right."""
    spec = kernel.stage.spec
    for _, outputs in calls:
        for output in outputs:
            output.fill_(torch.nan)
    report = _run(kernel, *calls[0], again=calls[1:])
    sizes = [spec.format(spec.shape(inputs, kernel.variants)) for inputs, _ in calls]
    what = f"called with {', then '.join(sizes)} in one process"
    said = _complaints(kernel, what, report)
    for size, call in zip(sizes, calls) if not said else ():
        if wrong := _wrong(kernel, *call):
            said += _complaints(kernel, what, report, [f" at {size}{wrong[0]}", *wrong[1:]])
    return said


CHEAP = 2 * 300**3  # floating-point operations of a launch that takes about a second here


def _at_the_same_addresses(kernel: Kernel, least: Shape, second: Shape, seed: int) -> list[Complaint]:
    """Two sizes, one after the other at the same addresses: what is kept by address is not what the second needs."""
    spec = kernel.stage.spec
    made = [tensors(kernel, shape, seed) for shape in (least, second)]
    places = [
        _zeros((max(one.nbytes, two.nbytes),), torch.uint8, torch.device("cpu"))
        for one, two in zip(*((*inputs, *outputs) for inputs, outputs in made))
    ]
    count = len(spec.input_names)
    calls = []
    for inputs, outputs in made:
        views = [
            place[: each.nbytes].view(each.dtype).view(each.shape) for place, each in zip(places, (*inputs, *outputs))
        ]
        for view, each in zip(views, (*inputs, *outputs)):
            view.copy_(each)
        calls.append((tuple(views[:count]), tuple(views[count:])))
    report = _run(kernel, *calls[0], again=calls[1:], in_place=True)
    what = f"called with {spec.format(least)}, then with {spec.format(second)} at the same addresses"
    if said := _complaints(kernel, what, report):
        return said
    wrong = _wrong(kernel, *calls[1])
    return [_complaint(kernel, f"{what}: the second result is wrong{wrong[0]}")] if wrong else []


def _cost(kernel: Kernel, shape: Shape) -> int:
    return kernel.stage.spec.flops(shape, kernel.variants)


def _bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bytes: NaN is equal to itself."""
    same: bool = torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
    return same


def tensors(kernel: Kernel, shape: Shape, seed: int) -> tuple[Tensors, Tensors]:
    """Inputs, and outputs full of NaN."""
    spec = kernel.stage.spec
    inputs = spec.inputs(shape, kernel.dtype, kernel.variants, seed=seed)
    return inputs, tuple(each.fill_(torch.nan) for each in spec.outputs_for(inputs, kernel.dtype, kernel.variants))


def _wrong(kernel: Kernel, inputs: Tensors, outputs: Tensors) -> list[str]:
    """Nothing if the outputs are right; else how far off the first of them is, and the names of all that are."""
    found = [each for each in accuracy.given(kernel, inputs).judge(outputs) if not each.ok]
    if not found:
        return []
    first = found[0]
    return [f" (error of {first.name} {first.error:.1e}, allowed {first.limit:.1e})", *(each.name for each in found)]


# ---- any launch ------------------------------------------------------------------------------------------------------

LAUNCHES = 8  # that are drawn in a test: as many as the options of what has most, so that each is tried once


class Deck:
    """Draws options like cards: all come, in an order that the seed decides, before one comes again."""

    def __init__(self, seed: int = 0):
        self.random = random.Random(seed)
        self.decks: dict[str, list[int]] = {}

    def __call__(self, name: str, options: Sequence[T]) -> T:
        deck = self.decks.setdefault(name, [])
        if not deck:
            deck += self.random.sample(range(len(options)), len(options))
        return options[deck.pop() % len(options)]


def check_any(kernel: Kernel, choose: Choose, seed: int = 0) -> Result:
    """One launch of what the launcher takes, drawn: judged like every other one; and what lies between the rows of its
    outputs has to be left alone."""
    spec = kernel.stage.spec
    inputs, outputs, changed = spec.any_launch(choose, kernel.multiples, kernel.dtype, kernel.variants, seed)
    for output in outputs:
        output.fill_(torch.nan)
    shape = spec.shape(inputs, kernel.variants)
    told = ", ".join(_words(name, each) for name, each in kernel.arguments(inputs, outputs, changed).items())
    title = f"{kernel.label}, {spec.format(shape)}, called with {told}"
    instance = accuracy.given(kernel, inputs).launched_with(changed)
    result = accuracy.emulate(kernel, instance, title, changed, outputs=outputs)
    beside = [name for name, each in zip(spec.output_names(kernel.variants), outputs) if _touched_beside(each)]
    said = tuple(Complaint(title, f"it writes between the rows of {name}", ("beside", name)) for name in beside)
    return replace(result, complaints=(*result.complaints, *said))


def _words(name: str, argument: object) -> str:
    if argument is None:
        return f"no {name}"
    return f"{name} {tuple(argument.shape)}" if isinstance(argument, Tensor) else f"{name} = {argument}"


def _touched_beside(output: Tensor) -> bool:
    """Whether anything lies between the rows of an output that was full of NaN."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(output.shape, output.stride()))
    memory = output.as_strided((length,), (1,))
    own = torch.zeros(length, dtype=torch.bool)
    own.as_strided(output.shape, output.stride()).fill_(True)
    return not bool(memory[~own].isnan().all())


def _run(kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor], **options: Any) -> Report:
    return kernel.emulate(inputs, outputs, counters=False, refused_is_error=False, **options)


# ---- far away --------------------------------------------------------------------------------------------------------


def check_far(
    kernel: Kernel, sizes: Sequence[tuple[Shape, Shape]], device: str, seed: int = 0, why: str = ""
) -> Result:
    """Run a kernel on inputs of which the last part alone is not zeros, `Problem.far_inputs`, and judge the last part
    of the output. On the "gpu" it runs as it is; in the "emulator" its last block does. `why`: what they are for."""
    spec, on_gpu = kernel.stage.spec, device == "gpu"
    place, dtype = torch.device("cuda" if on_gpu else "cpu"), torch_dtype(kernel.dtype)
    generator = torch.Generator(place).manual_seed(seed)
    parts = tuple(torch.randn(part, generator=generator, device=place).to(dtype) for _, part in sizes)
    inputs = tuple(_zeros(size, dtype, place) for size, _ in sizes)
    for tensor, part in zip(inputs, parts):
        _end(tensor, part.shape).copy_(part)
    shape = spec.shape(inputs, kernel.variants)
    references = spec.reference(parts, kernel.settings)
    tolerances = spec.tolerances(parts, kernel.dtype, kernel.settings, references)
    likes = spec.outputs(shape, kernel.dtype, kernel.variants, "meta")
    outputs = tuple(_zeros(like.shape, like.dtype, place) for like in likes)
    ends = tuple(_end(output, reference.shape) for output, reference in zip(outputs, references))
    for end in ends:
        end.fill_(torch.nan)
    title = f"{kernel.label}, {spec.format(shape)}" + (f", {why}" if why else "")
    stopped = ""
    try:
        kernel.check_shape(*shape)
        if on_gpu:
            from common import gpu

            with gpu.errors(kernel.label):
                kernel.bind(inputs, outputs)()
                torch.cuda.synchronize()
        else:
            report = _run(kernel, inputs, outputs, in_place=True, blocks=LAST_BLOCK, sanitize=False)
            stopped = "" if report.ok else str(report)
    except UserError as error:
        stopped = str(error)
    if stopped:
        return Result(kernel, shape, device, (), (Complaint(title, stopped, ("stopped", stopped)),), why=why)
    instance = Instance(spec, shape, kernel.dtype, kernel.settings, parts, parts, references, tolerances)
    accuracies = tuple(instance.judge(ends))
    complaints: tuple[Complaint, ...] = ()
    if not all(each.ok for each in accuracies):
        where = " x ".join(map(str, references[0].shape))
        text = f"its last part, {where}, has (indices count from 0 there) a "
        text += accuracy.explain(kernel, shape, accuracies, far=True)
        text += "\n  (smaller sizes may be right: an offset, a size or a number of blocks does not fit its type)"
        complaints = (Complaint(title, text, ("wrong far away", kernel.short)),)
    return Result(kernel, shape, device, accuracies, complaints, why=why)


def last_is_last(kernel: Kernel) -> bool:
    """Whether the last block makes the last part of the output, and little more, as `check_far` takes it in the
    emulator. A kernel may number its tiles otherwise, or launch as many blocks as fit, of which each would go over far
    too many tiles: where there is one multiprocessor, it launches one."""
    spec = kernel.stage.spec
    inner = [spec.axes.index(axis) for axis in spec.inner_axes]
    shapes = spec.test_shapes(kernel.multiples, kernel.variants).values()
    largest = max(shapes, key=lambda shape: math.prod(shape) // math.prod(shape[position] for position in inner))
    inputs, outputs = tensors(kernel, largest, 0)
    report = _run(kernel, inputs, outputs, blocks=NO_BLOCK, multiprocessors=1)
    if all(math.prod(launch.grid) == 1 for launch in report.launches):
        return False
    _run(kernel, inputs, outputs, blocks=LAST_BLOCK, sanitize=False)
    return all(bool(output.flatten()[-1].isfinite()) for output in outputs)


def fits(kernel: Kernel, sizes: Sequence[tuple[Shape, Shape]]) -> bool:
    """Whether the GPU has room for a check of such sizes."""
    inputs = [torch.empty(size, dtype=torch_dtype(kernel.dtype), device="meta") for size, _ in sizes]
    shape = kernel.stage.spec.shape(inputs, kernel.variants)
    needed = kernel.stage.spec.bytes(shape, kernel.dtype, kernel.variants)
    return 1.1 * needed < torch.cuda.mem_get_info()[0]


def _zeros(size: Sequence[int], dtype: torch.dtype, place: torch.device) -> Tensor:
    """Zeros; on the CPU pages that nobody touches take no memory, and addresses around them are nobody's."""
    if place.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=place)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    pages = mmap.mmap(-1, math.prod(size) * dtype.itemsize + 2 * GUARD, flags=flags)
    return torch.frombuffer(pages, dtype=dtype, count=math.prod(size), offset=GUARD).view(*size)


def _end(tensor: Tensor, size: Sequence[int]) -> Tensor:
    """The last part of a tensor, of that size."""
    return tensor[tuple(slice(whole - part, None) for whole, part in zip(tensor.shape, size, strict=True))]
