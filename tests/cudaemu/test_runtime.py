"""The stand-in CUDA runtime: a GPU's launch limits and error codes, memory calls, no clash with the real runtime."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cudaemu
from cudaemu import memory, process
from cudaemu.build import compile_host
from cudaemu.compiler import cache, toolchain
from cudaemu.errors import UserError
from tests.cudaemu.sources import source

SUCCESS, INVALID_VALUE = 0, 1
KB = 1024

PROBE = r"""
#include <cuda_runtime.h>
__global__ void __launch_bounds__(1024) probe(int *out) {
  extern __shared__ int dynamic[];
  dynamic[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(out, dynamic[1]);
}
__global__ void __launch_bounds__(1024) bare(int *out) {
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) atomicAdd(out, 1);
}
__global__ void __launch_bounds__(64) bounded(int *out) { if (threadIdx.x == 0) atomicAdd(out, 1); }
__global__ void fixed(int *out) {
  __shared__ int tile[4096];  // 16 KB
  extern __shared__ int dynamic[];
  tile[threadIdx.x] = dynamic[threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(out, tile[1] + dynamic[2] - 2);
}
// Returns the attribute call's error * 1000 + the launch's; opt_in < 0 does not opt in.
extern "C" int launch(int *out, int which, int gx, int gy, int gz, int bx, int by, int bz, int shared, int opt_in) {
  void (*kernels[])(int *) = {bare, probe, bounded, fixed};
  cudaError_t attribute = cudaSuccess;
  if (opt_in >= 0)
    attribute = cudaFuncSetAttribute(kernels[which], cudaFuncAttributeMaxDynamicSharedMemorySize, opt_in);
  cudaGetLastError();
  kernels[which]<<<dim3(gx, gy, gz), dim3(bx, by, bz), shared>>>(out);
  return int(attribute) * 1000 + int(cudaGetLastError());
}
"""

# which, grid, block, dynamic shared bytes, opted in to (-1: no call) -> attribute's error, launch's error; on 9.0
LIMITS = {
    "fine": (0, (2, 1, 1), (32, 1, 1), 0, -1, SUCCESS, SUCCESS),
    "1024 threads": (0, (1, 1, 1), (1024, 1, 1), 0, -1, SUCCESS, SUCCESS),
    "1024 threads in 3D": (0, (1, 2, 1), (4, 4, 64), 0, -1, SUCCESS, SUCCESS),
    "1025 threads": (0, (1, 1, 1), (1025, 1, 1), 0, -1, SUCCESS, INVALID_VALUE),
    "32 x 33 threads": (0, (1, 1, 1), (32, 33, 1), 0, -1, SUCCESS, INVALID_VALUE),
    "block z of 65": (0, (1, 1, 1), (1, 1, 65), 0, -1, SUCCESS, INVALID_VALUE),
    "empty block": (0, (1, 1, 1), (32, 0, 1), 0, -1, SUCCESS, INVALID_VALUE),
    "empty grid": (0, (0, 1, 1), (32, 1, 1), 0, -1, SUCCESS, INVALID_VALUE),
    "grid y of 65535": (0, (1, 65535, 1), (1, 1, 1), 0, -1, SUCCESS, SUCCESS),
    "grid y of 65536": (0, (1, 65536, 1), (1, 1, 1), 0, -1, SUCCESS, INVALID_VALUE),
    "grid z of 65536": (0, (1, 1, 65536), (1, 1, 1), 0, -1, SUCCESS, INVALID_VALUE),
    "more threads than __launch_bounds__": (2, (1, 1, 1), (96, 1, 1), 0, -1, SUCCESS, INVALID_VALUE),
    "48 KB": (1, (1, 1, 1), (32, 1, 1), 48 * KB, -1, SUCCESS, SUCCESS),
    "more than 48 KB": (1, (1, 1, 1), (32, 1, 1), 48 * KB + 4, -1, SUCCESS, INVALID_VALUE),
    "more than 48 KB with static": (3, (1, 1, 1), (32, 1, 1), 32 * KB + 4, -1, SUCCESS, INVALID_VALUE),
    "48 KB with static": (3, (1, 1, 1), (32, 1, 1), 32 * KB, -1, SUCCESS, SUCCESS),
    "opted in": (1, (1, 1, 1), (32, 1, 1), 227 * KB, 227 * KB, SUCCESS, SUCCESS),
    "opted in to less": (1, (1, 1, 1), (32, 1, 1), 64 * KB, 60 * KB, SUCCESS, INVALID_VALUE),
    "opted in to too much": (1, (1, 1, 1), (32, 1, 1), 1024, 227 * KB + 4, INVALID_VALUE, SUCCESS),
    "opted in, with static": (3, (1, 1, 1), (32, 1, 1), 211 * KB, 211 * KB, SUCCESS, SUCCESS),
    "opted in to too much, with static": (3, (1, 1, 1), (32, 1, 1), 4 * KB, 212 * KB, INVALID_VALUE, SUCCESS),
}


def call(text: str, name: str, *args, symbol: str = "launch", **options) -> cudaemu.Report:
    names = [f"argument {position}" for position in range(len(args))]
    return cudaemu.run(source(text, name), symbol, args, names=names, **options)


@pytest.mark.parametrize("case", LIMITS)
def test_launch_limits(case):
    which, grid, block, shared, opt_in, attribute, launched = LIMITS[case]
    out = torch.zeros(1, dtype=torch.int32)
    report = call(PROBE, "probe", out, which, *grid, *block, shared, opt_in, arch="9.0", counters=False, sanitize=False)
    assert report.status == attribute * 1000 + launched
    assert out.item() == (grid[0] * grid[1] * grid[2] if launched == SUCCESS else 0)


@pytest.mark.gpu
def test_a_gpu_agrees():
    """The same calls through the real runtime. Only a GPU of compute capability 9.0 is held to its opt-in limits."""
    nvcc = toolchain.find_nvcc()
    path = source(PROBE, "probe")

    def build(folder: Path) -> None:
        toolchain.run(
            [
                nvcc.path,
                "-ccbin",
                toolchain.find_cxx(),
                "-arch=native",
                "-shared",
                "-Xcompiler",
                "-fPIC",
                path,
                "-o",
                folder / "probe.so",
            ]
        )

    library = ctypes.CDLL(str(cache.get("probe", [PROBE, nvcc], build) / "probe.so"))
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    wrong = {}
    for case, (which, grid, block, shared, opt_in, attribute, launched) in LIMITS.items():
        if "opted in" in case and torch.cuda.get_device_capability() != (9, 0):
            continue
        status = library.launch(ctypes.c_void_p(out.data_ptr()), which, *grid, *block, shared, opt_in)
        torch.cuda.synchronize()
        if status != attribute * 1000 + launched:
            wrong[case] = divmod(status, 1000)
    assert not wrong


@pytest.mark.parametrize(
    ("arch", "kilobytes", "compiled_for"),
    [("8.0", 163, None), ("8.6", 99, "8.0"), ("8.9", 99, "8.0"), ("9.0", 227, None), ("10.0", 227, None),
     ("12.0", 99, "9.0")],
)  # fmt: skip
def test_shared_memory_of_each_capability(arch, kilobytes, compiled_for):
    """The limits are those of the GPU, not of what it was compiled for."""
    out = torch.zeros(1, dtype=torch.int32)
    one = ((1, 1, 1), (32, 1, 1))

    def launch(size: int) -> int:
        how = {"arch": arch, "compiled_for": compiled_for, "counters": False}
        return call(PROBE, "probe", out, 1, *one[0], *one[1], size, size, **how).status

    assert launch(kilobytes * KB) == SUCCESS
    assert launch(kilobytes * KB + 4) == INVALID_VALUE * 1000 + INVALID_VALUE


@pytest.mark.parametrize(("compiled_for", "arch"), [("9.0", "8.6"), ("9.0a", "10.0")])
def test_code_for_another_gpu_is_refused(compiled_for, arch):
    with pytest.raises(UserError, match=f"compiled_for must .*{arch}.*'{compiled_for}'"):
        call(PROBE, "probe", None, 0, *[1] * 6, 0, -1, arch=arch, compiled_for=compiled_for)


MEMORY = r"""
#include <cuda_runtime.h>
__constant__ float weights[32];
__device__ int total = 5;
__global__ void scale(const float *in, float *out) { out[threadIdx.x] = in[threadIdx.x] * weights[threadIdx.x]; }
__global__ void increase(float *data, int count) {
  if (threadIdx.x < count) data[threadIdx.x] += 1.0f;
  if (threadIdx.x == 0) atomicAdd(&total, count);
}
extern "C" cudaError_t launch(const float *in, float *out, int *seen, cudaStream_t stream) {
  float host[32];
  for (int i = 0; i < 32; ++i) host[i] = i;
  float *scratch;
  cudaError_t error = cudaMemcpyToSymbol(weights, host, sizeof host);
  if (!error) error = cudaMallocAsync((void **)&scratch, 32 * sizeof(float), stream);
  if (error) return error;
  scale<<<1, 32, 0, stream>>>(in, scratch);
  increase<<<1, 32, 0, stream>>>(scratch, 20);
  cudaMemcpyAsync(out, scratch, 32 * sizeof(float), cudaMemcpyDeviceToDevice, stream);
  increase<<<1, 64, 0, stream>>>(out, 10);
  cudaMemsetAsync(out + 31, 0, sizeof(float), stream);
  cudaMemcpyFromSymbol(seen, total, sizeof(int), 0, cudaMemcpyDeviceToDevice);
  error = cudaFreeAsync(scratch, stream);
  return error ? error : cudaGetLastError();
}
extern "C" cudaError_t mistakes(float *out, int what) {
  float *other = nullptr;
  if (what == 0) return cudaMemset(out, 0, 33 * sizeof(float));
  if (what == 1) return cudaFree(out + 1);
  if (what == 2) { cudaMalloc(&other, 4); cudaFree(other); return cudaFree(other); }
  increase<<<1, 2000>>>(out, 1);
  if (cudaPeekAtLastError() != cudaErrorInvalidValue) return cudaErrorUnknown;
  if (cudaGetLastError() != cudaErrorInvalidValue) return cudaErrorUnknown;
  return cudaGetLastError();
}
extern "C" cudaError_t leak(float *out) {  // the last byte is not the tensor's
  float *scratch;
  cudaMalloc(&scratch, 31 * sizeof(float));
  cudaMemset(scratch, 0, 31 * sizeof(float));
  increase<<<1, 32>>>(scratch, 32);
  return cudaGetLastError();
}
"""


def test_memory_symbols_and_several_launches():
    data, out, seen = torch.randn(32), torch.full((32,), torch.nan), torch.zeros(1, dtype=torch.int32)
    for _ in range(2):  # device variables start afresh in every run
        report = call(MEMORY, "memory", data, out, seen, None)
        assert report.ok, report
    expected = data * torch.arange(32)
    expected[:20] += 1
    expected[:10] += 1
    expected[31] = 0
    assert torch.equal(out, expected)
    assert seen.item() == 5 + 20 + 10
    assert [(launch.grid, launch.block) for launch in report.launches] == [((1, 1, 1), (n, 1, 1)) for n in (32, 32, 64)]
    assert ["scale" in launch.kernel for launch in report.launches] == [True, False, False]


@pytest.mark.parametrize(("what", "status"), [(0, INVALID_VALUE), (1, INVALID_VALUE), (2, INVALID_VALUE), (3, SUCCESS)])
def test_mistakes_of_the_launcher(what, status):
    assert call(MEMORY, "memory", torch.zeros(32), what, symbol="mistakes").status == status


def test_scratch_memory_has_red_zones():
    report = call(MEMORY, "memory", torch.zeros(32), symbol="leak")
    (finding,) = report.findings
    assert finding.kind == "out of bounds global" and finding.thread == (31, 0, 0)
    assert "just past the end of scratch (cudaMalloc 1, line 38)" in finding.message
    assert report.status == 700


def test_tensors_come_back_and_only_they_change():
    text = r"""
#include <cuda_runtime.h>
__global__ void copy(const short *in, short *out, int n) { if (threadIdx.x < n) out[threadIdx.x] = in[threadIdx.x]; }
extern "C" cudaError_t launch(const short *in, short *out, int n) {
  copy<<<1, 64>>>(in, out, n);
  return cudaGetLastError();
}
"""
    whole = torch.arange(100, dtype=torch.int16)
    view = whole[3:40]  # starts 6 bytes into its storage, as it would on a GPU
    out = torch.full((37,), -1, dtype=torch.int16)
    assert call(text, "copy", view, out, 30).ok
    assert torch.equal(out, torch.cat([whole[3:33], torch.full((7,), -1, dtype=torch.int16)]))
    assert torch.equal(whole, torch.arange(100, dtype=torch.int16))
    assert call(text, "copy", view, view, 37).ok  # one tensor twice is one piece of memory
    with pytest.raises(ValueError, match="contiguous"):
        call(text, "copy", whole[::2], out, 30)


def test_what_a_callback_raises_comes_out():
    class Stop(Exception):
        pass

    def progress(done: int, blocks: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        call(PROBE, "probe", torch.zeros(1, dtype=torch.int32), 0, 64, 1, 1, 32, 1, 1, 0, -1, progress=progress)


def test_a_launcher_may_be_named_by_a_macro():
    assert call("int NAME() { return 7; }", "named", symbol="launch_it", defines={"NAME": "launch_it"}).status == 7


def test_wrong_sources_are_explained():
    with pytest.raises(UserError, match="does not export launch_gemm"):
        call("void launch() {}  // not launch_gemm", "no_launcher", symbol="launch_gemm")
    with pytest.raises(UserError, match=r"broken\.cu\(2\): error: "):
        call("#include <cuda_runtime.h>\nint launch() { return nothing; }", "broken")
    with pytest.raises(UserError, match=r"calls cudaIpcOpenMemHandle\b"):
        call(
            '#include <cuda_runtime.h>\nextern "C" int launch(void *p)'
            "{ return cudaIpcOpenMemHandle(&p, cudaIpcMemHandle_t(), 0); }",
            "interprocess",
            None,
        )
    large = "__global__ void k(int *out) { __shared__ int tile[12289]; tile[threadIdx.x] = *out; *out = tile[99]; }"
    with pytest.raises(UserError, match="49156 bytes of shared memory"):
        call(
            f'#include <cuda_runtime.h>\n{large}\nextern "C" int launch(int *o) {{ k<<<1, 32>>>(o); return 0; }}',
            "large",
            torch.zeros(1, dtype=torch.int32),
        )


CLASH = """
import ctypes, sys
import numpy as np
from pathlib import Path
import cudaemu
from cudaemu import process
real = lambda: ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
out = np.zeros(1, np.int32)
arguments = [out, 0, 2, 1, 1, 32, 1, 1, 0, -1]
run = lambda: cudaemu.run(Path(sys.argv[1]), "launch", arguments, names=list("abcdefghij"), arch="9.0")
library = real() if sys.argv[3] == "first" else None
assert run().status == 0 and out.item() == 2, "the kernel's calls went to the real runtime"
library = library or real()
count = ctypes.c_int(-1)
assert library.cudaRuntimeGetVersion(ctypes.byref(count)) == 0 and count.value >= 12000, "not the real runtime"
assert run().status == 0 and out.item() == 4
"""


@pytest.mark.parametrize("order", ["first", "second"])
def test_no_clash_with_the_real_runtime(order):
    """The real libcudart in the same process, its symbols global, loaded before the kernel and after it."""
    nvcc = toolchain.find_nvcc()
    candidates = [
        *nvcc.lib.glob("libcudart.so*"),
        *nvcc.home.glob("targets/*/lib/libcudart.so*"),
        *(path for entry in sys.path for path in Path(entry).glob("nvidia/*/lib/libcudart.so*")),
    ]
    assert candidates, f"no libcudart.so in {nvcc.home} nor in the pip packages"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", CLASH, str(source(PROBE, "probe")), str(candidates[0]), order]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_stand_in_is_hidden():
    so = compile_host(source(PROBE, "probe")).so
    symbols = toolchain.run(["nm", "-D", "--defined-only", so]).split()
    assert "launch" in symbols and not [name for name in symbols if name.lstrip("_").startswith("cu")]


def test_device_queries():
    text = r"""
#include <cuda_runtime.h>
__global__ void __launch_bounds__(128) kernel(int *) {}
extern "C" int launch(int *result) {
  int out[8];
  size_t stack = 0;
  cudaDeviceProp properties;
  cudaFuncAttributes attributes;
  int device = -1;
  int status = cudaGetDevice(&device) | cudaGetDeviceProperties(&properties, device);
  status |= cudaFuncGetAttributes(&attributes, kernel);
  status |= cudaDeviceGetAttribute(out + 0, cudaDevAttrMultiProcessorCount, device);
  status |= cudaDeviceGetAttribute(out + 1, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  status |= cudaDeviceGetAttribute(out + 2, cudaDevAttrComputeCapabilityMajor, device);
  status |= cudaOccupancyMaxActiveBlocksPerMultiprocessor(out + 3, kernel, 128, 20 << 10);
  out[4] = properties.major * 10 + properties.minor;
  out[5] = attributes.maxThreadsPerBlock;
  out[6] = cudaGetErrorString(cudaErrorInvalidValue)[0];
  status |= cudaDeviceSetLimit(cudaLimitStackSize, 4096) | cudaDeviceGetLimit(&stack, cudaLimitStackSize);
  out[7] = stack;
  return status | cudaMemcpy(result, out, sizeof out, cudaMemcpyHostToDevice);
}
"""
    out = torch.zeros(8, dtype=torch.int32)
    assert call(text, "queries", out, arch="8.6").status == 0
    assert out.tolist() == [82, 99 * KB, 8, 4, 86, 128, ord("i"), 4096]
    assert call(text, "queries", out, arch="8.6", multiprocessors=5).status == 0 and out[0] == 5
    with pytest.raises(UserError, match="multiprocessors must be a whole number"):
        call(text, "queries", out, multiprocessors=0)


SMALL = r"""
#include <cstdio>
__global__ void add(int *x) { atomicAdd(x, 1); }
int main() {
  int *d, one = 1, sum = 0;
  cudaMalloc(&d, 4096);
  for (int i = 0; i < 500; ++i) {
    cudaMemcpy(d + i, &one, sizeof one, cudaMemcpyHostToDevice);
    cudaMemcpy(&one, d + i, sizeof one, cudaMemcpyDeviceToHost);
    cudaMemset(d + 500 + i % 100, 1, sizeof one);
    cudaMemcpy(d + 700, d + 500, sizeof one, cudaMemcpyDeviceToDevice);
    sum += one;
  }
  for (int i = 0; i < 20; ++i) add<<<1, 32 * (1 + i / 10)>>>(d);
  cudaMemcpy(&one, d, sizeof one, cudaMemcpyDeviceToHost);
  int rest[3];
  cudaMemcpy(rest, d + 600, sizeof rest, cudaMemcpyDeviceToHost);  // nobody wrote these
  return sum != 500 || one != 1 + 32 * 10 + 64 * 10;
}
"""


def test_copies_need_nothing_from_the_other_process(monkeypatch):
    """They set their marks by themselves; what was never written is known after them."""
    asked = []
    answer = process.Host._answer
    monkeypatch.setattr(
        process.Host, "_answer", lambda self, what, *rest: asked.append(what) or answer(self, what, *rest)
    )
    report = cudaemu.program(source(SMALL, "small_copies"))
    assert report.ok and len(asked) < 20 + 10, report
    assert [note.kind for note in report.notes] == ["uninitialised copy to the host"]
    assert "12 of 12 bytes" in report.notes[0].message and "+ 2400 bytes" in report.notes[0].message


LARGE = r"""
#include <cuda_runtime.h>
constexpr unsigned NEW = ~0u;
__global__ void touch(unsigned *p, size_t step, unsigned *out) {
  p[threadIdx.x * step] = threadIdx.x;
  out[threadIdx.x] = p[threadIdx.x * step + 1];
}
__global__ void row(const uint4 *p, uint4 *out) { out[threadIdx.x] = p[threadIdx.x]; }
int main() {
  const size_t count = 1u << 28;
  static unsigned host[1 << 17];
  unsigned *p, *q, *out, bad = 0;
  size_t before, after, total;
  cudaMalloc(&out, 4096);
  cudaMemGetInfo(&before, &total);
  if (cudaMalloc(&p, count * 4)) return 2;
  cudaMemGetInfo(&after, &total);
  bad += after + (3u << 28) > before;  // other programs take memory, too
  touch<<<1, 32>>>(p, count / 32, out);
  cudaMemcpy(host, out, 128, cudaMemcpyDeviceToHost);
  for (int i = 0; i < 32; ++i) bad += host[i] != NEW;
  cudaMemset(p + 1000, 0, 4000);  // in a part that was touched
  cudaMemset(p + (1 << 20) + 1000, 0, 1 << 20);  // parts of two and some whole ones that were not
  for (unsigned from : {0u, 1u << 20}) {
    cudaMemcpy(host, p + from, sizeof host, cudaMemcpyDeviceToHost);
    bad += host[999] != NEW || host[1000] || host[1999] || (host[2000] != NEW) != (from > 0);
  }
  cudaMemcpy(host, p + (1 << 20) + (1 << 18), 8000, cudaMemcpyDeviceToHost);
  bad += host[999] || host[1000] != NEW;
  row<<<1, 32>>>((uint4 *)(p + (3 << 20)), (uint4 *)out);
  cudaMemcpy(host, out, 512, cudaMemcpyDeviceToHost);
  for (int i = 0; i < 128; ++i) bad += host[i] != NEW;
  cudaMalloc(&q, count * 4);
  cudaMemcpy(q + 5, p + 1005, 40, cudaMemcpyDeviceToDevice);
  cudaMemcpy(host, q, 100, cudaMemcpyDeviceToHost);
  bad += host[4] != NEW || host[5] || host[14] || host[15] != NEW;
  cudaFree(p);
  return bad;
}
"""


@pytest.mark.parametrize("sanitize", [True, False])
def test_large_memory_takes_room_where_it_is_touched(monkeypatch, sanitize):
    """It holds all the same what new memory holds, and what was never written is found."""
    if memory.available_memory() < 3 << 30:
        pytest.skip("needs memory")
    taken, free = [], memory.Arena.free
    monkeypatch.setattr(
        memory.Arena, "free", lambda self, each: (taken.append(os.fstat(self.file).st_blocks * 512), free(self, each))
    )
    report = cudaemu.program(source(LARGE, "large"), sanitize=sanitize)
    assert report.status == 0
    assert [finding.kind for finding in report.findings] == ["uninitialised global read"] * 2 * sanitize
    assert [finding.count for finding in report.findings] == [32, 32][: 2 * sanitize]
    assert 8 << 20 < taken[0] < 24 << 20, "some 40 parts, and marks, of 2 GB"


def test_launches_that_count_the_same_are_added_up():
    report = cudaemu.program(source(SMALL, "small_copies"))
    each = [launch.counters["instructions"] for launch in report.launches]
    assert len(set(each)) == 2 and each[0] == each[9] < each[10] == each[19]
    assert report.counters["instructions"] == sum(each)
    assert sum(counters["instructions"] for counters in report.lines.values()) == sum(each)
