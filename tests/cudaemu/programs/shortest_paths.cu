// Single-source shortest paths: every edge is relaxed with atomicMin until nothing changes (Bellman and Ford).
// Run: cudaemu shortest_paths.cu
// Prints: shortest paths to 1000 nodes agree
#include <climits>
#include <queue>

#include "check.h"

struct Edge { int from, to, weight; };

__global__ void relax(const Edge *edges, int count, int *distance, int *changed) {
  for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < count; e += gridDim.x * blockDim.x) {
    const Edge edge = edges[e];
    const int from = *static_cast<volatile int *>(distance + edge.from);
    if (from != INT_MAX && from + edge.weight < atomicMin(distance + edge.to, from + edge.weight))
      atomicExch(changed, 1);
  }
}

int main() {
  const int n = 1000, m = 5000;
  std::vector<Edge> edges(m);
  Random random;
  for (int e = 0; e < m; ++e) edges[e] = {e < n ? e : random.below(n), random.below(n), 1 + random.below(100)};
  std::vector<int> expected(n, INT_MAX), start(n, INT_MAX);
  std::vector<std::vector<Edge>> out(n);
  for (const Edge &edge : edges) out[edge.from].push_back(edge);
  std::priority_queue<std::pair<int, int>> queue;
  expected[0] = start[0] = 0, queue.push({0, 0});
  while (!queue.empty()) {
    const auto [d, v] = queue.top();
    queue.pop();
    if (-d > expected[v]) continue;
    for (const Edge &edge : out[v])
      if (expected[v] + edge.weight < expected[edge.to])
        expected[edge.to] = expected[v] + edge.weight, queue.push({-expected[edge.to], edge.to});
  }
  Array<Edge> list(edges);
  Array<int> distance(start), changed(1);
  for (int again = 1; again;) {
    CUDA(cudaMemset(changed, 0, sizeof(int)));
    relax<<<8, 128>>>(list, m, distance, changed);
    CUDA(cudaMemcpy(&again, changed, sizeof(int), cudaMemcpyDeviceToHost));
  }
  MUST(distance.host() == expected);
  std::printf("shortest paths to %d nodes agree\n", n);
}
