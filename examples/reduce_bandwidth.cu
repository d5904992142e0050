// The sum of an array as fast as it can be read: enough bytes in flight, and little else.
//
// reduce_shuffle adds one float per thread and turn, so a warp waits for 128 bytes at a time. Here a thread asks for
// four vectors of 16 bytes before it needs the first: latency times bandwidth is some 12 KB per multiprocessor.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int THREADS = 256, FLYING = 4;  // loads of a thread that are under way at a time

__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

__global__ void __launch_bounds__(THREADS) sum(const float *in, float *total, int n) {
  __shared__ float warp_sums[THREADS / 32];
  const auto vectors = reinterpret_cast<const float4 *>(in);
  const int count = n / 4, step = gridDim.x * THREADS, first = blockIdx.x * THREADS + threadIdx.x;
  float sums[FLYING] = {};
  int i = first;
  for (; i < count - (FLYING - 1) * step; i += FLYING * step) {
    float4 x[FLYING];
#pragma unroll
    for (int f = 0; f < FLYING; ++f) x[f] = vectors[i + f * step];  // all of them before the first is needed
#pragma unroll
    for (int f = 0; f < FLYING; ++f) sums[f] += (x[f].x + x[f].y) + (x[f].z + x[f].w);
  }
  for (; i < count; i += step) sums[0] += (vectors[i].x + vectors[i].y) + (vectors[i].z + vectors[i].w);
  if (first < n % 4) sums[0] += in[count * 4 + first];

  const float value = warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();  // all warps have left theirs
  if (threadIdx.x < 32) {
    const float block_sum = warp_sum(threadIdx.x < THREADS / 32 ? warp_sums[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) atomicAdd(total, block_sum);
  }
}

int main() {
  const int n = 60'003;
  std::vector<float> host(n);
  double expected = 0;
  for (int i = 0; i < n; ++i) expected += host[i] = float(i % 13);  // whole numbers: exact in any order
  float *in, *total, result = 0;
  cudaMalloc(&in, n * sizeof(float));
  cudaMalloc(&total, sizeof(float));
  cudaMemcpy(in, host.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemset(total, 0, sizeof(float));
  sum<<<8, THREADS>>>(in, total, n);
  const cudaError_t error = cudaMemcpy(&result, total, sizeof result, cudaMemcpyDeviceToHost);
  const bool right = !error && result == expected;
  printf(right ? "PASS\n" : "FAIL: %g instead of %g\n", result, expected);
  cudaFree(in);
  cudaFree(total);
  return !right;
}
