// An mbarrier is initialised, a barrier follows, and another thread gives it to TMA: nothing has shown the
// initialisation to TMA, which fence.mbarrier_init or fence.proxy.async would.
// Public: MoonshotAI/FlashKDA #24, second part
// Finding: mbarrier without a fence (strict)
// PTX: fence.mbarrier_init orders the initialisation before later operations of the cluster, and TMA accesses
//   mbarriers through the async proxy; a barrier of the block is not said to order that.
// Hardware: no report of a wrong result is known here, and public kernels do without the fence.
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ alignas(128) int in[N], out[N];

__global__ void reverse() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1);  // <- finding
#ifdef CORRECTED
    fence_init();
#endif
  }
  __syncthreads();
  if (threadIdx.x == 64) {
    expect(&bar, sizeof tile);
    load(tile, in, sizeof tile, &bar);  // <- finding
  }
  wait(&bar, 0);
  out[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = i;
  reverse<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == N - 1 - i; });
}
