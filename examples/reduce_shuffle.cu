// The sum of an array through registers: lanes of a warp exchange values by shuffles, warps through shared memory.
//
// A shuffle needs neither shared memory nor a barrier. Five steps add 32 values; then each warp leaves its sum in
// shared memory, and the first warp adds those. Atomics bring the blocks together.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xffffffffu, value, distance);
  return value;  // lane 0 has it all
}

__global__ void sum(const float *in, float *total, int n) {
  __shared__ float warp_sums[32];
  float value = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) value += in[i];
  value = warp_sum(value);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) warp_sums[warp] = value;
  __syncthreads();  // all warps have left theirs
  if (warp == 0) {
    value = warp_sum(lane < blockDim.x / 32 ? warp_sums[lane] : 0.0f);
    if (lane == 0) atomicAdd(total, value);
  }
}

int main() {
  const int n = 50'000;
  std::vector<float> host(n);
  double expected = 0;
  for (int i = 0; i < n; ++i) expected += host[i] = float(i % 13);  // whole numbers: exact in any order
  float *in, *total, result = 0;
  cudaMalloc(&in, n * sizeof(float));
  cudaMalloc(&total, sizeof(float));
  cudaMemcpy(in, host.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemset(total, 0, sizeof(float));
  sum<<<16, 256>>>(in, total, n);
  const cudaError_t error = cudaMemcpy(&result, total, sizeof result, cudaMemcpyDeviceToHost);
  const bool right = !error && result == expected;
  printf(right ? "PASS\n" : "FAIL: %g instead of %g\n", result, expected);
  cudaFree(in);
  cudaFree(total);
  return !right;
}
