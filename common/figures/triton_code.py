"""What Triton's compiler chose for a kernel, read out of its code (TTGIR), and where its layouts put what is copied.

ran = run(matmul, a, b, c, arch="8.0")    in the emulator, on CPU tensors; then ran.report, layouts(ran), buffers(ran)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import cudaemu
from common.figures.accesses import Traced
from cudaemu.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what Triton 3.9 does unasked, with a warning


@dataclass(frozen=True)
class Ran:
    """A kernel of Triton that has run: its code, and the report of the launch."""

    ttgir: str
    report: cudaemu.Report


@contextmanager
def device(arch: str, **options: Any) -> Iterator[list[cudaemu.Report]]:
    """With the emulator as Triton's device: the reports of what is launched. `options`: those of cudaemu.triton.use."""
    from cudaemu import triton

    triton.use(arch=arch, **options)
    triton.reports.clear()
    try:
        yield triton.reports
    finally:
        triton.stop()


def run(
    launch: Callable[..., Any],
    *tensors: Tensor,
    arch: str,
    trace: bool = False,
    events: bool = False,
    **options: Any,
) -> Ran:
    """Call `launch`, which returns what Triton compiled, with the emulator as Triton's device. `trace`: what the first
    block accesses is recorded; `events`: when its warps ran, waited and multiplied. CheckFailed if the sanitizer finds
    something."""
    traced = cudaemu.Trace(blocks=range(1)) if trace else None
    recorded = cudaemu.Events(blocks=range(1)) if events else None
    with device(arch, trace=traced, events=recorded) as reports:
        ttgir = launch(*tensors, **options).asm["ttgir"]
        (report,) = reports
    report.raise_if_findings()
    return Ran(ttgir, report)


def layouts(ran: Ran) -> dict[str, str]:
    """The layouts that the code defines, {"#shared": "swizzled_shared<{vec = 8, ...}>"}."""
    return dict(re.findall(r"^(#\w+) = #\w+\.(\w+<\{.*\}>)$", ran.ttgir, re.M))


def buffers(ran: Ran) -> list[tuple[str, tuple[int, ...], str]]:
    """What it keeps in shared memory, in the order of its code: (variable of the source, shape, layout). The first of
    three axes counts the stages of a ring."""
    named = layouts(ran)
    pattern = r"%([a-zA-Z]\w*?)(?:_\d+)? = ttg\.local_alloc .*?!ttg\.memdesc<([\dx]+)x[a-z]+\d+, (#\w+), #smem"
    found = re.findall(pattern, ran.ttgir)
    return [(name, tuple(map(int, shape.split("x"))), named[layout]) for name, shape, layout in found]


def bases(layout: str, shape: Sequence[int]) -> list[tuple[int, ...]]:
    """A layout of shared memory as Triton's linear layout: entry i is the place (row, column) of what lies 2^i elements
    on. UserError for a layout of another kind."""
    from triton._C.libtriton import gluon_ir, ir
    from triton.experimental.gluon import language as gluon

    given = dict(re.findall(r"(\w+) = (\[[^]]*\]|\w+)", layout))
    if layout.startswith("swizzled_shared"):
        order = [int(axis) for axis in re.findall(r"\d+", given["order"])]
        made = gluon.SwizzledSharedLayout(int(given["vec"]), int(given["perPhase"]), int(given["maxPhase"]), order)
    elif layout.startswith("nvmma_shared"):
        width, bits = int(given["swizzlingByteWidth"]), int(given["elementBitWidth"])
        made = gluon.NVMMASharedLayout(width, bits, len(shape), given["transposed"] == "true")
    else:
        raise UserError(f"a layout must be swizzled_shared or nvmma_shared, got {layout}")
    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    return [tuple(each) for each in builder.to_linear_layout(made._to_ir(builder), list(shape)).offset_bases]


def offsets(layout_bases: Sequence[tuple[int, ...]], shape: tuple[int, int]) -> np.ndarray:
    """Where each element of a tile lies, in elements: [row, column]. The place of offset o is the XOR of the bases of
    the bits that are set in o."""
    number = np.arange(shape[0] * shape[1])
    place = np.zeros((2, len(number)), int)
    for bit, basis in enumerate(layout_bases):
        place ^= np.where(number >> bit & 1, np.array(basis)[:, None], 0)
    found = np.empty(shape, int)
    found[tuple(place)] = number
    return found


def copied(traced: Traced, base: int, shape: tuple[int, int], tile: tuple[int, int]) -> np.ndarray:
    """Where `cp.async` put the slices of a 16-bit matrix of that shape at address `base`, as the block executed it:
    bytes from the beginning of a slice's buffer, of the first element of each chunk of 16 bytes, [slice, row, chunk].

    `tile`: the shape of a slice; they follow each other along its shorter axis, K. UserError if a chunk was not
    copied."""
    rows, columns = shape
    along = int(tile[1] < tile[0])
    found = np.full((shape[along] // tile[along], tile[0], tile[1] // 8), -1)
    for request, targets in traced.copied():
        element = (request.addresses - base) // 2
        inside = (element >= 0) & (element < rows * columns)
        row, column = np.divmod(element[inside], columns)
        number = (row, column)[along] // tile[along]
        found[number, row % tile[0], column % tile[1] // 8] = targets[inside]
    if (found < 0).any():
        raise UserError(f"{traced.label}: {(found < 0).sum()} of {found.size} chunks are not copied by cp.async")
    return np.asarray(found - found.min(axis=(1, 2), keepdims=True))
