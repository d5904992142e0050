// Stage 04 · wmma: tensor cores, through the warp matrix API.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; 16-bit DTYPE in and out, fp32 accumulation.
// Idea      A tensor core multiplies small matrices: a warp multiplies two 16 × 16 tiles, 4096 multiply-adds, with two
//           instructions. WMMA holds a tile as a fragment, spread over the registers of the warp in an unspecified
//           layout: code can load, multiply and store it, but cannot ask which lane holds which element. The
//           block's tile and its slice are twice stage 03's, to feed the tensor cores; BLOCK_N=128 and BLOCK_K=16
//           restore stage 03's, so that each of the three changes can be measured alone.
//
//   level  | tile of C (M × N) | tiles of A, B per K slice              | who
//   -------+-------------------+----------------------------------------+----------------------------
//   block  | 128 × 256         | A 128 × 32, B 32 × 256 (shared)        | 256 threads = 2 × 4 warps
//   warp   | 64 × 64           | A 64 × 16, B 16 × 64 (fragments) per k | 32 lanes together
//   mma    | 16 × 16, 4 × 4    | A 16 × 16, B 16 × 16                   | the tensor core
//
// Thread map   for copies only: 8 neighbouring elements (128 bits) per thread, neighbours along the rows.
// Limits       M a multiple of 128, N of 256, K of 32; compute capability 8.0.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of A, B and C
#endif
#ifndef BLOCK_N
#define BLOCK_N 256  // columns of C per block: 256, or as in stage 03 128, with half the rows of C per warp
#endif
#ifndef BLOCK_K
#define BLOCK_K 32  // depth of a K slice: 32, or as in stage 03 16
#endif

using Element = DTYPE;
namespace wmma = nvcuda::wmma;

constexpr int BLOCK_M = 128;         // rows of C per block
constexpr int WARP_M = BLOCK_N / 4;  // rows of C per warp: 8 warps share the block's tile
constexpr int WARP_N = 64;           // columns of C per warp
constexpr int MMA_M = 16;            // rows of C per WMMA operation
constexpr int MMA_N = 16;            // columns of C per WMMA operation: two tensor instructions of 16 × 8
constexpr int MMA_K = 16;            // depth of a WMMA operation

constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int WARPS = BLOCK_M / WARP_M * WARPS_N;
constexpr int THREADS = WARPS * 32;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int TILES_N = WARP_N / MMA_N;
constexpr int BLOCKS_PER_SM = BLOCK_N == 256 ? 1 : 2;           // 64 × 64 accumulators per warp leave registers for one
constexpr int VECTOR = 16 / sizeof(Element);                    // elements in a chunk, one 128-bit access
constexpr int A_CHUNKS = BLOCK_M * BLOCK_K / VECTOR / THREADS;  // chunks of A per thread and slice
constexpr int B_CHUNKS = BLOCK_K * BLOCK_N / VECTOR / THREADS;

static_assert(BLOCK_N == 128 || BLOCK_N == 256, "warps of 32 × 64 or of 64 × 64");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(A_CHUNKS * VECTOR * THREADS == BLOCK_M * BLOCK_K, "the threads share the A tile evenly");
static_assert(B_CHUNKS * VECTOR * THREADS == BLOCK_K * BLOCK_N, "the threads share the B tile evenly");
static_assert(BLOCK_K % MMA_K == 0 && WARP_M % MMA_M == 0 && WARP_N % MMA_N == 0, "tensor tiles must fit evenly");

struct alignas(16) Chunk { Element element[VECTOR]; };  // one 128-bit access

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) gemm_kernel(
    const Element *__restrict__ A,  // [M, K]
    const Element *__restrict__ B,  // [K, N]
    Element *__restrict__ C,        // [M, N]
    int M, int N, int K) {
  __shared__ alignas(128) Element A_tile[BLOCK_M][BLOCK_K];   // row-major, written and read by the whole block
  __shared__ alignas(128) Element B_tile[BLOCK_K][BLOCK_N];   // row-major, written and read by the whole block
  __shared__ alignas(128) float C_tile[WARPS][MMA_M][MMA_N];  // row-major, one 16 × 16 patch for each warp

  // 1. Which tile of C is mine?
  const int tiles_n = N / BLOCK_N;
  const int tile_m = blockIdx.x / tiles_n;
  const int tile_n = blockIdx.x % tiles_n;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int warp_row = warp / WARPS_N * WARP_M;  // of this warp's 64 × 64, within the block's tile
  const int warp_col = warp % WARPS_N * WARP_N;

  const Element *A_block = A + (size_t)tile_m * BLOCK_M * K;
  const Element *B_block = B + (size_t)tile_n * BLOCK_N;

  wmma::fragment<wmma::accumulator, MMA_M, MMA_N, MMA_K, float> acc[TILES_M][TILES_N];  // 64 × 64 of C per warp
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
#pragma unroll
    for (int n = 0; n < TILES_N; ++n) wmma::fill_fragment(acc[m][n], 0.0f);
  }

#pragma unroll 1  // unrolled by four, as the compiler does with short slices, it runs out of registers
  for (int slice = 0; slice < K; slice += BLOCK_K) {
    // 2. Global -> registers -> shared, 128 bits at a time.
#pragma unroll
    for (int chunk = 0; chunk < A_CHUNKS; ++chunk) {
      const int index = chunk * THREADS + thread;
      const int row = index / (BLOCK_K / VECTOR);
      const int col = index % (BLOCK_K / VECTOR) * VECTOR;
      *reinterpret_cast<Chunk *>(&A_tile[row][col]) =
          *reinterpret_cast<const Chunk *>(&A_block[(size_t)row * K + slice + col]);
    }
#pragma unroll
    for (int chunk = 0; chunk < B_CHUNKS; ++chunk) {
      const int index = chunk * THREADS + thread;
      const int row = index / (BLOCK_N / VECTOR);
      const int col = index % (BLOCK_N / VECTOR) * VECTOR;
      *reinterpret_cast<Chunk *>(&B_tile[row][col]) =
          *reinterpret_cast<const Chunk *>(&B_block[(size_t)(slice + row) * N + col]);
    }
    __syncthreads();  // everybody waits for all writers: the tiles are complete

    // 3. Shared -> fragments -> tensor cores: 4 + 4 fragments feed 16 multiplications.
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += MMA_K) {
      wmma::fragment<wmma::matrix_a, MMA_M, MMA_N, MMA_K, Element, wmma::row_major> a[TILES_M];
      wmma::fragment<wmma::matrix_b, MMA_M, MMA_N, MMA_K, Element, wmma::row_major> b[TILES_N];
#pragma unroll
      for (int m = 0; m < TILES_M; ++m) {
        wmma::load_matrix_sync(a[m], &A_tile[warp_row + m * MMA_M][k], BLOCK_K);
      }
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
        wmma::load_matrix_sync(b[n], &B_tile[k][warp_col + n * MMA_N], BLOCK_N);
      }
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
        for (int m = 0; m < TILES_M; ++m) wmma::mma_sync(acc[m][n], a[m], b[n], acc[m][n]);
      }
    }
    __syncthreads();  // everybody waits for all readers: the next slice overwrites the tiles
  }

  // 4. Which lane holds what is unknown: through an fp32 patch in shared memory, then round and store 128 bits.
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
#pragma unroll
    for (int n = 0; n < TILES_N; ++n) {
      wmma::store_matrix_sync(&C_tile[warp][0][0], acc[m][n], MMA_N, wmma::mem_row_major);
      __syncwarp();  // the warp waits for its own writers: the patch is complete
      const int patch_row = lane / 2;
      const int patch_col = lane % 2 * VECTOR;
      alignas(16) float value[VECTOR];
#pragma unroll
      for (int v = 0; v < VECTOR; v += 4) {
        *reinterpret_cast<float4 *>(&value[v]) =
            *reinterpret_cast<const float4 *>(&C_tile[warp][patch_row][patch_col + v]);
      }
      Chunk c;
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) c.element[v] = Element(value[v]);
      const int row = tile_m * BLOCK_M + warp_row + m * MMA_M + patch_row;
      const int col = tile_n * BLOCK_N + warp_col + n * MMA_N + patch_col;
      *reinterpret_cast<Chunk *>(&C[(size_t)row * N + col]) = c;
      __syncwarp();  // the warp waits for its own readers: the next patch overwrites this one
    }
  }
}

extern "C" cudaError_t launch_gemm(
    const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  if (M < 1 || N < 1 || K < 1) return cudaErrorInvalidValue;
  if (M % BLOCK_M || N % BLOCK_N || K % BLOCK_K) return cudaErrorInvalidValue;
  if (!A || !B || !C || ((size_t)A | (size_t)B | (size_t)C) % 16) return cudaErrorInvalidValue;  // loads take 16 bytes
  const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));
  gemm_kernel<<<grid, THREADS, 0, stream>>>(A, B, C, M, N, K);
  return cudaGetLastError();
}
