// A tensor map is made of rows that are 200 bytes apart, which is no multiple of 16: the driver refuses it, nobody
// looks at the answer, and the kernel copies with a map that is none.
// Public: deepseek-ai/DeepGEMM #10, #147 (a launch failure for some n)
// Finding: tensor map
// Needs compute capability 9.0.
#include <cuda.h>

#include "faults.h"

#ifdef CORRECTED
constexpr int PITCH = 52;
#else
constexpr int PITCH = 50;
#endif
constexpr int ROWS = 8, COLUMNS = 16;
__managed__ alignas(128) int in[ROWS * PITCH], out[ROWS * COLUMNS];

__global__ void corner(const __grid_constant__ CUtensorMap map) {
  __shared__ alignas(128) int tile[ROWS * COLUMNS];
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1), fence_init();
    expect(&bar, sizeof tile);
    asm volatile(  // <- finding
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];" ::"r"(
            at(tile)),
        "l"(&map), "r"(0), "r"(at(&bar)) : "memory");  // <- finding
  }
  __syncthreads();
  wait(&bar, 0);
  out[threadIdx.x] = tile[threadIdx.x];
}

int main() {
  for (int i = 0; i < ROWS * PITCH; ++i) in[i] = i;
  void *driver;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &driver, 12000, cudaEnableDefault, &found);
  CUtensorMap map = {};
  const cuuint64_t size[] = {PITCH, ROWS}, pitch[] = {PITCH * sizeof(int)};
  const cuuint32_t box[] = {COLUMNS, ROWS}, step[] = {1, 1};
  const auto encode = decltype(&cuTensorMapEncodeTiled)(driver);
  encode(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, in, size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
         CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  corner<<<1, ROWS * COLUMNS>>>(map);
  return verdict(ROWS * COLUMNS, [](int i) { return out[i] == i / COLUMNS * PITCH + i % COLUMNS; });
}
