// A histogram with more bins than one block has room for: the blocks of a cluster divide them.
//
// Each block keeps a part of the bins in its own shared memory and counts into those of the others as well: distributed
// shared memory. The cluster's barrier makes sure that a block is there before others reach into it, that its bins are
// zero by then, and that it stays until the last of them has counted. Needs compute capability 9.0.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

namespace cg = cooperative_groups;

constexpr int BINS = 1024, BLOCKS = 4, PART = BINS / BLOCKS;  // of a cluster, and bins of each of its blocks

__global__ void histogram(const int *data, unsigned *bins, int n) {
  __shared__ unsigned mine[PART];
  cg::cluster_group cluster = cg::this_cluster();
  for (int bin = threadIdx.x; bin < PART; bin += blockDim.x) mine[bin] = 0;
  cluster.sync();  // all blocks are there, and all bins are zero, before anyone counts
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    unsigned *part = cluster.map_shared_rank(mine, data[i] / PART);  // in the block that keeps this bin
    atomicAdd(&part[data[i] % PART], 1u);
  }
  cluster.sync();  // all have counted, and nobody reaches into another block any more
  for (int bin = threadIdx.x; bin < PART; bin += blockDim.x)
    if (mine[bin]) atomicAdd(&bins[cluster.block_rank() * PART + bin], mine[bin]);
}

int main() {
  const int n = 20'000;
  std::vector<int> data(n);
  std::vector<unsigned> expected(BINS), bins(BINS);
  for (int i = 0; i < n; ++i) ++expected[data[i] = int(unsigned(i) * i / 7 % BINS)];
  int *d_data;
  unsigned *d_bins;
  cudaMalloc(&d_data, n * sizeof(int));
  cudaMalloc(&d_bins, BINS * sizeof(unsigned));
  cudaMemcpy(d_data, data.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemset(d_bins, 0, BINS * sizeof(unsigned));
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {BLOCKS, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = 2 * BLOCKS;  // a multiple of the cluster
  config.blockDim = 128;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, histogram, d_data, d_bins, n);
  cudaMemcpy(bins.data(), d_bins, BINS * sizeof(unsigned), cudaMemcpyDeviceToHost);
  const bool right = cudaGetLastError() == cudaSuccess && bins == expected;
  printf(right ? "PASS\n" : "FAIL\n");
  cudaFree(d_data);
  cudaFree(d_bins);
  return !right;
}
