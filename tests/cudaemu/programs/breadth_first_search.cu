// Breadth-first search: a frontier that grows level by level; each block collects its part of the next one in shared
// memory.
// Run: cudaemu breadth_first_search.cu 2000
// Prints: 2000 nodes in 9 levels
#include <queue>

#include "check.h"

__global__ void expand(const int *first, const int *edges, int *levels, const int *frontier, int size, int *next,
                       int *next_size, int level) {
  __shared__ int found[1024], count, base;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size)
    for (int e = first[frontier[i]]; e < first[frontier[i] + 1]; ++e)
      if (atomicCAS(&levels[edges[e]], -1, level) == -1) found[atomicAdd(&count, 1)] = edges[e];
  __syncthreads();
  if (threadIdx.x == 0) base = atomicAdd(next_size, count);
  __syncthreads();
  for (int k = threadIdx.x; k < count; k += blockDim.x) next[base + k] = found[k];
}

int main(int, char **argv) {
  const int n = std::atoi(argv[1]), degree = 4;
  std::vector<int> first(n + 1), edges;
  Random random;
  for (int v = 0; v < n; ++v) {
    first[v] = int(edges.size());
    edges.push_back((v + 1) % n);
    for (int k = 1; k < degree; ++k) edges.push_back(random.below(n));
  }
  first[n] = int(edges.size());
  std::vector<int> expected(n, -1);
  std::queue<int> queue;
  expected[0] = 0, queue.push(0);
  for (; !queue.empty(); queue.pop())
    for (int e = first[queue.front()]; e < first[queue.front() + 1]; ++e)
      if (expected[edges[e]] < 0) expected[edges[e]] = expected[queue.front()] + 1, queue.push(edges[e]);

  std::vector<int> start(n, -1), only(n, 0);
  start[0] = 0;
  Array<int> firsts(first), targets(edges), levels(start), a(only), b(only), size(1);
  int *now = a, *next = b, level = 0;
  for (int count = 1; count; std::swap(now, next)) {
    CUDA(cudaMemset(size, 0, sizeof(int)));
    expand<<<(count + 127) / 128, 128>>>(firsts, targets, levels, now, count, next, size, ++level);
    CUDA(cudaMemcpy(&count, size, sizeof(int), cudaMemcpyDeviceToHost));
  }
  MUST(levels.host() == expected);
  std::printf("%d nodes in %d levels\n", n, level);
}
