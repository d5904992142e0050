// Global alignment of two sequences (Needleman and Wunsch): the score matrix by anti-diagonals of tiles.
// Run: cudaemu sequence_alignment.cu
// Prints: 96 x 96 scores agree, the last one 95
#include "check.h"

constexpr int T = 16, GAP = 3;

__host__ __device__ int match(char a, char b) { return a == b ? 4 : -2 - (a ^ b) % 3; }

__global__ void tiles(const char *a, const char *b, int *score, int n, int diagonal, int first) {
  __shared__ int s[T + 1][T + 1];
  const int t = threadIdx.x, ty = first + blockIdx.x, tx = diagonal - ty, width = n + 1;
  const int y0 = ty * T, x0 = tx * T;
  s[t + 1][0] = score[(y0 + t + 1) * width + x0];
  s[0][t + 1] = score[y0 * width + x0 + t + 1];
  if (t == 0) s[0][0] = score[y0 * width + x0];
  __syncthreads();
  for (int d = 0; d < 2 * T - 1; ++d) {
    const int y = t, x = d - t;
    if (x >= 0 && x < T) {
      const int diagonally = s[y][x] + match(a[y0 + y], b[x0 + x]);
      s[y + 1][x + 1] = max(diagonally, max(s[y][x + 1], s[y + 1][x]) - GAP);
    }
    __syncthreads();
  }
  for (int y = 0; y < T; ++y) score[(y0 + y + 1) * width + x0 + t + 1] = s[y + 1][t + 1];
}

int main() {
  const int n = 96, width = n + 1, wide = n / T;
  std::vector<char> a(n), b(n);
  Random random;
  for (int i = 0; i < n; ++i) a[i] = "ACGT"[random.below(4)], b[i] = "ACGT"[random.below(4)];
  std::vector<int> expected(width * width, 0);
  for (int i = 0; i <= n; ++i) expected[i] = expected[i * width] = -GAP * i;
  Array<int> score(expected);
  Array<char> left(a), right(b);
  for (int y = 1; y <= n; ++y)
    for (int x = 1; x <= n; ++x)
      expected[y * width + x] = std::max(expected[(y - 1) * width + x - 1] + match(a[y - 1], b[x - 1]),
                                         std::max(expected[(y - 1) * width + x], expected[y * width + x - 1]) - GAP);
  for (int d = 0; d < 2 * wide - 1; ++d) {
    const int first = std::max(0, d - wide + 1), last = std::min(d, wide - 1);
    tiles<<<last - first + 1, T>>>(left, right, score, n, d, first);
  }
  MUST(score.host() == expected);
  std::printf("%d x %d scores agree, the last one %d\n", n, n, expected.back());
}
