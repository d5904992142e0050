// All shortest paths (Floyd and Warshall) by tiles of a matrix of shorts: the pivot's tile, its cross, and the rest.
// Run: cudaemu all_pairs_paths.cu
// Prints: 64 x 64 distances agree
#include "check.h"

constexpr int T = 16;
typedef unsigned short Cost;

enum Phase { PIVOT, CROSS, REST };

template <Phase PHASE>
__global__ void pass(Cost *d, int n, int pivot) {
  __shared__ Cost left[T][T], above[T][T], own[T][T];
  int row = blockIdx.y, column = blockIdx.x;
  if (PHASE == PIVOT) row = column = pivot;
  if (PHASE == CROSS) row = blockIdx.y ? pivot : blockIdx.x, column = blockIdx.y ? blockIdx.x : pivot;
  if (PHASE == CROSS && row == column) return;
  if (PHASE == REST && (row == pivot || column == pivot)) return;
  const int x = threadIdx.x, y = threadIdx.y;
  Cost *const mine = d + (row * T + y) * n + column * T + x;
  own[y][x] = *mine;
  left[y][x] = d[(row * T + y) * n + pivot * T + x];
  above[y][x] = d[(pivot * T + y) * n + column * T + x];
  for (int k = 0; k < T; ++k) {
    __syncthreads();
    const int way = (PHASE == PIVOT || (PHASE == CROSS && column == pivot) ? own : left)[y][k] +
                    (PHASE == PIVOT || (PHASE == CROSS && row == pivot) ? own : above)[k][x];
    __syncthreads();
    own[y][x] = Cost(min(int(own[y][x]), way));
  }
  *mine = own[y][x];
}

int main() {
  const int n = 64, tiles = n / T;
  std::vector<Cost> d(n * n, 30000);
  Random random;
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < 4; ++k) d[i * n + random.below(n)] = Cost(1 + random.below(99));
    d[i * n + (i + 1) % n] = 50, d[i * n + i] = 0;
  }
  Array<Cost> data(d);
  for (int p = 0; p < tiles; ++p) {
    pass<PIVOT><<<1, dim3(T, T)>>>(data, n, p);
    pass<CROSS><<<dim3(tiles, 2), dim3(T, T)>>>(data, n, p);
    pass<REST><<<dim3(tiles, tiles), dim3(T, T)>>>(data, n, p);
  }
  for (int k = 0; k < n; ++k)
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) d[i * n + j] = Cost(std::min(int(d[i * n + j]), d[i * n + k] + d[k * n + j]));
  MUST(data.host() == d);
  std::printf("%d x %d distances agree\n", n, n);
}
