// The host reads pinned memory after cudaMemcpyAsync and does not wait for the stream: it may read what was there
// before.
// Public: NVIDIA/cudf #2755, PR #2794
// Finding: pinned memory too early
#include "faults.h"

constexpr int N = 32;

__global__ void fill(int *p) { p[threadIdx.x] = threadIdx.x; }

int main() {
  static int *device, *host;
  cudaMalloc(&device, N * sizeof(int));
  cudaMallocHost(&host, N * sizeof(int));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  fill<<<1, N, 0, stream>>>(device);
  cudaMemcpyAsync(host, device, N * sizeof(int), cudaMemcpyDeviceToHost, stream);
#ifdef CORRECTED
  cudaStreamSynchronize(stream);
#endif
  int sum = 0;
  for (int i = 0; i < N; ++i) sum += host[i];  // <- finding
  return verdict(1, [sum](int) { return sum == N * (N - 1) / 2; });
}
