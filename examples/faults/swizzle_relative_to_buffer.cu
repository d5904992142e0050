// TMA swizzles by the bits of the shared address, and the tile begins 128 bytes past a multiple of 1024; threads
// exchange the chunks by the number of the row in the tile, and read their neighbours'.
// Public: cloudrift-ai/emmy PR #200; NVIDIA/Fuser PR #4096
// Finding: misaligned
// Needs compute capability 9.0.
#include <cuda.h>

#include "faults.h"

#ifdef CORRECTED
constexpr int SHIFT = 0;
#else
constexpr int SHIFT = 128;
#endif
constexpr int ROWS = 64, COLUMNS = 32;
__managed__ alignas(128) int in[ROWS * COLUMNS], out[ROWS * COLUMNS];

__global__ void copy(const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int *tile = reinterpret_cast<int *>(memory + SHIFT);
  __shared__ uint64_t bar;
  if (threadIdx.x == 0) {
    init(&bar, 1), fence_init();
    expect(&bar, ROWS * 128);
    asm volatile(  // <- finding
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];" ::"r"(
            at(tile)),
        "l"(&map), "r"(0), "r"(at(&bar)) : "memory");
  }
  __syncthreads();
  wait(&bar, 0);
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) {
    const int row = i / 32, chunk = i % 32 / 4;
    out[i] = tile[row * 32 + (chunk ^ row % 8) * 4 + i % 4];  // <- finding
  }
}

int main() {
  for (int i = 0; i < ROWS * COLUMNS; ++i) in[i] = i;
  void *driver;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &driver, 12000, cudaEnableDefault, &found);
  CUtensorMap map;
  const cuuint64_t size[] = {COLUMNS, ROWS}, pitch[] = {128};
  const cuuint32_t box[] = {COLUMNS, ROWS}, step[] = {1, 1};
  const auto encode = decltype(&cuTensorMapEncodeTiled)(driver);
  encode(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, in, size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
         CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  copy<<<1, 128, ROWS * 128 + 1024>>>(map);
  return verdict(ROWS * COLUMNS, [](int i) { return out[i] == i; });
}
