// Work in four streams, in an order that events make: a pipeline of copies and kernels over pieces of an array.
// Run: cudaemu streams_events.cu 4096
// Prints: 4 streams, 16 pieces, 4096 values
#include "check.h"

__global__ void stage(const float *in, float *out, int n, float add) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] * 2 + add;
}

int main(int, char **argv) {
  const int n = std::atoi(argv[1]), pieces = 16, each = n / pieces;
  float *host;
  CUDA(cudaMallocHost(&host, n * sizeof(float)));
  for (int i = 0; i < n; ++i) host[i] = float(i % 1000);
  Array<float> a(n), b(n);
  cudaStream_t streams[4];
  int least, greatest;
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (int s = 0; s < 4; ++s)
    CUDA(cudaStreamCreateWithPriority(&streams[s], cudaStreamNonBlocking, s % 2 ? greatest : least));
  int priority;
  unsigned flags;
  CUDA(cudaStreamGetPriority(streams[1], &priority));
  CUDA(cudaStreamGetFlags(streams[1], &flags));
  MUST(priority == greatest && flags == cudaStreamNonBlocking);
  cudaEvent_t start, stop, done[pieces];
  CUDA(cudaEventCreate(&start));
  CUDA(cudaEventCreateWithFlags(&stop, cudaEventBlockingSync));
  for (auto &event : done) CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaEventRecord(start, streams[0]));
  for (int p = 0; p < pieces; ++p) {
    const cudaStream_t copies = streams[p % 2], kernels = streams[2 + p % 2];
    const int at = p * each;
    CUDA(cudaMemcpyAsync(a + at, host + at, each * sizeof(float), cudaMemcpyHostToDevice, copies));
    CUDA(cudaEventRecord(done[p], copies));
    CUDA(cudaStreamWaitEvent(kernels, done[p], 0));
    stage<<<(each + 63) / 64, 64, 0, kernels>>>(a + at, b + at, each, 1);
    stage<<<(each + 63) / 64, 64, 0, kernels>>>(b + at, a + at, each, 3);
    CUDA(cudaMemcpyAsync(host + at, a + at, each * sizeof(float), cudaMemcpyDeviceToHost, kernels));
  }
  for (int s = 1; s < 4; ++s) {
    CUDA(cudaEventRecord(done[s], streams[s]));
    CUDA(cudaStreamWaitEvent(streams[0], done[s], 0));
  }
  CUDA(cudaEventRecord(stop, streams[0]));
  CUDA(cudaEventSynchronize(stop));
  CUDA(cudaEventQuery(stop));
  CUDA(cudaStreamQuery(streams[3]));
  float ms = -1;
  CUDA(cudaEventElapsedTime(&ms, start, stop));
  MUST(ms >= 0);
  for (int i = 0; i < n; ++i) MUST(host[i] == (i % 1000 * 2 + 1) * 2 + 3);
  for (auto stream : streams) CUDA(cudaStreamDestroy(stream));
  for (auto event : done) CUDA(cudaEventDestroy(event));
  CUDA(cudaEventDestroy(start));
  CUDA(cudaEventDestroy(stop));
  CUDA(cudaFreeHost(host));
  std::printf("4 streams, %d pieces, %d values\n", pieces, n);
}
