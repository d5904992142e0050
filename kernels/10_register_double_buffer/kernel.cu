// Stage 10 · register double buffer: fragments are loaded one step of k before they are multiplied.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; 16-bit DTYPE in and out, fp32 accumulation.
// Idea      In stage 09 every warp waits at a barrier, copies, loads fragments, and only then multiplies. With two sets
//           of fragments, used in turn, those of step k + 1 are loaded while step k is multiplied. This goes on across
//           the end of a slice: the barrier moves to before the slice's last step, whose fragments are already in
//           registers. To make room for the second set, addresses are computed once, before the loop.
//
//   level  | tile of C (M × N) | tiles of A, B per K slice              | who
//   -------+-------------------+----------------------------------------+----------------------------
//   block  | 128 × 256         | STAGES × (A 128 × 32, B 32 × 256)      | 256 threads = 2 × 4 warps
//   warp   | 64 × 64           | 2 × (A 64 × 16, B 16 × 64) (registers) | 32 lanes together
//   mma    | 16 × 8, 4 × 8     | A 16 × 16, B 16 × 8                    | the tensor core
//
// Thread map   mma: C row = lane / 4 (+ 8 for registers 2, 3), column = lane % 4 * 2 (+ 1 for registers 1, 3).
//              ldmatrix: lane L gives the address of row L % 8 of matrix L / 8.
// Limits       M a multiple of 128, N of 256, K of 32; compute capability 8.0; 24 KB of shared memory per stage.
// Layouts      PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of A, B and C
#endif
#ifndef STAGES
#define STAGES 4  // tiles in the ring: STAGES - 1 slices in flight while one is multiplied
#endif
#ifndef PREFETCH
#define PREFETCH 1  // steps of k from the loading of fragments to their use: 1, or 0 as in the stages before
#endif
#ifndef SWIZZLE
#define SWIZZLE 1  // 1: chunks of the shared tiles permuted by XOR; 0: rows as they come, with conflicts
#endif
#ifndef GROUP_M
#define GROUP_M 12  // block swizzle: rows of tiles that concurrent blocks share; 1: row by row
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
constexpr int STEPS = BLOCK_K / MMA_K;  // steps of k per slice

static_assert(STAGES >= 2, "one tile to multiply and one to fill");
static_assert(SWIZZLE == 0 || SWIZZLE == 1, "SWIZZLE is 0 or 1");
static_assert(GROUP_M >= 1, "at least one row of tiles per group");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(A_CHUNKS * VECTOR * THREADS == BLOCK_M * BLOCK_K, "the threads share the A tile evenly");
static_assert(B_CHUNKS * VECTOR * THREADS == BLOCK_K * BLOCK_N, "the threads share the B tile evenly");
static_assert(BLOCK_M / A_CHUNKS % 8 == 0 && BLOCK_K / B_CHUNKS % 8 == 0, "the swizzle repeats from chunk to chunk");
static_assert(STEPS % 2 == 0, "the two sets of fragments take turns across slices, too");
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

struct Tiles {  // one stage of the ring: row-major, written and read by the whole block
  alignas(128) Element A[BLOCK_M][BLOCK_K];
  alignas(128) Element B[BLOCK_K][BLOCK_N];
};

// Where column col of a row lies, in a tile whose rows are COLUMNS long: chunk number XOR row number. 128 bytes, all
// the banks, are 8 chunks; rows shorter than that share them, so the row number counts lines of 128 bytes.
template <int COLUMNS>
__device__ __forceinline__ int swizzle(int row, int col) {
  constexpr int CHUNKS = COLUMNS / VECTOR;
  static_assert((CHUNKS & (CHUNKS - 1)) == 0, "XOR stays within a row that has a power of two of chunks");
  constexpr int ROWS_PER_LINE = CHUNKS < 8 ? 8 / CHUNKS : 1;
  constexpr int PERIOD = CHUNKS < 8 ? CHUNKS : 8;
  return SWIZZLE ? col ^ row / ROWS_PER_LINE % PERIOD * VECTOR : col;
}

__global__ void __launch_bounds__(THREADS) gemm_kernel(
    const Element *__restrict__ A,  // [M, K]
    const Element *__restrict__ B,  // [K, N]
    Element *__restrict__ C,        // [M, N]
    int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char shared[];
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
  const int warp_row = warp / WARPS_N * WARP_M;  // of this warp's 64 × 64, within the block's tile
  const int warp_col = warp % WARPS_N * WARP_N;

  const Element *A_block = A + (size_t)tile_m * BLOCK_M * K;
  const Element *B_block = B + (size_t)tile_n * BLOCK_N;

  float acc[TILES_M][TILES_N][4] = {};  // 64 × 64 of C per warp, in mma's layout

  // 2. Global -> shared, 16 bytes at a time, in the background: one slice into one stage of the ring. A thread's first
  // chunk has its addresses computed once; the others are at fixed distances, at which the XOR repeats.
  const int slices = K / BLOCK_K;
  const int a_row = thread / (BLOCK_K / VECTOR), a_col = thread % (BLOCK_K / VECTOR) * VECTOR;
  const int b_row = thread / (BLOCK_N / VECTOR), b_col = thread % (BLOCK_N / VECTOR) * VECTOR;
  const unsigned a_target = shared_address(&ring->A[a_row][swizzle<BLOCK_K>(a_row, a_col)]);
  const unsigned b_target = shared_address(&ring->B[b_row][swizzle<BLOCK_N>(b_row, b_col)]);
  const Element *a_source = &A_block[(size_t)a_row * K + a_col];
  const Element *b_source = &B_block[(size_t)b_row * N + b_col];
  const auto ring_offset = [](unsigned slice) { return slice % STAGES * (unsigned)sizeof(Tiles); };
  const auto copy_slice = [&](unsigned offset) {
#pragma unroll
    for (int chunk = 0; chunk < A_CHUNKS; ++chunk) {
      const int row = chunk * (BLOCK_M / A_CHUNKS);
      cp_async_16(a_target + offset + row * BLOCK_K * sizeof(Element), a_source + (size_t)row * K);
    }
#pragma unroll
    for (int chunk = 0; chunk < B_CHUNKS; ++chunk) {
      const int row = chunk * (BLOCK_K / B_CHUNKS);
      cp_async_16(b_target + offset + row * BLOCK_N * sizeof(Element), b_source + (size_t)row * N);
    }
    a_source += BLOCK_K;  // the next slice: to the right in A, further down in B
    b_source += (size_t)BLOCK_K * N;
  };
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < slices) copy_slice(ring_offset(stage));
    cp_async_commit();
  }

  // 3. Shared -> registers: 4 + 4 ldmatrix bring the fragments of a step of k.
  unsigned a[2][TILES_M][4], b[2][TILES_N][2];  // two sets, used in turn
  const auto load_fragments = [&](int step, unsigned offset) {
    const int set = step % 2;
    const int row = lane % 16;  // 16 rows further the XOR is the same
    const int a_col = step * MMA_K + lane / 16 * 8;
    const unsigned a_address = shared_address(&ring->A[warp_row + row][swizzle<BLOCK_K>(row, a_col)]) + offset;
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
      ldmatrix_x4(a[set][m][0], a[set][m][1], a[set][m][2], a[set][m][3],
                  a_address + m * MMA_M * BLOCK_K * sizeof(Element));
    }
#pragma unroll
    for (int n = 0; n < TILES_N; n += 2) {  // rows of B are k: .trans puts k along the registers, as mma wants it
      const int b_col = warp_col + n * MMA_N + lane / 16 * 8;
      const unsigned b_address = shared_address(&ring->B[row][swizzle<BLOCK_N>(row, b_col)]) + offset;
      ldmatrix_x4_trans(b[set][n][0], b[set][n][1], b[set][n + 1][0], b[set][n + 1][1],
                        b_address + step * MMA_K * BLOCK_N * sizeof(Element));
    }
  };

  // 4. Registers -> tensor cores, a step of k at a time: 32 mma, during which the next step's fragments are loaded.
  cp_async_wait<STAGES - 2>();  // each thread waits for its own copies of the first slice,
  __syncthreads();              // then everybody for everybody
  unsigned offset = 0;          // of the tiles that are read, in the ring
  load_fragments(0, offset);
  for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int next = (step + PREFETCH) % STEPS;
      if (next == 0) {
        cp_async_wait<STAGES - 2>();  // each thread waits for its own copies of the next slice, then all for all:
        __syncthreads();              // its tiles are complete, and nobody reads those before them any more
        offset = ring_offset(min(slice + PREFETCH, slices - 1));  // (after the last slice there is none)
      }
      load_fragments(next, offset);
      if (step == 0) {
        const int ahead = slice + STAGES - 1;
        if (ahead < slices) copy_slice(ring_offset(ahead));
        cp_async_commit();  // empty groups at the end keep the count right
      }
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
        for (int m = 0; m < TILES_M; ++m) mma_m16n8k16<Element>(acc[m][n], a[step % 2][m], b[step % 2][n]);
      }
    }
  }

  // 5. Round once, at the end, and store straight from the registers, two neighbours at a time.
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
  const int shared_bytes = STAGES * sizeof(Tiles);  // more than 48 KB must be asked for
  const cudaError_t status =
      cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  gemm_kernel<<<grid, THREADS, shared_bytes, stream>>>(A, B, C, M, N, K);
  return cudaGetLastError();
}
