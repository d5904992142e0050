// Structures with gaps that no member fills: set member by member, copied whole, rotated, sorted by Thrust.
// Run: cudaemu structures_with_gaps.cu
// Prints: 5000 structures in order
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/sort.h>

#include <cstdio>

#include "check.h"

struct Pair {
  int key;  // and 4 bytes that nobody writes
  double value;
};
struct alignas(8) Cell {
  short a;
  int b;
  unsigned char c;
};
struct ByValue {
  __host__ __device__ bool operator()(const Pair &a, const Pair &b) const { return a.value < b.value; }
};

__global__ void make(Pair *pairs, Cell *cells, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  pairs[i].key = i, pairs[i].value = i * 7919 % n;
  cells[i].a = i % 1000, cells[i].b = -i, cells[i].c = 7;
}

__global__ void rotate(const Pair *pairs, const Cell *cells, Pair *pairs_out, Cell *cells_out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  pairs_out[(i + 1) % n] = pairs[i];
  cells_out[(i + 1) % n] = cells[i];
}

int main() {
  const int n = 5000, blocks = (n + 255) / 256;
  Pair *pairs;
  Cell *cells, *turned_cells;
  CUDA(cudaMalloc(&pairs, n * sizeof(Pair)));
  CUDA(cudaMalloc(&cells, n * sizeof(Cell)));
  CUDA(cudaMalloc(&turned_cells, n * sizeof(Cell)));
  thrust::device_vector<Pair> turned(n);
  make<<<blocks, 256>>>(pairs, cells, n);
  rotate<<<blocks, 256>>>(pairs, cells, thrust::raw_pointer_cast(turned.data()), turned_cells, n);
  thrust::host_vector<Cell> found(n);
  CUDA(cudaMemcpy(found.data(), turned_cells, n * sizeof(Cell), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) {
    const int from = (i + n - 1) % n;
    MUST(found[i].a == from % 1000 && found[i].b == -from && found[i].c == 7);
  }
  thrust::sort(turned.begin(), turned.end(), ByValue());
  const thrust::host_vector<Pair> sorted = turned;
  for (int i = 0; i < n; ++i) MUST(sorted[i].value == i && sorted[i].key * 7919ll % n == i);
  CUDA(cudaFree(pairs));
  CUDA(cudaFree(cells));
  CUDA(cudaFree(turned_cells));
  std::printf("%d structures in order\n", n);
}
