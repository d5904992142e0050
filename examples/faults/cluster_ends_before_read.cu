// A block reads the shared memory of the other block of its cluster, which may have ended: no barrier of the cluster
// after the last read keeps it.
// Public: facebookexperimental/triton #1105
// Finding: block of the cluster not there
// Needs compute capability 9.0.
#include <cooperative_groups.h>

#include "faults.h"

__managed__ int out[64];

__global__ void __cluster_dims__(2) exchange() {
  __shared__ int values[32];
  auto cluster = cooperative_groups::this_cluster();
  values[threadIdx.x] = blockIdx.x * 32 + threadIdx.x;
  cluster.sync();
  const int *there = cluster.map_shared_rank(values, cluster.block_rank() ^ 1);
  out[blockIdx.x * 32 + threadIdx.x] = there[threadIdx.x];  // <- finding
#ifdef CORRECTED
  cluster.sync();
#endif
}

int main() {
  exchange<<<2, 32>>>();
  return verdict(64, [](int i) { return out[i] == (i ^ 32); });
}
