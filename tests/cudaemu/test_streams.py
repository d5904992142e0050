"""Work of several streams, and of the host, that nothing orders: found where it meets, silent where it is ordered."""

from __future__ import annotations

import re

import pytest

import cudaemu
from tests.cudaemu.sources import source

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void fill(int *p, int v) { p[threadIdx.x] = v; }
__global__ void add(const int *p, int *q) { q[threadIdx.x] = p[threadIdx.x] + 1; }
__global__ void raise_flag(int *data, int *flag) { *data = 7; __threadfence(); atomicExch(flag, 1); }
__global__ void await_flag(int *data, int *flag, int *out) {
  while (!atomicAdd(flag, 0)) {}
  __threadfence();
  *out = *data;
}
constexpr auto D2H = cudaMemcpyDeviceToHost;
constexpr int N = 32, BYTES = N * sizeof(int), MANY = 8192;
int seen;
void CUDART_CB look(void *p) { seen = *static_cast<int *>(p); }
int main(int, char **argv) {
  int *d, *e, *f, *h, *big, *big_d, pageable[N];
  cudaStream_t a, b, free_running;
  cudaEvent_t event;
  cudaStreamCreate(&a);
  cudaStreamCreate(&b);
  cudaStreamCreateWithFlags(&free_running, cudaStreamNonBlocking);
  cudaEventCreate(&event);
  cudaMalloc(&d, BYTES);
  cudaMalloc(&e, BYTES);
  cudaMalloc(&f, BYTES);
  cudaMalloc(&big_d, MANY);
  cudaMallocHost(&h, BYTES);
  cudaMallocHost(&big, MANY);
  cudaMemset(d, 0, BYTES);
  cudaMemset(e, 0, BYTES);
  cudaMemset(big_d, 0, MANY);
  const auto to_host = [&](cudaStream_t s) { cudaMemcpyAsync(h, d, BYTES, cudaMemcpyDeviceToHost, s); };
  switch (atoi(argv[1])) {
    case 0: fill<<<1, N, 0, a>>>(d, 7); add<<<1, N, 0, b>>>(d, e); break;
    case 1: fill<<<1, N, 0, a>>>(d, 7); cudaMemcpyAsync(h, d, BYTES, cudaMemcpyDeviceToHost, b); break;
    case 2: to_host(a); seen = h[5]; break;
    case 3: cudaMemcpyAsync(d, h, BYTES, cudaMemcpyHostToDevice, a); h[5] = 1; break;
    case 4: fill<<<1, N, 0, free_running>>>(d, 7); cudaMemcpy(pageable, d, BYTES, cudaMemcpyDeviceToHost); break;
    case 5: to_host(a); cudaEventRecord(event, b); cudaEventSynchronize(event); seen = h[5]; break;
    case 6: add<<<1, N, 0, a>>>(d, e); fill<<<1, N, 0, b>>>(d, 7); break;
    case 7: cudaMemcpyAsync(big, big_d, MANY, D2H, a); cudaStreamSynchronize(b); seen = big[9]; break;
    case 8:
      cudaEventRecord(event, a);
      fill<<<1, N, 0, a>>>(d, 7);
      cudaStreamWaitEvent(b, event, 0);
      add<<<1, N, 0, b>>>(d, e);
      break;

    case 20: fill<<<1, N, 0, a>>>(d, 7); to_host(a); cudaStreamSynchronize(a); seen = h[5]; break;
    case 21:
      fill<<<1, N, 0, a>>>(d, 7);
      cudaEventRecord(event, a);
      cudaStreamWaitEvent(b, event, 0);
      add<<<1, N, 0, b>>>(d, e);
      break;
    case 22: fill<<<1, N, 0, a>>>(d, 7); cudaStreamSynchronize(a); add<<<1, N, 0, b>>>(d, e); break;
    case 23: fill<<<1, N, 0, a>>>(d, 7); add<<<1, N>>>(d, e); fill<<<1, N, 0, b>>>(e, 1); break;
    case 24: fill<<<1, N / 2, 0, a>>>(d, 7); fill<<<1, N / 2, 0, b>>>(d + N / 2, 7); break;
    case 25: add<<<1, N, 0, a>>>(d, e); add<<<1, N, 0, b>>>(d, f); break;
    case 26: to_host(a); cudaLaunchHostFunc(a, look, h); break;
    case 27: to_host(a); cudaEventRecord(event, a); while (cudaEventQuery(event)) {} seen = h[5]; break;
    case 28: cudaMemcpyAsync(pageable, d, BYTES, cudaMemcpyDeviceToHost, a); seen = pageable[5]; break;
    case 29:
      cudaMemcpyAsync(big_d, big, 4096 + 64, cudaMemcpyHostToDevice, a);
      for (int n = 4096 + 64; n < MANY; ++n) reinterpret_cast<char *>(big)[n] = 1;
      break;
    case 30: raise_flag<<<1, 1, 0, a>>>(d, e); await_flag<<<1, 1, 0, b>>>(d, e, f); break;
    case 31: fill<<<1, N, 0, a>>>(d, 7); cudaDeviceSynchronize(); add<<<1, N, 0, free_running>>>(d, e); break;
    case 32: {
      int *lent;
      cudaMallocAsync(reinterpret_cast<void **>(&lent), BYTES, a);
      fill<<<1, N, 0, a>>>(lent, 7);
      cudaFreeAsync(lent, a);
      cudaMallocAsync(reinterpret_cast<void **>(&lent), BYTES, b);
      fill<<<1, N, 0, b>>>(lent, 7);
      cudaFreeAsync(lent, b);
      break;
    }
    case 33: {
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal);
      fill<<<1, N, 0, a>>>(d, 7);
      cudaEventRecord(event, a);
      cudaStreamWaitEvent(b, event, 0);
      add<<<1, N, 0, b>>>(d, e);
      cudaEventRecord(event, b);
      cudaStreamWaitEvent(a, event, 0);
      cudaStreamEndCapture(a, &graph);
      cudaGraphInstantiate(&exec, graph, 0);
      cudaGraphLaunch(exec, a);
      cudaGraphLaunch(exec, a);
      cudaStreamSynchronize(a);
      add<<<1, N, 0, b>>>(d, e);
      break;
    }
    case 34: fill<<<1, N, 0, free_running>>>(d, 7); cudaFree(f); cudaMemcpy(pageable, d, BYTES, cudaMemcpyDeviceToHost);
  }
  cudaDeviceSynchronize();
  return seen == 12345;
}
"""
STREAMS, HOST = "race between streams", "pinned memory too early"
FOUND = {  # case -> kind, what is said
    0: (STREAMS, r"add reads d .* which fill \(.*:\d+\) writes in another stream.*cudaStreamWaitEvent"),
    1: (STREAMS, r"cudaMemcpyAsync reads d .* which fill \(.*\) writes"),
    2: (
        HOST,
        r"h \(cudaMallocHost \d, line \d+\) \+ 20 bytes, which cudaMemcpyAsync \(.*\) may still write.*Sync",
    ),
    3: (HOST, r"h .*which cudaMemcpyAsync \(.*\) may still read"),
    4: (STREAMS, r"cudaMemcpy reads d .* which fill \(.*\) writes"),
    5: (HOST, "may still write"),
    6: (STREAMS, r"fill writes d .* which add \(.*\) reads"),
    7: (HOST, r"big .*\+ 36 bytes"),
    8: (STREAMS, "add reads d"),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_nothing_orders_is_found(case):
    kind, said = FOUND[case]
    report = cudaemu.program(source(PROGRAM, "streams"), [str(case)])
    assert report.status == 0 and [finding.kind for finding in report.findings] == [kind], report
    finding = report.findings[0]
    assert re.search(said, finding.message) and f"case {case}:" in PROGRAM.splitlines()[finding.line - 1] or case == 8


@pytest.mark.parametrize("case", range(20, 35))
def test_what_is_ordered_is_silent(case):
    report = cudaemu.program(source(PROGRAM, "streams"), [str(case)])
    assert report.ok and report.status == 0 and not report.findings, report
