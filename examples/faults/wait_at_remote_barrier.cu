// A thread waits for the mbarrier of the other block of its cluster; PTX has waits for the block's own mbarriers only.
// Public: facebookexperimental/triton #763
// Finding: mbarrier
// Needs compute capability 9.0.
#include "faults.h"

__managed__ int out[2];

__global__ void __cluster_dims__(2) tell() {
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1), fence_init();
  cluster_sync();
  if (threadIdx.x == 0) {
    const unsigned there = at_rank(&bar, cluster_rank() ^ 1);
#ifdef CORRECTED
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
    wait(&bar, 0);
#else
    arrive(&bar);
    wait(there, 0);  // <- finding
#endif
    out[blockIdx.x] = 1;
  }
  cluster_sync();
}

int main() {
  tell<<<2, 32>>>();
  return verdict(2, [](int i) { return out[i] == 1; });
}
