// The sum of an array, tree by tree in shared memory: each block halves its values until one is left.
//
// The stride starts large, so that the threads which still work are neighbours (no divergence within a warp until the
// last steps) and touch neighbouring banks.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

constexpr int THREADS = 256;

__global__ void block_sums(const int *in, int *sums, int n) {
  __shared__ int values[THREADS];
  const int i = blockIdx.x * THREADS + threadIdx.x;
  values[threadIdx.x] = i < n ? in[i] : 0;
  for (int stride = THREADS / 2; stride > 0; stride /= 2) {
    __syncthreads();  // what the others wrote in the step before is what this one reads
    if (threadIdx.x < stride) values[threadIdx.x] += values[threadIdx.x + stride];
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = values[0];
}

int main() {
  const int n = 100'000;
  std::vector<int> host(n);
  long long expected = 0;
  for (int i = 0; i < n; ++i) expected += host[i] = i % 97;
  // Launch after launch, until one value is left: a launch is where all blocks meet.
  int *from, *to;
  cudaMalloc(&from, n * sizeof(int));
  cudaMalloc(&to, (n + THREADS - 1) / THREADS * sizeof(int));
  cudaMemcpy(from, host.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  for (int left = n; left > 1;) {
    const int blocks = (left + THREADS - 1) / THREADS;
    block_sums<<<blocks, THREADS>>>(from, to, left);
    std::swap(from, to);
    left = blocks;
  }
  int sum = 0;
  const cudaError_t error = cudaMemcpy(&sum, from, sizeof sum, cudaMemcpyDeviceToHost);
  printf(error || sum != expected ? "FAIL: %d instead of %lld\n" : "PASS\n", sum, expected);
  cudaFree(from);
  cudaFree(to);
  return error || sum != expected;
}
