"""CUDA graphs: what is captured, and what is refused."""

from __future__ import annotations

import cudaemu
from tests.cudaemu.sources import source

CAPTURE = r"""
#include <cstdio>
__global__ void set(int *x, int value) { *x = value; }
int main() {
  int *x, h = 0;
  cudaMalloc(&x, sizeof h);
  cudaMemset(x, 0, sizeof h);
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaGraph_t graph, copy;
  cudaStreamCaptureStatus status;
  printf("%s ", cudaGetErrorName(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal)));
  printf("%s ", cudaGetErrorName(cudaStreamEndCapture(stream, &graph)));
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  cudaStreamIsCapturing(stream, &status);
  printf("%d ", status == cudaStreamCaptureStatusActive);
  int value = 5;
  printf("%s ", cudaGetErrorName(cudaStreamSynchronize(stream)));
  cudaStreamIsCapturing(stream, &status);
  printf("%d ", status == cudaStreamCaptureStatusInvalidated);
  printf("%s ", cudaGetErrorName(cudaStreamEndCapture(stream, &graph)));
  printf("%d ", graph == nullptr);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  set<<<1, 1, 0, stream>>>(x, value);
  value = 6;
  cudaStreamEndCapture(stream, &graph);
  cudaGetLastError();
  cudaMemcpy(&h, x, sizeof h, cudaMemcpyDeviceToHost);
  printf("%d ", h);  // nothing was done
  cudaGraphClone(&copy, graph);
  cudaGraphDestroy(graph);
  cudaGraphExec_t exec;
  cudaGraphInstantiate(&exec, copy, 0);
  cudaGraphLaunch(exec, stream);
  cudaMemcpy(&h, x, sizeof h, cudaMemcpyDeviceToHost);
  printf("%d ", h);  // the value of then

  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  set<<<1, 1, 0, stream>>>(x, 7);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphExecUpdateResultInfo result;
  cudaGraphExecUpdate(exec, graph, &result);
  cudaGraphLaunch(exec, stream);
  cudaMemcpy(&h, x, sizeof h, cudaMemcpyDeviceToHost);
  printf("%d ", h);
  cudaGraphNode_t first, second;
  cudaGraphCreate(&graph, 0);
  cudaGraphAddEmptyNode(&first, graph, nullptr, 0);
  cudaGraphAddEmptyNode(&second, graph, &first, 1);
  printf("%s ", cudaGetErrorName(cudaGraphExecUpdate(exec, graph, &result)));
  cudaGraphDestroy(graph);
  printf("%s\n", cudaGetErrorName(cudaGraphInstantiate(&exec, graph, 0)));
}
"""


def test_capture(capsys):
    report = cudaemu.program(source(CAPTURE, "graphs"))
    assert report.ok, report
    said = capsys.readouterr().out.split()
    assert said[:4] == ["cudaErrorStreamCaptureUnsupported", "cudaErrorIllegalState", "1", said[0]]
    assert said[4:7] == ["1", "cudaErrorStreamCaptureInvalidated", "1"]  # no graph
    assert said[7:] == ["0", "5", "7", "cudaErrorGraphExecUpdateFailure", "cudaErrorInvalidValue"]


MODES = r"""
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <thread>
int main() {
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  int *held[18], n = 0;
  for (int *&each : held) cudaMalloc(&each, 4);
  for (auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed})
    for (int who = 0; who < 3; ++who)  // the thread that captures, another, another that is relaxed
      for (int what = 0; what < 2; ++what) {
        cudaError_t error;
        cudaGraph_t graph;
        void *made;
        cudaStreamBeginCapture(stream, mode);
        const auto call = [&] {
          cudaStreamCaptureMode own = cudaStreamCaptureModeRelaxed;
          if (who == 2) cudaThreadExchangeStreamCaptureMode(&own);
          error = what ? cudaFree(held[n]) : cudaMalloc(&made, 4);
        };
        ++n;
        if (who)
          std::thread(call).join();
        else
          call();
        cudaStreamCaptureStatus status;
        cudaStreamIsCapturing(stream, &status);
        const bool spoiled = status == cudaStreamCaptureStatusInvalidated;
        const cudaError_t end = cudaStreamEndCapture(stream, &graph);
        printf("%s ", error == cudaErrorStreamCaptureUnsupported && spoiled && end == cudaErrorStreamCaptureInvalidated
                          ? "no"
                      : !error && !spoiled && !end ? "yes"
                                                   : "?");
      }
  cudaError_t other;
  cudaGraph_t graph;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  std::thread([&] { other = cudaStreamEndCapture(stream, &graph); }).join();
  printf("%s %d\n", cudaGetErrorName(other), cudaStreamEndCapture(stream, &graph));
}
"""


def test_what_may_be_called_while_a_stream_is_captured(capsys):
    """The Runtime API's "potentially unsafe calls", by the modes of the capture and of the thread."""
    assert cudaemu.program(source(MODES, "capture_modes")).ok
    no, yes = ["no", "no"], ["yes", "yes"]  # cudaMalloc, cudaFree
    of_global, thread_local, relaxed = [*no, *no, *yes], [*no, *yes, *yes], 3 * yes
    said = [*of_global, *thread_local, *relaxed, "cudaErrorStreamCaptureWrongThread", "0"]
    assert capsys.readouterr().out.split() == said


POOLS = r"""
#include <cstdio>
int main() {
  cudaMemPool_t pool;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  unsigned long long threshold = 1 << 20, used, high;
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold);
  threshold = 0;
  cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold);
  void *a, *b;
  cudaMallocAsync(&a, 1000, 0);
  cudaMallocFromPoolAsync(&b, 24, pool, 0);
  cudaFreeAsync(a, 0);
  cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used);
  cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &high);
  cudaFreeAsync(b, 0);
  cudaMemPoolTrimTo(pool, 0);
  cudaCtxResetPersistingL2Cache();
  cudaStreamAttrValue window = {};
  const int error = cudaStreamSetAttribute(0, cudaStreamAttributeAccessPolicyWindow, &window);
  printf("%llu %llu %llu %d\n", threshold, used, high, error);
}
"""


def test_memory_pools_and_hints(capsys):
    assert cudaemu.program(source(POOLS, "pools"), leaks=True).ok
    assert capsys.readouterr().out == "1048576 24 1024 0\n"
