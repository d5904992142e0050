// A sparse matrix times a vector, in two formats: rows (CSR, a thread or a warp each) and ELLPACK, column by column.
// Run: cudaemu sparse_matrix_vector.cu
// Prints: 3 products of a matrix with 1990 entries agree
#include "check.h"

__global__ void by_thread(const int *first, const int *column, const double *value, const double *x, double *y, int n) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  double sum = 0;
  for (int e = first[row]; e < first[row + 1]; ++e) sum += value[e] * __ldg(x + column[e]);
  y[row] = sum;
}

__global__ void by_warp(const int *first, const int *column, const double *value, const double *x, double *y, int n) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize, lane = threadIdx.x % warpSize;
  if (row >= n) return;
  double sum = 0;
  for (int e = first[row] + lane; e < first[row + 1]; e += warpSize) sum += value[e] * x[column[e]];
  for (int step = warpSize / 2; step; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  if (lane == 0) y[row] = sum;
}

__global__ void ellpack(const int *column, const double *value, int wide, const double *x, double *y, int n) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  double sum = 0;
  for (int k = 0; k < wide; ++k)
    if (const int c = column[k * n + row]; c >= 0) sum += value[k * n + row] * x[c];
  y[row] = sum;
}

int main() {
  const int n = 200;
  std::vector<int> first(n + 1), column;
  std::vector<double> value, x(n), expected(n, 0);
  Random random;
  for (double &each : x) each = random.unit();
  int wide = 0;
  for (int row = 0; row < n; ++row) {
    first[row] = int(column.size());
    for (int k = row % 20; k > -1; --k) column.push_back(random.below(n)), value.push_back(random.unit() - 0.5);
    if (row % 20 == 19) column.resize(column.size() - 11), value.resize(column.size());
    wide = std::max(wide, int(column.size()) - first[row]);
  }
  first[n] = int(column.size());
  std::vector<int> ell_column(wide * n, -1);
  std::vector<double> ell_value(wide * n, 0);
  for (int row = 0; row < n; ++row)
    for (int e = first[row]; e < first[row + 1]; ++e) {
      expected[row] += value[e] * x[column[e]];
      ell_column[(e - first[row]) * n + row] = column[e], ell_value[(e - first[row]) * n + row] = value[e];
    }
  Array<int> firsts(first), columns(column), ell_columns(ell_column);
  Array<double> values(value), vector(x), ell_values(ell_value), y(n);
  by_thread<<<2, 128>>>(firsts, columns, values, vector, y, n);
  MUST(difference(y.host(), expected) < 1e-14);
  by_warp<<<n / 4, 128>>>(firsts, columns, values, vector, y, n);
  MUST(difference(y.host(), expected) < 1e-14);
  ellpack<<<2, 128>>>(ell_columns, ell_values, wide, vector, y, n);
  MUST(difference(y.host(), expected) < 1e-14);
  std::printf("3 products of a matrix with %zu entries agree\n", value.size());
}
