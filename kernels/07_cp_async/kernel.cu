// Stage 07 · cp.async: from global to shared memory without passing through registers.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; 16-bit DTYPE in and out, fp32 accumulation.
// Idea      A copy through registers is a load, a wait, a store, and registers for everything in between. cp.async
//           hands 16 bytes to the memory system: one instruction, no data register, and .cg bypasses L1. The thread
//           goes on at once, and waits with wait_group when it needs its copies. The hardware's counters show no bank
//           conflicts for copies, so the order of the lanes is stage 05's again; but a sector of 32 bytes whose
//           halves go to different sectors of shared memory, as in padded rows, is fetched twice.
//
//   level  | tile of C (M × N) | tiles of A, B per K slice              | who
//   -------+-------------------+----------------------------------------+----------------------------
//   block  | 128 × 256         | A 128 × 32+8, B 32 × 256+8 (shared)    | 256 threads = 2 × 4 warps
//   warp   | 64 × 64           | A 64 × 16, B 16 × 64 (registers) per k | 32 lanes together
//   mma    | 16 × 8, 4 × 8     | A 16 × 16, B 16 × 8                    | the tensor core
//
// Thread map   mma: C row = lane / 4 (+ 8 for registers 2, 3), column = lane % 4 * 2 (+ 1 for registers 1, 3).
//              ldmatrix: lane L gives the address of row L % 8 of matrix L / 8.
// Limits       M a multiple of 128, N of 256, K of 32; compute capability 8.0.
// Layouts      PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of A, B and C
#endif
#ifndef PADDING
#define PADDING 8  // elements added to each row of the shared tiles, a multiple of 8 (16 bytes); 0: none
#endif

using Element = DTYPE;

constexpr int BLOCK_M = 128;  // rows of C per block
constexpr int BLOCK_N = 256;  // columns of C per block
constexpr int BLOCK_K = 32;   // depth of a K slice
constexpr int WARP_M = 64;    // rows of C per warp
constexpr int WARP_N = 64;    // columns of C per warp
constexpr int MMA_M = 16;     // rows of C per tensor instruction
constexpr int MMA_N = 8;      // columns of C per tensor instruction
constexpr int MMA_K = 16;     // depth of a tensor instruction

constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int WARPS = BLOCK_M / WARP_M * WARPS_N;
constexpr int THREADS = WARPS * 32;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int TILES_N = WARP_N / MMA_N;
constexpr int VECTOR = 16 / sizeof(Element);                    // elements in a chunk, one 16-byte copy
constexpr int A_CHUNKS = BLOCK_M * BLOCK_K / VECTOR / THREADS;  // chunks of A per thread and slice
constexpr int B_CHUNKS = BLOCK_K * BLOCK_N / VECTOR / THREADS;

static_assert(PADDING % VECTOR == 0, "ldmatrix and cp.async need rows that start at multiples of 16 bytes");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(A_CHUNKS * VECTOR * THREADS == BLOCK_M * BLOCK_K, "the threads share the A tile evenly");
static_assert(B_CHUNKS * VECTOR * THREADS == BLOCK_K * BLOCK_N, "the threads share the B tile evenly");
static_assert(BLOCK_K % MMA_K == 0 && WARP_M % MMA_M == 0 && WARP_N % MMA_N == 0, "tensor tiles must fit evenly");
static_assert(TILES_N % 2 == 0, "one ldmatrix.x4 brings two tiles of B");

struct alignas(4) Pair { Element element[2]; };  // neighbours in a row of C, held by one lane

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

// The address that ldmatrix wants: 32 bits, within shared memory.
__device__ __forceinline__ unsigned shared_address(const void *pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Four 8 × 8 matrices of 16-bit elements; lane L points at row L % 8 of matrix L / 8.
__device__ __forceinline__ void ldmatrix_x4(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
}

// The same, each 8 × 8 matrix transposed on the way.
__device__ __forceinline__ void ldmatrix_x4_trans(
    unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
}

// 16 bytes, global -> shared, in the background; .cg caches in L2 only.
__device__ __forceinline__ void cp_async_16(unsigned shared, const void *global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// Closes a group: the copies this thread has issued since the last one.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's youngest groups are still in flight.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// D[16, 8] += A[16, 16] · B[16, 8], fp32 accumulation.
template <typename T>
__device__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

template <>
__device__ __forceinline__ void mma_m16n8k16<half>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__global__ void __launch_bounds__(THREADS) gemm_kernel(
    const Element *__restrict__ A,  // [M, K]
    const Element *__restrict__ B,  // [K, N]
    Element *__restrict__ C,        // [M, N]
    int M, int N, int K) {
  __shared__ alignas(128) Element A_tile[BLOCK_M][BLOCK_K + PADDING];  // row-major, written and read by the whole block
  __shared__ alignas(128) Element B_tile[BLOCK_K][BLOCK_N + PADDING];  // row-major, written and read by the whole block

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

  float acc[TILES_M][TILES_N][4] = {};  // 64 × 64 of C per warp, in mma's layout

  for (int slice = 0; slice < K; slice += BLOCK_K) {
    // 2. Global -> shared, 16 bytes at a time, in the background.
#pragma unroll
    for (int chunk = 0; chunk < A_CHUNKS; ++chunk) {
      const int index = chunk * THREADS + thread;
      const int row = index / (BLOCK_K / VECTOR);
      const int col = index % (BLOCK_K / VECTOR) * VECTOR;
      cp_async_16(shared_address(&A_tile[row][col]), &A_block[(size_t)row * K + slice + col]);
    }
#pragma unroll
    for (int chunk = 0; chunk < B_CHUNKS; ++chunk) {
      const int index = chunk * THREADS + thread;
      const int row = index / (BLOCK_N / VECTOR);
      const int col = index % (BLOCK_N / VECTOR) * VECTOR;
      cp_async_16(shared_address(&B_tile[row][col]), &B_block[(size_t)(slice + row) * N + col]);
    }
    cp_async_commit();
    cp_async_wait<0>();  // each thread waits for its own copies,
    __syncthreads();     // then everybody for everybody's: the tiles are complete

    // 3. Shared -> registers -> tensor cores: 4 + 4 ldmatrix feed 32 mma.
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += MMA_K) {
      unsigned a[TILES_M][4], b[TILES_N][2];
#pragma unroll
      for (int m = 0; m < TILES_M; ++m) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
        const int row = warp_row + m * MMA_M + lane % 16;
        const int col = k + lane / 16 * 8;
        ldmatrix_x4(a[m][0], a[m][1], a[m][2], a[m][3], shared_address(&A_tile[row][col]));
      }
#pragma unroll
      for (int n = 0; n < TILES_N; n += 2) {  // rows of B are k: .trans puts k along the registers, as mma wants it
        const int row = k + lane % 16;
        const int col = warp_col + n * MMA_N + lane / 16 * 8;
        ldmatrix_x4_trans(b[n][0], b[n][1], b[n + 1][0], b[n + 1][1], shared_address(&B_tile[row][col]));
      }
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
        for (int m = 0; m < TILES_M; ++m) mma_m16n8k16<Element>(acc[m][n], a[m], b[n]);
      }
    }
    __syncthreads();  // everybody waits for all readers: the next slice overwrites the tiles
  }

  // 4. Round once, at the end, and store straight from the registers, two neighbours at a time.
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {  // rows 0-7, rows 8-15 of the mma tile
      const int row = tile_m * BLOCK_M + warp_row + m * MMA_M + half_tile * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
        const int col = tile_n * BLOCK_N + warp_col + n * MMA_N + lane % 4 * 2;
        const Pair pair = {{Element(acc[m][n][half_tile * 2]), Element(acc[m][n][half_tile * 2 + 1])}};
        *reinterpret_cast<Pair *>(&C[(size_t)row * N + col]) = pair;
      }
    }
  }
}

extern "C" cudaError_t launch_gemm(
    const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  if (M < 1 || N < 1 || K < 1) return cudaErrorInvalidValue;
  if (M % BLOCK_M || N % BLOCK_N || K % BLOCK_K) return cudaErrorInvalidValue;
  if (!A || !B || !C || ((size_t)A | (size_t)B | (size_t)C) % 16) return cudaErrorInvalidValue;  // copies take 16 bytes
  const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));
  gemm_kernel<<<grid, THREADS, 0, stream>>>(A, B, C, M, N, K);
  return cudaGetLastError();
}
