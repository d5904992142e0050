// The sum of an array in one launch: the last block to finish adds up what all blocks have left.
//
// Each block writes its sum, then says so at a counter. A fence comes between the two: without it the counter could be
// seen before the sum. Whoever draws the last number knows that all sums are there, and reads them.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int THREADS = 128;

__device__ unsigned finished;  // blocks that have written their sums

__global__ void sum(const int *in, int *sums, int *total, int n) {
  __shared__ int values[THREADS];
  __shared__ bool last;
  int value = 0;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) value += in[i];
  values[threadIdx.x] = value;
  __syncthreads();  // all values are there
  if (threadIdx.x == 0) {
    int block_sum = 0;
    for (int i = 0; i < THREADS; ++i) block_sum += values[i];
    sums[blockIdx.x] = block_sum;
    // Whoever sees the counter must see the sum:
    __threadfence();
    last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;  // and back to 0 for the next launch
  }
  __syncthreads();  // all know whether they are in the last block
  if (!last || threadIdx.x > 0) return;
  int result = 0;
  for (int block = 0; block < gridDim.x; ++block) result += sums[block];
  *total = result;
}

int main() {
  const int n = 30'000, blocks = 12;
  std::vector<int> in(n);
  int expected = 0, result = 0;
  for (int i = 0; i < n; ++i) expected += in[i] = i % 19 - 5;
  int *d_in, *d_sums, *d_total;
  cudaMalloc(&d_in, n * sizeof(int));
  cudaMalloc(&d_sums, blocks * sizeof(int));
  cudaMalloc(&d_total, sizeof(int));
  cudaMemcpy(d_in, in.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  int wrong = 0;
  for (int launch = 0; launch < 2; ++launch) {
    sum<<<blocks, THREADS>>>(d_in, d_sums, d_total, n);
    wrong += cudaMemcpy(&result, d_total, sizeof result, cudaMemcpyDeviceToHost) != cudaSuccess || result != expected;
  }
  printf(wrong ? "FAIL: %d instead of %d\n" : "PASS\n", result, expected);
  for (int *pointer : {d_in, d_sums, d_total}) cudaFree(pointer);
  return wrong != 0;
}
