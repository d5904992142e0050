// A bulk store has been issued and still reads the tile when the next bulk load overwrites it: nobody has waited until
// the store has read its source.
// Public: uccl-project/uccl, mKernel PR #18
// Finding: copy in flight
// Needs compute capability 9.0.
#include "faults.h"

constexpr int N = 128, TILES = 3;
__managed__ alignas(128) int in[TILES * N], out[TILES * N];

__global__ void copy() {
  __shared__ alignas(128) int tile[N];
  __shared__ uint64_t bar;
  init(&bar, 1), fence_init();
  for (int i = 0; i < TILES; ++i) {
    expect(&bar, sizeof tile);
    load(tile, in + i * N, sizeof tile, &bar);  // <- finding
    wait(&bar, i % 2);
    store(out + i * N, tile, sizeof tile);
#ifdef CORRECTED
    wait_stores_read();
#endif
  }
  wait_stores();
}

int main() {
  for (int i = 0; i < TILES * N; ++i) in[i] = i;
  copy<<<1, 1>>>();
  return verdict(TILES * N, [](int i) { return out[i] == i; });
}
