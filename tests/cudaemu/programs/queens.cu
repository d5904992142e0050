// How many ways there are to place queens: each thread searches one beginning, by recursion over bit masks; a loop
// counts on the host.
// Run: cudaemu queens.cu 8
// Prints: 8 queens in 92 ways
#include "check.h"

__host__ __device__ int place(int n, unsigned columns, unsigned left, unsigned right) {
  const unsigned all = (1u << n) - 1;
  if (columns == all) return 1;
  int ways = 0;
  for (unsigned open = all & ~(columns | left | right); open; open &= open - 1) {
    const unsigned here = open & (0u - open);
    ways += place(n, columns | here, (left | here) << 1, (right | here) >> 1);
  }
  return ways;
}

__global__ void search(int n, unsigned long long *ways) {
  const int first = threadIdx.x % n, second = threadIdx.x / n;
  if (second < n && second != first && abs(second - first) != 1) {
    const unsigned a = 1u << first, b = 1u << second;
    const int mine = place(n, a | b, (a << 1 | b) << 1, (a >> 1 | b) >> 1);
    if (mine) atomicAdd(ways, static_cast<unsigned long long>(mine));
  }
}

int main(int, char **argv) {
  const int n = std::atoi(argv[1]);
  Array<unsigned long long> ways(std::vector<unsigned long long>{0});
  search<<<1, n * n>>>(n, ways);
  const auto found = ways.host()[0];
  MUST(int(found) == place(n, 0, 0, 0));
  std::printf("%d queens in %llu ways\n", n, found);
}
