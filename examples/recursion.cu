// Recursion: each thread has a stack of its own in local memory, and it is small (cudaLimitStackSize).
//
// Two functions that call themselves, to a depth that differs from lane to lane: the number of nodes of a binary tree,
// and Ackermann's function, which the compiler cannot turn into a loop.
#include <cuda_runtime.h>

#include <cstdio>

struct Node {
  int left, right;  // -1: none
};

__device__ __noinline__ int size(const Node *tree, int node) {
  if (node < 0) return 0;
  return 1 + size(tree, tree[node].left) + size(tree, tree[node].right);
}

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
  if (m == 0) return n + 1;
  return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

__global__ void sizes(const Node *tree, int *out) { out[threadIdx.x] = size(tree, threadIdx.x); }
__global__ void numbers(unsigned *out) { out[threadIdx.x] = ackermann(threadIdx.x / 4, threadIdx.x % 4); }

int host_size(const Node *tree, int node) {
  return node < 0 ? 0 : 1 + host_size(tree, tree[node].left) + host_size(tree, tree[node].right);
}

int main() {
  const int n = 40;
  Node tree[n], *d_tree;
  for (int i = 0; i < n; ++i) tree[i] = {2 * i + 1 < n ? 2 * i + 1 : -1, 2 * i + 2 < n ? 2 * i + 2 : -1};
  tree[n - 1].left = -1;
  int out[n], *d_out, wrong = 0;
  unsigned values[12], *d_values;
  cudaDeviceSetLimit(cudaLimitStackSize, 4096);
  cudaMalloc(&d_tree, sizeof tree);
  cudaMalloc(&d_out, sizeof out);
  cudaMalloc(&d_values, sizeof values);
  cudaMemcpy(d_tree, tree, sizeof tree, cudaMemcpyHostToDevice);
  sizes<<<1, n>>>(d_tree, d_out);
  numbers<<<1, 12>>>(d_values);
  wrong += cudaMemcpy(out, d_out, sizeof out, cudaMemcpyDeviceToHost) != cudaSuccess;
  wrong += cudaMemcpy(values, d_values, sizeof values, cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int i = 0; i < n; ++i) wrong += out[i] != host_size(tree, i);
  for (unsigned i = 0; i < 12; ++i) {
    const unsigned m = i / 4, k = i % 4;
    wrong += values[i] != (m == 0 ? k + 1 : m == 1 ? k + 2 : 2 * k + 3);
  }
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaFree(d_tree);
  cudaFree(d_out);
  cudaFree(d_values);
  return wrong != 0;
}
