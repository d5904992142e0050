// A thread arrives at the mbarrier of the other block of its cluster, and nothing keeps that block: it may have ended,
// and its shared memory may be another block's by then.
// Public: triton-lang/triton #11731
// Finding: block of the cluster not there
// Needs compute capability 9.0.
#include "faults.h"

__managed__ int out[2];

__global__ void __cluster_dims__(2) tell() {
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1), fence_init();
  cluster_sync();
  if (threadIdx.x == 0) {
    const unsigned there = at_rank(&bar, cluster_rank() ^ 1);
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");  // <- finding
    out[blockIdx.x] = 1;
  }
#ifdef CORRECTED
  cluster_sync();
#endif
}

int main() {
  tell<<<2, 32>>>();
  return verdict(2, [](int i) { return out[i] == 1; });
}
