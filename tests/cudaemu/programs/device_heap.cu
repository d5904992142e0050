// malloc, new and virtual functions on the device: a binary tree of shapes that one kernel builds, others walk and
// free.
// Run: cudaemu device_heap.cu
// Prints: 200 nodes in order, areas sum to 19900
#include "check.h"

struct Shape {
  __device__ virtual ~Shape() {}
  __device__ virtual int area() const = 0;
};
struct Square : Shape {
  int side;
  __device__ explicit Square(int side) : side(side) {}
  __device__ int area() const override { return side * side; }
};
struct Strip : virtual Shape {
  int length;
  __device__ explicit Strip(int length) : length(length) {}
  __device__ int area() const override { return length; }
};
struct Pair final : Strip {
  int *more;
  __device__ Pair(int a, int b) : Strip(a), more(new int(b)) {}
  __device__ ~Pair() override { delete more; }
  __device__ int area() const override { return Strip::area() + *more; }
};

struct Node {
  int key;
  Shape *shape;
  Node *left, *right;
};

__device__ Node *root;

__global__ void build(const int *keys, int n) {
  root = nullptr;
  for (int i = 0; i < n; ++i) {
    Node **at = &root;
    while (*at) at = keys[i] < (*at)->key ? &(*at)->left : &(*at)->right;
    *at = static_cast<Node *>(malloc(sizeof(Node)));
    const int k = keys[i];
    Shape *shape = nullptr;
    if (k == 4) shape = new Square(2);
    if (!shape) shape = k % 2 ? static_cast<Shape *>(new Pair(k - 1, 1)) : static_cast<Shape *>(new Strip(k));
    **at = {k, shape, nullptr, nullptr};
  }
}

__device__ void walk(const Node *node, int *out, int *count, int *areas) {
  if (!node) return;
  walk(node->left, out, count, areas);
  out[(*count)++] = node->key, *areas += node->shape->area();
  walk(node->right, out, count, areas);
}

__global__ void visit(int *out, int *count, int *areas) { walk(root, out, count, areas); }

__device__ int release(Node *node) {
  if (!node) return 0;
  const int below = release(node->left) + release(node->right);
  delete node->shape;
  free(node);
  return below + 1;
}

__global__ void clear(int *freed) { *freed = release(root); }

// Each thread has an array of its own size.
__global__ void own_arrays(int *sums) {
  const int n = threadIdx.x + 1;
  int *const array = new int[n];
  for (int i = 0; i < n; ++i) array[i] = i;
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += array[n - 1 - i];
  sums[threadIdx.x] = sum;
  delete[] array;
}

int main() {
  const int n = 200;
  std::vector<int> keys(n);
  for (int i = 0; i < n; ++i) keys[i] = i * 77 % n;
  Array<int> in(keys), out(n), counts(std::vector<int>(3, 0)), sums(64);
  CUDA(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 20));
  build<<<1, 1>>>(in, n);
  visit<<<1, 1>>>(out, counts, counts + 1);
  clear<<<1, 1>>>(counts + 2);
  const auto order = out.host(), c = counts.host();
  for (int i = 0; i < n; ++i) MUST(order[i] == i);
  MUST(c[0] == n && c[2] == n);
  own_arrays<<<1, 64>>>(sums);
  for (int i = 0; i < 64; ++i) MUST(sums.host()[i] == i * (i + 1) / 2);
  std::printf("%d nodes in order, areas sum to %d\n", c[0], c[1]);
}
