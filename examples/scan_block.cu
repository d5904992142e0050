// A prefix sum (scan) within a block, then over all: out[i] = in[0] + ... + in[i].
//
// Within a warp by shuffles, the warps' totals by one warp, and each block's total by a second launch. Three launches:
// scan the blocks, scan their totals, add what came before.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int THREADS = 128;

__device__ int warp_scan(int value) {
  const int lane = threadIdx.x % 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += below;
  }
  return value;
}

// The inclusive scan of one value per thread. `totals` is room for a value per warp.
__device__ int block_scan(int value, int *totals) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  value = warp_scan(value);
  if (lane == 31) totals[warp] = value;
  __syncthreads();  // the warps' totals are there
  if (warp == 0) {
    const int total = warp_scan(lane < THREADS / 32 ? totals[lane] : 0);
    if (lane < THREADS / 32) totals[lane] = total;
  }
  __syncthreads();  // and scanned
  return warp ? value + totals[warp - 1] : value;
}

__global__ void scan_blocks(const int *in, int *out, int *block_totals, int n) {
  __shared__ int totals[THREADS / 32];
  const int i = blockIdx.x * THREADS + threadIdx.x;
  const int value = block_scan(i < n ? in[i] : 0, totals);
  if (i < n) out[i] = value;
  if (block_totals && threadIdx.x == THREADS - 1) block_totals[blockIdx.x] = value;
}

__global__ void add_what_came_before(int *out, const int *block_totals, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (blockIdx.x > 0 && i < n) out[i] += block_totals[blockIdx.x - 1];
}

int main() {
  const int n = 10'000, blocks = (n + THREADS - 1) / THREADS;
  static_assert((10'000 + THREADS - 1) / THREADS <= THREADS, "one block scans the totals of all");
  std::vector<int> in(n), out(n);
  for (int i = 0; i < n; ++i) in[i] = i % 7 - 2;
  int *d_in, *d_out, *d_totals;
  cudaMalloc(&d_in, n * sizeof(int));
  cudaMalloc(&d_out, n * sizeof(int));
  cudaMalloc(&d_totals, blocks * sizeof(int));
  cudaMemcpy(d_in, in.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  scan_blocks<<<blocks, THREADS>>>(d_in, d_out, d_totals, n);
  scan_blocks<<<1, THREADS>>>(d_totals, d_totals, nullptr, blocks);
  add_what_came_before<<<blocks, THREADS>>>(d_out, d_totals, n);
  int wrong = cudaMemcpy(out.data(), d_out, n * sizeof(int), cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int i = 0, sum = 0; i < n; ++i) wrong += out[i] != (sum += in[i]);
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_in);
  cudaFree(d_out);
  cudaFree(d_totals);
  return wrong != 0;
}
