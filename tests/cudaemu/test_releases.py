"""The emulator with the compilers that pip brings: two CUDA releases, whose launch code and PTX differ."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import cudaemu
from cudaemu.build import compile_host
from cudaemu.compiler import toolchain
from cudaemu.errors import UserError
from tests.cudaemu import releases
from tests.cudaemu.sources import source

ROOT = Path(__file__).parents[2]
OLDER = "13.0"  # what torch 2.11 pins


def _pip_home() -> Path:
    """The toolkit among the pip packages of this environment: a newer release."""
    for entry in sys.path:
        for nvcc in sorted(Path(entry).glob("nvidia/cu*/bin/nvcc"), reverse=True):
            return nvcc.parents[1]
    pytest.fail("the environment has no nvcc from pip, which the project depends on")


@pytest.fixture(params=["older", "newer"])
def nvcc(request, monkeypatch) -> toolchain.Nvcc:
    home = releases.from_pip(OLDER) if request.param == "older" else _pip_home()
    monkeypatch.setenv("CUDA_HOME", str(home))
    nvcc = toolchain.find_nvcc()
    assert nvcc.home == home
    if request.param == "newer" and nvcc.release == OLDER:
        pytest.skip(f"torch pins release {OLDER} in this environment: there is no newer one")
    return nvcc


@pytest.mark.full
def test_a_stage_runs(nvcc, request):
    newer = "newer" in request.node.name
    assert (tuple(map(int, nvcc.release.split("."))) > (13, 0)) if newer else nvcc.release == OLDER
    a, b, c = torch.randn(128, 32).half(), torch.randn(32, 256).half(), torch.full((128, 256), torch.nan).half()
    report = cudaemu.run(
        ROOT / "kernels" / "03_thread_tile" / "kernel.cu",
        "launch_gemm",
        [a, b, c, 128, 256, 32, None],
        names=["A", "B", "C", "M", "N", "K", "stream"],
        outputs=["C"],
    )
    assert report.ok, report
    assert torch.allclose(c.float(), a.float() @ b.float(), rtol=2e-3, atol=1e-2)
    assert report.counters["instructions.fma"] == 128 * 256 * 32 // 32


@pytest.mark.full
def test_launch_code_is_this_releases(nvcc):
    """The PTX names the release that wrote it: the compiler asked for is the one that ran."""
    build = compile_host(ROOT / "kernels" / "01_naive" / "kernel.cu")
    assert f"release {nvcc.release}" in build.ptx


OF_12 = r"""
#include <cooperative_groups.h>
#include <thrust/device_vector.h>
#include <thrust/transform_reduce.h>

#include <cstdio>

struct Twice : thrust::unary_function<int, int> {
  __host__ __device__ int operator()(int x) const { return 2 * x; }
};
__global__ void add(float *x) {
  x[cooperative_groups::this_grid().thread_rank()] += 1;
}
int main() {
  cudaDeviceProp p;
  int runtime = 0;
  cudaGetDeviceProperties(&p, 0), cudaRuntimeGetVersion(&runtime);
  printf("%d.%d %d %d %d\n", p.major, p.minor, p.warpSize, runtime / 1000, CUDART_VERSION / 1000);
  printf("%d %d %d %d\n", p.clockRate > 0, p.deviceOverlap, p.maxThreadsPerBlock, p.clusterLaunch);
  printf("%d %zu\n", p.multiProcessorCount, p.sharedMemPerBlockOptin);
  float *x;
  cudaMallocManaged(&x, 32 * sizeof *x);
  for (int i = 0; i < 32; ++i) x[i] = i;
  cudaMemAdvise(x, 128, cudaMemAdviseSetReadMostly, 0);
  cudaMemPrefetchAsync(x, 128, 0);
  add<<<1, 32>>>(x);
  cudaThreadSynchronize();
  printf("%g\n", x[31]);
  thrust::device_vector<int> values(100, 3);
  printf("%d\n", thrust::transform_reduce(values.begin(), values.end(), Twice(), 0, thrust::plus<int>()));
  cudaGraph_t graph;
  cudaGraphNode_t one, other;
  cudaGraphCreate(&graph, 0);
  cudaGraphAddEmptyNode(&one, graph, nullptr, 0), cudaGraphAddEmptyNode(&other, graph, nullptr, 0);
  printf("%d\n", cudaGraphAddDependencies(graph, &one, &other, 1));
  cudaThreadExit();
}
"""


@pytest.mark.full
def test_a_program_for_cuda_12(monkeypatch, capfd):
    """What 13 has removed or changed compiles with the headers of 12, and the stand-in runtime agrees with them."""
    theirs, own = releases.headers_from_pip("12"), toolchain._pip_roots()
    monkeypatch.setattr(toolchain, "_pip_roots", lambda: [*own, theirs])
    path = source(OF_12, "of_12")
    with pytest.raises(UserError, match=r'Or with the headers of CUDA 12, which had them: --cuda 12, or cuda="12"'):
        cudaemu.program(path)
    report = cudaemu.program(path, cuda="12", arch="9.0", own_terminal=True)
    assert report.ok, report
    printed = capfd.readouterr().out
    assert printed == "9.0 32 12 12\n1 1 1024 1\n132 232448\n32\n600\n0\n"


def test_headers_of_cuda_12_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "_pip_roots", lambda: [tmp_path])
    with pytest.raises(UserError, match="pip install nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12"):
        toolchain._older_headers("12")
    with pytest.raises(UserError, match="cuda must be '12', or None for the compiler's own CUDA, got '11'"):
        cudaemu.Options(cuda="11")
