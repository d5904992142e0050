// Bitonic sort of keys with values: short distances in shared memory, long ones by launches in global memory.
// Run: cudaemu bitonic_sort.cu
// Prints: 4096 pairs sorted
#include <algorithm>

#include "check.h"

constexpr int TILE = 512;

__device__ void compare(unsigned &a, unsigned &b, int &x, int &y, bool up) {
  if ((a > b) == up) {
    const unsigned key = a;
    const int value = x;
    a = b, b = key, x = y, y = value;
  }
}

__global__ void in_tiles(unsigned *keys, int *values, int from, int to) {
  __shared__ unsigned k[TILE];
  __shared__ int v[TILE];
  const int base = blockIdx.x * TILE, t = threadIdx.x;
  for (int i = t; i < TILE; i += blockDim.x) k[i] = keys[base + i], v[i] = values[base + i];
  for (int size = from; size <= to; size *= 2)
    for (int step = min(size / 2, TILE / 2); step; step /= 2) {
      __syncthreads();
      const int i = 2 * t - (t & (step - 1));
      compare(k[i], k[i + step], v[i], v[i + step], ((base + i) & size) == 0);
    }
  __syncthreads();
  for (int i = t; i < TILE; i += blockDim.x) keys[base + i] = k[i], values[base + i] = v[i];
}

__global__ void far(unsigned *keys, int *values, int size, int step) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x, i = 2 * t - (t & (step - 1));
  compare(keys[i], keys[i + step], values[i], values[i + step], (i & size) == 0);
}

int main() {
  const int n = 4096;
  std::vector<unsigned> in(n);
  std::vector<int> index(n);
  Random random;
  for (int i = 0; i < n; ++i) in[i] = random.next() * 4099u, index[i] = i;
  Array<unsigned> keys(in);
  Array<int> values(index);
  in_tiles<<<n / TILE, TILE / 2>>>(keys, values, 2, TILE);
  for (int size = 2 * TILE; size <= n; size *= 2) {
    for (int step = size / 2; step >= TILE; step /= 2) far<<<n / 2 / 256, 256>>>(keys, values, size, step);
    in_tiles<<<n / TILE, TILE / 2>>>(keys, values, size, size);
  }
  const auto k = keys.host();
  const auto v = values.host();
  MUST(std::is_sorted(k.begin(), k.end()));
  for (int i = 0; i < n; ++i) MUST(in[v[i]] == k[i]);
  std::printf("%d pairs sorted\n", n);
}
