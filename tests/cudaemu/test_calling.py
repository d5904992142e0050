"""A launcher, called on purpose in ways that a program meets by chance: twice, refused, with some of its blocks."""

from __future__ import annotations

import numpy as np
import pytest

import cudaemu
from cudaemu.errors import UserError
from tests.cudaemu import sources

SOURCE = sources.source(r"""
#include <cuda_runtime.h>
__device__ int handed_out;
__global__ void number(int *x, int n) {
  const int mine = blockIdx.x * 32 + threadIdx.x;
  if (mine < n) x[mine] = mine;
  if (mine == 0) x[0] = atomicAdd(&handed_out, 1);
}
__global__ void __cluster_dims__(2) pairs(int *x) { x[blockIdx.x] = blockIdx.x; }
extern "C" cudaError_t launch(int *x, int n, int looks) {
  static int calls = 0;
  ++calls;
  number<<<(n + 31) / 32, 32>>>(x, n);
  const cudaError_t status = cudaGetLastError();
  if (calls == 3) return cudaErrorUnknown;
  return looks ? status : cudaSuccess;
}
extern "C" cudaError_t launch_twice(int *x, int n, int) {
  number<<<1, 32>>>(x, 0);
  number<<<1, 32>>>(x, n);
  return cudaGetLastError();
}
extern "C" cudaError_t launch_pairs(int *x, int n, int) {
  pairs<<<n, 1>>>(x);
  return cudaGetLastError();
}
""", "calling")  # fmt: skip


def call(x: np.ndarray, symbol: str = "launch", looks: int = 1, **options) -> cudaemu.Report:
    return cudaemu.run(SOURCE, symbol, [x, len(x), looks], counters=False, arch="9.0", **options)


def empty(n: int = 100) -> np.ndarray:
    return np.full(n, -1, np.int32)


def test_calls_in_one_process_meet_what_those_before_have_left():
    """In a variable of the device, and of the host: the third call returns an error, and there is no fourth."""
    first, *more = [empty() for _ in range(4)]
    report = call(first, again=[[x, 100, 1] for x in more])
    assert report.status == 999 and len(report.launches) == 3
    assert [x[0] for x in (first, *more)] == [0, 1, 2, -1] and [x[99] for x in (first, *more)] == [99, 99, 99, -1]
    assert call(first, again=[[more[0], 100, 1]]).ok and call(first).ok and first[0] == 0, "a new process begins anew"


def test_each_call_has_the_arguments_that_were_asked_for():
    with pytest.raises(UserError, match="takes 3 arguments"):
        call(empty(), again=[[empty(), 100]])


@pytest.mark.parametrize(
    "blocks, ran",
    [
        (range(2), [0, 1]),
        (range(-1, 0), [6]),
        (range(1, -1), [1, 2, 3, 4, 5]),
        (range(5, 99), [5, 6]),
        (range(9, 12), []),
        (range(0), []),
        (None, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_some_blocks_run(blocks: range | None, ran: list[int]):
    x = empty(7 * 32)
    report = call(x, blocks=blocks)
    assert report.ok and [at for at in range(7) if x[at * 32 + 1] >= 0] == ran


def test_clusters_run_whole():
    x = empty(8)
    assert call(x, "launch_pairs", blocks=range(3, 5)).ok
    assert x.tolist() == [-1, -1, 2, 3, 4, 5, -1, -1]


def test_a_launch_is_refused_on_purpose():
    """The others are not; and what nobody asks for comes back as success."""
    refusals: list[tuple[int, str]] = []
    options = {"refused_launch": 1, "on_refusal": lambda *what: refusals.append(what)}
    report = call(empty(), **options)
    assert report.status == 701 and not report.launches
    assert report.error.endswith("number: launch 1 is refused, as asked for") and len(refusals) == 1
    assert call(empty(), looks=0, **options).status == 0 and len(refusals) == 2
    x = empty()
    assert call(x, "launch_twice", refused_launch=2).status == 701 and x[0] == 0 and x[1] == -1
    assert call(x, "launch_twice", refused_launch=3).ok


def test_memory_is_used_where_it_is():
    x = empty()
    report = cudaemu.run(SOURCE, "launch", [x.ctypes.data.to_bytes(8, "little"), 100, 1], memory={"x": x}, arch="9.0")
    assert report.ok and x.tolist() == list(range(100))
    report = cudaemu.run(SOURCE, "launch", [x.ctypes.data.to_bytes(8, "little"), 108, 1], memory={"x": x}, arch="9.0")
    assert "just past the end of x" in report.findings[0].message
