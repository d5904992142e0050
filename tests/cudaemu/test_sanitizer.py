"""The sanitizer: correct kernels are clean, and what a pipeline of copies can get wrong is found at its line, block and
thread. test_broken.py has the stages and examples, broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import cudaemu
from common import accuracy, course
from common.dtypes import PRECISIONS
from docs.hardware.suite import suite
from tests.cudaemu import sources

ROOT = Path(__file__).parents[2]


def gemm(source: Path, shape: tuple[int, int, int], dtype: str = "fp32", *, misalign: int = 0, **options):
    """A launcher's report, its C, and what C should be."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(1)
    kind = PRECISIONS[dtype].torch
    a = torch.randn(m * k + misalign, generator=generator).to(kind)[misalign:].view(m, k)
    b = torch.randn(k, n, generator=generator).to(kind)
    c = torch.full((m, n), torch.nan, dtype=kind)
    report = cudaemu.run(
        source,
        "launch_gemm",
        [a, b, c, m, n, k, None],
        names=["A", "B", "C", "M", "N", "K", "stream"],
        defines={"DTYPE": PRECISIONS[dtype].cpp, **options.pop("defines", {})},
        outputs=["C"],
        **options,
    )
    return report, c, a.double() @ b.double()


@pytest.mark.core(every=3)
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("stage", ["01_naive", "02_block_tile", "03_thread_tile"])
def test_correct_kernels_are_clean(stage, dtype):
    kernel = course.load(stage).kernel(dtype)
    instance = accuracy.make(kernel, (256, 128, 32) if stage == "03_thread_tile" else (70, 45, 40))
    outputs = instance.outputs()
    report = kernel.emulate(instance.inputs, outputs)
    assert report.ok, report
    assert str(report) == "no findings"
    accuracy.verify(kernel, instance, outputs)


def broken(name: str) -> Path:
    """A kernel of the suite of broken ones, which test_broken.py goes through."""
    return sources.broken_source(next(each for each in suite() if each.name == name))


def unchecked(stage: str) -> Path:
    """A stage whose launcher does not look at its pointers."""
    text, checks = re.subn(r"^  if \(!A \|\|.*\n", "", (ROOT / "kernels" / stage / "kernel.cu").read_text(), flags=re.M)
    assert checks == 1
    return sources.source(text, f"unchecked_{stage}")


def test_the_first_thread_out_of_bounds_is_named():
    """70 x 45 in tiles of 32 x 32: with every row one too low, block 4 (tile row 2) has rows 64 ... 69 -> 70 is out."""
    report, _, _ = gemm(broken("02-row-plus-one"), (70, 45, 96), threads=1)
    (finding,) = report.findings
    assert finding.block == (4, 0, 0) and finding.thread == (5 * 32, 0, 0)  # row 69 of C, column 0
    assert "just past the end of C" in finding.message
    assert report.status == 700  # cudaErrorIllegalAddress, as on a GPU


def test_misaligned_pointer():
    """A view that starts one element in: stage 03 loads 16 bytes at a time."""
    source = unchecked("03_thread_tile")
    report, _, _ = gemm(source, (128, 128, 16), "fp16", misalign=4)
    (finding,) = report.findings
    assert finding.kind == "misaligned" and "A[0, 0]" in finding.message and "16" in finding.message
    assert finding.block == (0, 0, 0) and finding.thread == (0, 0, 0)
    assert "const Chunk a =" in source.read_text().splitlines()[finding.line - 1]
    assert report.status == 716  # cudaErrorMisalignedAddress


def test_findings_do_not_depend_on_the_number_of_cores():
    source = broken("02-no-first-barrier")
    one, two = (gemm(source, (70, 45, 96), threads=threads)[0] for threads in (1, 2))
    assert one.findings == two.findings
    assert one.counters == two.counters


def test_the_first_finding_of_a_block_that_changes_threads_is_named():
    """Two blocks take turns, so that the emulator's threads pass them on: each thread sees some of what block 0 does
    wrong at one line, and the first of all is the one to name."""
    source = """
__global__ void turns(int *turn) {
  __shared__ volatile int a[64];
  for (int round = 0; round < 64; ++round) {
    while (*(volatile int *)turn != round * 2 + blockIdx.x) {
    }
    __syncthreads();
    if (blockIdx.x == 0) a[round] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(turn, 1);
  }
}"""
    library = cudaemu.load(source, threads=2)
    for _ in range(20):
        report = library.launch("turns", 2, 64, torch.zeros(1, dtype=torch.int32))
        first = next(finding for finding in report.findings if finding.kind == "shared race")
        assert "byte 0 of shared memory (a[0])" in first.message


def test_null_pointer_and_sanitizer_off():
    source = unchecked("01_naive")
    out = torch.zeros(32, 32)
    args = [None, out, out, 32, 32, 32, None]
    names = ["A", "B", "C", "M", "N", "K", "stream"]
    for sanitize in (True, False):  # what would kill the process is stopped in any case
        report = cudaemu.run(source, "launch_gemm", args, names=names, defines={"DTYPE": "float"}, sanitize=sanitize)
        (finding,) = report.findings
        assert finding.kind == "null pointer" and report.status == 700


PIPELINE = r"""
#include <cuda_fp16.h>
#include <cuda_runtime.h>
constexpr int STAGES = 2, M = 64, N = 64, DEPTH = 16;  // one block of 4 warps, 16 rows each
__device__ __forceinline__ unsigned shared_address(const void *p) { return unsigned(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void cp_async_16(unsigned to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&r)[2], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__global__ void __launch_bounds__(128) gemm_kernel(const half *A, const half *B, float *C, int K) {
  __shared__ alignas(128) half A_tile[STAGES][M][DEPTH], B_tile[STAGES][DEPTH][N];
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, slices = K / DEPTH;
  auto fetch = [&](int slice) {
    const int stage = slice % STAGES;
    const half *a = A + thread / 2 * K + slice * DEPTH + thread % 2 * 8;
    const half *b = B + (slice * DEPTH + thread / 8) * N + thread % 8 * 8;
    cp_async_16(shared_address(&A_tile[stage][thread / 2][thread % 2 * 8]), a);
    cp_async_16(shared_address(&B_tile[stage][thread / 8][thread % 8 * 8]), b);
  };
  float acc[N / 8][4] = {};
  for (int slice = 0; slice < STAGES; ++slice) {
    fetch(slice);  // the first ones
    commit();
  }
  for (int slice = 0; slice < slices; ++slice) {
    wait<STAGES - 1>();
    __syncthreads();  // everybody's copies have landed
    const int stage = slice % STAGES;
    unsigned a[4], b[2];
    ldmatrix_x4(a, shared_address(&A_tile[stage][warp * 16 + lane % 16][lane / 16 * 8]));
    for (int n = 0; n < N / 8; ++n) {
      ldmatrix_x2_trans(b, shared_address(&B_tile[stage][lane % 16][n * 8]));
      mma(acc[n], a, b);
    }
    __syncthreads();  // everybody has read
    if (slice + STAGES < slices) fetch(slice + STAGES);
    commit();
  }
  for (int n = 0; n < N / 8; ++n)
    for (int i = 0; i < 4; ++i) C[(warp * 16 + lane / 4 + i / 2 * 8) * N + n * 8 + lane % 4 * 2 + i % 2] = acc[n][i];
}
extern "C" cudaError_t launch_gemm(const half *A, const half *B, float *C, int K, cudaStream_t stream) {
  gemm_kernel<<<1, 128, 0, stream>>>(A, B, C, K);
  return cudaGetLastError();
}
"""

# What is replaced by what; the kinds of findings; a line where one of them is, what its message says; is C right (in
# the emulator, where a copy is not there before somebody has waited for it)?
PIPELINE_BREAKS = {
    "trailing barrier removed": (
        "__syncthreads();  // everybody has read", "", {"shared race"}, "fetch(slice + STAGES)", "read by", True),
    "barrier after the wait removed": (
        "__syncthreads();  // everybody's copies have landed", "", {"shared race"}, "ldmatrix_x4(a,", "A_tile", False),
    "wait too lax": ("wait<STAGES - 1>()", "wait<STAGES>()", {"copy in flight"}, "ldmatrix_x4(a,", "in flight", False),
    "commit removed": (
        "fetch(slice);  // the first ones\n    commit();", "fetch(slice);", {"copy in flight"}, "ldmatrix_x2_trans(b,",
        "B_tile", False),
    "source pointer 8 bytes on": (
        "const half *a = A +", "const half *a = A + 4 +", {"misaligned"}, "fetch(slice);", "A[0, 4]", False),
    "destination beyond the ring": (
        "const int stage = slice % STAGES;\n    const half", "const int stage = slice;\n    const half",
        {"out of bounds shared"}, "fetch(slice + STAGES)", "beyond", False),
}  # fmt: skip


def pipeline(text: str, name: str):
    """A report, and whether C is right."""
    a, b = (torch.randn(size, generator=torch.Generator().manual_seed(1)).half() for size in ((64, 96), (96, 64)))
    c = torch.full((64, 64), torch.nan)
    path, names = sources.source(text, f"pipeline_{name.replace(' ', '_')}"), ["A", "B", "C", "K", "stream"]
    report = cudaemu.run(path, "launch_gemm", [a, b, c, 96, None], names=names, outputs=["C"])
    return report, torch.allclose(c, a.float() @ b.float(), rtol=1e-4, atol=1e-4)


def test_a_correct_pipeline_is_clean():
    report, right = pipeline(PIPELINE, "right")
    assert right and report.ok, report
    slices, warps = 96 // 16, 4
    assert report.counters["instructions.ldmatrix"] == slices * warps * (1 + 64 // 8)
    assert report.counters["instructions.mma"] == slices * warps * 64 // 8
    assert report.counters["instructions.cp.async"] == slices * warps * 2
    assert report.counters["cp_async_bytes"] == 2 * (64 * 96 * 2)


@pytest.mark.core(every=3)
@pytest.mark.parametrize("name", PIPELINE_BREAKS)
def test_breaks_of_a_pipeline_are_found(name):
    old, new, kinds, at, says, is_right = PIPELINE_BREAKS[name]
    assert PIPELINE.count(old) == 1
    text = PIPELINE.replace(old, new)
    report, right = pipeline(text, name)
    assert right == is_right
    assert kinds <= {finding.kind for finding in report.findings}, report
    lines = {number for number, line in enumerate(text.splitlines(), 1) if at in line}
    (first, *_) = (f for f in report.findings if f.kind in kinds and {f.line, f.call_line} & lines)
    assert says in first.message, first
    if first.call_line:  # within the lambda: both lines are named
        assert "cp_async_16(" in text.splitlines()[first.line - 1] and f"(called at line {first.call_line})" in str(
            first
        )
    assert first.block == (0, 0, 0) and first.thread[0] < 128
