// Stage 11 · any shape: the matrix product that a program would call.
//
// Problem   C[M, N] = A[M, K] · B[K, N], row-major (B_TRANSPOSED: B is given as [N, K]); fp32 accumulation.
// Idea      The main loop of stage 10, for any M and N. Where a tile or a slice reaches over an edge, copies write
//           zeros in place of what is not there, which add nothing to a sum, and stores leave out what is not C.
//           Whole tiles and cut ones have kernels of their own, so that whole tiles pay nothing for this. Problems
//           with too few tiles to occupy the multiprocessors get smaller ones. Slices are twice as deep. Four lanes
//           exchange their pairs of C, so that it leaves in whole 16-byte chunks. fp32 runs as TF32.
//
//   level  | tile of C (M × N) | tiles of A, B per K slice              | who
//   -------+-------------------+----------------------------------------+----------------------------
//   block  | 128 × 256         | STAGES × (A 128 × 64, B 64 × 256)      | 256 threads = 2 × 4 warps
//    small | 128 × 64          | STAGES + 1 × (A 128 × 64, B 64 × 64)   | 128 threads = 2 × 2 warps
//   warp   | 64 × 64           | 2 × (A 64 × 16, B 16 × 64) (registers) | 32 lanes together
//    small | 64 × 32           | 2 × (A 64 × 16, B 16 × 32) (registers) | 32 lanes together
//   mma    | 16 × 8, 4 × 8 (4) | A 16 × 16, B 16 × 8                    | the tensor core
//          (TF32: half as many elements along K, in as many bytes; mma.m16n8k8.)
//
// Thread map   mma: C row = lane / 4 (+ 8 for registers 2, 3), column = lane % 4 * 2 (+ 1 for registers 1, 3).
//              ldmatrix: lane L gives the address of row L % 8 of matrix L / 8.
// Limits       any M, N; K a multiple of 8; compute capability 8.0; 48 KB of shared memory per stage.
// Layouts      PTX ISA, "Matrix fragments for mma.m16n8k16", "... for mma.m16n8k8" and "ldmatrix".

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16 | float (as TF32): the elements of A, B and C
#endif
#ifndef STAGES
#define STAGES 3  // tiles in the ring: one more for the smaller tile, 2 where the GPU has no room for them
#endif
#ifndef SLICE_BYTES
#define SLICE_BYTES 128  // depth of a K slice in bytes: 128, or 64 as in stage 10
#endif
#ifndef B_TRANSPOSED
#define B_TRANSPOSED 0  // 0: B is given as [K, N] ("NN"); 1: as [N, K] ("TN")
#endif
#ifndef TILE_N
#define TILE_N 0  // columns of C per block, 64 or 256; 0: whichever suits the problem and the GPU
#endif
#ifndef SWIZZLE
#define SWIZZLE 1  // 1: chunks of the shared tiles permuted by XOR; 0: rows as they come, with conflicts
#endif
#ifndef GROUP_M
#define GROUP_M 12  // block swizzle: rows of tiles that concurrent blocks share; 1: row by row
#endif

using Element = DTYPE;

constexpr bool TF32 = sizeof(Element) == 4;
constexpr int BLOCK_M = 128;                            // rows of C per block
constexpr int BLOCK_K = SLICE_BYTES / sizeof(Element);  // depth of a K slice
constexpr int WARP_M = 64;                              // rows of C per warp
constexpr int MMA_M = 16;                               // rows of C per tensor instruction
constexpr int MMA_N = 8;                                // columns of C per tensor instruction
constexpr int MMA_K = 32 / sizeof(Element);             // depth of a tensor instruction

constexpr int WARPS_M = BLOCK_M / WARP_M;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int VECTOR = 16 / sizeof(Element);  // elements in a chunk, one 16-byte copy
constexpr int STEPS = BLOCK_K / MMA_K;        // steps of k per slice
// The XOR of a row of B: TF32's 32-bit reads touch 2 chunks of each of 4 rows, so there the key is twice the row.
constexpr int B_KEY_PER_ROW = TF32 && !B_TRANSPOSED ? 2 : 1;

static_assert(STAGES >= 2, "one tile to multiply and one to fill");
static_assert(SWIZZLE == 0 || SWIZZLE == 1, "SWIZZLE is 0 or 1");
static_assert(GROUP_M >= 1, "at least one row of tiles per group");
static_assert(TILE_N == 0 || TILE_N == 64 || TILE_N == 256, "there are tiles of 64 and of 256 columns");
static_assert(STEPS % 2 == 0, "the two sets of fragments take turns across slices, too");

struct alignas(2 * sizeof(Element)) Pair { Element element[2]; };  // neighbours in a row of C, held by one lane

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

// The same for a chunk that may lie outside the matrix: then nothing is read, and 16 bytes of zeros are written.
__device__ __forceinline__ void cp_async_16_or_zeros(unsigned shared, const void *global, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(inside ? 16 : 0) : "memory");
}

// 4 bytes from shared memory, whatever they mean.
__device__ __forceinline__ unsigned load_shared(unsigned address) {
  unsigned x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

// 16 bytes to shared memory.
__device__ __forceinline__ void store_shared(unsigned address, const uint4 &x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w) : "memory");
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

// D[16, 8] += A[16, 8] · B[8, 8], TF32 elements, fp32 accumulation.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// fp32 to TF32, to nearest: half a unit is added, and the tensor core cuts the last 13 bits off. The maximum keeps the
// NaN of the GPU's arithmetic, 0x7fffffff, to which an addition would give a sign. Both are one instruction on 9.0.
__device__ __forceinline__ unsigned round_to_tf32(unsigned x) {
  unsigned y;
  asm("{ .reg .s32 sum; add.s32 sum, %1, 0x1000; max.s32 %0, sum, %1; }" : "=r"(y) : "r"(x));
  return y;
}

template <int BLOCK_N>
struct TilesOf {  // one stage of the ring: row-major, written and read by the whole block
  static constexpr int B_ROWS = B_TRANSPOSED ? BLOCK_N : BLOCK_K;
  static constexpr int B_COLS = B_TRANSPOSED ? BLOCK_K : BLOCK_N;
  alignas(128) Element A[BLOCK_M][BLOCK_K];
  alignas(128) Element B[B_ROWS][B_COLS];
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

// What a kernel has to expect: no tile or slice is cut; some are; some are, and rows of C, or of B, start anywhere.
constexpr int WHOLE = 0, CUT = 1, ANYWHERE = 2;

// BLOCK_N, WARP_N: columns of C per block and per warp. RING: tiles in the ring. EDGES: WHOLE, CUT or ANYWHERE.
template <int BLOCK_N, int WARP_N, int RING, int EDGES>
__global__ void __launch_bounds__(WARPS_M *BLOCK_N / WARP_N * 32)
    gemm_kernel(const Element *__restrict__ A,  // [M, K]
                const Element *__restrict__ B,  // [K, N], or [N, K] if B_TRANSPOSED
                Element *__restrict__ C,        // [M, N]
                int M, int N, int K) {
  using Tiles = TilesOf<BLOCK_N>;
  constexpr int WARPS_N = BLOCK_N / WARP_N;
  constexpr int THREADS = WARPS_M * WARPS_N * 32;
  constexpr int TILES_N = WARP_N / MMA_N;
  constexpr int A_COPY_ROWS = THREADS / (BLOCK_K / VECTOR);  // rows that the block copies at once, a chunk per thread
  constexpr int B_COPY_ROWS = THREADS / (Tiles::B_COLS / VECTOR);
  static_assert(BLOCK_M % A_COPY_ROWS == 0 && Tiles::B_ROWS % B_COPY_ROWS == 0, "the threads share the tiles evenly");
  static_assert(A_COPY_ROWS % 8 == 0 && B_COPY_ROWS * B_KEY_PER_ROW % 8 == 0, "the swizzle repeats from copy to copy");
  static_assert(TILES_N % 4 == 0, "the epilogue exchanges four tiles within a quad");
  extern __shared__ __align__(128) unsigned char shared[];
  Tiles *ring = reinterpret_cast<Tiles *>(shared);  // [RING]

  // 1. Which tile of C is mine? Blocks walk down GROUP_M rows of tiles before they step to the right, and to the left
  // in every other group: a group begins with the columns of B that the one before it ended with.
  const int tiles_m = ceil_div(M, BLOCK_M);
  const int tiles_n = ceil_div(N, BLOCK_N);
  const int group = blockIdx.x / (GROUP_M * tiles_n);
  const int in_group = blockIdx.x % (GROUP_M * tiles_n);
  const int group_rows = min(GROUP_M, tiles_m - group * GROUP_M);  // the last group may be lower
  const int tile_m = group * GROUP_M + in_group % group_rows;
  const int tile_n = group % 2 ? tiles_n - 1 - in_group / group_rows : in_group / group_rows;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int warp_row = warp / WARPS_N * WARP_M;  // of this warp's outputs, within the block's tile
  const int warp_col = warp % WARPS_N * WARP_N;

  const Element *A_block = A + (size_t)tile_m * BLOCK_M * K;
  const Element *B_block = B + (size_t)tile_n * BLOCK_N * (B_TRANSPOSED ? K : 1);
  const int rows_left = M - tile_m * BLOCK_M;  // of C, from this tile's first one on
  const int cols_left = N - tile_n * BLOCK_N;

  float acc[TILES_M][TILES_N][4] = {};  // WARP_M × WARP_N of C per warp, in mma's layout

  // 2. Global -> shared, 16 bytes at a time, in the background: one slice into one stage of the ring. A thread's first
  // chunk has its addresses computed once; the others are at fixed distances, at which the XOR repeats. The loop keeps
  // sums instead of products and remainders.
  const int slices = ceil_div(K, BLOCK_K);
  const int b_pitch = B_TRANSPOSED ? K : N;
  const int a_row = thread / (BLOCK_K / VECTOR), a_col = thread % (BLOCK_K / VECTOR) * VECTOR;
  const int b_row = thread / (Tiles::B_COLS / VECTOR), b_col = thread % (Tiles::B_COLS / VECTOR) * VECTOR;
  const unsigned a_target = shared_address(&ring->A[a_row][swizzle<BLOCK_K>(a_row, a_col)]);
  const unsigned b_target = shared_address(&ring->B[b_row][swizzle<Tiles::B_COLS>(b_row * B_KEY_PER_ROW, b_col)]);
  const char *a_source = reinterpret_cast<const char *>(&A_block[(size_t)a_row * K + a_col]);
  const char *b_source = reinterpret_cast<const char *>(&B_block[(size_t)b_row * b_pitch + b_col]);
  const size_t a_step = A_COPY_ROWS * sizeof(Element) * K;  // in bytes, from one chunk of this thread to its next
  const size_t b_step = B_COPY_ROWS * sizeof(Element) * b_pitch;
  const auto copy_slice = [&](int slice, unsigned offset) {
    const char *a_chunk = a_source;
    const char *b_chunk = b_source;
    const int k_left = K - slice * BLOCK_K;
    const int b_rows = B_TRANSPOSED ? cols_left : k_left;
    const int b_cols = B_TRANSPOSED ? k_left : cols_left;
#pragma unroll
    for (int row = 0; row < BLOCK_M; row += A_COPY_ROWS, a_chunk += a_step) {
      const unsigned target = a_target + offset + row * BLOCK_K * sizeof(Element);
      if constexpr (EDGES == WHOLE)
        cp_async_16(target, a_chunk);
      else
        cp_async_16_or_zeros(target, a_chunk, a_row + row < rows_left && a_col < k_left);
    }
#pragma unroll
    for (int row = 0; row < Tiles::B_ROWS; row += B_COPY_ROWS, b_chunk += b_step) {
      const unsigned target = b_target + offset + row * Tiles::B_COLS * sizeof(Element);
      if constexpr (EDGES == WHOLE) {
        cp_async_16(target, b_chunk);
      } else if constexpr (EDGES == CUT || B_TRANSPOSED) {
        cp_async_16_or_zeros(target, b_chunk, b_row + row < b_rows && b_col < b_cols);
      } else {  // rows of B that start anywhere: element by element, through registers
        Element chunk[VECTOR];
        for (int v = 0; v < VECTOR; ++v) {
          const bool inside = b_row + row < b_rows && b_col + v < b_cols;
          chunk[v] = inside ? reinterpret_cast<const Element *>(b_chunk)[v] : Element(0.0f);
        }
        uint4 words;
        memcpy(&words, chunk, sizeof(words));
        store_shared(target, words);
      }
    }
    a_source += BLOCK_K * sizeof(Element);  // the next slice: to the right in A, further down in B
    b_source = B_TRANSPOSED ? b_source + BLOCK_K * sizeof(Element) : b_chunk;
  };
#pragma unroll(EDGES == WHOLE ? RING - 1 : 1)
  for (int stage = 0; stage < RING - 1; ++stage) {
    if (stage < slices) copy_slice(stage, stage * sizeof(Tiles));
    cp_async_commit();
  }

  // 3. Shared -> registers: the fragments of a step of k.
  unsigned a[2][TILES_M][4], b[2][TILES_N][2];  // two sets, used in turn
  const auto load_fragments = [&](int step, unsigned offset) {
    const int set = step % 2;
    const int row = lane % 16;  // 16 rows further the XOR is the same
    const int a_col = step * MMA_K + lane / 16 * VECTOR;
    const unsigned a_address = shared_address(&ring->A[warp_row + row][swizzle<BLOCK_K>(row, a_col)]) + offset;
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {  // matrices: rows 0-7 | 8-15 of chunk 0, then of chunk 1
      ldmatrix_x4(a[set][m][0], a[set][m][1], a[set][m][2], a[set][m][3],
                  a_address + m * MMA_M * BLOCK_K * sizeof(Element));
    }
#pragma unroll
    for (int n = 0; n < TILES_N; n += 2) {
      if constexpr (B_TRANSPOSED) {  // rows of B are columns of C. Matrices: chunk 0 | 1 of rows 0-7, then of rows 8-15
        const int b_row = lane / 16 * 8 + lane % 8;
        const int b_col = step * MMA_K + lane / 8 % 2 * VECTOR;
        const unsigned b_address = shared_address(&ring->B[warp_col + b_row][swizzle<BLOCK_K>(b_row, b_col)]) + offset;
        ldmatrix_x4(b[set][n][0], b[set][n][1], b[set][n + 1][0], b[set][n + 1][1],
                    b_address + n * MMA_N * BLOCK_K * sizeof(Element));
      } else if constexpr (!TF32) {  // rows of B are k: .trans puts k along the registers, as mma wants it
        const int b_col = warp_col + n * MMA_N + lane / 16 * 8;
        const unsigned b_address = shared_address(&ring->B[row][swizzle<BLOCK_N>(row, b_col)]) + offset;
        ldmatrix_x4_trans(b[set][n][0], b[set][n][1], b[set][n + 1][0], b[set][n + 1][1],
                          b_address + step * MMA_K * BLOCK_N * sizeof(Element));
      } else {  // .trans moves 16-bit elements, these have 32: one by one, k = lane % 4 (+ 4), column = lane / 4
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // two registers each of two tiles; the XOR repeats every four tiles
          const int tile = n + i / 2;
          const int b_row = lane % 4;
          const int b_col = warp_col + tile % 4 * MMA_N + lane / 4;
          const unsigned b_address =
              shared_address(&ring->B[b_row][swizzle<BLOCK_N>(b_row * B_KEY_PER_ROW, b_col)]) + offset;
          const int further = (step * MMA_K + i % 2 * 4) * BLOCK_N + tile / 4 * 4 * MMA_N;
          b[set][tile][i % 2] = load_shared(b_address + further * sizeof(Element));
        }
      }
    }
    if constexpr (TF32) {
#pragma unroll
      for (int m = 0; m < TILES_M; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[set][m][i] = round_to_tf32(a[set][m][i]);
      }
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) b[set][n][i] = round_to_tf32(b[set][n][i]);
      }
    }
  };

  // 4. Registers -> tensor cores, a step of k at a time: its mma, during which the next step's fragments are loaded.
  unsigned read_offset = 0, write_offset = (RING - 1) * sizeof(Tiles);  // of the tiles that are read, of those written
  const unsigned ring_end = min(slices, RING) * (unsigned)sizeof(Tiles);
  const auto next_offset = [&](unsigned offset) {
    offset += sizeof(Tiles);
    return offset == ring_end ? 0 : offset;
  };
  cp_async_wait<RING - 2>();  // each thread waits for its own copies of the first slice,
  __syncthreads();            // then everybody for everybody
  load_fragments(0, read_offset);
  for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int next = (step + 1) % STEPS;
      if (next == 0) {
        cp_async_wait<RING - 2>();  // each thread waits for its own copies of the next slice, then all for all:
        __syncthreads();            // its tiles are complete, and nobody reads the tiles of this slice any more
        read_offset = next_offset(read_offset);  // after the last slice: any complete tiles, nobody uses them
      }
      load_fragments(next, read_offset);
      if (step == 0) {
        const int ahead = slice + RING - 1;
        if (ahead < slices) copy_slice(ahead, write_offset);
        cp_async_commit();  // empty groups at the end keep the count right
        write_offset = next_offset(write_offset);
      }
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
          const int m = n % 2 ? TILES_M - 1 - i : i;  // to and fro: neighbours in time share a fragment
          if constexpr (TF32)
            mma_m16n8k8_tf32(acc[m][n], a[step % 2][m], b[step % 2][n]);
          else
            mma_m16n8k16<Element>(acc[m][n], a[step % 2][m], b[step % 2][n]);
        }
      }
    }
  }

  // 5. Round once, at the end, and store what is C: whole chunks, or elements where its rows start anywhere.
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {  // rows 0-7, rows 8-15 of the mma tile
      const int row = tile_m * BLOCK_M + warp_row + m * MMA_M + half_tile * 8 + lane / 4;
      Pair pair[TILES_N];
#pragma unroll
      for (int n = 0; n < TILES_N; ++n) {
        pair[n] = {{Element(acc[m][n][half_tile * 2]), Element(acc[m][n][half_tile * 2 + 1])}};
      }
      const int col = tile_n * BLOCK_N + warp_col;
      const auto inside = [&](int r, int c) { return EDGES == WHOLE || (r < M && c < N); };  // all or none of a chunk
      if constexpr (EDGES == ANYWHERE) {
        for (int n = 0; n < TILES_N; ++n) {
          for (int i = 0; i < 2; ++i) {
            const int pair_col = col + n * MMA_N + lane % 4 * 2;
            if (inside(row, pair_col + i)) C[(size_t)row * N + pair_col + i] = pair[n].element[i];
          }
        }
      } else if constexpr (TF32) {  // a quad's four pairs of fp32 fill a 32-byte sector as they are
#pragma unroll
        for (int n = 0; n < TILES_N; ++n) {
          if (!inside(row, col + n * MMA_N + lane % 4 * 2)) continue;
          *reinterpret_cast<Pair *>(&C[(size_t)row * N + col + n * MMA_N + lane % 4 * 2]) = pair[n];
        }
      } else {
#pragma unroll
        for (int n = 0; n < TILES_N; n += 4) {
          // Four lanes hold four pairs of each of four tiles: a transpose in two rounds gives each lane a whole row.
          unsigned word[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) memcpy(&word[i], &pair[n + i], sizeof(Pair));
#pragma unroll
          for (int bit = 1; bit <= 2; bit *= 2) {  // word i | bit of the lane without the bit <-> word i of its partner
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (i & bit) continue;
              const bool upper = lane & bit;
              const unsigned other = __shfl_xor_sync(~0u, upper ? word[i] : word[i | bit], bit);
              (upper ? word[i] : word[i | bit]) = other;
            }
          }
          if (!inside(row, col + (n + lane % 4) * MMA_N)) continue;
          *reinterpret_cast<uint4 *>(&C[(size_t)row * N + col + (n + lane % 4) * MMA_N]) =
              make_uint4(word[0], word[1], word[2], word[3]);
        }
      }
    }
  }
}

template <int BLOCK_N, int WARP_N, int RING>
cudaError_t launch_tiles(const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));
  const dim3 block(WARPS_M * BLOCK_N / WARP_N * 32);
  const bool cut = M % BLOCK_M || N % BLOCK_N || K % BLOCK_K;
  const auto kernel =
      N % VECTOR ? gemm_kernel<BLOCK_N, WARP_N, RING, ANYWHERE>
      : cut      ? gemm_kernel<BLOCK_N, WARP_N, RING, CUT>
                 : gemm_kernel<BLOCK_N, WARP_N, RING, WHOLE>;
  const int shared_bytes = RING * sizeof(TilesOf<BLOCK_N>);  // more than 48 KB must be asked for
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  kernel<<<grid, block, shared_bytes, stream>>>(A, B, C, M, N, K);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_gemm(
    const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  constexpr int LARGEST = 0x7fffff00;  // tiles that reach over an edge must not leave what an int can count
  if (M < 1 || N < 1 || K < 1 || M > LARGEST || N > LARGEST || K > LARGEST) return cudaErrorInvalidValue;
  if (!A || !B || !C || K % 8 || ((size_t)A | (size_t)B | (size_t)C) % 16) return cudaErrorInvalidValue;
  int device, multiprocessors, shared_limit;  // shared_limit: bytes that a block may use
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status != cudaSuccess) return status;
  // Large tiles move fewer bytes per multiplication, if there are enough of them to occupy the multiprocessors.
  const long long large_tiles = (long long)ceil_div(M, BLOCK_M) * ceil_div(N, 256);
  const bool large = TILE_N ? TILE_N == 256 : N > 128 && large_tiles * 4 >= multiprocessors * 3;
  if constexpr (TILE_N != 256) {  // a variant that has one tile compiles no other
    if (!large) return launch_tiles<64, 32, STAGES + 1>(A, B, C, M, N, K, stream);
  }
  if constexpr (TILE_N != 64) {
    if (STAGES * (int)sizeof(TilesOf<256>) > shared_limit) return launch_tiles<256, 64, 2>(A, B, C, M, N, K, stream);
    return launch_tiles<256, 64, STAGES>(A, B, C, M, N, K, stream);
  }
  return cudaErrorInvalidValue;
}
