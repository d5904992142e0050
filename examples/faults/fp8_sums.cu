// A long sum of fp8 products stays in wgmma's accumulators, which keep 14 bits of the sum: from 8192 on each product
// of 40.5 is cut. The twin adds up in fp32 registers after every four products.
// Public: deepseek-ai/DeepGEMM #37; deepseek-ai/DeepSeek-V3 #197
// Finding: wrong result
// Needs compute capability 9.0a.
#include <cuda_fp8.h>

#include "faults.h"

constexpr int M = 64, N = 8, K = 32, STEPS = 1024;
#ifdef CORRECTED
constexpr int TOGETHER = 4;
#else
constexpr int TOGETHER = STEPS;
#endif
__managed__ float out[128 * 4];

__device__ void multiply(float (&d)[4], uint64_t a, uint64_t b, int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, p, 1, 1; }"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b), "r"(add));
}

__global__ void __launch_bounds__(128) product() {
  __shared__ alignas(128) __nv_fp8_e4m3 a[M * K], b[N * K];
  for (int i = threadIdx.x; i < M * K; i += 128) a[i] = __nv_fp8_e4m3(1.125f);
  for (int i = threadIdx.x; i < N * K; i += 128) b[i] = __nv_fp8_e4m3(1.125f);
  fence_proxy();
  __syncthreads();
  float d[4] = {}, sums[4] = {};
  for (int step = 0; step < STEPS; step += TOGETHER) {
    wgmma_fence();
    for (int i = 0; i < TOGETHER; ++i) multiply(d, describe(a, 128, 256), describe(b, 128, 256), i);
    wgmma_commit();
    wgmma_wait(d);
    for (int i = 0; i < 4; ++i) sums[i] += d[i];
  }
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = sums[i];
}

int main() {
  product<<<1, 128>>>();
  return verdict(128 * 4, [](int i) { return out[i] == STEPS * K * 1.125f * 1.125f; });
}
