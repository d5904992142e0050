// Variables of the device by name: constants that are structures, arrays copied in part, addresses, sizes, managed
// ones.
// Run: cudaemu symbols.cu
// Prints: 6 symbols, managed total 2016
#include "check.h"

struct Parameters {
  float scale;
  int shift[3];
  double precise;
};
__constant__ Parameters parameters[2];
__constant__ int table[16] = {1, 2, 3};
__device__ float results[64];
__device__ int *indirect;
__device__ __managed__ int total = 0;
template <typename T>
__device__ T of_a_template = T(3);
namespace inner {
__device__ volatile short hidden = -7;
}

__global__ void use(int which) {
  const Parameters &p = parameters[which];
  const int i = threadIdx.x;
  results[i] = p.scale * i + p.shift[i % 3] + float(p.precise) + table[i % 16] + of_a_template<float> + inner::hidden;
  if (indirect) indirect[i] = -i;
  atomicAdd(&total, i);
}

int main() {
  const Parameters both[2] = {{2, {1, 2, 3}, 0.5}, {-1, {10, 20, 30}, 0.25}};
  const int later[4] = {9, 8, 7, 6};
  const float five = 5;
  CUDA(cudaMemcpyToSymbol(parameters, both, sizeof both));
  CUDA(cudaMemcpyToSymbol(table, later, sizeof later, 4 * sizeof(int)));
  CUDA(cudaMemcpyToSymbolAsync(of_a_template<float>, &five, sizeof five, 0, cudaMemcpyHostToDevice, 0));
  Array<int> array(64);
  int *const address = array;
  CUDA(cudaMemcpyToSymbol(indirect, &address, sizeof address));
  void *where;
  size_t bytes;
  CUDA(cudaGetSymbolAddress(&where, results));
  CUDA(cudaGetSymbolSize(&bytes, results));
  MUST(bytes == 256);
  CUDA(cudaGetSymbolSize(&bytes, parameters));
  MUST(bytes == sizeof both);
  use<<<1, 64>>>(1);
  float got[64], last;
  CUDA(cudaMemcpy(got, where, sizeof got, cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpyFromSymbol(&last, results, sizeof last, 63 * sizeof(float)));
  const int now[16] = {1, 2, 3, 0, 9, 8, 7, 6};
  for (int i = 0; i < 64; ++i) MUST(got[i] == -i + 10 * (i % 3 + 1) + 0.25f + now[i % 16] + 5 - 7);
  MUST(last == got[63] && array.host()[63] == -63);
  CUDA(cudaDeviceSynchronize());
  std::printf("6 symbols, managed total %d\n", total);
}
