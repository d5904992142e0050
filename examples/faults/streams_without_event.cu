// One stream writes what another one reads, and no event orders the two: the second kernel may run first.
// Public: alpaka-group/alpaka #850; ashalliants/ninfer-3090 PR #38
// Finding: race between streams
#include "faults.h"

constexpr int N = 32;
__managed__ int out[N];

__global__ void fill(int *p) { p[threadIdx.x] = threadIdx.x; }
__global__ void twice(const int *p) { out[threadIdx.x] = 2 * p[threadIdx.x]; }

int main() {
  int *middle;
  cudaMalloc(&middle, N * sizeof(int));
  cudaStream_t first, second;
  cudaEvent_t filled;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEventCreate(&filled);
  fill<<<1, N, 0, first>>>(middle);  // <- finding
#ifdef CORRECTED
  cudaEventRecord(filled, first);
  cudaStreamWaitEvent(second, filled, 0);
#endif
  twice<<<1, N, 0, second>>>(middle);  // <- finding
  return verdict(N, [](int i) { return out[i] == 2 * i; });
}
