"""Values that nobody has set: found where they matter, at the line, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cudaemu
from tests.cudaemu import sources
from tests.cudaemu.machine import kinds, launch

KERNELS = r"""
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
#define MMA(d, a, b) \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
               "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__global__ void fragment(const half *a, float *out, int) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);  // the fill
  wmma::load_matrix_sync(left, a, 16);
  wmma::load_matrix_sync(right, a, 16);
  wmma::mma_sync(sum, left, right, sum);  // the product
  wmma::store_matrix_sync(out, sum, 16, wmma::mem_row_major);
}

__global__ void accumulators(const half *a, float *out, int slices) {
  float sum[4] = {};  // the zeros
  const unsigned *words = reinterpret_cast<const unsigned *>(a);
  for (int slice = 0; slice < slices; ++slice) {
    const unsigned left[4] = {words[threadIdx.x], words[threadIdx.x], words[threadIdx.x], words[threadIdx.x]};
    const unsigned right[2] = {words[threadIdx.x], words[threadIdx.x]};
    MMA(sum, left, right);  // the product
  }
  for (int n = 0; n < 4; ++n) out[4 * threadIdx.x + n] = sum[n];
}

__global__ void maybe_set(const half *, float *out, int n) {
  float x;
  asm volatile("{.reg .pred p; setp.lt.s32 p, %1, %2; @p mov.f32 %0, 0f3F800000;}"
               : "=f"(x) : "r"(int(threadIdx.x)), "r"(n));
  if (threadIdx.x < n) out[threadIdx.x] = x;  // the store
}

__global__ void local_array(const half *, float *out, int n) {
  float mine[8];
  for (int k = 0; k < n; ++k) mine[(k * 3 + threadIdx.x) % 8] = k;
  out[threadIdx.x] = mine[0];  // the store
}

struct Padded { char c; int n; };
__global__ void padding(const half *a, float *out, int n) {  // bytes between the members are nobody's
  Padded all[3], *to = reinterpret_cast<Padded *>(out);
  for (int k = 0; k < 3; ++k) all[k].c = k, all[k].n = n;
  for (int k = 0; k < 3; ++k) to[3 * threadIdx.x + k] = all[(k + n) % 3];
}

__global__ void branch(const half *, float *out, int n) {
  int x[4];
  for (int k = 0; k < n; ++k) x[k % 4] = k;
  if (x[threadIdx.x % 4] > 1) asm volatile("st.global.u32 [%0], 1;" ::"l"(out + threadIdx.x));  // the branch
}

__global__ void half_of_a_pair(const half *, float *out, int n) {  // the other half is never looked at
  half2 x;
  x.x = __float2half(threadIdx.x);
  for (int k = 0; k < n; ++k) x.x = __hadd(x.x, x.x);
  out[threadIdx.x] = __half2float(x.x);
}

__global__ void sum_of_sixteen(const half *, float *out, int) {  // lanes above 15 are not there; lane 0 does not care
  float x = threadIdx.x;
  for (int step = 8; step; step /= 2) x += __shfl_down_sync(0xffffffff, x, step);
  if (threadIdx.x == 0) out[0] = x;
}

__global__ void sum_of_some(const half *, float *out, int n) {  // the sum is of n lanes, but the tree is of 32
  const unsigned mask = __ballot_sync(0xffffffff, threadIdx.x < n);
  if (threadIdx.x < n) {
    float x = threadIdx.x;
    for (int step = 16; step; step /= 2) x += __shfl_down_sync(mask, x, step);  // the shuffle
    if (threadIdx.x == 0) out[0] = x;  // the store
  }
}

__global__ void through_shared(const half *, float *out, int n) {
  __shared__ float tile[32];
  float x[2];
  for (int k = 0; k < n; ++k) x[k % 2] = threadIdx.x;
  tile[threadIdx.x] = x[1];  // the store
  __syncthreads();
  out[threadIdx.x] = tile[31 - threadIdx.x];  // the read
}

#define LAUNCHER(name, threads) \
  extern "C" cudaError_t launch_##name(const half *a, float *out, int n) { \
    name<<<1, threads>>>(a, out, n); \
    return cudaDeviceSynchronize(); \
  }
LAUNCHER(fragment, 32) LAUNCHER(accumulators, 32) LAUNCHER(maybe_set, 32) LAUNCHER(local_array, 32)
LAUNCHER(padding, 32) LAUNCHER(branch, 32) LAUNCHER(half_of_a_pair, 32) LAUNCHER(sum_of_sixteen, 16)
LAUNCHER(sum_of_some, 32) LAUNCHER(through_shared, 32)
"""


def run(name: str, n: int, text: str = KERNELS, key: str = "undefined"):
    a, out = torch.ones(256).half(), torch.full((256,), -1.0)
    arguments = {"number": sources.launchers(text).index(name), "a": a, "out": out, "n": n}
    source = sources.source(sources.with_one_launcher(text), key)
    return cudaemu.run(source, "launch_number", [*arguments.values()], names=[*arguments]), out


def line(text: str, mark: str, name: str) -> int:
    return text[: text.index(mark, text.index(f"void {name}("))].count("\n") + 1


@pytest.mark.parametrize(
    ("name", "n"),
    [("fragment", 0), ("accumulators", 3), ("maybe_set", 20), ("local_array", 8), ("padding", 5), ("branch", 4),
     ("half_of_a_pair", 3), ("sum_of_sixteen", 0), ("sum_of_some", 32), ("through_shared", 2)],
)  # fmt: skip
def test_right_kernels_are_clean(name, n):
    report, out = run(name, n)
    assert report.ok, report
    expected = {"sum_of_sixteen": 120, "sum_of_some": 496, "accumulators": 48, "fragment": 16, "half_of_a_pair": 0}
    assert name not in expected or out[0] == expected[name]


@pytest.mark.parametrize(
    ("name", "n", "mark", "says"),
    [
        ("maybe_set", 0, None, None),  # nothing is stored
        ("local_array", 7, "// the store", "in 4 lanes"),
        ("branch", 3, "// the branch", "the condition holds, in 8 lanes"),
        ("sum_of_some", 20, "// the store", "shuffle at line"),
        ("through_shared", 1, "// the read", "stored at line 84"),
    ],
)
def test_what_is_not_set_for_all(name, n, mark, says):
    report, _ = run(name, n)
    if mark is None:
        assert report.ok, report
        return
    (finding,) = report.findings
    assert finding.kind == "undefined value" and finding.line == line(KERNELS, mark, name), report
    assert says in finding.message, finding
    if name == "sum_of_some":
        assert f"at line {line(KERNELS, '// the shuffle', name)}" in finding.message


@pytest.mark.core(every=2)
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("fragment", "wmma::fill_fragment(sum, 0.0f);", ""), ("accumulators", "float sum[4] = {};", "float sum[4];")],
)
def test_accumulators_that_nobody_zeroed(name, old, new):
    text = KERNELS.replace(old, new)
    report, _ = run(name, 2, text, f"undefined_{name}")
    (finding,) = report.findings
    assert finding.kind == "undefined value" and finding.line == line(text, "// the product", name), report
    assert "accumulator" in finding.message and "32 lanes" in finding.message


# %r3: a word of shared memory, of each lane.
MINE = ".shared .align 16 .b32 s[32]; mov.u32 %r3, s; mad.lo.u32 %r3, %r0, 4, %r3;"
MATRIX = (
    MINE + "st.shared.u32 [%r3], %r60; bar.warp.sync -1; and.b32 %r5, %r0, 7; mov.u32 %r4, s;"
    "mad.lo.u32 %r4, %r5, 16, %r4; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r4];"
)
OUT = "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], {};"
HARMLESS = {
    "copied about": "mov.u32 %r3, %r60; mov.u32 %r4, %r3; mov.b64 %rd2, {%r4, %r3};" + OUT.format("7"),
    "not chosen": "setp.lt.u32 %p0, %r0, 99; selp.b32 %r3, %r0, %r60, %p0;" + OUT.format("%r3"),
    "the half that is set": "mov.b32 %r3, {%h1, %h2}; and.b32 %r4, %r0, 1; cvt.u16.u32 %h1, %r4;"
    "mov.b32 %r3, {%h1, %h2}; mov.b32 {%h3, %h4}, %r3; cvt.u32.u16 %r5, %h3;" + OUT.format("%r5"),
    "masked": "and.b32 %r3, %r60, 0x00ff; and.b32 %r3, %r3, 0xff00; add.u32 %r3, %r3, 5;" + OUT.format("%r3"),
    "shifted out": "mov.b32 %r3, {%h1, %h2}; cvt.u16.u32 %h2, %r0; mov.b32 %r3, {%h1, %h2}; shr.u32 %r3, %r3, 16;"
    + OUT.format("%r3"),
    "decided by the other": "setp.ge.u32 %p1, %r0, 0; or.pred %p2, %p5, %p1; selp.u32 %r3, 1, 0, %p2;"
    + OUT.format("%r3"),
    "overwritten": "add.u32 %r3, %r60, 1; mov.u32 %r3, %r0;" + OUT.format("%r3"),
    "a field": "bfi.b32 %r3, %r0, %r60, 0, 16; bfe.u32 %r4, %r3, 0, 16;" + OUT.format("%r4"),
    "converted beside another": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.f16x2.f32 %r3, %f31, %f1; mov.b32 {%h3, %h4}, %r3;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u16 [%rd31], %h3;",
    "the other one of two": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.f16x2.f32 %r3, %f1, %f31; mov.b32 {%h3, %h4}, %r3;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u16 [%rd31], %h4;",
    "eight bits beside others": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.satfinite.e4m3x2.f32 %h3, %f31, %f1;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.b8 [%rd31], %h3;",
    "eight bits, and back": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.f16x2.f32 %r3, %f1, %f31;"
    "cvt.rn.satfinite.e5m2x2.f16x2 %h3, %r3; cvt.rn.f16x2.e5m2x2 %r4, %h3; mov.b32 {%h3, %h4}, %r4;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u16 [%rd31], %h4;",
    "a byte": "prmt.b32 %r3, %r60, %r0, 0x4444;" + OUT.format("%r3"),
    "a table": "lop3.b32 %r3, %r60, 0, %r0, 0xEA;" + OUT.format("%r3"),
    "two halves": "mov.b32 %r3, {%h1, %h2}; cvt.u16.u32 %h1, %r0; mov.b32 %r3, {%h1, %h2}; add.u16x2 %r3, %r3, %r3;"
    "cvt.u32.u16 %r4, %h1; and.b32 %r3, %r3, 0xffff;" + OUT.format("%r3"),
    "a half of a sum": "mov.b32 %r3, {%h1, %h2}; cvt.u16.u32 %h1, %r0; mov.b32 %r3, {%h1, %h2};"
    "add.u16x2 %r3, %r3, %r3; mov.b32 {%h3, %h4}, %r3;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u16 [%rd31], %h3;",
    "through shared memory": MINE + "st.shared.u32 [%r3], %r60; ld.shared.u32 %r4, [%r3];" + OUT.format("7"),
    "half of a word, through shared memory": MINE
    + "cvt.u16.u32 %h1, %r0; mov.b32 %r4, {%h1, %h2}; st.shared.u32 [%r3], %r4; ld.shared.u16 %h3, [%r3];"
    "cvt.u32.u16 %r5, %h3;" + OUT.format("%r5"),
    "a bit, through shared memory": MINE
    + "and.b32 %r4, %r60, 0xfffffffe; st.shared.u32 [%r3], %r4; ld.shared.u32 %r5, [%r3]; and.b32 %r5, %r5, 1;"
    + OUT.format("%r5"),
    "overwritten in shared memory": MINE
    + "st.shared.u32 [%r3], %r60; st.shared.u32 [%r3], %r0; ld.shared.u32 %r4, [%r3];"
    + OUT.format("%r4"),
    "a vector of which one is used": ".shared .align 16 .b32 s[64]; mov.u32 %r3, s; mad.lo.u32 %r3, %r0, 8, %r3;"
    "st.shared.v2.u32 [%r3], {%r0, %r60}; ld.shared.v2.u32 {%r4, %r5}, [%r3];" + OUT.format("%r4"),
    "a matrix": MATRIX + OUT.format("7"),
    "overwritten in global memory": "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], %r60;"
    "st.global.u32 [%rd31], 7;",
    "copied to shared memory": ".shared .align 16 .b32 s[32]; mov.u32 %r3, s; mad.lo.u32 %r4, %r0, 4, %r3;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], %r60; cp.async.ca.shared.global [%r4], [%rd31], 4;"
    "cp.async.wait_all; ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd31], 7;",
    "a lane that is off": "@%p7 bra END; mov.u32 %r3, 1; END: " + OUT.format("2"),
}
HARMFUL = {
    "added": "add.u32 %r3, %r60, 1;" + OUT.format("%r3"),
    "chosen": "setp.lt.u32 %p0, %r0, 5; selp.b32 %r3, %r0, %r60, %p0;" + OUT.format("%r3"),
    "in a sum": "cvt.rn.f32.u32 %f1, %r0; fma.rn.f32 %f2, %f1, %f31, %f1; mov.b32 %r3, %f2;" + OUT.format("%r3"),
    "converted": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.f16x2.f32 %r3, %f31, %f1; mov.b32 {%h3, %h4}, %r3;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u16 [%rd31], %h4;",
    "converted to eight bits, and back": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.f16x2.f32 %r3, %f1, %f31;"
    "cvt.rn.satfinite.e5m2x2.f16x2 %h3, %r3; cvt.rn.f16x2.e5m2x2 %r4, %h3; mov.b32 {%h3, %h4}, %r4;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u16 [%rd31], %h3;",
    "converted to eight bits": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.satfinite.e4m3x2.f32 %h3, %f1, %f31;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.b8 [%rd31], %h3;",
    "compared": "setp.lt.u32 %p0, %r60, 5; selp.b32 %r3, 1, 2, %p0;" + OUT.format("%r3"),
    "an address": "add.s64 %rd3, %rd0, 0; mov.u32 %r3, 0; mul.wide.u32 %rd4, %r60, 0; add.s64 %rd3, %rd3, %rd4;"
    "st.global.u32 [%rd3], 1;",
    "a branch": "setp.lt.u32 %p0, %r60, 5; @%p0 bra END; mov.u32 %r3, 1; END:",
    "a guard": "setp.lt.u32 %p0, %r60, 5; @%p0 st.global.u32 [%rd0], 1;",
    "an atomic": "red.global.add.u32 [%rd0], %r60;",
    "a vote": "setp.lt.u32 %p0, %r60, 5; vote.sync.any.pred %p1, %p0, -1; selp.u32 %r3, 1, 0, %p1;" + OUT.format("%r3"),
    "shuffled": "shfl.sync.bfly.b32 %r3, %r60, 1, 31, -1;" + OUT.format("%r3"),
    "through shared memory": MINE + "st.shared.u32 [%r3], %r60; ld.shared.u32 %r4, [%r3];" + OUT.format("%r4"),
    "a byte with its sign": MINE
    + "st.shared.u32 [%r3], %r60; ld.shared.s8 %r4, [%r3]; shr.s32 %r4, %r4, 31;"
    + OUT.format("%r4"),
    "a matrix": MATRIX + OUT.format("%r6"),
    "a matrix stored": MINE + "mov.u32 %r4, s; and.b32 %r5, %r0, 7; mad.lo.u32 %r4, %r5, 16, %r4;"
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r4], {%r60}; bar.warp.sync -1; ld.shared.u32 %r6, [%r3];"
    + OUT.format("%r6"),
    "through global memory": "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], %r60;"
    "ld.global.u32 %r4, [%rd31]; setp.lt.u32 %p0, %r4, 5; st.global.u32 [%rd31], 7; @%p0 bra END; mov.u32 %r3, 1; END:",
    "copied to shared memory": ".shared .align 16 .b32 s[32]; mov.u32 %r3, s; mad.lo.u32 %r4, %r0, 4, %r3;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; st.global.u32 [%rd31], %r60; cp.async.ca.shared.global [%r4], [%rd31], 4;"
    "cp.async.wait_all; ld.shared.u32 %r5, [%r4];" + OUT.format("%r5"),
    "copied by TMA": MINE + "st.shared.u32 [%r3], %r60; fence.proxy.async.shared::cta; bar.warp.sync -1;"
    "setp.eq.u32 %p1, %r0, 0; @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [s], 128;"
    "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; bar.warp.sync -1;"
    "mad.wide.u32 %rd31, %r0, 4, %rd0; ld.global.u32 %r4, [%rd31]; setp.lt.u32 %p0, %r4, 5;"
    "st.global.u32 [%rd31], 7; @%p0 bra END; mov.u32 %r3, 1; END:",
    "what an atomic finds": MINE + "st.shared.u32 [%r3], %r60; atom.shared.add.u32 %r4, [%r3], 1;" + OUT.format("%r4"),
    "a local word": ".local .align 4 .b32 l[4]; st.local.u32 [l], 1; ld.local.u32 %r3, [l+4];" + OUT.format("%r3"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_no_harm(name):
    c = np.zeros(32, np.uint32)
    result = launch(HARMLESS[name].replace("@%p7 bra", "setp.lt.u32 %p7, %r0, 5; @%p7 bra"), c)
    assert not result.findings, result.findings


@pytest.mark.parametrize("name", HARMFUL)
def test_what_matters(name):
    result = launch(HARMFUL[name], np.zeros(32, np.uint32))
    assert set(kinds(result)) <= {"undefined value", "out of bounds global", "null pointer"}
    assert kinds(result)[-1] == "undefined value" or "undefined value" in kinds(result), result.findings
    assert not launch(HARMFUL[name], np.zeros(32, np.uint32), sanitize=False).findings or "bounds" in str(
        result.findings
    )


@pytest.mark.parametrize(
    ("a", "b", "c", "says"),
    [("%r60", "%r1", "%f1", "operand A"), ("%r1", "%r60", "%f1", "operand B"), ("%r1", "%r1", "%f30", "operand C")],
)
def test_which_operand_of_a_product(a, b, c, says):
    body = f"""mov.f32 %f1, 0f00000000; mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%f2, %f3, %f4, %f5}},
        {{%r1, %r1, %r1, {a}}}, {{%r1, {b}}}, {{%f1, %f1, %f1, {c}}};"""
    (finding,) = launch(body, np.zeros(32, np.uint32)).findings
    assert says in finding.message and ("zeroed" in finding.message) == (says == "operand C")


HOST = r"""
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void some(int *to, int n) {  // what the other lanes store, nobody has set
  int x[2];
  for (int k = 0; k < n; ++k) x[k % 2] = k;
  to[threadIdx.x] = x[threadIdx.x % 2];  // the store
}
__global__ void pass_on(const int *from, int *to) { to[31 - threadIdx.x] = from[threadIdx.x]; }  // passed on
__global__ void look(const int *from, int *to) {
  if (from[threadIdx.x] > 3) asm volatile("st.global.u32 [%0], 1;" ::"l"(to));  // the look
}
int main(int, char **argv) {
  int *a, *b, host[32], *managed;
  cudaMalloc(&a, sizeof host), cudaMalloc(&b, sizeof host), cudaMallocManaged(&managed, sizeof host);
  cudaMemset(b, 0, sizeof host);
  const int what = atoi(argv[1]);
  some<<<1, 32>>>(what == 6 ? managed : a, 1);
  switch (what) {
    case 1: cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost); break;
    case 2: cudaMemcpy(host, a, 4, cudaMemcpyDeviceToHost); break;  // that one is set
    case 3: pass_on<<<1, 32>>>(a, b); break;
    case 4: pass_on<<<1, 32>>>(a, b), cudaMemcpy(host, b, sizeof host, cudaMemcpyDeviceToHost); break;
    case 5: look<<<1, 32>>>(a, b); break;
    case 7: cudaMemset(a, 0, sizeof host), cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost); break;
    case 8: cudaMemcpy(b, a, sizeof host, cudaMemcpyDeviceToDevice);
      cudaMemcpy(host, b, sizeof host, cudaMemcpyDeviceToHost); break;
    case 9: some<<<1, 32>>>(a, 2), cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost); break;
    case 10: cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice);
      cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost); break;
    case 11: cudaMemcpy(a, b, sizeof host, cudaMemcpyDeviceToDevice);
      cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost); break;
  }
  return cudaDeviceSynchronize();
}
"""


@pytest.mark.parametrize(
    ("what", "mark"),
    [(1, "// the store"), (2, None), (3, None), (4, "// passed on"), (5, "// the look"), (6, "// the store"), (7, None),
     (8, "// the store"), (9, None), (10, None), (11, None)],
)  # fmt: skip
def test_what_the_host_reads(what, mark):
    """A value that nobody has set may lie in global memory, and pass from kernel to kernel, until it matters."""
    report = cudaemu.program(sources.source(HOST, "undefined_host"), [str(what)])
    expected = [] if mark is None else [HOST[: HOST.index(mark)].count("\n") + 1]
    assert [finding.line for finding in report.findings] == expected, report
    assert {finding.kind for finding in report.findings} <= {"undefined value"}


SURFACE = r"""
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void some(cudaSurfaceObject_t to, int n) {
  int x[2];
  for (int k = 0; k < n; ++k) x[k % 2] = k;
  surf2Dwrite(x[threadIdx.x % 2], to, 4 * threadIdx.x, 0);
}
__global__ void pass_on(cudaSurfaceObject_t s, int *to) {
  to[threadIdx.x] = surf2Dread<int>(s, 4 * threadIdx.x, 0);  // passed on
}
int main(int, char **argv) {
  int *a, host[32] = {};
  cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
  cudaResourceDesc resource = {cudaResourceTypeArray};
  cudaSurfaceObject_t surface;
  cudaMalloc(&a, sizeof host);
  cudaMallocArray(&resource.res.array.array, &format, 32, 1, cudaArraySurfaceLoadStore);
  cudaCreateSurfaceObject(&surface, &resource);
  some<<<1, 32>>>(surface, 1);
  if (atoi(argv[1])) some<<<1, 32>>>(surface, 2);
  pass_on<<<1, 32>>>(surface, a);
  return cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost);
}
"""


@pytest.mark.parametrize(("again", "found"), [(0, 1), (1, 0)])
def test_surfaces_pass_it_on_as_memory_does(again, found):
    report = cudaemu.program(sources.source(SURFACE, "undefined_surface"), [str(again)])
    there = SURFACE[: SURFACE.index("// passed on")].count("\n") + 1
    assert [(each.kind, each.line) for each in report.findings] == found * [("undefined value", there)], report


SOME_LANES = """setp.lt.u32 %p0, %r0, 8; @%p0 mov.u32 %r3, 5; setp.lt.u32 %p1, %r0, {}; @!%p1 exit;""" + OUT.format(
    "%r3"
)


def test_lanes_are_told_apart():
    c = np.zeros(32, np.uint32)
    assert not launch(SOME_LANES.format(8), c).findings and (c[:8] == 5).all()
    (finding,) = launch(SOME_LANES.format(10), c).findings
    assert finding.thread == (8, 0, 0) and "in 2 lanes" in finding.message


def test_a_loop_that_sets_it_in_its_first_turn():
    """The compiler may move the use before the loop's end; every value that is used has been set."""
    c = np.zeros(32, np.uint32)
    result = launch(
        """mov.u32 %r4, 0; L: setp.eq.u32 %p0, %r4, 0; @%p0 mov.u32 %r3, %r0; add.u32 %r3, %r3, 1;
        add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 5; @%p1 bra L;"""
        + OUT.format("%r3"),
        c,
    )
    assert not result.findings and np.array_equal(c, np.arange(32) + 5)


@pytest.mark.core(every=3)
@pytest.mark.parametrize(
    "use, written, found",
    [("*b = *from", 1, 0), ("*b = *from", 0, 1), ("b->x = from->x + from->y + from->z + from->w", 1, 1)],
)
@pytest.mark.parametrize("space", ["shared", "global"])
def test_what_pads_a_structure_that_is_copied(space, use, written, found):
    """nvcc copies a structure by vectors of integers; what pads it was never written. Numbers are to be there, all."""
    place = "__shared__ float4 s; float4 *from = &s;" if space == "shared" else "float4 *from = a;"
    report = cudaemu.program(
        sources.source(
            f"""__global__ void k(float4 *a, float4 *b, int written) {{
  {place}
  if (threadIdx.x < written) from->x = 1;
  __syncthreads();
  if (threadIdx.x == 32) {use};
}}
int main() {{
  float4 *a, *b;
  cudaMalloc(&a, sizeof *a), cudaMalloc(&b, sizeof *b);
  k<<<1, 64>>>(a, b, {written});
  cudaDeviceSynchronize();
}}
""",
            f"pads_{space}_{written}_{found}",
        )
    )
    assert [each.kind for each in report.findings] == [f"uninitialised {space} read"] * found, report


PRINTS = r"""
#include <cstdio>
__global__ void k(int n) {
  int x, y[2];
  for (int k = 0; k < n; ++k) y[k % 2] = k;
  printf("%d %g\n", n, double(threadIdx.x));
  printf("%d %s %d\n", n, "and", y[1]);  // y
  if (threadIdx.x == 3) printf("%d\n", x);  // x
}
int main() { k<<<1, 32>>>(1); return cudaDeviceSynchronize(); }
"""


def test_printing_depends_on_what_is_printed():
    report = cudaemu.program(sources.source(PRINTS, "prints"))
    found = [(each.kind, each.line, each.thread) for each in report.findings]
    lines = [PRINTS[: PRINTS.index(f"// {mark}\n")].count("\n") + 1 for mark in "yx"]
    assert found == [("undefined value", lines[0], (0, 0, 0)), ("undefined value", lines[1], (3, 0, 0))], report
    assert "argument 3 after this printf's text" in report.findings[0].message
    assert "in one lane" in report.findings[1].message


STRUCTURES = r"""
#include <cuda_runtime.h>
struct A { double d; char c; };
struct B { int i; char c; };
struct C { double d; short s; };
struct D { short s; int i; };
struct E { char c; double d; };
struct F { double d; int i; };
struct G { float4 f; int i; };
struct __align__(16) H { int i; };
struct I { char c; short s; float4 f; };
#define SET(T, statements) __device__ void set(T &x, int n) { statements }
SET(A, x.d = n; x.c = n;) SET(B, x.i = n; x.c = n;) SET(C, x.d = n; x.s = n;) SET(D, x.s = n; x.i = n;)
SET(E, x.c = n; x.d = n;) SET(F, x.d = n; x.i = n;) SET(G, x.f = make_float4(n, n, n, n); x.i = n;) SET(H, x.i = n;)
SET(I, x.c = n; x.s = n; x.f = make_float4(n, n, n, n);)
template <class T> __global__ void through_shared(T *out, int n) {
  __shared__ T s[32], t[32];
  set(s[threadIdx.x], n);
  __syncthreads();
  t[threadIdx.x] = s[31 - threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = t[31 - threadIdx.x];
}
template <class T> __global__ void through_global(T *to, T *out, int n) {
  set(to[threadIdx.x], n);
  __syncthreads();
  out[threadIdx.x] = to[31 - threadIdx.x];
}
template <class T> __global__ void through_local(T *out, int n) {
  T x[4];
  for (int k = 0; k < 4; ++k) set(x[(k * n + threadIdx.x) % 4], n);
  out[threadIdx.x] = x[n % 4];
}
template <class T> void all() {
  T *a, *b, host[32];
  cudaMalloc(&a, sizeof host), cudaMalloc(&b, sizeof host);
  through_shared<<<1, 32>>>(a, 3), cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost);
  through_global<<<1, 32>>>(b, a, 3), cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost);
  through_local<<<1, 32>>>(a, 3), cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost);
}
int main() { all<A>(), all<B>(), all<C>(), all<D>(), all<E>(), all<F>(), all<G>(), all<H>(), all<I>(); }
"""


def test_gaps_of_structures_may_be_copied():
    """Gaps are copied as vectors and numbers of their own, which hold nothing that was ever written."""
    report = cudaemu.program(sources.source(STRUCTURES, "structures"))
    assert report.ok, report


MEMBERS = r"""
#include <cuda_runtime.h>
struct Tail { double d; int i; };
struct Middle { float f; int i; double d; };
struct Bytes { double d; int i; uchar4 c; };
__device__ int nothing(int n) {
  int x[2];
  for (int k = 0; k < n; ++k) x[k % 2] = k;
  return x[1];
}
__global__ void never_written(Tail *out, int n) {
  __shared__ Tail s[32];
  s[threadIdx.x].d = n;
  __syncthreads();
  out[threadIdx.x] = s[31 - threadIdx.x];  // never_written
}
__global__ void tail(Tail *out, int n) {
  out[threadIdx.x].d = n;
  out[threadIdx.x].i = nothing(n);  // tail
}
__global__ void middle(Middle *out, int n) {
  __shared__ Middle s[32];
  s[threadIdx.x].f = n, s[threadIdx.x].i = nothing(n), s[threadIdx.x].d = n;
  __syncthreads();
  out[threadIdx.x] = s[31 - threadIdx.x];  // middle
}
__global__ void used(int *out, int n) {  // copied, it may be a gap
  __shared__ Bytes s[32], t[32];
  s[threadIdx.x].d = n, s[threadIdx.x].i = n;
  __syncthreads();
  t[threadIdx.x] = s[31 - threadIdx.x];  // copied
  __syncthreads();
  out[threadIdx.x] = t[threadIdx.x].c.x + t[threadIdx.x].c.y;  // used
}
template <class T> void run(void (*kernel)(T *, int)) {
  T *a, host[32];
  cudaMalloc(&a, sizeof host), cudaMemset(a, 0, sizeof host);
  kernel<<<1, 32>>>(a, 1), cudaMemcpy(host, a, sizeof host, cudaMemcpyDeviceToHost);
}
int main() { run(never_written), run(tail), run(middle), run(used); }
"""


def test_members_that_nobody_set_are_no_gaps():
    report = cudaemu.program(sources.source(MEMBERS, "members"))

    def at(mark: str) -> int:
        return MEMBERS[: MEMBERS.index(f"// {mark}\n")].count("\n") + 1

    assert [(each.kind, each.line) for each in report.findings] == [
        ("uninitialised shared read", at("never_written")),
        *(("undefined value", at(mark)) for mark in ("tail", "middle", "used")),
    ], report
    assert f"read with what lies beside it at line {at('copied')}" in report.findings[-1].message


HALF_OF_A_PAIR = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out) {
.reg .f32 %f<4>; .reg .b64 %w<3>;
ld.param.u64 %w0, [out];
mov.f32 %f0, 0f3F800000;
mov.b64 %w1, {%f0, %f1};
add.rn.f32x2 %w2, %w1, %w1;
mov.b64 {%f2, %f3}, %w2;
st.global.f32 [%w0], %f{KEPT};
ret; }
"""


@pytest.mark.parametrize("kept, found", [(2, []), (3, ["undefined value"])])
def test_a_pair_of_f32_is_undefined_by_halves(kept, found):
    out = np.zeros(1, np.float32)
    report = cudaemu.run_ptx(HALF_OF_A_PAIR.replace("{KEPT}", str(kept)), "k", 1, 1, [out], arch="10.0a")
    assert [finding.kind for finding in report.findings] == found, report
    assert found or out[0] == 2
