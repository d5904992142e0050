// A product of matrices of small integers, in clusters of two blocks that share the tiles of B: multicast.
//
// Both blocks of a cluster work on the same columns of C, and so need the same tiles of B. Each fetches half of such a
// tile and sends it to both; an mbarrier in each block counts the bytes that come from either. Before a tile is
// overwritten, the threads of both blocks must have read it: each block tells the other by an arrival there.
// Needs compute capability 9.0.
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace cg = cooperative_groups;

constexpr int TILE = 32, CLUSTER = 2, HALF = TILE / CLUSTER, THREADS = 256;  // square tiles; rows that a block fetches
constexpr int TILE_BYTES = TILE * TILE * sizeof(int);

__device__ uint32_t shared_address(const void *p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ void mbarrier_init(uint64_t *mbarrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(mbarrier)), "r"(arrivals) : "memory");
}

// At the mbarrier at the same place in the block of that rank.
__device__ void mbarrier_arrive(uint64_t *mbarrier, int rank) {
  asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
               "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(mbarrier)),
               "r"(rank) : "memory");
}

// One arrival, and so many bytes that are still to come.
__device__ void mbarrier_expect(uint64_t *mbarrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(mbarrier)),
               "r"(bytes) : "memory");
}

// Until the phase of that parity has ended, at which threads of both blocks arrive.
__device__ void mbarrier_wait(uint64_t *mbarrier, int parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(shared_address(mbarrier)), "r"(parity) : "memory");
}

// To the same place in all blocks of the mask, and to the mbarrier at the same place there.
__device__ void load_tile(void *tile, const CUtensorMap *map, int x, int y, uint64_t *mbarrier, int blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(tile)),
               "l"(map), "r"(x), "r"(y), "r"(shared_address(mbarrier)), "h"(uint16_t(blocks)) : "memory");
}

__global__ void __cluster_dims__(1, CLUSTER, 1)
    multiply(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, int *c, int n, int k) {
  __shared__ __align__(128) int tile_a[TILE][TILE], tile_b[TILE][TILE];
  __shared__ uint64_t full, empty;
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = cluster.block_rank(), row = blockIdx.y * TILE, col = blockIdx.x * TILE;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&empty, CLUSTER);  // a thread of each block, when its block has read the tiles
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster.sync();  // the other block is there, and so are its mbarriers
  int sum[TILE * TILE / THREADS] = {};
  for (int slice = 0; slice < k / TILE; ++slice) {
    if (threadIdx.x == 0) {
      mbarrier_wait(&empty, (slice + 1) % 2);
      mbarrier_expect(&full, 2 * TILE_BYTES);  // A's tile, and both halves of B's
      load_tile(tile_a, &a, slice * TILE, row, &full, 1 << rank);
      load_tile(tile_b[rank * HALF], &b, col, slice * TILE + rank * HALF, &full, (1 << CLUSTER) - 1);
    }
    mbarrier_wait(&full, slice % 2);
    for (int e = 0; e < TILE * TILE / THREADS; ++e) {
      const int i = e * THREADS + threadIdx.x;
      for (int x = 0; x < TILE; ++x) sum[e] += tile_a[i / TILE][x] * tile_b[x][i % TILE];
    }
    __syncthreads();  // the block has read both tiles
    if (threadIdx.x < CLUSTER) mbarrier_arrive(&empty, threadIdx.x);
  }
  for (int e = 0; e < TILE * TILE / THREADS; ++e) {
    const int i = e * THREADS + threadIdx.x;
    c[(row + i / TILE) * n + col + i % TILE] = sum[e];
  }
  cluster.sync();  // nobody arrives at a block that has ended
}

// The driver's function, without linking against the driver.
auto encoder() {
  void *function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  return decltype(&cuTensorMapEncodeTiled)(function);
}

CUtensorMap map_of(int *matrix, int rows, int cols, int box_rows) {
  CUtensorMap map;
  const cuuint64_t size[] = {cuuint64_t(cols), cuuint64_t(rows)}, stride[] = {cols * sizeof(int)};
  const cuuint32_t box[] = {TILE, cuuint32_t(box_rows)}, step[] = {1, 1};
  encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, matrix, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
            CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return map;
}

int main() {
  const int m = 128, n = 64, k = 96;
  std::vector<int> a(m * k), b(k * n), c(m * n);
  for (int i = 0; i < m * k; ++i) a[i] = i * 7 % 13 - 6;
  for (int i = 0; i < k * n; ++i) b[i] = i * 5 % 11 - 5;
  int *d_a, *d_b, *d_c;
  cudaMalloc(&d_a, m * k * sizeof(int));
  cudaMalloc(&d_b, k * n * sizeof(int));
  cudaMalloc(&d_c, m * n * sizeof(int));
  cudaMemcpy(d_a, a.data(), m * k * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemcpy(d_b, b.data(), k * n * sizeof(int), cudaMemcpyHostToDevice);
  multiply<<<dim3(n / TILE, m / TILE), THREADS>>>(map_of(d_a, m, k, TILE), map_of(d_b, k, n, HALF), d_c, n, k);
  cudaMemcpy(c.data(), d_c, m * n * sizeof(int), cudaMemcpyDeviceToHost);
  bool right = cudaGetLastError() == cudaSuccess;
  for (int i = 0; i < m * n; ++i) {
    for (int x = 0; x < k; ++x) c[i] -= a[i / n * k + x] * b[x * n + i % n];
    right &= c[i] == 0;
  }
  printf(right ? "PASS\n" : "FAIL\n");
  cudaFree(d_a);
  cudaFree(d_b);
  cudaFree(d_c);
  return !right;
}
