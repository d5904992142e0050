// Merge sort: each thread finds by bisection where its piece of the output begins in both runs (merge path).
// Run: cudaemu merge_sort.cu
// Prints: 5000 keys merged in 13 rounds
#include <algorithm>

#include "check.h"

constexpr int PIECE = 16;

template <typename T>
__global__ void merge(const T *in, T *out, int n, int run) {
  const int at = (blockIdx.x * blockDim.x + threadIdx.x) * PIECE;
  if (at >= n) return;
  const int pair = at / (2 * run) * (2 * run), begin_b = min(pair + run, n), end_b = min(pair + 2 * run, n);
  const T *const a = in + pair, *const b = in + begin_b;
  const int count_a = begin_b - pair, count_b = end_b - begin_b;
  for (int done = at; done < min(at + PIECE, end_b); ++done) {
    const int diagonal = done - pair;
    int low = max(0, diagonal - count_b), high = min(diagonal, count_a);
    while (low < high) {
      const int middle = (low + high) / 2;
      if (a[middle] <= b[diagonal - 1 - middle])
        low = middle + 1;
      else
        high = middle;
    }
    const int i = low, j = diagonal - low;
    out[done] = j >= count_b || (i < count_a && a[i] <= b[j]) ? a[i] : b[j];
  }
  // A piece may reach into the next pair.
  for (int done = max(end_b, at); done < min(at + PIECE, n); ++done) {
    const int next = done / (2 * run) * (2 * run), middle_ = min(next + run, n), end = min(next + 2 * run, n);
    int i = next, j = middle_;
    for (int k = next; k < done; ++k) i < middle_ && (j >= end || in[i] <= in[j]) ? ++i : ++j;
    out[done] = i < middle_ && (j >= end || in[i] <= in[j]) ? in[i] : in[j];
  }
}

int main() {
  const int n = 5000;
  std::vector<long long> in(n);
  Random random;
  for (long long &x : in) x = (long long)random.next() * random.next() - (1ll << 46);
  Array<long long> a(in), b(n);
  long long *from = a, *to = b;
  int rounds = 0;
  for (int run = 1; run < n; run *= 2, ++rounds, std::swap(from, to))
    merge<<<(n + PIECE * 64 - 1) / (PIECE * 64), 64>>>(from, to, n, run);
  std::vector<long long> got(n);
  CUDA(cudaMemcpy(got.data(), from, n * sizeof(long long), cudaMemcpyDeviceToHost));
  std::sort(in.begin(), in.end());
  MUST(got == in);
  std::printf("%d keys merged in %d rounds\n", n, rounds);
}
