"""Forward progress: what CUDA promises to end, ends; what cannot end is found soon, and called what it is."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

import cudaemu
from cudaemu import engine, hardware
from cudaemu.build import compile_host
from cudaemu.errors import UserError
from tests.cudaemu import sources
from tests.cudaemu.machine import executed, kinds, launch

KERNELS = r"""
#include <cooperative_groups.h>
#include <cuda_runtime.h>
namespace cg = cooperative_groups;

// ---- lanes that wait for lanes of their warp ----

__global__ void lane_lock(int *lock, int *count, int *) {  // one lane after the other
  while (atomicCAS(lock, 0, 1) != 0);
  __threadfence();
  *(volatile int *)count += 1;
  __threadfence();
  atomicExch(lock, 0);
}

__global__ void lane_lock_flag(int *lock, int *count, int *) {  // the loop that learners write
  bool done = false;
  while (!done)
    if (atomicCAS(lock, 0, 1) == 0) {
      *(volatile int *)count += 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
}

__global__ void lane_flag(int *flag, int *count, int *) {
  if (threadIdx.x % 32 != 31)
    while (*(volatile int *)flag == 0);
  else {
    __threadfence();
    atomicExch(flag, 1);
  }
  atomicAdd(count, 1);
}

__global__ void lane_ticket(int *ticket, int *count, int *) {  // each lane waits for the one before it, last lane first
  const int turn = gridDim.x * blockDim.x - 1 - (blockIdx.x * blockDim.x + threadIdx.x);
  while (atomicAdd(ticket, 0) != turn) __nanosleep(20);
  *(volatile int *)count += 1;
  __threadfence();
  atomicAdd(ticket, 1);
}

// ---- warps that wait for warps ----

__global__ void warp_chain(int *, int *count, int *) {  // warp w waits for warp w + 1
  __shared__ int flag[33];
  if (threadIdx.x < 33) flag[threadIdx.x] = 0;
  __syncthreads();
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) {
    if (warp < warps - 1)
      while (atomicAdd(flag + warp + 1, 0) == 0);
    __threadfence_block();
    atomicExch(flag + warp, 1);
  }
  __syncwarp();
  atomicAdd(count, 1);
}

__global__ void backoff(int *flag, int *count, int *) {  // the loop's registers change at each turn
  if (threadIdx.x / 32 == 0) {
    unsigned nanoseconds = 1, turns = 0;
    while (((volatile int *)flag)[blockIdx.x] == 0) {
      __nanosleep(nanoseconds);
      nanoseconds = nanoseconds * 3 + 1;
      ++turns;
    }
    atomicAdd(count, turns ? 1 : 2);
  } else {
    for (int n = 0; n < 50000; ++n) asm volatile("");
    if (threadIdx.x == 32) atomicExch(flag + blockIdx.x, 1);
    atomicAdd(count, 1);
  }
}

// ---- blocks that wait for blocks ----

__global__ void first_waits_for_last(int *flag, int *count, int *) {
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0)
      while (*(volatile int *)flag == 0);
    if (blockIdx.x == gridDim.x - 1) {
      __threadfence();
      *(volatile int *)flag = 1;
    }
  }
  __syncthreads();
  atomicAdd(count, 1);
}

__global__ void plain_poll(int *flag, int *count, int *) {  // not volatile, but the fence makes the compiler read again
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0)
      while (*flag == 0) __threadfence();
    if (blockIdx.x == gridDim.x - 1) atomicExch(flag, 1);
  }
  __syncthreads();
  atomicAdd(count, 1);
}

__global__ void atomic_grid_barrier(int *arrived, int *count, int *) {
  for (int turn = 1; turn <= 3; ++turn) {
    atomicAdd(count, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(arrived, 1);
      while (*(volatile int *)arrived < turn * (int)gridDim.x);
      __threadfence();
    }
    __syncthreads();
  }
}

__global__ void grid_sync(int *, int *count, int *seen) {
  for (int turn = 1; turn <= 3; ++turn) {
    atomicAdd(count, 1);
    cg::this_grid().sync();
    if (threadIdx.x == 0 && *(volatile int *)count != turn * (int)(gridDim.x * blockDim.x)) *seen = 1;
    cg::this_grid().sync();
  }
}

__global__ void look_back(int *status, int *count, int *sums) {  // a scan: status 1 has the block's sum, 2 all up to it
  volatile int *state = status, *sum = sums, *prefix = sums + gridDim.x;
  if (threadIdx.x == 0) {
    const int block = gridDim.x - 1 - blockIdx.x;  // the last block first: nothing but waiting helps
    int total = block + 1;
    sum[block] = total;
    __threadfence();
    state[block] = 1;
    for (int before = block - 1; before >= 0; --before) {
      int ready;
      while ((ready = state[before]) == 0);
      __threadfence();
      if (ready == 2) {
        total += prefix[before];
        break;
      }
      total += sum[before];
    }
    prefix[block] = total;
    __threadfence();
    state[block] = 2;
  }
  __syncthreads();
  atomicAdd(count, 1);
}

__global__ void clock_wait(int *, int *count, int *elapsed) {
  const long long start = clock64();
  while (clock64() - start < 10000);
  if (threadIdx.x == 0) *elapsed = int(clock64() - start);
  atomicAdd(count, 1);
}

// ---- what never ends ----

__global__ void self_loop(int *, int *, int *) { for (;;); }

__global__ void counter_loop(int *, int *, int *out) {
  for (unsigned n = 1; n != 0; n += 2) asm volatile("");
  *out = 1;
}

__global__ void flag_never_set(int *flag, int *, int *) { while (*(volatile int *)flag == 0); }

__global__ void flag_polled_with_a_counter(int *flag, int *, int *out) {
  int turns = 0;
  while (*(volatile int *)flag == 0) ++turns;
  *out = turns;
}

__global__ void barrier_and_spin(int *flag, int *, int *) {
  if (threadIdx.x < 32)
    while (*(volatile int *)flag == 0);
  __syncthreads();
  *flag = 1;
}

__global__ void two_locks(int *lock, int *count, int *) {  // in opposite orders
  if (threadIdx.x % 32 == 0) {
    const int first = threadIdx.x / 32 % 2;
    while (atomicCAS(lock + first, 0, 1) != 0);
    atomicAdd(count, 1);
    while (*(volatile int *)count < 2);
    while (atomicCAS(lock + 1 - first, 0, 1) != 0);
    lock[0] = lock[1] = 0;
  }
}

#define LAUNCHER(name) \
  extern "C" cudaError_t launch_##name(int *a, int *b, int *c, int blocks, int threads) { \
    name<<<blocks, threads>>>(a, b, c); \
    return cudaDeviceSynchronize(); \
  }
LAUNCHER(lane_lock) LAUNCHER(lane_lock_flag) LAUNCHER(lane_flag) LAUNCHER(lane_ticket) LAUNCHER(warp_chain)
LAUNCHER(backoff) LAUNCHER(first_waits_for_last) LAUNCHER(plain_poll) LAUNCHER(atomic_grid_barrier) LAUNCHER(look_back)
LAUNCHER(clock_wait) LAUNCHER(self_loop) LAUNCHER(counter_loop) LAUNCHER(flag_never_set)
LAUNCHER(flag_polled_with_a_counter) LAUNCHER(barrier_and_spin) LAUNCHER(two_locks)

extern "C" cudaError_t launch_grid_sync(int *a, int *b, int *c, int blocks, int threads) {
  void *arguments[] = {&a, &b, &c};
  const cudaError_t error = cudaLaunchCooperativeKernel((void *)grid_sync, blocks, threads, arguments, 0, 0);
  return error ? error : cudaDeviceSynchronize();
}
extern "C" cudaError_t launch_grid_sync_plainly(int *a, int *b, int *c, int blocks, int threads) {
  grid_sync<<<blocks, threads>>>(a, b, c);
  return cudaDeviceSynchronize();
}
"""


def run(name: str, blocks: int, threads: int, cores: int | None = None, multiprocessors: int | None = None):
    """A kernel's report, and its three arrays."""
    arrays = [torch.zeros(2 * blocks + 2, dtype=torch.int32) for _ in range(3)]
    source = sources.source(sources.with_one_launcher(KERNELS), "progress")
    compile_host(source, call="launch_number"), engine.library()  # what is to be timed is the launch
    arguments = {"number": sources.launchers(KERNELS).index(name), **dict(zip("abc", arrays)), "blocks": blocks}
    arguments["threads"] = threads
    started = time.process_time()
    options = {"threads": cores, "multiprocessors": multiprocessors}
    report = cudaemu.run(source, "launch_number", [*arguments.values()], names=[*arguments], **options)
    assert time.process_time() - started < 5  # of processors, which others may be using
    return report, *(array.numpy() for array in arrays)


@pytest.mark.core(every=4)
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("name", "blocks", "threads", "turns"),
    [
        ("lane_lock", 2, 64, 1),
        ("lane_lock_flag", 2, 64, 1),
        ("lane_flag", 3, 64, 1),
        ("lane_ticket", 2, 64, 1),
        ("warp_chain", 2, 256, 1),
        ("backoff", 3, 96, 1),
        ("first_waits_for_last", 40, 64, 1),
        ("plain_poll", 5, 32, 1),
        ("atomic_grid_barrier", 8, 64, 3),
        ("atomic_grid_barrier", 300, 32, 3),
        ("look_back", 200, 32, 1),
        ("clock_wait", 3, 64, 1),
        ("grid_sync", 8, 64, 3),
        ("grid_sync", 132, 256, 3),
    ],
)
def test_what_is_legal_ends(name, blocks, threads, turns, cores):
    report, _, count, other = run(name, blocks, threads, cores)
    assert report.ok, report
    assert count[0] == blocks * threads * turns
    if name == "look_back":
        assert np.array_equal(other[blocks : 2 * blocks], np.cumsum(np.arange(blocks) + 1))
    if name == "grid_sync":
        assert other[0] == 0, "every block saw what all had added"
    if name == "clock_wait":
        assert 10000 <= other[0] < 20000


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    ("name", "blocks", "threads", "kind", "at"),
    [
        ("self_loop", 2, 64, "endless loop", "void self_loop"),
        ("flag_never_set", 3, 64, "deadlock", "void flag_never_set"),
        ("flag_polled_with_a_counter", 2, 32, "deadlock", "== 0) ++turns"),
        ("barrier_and_spin", 1, 64, "deadlock", "while (*(volatile int *)flag == 0);\n  __syncthreads"),
        ("two_locks", 1, 64, "deadlock", "atomicCAS(lock + 1 - first"),
    ],
)
def test_what_cannot_end_is_found_soon(name, blocks, threads, kind, at, cores):
    report, *_ = run(name, blocks, threads, cores)
    assert report.status == 702 and {finding.kind for finding in report.findings} == {kind}, report
    line = KERNELS[: KERNELS.index(at)].count("\n") + 1
    assert line in {finding.line for finding in report.findings}, report


def test_a_deadlock_says_who_waits_where():
    report, *_ = run("barrier_and_spin", 1, 64)
    spin, barrier = sorted(report.findings, key=lambda finding: finding.line)
    assert "a[0]" in spin.message and spin.thread == (0, 0, 0), spin
    assert "barrier 0: 32 threads" in barrier.message and barrier.thread == (32, 0, 0)
    assert barrier.line == spin.line + 1


FREES_AFTER_A_FAULT = """
__global__ void past_the_end(int *p) { p[8] = 1; }
int main() {
  int *p;
  cudaMalloc(&p, 32);
  cudaFree(p);
  int *again = p;
  cudaMalloc(&p, 32);
  past_the_end<<<1, 1>>>(p);
  cudaDeviceSynchronize();
  return cudaMalloc(&again, 32) != cudaErrorIllegalAddress || cudaFree(again) != cudaErrorIllegalAddress;
}
"""


def test_after_a_fault_nothing_is_freed_and_no_double_free_reported():
    report = cudaemu.program(sources.source(FREES_AFTER_A_FAULT, "frees_after_a_fault"))
    assert [found.kind for found in report.findings] == ["out of bounds global"]


WAITS_FOR_THE_HOST = """
__global__ void wait(const volatile int *flag) { while (*flag == 0); }
int main() {
  int *flag;
  cudaMallocHost(&flag, 4);
  *flag = 0;
  wait<<<1, 1>>>(flag);
  *flag = 1;
}
"""


def test_a_kernel_that_waits_for_the_host_is_told_why_it_cannot():
    (found,) = cudaemu.program(sources.source(WAITS_FOR_THE_HOST, "waits_for_the_host")).findings
    assert found.kind == "deadlock" and "what the host writes during a launch comes too late here" in found.message


def test_a_loop_that_counts_through_all_numbers_is_stopped():
    started = time.process_time()
    result = launch(
        "mov.u32 %r3, 1; L: add.u32 %r3, %r3, 2; setp.ne.u32 %p0, %r3, 0; @%p0 bra L;",
        np.zeros(32, np.uint32),
        instructions=10_000_000,
    )
    assert kinds(result) == ["endless loop"] and result.code == 702
    assert "10,000,000 instructions" in result.findings[0].message
    assert time.process_time() - started < 5


def test_a_loop_through_a_barrier_with_nothing_else_is_found_at_once():
    started = time.process_time()
    result = launch("L: bar.sync 0; bra L;", np.zeros(32, np.uint32), grid=(4,), block=(256,))
    assert kinds(result) == ["endless loop"] and "never ends" in result.findings[0].message
    assert time.process_time() - started < 10


def test_a_loop_that_waits_for_what_barriers_say_goes_on():
    """The same registers at each turn, but for what the other warps vote."""
    c = np.zeros(64, np.uint32)
    body = """
        mov.u32 %r4, 0;
    L:  setp.lt.u32 %p1, %r0, 32;
        @%p1 add.u32 %r4, %r4, 1;
        setp.gt.u32 %p2, %r4, 20000;
        bar.red.or.pred %p3, 0, %p2;
        @!%p3 bra L;
        mad.wide.u32 %rd5, %r0, 4, %rd0;
        st.global.u32 [%rd5], 7;"""
    result = launch(body, c, block=(64,))
    assert not result.findings and (c == 7).all()


@pytest.mark.parametrize(
    "body",
    [
        "mov.u32 %r3, 0; L: bar.sync 0; add.u32 %r3, %r3, 1; bra L;",
        "L: atom.global.add.u32 %r3, [%rd0], 1; setp.ge.s32 %p1, %r3, 0; @%p1 bra L;",
    ],
    ids=["barriers", "atomics"],
)
def test_work_counts_by_what_it_takes(body):
    """A loop through barriers or atomics is stopped after fewer instructions than one that only counts."""
    result = launch(body, np.zeros(32, np.uint32), block=(256,), instructions=4_000_000)
    assert kinds(result) == ["endless loop"]
    assert sum(result.counters["warps"]) < 2_000_000


def test_a_grid_beyond_all_patience_is_refused():
    with pytest.raises(UserError, match="grid must .*268,435,456 .*2,147,483,647"):
        launch("", grid=(2**31 - 1,))


@pytest.mark.full
def test_more_blocks_than_fit_cannot_wait_for_each_other():
    """Blocks of 1024 threads: two on each multiprocessor of an A100, or of a part of one. A GPU would hang."""
    report, *_ = run("atomic_grid_barrier", 2 * hardware.SLICE + 1, 1024, multiprocessors=hardware.SLICE)
    assert {finding.kind for finding in report.findings} == {"deadlock"} and report.status == 702
    assert "1 blocks have not begun" in str(report) and "a[0]" in str(report)
    report, *_ = run("atomic_grid_barrier", 2 * hardware.SLICE, 1024, multiprocessors=hardware.SLICE)
    assert report.ok, report


def test_a_cooperative_launch_that_does_not_fit_is_refused():
    report, _, count, _ = run("grid_sync", 217, 1024)
    assert report.status == 720 and "too many blocks" in report.error and count[0] == 0 and not report.findings
    assert run("grid_sync", 216, 1024)[0].ok


def test_grid_sync_without_a_cooperative_launch_traps():
    report, *_ = run("grid_sync_plainly", 2, 32)
    assert report.status == 719 and [finding.kind for finding in report.findings] == ["trap"]


@pytest.mark.full
def test_counters_do_not_depend_on_who_waits_for_whom():
    """A block that is put aside and goes on later counts once."""
    report, *_ = run("warp_chain", 1, 64, 1)
    again, *_ = run("warp_chain", 1, 64, 2)
    assert report.counters == again.counters


def test_a_wait_at_an_mbarrier_looks_no_more_often_because_others_store():
    """A warp waits for the other one at each turn, in many blocks, on one core and on two."""
    body = """
        .shared .align 8 .b64 m; cvta.to.global.u64 %rd1, %rd0; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
        setp.eq.u32 %p0, %r1, 0; setp.lt.u32 %p1, %r1, 32; mov.u32 %r5, 0; mad.wide.u32 %rd2, %r2, 128, %rd1;
        @%p0 mbarrier.init.shared::cta.b64 [m], 1; bar.sync 0;
      TURN: and.b32 %r6, %r5, 1; @%p1 bra WORK;
      WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [m], %r6; @!%p2 bra WAIT; bra DONE;
      WORK: mov.u32 %r7, 0;
      MORE: st.global.u32 [%rd2], %r7; add.u32 %r7, %r7, 1; setp.lt.u32 %p3, %r7, 300; @%p3 bra MORE;
        @%p0 mbarrier.arrive.shared::cta.b64 _, [m];
      DONE: bar.sync 0; add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 20; @%p3 bra TURN;"""
    counted: dict[int, set[int]] = {}
    for threads in (1, 2, 2, 2, 2):
        found = launch(body, np.zeros(16 * 32, np.uint32), grid=(16,), block=(64,), threads=threads)
        assert kinds(found) == [], found.findings
        counted.setdefault(threads, set()).add(executed(found, "mbarrier.try_wait"))
    assert counted[1] == counted[2] and len(counted[1]) == 1


MESSAGES = """
    cvta.to.global.u64 %rd1, %rd0; mov.u32 %r2, %ctaid.x; mov.u32 %r5, 0;
    setp.ne.u32 %p0, %r2, 0; @%p0 bra READER;
  WRITER: add.u32 %r5, %r5, 1; st.{weak}.u32 [%rd1+64], %r5; {fence} st.relaxed.gpu.global.u32 [%rd1+128], %r5;
  ACK: ld.relaxed.gpu.global.u32 %r6, [%rd1+192]; setp.ne.u32 %p1, %r6, %r5; @%p1 bra ACK;
    setp.lt.u32 %p1, %r5, 3000; @%p1 bra WRITER; ret;
  READER: add.u32 %r5, %r5, 1;
  POLL: ld.acquire.gpu.global.u32 %r6, [%rd1+128]; setp.ne.u32 %p1, %r6, %r5; @%p1 bra POLL;
    ld.global.u32 %r7, [%rd1+64]; setp.ne.u32 %p2, %r7, %r5; @%p2 atom.global.add.u32 %r8, [%rd1], 1;
    fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd1+192], %r5;
    setp.lt.u32 %p1, %r5, 3000; @%p1 bra READER;"""


def test_a_message_is_there_when_its_flag_is():
    """Two blocks, each on a core, hand a value over 3000 times: nothing old is read after the flag."""
    data = np.zeros(64, np.uint32)
    result = launch(MESSAGES.format(weak="global", fence="fence.acq_rel.gpu;"), data, grid=(2,), block=(1,), threads=2)
    assert not result.findings and data[0] == 0 and data[48] == 3000
