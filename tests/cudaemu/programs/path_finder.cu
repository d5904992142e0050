// The cheapest way through a grid from top to bottom, row by row: dynamic programming with shuffles instead of shared
// memory.
// Run: cudaemu path_finder.cu
// Prints: 40 rows of 150 columns, the cheapest way costs 43
#include <climits>

#include "check.h"

constexpr int ROWS_AT_ONCE = 5, WIDTH = 32 - 2 * ROWS_AT_ONCE;

__global__ void rows(const int *cost, const int *from, int *to, int columns, int first, int count) {
  const int lane = threadIdx.x, x = int(blockIdx.x) * WIDTH + lane - ROWS_AT_ONCE;
  const bool inside = x >= 0 && x < columns;
  int best = inside ? from[x] : INT_MAX;
  for (int r = first; r < first + count; ++r) {
    const int left = __shfl_up_sync(~0u, best, 1), right = __shfl_down_sync(~0u, best, 1);
    const int least = min(best, min(lane ? left : INT_MAX, lane < 31 ? right : INT_MAX));
    best = inside ? least + cost[r * columns + x] : INT_MAX;
  }
  if (inside && lane >= ROWS_AT_ONCE && lane < 32 - ROWS_AT_ONCE) to[x] = best;
}

int main() {
  const int n = 40, columns = 150;
  std::vector<int> cost(n * columns);
  Random random;
  for (int &c : cost) c = random.below(10);
  std::vector<int> expected(cost.begin(), cost.begin() + columns), next(columns);
  Array<int> costs(cost), a(expected), b(columns);
  for (int r = 1; r < n; ++r, expected = next)
    for (int x = 0; x < columns; ++x) {
      int best = expected[x];
      if (x) best = std::min(best, expected[x - 1]);
      if (x + 1 < columns) best = std::min(best, expected[x + 1]);
      next[x] = best + cost[r * columns + x];
    }
  int *from = a, *to = b;
  for (int r = 1; r < n; r += ROWS_AT_ONCE, std::swap(from, to))
    rows<<<(columns + WIDTH - 1) / WIDTH, 32>>>(costs, from, to, columns, r, std::min(ROWS_AT_ONCE, n - r));
  std::vector<int> got(columns);
  CUDA(cudaMemcpy(got.data(), from, columns * sizeof(int), cudaMemcpyDeviceToHost));
  MUST(got == expected);
  int least = INT_MAX;
  for (int c : got) least = std::min(least, c);
  std::printf("%d rows of %d columns, the cheapest way costs %d\n", n, columns, least);
}
