// The accumulators of wgmma are stored without a wait for the group: the products are still being made, and their
// registers hold anything.
// Public: HazyResearch/ThunderKittens #33
// Finding: wgmma in flight
// Needs compute capability 9.0a.
#include <cuda_fp16.h>

#include "faults.h"

constexpr int M = 64, N = 8, K = 16;
__managed__ float out[128 * 4];

// d += a b: 64 x 16 by 16 x 8.
__device__ void multiply(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}

__global__ void __launch_bounds__(128) product() {
  __shared__ alignas(128) half a[M * K], b[N * K];
  for (int i = threadIdx.x; i < M * K; i += 128) a[i] = __float2half(1);
  for (int i = threadIdx.x; i < N * K; i += 128) b[i] = __float2half(2);
  fence_proxy();
  __syncthreads();
  float d[4] = {};
  wgmma_fence();
  multiply(d, describe(a, 128, 256), describe(b, 128, 256));
  wgmma_commit();
#ifdef CORRECTED
  wgmma_wait(d);
#endif
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];  // <- finding
}

int main() {
  product<<<1, 128>>>();
  return verdict(128 * 4, [](int i) { return out[i] == 2 * K; });
}
