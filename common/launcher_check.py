"""What no single launch shows: is the launcher right as well, and are numbers wide enough?

A launcher refuses the sizes that its kernel cannot take, tells of a launch that CUDA refuses, and leaves nothing behind
that the next call in the same process would trip over. `check` looks at that in the emulator, where launches can be
refused on purpose and need not run. `check_far` lets kernels touch what lies beyond 2³² elements: in the emulator the
last block alone runs, and the rest of such tensors takes no memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from common import accuracy
from common.accuracy import Complaint, Instance, Result
from common.dtypes import torch_dtype
from common.problem import Shape, Tensors
from common.stage import Kernel
from cudaemu.errors import UserError
from cudaemu.report import Report

NO_BLOCK, LAST_BLOCK = range(0), range(-1, 0)
GUARD = 1 << 30  # bytes on either side of a tensor: who goes astray there does not meet another one
NO_RESERVE = 0x4000  # of <sys/mman.h>, which Python's mmap does not have everywhere: addresses alone, no memory


def check(kernel: Kernel, seed: int = 0) -> Result:
    """Whether the launcher does its part, in the emulator. UserError if the kernel cannot be built."""
    spec, shapes = kernel.stage.spec, list(kernel.test_shapes().values())
    least = min(shapes, key=lambda shape: spec.flops(shape, kernel.variants))
    said = [*_takes_what_it_must_refuse(kernel, least, seed), *_says_nothing(kernel, shapes, seed)]
    said += _leaves_something(kernel, least, shapes, seed)
    complaints = tuple(Complaint(f"{kernel.label}, the launcher", text, ("launcher", text)) for text in said)
    return Result(kernel, least, "emulator", (), complaints)


def _takes_what_it_must_refuse(kernel: Kernel, least: Shape, seed: int) -> list[str]:
    """Sizes next to a multiple, and half-way to the next one, have to be refused, or their result has to be right."""
    said = []
    unchecked = replace(kernel, stage=replace(kernel.stage, multiples={}))
    for position, axis in enumerate(kernel.stage.spec.axes):
        multiple = kernel.multiples.get(axis, 1)
        for more in sorted({1, multiple // 2}) if multiple > 1 else ():
            shape = tuple(size + more * (position == at) for at, size in enumerate(least))
            inputs, outputs = tensors(unchecked, shape, seed)
            report = _run(unchecked, inputs, outputs)
            refused = report.status and not report.launches
            if not refused and not (report.ok and _right(unchecked, inputs, outputs)):
                rule = f"{axis} must be a multiple of {multiple}"
                size = kernel.stage.spec.format(shape)
                said.append(f"{rule}, and {size} is not refused (cudaErrorInvalidValue), nor is the result right")
    return said


def _says_nothing(kernel: Kernel, shapes: Sequence[Shape], seed: int) -> list[str]:
    """Each launch in turn is refused, of each sequence of launches that a shape takes: the launcher has to return that.
    No block runs."""
    sequences: dict[tuple[str, ...], tuple[Tensors, Tensors]] = {}
    for shape in shapes:
        inputs, outputs = tensors(kernel, shape, seed)
        report = _run(kernel, inputs, outputs, blocks=NO_BLOCK)
        sequences.setdefault(tuple(launch.kernel for launch in report.launches), (inputs, outputs))
    for launches, (inputs, outputs) in sequences.items():
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
                return [f"{said} {refusals[0]}"]
    return []


def _leaves_something(kernel: Kernel, least: Shape, shapes: Sequence[Shape], seed: int) -> list[str]:
    """Two calls in one process give the same, a call waits for the one before even if it may begin early, and all
    shapes can be launched in one process, whichever kernels they take."""
    calls = [tensors(kernel, least, seed) for _ in range(2)]
    report = _run(kernel, *calls[0], again=calls[:1])
    if not report.ok:
        return [f"called twice in a row, for the same output: {report}"]
    report = _run(kernel, *calls[0], again=calls[1:])
    if not report.ok:
        return [f"called twice in one process: {report}"]
    if not all(torch.equal(one, other) for one, other in zip(calls[0][1], calls[1][1])):
        size = kernel.stage.spec.format(least)
        return [f"called twice in one process, with the same inputs of {size}: the second result is another one"]
    calls = [tensors(kernel, shape, seed) for shape in shapes]
    report = _run(kernel, *calls[0], again=calls[1:], blocks=NO_BLOCK)
    return [] if report.ok else [f"all test sizes launched in one process: {report}"]


def tensors(kernel: Kernel, shape: Shape, seed: int) -> tuple[Tensors, Tensors]:
    """Inputs, and outputs full of NaN."""
    spec = kernel.stage.spec
    inputs = spec.inputs(shape, kernel.dtype, kernel.variants, seed=seed)
    return inputs, tuple(each.fill_(torch.nan) for each in spec.outputs_for(inputs, kernel.dtype, kernel.variants))


def _right(kernel: Kernel, inputs: Tensors, outputs: Tensors) -> bool:
    return all(each.ok for each in accuracy.given(kernel, inputs).judge(outputs))


def _run(kernel: Kernel, inputs: Sequence[Tensor], outputs: Sequence[Tensor], **options: Any) -> Report:
    return kernel.emulate(inputs, outputs, counters=False, refused_is_error=False, **options)


# ---- far away --------------------------------------------------------------------------------------------------------


def check_far(kernel: Kernel, sizes: Sequence[tuple[Shape, Shape]], device: str, seed: int = 0) -> Result:
    """Run a kernel on inputs of which the last part alone is not zeros, `Problem.far_inputs`, and judge the last part
    of the output. On the "gpu" it runs as it is; in the "emulator" its last block does."""
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
    title = f"{kernel.label}, {spec.format(shape)}"
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
        return Result(kernel, shape, device, (), (Complaint(title, stopped, ("stopped", stopped)),))
    instance = Instance(spec, shape, kernel.dtype, kernel.settings, parts, parts, references, tolerances)
    accuracies = tuple(instance.judge(ends))
    complaints: tuple[Complaint, ...] = ()
    if not all(each.ok for each in accuracies):
        text = f"of its last part: {accuracy.explain(kernel, shape, accuracies)}"
        complaints = (Complaint(title, text, ("wrong far away", kernel.short)),)
    return Result(kernel, shape, device, accuracies, complaints)


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
