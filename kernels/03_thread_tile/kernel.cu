// Stage 03 · thread tile: each thread computes 8 × 8 outputs in registers.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; DTYPE in and out, fp32 accumulation.
// Idea      Stage 02 reads two values from shared memory for each multiplication. A thread that owns 8 × 8
//           outputs reads 8 + 8 values for 64 multiplications: the outer product lives in registers. Loads
//           and stores are 128 bits wide, in global and in shared memory.
//
//   level  | tile of C (M × N)    | tiles of A, B per K slice            | who
//   -------+----------------------+--------------------------------------+---------------------------
//   block  | 128 × 128            | A 128 × 16, B 16 × 128 (shared)      | 256 threads = 8 warps
//   warp   | 32 × 64 in 2 × 2     | reads A 32 × 1, B 1 × 64 per k       | 4 × 8 lanes
//   thread | 8 × 8 = 2 × 2 of 4×4 | 8 + 8 registers per k                | 64 accumulators
//
// Thread map   lane row = lane / 8, lane column = lane % 8. A thread's 8 rows are 4 neighbours in each half of its
//              warp's 32 rows, and its 8 columns 4 neighbours in each half of the 64: then the 128-bit reads
//              of neighbouring lanes are neighbours in shared memory, and no two lanes of a read meet in a bank.
// Limits       M and N multiples of 128, K a multiple of 16.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16 | float: the elements of A, B and C
#endif

using Element = DTYPE;

constexpr int BLOCK_M = 128;  // rows of C per block
constexpr int BLOCK_N = 128;  // columns of C per block
constexpr int BLOCK_K = 16;   // depth of a K slice
constexpr int WARP_M = 32;    // rows of C per warp
constexpr int WARP_N = 64;    // columns of C per warp
constexpr int THREAD_M = 8;   // rows of C per thread
constexpr int THREAD_N = 8;   // columns of C per thread
constexpr int QUAD = 4;       // neighbouring fp32 values in one 128-bit access of shared memory

constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int LANES_N = WARP_N / THREAD_N;
constexpr int THREADS = (BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N);
constexpr int VECTOR = 16 / sizeof(Element);                    // elements in one 128-bit access of global memory
constexpr int A_CHUNKS = BLOCK_M * BLOCK_K / VECTOR / THREADS;  // 128-bit loads of A per thread and slice
constexpr int B_CHUNKS = BLOCK_K * BLOCK_N / VECTOR / THREADS;

static_assert((WARP_M / THREAD_M) * (WARP_N / THREAD_N) == 32, "a warp has 32 lanes");
static_assert(THREAD_M == 2 * QUAD && THREAD_N == 2 * QUAD, "a thread reads two quads of A and two of B");
static_assert(A_CHUNKS * VECTOR * THREADS == BLOCK_M * BLOCK_K, "the threads share the A tile evenly");
static_assert(B_CHUNKS * VECTOR * THREADS == BLOCK_K * BLOCK_N, "the threads share the B tile evenly");

struct alignas(16) Chunk { Element element[VECTOR]; };  // one 128-bit access

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

__global__ void __launch_bounds__(THREADS, 2) gemm_kernel(
    const Element *__restrict__ A,  // [M, K]
    const Element *__restrict__ B,  // [K, N]
    Element *__restrict__ C,        // [M, N]
    int M, int N, int K) {
  __shared__ alignas(16) float A_tile[BLOCK_K][BLOCK_M];  // transposed: a thread's rows are neighbours
  __shared__ alignas(16) float B_tile[BLOCK_K][BLOCK_N];  // row-major

  // 1. Which 8 × 8 elements of C are mine?
  const int tiles_n = N / BLOCK_N;
  const int tile_m = blockIdx.x / tiles_n;
  const int tile_n = blockIdx.x % tiles_n;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int thread_row = warp / WARPS_N * WARP_M + lane / LANES_N * QUAD;  // second quad: + WARP_M / 2
  const int thread_col = warp % WARPS_N * WARP_N + lane % LANES_N * QUAD;  // second quad: + WARP_N / 2

  const Element *A_block = A + (size_t)tile_m * BLOCK_M * K;
  const Element *B_block = B + (size_t)tile_n * BLOCK_N;

  float acc[THREAD_M][THREAD_N] = {};  // this thread's 8 × 8 of C
  for (int slice = 0; slice < K; slice += BLOCK_K) {
    // 2. Global -> shared, 128 bits at a time; converted to fp32 once, here, not in the inner loop.
#pragma unroll
    for (int chunk = 0; chunk < A_CHUNKS; ++chunk) {
      const int index = chunk * THREADS + thread;
      // Neighbours load neighbours: full sectors, at the price of transposed stores that meet in a bank (see stage 06).
      const int row = index / (BLOCK_K / VECTOR);
      const int col = index % (BLOCK_K / VECTOR) * VECTOR;
      const Chunk a = *reinterpret_cast<const Chunk *>(&A_block[(size_t)row * K + slice + col]);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) A_tile[col + v][row] = float(a.element[v]);
    }
#pragma unroll
    for (int chunk = 0; chunk < B_CHUNKS; ++chunk) {
      const int index = chunk * THREADS + thread;
      const int row = index / (BLOCK_N / VECTOR);
      const int col = index % (BLOCK_N / VECTOR) * VECTOR;
      const Chunk b = *reinterpret_cast<const Chunk *>(&B_block[(size_t)(slice + row) * N + col]);
#pragma unroll
      for (int v = 0; v < VECTOR; v += QUAD) {  // (16-bit chunks become two quads: their stores meet in banks, too)
        *reinterpret_cast<float4 *>(&B_tile[row][col + v]) =
            make_float4(float(b.element[v]), float(b.element[v + 1]), float(b.element[v + 2]), float(b.element[v + 3]));
      }
    }
    __syncthreads();  // everybody waits for all writers: the tiles are complete

    // 3. Shared -> registers -> outer product: 4 reads of 128 bits, 64 multiplications.
#pragma unroll
    for (int k = 0; k < BLOCK_K; ++k) {
      alignas(16) float a[THREAD_M], b[THREAD_N];
      *reinterpret_cast<float4 *>(&a[0]) = *reinterpret_cast<const float4 *>(&A_tile[k][thread_row]);
      *reinterpret_cast<float4 *>(&a[QUAD]) = *reinterpret_cast<const float4 *>(&A_tile[k][thread_row + WARP_M / 2]);
      *reinterpret_cast<float4 *>(&b[0]) = *reinterpret_cast<const float4 *>(&B_tile[k][thread_col]);
      *reinterpret_cast<float4 *>(&b[QUAD]) = *reinterpret_cast<const float4 *>(&B_tile[k][thread_col + WARP_N / 2]);
#pragma unroll
      for (int m = 0; m < THREAD_M; ++m) {
#pragma unroll
        for (int n = 0; n < THREAD_N; ++n) acc[m][n] += a[m] * b[n];
      }
    }
    __syncthreads();  // everybody waits for all readers: the next slice overwrites the tiles
  }

  // 4. Round once, at the end; four neighbours of a row per store.
#pragma unroll
  for (int m = 0; m < THREAD_M; ++m) {
    const int row = tile_m * BLOCK_M + thread_row + m / QUAD * (WARP_M / 2) + m % QUAD;
#pragma unroll
    for (int n = 0; n < THREAD_N; n += QUAD) {
      const int col = tile_n * BLOCK_N + thread_col + n / QUAD * (WARP_N / 2);
      struct alignas(QUAD * sizeof(Element)) Quad { Element element[QUAD]; };
      const Quad quad = {{Element(acc[m][n]), Element(acc[m][n + 1]), Element(acc[m][n + 2]), Element(acc[m][n + 3])}};
      *reinterpret_cast<Quad *>(&C[(size_t)row * N + col]) = quad;
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
