// A histogram: each block counts into shared memory, then adds its counts to those of all.
//
// Atomics in shared memory are fast and meet only the threads of the block; 256 atomics per block go to global memory,
// instead of one per byte.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int BINS = 256;

__global__ void histogram(const unsigned char *data, unsigned *bins, int n) {
  __shared__ unsigned mine[BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) mine[bin] = 0;
  __syncthreads();  // all bins are zero before anyone counts
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[data[i]], 1u);
  __syncthreads();  // all are counted before anyone adds
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x)
    if (mine[bin]) atomicAdd(&bins[bin], mine[bin]);
}

int main() {
  const int n = 30'000;
  std::vector<unsigned char> data(n);
  std::vector<unsigned> expected(BINS), bins(BINS);
  for (int i = 0; i < n; ++i) ++expected[data[i] = (unsigned char)(i * i / 7)];
  unsigned char *d_data;
  unsigned *d_bins;
  cudaMalloc(&d_data, n);
  cudaMalloc(&d_bins, BINS * sizeof(unsigned));
  cudaMemcpy(d_data, data.data(), n, cudaMemcpyHostToDevice);
  cudaMemset(d_bins, 0, BINS * sizeof(unsigned));
  histogram<<<6, 192>>>(d_data, d_bins, n);
  cudaMemcpy(bins.data(), d_bins, BINS * sizeof(unsigned), cudaMemcpyDeviceToHost);
  const bool right = cudaGetLastError() == cudaSuccess && bins == expected;
  printf(right ? "PASS\n" : "FAIL\n");
  cudaFree(d_data);
  cudaFree(d_bins);
  return !right;
}
