// A transpose through shared memory: rows are read, rows are written, and the turn happens in between.
//
// Read and written directly, one of the two would jump by a whole row from lane to lane. The column of padding keeps
// the lanes that read a column of the tile in different banks.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int TILE = 32, ROWS = 8;  // a block of 32 x 8 threads moves a tile of 32 x 32

template <typename T>
__global__ void transpose(const T *in, T *out, int rows, int columns) {
  __shared__ T tile[TILE][TILE + 1];
  int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
  for (int step = 0; step < TILE; step += ROWS)
    if (row + step < rows && column < columns)
      tile[threadIdx.y + step][threadIdx.x] = in[(row + step) * columns + column];
  __syncthreads();  // the tile is whole
  column = blockIdx.y * TILE + threadIdx.x, row = blockIdx.x * TILE + threadIdx.y;
  for (int step = 0; step < TILE; step += ROWS)
    if (row + step < columns && column < rows)
      out[(row + step) * rows + column] = tile[threadIdx.x][threadIdx.y + step];
}

template <typename T>
int wrong_elements(int rows, int columns) {
  std::vector<T> in(rows * columns), out(rows * columns);
  for (int i = 0; i < rows * columns; ++i) in[i] = T(i % 120);
  const size_t bytes = in.size() * sizeof(T);
  T *d_in, *d_out;
  cudaMalloc(&d_in, bytes);
  cudaMalloc(&d_out, bytes);
  cudaMemcpy(d_in, in.data(), bytes, cudaMemcpyHostToDevice);
  transpose<<<dim3((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE), dim3(TILE, ROWS)>>>(
      d_in, d_out, rows, columns);
  int wrong = cudaMemcpy(out.data(), d_out, bytes, cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) wrong += out[column * rows + row] != in[row * columns + column];
  cudaFree(d_in);
  cudaFree(d_out);
  return wrong;
}

int main() {
  const int wrong = wrong_elements<float>(96, 64) + wrong_elements<double>(45, 70) + wrong_elements<char>(33, 100);
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  return wrong != 0;
}
