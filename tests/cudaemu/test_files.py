"""Programs of several files: CUDA, C++ and C, with and without relocatable device code."""

from __future__ import annotations

from pathlib import Path

import pytest

import cudaemu
from cudaemu.errors import UserError
from cudaemu.link import link
from tests.cudaemu.sources import source
from tests.cudaemu.test_programs import command

pytestmark = pytest.mark.full  # several compilers for each

# Each file has a kernel, a variable and device functions of the other's names.
MAIN = r"""
#include <cstdio>
#include <cstdlib>
extern "C" int of_c(int);
int of_cpp(int);
void launch(int *out);
static __device__ int hidden = 3;
__device__ int counter = 1;
static __device__ __noinline__ int step(int x) { return x + hidden + counter; }
static __global__ void kernel(int *out) { out[0] = step(10); }
int main(int argc, char **argv) {
  int *d, h[2], three = 3, one;
  cudaMalloc(&d, sizeof h);
  kernel<<<1, 1>>>(d);
  launch(d);
  cudaMemcpyToSymbol(counter, &three, sizeof three);  // this file's
  kernel<<<1, 1>>>(d);
  launch(d);
  cudaMemcpyFromSymbol(&one, hidden, sizeof one);
  cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
  printf("%d %d %d %d %s\n", h[0], h[1], one, of_cpp(of_c(5)), argc > 1 ? argv[1] : "-");
}
"""
OTHER = r"""
static __device__ int hidden = 4;
__device__ int counter = 2;
static __device__ __noinline__ int step(int x) { return x * hidden * counter; }
static __global__ void kernel(int *out) { out[1] = step(10); }
void launch(int *out) { kernel<<<1, 1>>>(out); }
"""
CPP = "#include <vector>\nint of_cpp(int x) { return int(std::vector<int>(x).size()) + SHIFT; }\n"
C = "int of_c(int class) { return 2 * class; }\n"  # no C++


def files(**texts: str) -> list[Path]:
    """Files NAME.KIND of these texts: `main_cu="..."`."""
    made = []
    for name, text in texts.items():
        stem, kind = name.rsplit("_", 1)
        path = source(text, f"files_{stem}")
        made.append(path if kind == "cu" else path.with_suffix(f".{kind}"))
        if kind != "cu" and not (made[-1].exists() and made[-1].read_text() == text):
            path.rename(made[-1])
    return made


def test_each_file_is_a_world_of_its_own():
    """Names of device code that two files have are two things, as with nvcc; options may follow the files."""
    paths = files(main_cu=MAIN, other_cu=OTHER, host_cpp=CPP, plain_c=C)
    done = command(paths[0], *paths[1:], "-D", "SHIFT=100", "--", "-x", options=("-q",))
    assert done.stdout == "16 80 3 110 -x\n" and done.returncode == 0, done.stderr


def test_arguments_may_follow_the_files_without_a_mark():
    paths = files(main_cu=MAIN, other_cu=OTHER, host_cpp=CPP, plain_c=C)
    done = command(paths[0], *paths[1:], "-x", options=("-q", "-D", "SHIFT=100"))
    assert done.stdout == "16 80 3 110 -x\n", done.stderr


SHARED_MAIN = r"""
#include <cstdio>
extern __device__ int total;
extern __constant__ float factors[2];
__device__ float scaled(float x);
template <class T> __device__ __noinline__ T twice(T x) { return x + x; }
static __device__ int hidden = 3;
static __global__ void kernel(float *out) { out[0] = twice(scaled(1)) + factors[1] + hidden; atomicAdd(&total, 5); }
void launch(float *out);
int main() {
  float *d, h[2];
  cudaMalloc(&d, sizeof h);
  kernel<<<1, 1>>>(d);
  launch(d);
  cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
  int seen;
  cudaMemcpyFromSymbol(&seen, total, sizeof seen);
  printf("%g %g %d\n", h[0], h[1], seen);
}
"""
SHARED_OTHER = r"""
__device__ int total = 7;
__constant__ float factors[2] = {10, 20};
template <class T> __device__ __noinline__ T twice(T x) { return x + x; }
static __device__ int hidden = 4;
__device__ float scaled(float x) { return x * factors[0]; }
static __global__ void kernel(float *out) { out[1] = twice(scaled(2)) + hidden + total; }
void launch(float *out) { kernel<<<1, 1>>>(out); }
"""


def test_relocatable_device_code():
    main, other = files(shared_main_cu=SHARED_MAIN, shared_other_cu=SHARED_OTHER)
    report = cudaemu.program(main, own_terminal=False, sources=[other], flags=["-rdc=true"])
    assert report.ok, report
    assert [launch.kernel for launch in report.launches] == ["kernel", "kernel"]
    assert command(main, other, options=("-q", "--flags=-rdc=true")).stdout == "43 56 12\n"


def test_what_the_files_lack_is_said():
    main, other = files(shared_main_cu=SHARED_MAIN, shared_other_cu=SHARED_OTHER)
    with pytest.raises(UserError, match=r"uses (total|factors|scaled).*-rdc=true"):
        cudaemu.program(main, sources=[other])
    with pytest.raises(UserError, match=r"launch\(float\*\).*other files"):
        cudaemu.program(main, flags=["-rdc=true"])
    with pytest.raises(UserError, match="no such file"):
        cudaemu.program(main, sources=["missing.cu"])
    with pytest.raises(UserError, match=r"must end in \.cu"):
        cudaemu.program(main, sources=[__file__])


def test_what_is_defined_twice_is_said():
    part = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .func _Z4helpv()\n{\n\tret;\n}\n"
    with pytest.raises(UserError, match=r"help.*twice.*a\.cu.*b\.cu"):
        link([part, part], ["a.cu", "b.cu"], relocatable=True)
    assert link([part, part], ["a.cu", "b.cu"], relocatable=False).count(".func") == 2


CHILD = (
    "__global__ void inner() {}\n__global__ void outer() { inner<<<1, 1>>>(); }\nint main() { outer<<<1, 1>>>(); }\n"
)


@pytest.mark.parametrize("flags", [[], ["-rdc=true"]])
def test_dynamic_parallelism_is_called_by_its_name(flags):
    with pytest.raises(UserError, match="dynamic parallelism.*from the host"):
        cudaemu.program(source(CHILD, "files_child"), flags=flags)
