// A bulk load is multicast to both blocks of a cluster, and the other block may not have started, or not have its
// mbarrier yet.
// Public: Ratbuyer/h100_features and others, seen in runs of their examples (docs/emulator.md)
// Finding: block of the cluster not there
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ alignas(128) int in[N], out[2 * N];

__global__ void __cluster_dims__(2) broadcast() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1), fence_init();
    expect(&bar, sizeof tile);
  }
#ifdef CORRECTED
  cluster_sync();
#else
  __syncthreads();
#endif
  if (cluster_rank() == 0 && threadIdx.x == 0)
    asm volatile(  // <- finding
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(at(tile)),
        "l"(in), "r"(int(sizeof tile)), "r"(at(&bar)), "h"(uint16_t(3)) : "memory");  // <- finding
  wait(&bar, 0);
  out[blockIdx.x * N + threadIdx.x] = tile[threadIdx.x];
  cluster_sync();
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = i;
  broadcast<<<2, N>>>();
  return verdict(2 * N, [](int i) { return out[i] == i % N; });
}
