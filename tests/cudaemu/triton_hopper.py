"""Kernels for Triton that use what a Hopper GPU has: warp specialisation, clusters, descriptors of tensors made by the
host and in the kernel; printing, asserting, atomics; and one in Gluon, with TMA, mbarriers and wgmma in two kinds of
warps."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@triton.jit
def product(a, b, c, M, N, K, SPECIALIZE: tl.constexpr, B: tl.constexpr):
    """C = A B^T, tiles by descriptors that the kernel makes; persistent: each block takes every so many-th tile."""
    of_a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [B, B])
    of_b = tl.make_tensor_descriptor(b, [N, K], [K, 1], [B, B])
    of_c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [B, B])
    columns = tl.cdiv(N, B)
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(M, B) * columns, tl.num_programs(0), flatten=False, warp_specialize=SPECIALIZE
    ):
        row, column = tile // columns * B, tile % columns * B
        total = tl.zeros((B, B), tl.float32)
        for k in range(0, K, B):
            total = tl.dot(of_a.load([row, k]), of_b.load([column, k]).T, total)
        of_c.store([row, column], total.to(tl.float16))


@triton.jit
def product_of_described(of_a, of_b, of_c, K, B: tl.constexpr):
    """The same; the host has made the descriptors, and a cluster shares a tile."""
    row, column = tl.program_id(0) * B, tl.program_id(1) * B
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        total = tl.dot(of_a.load([row, k]), of_b.load([column, k]).T, total)
    of_c.store([row, column], total.to(tl.float16))


@triton.jit
def printed(x, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.device_print("x is", tl.load(x + i, mask=i < n))


@triton.jit
def asserted(x, n, B: tl.constexpr):
    i = tl.arange(0, B)
    value = tl.load(x + i, mask=i < n, other=0)
    tl.device_assert(value < 40, "too large")
    tl.store(x + i, value + 1, mask=i < n)


@triton.jit
def counted(x, sums, greatest, least, bits, tickets, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(sums + value % 4, value.to(sums.dtype.element_ty), mask=i < n, sem="relaxed")
    tl.atomic_max(greatest + i % 3, value.to(tl.float32), mask=i < n)
    tl.atomic_min(least + i % 3, value, mask=i < n)
    tl.atomic_or(bits + 0 * i, 1 << (value % 31), mask=i < n)
    tl.atomic_xor(bits + 1 + 0 * i, value, mask=i < n)
    tl.atomic_and(bits + 2 + 0 * i, value | 7, mask=i < n)
    ticket = tl.atomic_add(tickets, 1, sem="acq_rel", scope="gpu")
    tl.store(tickets + 1 + ticket, 1)
    while tl.atomic_cas(tickets + 9, 0, 1) == 1:  # a lock
        pass
    tl.store(tickets + 8, tl.load(tickets + 8) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(tickets + 9, 0)


@gluon.jit
def _load(of_a, of_b, tiles_a, tiles_b, full, empty, K, B: gl.constexpr):
    for n in range(K // B):
        slot, phase = n % 2, n // 2 & 1
        mbarrier.wait(empty.index(slot), phase ^ 1)
        mbarrier.expect(full.index(slot), of_a.block_type.nbytes + of_b.block_type.nbytes)
        tma.async_load(of_a, [0, n * B], full.index(slot), tiles_a.index(slot))
        tma.async_load(of_b, [n * B, 0], full.index(slot), tiles_b.index(slot))


@gluon.jit
def _multiply(of_c, tiles_a, tiles_b, full, empty, K, B: gl.constexpr, WAITS: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, B, 16])
    total = gl.zeros([64, B], gl.float32, layout)
    for n in range(K // B):
        slot, phase = n % 2, n // 2 & 1
        if WAITS:
            mbarrier.wait(full.index(slot), phase)
        total = warpgroup_mma(tiles_a.index(slot), tiles_b.index(slot), total, is_async=True)
        total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
        mbarrier.arrive(empty.index(slot), count=1)
    tile = gl.allocate_shared_memory(of_c.dtype, of_c.block_type.shape, of_c.layout)
    tile.store(total.to(of_c.dtype))
    fence_async_shared()
    tma.async_store(of_c, [0, 0], tile)
    tma.store_wait(pendings=0)


@gluon.jit
def in_two_parts(of_a, of_b, of_c, K, B: gl.constexpr, WAITS: gl.constexpr):
    """C = A B, [64, B]: one warp loads tiles, four multiply them."""
    tiles_a = gl.allocate_shared_memory(of_a.dtype, [2] + of_a.block_type.shape, of_a.layout)
    tiles_b = gl.allocate_shared_memory(of_b.dtype, [2] + of_b.block_type.shape, of_b.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(2):
        mbarrier.init(full.index(n), count=1)
        mbarrier.init(empty.index(n), count=1)
    gl.warp_specialize(
        [
            (_multiply, (of_c, tiles_a, tiles_b, full, empty, K, B, WAITS)),
            (_load, (of_a, of_b, tiles_a, tiles_b, full, empty, K, B)),
        ],
        [1],
        [24],
    )
