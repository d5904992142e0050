// Stage h1 · wgmma: the tensor cores read their operands from shared memory by themselves.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; 16-bit DTYPE in and out, fp32 accumulation.
// Idea      Stage 09's ring and its XOR layout, multiplied by Hopper's wgmma: four warps together, a warpgroup, start
//           64 × 256 × 16 products with one instruction. It runs in the background and takes A and B straight from
//           shared memory, so ldmatrix and the registers of the fragments are gone. A descriptor says where an operand
//           lies: address, distances between groups of 8 rows, swizzle.
//
//   level     | tile of C (M × N) | tiles of A, B per K slice              | who
//   ----------+-------------------+----------------------------------------+------------------------------
//   block     | 128 × 256         | STAGES × (A 128 × 64, B 64 × 256)      | 256 threads = 2 warpgroups
//   warpgroup | 64 × 256          | none: operands stay in shared memory   | 128 threads together
//   wgmma     | 64 × 256          | A 64 × 16, B 16 × 256, by descriptor   | the tensor cores of the SM
//
// Thread map   wgmma: each warp has 16 rows of C; row = lane / 4 (+ 8 for registers 2, 3), column = n * 8 +
//              lane % 4 * 2 (+ 1 for registers 1, 3): for each 16 × 8 the layout of mma.m16n8k16.
// Limits       M a multiple of 128, N of 256, K of 64; compute capability 9.0a; 48 KB of shared memory per stage.
// Layouts      PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": register fragments, matrix descriptor.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of A, B and C
#endif
#ifndef STAGES
#define STAGES 4  // tiles in the ring: STAGES - 1 slices in flight while one is multiplied
#endif
#ifndef GROUP_M
#define GROUP_M 12  // block swizzle: rows of tiles that concurrent blocks share; 1: row by row
#endif

using Element = DTYPE;

constexpr int BLOCK_M = 128;  // rows of C per block
constexpr int BLOCK_N = 256;  // columns of C per block
constexpr int BLOCK_K = 64;   // depth of a K slice
constexpr int WGMMA_M = 64;   // rows of C per tensor instruction and warpgroup
constexpr int WGMMA_K = 16;   // depth of a tensor instruction
constexpr int MMA_N = 8;      // columns of C per four registers of a lane

constexpr int THREADS = BLOCK_M / WGMMA_M * 128;
constexpr int TILES_N = BLOCK_N / MMA_N;
constexpr int VECTOR = 16 / sizeof(Element);                    // elements in a chunk, one 16-byte copy
constexpr int LINE = 128 / sizeof(Element);                     // elements in 128 bytes, a row of the swizzle
constexpr int EIGHT_ROWS = 8 * 128;                             // bytes from 8 rows of an operand to the next 8
constexpr int B_BOX = BLOCK_K * 128;                            // bytes from 64 columns of B to the next 64
constexpr int A_CHUNKS = BLOCK_M * BLOCK_K / VECTOR / THREADS;  // chunks of A per thread and slice
constexpr int B_CHUNKS = BLOCK_K * BLOCK_N / VECTOR / THREADS;

static_assert(STAGES >= 2, "one tile to multiply and one to fill");
static_assert(GROUP_M >= 1, "at least one row of tiles per group");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(A_CHUNKS * VECTOR * THREADS == BLOCK_M * BLOCK_K, "the threads share the A tile evenly");
static_assert(B_CHUNKS * VECTOR * THREADS == BLOCK_K * BLOCK_N, "the threads share the B tile evenly");
static_assert(BLOCK_K == LINE && BLOCK_N % LINE == 0, "the descriptors take rows of 128 bytes");

struct alignas(4) Pair { Element element[2]; };  // neighbours in a row of C, held by one lane

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

// An address within shared memory, as PTX wants it: 32 bits.
__device__ __forceinline__ unsigned shared_address(const void *pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
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

// Makes what cp.async and st.shared wrote visible to wgmma, which reads through another proxy, the asynchronous one.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Hands registers that other instructions wrote, accumulators and operands, to the next wgmma.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group: the wgmma that this warpgroup has started since the last one.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Sums that wgmma has written: the compiler may move what reads a register above a wait that does not name it, and each
// is named here, as if it changed.
template <int TILES>
__device__ __forceinline__ void wgmma_wrote(float (&sums)[TILES][4]) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
    asm volatile("" : "+f"(sums[tile][0]), "+f"(sums[tile][1]), "+f"(sums[tile][2]), "+f"(sums[tile][3])::"memory");
}

// Waits until at most N of this warpgroup's youngest groups are still running. The others have written `sums`.
template <int N, typename... Sums>
__device__ __forceinline__ void wgmma_wait(Sums &...sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
  (wgmma_wrote(sums), ...);
}

// The descriptor of an operand with the 128-byte swizzle: address, leading and stride in bytes (kept in units of 16).
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
  return (address & 0x3ffff) >> 4 | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
         1ull << 62;
}

// D[64, 256] += A[64, 16] · B[16, 256], fp32 accumulation; rows of A lie along K, rows of B along N.
#define FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define ACCUMULATORS SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12), SIXTEEN(16), SIXTEEN(20), SIXTEEN(24), SIXTEEN(28)
#define OPERANDS                                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

template <typename T>
__device__ void wgmma_m64n256k16(float (&d)[32][4], unsigned long long a, unsigned long long b);

template <>
__device__ __forceinline__ void wgmma_m64n256k16<half>(float (&d)[32][4], unsigned long long a, unsigned long long b) {
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" OPERANDS "}, %128, %129, add, 1, 1, 0, 1;\n}"
               : ACCUMULATORS : "l"(a), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma_m64n256k16<__nv_bfloat16>(
    float (&d)[32][4], unsigned long long a, unsigned long long b) {
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" OPERANDS "}, %128, %129, add, 1, 1, 0, 1;\n}"
               : ACCUMULATORS : "l"(a), "l"(b));
}

struct Tiles {  // one stage of the ring, written by the whole block; its swizzle repeats after 8 rows, 1 KB
  alignas(1024) Element A[BLOCK_M][LINE];
  alignas(1024) Element B[BLOCK_N / LINE][BLOCK_K][LINE];  // 64 columns after 64 columns
};

// Where column col of a row lies, in a tile whose rows are COLUMNS long: chunk number XOR row number. 128 bytes, all
// the banks, are 8 chunks; rows shorter than that share them, so the row number counts lines of 128 bytes.
template <int COLUMNS>
__device__ __forceinline__ int swizzle(int row, int col) {
  constexpr int CHUNKS = COLUMNS / VECTOR;
  static_assert((CHUNKS & (CHUNKS - 1)) == 0, "XOR stays within a row that has a power of two of chunks");
  constexpr int ROWS_PER_LINE = CHUNKS < 8 ? 8 / CHUNKS : 1;
  constexpr int PERIOD = CHUNKS < 8 ? CHUNKS : 8;
  return col ^ row / ROWS_PER_LINE % PERIOD * VECTOR;
}

__global__ void __launch_bounds__(THREADS) gemm_kernel(
    const Element *__restrict__ A,  // [M, K]
    const Element *__restrict__ B,  // [K, N]
    Element *__restrict__ C,        // [M, N]
    int M, int N, int K) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Tiles *ring = reinterpret_cast<Tiles *>(shared);  // [STAGES]

  // 1. Which tile of C is mine? Blocks walk down GROUP_M rows of tiles before they step to the right.
  const int tiles_m = M / BLOCK_M;
  const int tiles_n = N / BLOCK_N;
  const int group = blockIdx.x / (GROUP_M * tiles_n);
  const int in_group = blockIdx.x % (GROUP_M * tiles_n);
  const int group_rows = min(GROUP_M, tiles_m - group * GROUP_M);  // the last group may be lower
  const int tile_m = group * GROUP_M + in_group % group_rows;
  const int tile_n = in_group / group_rows;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group_row = warp / 4 * WGMMA_M;  // of this warpgroup's 64 × 256, within the block's tile

  const Element *A_block = A + (size_t)tile_m * BLOCK_M * K;
  const Element *B_block = B + (size_t)tile_n * BLOCK_N;

  float acc[TILES_N][4] = {};  // 16 × 256 of C per warp, in wgmma's layout

  // 2. Global -> shared, 16 bytes at a time, in the background: one slice into one stage of the ring.
  const int slices = K / BLOCK_K;
  const auto copy_slice = [&](int slice, Tiles &tiles) {
#pragma unroll
    for (int chunk = 0; chunk < A_CHUNKS; ++chunk) {
      const int index = chunk * THREADS + thread;
      const int row = index / (BLOCK_K / VECTOR);
      const int col = index % (BLOCK_K / VECTOR) * VECTOR;
      cp_async_16(shared_address(&tiles.A[row][swizzle<LINE>(row, col)]),
                  &A_block[(size_t)row * K + slice * BLOCK_K + col]);
    }
#pragma unroll
    for (int chunk = 0; chunk < B_CHUNKS; ++chunk) {
      const int index = chunk * THREADS + thread;
      const int row = index / (BLOCK_N / VECTOR);
      const int col = index % (BLOCK_N / VECTOR) * VECTOR;
      cp_async_16(shared_address(&tiles.B[col / LINE][row][swizzle<LINE>(row, col % LINE)]),
                  &B_block[(size_t)(slice * BLOCK_K + row) * N + col]);
    }
  };
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < slices) copy_slice(stage, ring[stage]);
    cp_async_commit();
  }

  for (int slice = 0; slice < slices; ++slice) {
    cp_async_wait<STAGES - 2>();  // this thread's copies of this slice have come,
    fence_proxy_async();          // ... and wgmma will see them;
    __syncthreads();              // everybody's have, and both warpgroups have read the slice before
    const Tiles &tiles = ring[slice % STAGES];

    // 3. Shared -> tensor cores: 4 instructions, which run while this thread copies.
    const unsigned A_rows = shared_address(tiles.A[group_row]);
    const unsigned B_rows = shared_address(tiles.B);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += WGMMA_K) {
      const unsigned long long a = descriptor(A_rows + k * sizeof(Element), 16, EIGHT_ROWS);  // 32 bytes on, in a row
      const unsigned long long b = descriptor(B_rows + k * 128, B_BOX, EIGHT_ROWS);           // 16 rows on
      wgmma_m64n256k16<Element>(acc, a, b);
    }
    wgmma_commit();

    const int ahead = slice + STAGES - 1;
    if (ahead < slices) copy_slice(ahead, ring[ahead % STAGES]);
    cp_async_commit();   // empty groups at the end keep the count right
    wgmma_wait<0>(acc);  // the products have read their tiles and written acc
  }

  // 4. Round once, at the end, and store straight from the registers, two neighbours at a time.
#pragma unroll
  for (int half_tile = 0; half_tile < 2; ++half_tile) {  // rows 0-7, rows 8-15 of the warp's 16
    const int row = tile_m * BLOCK_M + warp * 16 + half_tile * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < TILES_N; ++n) {
      const int col = tile_n * BLOCK_N + n * MMA_N + lane % 4 * 2;
      const Pair pair = {{Element(acc[n][half_tile * 2]), Element(acc[n][half_tile * 2 + 1])}};
      *reinterpret_cast<Pair *>(&C[(size_t)row * N + col]) = pair;
    }
  }
}

extern "C" cudaError_t launch_gemm(
    const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  if (M < 1 || N < 1 || K < 1) return cudaErrorInvalidValue;
  if (M % BLOCK_M || N % BLOCK_N || K % BLOCK_K) return cudaErrorInvalidValue;
  if (!A || !B || !C || ((size_t)A | (size_t)B | (size_t)C) % 16) return cudaErrorInvalidValue;  // copies take 16 bytes
  const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));
  const int shared_bytes = STAGES * sizeof(Tiles);  // more than 48 KB must be asked for
  const cudaError_t status =
      cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  gemm_kernel<<<grid, THREADS, shared_bytes, stream>>>(A, B, C, M, N, K);
  return cudaGetLastError();
}
