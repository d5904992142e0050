// Stage 10 · register double buffer: the next step's fragments are loaded while this step's are multiplied.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; 16-bit DTYPE in and out, fp32 accumulation.
// Idea      In stage 09 the warps leave a barrier, issue copies, then ldmatrix, and only then the slice's first mma.
//           With two sets of fragments, used in turn, those of step k + 1 are loaded while step k is multiplied, across
//           the end of a slice, too: the barrier moves to before a slice's last step, whose fragments are in registers
//           by then. The second set takes registers that addresses held: what does not change is computed once
//           now, and copies add where they multiplied. A slice twice as deep has half as many barriers.
//
//   level  | tile of C (M × N) | tiles of A, B per K slice              | who
//   -------+-------------------+----------------------------------------+----------------------------
//   block  | 128 × 256         | STAGES × (A 128 × 64, B 64 × 256)      | 256 threads = 2 × 4 warps
//   warp   | 64 × 64           | 2 × (A 64 × 16, B 16 × 64) (registers) | 32 lanes together
//   mma    | 16 × 8, 4 × 8     | A 16 × 16, B 16 × 8                    | the tensor core
//
// Thread map   mma: C row = lane / 4 (+ 8 for registers 2, 3), column = lane % 4 * 2 (+ 1 for registers 1, 3).
//              ldmatrix: lane L gives the address of row L % 8 of matrix L / 8.
// Limits       M a multiple of 128, N of 256, K of 64; compute capability 8.0; 48 KB of shared memory per stage.
// Layouts      PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of A, B and C
#endif
#ifndef STAGES
#define STAGES 3  // tiles in the ring, 2 where the GPU has no room for them: one is multiplied, the others in flight
#endif
#ifndef BLOCK_K
#define BLOCK_K 64  // depth of a K slice: 64 or, as in the stages before, 32
#endif
#ifndef DOUBLE_BUFFER
#define DOUBLE_BUFFER 1  // 1: fragments are loaded one step of k ahead; 0: just before they are multiplied
#endif
#ifndef SERPENTINE
#define SERPENTINE 1  // 1: a step's mma run to and fro over the warp's tile; 0: column by column, each from the top
#endif
#ifndef SWIZZLE
#define SWIZZLE 1  // 1: chunks of the shared tiles permuted by XOR; 0: rows as they come, with conflicts
#endif
#ifndef GROUP_M
#define GROUP_M 12  // block swizzle: rows of tiles that blocks of the same time share; 1: row by row
#endif

using Element = DTYPE;

constexpr int BLOCK_M = 128;  // rows of C per block
constexpr int BLOCK_N = 256;  // columns of C per block
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
constexpr int VECTOR = 16 / sizeof(Element);               // elements in a chunk, one 16-byte copy
constexpr int A_COPY_ROWS = THREADS / (BLOCK_K / VECTOR);  // rows that the block copies at once, a chunk per thread
constexpr int B_COPY_ROWS = THREADS / (BLOCK_N / VECTOR);
constexpr int STEPS = BLOCK_K / MMA_K;  // steps of k per slice

static_assert(STAGES >= 2, "one tile to multiply and one to fill");
static_assert(SWIZZLE == 0 || SWIZZLE == 1, "SWIZZLE is 0 or 1");
static_assert(GROUP_M >= 1, "at least one row of tiles per group");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(BLOCK_M % A_COPY_ROWS == 0 && BLOCK_K % B_COPY_ROWS == 0, "the threads share the tiles evenly");
static_assert(A_COPY_ROWS % 8 == 0 && B_COPY_ROWS % 8 == 0, "the swizzle repeats from copy to copy");
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

template <int RING>  // tiles in the ring
__global__ void __launch_bounds__(THREADS)
    gemm_kernel(const Element *__restrict__ A,  // [M, K]
                const Element *__restrict__ B,  // [K, N]
                Element *__restrict__ C,        // [M, N]
                int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char shared[];
  Tiles *ring = reinterpret_cast<Tiles *>(shared);  // [RING]

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

  // 2. Global -> shared, 16 bytes at a time, in the background: one slice into one stage of the ring. Where a thread's
  // first chunks come from and go to is computed once; the others follow at fixed distances, and the XOR repeats.
  const int slices = K / BLOCK_K;
  const int a_row = thread / (BLOCK_K / VECTOR);
  const int a_col = thread % (BLOCK_K / VECTOR) * VECTOR;
  const int b_row = thread / (BLOCK_N / VECTOR);
  const int b_col = thread % (BLOCK_N / VECTOR) * VECTOR;
  const unsigned a_target = shared_address(&ring->A[a_row][swizzle<BLOCK_K>(a_row, a_col)]);
  const unsigned b_target = shared_address(&ring->B[b_row][swizzle<BLOCK_N>(b_row, b_col)]);
  const char *a_source = reinterpret_cast<const char *>(&A_block[(size_t)a_row * K + a_col]);
  const char *b_source = reinterpret_cast<const char *>(&B_block[(size_t)b_row * N + b_col]);
  const size_t a_step = A_COPY_ROWS * sizeof(Element) * K;  // in bytes, from one chunk of this thread to its next
  const size_t b_step = B_COPY_ROWS * sizeof(Element) * N;
  const auto stage_offset = [](unsigned slice) { return slice % RING * (unsigned)sizeof(Tiles); };
  const auto copy_slice = [&](unsigned stage) {
    const char *a_chunk = a_source;
#pragma unroll
    for (int row = 0; row < BLOCK_M; row += A_COPY_ROWS, a_chunk += a_step) {
      cp_async_16(a_target + stage + row * BLOCK_K * sizeof(Element), a_chunk);
    }
#pragma unroll
    for (int row = 0; row < BLOCK_K; row += B_COPY_ROWS, b_source += b_step) {
      cp_async_16(b_target + stage + row * BLOCK_N * sizeof(Element), b_source);
    }
    a_source += BLOCK_K * sizeof(Element);  // the next slice is to the right of this one in A, and below it in B
  };
#pragma unroll
  for (int stage = 0; stage < RING - 1; ++stage) {
    if (stage < slices) copy_slice(stage_offset(stage));
    cp_async_commit();
  }

  // 3. Shared -> registers: 4 + 4 ldmatrix for a step of k. Where they read in stage 0 of the ring is computed once.
  unsigned a[2][TILES_M][4], b[2][TILES_N][2];  // two sets of fragments, used in turn
  unsigned a_address[STEPS], b_address[TILES_N / 2];
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
    const int row = warp_row + lane % 16;
    const int col = step * MMA_K + lane / 16 * 8;
    a_address[step] = shared_address(&ring->A[row][swizzle<BLOCK_K>(row, col)]);
  }
#pragma unroll
  for (int n = 0; n < TILES_N; n += 2) {  // rows of B are k: .trans puts k along the registers, as mma wants it
    const int row = lane % 16;
    const int col = warp_col + n * MMA_N + lane / 16 * 8;
    b_address[n / 2] = shared_address(&ring->B[row][swizzle<BLOCK_N>(row, col)]);
  }
  const auto load_fragments = [&](int step, unsigned stage) {
    const int set = step % 2;
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      ldmatrix_x4(a[set][m][0], a[set][m][1], a[set][m][2], a[set][m][3],
                  a_address[step] + stage + m * MMA_M * BLOCK_K * sizeof(Element));
    }
#pragma unroll
    for (int n = 0; n < TILES_N; n += 2) {
      ldmatrix_x4_trans(b[set][n][0], b[set][n][1], b[set][n + 1][0], b[set][n + 1][1],
                        b_address[n / 2] + stage + step * MMA_K * BLOCK_N * sizeof(Element));
    }
  };

  // 4. Registers -> tensor cores, a step of k at a time: 32 mma, during which the next step's fragments are loaded.
  unsigned read_stage = stage_offset(0);
  if (DOUBLE_BUFFER) {
    cp_async_wait<RING - 2>();  // each thread waits for its own copies of the first slice,
    __syncthreads();            // then everybody for everybody
    load_fragments(0, read_stage);
  }
  for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int next = (step + DOUBLE_BUFFER) % STEPS;  // the step whose fragments are loaded now
      if (next == 0) {
        cp_async_wait<RING - 2>();  // each thread waits for its own copies of the slice read next, then all for all:
        __syncthreads();            // its tiles are complete, and the slice before it sits in everybody's registers
        read_stage = stage_offset(min(slice + DOUBLE_BUFFER, slices - 1));  // (there is none after the last one)
      }
      if (DOUBLE_BUFFER) load_fragments(next, read_stage);
      if (step == 0) {
        const int ahead = slice + RING - 1;
        if (ahead < slices) copy_slice(stage_offset(ahead));
        cp_async_commit();  // empty groups at the end keep the count right
      }
      if (!DOUBLE_BUFFER) load_fragments(next, read_stage);  // as in stage 09: after the copies
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
          const int m = SERPENTINE && n % 2 ? TILES_M - 1 - i : i;  // to and fro: neighbours in time share a fragment
          mma_m16n8k16<Element>(acc[m][n], a[step % 2][m], b[step % 2][n]);
        }
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
  const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));
  int device, shared_limit;  // shared_limit: bytes that a block may use
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status != cudaSuccess) return status;
  const bool fits = STAGES * (int)sizeof(Tiles) <= shared_limit;
  const auto kernel = fits ? gemm_kernel<STAGES> : gemm_kernel<2>;
  const int shared_bytes = (fits ? STAGES : 2) * sizeof(Tiles);  // more than 48 KB must be asked for
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  kernel<<<grid, THREADS, shared_bytes, stream>>>(A, B, C, M, N, K);
  return cudaGetLastError();
}
