"""Matrices in shared memory as wgmma's descriptors have them, and kernels that multiply them, for the tests.

A layout is written down here as the PTX ISA and CUTLASS do (canonical layouts): shapes and strides in units of 16
bytes, then bits of the address exclusive-or-ed. Nothing is shared with the machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cudaemu import engine
from cudaemu.kernel import Region
from tests.cudaemu.machine import launch_kernel

SWIZZLES = {0: (0, 1), 128: (1, 8), 64: (2, 4), 32: (3, 2)}  # bytes: number in a descriptor, units of 16 bytes
TYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2, "s8": torch.int8, "u8": torch.uint8,
}  # fmt: skip
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def encode(values: np.ndarray, type_: str) -> np.ndarray:
    """Numbers in that type, as bits."""
    tensor = torch.from_numpy(np.ascontiguousarray(values)).to(TYPES[type_])
    return tensor.view(torch.uint8).numpy().view(BITS[tensor.itemsize]).reshape(values.shape)


@dataclass(frozen=True)
class Layout:
    """Where a matrix of rows × 32 bytes lies in shared memory. `leading`, `stride`: in bytes; 0: as close as can be.
    `advance`: where it begins in the pattern that begins at `start`. `transposed`: rows (M or N) are contiguous."""

    swizzle: int = 0
    transposed: bool = False
    leading: int = 0
    stride: int = 0
    start: int = 0
    advance: int = 0

    def resolved(self, rows: int) -> Layout:
        """With its offsets, for a matrix of that many rows."""
        units = SWIZZLES[self.swizzle][1]
        leading, stride = self.leading, self.stride
        if not self.transposed:
            leading, stride = (
                leading or (128 if not self.swizzle else 16),
                stride or (128 * units * (2 - bool(self.swizzle))),
            )
        elif not self.swizzle:
            leading, stride = leading or 16 * rows, stride or 128
        else:
            leading, stride = leading or 2 * 128 * units, stride or 128 * units
        return Layout(self.swizzle, self.transposed, leading, stride, self.start, self.advance)

    def offsets(self, rows: int, size: int) -> np.ndarray:
        """The byte address of each element (row, k), of `size` bytes."""
        its = self.resolved(rows)
        number, units = SWIZZLES[self.swizzle]
        row, k = np.meshgrid(np.arange(rows), np.arange(32 // size), indexing="ij")
        leading, stride = its.leading // 16, its.stride // 16
        if not self.transposed:  # ((8, n), 2) : ((units, stride), leading or 1)
            unit, byte = k * size // 16, k * size % 16
            at = row % 8 * units + row // 8 * stride + unit * (1 if self.swizzle else leading)
        else:
            unit, byte = row * size // 16, row * size % 16
            if not self.swizzle:  # ((1, n), (8, k)) : ((-, stride), (1, leading))
                at = unit * stride + k % 8 + k // 8 * leading
            else:  # ((units, n), (8, k)) : ((1, leading), (units, stride))
                at = unit % units + unit // units * leading + k % 8 * units + k // 8 * stride
        address = self.start + self.advance + 16 * at + byte
        return address ^ (address >> 7 & units - 1) << 4 if number else address

    def descriptor(self, rows: int) -> int:
        its = self.resolved(rows)
        fields = [its.start + its.advance, its.leading if not its.swizzle or its.transposed else 16, its.stride]
        return sum((field >> 4) << 16 * n for n, field in enumerate(fields)) | SWIZZLES[its.swizzle][0] << 62


def place(matrix: np.ndarray, layout: Layout, memory: np.ndarray) -> None:
    """Put a matrix (rows, k) into the memory that a layout describes."""
    data = np.ascontiguousarray(matrix).view(np.uint8).reshape(*matrix.shape, matrix.itemsize)
    at = layout.offsets(len(matrix), matrix.itemsize)
    for byte in range(matrix.itemsize):
        memory[at + byte] = data[..., byte]


REGISTERS = ".reg .pred %p<8>; .reg .b32 %r<64>; .reg .b64 %rd<16>; .reg .b32 %a<64>; .reg .b32 %d<512>;"
COPY = """
    mov.u32 %r5, s; mov.u32 %r6, %r0;
COPY: setp.ge.u32 %p0, %r6, {pieces}; @%p0 bra COPIED;
    mad.wide.u32 %rd5, %r6, 16, %rd1; mad.lo.u32 %r7, %r6, 16, %r5;
    ld.global.v4.u32 {{%r8, %r9, %r10, %r11}}, [%rd5]; st.shared.v4.u32 [%r7], {{%r8, %r9, %r10, %r11}};
    add.u32 %r6, %r6, {threads}; bra COPY;
COPIED: fence.proxy.async; bar.sync 0;
"""


def listed(registers: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{registers}{first + n}" for n in range(count)) + "}"


def run(body: str, memory: np.ndarray, out: np.ndarray, *more: np.ndarray, threads: int = 128, **options):
    """A kernel of one block: `memory` (bytes) is copied to shared memory `s`, then the body runs. %rd0: `out`, %rd2 and
    on: `more`, %r0: the thread, %r1: its lane."""
    arrays = [out, memory, *more]
    params = ", ".join(f".param .u64 p{n}" for n in range(len(arrays)))
    loads = "".join(f"ld.param.u64 %rd{n}, [p{n}];" for n in range(len(arrays)))
    text = f""".version 8.3
        .target sm_90a
        .address_size 64
        .visible .entry k({params}) {{
        {REGISTERS} .shared .align 1024 .b8 s[{memory.nbytes}];
        {loads} mov.u32 %r0, %tid.x; mov.u32 %r1, %laneid;
        {COPY.format(pieces=memory.nbytes // 16, threads=threads)}
        {body}
        ret; }}"""
    module = engine.Module(text)
    regions = [Region(each.ctypes.data, each.nbytes, f"array {n}") for n, each in enumerate(arrays)]
    packed = np.array([each.ctypes.data for each in arrays], np.uint64).tobytes()
    result = launch_kernel(module, "k", (1,), (threads,), 0, packed, regions, **options)
    result.kernel = module.kernel("k")
    return result


def store(count: int, columns: int, halves: bool, first: int = 0) -> str:
    """The accumulators from d`first` on to the matrix at %rd0, 64 rows for each warpgroup."""
    size = 2 if halves else 4
    body = f"""shr.u32 %r12, %r0, 5; mul.lo.u32 %r12, %r12, 16; shr.u32 %r13, %r1, 2; add.u32 %r12, %r12, %r13;
        and.b32 %r13, %r1, 3; mul.lo.u32 %r13, %r13, 2; mad.lo.u32 %r12, %r12, {columns}, %r13;
        mad.wide.u32 %rd6, %r12, {size}, %rd0;"""
    for n in range(count):
        i = 2 * n if halves else n
        at = size * (8 * (i // 2 % 2) * columns + 8 * (i // 4) + i % 2)
        body += f"st.global.b32 [%rd6 + {at}], %d{first + n};\n"
    return body


def zero(count: int) -> str:
    return "".join(f"mov.b32 %d{n}, 0;" for n in range(count))


FENCE, WAIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
