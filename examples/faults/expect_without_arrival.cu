// Bytes are expected by an instruction that does not arrive, and no thread arrives: the phase waits for one arrival
// that never comes, though all bytes are there.
// Public: tile-ai/tilelang #2566
// Finding: deadlock
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128;
__managed__ alignas(128) int in[N], out[N];

__global__ void reverse() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) init(&bar, 1), fence_init();
  __syncthreads();
  if (threadIdx.x == 0) {
#ifdef CORRECTED
    expect(&bar, sizeof tile);
#else
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(at(&bar)),
                 "n"(sizeof tile) : "memory");
#endif
    load(tile, in, sizeof tile, &bar);
  }
  wait(&bar, 0);  // <- finding
  out[threadIdx.x] = tile[N - 1 - threadIdx.x];
}

int main() {
  for (int i = 0; i < N; ++i) in[i] = i;
  reverse<<<1, N>>>();
  return verdict(N, [](int i) { return out[i] == N - 1 - i; });
}
