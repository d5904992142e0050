// The sum of each column of a tall matrix, by a ring of tiles: one warp copies, the others add.
//
// Each tile of the ring has two mbarriers. `full` ends a phase when the bytes of a copy have come: the consumers
// wait for it. `empty` ends one when all consumer warps have arrived, which have read the tile: the producer waits
// for that before it copies the next slice there. Phases alternate in parity, so both sides flip theirs each time
// they have gone round the ring; the producer's first round waits for the parity of the phase before a fresh
// mbarrier's first one. Needs compute capability 9.0.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <vector>

constexpr int ROWS = 32, COLS = 64, STAGES = 3;  // of a tile; tiles in the ring
constexpr int CONSUMERS = COLS / 32, THREADS = 32 * (1 + CONSUMERS);
constexpr int TILE_BYTES = ROWS * COLS * sizeof(float);

__device__ uint32_t shared_address(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ void mbarrier_init(uint64_t *mbarrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(mbarrier)), "r"(arrivals) : "memory");
}

__device__ void mbarrier_arrive(uint64_t *mbarrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(mbarrier)) : "memory");
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

// A block adds up `slices` tiles of its columns.
__global__ void column_sums(const __grid_constant__ CUtensorMap matrix, float *sums, int slices) {
  __shared__ __align__(128) float ring[STAGES][ROWS][COLS];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(&full[stage], 1);           // the producer, and the bytes of its copy
      mbarrier_init(&empty[stage], CONSUMERS);  // one thread of each consumer warp
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int x = blockIdx.x * COLS;
  if (threadIdx.x / 32 == CONSUMERS) {  // the producer
    if (threadIdx.x % 32 == 0)
      for (int slice = 0; slice < slices; ++slice) {
        const int stage = slice % STAGES, round = slice / STAGES;
        mbarrier_wait(&empty[stage], (round + 1) % 2);
        mbarrier_expect(&full[stage], TILE_BYTES);
        load_tile(ring[stage], &matrix, x, slice * ROWS, &full[stage]);
      }
  } else {
    float sum = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const int stage = slice % STAGES, round = slice / STAGES;
      mbarrier_wait(&full[stage], round % 2);
      for (int row = 0; row < ROWS; ++row) sum += ring[stage][row][threadIdx.x];
      __syncwarp();  // all lanes have read
      if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[stage]);
    }
    sums[x + threadIdx.x] = sum;
  }
}

// The driver's function, without linking against the driver.
auto encoder() {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  return decltype(&cuTensorMapEncodeTiled)(function);
}

CUtensorMap map_of(float *matrix, int rows, int cols) {
  CUtensorMap map;
  const cuuint64_t size[] = {cuuint64_t(cols), cuuint64_t(rows)}, stride[] = {cols * sizeof(float)};
  const cuuint32_t box[] = {COLS, ROWS}, step[] = {1, 1};
  encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, matrix, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
            CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

int main() {
  const int rows = 500, cols = 256, slices = (rows + ROWS - 1) / ROWS;  // zeros fill the last slice
  std::vector<float> matrix(rows * cols), sums(cols), expected(cols);
  for (int i = 0; i < rows * cols; ++i) expected[i % cols] += matrix[i] = float(i * 7 % 100);
  float *d_matrix, *d_sums;
  cudaMalloc(&d_matrix, matrix.size() * sizeof(float));
  cudaMalloc(&d_sums, cols * sizeof(float));
  cudaMemcpy(d_matrix, matrix.data(), matrix.size() * sizeof(float), cudaMemcpyHostToDevice);
  column_sums<<<cols / COLS, THREADS>>>(map_of(d_matrix, rows, cols), d_sums, slices);
  cudaMemcpy(sums.data(), d_sums, cols * sizeof(float), cudaMemcpyDeviceToHost);
  const bool right = cudaGetLastError() == cudaSuccess && sums == expected;
  printf(right ? "PASS\n" : "FAIL\n");
  cudaFree(d_matrix);
  cudaFree(d_sums);
  return !right;
}
