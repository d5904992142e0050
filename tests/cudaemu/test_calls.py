"""Calls that are calls: through pointers, of virtual functions, recursive ones; malloc; and what the device runtime
does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu.errors import UserError
from tests.cudaemu import sources

SOURCE = r"""
#include <cassert>
#include <cstdio>
#include <cuda_runtime.h>

// ---- through pointers ----

typedef int (*Operation)(int, int);
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int subtract(int a, int b) { return a - b; }
__device__ __noinline__ int times(int a, int b) {
  int many[8];
  for (int n = 0; n < 8; ++n) many[n] = a;
  return many[b & 7] * b;
}
__device__ Operation operations[] = {add, subtract, times};

__global__ void pointers(int *out, int n) {
  const int t = threadIdx.x;
  const Operation f = operations[t % n];
  int sum = t * 1000;
  for (int k = 0; k < 3; ++k) sum += f(sum, k + t);  // values that live across the call
  out[t] = sum;
}

__global__ void wild(int *out, int) {
  const Operation f = Operation(size_t(out[0]));
  out[1] = f(1, 2);
}

// ---- virtual functions, of objects made by new ----

struct Shape {
  int side;
  __device__ Shape(int side) : side(side) {}
  __device__ virtual ~Shape() {}
  __device__ virtual int area() const = 0;
};
struct Square : Shape {
  __device__ Square(int side) : Shape(side) {}
  __device__ int area() const override { return side * side; }
};
struct Cube : Shape {
  __device__ Cube(int side) : Shape(side) {}
  __device__ int area() const override { return 6 * Square(side).area(); }
};

__global__ void virtual_calls(int *out, int) {
  const int t = threadIdx.x;
  Shape *shape = t % 3 ? (Shape *)new Square(t) : new Cube(t);
  out[t] = shape->area();
  delete shape;
}

// ---- recursion ----

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__global__ void recursion(int *out, int n) { out[threadIdx.x] = fibonacci(threadIdx.x % n); }

__device__ bool odd(int n);
__device__ __noinline__ bool even(int n) { return n == 0 || odd(n - 1); }
__device__ __noinline__ bool odd(int n) { return n != 0 && even(n - 1); }
__global__ void mutual(int *out, int n) { out[threadIdx.x] = even(threadIdx.x % n) + 2 * odd(threadIdx.x % n); }

struct Node { int key; Node *left, *right; };
__device__ __noinline__ Node *insert(Node *tree, int key) {
  if (!tree) {
    Node *made = new Node;
    *made = {key, nullptr, nullptr};
    return made;
  }
  if (key < tree->key) tree->left = insert(tree->left, key);
  else tree->right = insert(tree->right, key);
  return tree;
}
__device__ __noinline__ int list(Node *tree, int *out, int at) {
  if (!tree) return at;
  at = list(tree->left, out, at);
  out[at] = tree->key;
  at = list(tree->right, out, at + 1);
  delete tree;
  return at;
}
__global__ void tree(int *out, int n) {
  Node *root = nullptr;
  for (int k = 0; k < n; ++k) root = insert(root, (k * 7 + threadIdx.x * 3) % n);
  list(root, out + threadIdx.x * n, 0);
}

__device__ __noinline__ int deep(int n, int *out) {
  int here[16];
  here[n & 15] = n;
  int below = deep(n + 1, out);
  return here[below & 15];
}
__global__ void overflow(int *out, int) { out[0] = deep(0, out); }

__device__ __noinline__ void shuffled(int *out, int depth, int *sum) {  // lanes meet at every depth
  *sum += __shfl_xor_sync(0xffffffff, threadIdx.x, 1) + depth;
  if (depth) shuffled(out, depth - 1, sum);
}
__global__ void together(int *out, int n) {
  int sum = 0;
  shuffled(out, n, &sum);
  out[threadIdx.x] = sum;
}

// ---- malloc ----

__global__ void allocate(int *out, int n) {
  int *mine = (int *)malloc(n * sizeof(int));
  if (!mine) { out[threadIdx.x] = -1; return; }
  for (int k = 0; k < n; ++k) mine[k] = k * threadIdx.x;
  int sum = 0;
  for (int k = 0; k < n; ++k) sum += mine[k];
  free(mine);
  out[threadIdx.x] = sum;
}
__device__ int *kept;
__global__ void keep(int *, int n) { kept = (int *)malloc(n * sizeof(int)); for (int k = 0; k < n; ++k) kept[k] = k; }
__global__ void use(int *out, int n) { for (int k = 0; k < n; ++k) out[k] = kept[k] + 1; free(kept); }
__global__ void past_the_end(int *out, int n) {
  int *mine = (int *)malloc(n * sizeof(int));
  mine[n] = 1; out[0] = mine[0];
}
__global__ void unwritten(int *out, int n) { int *mine = (int *)malloc(n * sizeof(int)); out[0] = mine[1]; free(mine); }
__global__ void after_free(int *out, int n) {
  int *mine = (int *)malloc(n * sizeof(int));
  mine[0] = 1;
  free(mine);
  out[0] = *(volatile int *)mine;
}
__global__ void twice(int *, int n) { void *mine = malloc(n); free(mine); free(mine); }
__global__ void exhaust(int *out, int) { out[0] = malloc(1 << 30) == nullptr; }

// ---- assert, printf ----

__device__ __noinline__ void say(int n) { if (n) { printf("at %d\n", n); say(n - 1); } }
__global__ void speak(int *, int n) { if (threadIdx.x == 3) say(n); }
__global__ void asserts(int *out, int n) { assert(out[threadIdx.x] < n); }

#define LAUNCHER(name) \
  extern "C" cudaError_t launch_##name(int *out, int n, int threads) { \
    name<<<1, threads>>>(out, n); \
    return cudaDeviceSynchronize(); \
  }
LAUNCHER(pointers) LAUNCHER(wild) LAUNCHER(virtual_calls) LAUNCHER(recursion) LAUNCHER(mutual) LAUNCHER(tree)
LAUNCHER(overflow) LAUNCHER(together) LAUNCHER(allocate) LAUNCHER(past_the_end) LAUNCHER(unwritten) LAUNCHER(after_free)
LAUNCHER(twice) LAUNCHER(exhaust) LAUNCHER(speak) LAUNCHER(asserts)
extern "C" cudaError_t launch_keep(int *out, int n, int) {
  keep<<<1, 1>>>(out, n);
  use<<<1, 1>>>(out, n);
  return cudaDeviceSynchronize();
}
"""


def run(name: str, n: int, threads: int = 64, fill: int = 0, size: int = 64, **options):
    out = torch.full((size,), fill, dtype=torch.int32)
    source = sources.source(sources.with_one_launcher(SOURCE), "calls")
    arguments = {"number": sources.launchers(SOURCE).index(name), "out": out, "n": n, "threads": threads}
    report = cudaemu.run(source, "launch_number", [*arguments.values()], names=[*arguments], **options)
    return report, out.numpy()


def lines(text: str) -> int:
    return SOURCE[: SOURCE.index(text)].count("\n") + 1


THREAD = np.arange(64)


def test_functions_through_pointers():
    report, out = run("pointers", 3)
    assert report.ok, report
    functions = (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b)
    expected = []
    for t in range(64):
        total = t * 1000
        for k in range(3):
            total += functions[t % 3](total, k + t)
        expected.append((total + 2**31) % 2**32 - 2**31)
    assert np.array_equal(out, expected)


def test_a_wild_pointer():
    report, _ = run("wild", 0, 1, fill=1234)
    (finding,) = report.findings
    assert finding.kind == "call of no function" and "0x4d2" in finding.message and report.status == 700
    assert finding.line == lines("out[1] = f(1, 2)")


def test_virtual_functions():
    report, out = run("virtual_calls", 0)
    assert report.ok, report
    assert np.array_equal(out, np.where(THREAD % 3, THREAD**2, 6 * THREAD**2))


def test_recursion():
    report, out = run("recursion", 12)
    assert report.ok, report
    numbers = [0, 1]
    while len(numbers) < 12:
        numbers.append(sum(numbers[-2:]))
    assert np.array_equal(out, np.array(numbers)[THREAD % 12])
    report, out = run("mutual", 17)
    assert report.ok and np.array_equal(out, np.where(THREAD % 17 % 2, 2, 1)), report


def test_a_tree_of_nodes():
    n = 40
    report, out = run("tree", n, 20, size=20 * n)
    assert report.ok, report
    assert np.array_equal(out.reshape(20, n), np.tile(np.arange(n), (20, 1)))


def test_a_recursion_without_end():
    report, _ = run("overflow", 0, 1)
    (finding,) = report.findings
    assert finding.kind == "stack overflow" and "16384 bytes" in finding.message
    assert finding.line == lines("int below = deep(n + 1")


def test_lanes_meet_within_a_recursion():
    report, out = run("together", 5)
    assert report.ok and np.array_equal(out, 6 * (THREAD ^ 1) + 15), report
    assert report.counters["instructions.shuffle"] == 2 * 6, "all lanes of a warp shuffle at once"


def test_malloc():
    report, out = run("allocate", 100)
    assert report.ok and np.array_equal(out, THREAD * 4950), report
    report, out = run("keep", 10)
    assert report.ok and np.array_equal(out[:10], np.arange(10) + 1), report
    report, out = run("exhaust", 0, 1)
    assert report.ok and out[0] == 1, report


@pytest.mark.parametrize(
    ("name", "kind", "at"),
    [
        ("past_the_end", "out of bounds global", "mine[n] = 1"),
        ("unwritten", "uninitialised global read", "out[0] = mine[1]"),
        ("after_free", "out of bounds global", "out[0] = *(volatile int *)mine"),
        ("twice", "bad free", "void *mine = malloc(n)"),
    ],
)
def test_misuse_of_allocated_memory(name, kind, at):
    report, _ = run(name, 4, 1)
    (finding,) = report.findings
    assert (finding.kind, finding.line) == (kind, lines(at)), report
    assert "heap" in finding.message


def test_printf_in_a_recursion(capsys):
    report, _ = run("speak", 3)
    assert report.ok and capsys.readouterr().out == "at 3\nat 2\nat 1\n", report


def test_assert(capsys):
    report, _ = run("asserts", 5, fill=7)
    (finding,) = report.findings
    assert finding.kind == "assertion failed" and finding.line == lines("assert(out[threadIdx.x] < n)")
    assert report.status == 710 and "assert" in report.error
    text = capsys.readouterr().out
    assert f"calls.cu:{finding.line}: void asserts(int *, int): block: [0,0,0], thread: [0,0,0]" in text
    assert "Assertion `out[threadIdx.x] < n` failed." in text
    assert run("asserts", 8, fill=7)[0].ok


CLUSTER = """
#include <cuda_runtime.h>
__global__ void __cluster_dims__(%d, 1, 1) kernel(unsigned *out) {
  unsigned rank, count;
  asm("mov.u32 %%0, %%%%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %%0, %%%%cluster_nctarank;" : "=r"(count));
  out[blockIdx.x] = rank + 10 * count;
}
extern "C" cudaError_t launch(unsigned *out) { kernel<<<4, 1>>>(out); return cudaGetLastError(); }
"""


def test_clusters():
    out = torch.zeros(4, dtype=torch.int32)
    report = cudaemu.run(sources.source(CLUSTER % 1, "cluster_of_one"), "launch", [out], names=["out"], arch="9.0")
    assert report.ok and (out == 10).all(), report
    report = cudaemu.run(sources.source(CLUSTER % 2, "cluster_of_two"), "launch", [out], names=["out"], arch="9.0")
    assert report.ok and out.tolist() == [20, 21, 20, 21], report


UNSUPPORTED = {
    "wgmma": ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 %r1, %r2;", "all but the sparse ones"),
    "mbarrier": (".shared .b64 b; mbarrier.rotate.shared.b64 %rd1, [b], 1;", "cp.async groups"),
    "texture": ("tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [t, {%r1}];", "texture objects of 1 to 3 dimensions"),
    "tma": (
        ".shared .b64 b; cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [b], "
        "[%rd0, {%r1, %r1, %r1}], [b], {%h1};",
        "A copy of tiles",
    ),
    "anything": ("frobnicate.u32 %r1, %r2;", "docs/emulator.md"),
    "half a form": ("add.u32 %r1, %r2;", "docs/emulator.md"),
    "no type": ("ld.global %r1, [%rd0];", "docs/emulator.md"),
    "no operands": ("shfl.sync.bfly.b32;", "docs/emulator.md"),
    "a label as a number": ("cp.async.wait_group x;", "docs/emulator.md"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_says_so_when_it_is_reached(name):
    instruction, hint = UNSUPPORTED[name]
    declared, _, body = instruction.rpartition("b; ") if instruction.startswith(".shared") else ("", "", instruction)
    declared = declared + "b;" if declared else ""
    text = f""".version 8.0
        .target sm_90
        .address_size 64
        .visible .entry k(.param .u64 p) {{
        .reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<5>; .reg .b64 %rd<2>; {declared}
        ld.param.u64 %rd0, [p]; ld.global.u32 %r1, [%rd0]; setp.eq.u32 %p0, %r1, 0; @%p0 bra END;
        {body}
        END: ret; }}"""
    data = torch.zeros(4, dtype=torch.int32)
    assert cudaemu.run_ptx(text, "k", 1, 1, [data]).ok
    with pytest.raises(UserError) as error:
        cudaemu.run_ptx(text, "k", 1, 1, [data + 1])
    assert body.rstrip(";") in str(error.value) and hint.lower() in str(error.value).lower()
