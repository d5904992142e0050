"""Races in global memory: right kernels are clean, however their blocks wait for each other; broken ones are
explained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import cudaemu
from tests.cudaemu import sources

# Each kernel is right. `BREAKS` names the piece to replace, by what, and what must be said of it.
KERNELS = {
    "split_k": """
// Partial products of the slices are added up with atomics.
__global__ void split_k(const float *a, float *out, int n) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, slice = blockIdx.y * n / gridDim.y;
  float sum = 0;
  for (int k = slice; k < slice + n / int(gridDim.y); ++k) sum += a[k];
  atomicAdd(out + column, sum);
}""",
    "last_block": """
// Each block writes its sum, the last one to come adds them up.
__device__ unsigned arrived;
__global__ void last_block(const float *a, float *out, int n) {
  __shared__ float part[128];
  __shared__ bool last;
  part[threadIdx.x] = a[(blockIdx.x * blockDim.x + threadIdx.x) % n];
  __syncthreads();
  for (int half = blockDim.x / 2; half; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    out[1 + blockIdx.x] = part[0];
    __threadfence();
    last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (int block = 0; block < gridDim.x; ++block) sum += out[1 + block];
    out[0] = sum;
  }
}""",
    "all_write": """
// Every thread writes, one announces: the barrier comes between.
__device__ unsigned finished;
__global__ void all_write(const float *a, float *out, int n) {
  __shared__ bool last;
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  out[at] = a[at % n];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (last) out[threadIdx.x] = out[gridDim.x * blockDim.x - 1 - threadIdx.x] + out[threadIdx.x];
}""",
    "look_back": """
// A scan over blocks: each waits for the one before it.
__device__ volatile int state[64];
__device__ float prefix[64];
__global__ void look_back(const float *a, float *out, int n) {
  if (threadIdx.x == 0) {
    float sum = a[blockIdx.x % n];
    if (blockIdx.x) {
      while (state[blockIdx.x - 1] == 0);
      __threadfence();
      sum += prefix[blockIdx.x - 1];
    }
    prefix[blockIdx.x] = sum;
    __threadfence();
    state[blockIdx.x] = 1;
    out[blockIdx.x] = sum;
  }
}""",
    "double_buffer": """
// Steps of a stencil, from one half of the array to the other, with a barrier of the grid between them.
__global__ void double_buffer(const float *a, float *out, int n) {
  const auto grid = cooperative_groups::this_grid();
  const int size = gridDim.x * blockDim.x, at = blockIdx.x * blockDim.x + threadIdx.x;
  float *from = out, *to = out + size;
  from[at] = a[at % n];
  for (int step = 0; step < 4; ++step) {
    grid.sync();
    to[at] = from[at] + from[(at + 1) % size];
    float *other = from;
    from = to, to = other;
  }
}""",
    "grid_stride": """
// Each thread works on elements of its own.
__global__ void grid_stride(const float *a, float *out, int n) {
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < 4 * n; at += gridDim.x * blockDim.x) {
    out[at] = a[at % n];
    out[at] += 1;
  }
}""",
    "neighbours": """
// Warps of a block exchange through global memory, with a barrier.
__global__ void neighbours(const float *a, float *out, int n) {
  const int first = blockIdx.x * blockDim.x;
  out[first + threadIdx.x] = a[threadIdx.x % n];
  __syncthreads();
  const float other = out[first + blockDim.x - 1 - threadIdx.x];
  __syncthreads();
  out[first + threadIdx.x] += other;
}""",
    "lock": """
// A lock around a sum that is no atomic.
__device__ int taken;
__global__ void lock(const float *a, float *out, int n) {
  if (threadIdx.x == 0) {
    while (atomicCAS(&taken, 0, 1) != 0);
    __threadfence();
    out[0] += a[blockIdx.x % n];
    __threadfence();
    atomicExch(&taken, 0);
  }
}""",
    "compare_and_swap": """
// An atomic of one's own: the first look is a plain one.
__device__ void add(double *to, double x) {
  unsigned long long *word = reinterpret_cast<unsigned long long *>(to), old = *word, seen;
  do {
    seen = old;
    old = atomicCAS(word, seen, __double_as_longlong(x + __longlong_as_double(seen)));
  } while (seen != old);
}
struct Top { int padding, most; };
__global__ void compare_and_swap(const float *a, float *out, int n) {
  __shared__ double part;
  Top *top = reinterpret_cast<Top *>(out + 8);
  if (threadIdx.x == 0) part = 0;
  __syncthreads();
  add(&part, a[threadIdx.x % n]);
  __syncthreads();
  if (threadIdx.x == 0) add(reinterpret_cast<double *>(out), part);
  if (top->most < int(threadIdx.x)) atomicMax(&top->most, int(threadIdx.x));
}""",
    "tickets": """
// Work is handed out by a counter; who takes a piece, has it alone.
__device__ int next;
__global__ void tickets(const float *a, float *out, int n) {
  __shared__ int mine;
  for (;;) {
    if (threadIdx.x == 0) mine = atomicAdd(&next, 1);
    __syncthreads();
    const int piece = mine;
    __syncthreads();
    if (piece >= 16) break;
    out[piece * blockDim.x + threadIdx.x] = a[piece % n];
  }
}""",
    "release_acquire": """
// The same as a flag, spelt with cuda::atomic.
__device__ cuda::atomic<int, cuda::thread_scope_device> ready;
__global__ void release_acquire(const float *a, float *out, int n) {
  if (blockIdx.x == 0) {
    out[threadIdx.x] = a[threadIdx.x % n];
    __syncthreads();
    if (threadIdx.x == 0) ready.store(1, cuda::std::memory_order_release);
  } else {
    if (threadIdx.x == 0) while (ready.load(cuda::std::memory_order_acquire) == 0);
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = out[threadIdx.x];
  }
}""",
    "in_place": """
// Each block counts what it keeps and tells the next one, in one word; what was read is overwritten (look-back).
__device__ unsigned counts[8];
__global__ void in_place(const float *a, float *out, int n) {
  __shared__ int kept, before;
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0) kept = 0;
  __syncthreads();
  const float mine = out[2048 + at];
  if (mine == 0) atomicAdd(&kept, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::atomic_ref<unsigned, cuda::thread_scope_device> count(counts[blockIdx.x]);
    unsigned seen = 1;
    if (blockIdx.x) {
      cuda::atomic_ref<unsigned, cuda::thread_scope_device> last(counts[blockIdx.x - 1]);
      while (!(seen = last.load(cuda::memory_order_relaxed)));
    }
    before = seen - 1;
    count.store(seen + kept, cuda::memory_order_relaxed);  // the count
  }
  __syncthreads();
  if (blockIdx.x) out[2048 + before - blockDim.x + threadIdx.x] = mine + 1;
}""",
    "down_a_warp": """
// Lanes hand values to their neighbours.
__global__ void down_a_warp(const float *a, float *out, int n) {
  for (int step = 1; step < 32; step *= 2) {
    const float other = threadIdx.x % 32 >= step ? out[threadIdx.x - step] : 0;
    __syncwarp();
    out[threadIdx.x] += other + 1;
    __syncwarp();
  }
}""",
    "lanes_agree": """
// Which of the lanes it was that wrote, nobody can tell.
__global__ void lanes_agree(const float *a, float *out, int n) { out[threadIdx.x / 32] = a[0]; }""",
    "set_a_flag": """
// All that find something say so; and nobody looks before the kernel is over.
__global__ void set_a_flag(const float *a, float *out, int n) {
  if (a[threadIdx.x % n] < 2) out[0] = 1;
}""",
    "two_launches": """
// What one launch writes, the next one reads.
__global__ void two_launches(const float *a, float *out, int n) {
  const int size = gridDim.x * blockDim.x, at = blockIdx.x * blockDim.x + threadIdx.x;
  const int step = out[2 * size] == 0 ? 0 : 1;
  if (step == 0) out[at] = a[at % n];
  else out[size + at] = out[size - 1 - at];
}
__global__ void count_up(float *at) { *at += 1; }""",
}
CALLS = {
    "split_k": "split_k<<<dim3(2, 4), 64>>>(a, out, n)",
    "double_buffer": "void *arguments[] = {&a, &out, &n};\n"
    "  cudaLaunchCooperativeKernel((void *)double_buffer, 6, 128, arguments, 0, 0)",
    "two_launches": "two_launches<<<4, 64>>>(a, out, n); count_up<<<1, 1>>>(out + 512);\n"
    "  two_launches<<<4, 64>>>(a, out, n)",
    "neighbours": "neighbours<<<3, 128>>>(a, out, n)",
    "down_a_warp": "down_a_warp<<<1, 32>>>(a, out, n)",
    "lanes_agree": "lanes_agree<<<1, 128>>>(a, out, n)",
}


def source(kernels: Sequence[tuple[str, str]]) -> Path:
    """A source with all these kernels, (name, text), each in a namespace of its own, and one launcher, which takes the
    number of the kernel to run: it is compiled once."""
    headers = ("cooperative_groups.h", "cuda/atomic", "cuda_runtime.h")
    lines = [f"#include <{name}>" for name in headers]
    lines += [f"namespace kernel_{number} {{{text}\n}}" for number, (_, text) in enumerate(kernels)]
    lines += ['extern "C" cudaError_t launch(int number, const float *a, float *out, int n) {']
    for number, (name, _) in enumerate(kernels):
        call = CALLS.get(name, f"{name}<<<6, 128>>>(a, out, n)")
        lines += [f"  if (number == {number}) {{", f"    using namespace kernel_{number};", f"    {call};", "  }"]
    lines += ["  return cudaDeviceSynchronize();", "}", ""]
    return sources.source("\n".join(lines), "races")


def run(name: str, **options) -> tuple[cudaemu.Report, list[str]]:
    """A right or a broken kernel, and the lines of the source."""
    right = {each: (each, text) for each, text in KERNELS.items()}
    broken = {each: (kernel, _replaced(kernel, old, new)) for each, (kernel, old, new, *_) in BREAKS.items()}
    every = right | broken
    path = source(list(every.values()))
    a, out = torch.arange(64).float() / 64, torch.zeros(8192)
    arguments = [list(every).index(name), a, out, 64]
    report = cudaemu.run(path, "launch", arguments, names=["number", "a", "out", "n"], **options)
    return report, path.read_text().splitlines()


def _replaced(kernel: str, old: str, new: str) -> str:
    assert old in KERNELS[kernel], f"{kernel} has no '{old}'"
    return KERNELS[kernel].replace(old, new)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", KERNELS)
def test_right_kernels_are_clean(name, cores):
    report, _ = run(name, threads=cores)
    assert report.ok, report
    assert bool(report.notes) == (name == "set_a_flag"), report


def test_two_that_agree_are_told_apart_from_two_that_do_not():
    report, _ = run("set_a_flag")
    (note,) = report.notes
    assert note.kind == "same value written" and "out[0]" in note.message and "no harm" in note.message
    assert "note: same value written" in str(report) and str(report).startswith("no findings")
    report, _ = run("they disagree")
    assert {finding.kind for finding in report.findings} == {"global race"}
    assert "out[0]" in report.findings[0].message


AGREEING = """
__global__ void agreeing(const float *a, float *out, int n) {  // all blocks write the same, 64 elements each
  for (int at = threadIdx.x; at < 4096; at += blockDim.x) out[at] = at;
}
extern "C" cudaError_t launch(const float *a, float *out, int n) {
  agreeing<<<6, 128>>>(a, out, n);
  return cudaDeviceSynchronize();
}
"""


def test_whether_two_blocks_agree_is_not_decided_by_chance():
    path = sources.source(AGREEING, "agreeing")
    for _ in range(20):
        report = cudaemu.run(path, "launch", [torch.zeros(1), torch.zeros(4096), 0], names=["a", "out", "n"], threads=2)
        assert report.ok and [note.kind for note in report.notes] == ["same value written"], report


# What is replaced by what; what the message says (a pattern), and a piece of each of the two lines.
BREAKS = {
    "no atomic": (
        "split_k", "atomicAdd(out + column, sum)", "out[column] += sum",
        r"4 bytes at out\[\d+\] are (read|written) here and (read|written) (here )?by thread \(\d+, 0, 0\) of block",
        "out[column] +="),
    "no fence before the ticket": (
        "last_block", "__threadfence();\n", "\n",
        r"at out\[\d\] are read here and written by thread \(0, 0, 0\) of block \(\d, 0, 0\) at line \d+, "
        r"and nothing orders",
        "sum += out[1 + block]"),
    "a fence of the block only": (
        "last_block", "__threadfence();", "__threadfence_block();", r"are read here and written by .* of block",
        "sum += out[1 + block]"),
    "no barrier before the ticket": (
        "all_write", "__threadfence();\n  __syncthreads();", "__threadfence();", r"of block", "out[threadIdx.x] ="),
    "the ticket before the fence": (
        "last_block", "__threadfence();\n    last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;",
        "last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;\n    __threadfence();",
        r"are read here and written by", "sum += out[1 + block]"),
    "no fence before the flag": (
        "look_back", "__threadfence();\n    state", "state", r"read here and written by thread \(0, 0, 0\) of block",
        "sum += prefix[blockIdx.x - 1]"),
    "a flag that is not volatile": (
        "look_back", "__device__ volatile int state", "__device__ int state", r"state \+ \d+ bytes", "if (blockIdx.x)"),
    "the flag before the value": (
        "look_back", "prefix[blockIdx.x] = sum;\n    __threadfence();\n    state[blockIdx.x] = 1;",
        "__threadfence();\n    state[blockIdx.x] = 1;\n    prefix[blockIdx.x] = sum;",
        r"prefix \+ \d+ bytes", "prefix["),
    "one buffer": (
        "double_buffer", "*to = out + size", "*to = out", r"out\[\d+\] are (read|written) here and (read|written)",
        "to[at] = from[at]"),
    "no barrier of the grid": (
        "double_buffer", "grid.sync();", "__syncthreads();", r"of block", "to[at] = from[at]"),
    "overlapping pieces": (
        "grid_stride", "out[at] = a[at % n];", "out[at] = a[at % n]; out[at + 1] = at;", r"out\[\d+\]", "out[at"),
    "no barrier of the block": (
        "neighbours", "__syncthreads();\n  const", "const",
        r"read here and written by thread \(\d+, 0, 0\) at line \d+, with no barrier", "const float other"),
    "no second barrier": (
        "neighbours", "__syncthreads();\n  out", "out",
        r"written here and read by thread \(\d+, 0, 0\) at line \d+, with no", "+= other"),
    "no lock": ("lock", "while (atomicCAS(&taken, 0, 1) != 0);", "", r"out\[0\]", "out[0] +="),
    "no fence in the lock": (
        "lock", "__threadfence();\n    atomicExch", "atomicExch", r"out\[0\] are (read|written)", "out[0] +="),
    "a lock of the block only": ("lock", "atomicCAS", "atomicCAS_block", r"out\[0\]|taken", ""),
    "a sum that is read too early": (
        "compare_and_swap", "if (top->most < int(threadIdx.x)) atomicMax(&top->most, int(threadIdx.x));",
        "atomicMax(&top->most, int(threadIdx.x)); out[16 + threadIdx.x] = top->most;",
        r"out\[9\] are (read|written) here", "top->most"),
    "a counter that is no atomic": ("tickets", "atomicAdd(&next, 1)", "next++", r"next \+ 0 bytes", "next++"),
    "relaxed": (
        "release_acquire", "memory_order_release", "memory_order_relaxed", r"out\[\d+\] are read here and written by",
        "= out[threadIdx.x]"),
    "a count that comes of nothing": (
        "in_place", "count.store(seen + kept,", "count.store(1 + 128 * (blockIdx.x + 1),",
        r"are written here and read by thread .* of block", "out[2048 + before"),
    "no barrier between read and write": (
        "down_a_warp", "__syncwarp();\n    out", "out",
        r"written here and read by thread \(\d+, 0, 0\) at line \d+, with no", "+= other"),
    "no barrier between write and read": (
        "down_a_warp", "other + 1;\n    __syncwarp();", "other + 1;",
        r"read here and written by thread \(\d+, 0, 0\) at line \d+, with no", "const float other"),
    "lanes that disagree": (
        "lanes_agree", "= a[0]", "= a[threadIdx.x]", r"out\[\d\] are written here and", "out[threadIdx"),
    "they disagree": ("set_a_flag", "= 1;", "= threadIdx.x;", r"out\[0\]", "out[0] ="),
}  # fmt: skip


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", BREAKS)
def test_broken_kernels_are_found(name, cores):
    _, _, _, says, at = BREAKS[name]
    report, lines = run(name, threads=cores)
    races = [finding for finding in report.findings if finding.kind == "global race"]
    assert races, report
    assert any(re.search(says, finding.message) for finding in races), report
    assert any(at in lines[finding.line - 1] for finding in races), report


def test_launches_are_a_boundary_and_so_is_the_host():
    report, _ = run("two_launches")
    assert report.ok and not report.notes, report


READ_ONLY = """
__device__ int buffer[64];
__global__ void through(int *data, int *out) {{
  const int me = threadIdx.x, other = me ^ 32;
  {before}
  __syncthreads();
  out[me] = {load};
  __syncthreads();
  {after}
}}"""
LOADS = {"nc": "__ldg(data + other)", "wide": "__ldg((int2 *)data + me / 2).x", "plain": "data[other]"}


@pytest.mark.core(every=9)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    ("before", "after", "found", "strictly"),
    [
        ("data[me] = me;", "", True, True),
        ("if (me < 8) data[me] = me;", "", True, True),
        ("buffer[me] = me;", "", False, False),
        ("atomicAdd(data + me, 1);", "", True, True),
        ("", "data[me] = me;", False, True),  # what was read is old in any case: disputed
        ("", "buffer[me] = me;", False, False),
    ],
)
def test_memory_that_is_said_to_be_read_only(load, before, after, found, strictly):
    """ld.global.nc reads past what the kernel itself has written, whatever orders the two."""
    text = READ_ONLY.format(before=before, after=after, load=LOADS[load])
    for strict, wrong in ((False, found), (True, strictly)):
        wrong &= load != "plain"
        data = torch.zeros(64, dtype=torch.int32)
        report = cudaemu.load(text, strict=strict).launch("through", 1, 64, data, torch.zeros_like(data))
        assert [finding.kind for finding in report.findings] == ["read-only load"] * wrong, report
        if wrong:
            (finding,) = report.findings
            other = re.search(r" at line (\d+)", finding.message)
            lines = [text.split("\n")[line - 1] for line in (finding.line, int(other[1]))]
            assert sorted("ldg" in line for line in lines) == [False, True]


def test_a_launch_may_read_what_the_one_before_wrote():
    text = """
__global__ void write(int *data) { data[threadIdx.x] = threadIdx.x; }
__global__ void read(const int *data, int *out) { out[threadIdx.x] = __ldg(data + (threadIdx.x ^ 1)); }
extern "C" int both(int *data, int *out) { write<<<1, 64>>>(data); read<<<1, 64>>>(data, out); return 0; }
"""
    data = torch.zeros(64, dtype=torch.int32)
    assert cudaemu.load(text, strict=True).call("both", data, torch.zeros_like(data)).ok
