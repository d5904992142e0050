// What the runtime answers to launches in clusters, right and wrong. cluster_probe.txt is what it printed on an
// NVIDIA H200 (driver 580.159.04, CUDA 13.0, 2026-11-22); test_cluster.py compares.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdio>
namespace cg = cooperative_groups;
__global__ void plain(int *out) {
  cg::cluster_group c = cg::this_cluster();
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    out[0] = c.num_blocks();
    out[1] = c.block_rank();
  }
}
__global__ void __cluster_dims__(4, 1, 1) fixed(int *out) {
  __shared__ int mine;
  cg::cluster_group c = cg::this_cluster();
  if (threadIdx.x == 0) mine = c.block_rank() * 10;
  c.sync();
  if (threadIdx.x == 0) out[blockIdx.x] = *c.map_shared_rank(&mine, (c.block_rank() + 1) % 4);
  c.sync();
}
int *out;
template <typename K>
void go(const char *what, K kernel, int grid, int block, int cluster, size_t shared = 0) {
  cudaLaunchAttribute a = {};
  a.id = cudaLaunchAttributeClusterDimension;
  a.val.clusterDim.x = cluster, a.val.clusterDim.y = 1, a.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid), config.blockDim = dim3(block), config.dynamicSmemBytes = shared;
  config.attrs = &a, config.numAttrs = cluster ? 1 : 0;
  cudaError_t first = cudaLaunchKernelEx(&config, kernel, out);
  cudaError_t last = cudaGetLastError(), end = cudaDeviceSynchronize();
  printf("%s: %d %d %d\n", what, first, last, end);
}
int main() {
  cudaMalloc(&out, 4096);
  go("plain cluster 2 of 8", plain, 8, 32, 2);
  go("plain no cluster", plain, 8, 32, 0);
  go("grid no multiple", plain, 7, 32, 2);
  go("cluster 16 without leave", plain, 32, 32, 16);
  go("cluster 9", plain, 18, 32, 9);
  go("cluster 8", plain, 16, 32, 8);
  go("cluster 3", plain, 9, 32, 3);
  printf("attr %d\n", cudaFuncSetAttribute(plain, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  go("cluster 16 with leave", plain, 32, 32, 16);
  go("cluster 17 with leave", plain, 34, 32, 17);
  go("cluster 12 with leave", plain, 24, 32, 12);
  go("fixed 4 of 8", fixed, 8, 32, 0);
  int host[8] = {};
  cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
  for (int i : host) printf("%d ", i);
  printf("\n");
  go("fixed 4, grid 6", fixed, 6, 32, 0);
  go("fixed 4, attribute 4", fixed, 8, 32, 4);
  go("fixed 4, attribute 2", fixed, 8, 32, 2);
  cudaFuncAttributes f = {};
  printf("%d", cudaFuncGetAttributes(&f, fixed));
  printf(" cluster %d %d %d must be set %d nonportable %d\n", f.requiredClusterWidth, f.requiredClusterHeight,
         f.requiredClusterDepth, f.clusterDimMustBeSet, f.nonPortableClusterSizeAllowed);
  int value = -1;
  cudaDeviceGetAttribute(&value, cudaDevAttrClusterLaunch, 0);
  printf("cluster launch %d\n", value);
  cudaLaunchAttribute a = {};
  a.id = cudaLaunchAttributeClusterDimension, a.val.clusterDim.x = 8, a.val.clusterDim.y = a.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(64), config.blockDim = dim3(128), config.attrs = &a, config.numAttrs = 1;
  int n = -1;
  int code = cudaOccupancyMaxPotentialClusterSize(&n, plain, &config);
  printf("max potential %d: %d\n", code, n);
  code = cudaOccupancyMaxPotentialClusterSize(&n, fixed, &config);
  printf("max potential fixed %d: %d\n", code, n);
  code = cudaOccupancyMaxActiveClusters(&n, plain, &config);
  printf("max active %d: %d\n", code, n);
}
