// Connected components of a random graph: trees that grow together by compare-and-swap, with paths shortened on the
// way.
// Run: cudaemu connected_components.cu
// Prints: 1000 nodes in 276 components
#include <numeric>

#include "check.h"

__device__ int root_of(int *parent, int v) {
  int p = atomicAdd(parent + v, 0);
  while (p != v) {
    const int above = atomicAdd(parent + p, 0);
    if (above != p) atomicCAS(parent + v, p, above);  // halve the path
    v = p, p = above;
  }
  return v;
}

__global__ void join(const int2 *edges, int count, int *parent) {
  const int e = blockIdx.x * blockDim.x + threadIdx.x;
  if (e >= count) return;
  for (int a = edges[e].x, b = edges[e].y;;) {
    a = root_of(parent, a), b = root_of(parent, b);
    if (a == b) return;
    const int low = min(a, b), high = max(a, b);
    if (atomicCAS(parent + high, high, low) == high) return;
  }
}

__global__ void flatten(int *parent, int *component, int *count, int n) {
  const int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v < n) component[v] = root_of(parent, v);
  const int roots = __syncthreads_count(v < n && component[v] == v);
  if (threadIdx.x == 0) atomicAdd(count, roots);
}

int main() {
  const int n = 1000, m = 800;
  std::vector<int2> edges(m);
  Random random;
  for (int2 &e : edges) e = make_int2(random.below(n), random.below(n));
  std::vector<int> own(n), expected;
  std::iota(own.begin(), own.end(), 0);
  expected = own;
  for (bool more = true; more;) {
    more = false;
    for (const int2 &e : edges)
      if (expected[e.x] != expected[e.y])
        expected[e.x] = expected[e.y] = std::min(expected[e.x], expected[e.y]), more = true;
  }
  Array<int2> list(edges);
  Array<int> parent(own), component(n), count(std::vector<int>{0});
  join<<<(m + 127) / 128, 128>>>(list, m, parent);
  flatten<<<(n + 127) / 128, 128>>>(parent, component, count, n);
  MUST(component.host() == expected);
  std::printf("%d nodes in %d components\n", n, count.host()[0]);
}
