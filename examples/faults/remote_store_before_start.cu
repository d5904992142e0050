// A block stores into the shared memory of the other block of its cluster, before a barrier of the cluster has shown
// that this one has started.
// Public: facebookexperimental/triton #2292
// Finding: block of the cluster not there
// Needs compute capability 9.0.
#include "faults.h"

__managed__ int out[64];

__global__ void __cluster_dims__(2) exchange() {
  __shared__ int values[32];
#ifdef CORRECTED
  cluster_sync();
#endif
  const unsigned place = at_rank(&values[threadIdx.x], cluster_rank() ^ 1);
  const int index = blockIdx.x * 32 + threadIdx.x;
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(place), "r"(index) : "memory");  // <- finding
  cluster_sync();
  out[index] = values[threadIdx.x];
}

int main() {
  exchange<<<2, 32>>>();
  return verdict(64, [](int i) { return out[i] == (i ^ 32); });
}
