// Stage 02 · block tile: the block stages tiles of A and B in shared memory.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; DTYPE in and out, fp32 accumulation.
// Idea      The 1024 threads of a block need only 32 rows of A and 32 columns of B between them. They fetch a
//           K slice of both together, once, into shared memory, and then each reads from there 32 times.
//           They ask for a 32nd of the bytes; a barrier on each side keeps readers and writers of the tiles apart.
//
//   level  | tile of C (M × N) | tiles of A, B per K slice     | who
//   -------+-------------------+-------------------------------+-------------------------------
//   block  | 32 × 32           | A 32 × 32, B 32 × 32 (shared) | 1024 threads = 32 warps
//   warp   | 1 × 32            | reads A 1 × 32, B 32 × 32     | 32 lanes side by side
//   thread | 1 × 1             | loads 1 element of each       | one accumulator register
//
// Thread map   tile row = thread / 32, tile column = thread % 32, for C, for A and for B
// Limits       any M, N, K >= 1: elements beyond an edge are loaded as zeros and never stored.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16 | float: the elements of A, B and C
#endif

using Element = DTYPE;

constexpr int BLOCK_M = 32;  // rows of C per block
constexpr int BLOCK_N = 32;  // columns of C per block
constexpr int BLOCK_K = 32;  // depth of a K slice
constexpr int THREADS = BLOCK_M * BLOCK_N;

static_assert(THREADS <= 1024, "a block has at most 1024 threads");
static_assert(BLOCK_K == BLOCK_N && BLOCK_K == BLOCK_M, "each thread loads one element of each tile");

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

__global__ void __launch_bounds__(THREADS) gemm_kernel(
    const Element *__restrict__ A,  // [M, K]
    const Element *__restrict__ B,  // [K, N]
    Element *__restrict__ C,        // [M, N]
    int M, int N, int K) {
  __shared__ Element A_tile[BLOCK_M][BLOCK_K];  // row-major, written and read by the whole block
  __shared__ Element B_tile[BLOCK_K][BLOCK_N];  // row-major, written and read by the whole block

  // 1. Which element of C is mine? Tiles are numbered row by row.
  const int tiles_n = ceil_div(N, BLOCK_N);
  const int tile_m = blockIdx.x / tiles_n;
  const int tile_n = blockIdx.x % tiles_n;
  const int thread = threadIdx.x;
  const int thread_row = thread / BLOCK_N;
  const int thread_col = thread % BLOCK_N;
  const int row = tile_m * BLOCK_M + thread_row;
  const int col = tile_n * BLOCK_N + thread_col;

  float sum = 0.0f;
  for (int slice = 0; slice < K; slice += BLOCK_K) {
    // 2. Global -> shared: each thread brings one element of each tile, neighbours bring neighbours.
    const int a_col = slice + thread_col;
    const int b_row = slice + thread_row;
    A_tile[thread_row][thread_col] = row < M && a_col < K ? A[(size_t)row * K + a_col] : Element(0.0f);
    B_tile[thread_row][thread_col] = b_row < K && col < N ? B[(size_t)b_row * N + col] : Element(0.0f);
    __syncthreads();  // everybody waits for all writers: the tiles are complete

    // 3. Shared -> registers: a warp reads one element of A (a broadcast) and 32 neighbours of B per step.
#pragma unroll
    for (int k = 0; k < BLOCK_K; ++k) {
      sum += float(A_tile[thread_row][k]) * float(B_tile[k][thread_col]);
    }
    __syncthreads();  // everybody waits for all readers: the next slice overwrites the tiles
  }

  // 4. Round once, at the end.
  if (row < M && col < N) C[(size_t)row * N + col] = Element(sum);
}

extern "C" cudaError_t launch_gemm(
    const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  if (M < 1 || N < 1 || K < 1 || K > INT_MAX - BLOCK_K) return cudaErrorInvalidValue;
  if (!A || !B || !C) return cudaErrorInvalidValue;
  const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));
  gemm_kernel<<<grid, THREADS, 0, stream>>>(A, B, C, M, N, K);
  return cudaGetLastError();
}
