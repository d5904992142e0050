// Asynchronous copies to shared memory by the primitives: 4, 8 and 16 bytes, parts filled with zeros, a ring of stages.
// Run: cudaemu async_copies.cu
// Prints: 1000 numbers through rings of 3 stages
#include <cuda_pipeline.h>

#include "check.h"

constexpr int STAGES = 3, TILE = 64;

template <typename T>
__global__ void sums(const T *in, int n, T *out) {
  __shared__ T ring[STAGES][TILE];
  const int t = threadIdx.x, tiles = (n + TILE - 1) / TILE;
  auto load = [&](int tile) {
    if (tile < tiles) {
      const int i = tile * TILE + t;
      const size_t missing = i < n ? 0 : sizeof(T);
      __pipeline_memcpy_async(&ring[tile % STAGES][t], in + (i < n ? i : 0), sizeof(T), missing);
    }
    __pipeline_commit();
  };
  for (int s = 0; s < STAGES - 1; ++s) load(s);
  T sum{};
  for (int tile = 0; tile < tiles; ++tile) {
    load(tile + STAGES - 1);
    __pipeline_wait_prior(STAGES - 1);
    __syncthreads();
    const T mine = ring[tile % STAGES][t], theirs = ring[tile % STAGES][TILE - 1 - t];
    sum.x += mine.x - 2 * theirs.x;
    __syncthreads();
  }
  out[t] = sum;
}

template <typename T>
void check(int n) {
  std::vector<T> in(n);
  for (int i = 0; i < n; ++i) in[i].x = i * 3 % 101;
  Array<T> data(in), out(TILE);
  CUDA(cudaMemset(out, 0, TILE * sizeof(T)));
  sums<T><<<1, TILE>>>(data, n, out);
  const auto got = out.host();
  for (int t = 0; t < TILE; ++t) {
    int expected = 0;
    for (int first = 0; first < n; first += TILE) {
      if (first + t < n) expected += int(in[first + t].x);
      if (first + TILE - 1 - t < n) expected -= 2 * int(in[first + TILE - 1 - t].x);
    }
    MUST(int(got[t].x) == expected);
  }
}

int main() {
  check<int1>(1000);
  check<float2>(1000);
  check<int4>(1000);
  std::printf("1000 numbers through rings of 3 stages\n");
}
