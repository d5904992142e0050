"""The matrix product of the course in Triton, twice: tiles read by pointers, and by tensor descriptors (TMA).

    cudaemu triton examples/triton/matmul.py --lines    in the emulator; on a GPU with a plain python

notebooks/t1_triton_matmul.ipynb reads it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def matmul_kernel(
    A, B, C, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """C[M, N] = A[M, K] · B[K, N], all row-major: one tile of C per program."""
    # 1. Which tile of C is mine? Programs walk down GROUP_M rows of tiles before they step to the right.
    tiles_m, tiles_n, program = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.program_id(0)
    tile_m, tile_n = tl.swizzle2d(program // tiles_n, program % tiles_n, tiles_m, tiles_n, GROUP_M)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]  # its rows, a column of numbers
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]  # its columns, a row of numbers
    # 2. Slice by slice: read a tile of A and one of B, zeros where they reach over an edge, and multiply.
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        k = first + tl.arange(0, BLOCK_K)
        a = tl.load(A + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        b = tl.load(B + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        acc = tl.dot(a, b, acc)
    # 3. Round and store what is inside of C.
    tl.store(C + m * N + n, acc.to(C.dtype.element_ty), mask=(m < M) & (n < N))


@triton.jit
def matmul_tma_kernel(
    A, B, C, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr, GROUP_M: tl.constexpr,
    SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """The same by tensor descriptors, which know shape, strides and tile: no pointers, no masks."""
    tiles_m, tiles_n, program = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.program_id(0)
    tile_m, tile_n = tl.swizzle2d(program // tiles_n, program % tiles_n, tiles_m, tiles_n, GROUP_M)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in tl.range(0, K, BLOCK_K, num_stages=STAGES, warp_specialize=SPECIALIZE):
        a = A.load([tile_m * BLOCK_M, first])
        b = B.load([first, tile_n * BLOCK_N])
        acc = tl.dot(a, b, acc)
    C.store([tile_m * BLOCK_M, tile_n * BLOCK_N], acc.to(C.dtype))


def matmul(a, b, c, block_m=128, block_n=256, block_k=32, stages=4, warps=8, group_m=12, tma=False, specialize=False):
    """Launch it: c = a · b. What Triton compiled is returned."""
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    kernel, tensors, options = matmul_kernel, (a, b, c), {}
    if tma:
        tiles = ([block_m, block_k], [block_k, block_n], [block_m, block_n])
        kernel, tensors = matmul_tma_kernel, [TensorDescriptor.from_tensor(*each) for each in zip((a, b, c), tiles)]
        options = {"SPECIALIZE": specialize}
    sizes = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "STAGES": stages, "GROUP_M": group_m}
    return kernel[grid](*tensors, m, n, k, **sizes, **options, num_warps=warps)


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for shape in ((256, 512, 160), (200, 264, 104)):
        a, b = (torch.randn(rows, columns, device=device).half() for rows, columns in (shape[::2], shape[:0:-1]))
        for tma in (False, True):
            c = torch.full((shape[0], shape[1]), torch.nan, dtype=torch.float16, device=device)
            matmul(a, b, c, tma=tma)
            off = (c.double() - a.double() @ b.double()).norm() / (a.double() @ b.double()).norm()
            print(f"{shape}, {'descriptors' if tma else 'pointers'}: relative error {float(off):.1e}")
            assert off < 5e-4
