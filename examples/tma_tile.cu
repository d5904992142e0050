// A matrix is doubled tile by tile, and one thread of a block moves the tiles: TMA, the Tensor Memory Accelerator.
//
// A tensor map says what the matrix is and how large a tile (box) is; the copy takes coordinates, and those of the
// last tiles reach beyond the matrix: what is outside arrives as zeros and is not written back. The tile comes in
// with the 128-byte swizzle: the 16-byte pieces of a row of 128 bytes change places by the row's number modulo 8,
// so that a column of pieces lies in all banks. Needs compute capability 9.0.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <vector>

constexpr int ROWS = 64, COLS = 32, THREADS = 128;  // of a tile: 64 rows of 32 floats, 128 bytes each
constexpr int TILE_BYTES = ROWS * COLS * sizeof(float);

__device__ uint32_t shared_address(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ void mbarrier_init(uint64_t *mbarrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(mbarrier)), "r"(arrivals) : "memory");
}

// One arrival, and so many bytes that are still to come.
__device__ void mbarrier_expect(uint64_t *mbarrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(mbarrier)),
               "r"(bytes) : "memory");
}

// Until the phase of that parity has ended.
__device__ void mbarrier_wait(uint64_t *mbarrier, int parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(shared_address(mbarrier)), "r"(parity) : "memory");
}

__device__ void load_tile(void *tile, const CUtensorMap *map, int x, int y, uint64_t *mbarrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(tile)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(mbarrier)) : "memory");
}

__device__ void store_tile(const CUtensorMap *map, int x, int y, const void *tile) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x),
               "r"(y), "r"(shared_address(tile)) : "memory");
}

// A block goes along the tiles of its rows.
__global__ void twice(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, int tiles) {
  __shared__ __align__(1024) float tile[ROWS][COLS];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // for the copies, too
  }
  __syncthreads();  // nobody looks at the mbarrier before it is one
  for (int n = 0; n < tiles; ++n) {
    if (threadIdx.x == 0) {
      mbarrier_expect(&full, TILE_BYTES);
      load_tile(tile, &from, n * COLS, blockIdx.x * ROWS, &full);
    }
    mbarrier_wait(&full, n % 2);
    for (int i = threadIdx.x; i < ROWS * COLS; i += THREADS) {
      const int row = i / COLS, col = i % COLS;
      tile[row][(col / 4 ^ row % 8) * 4 + col % 4] *= 2;  // where the swizzle put it
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // what this thread wrote, the copy shall see
    __syncthreads();                                              // all have written
    if (threadIdx.x == 0) {
      store_tile(&to, n * COLS, blockIdx.x * ROWS, tile);
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // it is read: the next one may come
    }
  }
}

// The driver's function, without linking against the driver.
auto encoder() {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  return decltype(&cuTensorMapEncodeTiled)(function);
}

CUtensorMap map_of(float *matrix, int rows, int cols, int pitch) {
  CUtensorMap map;
  const cuuint64_t size[] = {cuuint64_t(cols), cuuint64_t(rows)}, stride[] = {pitch * sizeof(float)};
  const cuuint32_t box[] = {COLS, ROWS}, step[] = {1, 1};
  encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, matrix, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

int main() {
  const int rows = 150, cols = 70, pitch = 72;  // no multiples of the tile's sides; a row is a multiple of 16 bytes
  std::vector<float> a(rows * pitch), b(rows * pitch);
  for (int i = 0; i < rows * pitch; ++i) a[i] = float(i % 1000);
  float *d_a, *d_b;
  cudaMalloc(&d_a, a.size() * sizeof(float));
  cudaMalloc(&d_b, b.size() * sizeof(float));
  cudaMemcpy(d_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemset(d_b, 0, b.size() * sizeof(float));
  const int blocks = (rows + ROWS - 1) / ROWS, tiles = (cols + COLS - 1) / COLS;
  twice<<<blocks, THREADS>>>(map_of(d_a, rows, cols, pitch), map_of(d_b, rows, cols, pitch), tiles);
  cudaMemcpy(b.data(), d_b, b.size() * sizeof(float), cudaMemcpyDeviceToHost);
  bool right = cudaGetLastError() == cudaSuccess;
  for (int i = 0; i < rows * pitch; ++i) right &= b[i] == (i % pitch < cols ? 2 * a[i] : 0);
  printf(right ? "PASS\n" : "FAIL\n");
  cudaFree(d_a);
  cudaFree(d_b);
  return !right;
}
