// A cluster of blocks adds up through distributed shared memory: each block's partial sum, a ring, and a shared
// histogram.
// Run: cudaemu --arch 9.0 cluster_reduce.cu
// Prints: 6 clusters of 4 blocks: 4720128
#include <cooperative_groups.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void __cluster_dims__(4, 1, 1) reduce(const int *in, long long *sums, int *ring) {
  __shared__ long long partial;
  __shared__ int token[2];
  const auto cluster = cg::this_cluster();
  const int i = blockIdx.x * blockDim.x + threadIdx.x, rank = cluster.block_rank();
  if (threadIdx.x == 0) partial = 0;
  __syncthreads();
  atomicAdd(reinterpret_cast<unsigned long long *>(&partial), static_cast<unsigned long long>(in[i]));
  if (threadIdx.x == 0) token[0] = blockIdx.x;
  cluster.sync();
  if (rank == 0 && threadIdx.x < cluster.num_blocks()) {
    long long *const theirs = cluster.map_shared_rank(&partial, threadIdx.x);
    const long long all = __reduce_add_sync(0xf, unsigned(*theirs));
    if (threadIdx.x == 0) sums[blockIdx.x / 4] = all;
  }
  for (int step = 0; step < 3; ++step) {  // each hands its token to the next, around
    if (threadIdx.x == 0) *cluster.map_shared_rank(&token[(step + 1) % 2], (rank + 1) % 4) = token[step % 2];
    cluster.sync();
  }
  if (threadIdx.x == 0) ring[blockIdx.x] = token[1];
}

// Each thread counts in the block that has its bin.
__global__ void histogram(const int *in, int *bins) {
  extern __shared__ int mine[];
  const auto cluster = cg::this_cluster();
  mine[threadIdx.x] = 0;
  cluster.sync();
  const int bin = in[cluster.thread_rank()] % (64 * cluster.num_blocks());
  atomicAdd(cluster.map_shared_rank(mine, bin / 64) + bin % 64, 1);
  cluster.sync();
  bins[cluster.thread_rank()] = mine[threadIdx.x];
}

int main() {
  const int blocks = 24, threads = 128, n = blocks * threads;
  std::vector<int> in(n);
  for (int i = 0; i < n; ++i) in[i] = i + 1;
  Array<int> data(in), ring(blocks), bins(512);
  Array<long long> sums(blocks / 4);
  reduce<<<blocks, threads>>>(data, sums, ring);
  long long total = 0;
  for (long long sum : sums.host()) total += sum;
  const auto tokens = ring.host();
  for (int b = 0; b < blocks; ++b) MUST(tokens[b] == b / 4 * 4 + (b + 1) % 4);
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 8, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.gridDim = 8, config.blockDim = 64, config.dynamicSmemBytes = 256, config.attrs = &attribute,
  config.numAttrs = 1;
  CUDA(cudaLaunchKernelEx(&config, histogram, static_cast<const int *>(data), bins.data));
  for (int count : bins.host()) MUST(count == 1);
  std::printf("%d clusters of 4 blocks: %lld\n", blocks / 4, total);
}
