"""PTX that a program or a framework brings along: the driver's functions, and kernels on memory of this process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu.errors import UserError
from tests.cudaemu.sources import source
from tests.cudaemu.test_programs import command

PTX = """
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .f32 factor = 0f40000000;
.visible .entry scale(.param .u64 x, .param .u32 n, .param .f32 add) {
  .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .pred %p;
  ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n]; ld.param.f32 %f3, [add];
  mov.u32 %r2, %tid.x; setp.ge.u32 %p, %r2, %r1; @%p bra done;
  mul.wide.u32 %rd2, %r2, 4; add.u64 %rd1, %rd1, %rd2;
  ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [factor]; fma.rn.f32 %f1, %f1, %f2, %f3; st.global.f32 [%rd1], %f1;
done: ret;
}
"""

PROGRAM = (
    r"""
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cstdio>
#define MUST(call)                                        \
  if (CUresult error = (call)) {                          \
    const char *name;                                     \
    cuGetErrorName(error, &name);                         \
    printf("line %d: %d %s\n", __LINE__, error, name);    \
    return 1;                                             \
  }
const char *PTX = R"("""
    + PTX
    + r""")";
int main() {
  CUdevice device;
  CUcontext context;
  CUmodule module, another;
  CUfunction scale;
  CUdeviceptr x, factor;
  size_t bytes;
  int major;
  float host[10], three = 3, add = 100;
  unsigned n = 10;
  MUST(cuInit(0));
  MUST(cuDeviceGet(&device, 0));
  MUST(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  MUST(cuDevicePrimaryCtxRetain(&context, device));
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&module, PTX));
  MUST(cuModuleLoadData(&another, PTX));  // with a factor of its own
  MUST(cuModuleGetFunction(&scale, module, "scale"));
  MUST(cuModuleGetGlobal(&factor, &bytes, module, "factor"));
  MUST(cuMemcpyHtoD(factor, &three, sizeof three));
  MUST(cuMemAlloc(&x, sizeof host));
  for (int i = 0; i < 10; ++i) host[i] = i;
  MUST(cuMemcpyHtoD(x, host, sizeof host));
  void *arguments[] = {&x, &n, &add};
  MUST(cuLaunchKernel(scale, 1, 1, 1, 32, 1, 1, 0, 0, arguments, 0));
  MUST(cuModuleGetFunction(&scale, another, "scale"));
  struct { CUdeviceptr x; unsigned n; float add; } packed = {x, 5, 0};
  size_t size = sizeof packed;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  void *entry;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPoint("cuLaunchKernel", &entry, cudaEnableDefault, &found);
  MUST(reinterpret_cast<decltype(&cuLaunchKernel)>(entry)(scale, 1, 1, 1, 32, 1, 1, 0, 0, 0, extra));
  MUST(cuCtxSynchronize());
  MUST(cuMemcpyDtoH(host, x, sizeof host));
  for (float each : host) printf("%g ", each);
  printf("| %zu %d | %d", bytes, major, cuModuleGetFunction(&scale, module, "missing"));
  printf(" %d", cuModuleLoadData(&another, ".version 8.0 this is no PTX {"));
  printf(" %d", cuModuleLoadData(&another, "\177ELF machine code"));
  printf(" %d %d\n", cuMemcpyDtoH(host, x, 4096), cudaPeekAtLastError());
  MUST(cuMemFree(x));
  MUST(cuModuleUnload(module));
}
"""
)


def test_a_program_of_the_driver():
    done = command(source(PROGRAM, "driver"), options=("-q", "--flags=-lcuda"))
    assert done.stdout == "200 206 212 218 224 115 118 121 124 127 | 4 8 | 500 218 209 1 0\n", done.stderr
    assert done.returncode == 0
    for word in ("no kernel 'missing'", "cannot be loaded", "PTX, not machine code", "4,096 bytes"):
        assert word in done.stderr


TARGETS = r"""
#include <cuda.h>
#include <cstdio>
int main() {
  CUmodule module;
  for (const char *target : {"sm_80", "sm_90", "sm_90a", "sm_100f"}) {
    char text[100];
    snprintf(text, sizeof text, ".version 8.8\n.target %s\n.address_size 64\n.visible .entry k() { ret; }", target);
    printf("%d ", cuModuleLoadData(&module, text));
  }
}
"""


def test_a_program_s_module_for_another_gpu_is_refused():
    done = command(source(TARGETS, "targets"), options=("-q", "--flags=-lcuda", "--arch=9.0"))
    assert (done.stdout, done.returncode) == ("0 0 0 218 ", 0), done.stderr
    said = ".target must be one that compute capability 9.0 has (sm_90a, sm_90 or older), got sm_100f"
    assert f"the module cannot be loaded: {said}" in done.stderr


@pytest.mark.parametrize(
    "target, arch, refused",
    [
        ("sm_90", "8.0", "sm_90"),
        ("sm_90", "10.0", ""),
        ("sm_90a", "9.0", ""),
        ("sm_90a", "10.0", "sm_90a"),
        ("sm_100a", "9.0", "sm_100a"),
        ("sm_100f", "10.0", ""),
        ("sm_100f", "12.0", "sm_100f"),
        ("sm_80, debug", "8.0", ""),
        ("sm_80\n.target sm_90 // of both", "8.9", "sm_90"),
        ("sm_90\n.target sm_80", "8.9", "sm_90"),
    ],
)
def test_ptx_runs_where_a_gpu_runs_it(target, arch, refused):
    text = f".version 8.8\n.target {target}\n.address_size 64\n.visible .entry k() {{ ret; }}"
    if refused:
        with pytest.raises(UserError, match=rf"\.target must be .* {arch} has \(.*\), got {refused}$"):
            cudaemu.run_ptx(text, "k", 1, 1, [], arch=arch)
    else:
        assert cudaemu.run_ptx(text, "k", 1, 1, [], arch=arch).ok


def test_a_cluster_has_a_block_at_least():
    text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() .reqnctapercluster 0 { ret; }"
    with pytest.raises(UserError, match=r"the grid must be a multiple of the cluster \(0, 1, 1\), got \(1, 1, 1\)"):
        cudaemu.run_ptx(text, "k", 1, 1, [])


def test_ptx_without_a_target_is_refused():
    with pytest.raises(UserError, match=r"it has no \.target"):
        cudaemu.run_ptx(".version 8.0\n.address_size 64\n.visible .entry k() { ret; }", "k", 1, 1, [])


RANGES = r"""
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
__device__ char text[21];
int main() {
  char *x;
  void *variable;
  CUdeviceptr base, variables;
  size_t size, bytes;
  cudaMalloc(&x, 1000);
  cudaGetSymbolAddress(&variable, text);
  const int first = cuMemGetAddressRange(&base, &size, CUdeviceptr(x + 999));
  const int second = cuMemGetAddressRange(&variables, &bytes, CUdeviceptr(variable) + 5);
  printf("%d %d %zu, ", first, base == CUdeviceptr(x), size);
  printf("%d %d %zu, ", second, variables == CUdeviceptr(variable), bytes);
  printf("%d %d\n", cuMemGetAddressRange(&base, nullptr, CUdeviceptr(x + 1000)), cudaPeekAtLastError());
}
"""


def test_the_range_of_an_allocation():
    done = command(source(RANGES, "ranges"), options=("-q", "--flags=-lcuda"))
    assert done.stdout == "0 1 1000, 0 1 21, 500 0\n", done.stderr


def test_findings_of_loaded_modules():
    wild = source(PROGRAM.replace("unsigned n = 10", "unsigned n = 11"), "driver_wild")
    report = cudaemu.program(wild)
    assert [each.kind for each in report.findings] == ["out of bounds global"], report
    assert report.findings[0].kernel == "scale" and report.launches[0].kernel == "scale"


def test_kernels_on_memory_where_it_is():
    """NumPy's, torch's and any other, by its address: nothing is copied."""
    array, tensor, buffer = np.arange(8, dtype=np.float32), torch.arange(8.0), (ctypes.c_float * 8)(*range(8))
    places = {
        "array": (array.ctypes.data, array),
        "tensor": (tensor.data_ptr(), tensor),
        "buffer": (ctypes.addressof(buffer), (ctypes.addressof(buffer), 32)),
    }
    for name, (address, memory) in places.items():
        report = cudaemu.run_ptx(PTX, "scale", 1, 32, [address, 8, 1.0], memory={name: memory})
        assert report.ok, report
        report = cudaemu.run_ptx(PTX, "scale", 1, 32, [address, 9, 1.0], memory={name: memory})
        assert [each.kind for each in report.findings] == ["out of bounds global"] and name in str(report)
    # The second launch ends at the first access beyond: its warp has stored nothing.
    assert list(array) == list(tensor) == list(buffer) == [2 * x + 1 for x in range(8)]


@pytest.mark.parametrize("memory", [(0, 4), (4096, 0), 7, "x", (1, 2, 3)])
def test_memory_must_be_memory(memory):
    with pytest.raises(UserError, match=r"memory\['x'\] must be"):
        cudaemu.run_ptx(PTX, "scale", 1, 32, [0, 0, 1.0], memory={"x": memory})


def test_memory_must_be_there_to_read_and_write():
    """Otherwise the kernel's store would end Python."""
    constant = np.frombuffer(bytes(32), np.float32)
    mapped = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ)
    read_only = np.frombuffer(mapped, np.float32)
    places = [constant, read_only, (read_only.ctypes.data, 32), (4096, 32), (read_only.ctypes.data, 1 << 50)]
    for memory in places:
        with pytest.raises(UserError, match="x must be (writable|memory to read and write)"):
            cudaemu.run_ptx(PTX, "scale", 1, 32, [0, 0, 1.0], memory={"x": memory})
    assert constant.tobytes() == bytes(32)
