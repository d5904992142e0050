// LU decomposition by tiles: the diagonal tile, the row and the column of tiles, then all the others, step by step.
// Run: cudaemu lu_decomposition.cu
// Prints: L times U is A: 64 x 64
#include "check.h"

constexpr int T = 16;

__global__ void diagonal(float *a, int n, int at) {
  __shared__ float tile[T][T + 1];
  const int x = threadIdx.x;
  for (int y = 0; y < T; ++y) tile[y][x] = a[(at + y) * n + at + x];
  __syncthreads();
  for (int k = 0; k < T - 1; ++k) {
    if (x > k) tile[x][k] /= tile[k][k];
    __syncthreads();
    if (x > k)
      for (int y = k + 1; y < T; ++y) tile[y][x] -= tile[y][k] * tile[k][x];
    __syncthreads();
  }
  for (int y = 0; y < T; ++y) a[(at + y) * n + at + x] = tile[y][x];
}

// Block 2k: the k-th tile to the right; 2k + 1: below.
__global__ void perimeter(float *a, int n, int at) {
  __shared__ float corner[T][T + 1], tile[T][T + 1];
  const int x = threadIdx.x, there = at + (blockIdx.x / 2 + 1) * T;
  const bool right = blockIdx.x % 2 == 0;
  float *const mine = right ? a + at * n + there : a + there * n + at;
  for (int y = 0; y < T; ++y) corner[y][x] = a[(at + y) * n + at + x], tile[y][x] = mine[y * n + x];
  __syncthreads();
  for (int k = 0; k < T; ++k)
    if (right)
      for (int j = 0; j < k; ++j) tile[k][x] -= corner[k][j] * tile[j][x];
    else {
      for (int j = 0; j < k; ++j) tile[x][k] -= tile[x][j] * corner[j][k];
      tile[x][k] /= corner[k][k];
    }
  __syncthreads();
  for (int y = 0; y < T; ++y) mine[y * n + x] = tile[y][x];
}

__global__ void internal(float *a, int n, int at) {
  __shared__ float left[T][T], above[T][T];
  const int x = threadIdx.x, y = threadIdx.y, row = at + (blockIdx.y + 1) * T + y,
            column = at + (blockIdx.x + 1) * T + x;
  left[y][x] = a[row * n + at + x], above[y][x] = a[(at + y) * n + column];
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < T; ++k) sum += left[y][k] * above[k][x];
  a[row * n + column] -= sum;
}

int main() {
  const int n = 64;
  std::vector<float> a(n * n);
  Random random;
  for (int i = 0; i < n * n; ++i) a[i] = random.unit() + (i % (n + 1) == 0 ? n : 0);
  Array<float> data(a);
  for (int at = 0; at < n; at += T) {
    const int left = (n - at) / T - 1;
    diagonal<<<1, T>>>(data, n, at);
    if (left) perimeter<<<2 * left, T>>>(data, n, at);
    if (left) internal<<<dim3(left, left), dim3(T, T)>>>(data, n, at);
  }
  const auto lu = data.host();
  std::vector<float> product(n * n);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int k = 0; k <= std::min(i, j); ++k) sum += (k == i ? 1.0 : lu[i * n + k]) * double(lu[k * n + j]);
      product[i * n + j] = float(sum);
    }
  MUST(difference(product, a) < 1e-5);
  std::printf("L times U is A: %d x %d\n", n, n);
}
