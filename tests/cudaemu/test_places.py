"""Where a finding is: the line, within lambdas too, the element of a tensor, of a shared array, and how far past the
end."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu import arrays, engine
from tests.cudaemu import sources

LAMBDAS = """
#include <cuda_runtime.h>
__device__ __forceinline__ void helper(float *p, float x) {
  p[0] = x;
}
__global__ void kernel(float *out) {
  __shared__ float tile[4][33];
  const auto put = [&](int n) {
    const auto deeper = [&](int m) {
      tile[m][n] = n;  // written
    };
    deeper(1);  // the inner call
    helper(out + n, 1.0f);  // not a lambda
  };
  put(threadIdx.x);  // the outer call
  out[threadIdx.x] = tile[1][31 - threadIdx.x % 32];  // read
}
extern "C" cudaError_t launch(float *out, int threads) {
  kernel<<<1, threads>>>(out);
  return cudaGetLastError();
}
"""


def line(text: str, mark: str) -> int:
    return text[: text.index(mark)].count("\n") + 1


def test_the_line_in_a_lambda_and_the_line_of_its_call():
    out = torch.zeros(32)
    report = cudaemu.run(sources.source(LAMBDAS, "lambdas"), "launch", [out, 32], names=["out", "threads"])
    (race,) = report.findings
    assert (race.line, race.call_line) == (line(LAMBDAS, "// read"), 0)
    assert f"written by thread (31, 0, 0) at line {line(LAMBDAS, '// written')}" in race.message
    assert "of shared memory (tile[1][31])" in race.message
    report = cudaemu.run(sources.source(LAMBDAS, "lambdas"), "launch", [torch.zeros(20), 32], names=["out", "threads"])
    (finding,) = (finding for finding in report.findings if finding.kind == "out of bounds global")
    assert (finding.line, finding.call_line) == (line(LAMBDAS, "// not a lambda"), line(LAMBDAS, "// the outer call"))
    shown = str(report)
    assert f"lambdas.cu:{finding.line} (called at line {finding.call_line})" in shown
    assert "helper(out + n, 1.0f);" in shown and "put(threadIdx.x);" in shown


INLINED = """
#include <cuda_runtime.h>
__device__ float before(const float *array, int at) {
  return array[at - 1];  // inside
}
__device__ void put(unsigned address, int x) {
  asm volatile("st.shared.u32 [%0], %1;"
               :
               : "r"(address), "r"(x));
}
__global__ void kernel(float *out, int what) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1;
  if (what == 0)
    out[0] = before(tile, threadIdx.x);  // the call
  else
    put(unsigned(__cvta_generic_to_shared(tile)) + 4096, 1);  // assembly
}
extern "C" cudaError_t launch(float *out, int what) {
  kernel<<<1, 32>>>(out, what);
  return cudaGetLastError();
}
"""


@pytest.mark.parametrize("name", ["language", "tensor"])
def test_the_lines_of_a_kernel_are_known_before_it_is_lowered(name):
    module = engine.Module((Path(__file__).parent / "seeds" / f"{name}.ptx").read_text())
    for kernel in module.kernel_names:
        known = module.lines(kernel)
        assert (
            known == {(place.file, place.line) for place in module.kernel(kernel).instructions} == module.lines(kernel)
        )
        assert len({line for _, line in known}) > 1


def test_the_line_in_a_function_is_told_beside_that_of_its_call():
    """But not one of inline assembly: the PTX says more."""
    for what, mark, inner in ((0, "// the call", line(INLINED, "// inside")), (1, "// assembly", 0)):
        arguments = [torch.zeros(1), what]
        report = cudaemu.run(sources.source(INLINED, "inlined"), "launch", arguments, names=["out", "what"])
        found = next(finding for finding in report.findings if finding.kind == "out of bounds shared")
        assert (found.line, found.call_line, found.inner_line) == (line(INLINED, mark), 0, inner)
        assert (f"inlined.cu:{found.line} (in a function, line {inner})" in str(found)) == bool(inner)
        assert ("return array[at - 1];" in str(found)) == bool(inner)


PAST_THE_END = """
#include <cuda_runtime.h>
__global__ void kernel(const float4 *a, float *out) { out[threadIdx.x] = a[threadIdx.x].w; asm volatile(""); }
__global__ void vector(const float4 *a, float4 *out) { out[threadIdx.x] = a[threadIdx.x]; }
extern "C" cudaError_t launch(const float4 *a, float4 *out, int threads) {
  vector<<<1, threads>>>(a, out);
  return cudaGetLastError();
}
"""


def test_an_access_that_begins_inside_says_how_far_it_goes_past_the_end():
    report = cudaemu.run(
        sources.source(PAST_THE_END, "past_the_end"),
        "launch",
        [torch.zeros(7, 6), torch.zeros(44), 11],
        names=["a", "out", "n"],
    )
    (finding,) = report.findings
    assert finding.kind == "out of bounds global" and finding.thread == (10, 0, 0)
    assert finding.message == "16 bytes at a[6, 4], 8 of them past its end"


SHARED = """
#include <cuda_fp16.h>
constexpr int ROWS = 8, COLUMNS = 4 * ROWS, PAD = ROWS > 4 ? 2 : 0;
#define PLANES 3
enum { DEPTH = 5 };
template <typename T, int M, int N> __global__ void __launch_bounds__(64) kernel(T *out, int at) {
  __shared__ alignas(16) T first[M][N + 1], second[PLANES][ROWS];
  __shared__ half third[DEPTH][COLUMNS + PAD][2];
  extern __shared__ float dynamic[];
  out[0] = first[at][at];
  out[3] = second[at][at + 1];
  out[1] = third[at][at + 1][1];
  out[2] = dynamic[7 * at + 3];
  first[threadIdx.x][0] = second[0][threadIdx.x] = third[0][threadIdx.x][0] = dynamic[threadIdx.x] = out[threadIdx.x];
}
extern "C" cudaError_t launch(float *out, int at) {
  kernel<float, 6, 32><<<1, 1, 512>>>(out, at);
  return cudaGetLastError();
}
"""


def test_elements_of_shared_arrays_are_named():
    report = cudaemu.run(sources.source(SHARED, "shapes"), "launch", [torch.zeros(64), 2], names=["out", "at"])
    messages = [finding.message for finding in report.findings if finding.kind == "uninitialised shared read"]
    for name in ("first[2][2]", "second[2][3]", "third[2][3][1]", "dynamic[17]"):
        assert any(f"of shared memory ({name})" in message for message in messages), (name, messages)


def test_an_element_that_is_all_that_is_used_of_an_array_is_named():
    """nvcc makes a variable of it, `_ZZ3onlyPiE1s_$_1`."""
    text = """
__global__ void only(int *o) {
  __shared__ int s[2];
  s[1] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = s[1];
}
int main() { int *o; cudaMalloc(&o, 256); only<<<1, 64>>>(o); return cudaDeviceSynchronize(); }
"""
    (race,) = cudaemu.program(sources.source(text, "only_an_element")).findings
    assert "byte 0 of shared memory (element 1 of s) is written here" in race.message


@pytest.mark.parametrize(
    ("declaration", "size", "offset", "element"),
    [
        ("__shared__ float a[4][8];", 128, 44, "[1][3]"),
        ("__shared__ half a[N][M + 8];", 2 * 6 * 24, 53, "[1][2] + 1 byte"),
        ("__shared__ Unknown a[N][M];", 6 * 16 * 12, 12 * 17, "[1][1]"),
        ("__shared__ __align__(128) double b[2], a[2][2][3];", 96, 80, "[1][1][1]"),
        ("extern __shared__ int a[];", 0, 12, "[3]"),
        ("__shared__ float a[sizeof(float) * 2][M / 4 - 1];", 8 * 3 * 4, 40, "[3][1]"),
        ("__shared__ float a[4][WHO_KNOWS];", 128, 44, None),
        ("__shared__ float a[4][9];", 128, 44, None),  # not the bytes that the PTX says
        ("float a[4][8];", 128, 44, None),
        ("__shared__ float a[4][8 /* 9 */];  // a[3]", 128, 44, "[1][3]"),
    ],
)
def test_shapes_are_read_from_the_source(tmp_path, declaration, size, offset, element):
    source = tmp_path / "shape.cu"
    source.write_text(f"static constexpr int N = 6, M = 2 * (N + 2);\n__global__ void kernel() {{ {declaration} }}\n")
    shape = arrays.shape(str(source), "_Z6kernelv", "a", size)
    assert (shape.index(offset) if shape else None) == element


def test_macros_from_outside_and_template_arguments(tmp_path):
    source = tmp_path / "shape.cu"
    source.write_text(
        "#ifndef M\n#define M 4\n#endif\ntemplate <int A, bool B, class C, int D = 7>\n"
        "__global__ void kernel(C *out) { __shared__ C a[D][A][M]; }\n"
    )
    kernel = "_Z6kernelILi3ELb1EfLi5EEvPT1_"
    assert arrays.template_arguments(kernel) == [3, 1, None, 5]
    assert arrays.shape(str(source), kernel, "a", 5 * 3 * 4 * 4) == arrays.Shape((3, 4), 4)
    assert arrays.shape(str(source), kernel, "a", 5 * 3 * 8 * 4, {"M": "8"}) == arrays.Shape((3, 8), 4)
    assert arrays.shape(str(source), "_Z6kernelPf", "a", 64) is None
    assert arrays.shape(str(tmp_path / "nowhere.cu"), kernel, "a", 64) is None


STRUCTURES = """
#include <cuda_fp16.h>
#ifndef DTYPE
#define DTYPE half  // what is computed with
#endif
using Element = DTYPE;
template <int ROWS> struct Tiles {
  static constexpr int COLUMNS = ROWS * 2;
  alignas(16) Element a[ROWS][COLUMNS];  // [row][column]
  short b[16 / sizeof(Element) - 5];
  int c[2][2];
};
struct Plain { double x[2]; float y[3][4]; };
template <int N> __global__ void __launch_bounds__(32 * (N - 2)) ring_kernel(float *out, int at) {
  extern __shared__ __align__(16) unsigned char bytes[];
  using Ring = Tiles<N>;
  Ring *ring = reinterpret_cast<Ring *>(bytes);
  out[0] = float(ring[2].a[2][at + 4]);
  out[1] = ring[0].b[at];
  out[2] = ring[1].c[1][at];
  bytes[at] = out[3];
}
__global__ void plain_kernel(float *out, int at) {
  extern __shared__ __align__(16) char others[];
  Plain &whole = *reinterpret_cast<Plain *>(others);
  out[0] = whole.y[2][at];
  whole.x[0] = out[1];
}
extern "C" cudaError_t launch(float *out, int at) {
  ring_kernel<3><<<1, 1, 512>>>(out, at);
  plain_kernel<<<1, 1, 512>>>(out, at);
  return cudaGetLastError();
}
"""


def test_members_of_structures_in_dynamic_shared_memory_are_named():
    """Where they lie, the compiler says: the kernel reads the ones that are named here."""
    report = cudaemu.run(sources.source(STRUCTURES, "structures"), "launch", [torch.zeros(64), 1], names=["out", "at"])
    messages = [finding.message for finding in report.findings if finding.kind == "uninitialised shared read"]
    names = ("ring[2].a[2][5]", "ring[0].b[1]", "ring[1].c[1][1]", "whole.y[2][1]")
    assert len(messages) == len(names)
    for name in names:
        assert any(f"of shared memory ({name})" in message for message in messages), (name, messages)


@pytest.mark.parametrize(
    "offset, name",
    [
        (0, "all.first[0]"),
        (3, None),
        (8, "all.pairs[0][0].a[0]"),
        (54, "all.pairs[1][2].b[0]"),
        (56, "all.last[0]"),
        (72, None),
    ],
)
def test_structures_in_structures(tmp_path, offset, name):
    source = tmp_path / "structure.cu"
    source.write_text("""
        struct Pair { alignas(8) short a[3]; char b[2]; };
        struct All { char first[1]; Pair pairs[2][3]; long long last[2]; };
        __global__ void kernel() {
          extern __shared__ char bytes[];
          All &all = *reinterpret_cast<All *>(bytes);
        }""")
    assert arrays.member(str(source), "_Z6kernelv", "bytes", offset) == name


@pytest.mark.parametrize(
    "change",
    [
        ("struct Plain", "union Plain"),
        ("double x[2];", "double x[2]; int z;"),  # no array: it is not understood
        ("double x[2];", "Other x[2];"),
        ("float y[3][4];", "float y[3][WHO_KNOWS];"),
        (
            "void plain_kernel",
            "void plain_kernel(float *others) { int *whole = reinterpret_cast<int *>(others); } void f",
        ),
    ],
)
def test_a_structure_that_is_not_understood_has_no_members(tmp_path, change):
    source = tmp_path / "structure.cu"
    for text, member in ((STRUCTURES, "whole.y[0][1]"), (STRUCTURES.replace(*change), None)):
        source.write_text(text)
        arrays._read.cache_clear()
        assert arrays.member(str(source), "_Z12plain_kernelPfi", "others", 20) == member


# ---- functions of other files, and of libraries ----------------------------------------------------------------------

HEADER = """#pragma once
__device__ float next_value(float *tile, int t) {
  tile[t] = t;
  return __shfl_sync(~0u, tile[(t + 1) % 64], 0);
}
"""
INCLUDES = """#include "inner_of_places.h"
__global__ void k(float *out) {
  __shared__ float tile[64];
  out[threadIdx.x] = next_value(tile, threadIdx.x);
}
"""


@pytest.mark.full
def test_a_function_of_another_file_is_named_with_its_line():
    path = sources.source(INCLUDES, "includes_inner")
    path.with_name("inner_of_places.h").write_text(HEADER)
    report = cudaemu.load(path).launch("k", 1, 64, np.zeros(64, np.float32))
    (race,) = [finding for finding in report.findings if finding.kind == "shared race"]
    assert (race.line, Path(race.inner_file).name, race.inner_line) == (4, "inner_of_places.h", 4)
    assert "(in a function, inner_of_places.h:4)" in str(race)
    assert "   4 | return __shfl_sync" in str(race)


LIBRARY = """#include <thrust/device_ptr.h>
#include <thrust/fill.h>
int main() {
  int *d;
  cudaMalloc(&d, 4000);
  thrust::device_ptr<int> p(d);
  thrust::fill(p, p + 1001, 7);  // one too many
}
"""


@pytest.mark.full
def test_a_finding_in_a_library_names_the_line_that_called_it():
    path = sources.source(LIBRARY, "library_call")
    report = cudaemu.program(path)
    (bounds,) = [finding for finding in report.findings if finding.kind == "out of bounds global"]
    assert (Path(bounds.caller_file), bounds.caller_line) == (path, 7)
    assert re.search(r"in (CUB|Thrust), called at library_call.cu:7\n +7 \| thrust::fill", str(bounds))
    assert all(len(line) < 200 for line in str(bounds).splitlines())


DEVICE_KERNEL = """#pragma once
template <class Operator> __global__ void device_kernel(Operator op) {
  op();  // all of the user's code
}
"""
OPERATOR = """#include "include/cutlass/device_kernel.h"
struct Operator {
  int *out;
  __device__ void operator()() const {
    __shared__ int a[64], b[64];
    a[threadIdx.x] = 1;
    out[threadIdx.x] = a[63 - threadIdx.x];  // first
    __syncthreads();
    b[threadIdx.x] = 1;
    out[threadIdx.x] = b[63 - threadIdx.x];  // second
  }
};
int main() {
  int *out;
  cudaMalloc(&out, 256);
  device_kernel<<<1, 64>>>(Operator{out});
}
"""


def test_mistakes_in_what_a_kernel_of_cutlass_calls_are_told_apart():
    path = sources.source(OPERATOR, "cutlass_operator")
    header = path.parent / "include/cutlass/device_kernel.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(DEVICE_KERNEL)
    races = [each for each in cudaemu.program(path).findings if each.kind == "shared race"]
    places = [(Path(each.inner_file), each.inner_line) for each in races]
    assert {line(OPERATOR, "// first"), line(OPERATOR, "// second")} <= {number for _, number in places}, places
    assert {file for file, _ in places} == {path} and len(set(places)) == len(places)
    assert f"in CUTLASS, called at {path.name}:{line(OPERATOR, 'device_kernel<<<')}" in str(races[0])


def test_one_mistake_of_a_template_is_one_finding():
    text = """template <class T> __global__ void race(T *p) {
  __shared__ T s[64];
  s[threadIdx.x] = 1;
  p[threadIdx.x] = s[63 - threadIdx.x];
}
int main() {
  float *f;
  double *d;
  cudaMalloc(&f, 64 * sizeof(float));
  cudaMalloc(&d, 64 * sizeof(double));
  race<<<1, 64>>>(f);
  race<<<1, 64>>>(d);
}
"""
    findings = cudaemu.program(sources.source(text, "template_mistake")).findings
    races = [each.line for each in findings if each.kind == "shared race"]
    assert 4 in races and len(set(races)) == len(races)
