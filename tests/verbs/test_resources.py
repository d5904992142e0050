"""The verb `resources`: what a kernel takes from each GPU, template instances apart."""

from __future__ import annotations

import pytest

import kernels
from common.verbs import resources
from cudaemu import hardware
from tests.printed import shown

TWO_INSTANCES = """
template <int TILE>
__global__ void __launch_bounds__(TILE) gemm_kernel(DTYPE *C, int M) {
  __shared__ float tile[TILE];
  tile[threadIdx.x] = M;
  __syncthreads();
  C[blockIdx.x * TILE + threadIdx.x] = DTYPE(tile[TILE - 1 - threadIdx.x]);
}
extern "C" cudaError_t launch_gemm(
    const DTYPE *A, const DTYPE *B, DTYPE *C, int M, int N, int K, cudaStream_t stream) {
  if (M * N >= 128) {
    gemm_kernel<128><<<M * N / 128, 128, 0, stream>>>(C, M);
  } else {
    gemm_kernel<32><<<1, 32, 0, stream>>>(C, M);
  }
  return cudaGetLastError();
}
"""


@pytest.mark.full
def test_the_command_says_what_each_gpu_holds(command):
    status, out, _ = command("kernels.02_block_tile", "resources", "--arch", "8.6", "9.0", "--dtype", "fp32")
    assert status == 0
    (rtx,) = (line.split() for line in out.splitlines() if "RTX 3090" in line)
    (hopper,) = (line.split() for line in out.splitlines() if "H200" in line)
    assert rtx[3] == "1024" and "8,192" in rtx  # two tiles of 32 × 32 floats
    assert rtx[6:9] == ["1", "32/48", "67%"] and hopper[5:8] == ["2", "64/64", "100%"]
    assert rtx[-1] == hopper[-1] == "warps"  # and registers, where the kernel takes 32


@pytest.mark.full
def test_tables_are_whole_at_eighty_columns(command):
    status, out, _ = command("kernels.09_swizzle", "resources", "--arch", "8.6", "12.0")
    assert status == 0 and max(map(len, out.splitlines())) <= 80 and "…" not in out
    assert all(head in out for head in ("threads", "regs", "shared", "blocks", "warps", "occupancy", "limited by"))


def test_each_instance_of_a_template_is_shown_as_it_is_launched(command, edited):
    naive = kernels.load("01")
    text = naive.source.read_text()
    begin, end = text.index("__global__ void"), len(text)
    source = edited(naive, (text[begin:end], TWO_INSTANCES))
    kernel = naive.kernel(source=source)
    found = resources.measure(kernel, hardware.model("8.0"), [(8, 4, 1), (64, 64, 1)])
    assert {name: taken.usage.static_shared for name, taken in found.items()} == {
        "gemm_kernel<128>": 512,
        "gemm_kernel<32>": 128,
    }
    assert [found[f"gemm_kernel<{n}>"].launch.block for n in (128, 32)] == [(128, 1, 1), (32, 1, 1)]
    found = resources.measure(kernel, hardware.model("8.0"), [(8, 4, 1)])
    assert found["gemm_kernel<32>"].launch is not None
    assert (found["gemm_kernel<128>"].launch, found["gemm_kernel<128>"].why) == (None, "not launched")
    status, out, _ = command(naive.package, "resources", "--source", source, "--arch", "8.0", "--sizes", "64x64x1")
    assert status == 0 and f"01_naive fp16 ({source}): gemm_kernel<128>" in " ".join(out.split())


@pytest.mark.full
def test_a_launch_that_a_gpu_refuses_is_said(edited):
    naive = kernels.load("01")
    source = edited(naive, ("<<<grid, THREADS, 0, stream>>>", "<<<grid, THREADS, 120 * 1024, stream>>>"))
    (taken,) = resources.measure(naive.kernel(source=source), hardware.model("8.6"), [(4, 4, 1)]).values()
    assert (taken.launch, taken.why) == (None, "the launcher refuses")


def test_spills_have_a_column_only_where_there_are_any():
    usage = resources.Usage("kernel", 255, 16, 12, 16, 0)
    rows = [(hardware.model("9.0"), resources.Taken(usage, None, "not launched"))]
    assert "spilled" in shown(resources.table(rows)) and " 28 " in shown(resources.table(rows))
    without = resources.Usage("kernel", 255, 0, 0, 0, 0)
    assert "spilled" not in shown(resources.table([(rows[0][0], resources.Taken(without, None, "x"))]))
