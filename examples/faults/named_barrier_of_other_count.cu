// A named barrier is told to expect 256 threads, and 128 come: they wait for ever, or until somebody else happens to
// come to the same barrier.
// Public: asked in deepseek-ai/FlashMLA #41
// Finding: barrier divergence
#include "faults.h"

constexpr int N = 256;
__managed__ int out[N];

__global__ void halves() {
  __shared__ int values[N];
  values[threadIdx.x] = threadIdx.x;
#ifdef CORRECTED
  asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
#else
  if (threadIdx.x < 128) asm volatile("bar.sync 1, 256;" ::: "memory");  // <- finding
#endif
  out[threadIdx.x] = values[threadIdx.x ^ 127];
}

int main() {
  halves<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == (i ^ 127); });
}
