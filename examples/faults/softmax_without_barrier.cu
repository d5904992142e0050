// All threads read the maximum from a shared array, and the sums are then reduced in the same array: a fast warp
// overwrites the maximum before a slow one has read it.
// Public: karpathy/llm.c, softmax_forward_kernel4, seen in a run (the same in ScalingIntelligence/good-kernels)
// Finding: shared race
#include "faults.h"

constexpr int N = 128;
__managed__ float in[N], out[N];

__device__ float over_block(float value, bool is_sum, float *warps) {
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffff, value, step);
    value = is_sum ? value + other : fmaxf(value, other);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;  // <- finding
  __syncthreads();
  value = warps[0];
  for (int i = 1; i < N / 32; ++i) value = is_sum ? value + warps[i] : fmaxf(value, warps[i]);  // <- finding
#ifdef CORRECTED
  __syncthreads();
#endif
  return value;
}

__global__ void softmax() {
  __shared__ float warps[N / 32];
  const float most = over_block(in[threadIdx.x], false, warps);  // <- finding
  const float weight = expf(in[threadIdx.x] - most);
  out[threadIdx.x] = weight / over_block(weight, true, warps);  // <- finding
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = 3;
  softmax<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == 1.0f / N; });
}
