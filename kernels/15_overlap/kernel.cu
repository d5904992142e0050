// Stage 15 · overlap: 32 queries per warp, and everything that can be under way is.
//
// Problem   O = softmax(Q · Kᵀ · scale) · V for each of B · H heads; Q, K, V, O are [B, H, N, HEAD_DIM], row-major;
//           16-bit DTYPE in and out, fp32 accumulation and softmax.
// Idea      A warp with 32 queries reads each key and each value half as often as one with 16: shared memory no longer
//           binds. Its registers leave room for two warps per scheduler only, so nothing may wait for anything: each
//           product runs in 16 steps, and in each step the fragments of the next one are loaded and a part of a later
//           tile is copied; there is one barrier per tile of keys; and O is corrected only where a maximum has grown by
//           more than a factor of 2^8 in the weights, which nearly never happens after the first tiles.
//
//   level  | S = Q · Kᵀ (queries × keys)   | O += P · V (queries × columns)      | who
//   -------+-------------------------------+-------------------------------------+-----------------------
//   block  | 128 × 64                      | 128 × HEAD_DIM                      | 128 threads = 4 warps
//   warp   | 32 × 64: its queries          | 32 × HEAD_DIM: its queries          | 32 lanes together
//   mma    | 16 × 8, 2 × 8                 | 16 × 8, 2 × HEAD_DIM / 8            | the tensor core
//
// Thread map   mma: row = lane / 4 (+ 8 for registers 2, 3), column = lane % 4 * 2 (+ 1 for registers 1, 3): a row lies
//              in a quad of lanes, and a lane's rows of S are its rows of O.
//              ldmatrix: lane L gives the address of row L % 8 of matrix L / 8.
// Limits       N a multiple of 128; HEAD_DIM 64 or 128; scale > 0; compute capability 8.0; 96 KB of shared memory
//              (48 KB for HEAD_DIM 64).
// Layouts      PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of Q, K, V and O
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128  // elements of a query, a key, a value: 64 or 128
#endif
#ifndef WARP_Q
#define WARP_Q 32  // queries per warp, for which it has all keys and all columns of O: 16 or 32
#endif
#ifndef FRAGMENTS_AHEAD
#define FRAGMENTS_AHEAD 1  // 1: each step of a product loads the fragments of the next one; 0: its own
#endif
#ifndef SPREAD_COPIES
#define SPREAD_COPIES 1  // 1: tiles of 128 columns are copied in parts, with the steps of a product; 0: before them
#endif
#ifndef LAZY_RESCALE
#define LAZY_RESCALE 1  // 1: O and l are corrected only when a maximum has grown by more than 8; 0: for every tile
#endif

using Element = DTYPE;

constexpr int WARPS = 4;      // per block
constexpr int BLOCK_KV = 64;  // keys, and their values, per tile
constexpr int STEPS = 16;     // of each product
constexpr int MMA_M = 16;     // rows of S or O per tensor instruction
constexpr int MMA_N = 8;      // columns of S or O per tensor instruction
constexpr int MMA_K = 16;     // depth of a tensor instruction

constexpr int THREADS = WARPS * 32;
constexpr int BLOCK_Q = WARPS * WARP_Q;                                           // queries per block
constexpr int BLOCKS_PER_SM = (WARP_Q == 16 ? 3 : 2) + (HEAD_DIM == 64 ? 1 : 0);  // the registers must last for so many
constexpr int TILES_Q = WARP_Q / MMA_M;
constexpr int TILES_KV = BLOCK_KV / MMA_N;
constexpr int TILES_D = HEAD_DIM / MMA_N;
constexpr int PAIRS = HEAD_DIM / 64;           // of tiles of K or V in a step: one ldmatrix.x4 brings a pair
constexpr int K_STEPS = TILES_KV / 2 / PAIRS;  // steps that share a fragment of Q
constexpr int V_STEPS = TILES_D / 2 / PAIRS;   // steps that share a fragment of P
constexpr int ROW_BYTES = HEAD_DIM * 2;
constexpr bool SPREAD = SPREAD_COPIES && HEAD_DIM == 128;  // half as many bytes are copied faster at once
constexpr int VECTOR = 16 / sizeof(Element);               // elements in a chunk, one 16-byte copy

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(WARP_Q == 16 || WARP_Q == 32, "more queries than 32 do not fit into the registers of a warp");
static_assert(HEAD_DIM / MMA_K * K_STEPS == STEPS, "the first product has 16 steps");
static_assert(BLOCK_KV / MMA_K * V_STEPS == STEPS, "the second product has 16 steps");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(WARP_Q % MMA_M == 0 && BLOCK_KV % MMA_K == 0 && HEAD_DIM % MMA_K == 0, "tensor tiles must fit evenly");
static_assert(TILES_KV % 2 == 0 && TILES_D % 2 == 0, "one ldmatrix.x4 brings two tiles of K or V");

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

// Two numbers rounded to 16 bits, side by side in a register: the first in its lower half.
template <typename T>
__device__ unsigned round_pair(float first, float second);

template <>
__device__ __forceinline__ unsigned round_pair<half>(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

template <>
__device__ __forceinline__ unsigned round_pair<__nv_bfloat16>(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

// 2^x, nearly: 22 bits of it are right; 2^-inf = 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// The largest, and the sum, over the four lanes that hold a row of an accumulator tile.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

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

// Global -> shared, in the background: ROWS whole rows, chunk by chunk. Rows 8 apart are swizzled alike, so each thread
// computes two addresses, and its copies differ by constants.
template <int ROWS>
__device__ __forceinline__ void copy_rows(Element (&tile)[ROWS][HEAD_DIM], const Element *source) {
  constexpr int CHUNKS = HEAD_DIM / VECTOR;  // in a row
  constexpr int STEP = THREADS / CHUNKS;     // rows that the block copies at a time
  static_assert(ROWS % STEP == 0 && STEP % 8 == 0, "the threads share the tile evenly, in steps of 8 rows");
  const int row = threadIdx.x / CHUNKS;
  const int col = threadIdx.x % CHUNKS * VECTOR;
  const unsigned target = shared_address(&tile[row][swizzle<HEAD_DIM>(row, col)]);
  source += row * HEAD_DIM + col;
#pragma unroll
  for (int first = 0; first < ROWS; first += STEP) {
    cp_async_16(target + first * HEAD_DIM * sizeof(Element), source + first * HEAD_DIM);
  }
}

struct Shared {  // row-major, in swizzled chunks; written and read by the whole block
  alignas(128) Element Q[BLOCK_Q][HEAD_DIM];
  alignas(128) Element K[2][BLOCK_KV][HEAD_DIM];  // the tile that is read, and the one that arrives
  alignas(128) Element V[2][BLOCK_KV][HEAD_DIM];
};

// The address col columns further on in the same row, col a multiple of 16: within a line of 128 bytes the XOR of the
// swizzle and that of the step commute.
__device__ __forceinline__ unsigned columns_on(unsigned address, int col) {
  return (address ^ col % 64 * 2) + col / 64 * 128;
}

__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) attention_kernel(
    const Element *__restrict__ Q,  // [B · H, N, HEAD_DIM]
    const Element *__restrict__ K,  // [B · H, N, HEAD_DIM]
    const Element *__restrict__ V,  // [B · H, N, HEAD_DIM]
    Element *__restrict__ O,        // [B · H, N, HEAD_DIM]
    int N, float scale_log2) {      // scale · log₂e
  extern __shared__ __align__(128) unsigned char shared[];
  Shared &tiles = *reinterpret_cast<Shared *>(shared);

  // 1. Which queries are mine? Neighbouring blocks share a head: they find its K and V in L2.
  const size_t block_start = (size_t)blockIdx.x * BLOCK_Q * HEAD_DIM;
  const size_t head_start = (size_t)(blockIdx.x / (N / BLOCK_Q)) * N * HEAD_DIM;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int warp_row = warp * WARP_Q;  // of this warp's queries, within the block's

  // 2. Global -> shared, in the background, a part of a tile at a time. Rows 8 apart are swizzled alike.
  constexpr int TILE_BYTES = BLOCK_KV * ROW_BYTES;
  constexpr int COPY_ROWS = THREADS / (HEAD_DIM / VECTOR);  // rows that the block copies at a time
  constexpr int PARTS = BLOCK_KV / COPY_ROWS;
  const int copy_row = threadIdx.x / (HEAD_DIM / VECTOR);
  const int copy_col = threadIdx.x % (HEAD_DIM / VECTOR) * VECTOR;
  const unsigned k_target = shared_address(&tiles.K[0][copy_row][swizzle<HEAD_DIM>(copy_row, copy_col)]);
  const unsigned v_target = shared_address(&tiles.V[0][copy_row][swizzle<HEAD_DIM>(copy_row, copy_col)]);
  const Element *k_source = K + head_start + copy_row * HEAD_DIM + copy_col;  // of the tile that is copied next
  const Element *v_source = V + head_start + copy_row * HEAD_DIM + copy_col;
  const int kv_tiles = N / BLOCK_KV;
  const auto copy_part = [&](int part, unsigned target, const Element *source) {
    cp_async_16(target + part * COPY_ROWS * ROW_BYTES, source + part * COPY_ROWS * HEAD_DIM);
  };
  const auto copy_with_step = [&](int step, unsigned target, const Element *source) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      if (step == part * STEPS / PARTS) copy_part(part, target, source);
    }
  };
  const auto copy_at_once = [&](unsigned target, const Element *source) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) copy_part(part, target, source);
  };
  copy_rows(tiles.Q, Q + block_start);
  copy_at_once(k_target, k_source);
  cp_async_commit();
  if (kv_tiles > 1) copy_at_once(k_target + TILE_BYTES, k_source + BLOCK_KV * HEAD_DIM);
  copy_at_once(v_target, v_source);
  cp_async_commit();
  k_source += 2 * BLOCK_KV * HEAD_DIM;
  v_source += BLOCK_KV * HEAD_DIM;

  // Where this lane's rows of ldmatrix begin, in column 0 of the first tile.
  const int q_row = warp_row + lane % 16, q_col = lane / 16 * 8;         // rows 0-7 | 8-15 of chunk 0, then of chunk 1
  const int k_row = lane / 16 * 8 + lane % 8, k_col = lane / 8 % 2 * 8;  // chunk 0 | 1 of keys 0-7, then of keys 8-15
  const int v_row = lane % 16, v_col = lane / 16 * 8;                    // keys 0-7 | 8-15 of chunk 0, then of chunk 1
  const unsigned q_address = shared_address(&tiles.Q[q_row][swizzle<HEAD_DIM>(q_row, q_col)]);
  const unsigned k_address = shared_address(&tiles.K[0][k_row][swizzle<HEAD_DIM>(k_row, k_col)]);
  const unsigned v_address = shared_address(&tiles.V[0][v_row][swizzle<HEAD_DIM>(v_row, v_col)]);

  float o[TILES_Q][TILES_D][4] = {};         // 32 × HEAD_DIM of O per warp, in mma's layout
  float s[TILES_Q][TILES_KV][4];             // 32 × 64 of S per warp, likewise
  unsigned p[TILES_Q][BLOCK_KV / MMA_K][4];  // 32 × 64 of P per warp, as mma wants its first operand
  float row_max[TILES_Q][2];                 // m of this lane's rows, 0-7 and 8-15 of each mma tile, or up to 8 less
  float row_sum[TILES_Q][2] = {};            // l of these rows, but only the keys that this lane has seen
#pragma unroll
  for (int m = 0; m < TILES_Q; ++m) row_max[m][0] = row_max[m][1] = -INFINITY;

  // 3. S = Q · Kᵀ: this warp's queries, all keys of a tile, while the tile after the next is copied.
  const auto compute_scores = [&](unsigned stage, unsigned next_stage, bool copies) {
    const unsigned k_tile = k_address + stage;
    unsigned q[2][TILES_Q][4], k[2][2 * PAIRS][2];  // fragments, of two steps in turn
    const auto load_fragments = [&](int step) {
      const int d = step / K_STEPS * MMA_K;
      if (step % K_STEPS == 0) {
#pragma unroll
        for (int m = 0; m < TILES_Q; ++m) {
          unsigned (&fragment)[4] = q[step / K_STEPS % 2][m];
          ldmatrix_x4(fragment[0], fragment[1], fragment[2], fragment[3],
                      columns_on(q_address, d) + m * MMA_M * ROW_BYTES);
        }
      }
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {
        unsigned (&fragment)[2][2] = reinterpret_cast<unsigned (&)[2][2]>(k[step % 2][2 * pair]);
        const int n = (step % K_STEPS * PAIRS + pair) * 2;
        ldmatrix_x4(fragment[0][0], fragment[0][1], fragment[1][0], fragment[1][1],
                    columns_on(k_tile, d) + n * MMA_N * ROW_BYTES);
      }
    };
#pragma unroll
    for (int m = 0; m < TILES_Q; ++m) {
#pragma unroll
      for (int n = 0; n < TILES_KV; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
    }
    if (FRAGMENTS_AHEAD) load_fragments(0);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (step + FRAGMENTS_AHEAD < STEPS) load_fragments(step + FRAGMENTS_AHEAD);
      if (SPREAD && copies) copy_with_step(step, k_target + next_stage, k_source);
#pragma unroll
      for (int tile_of_step = 0; tile_of_step < 2 * PAIRS; ++tile_of_step) {
        const int n = step % K_STEPS * PAIRS * 2 + tile_of_step;
#pragma unroll
        for (int i = 0; i < TILES_Q; ++i) {
          const int m = n % 2 ? TILES_Q - 1 - i : i;  // to and fro: neighbours in time share a fragment
          mma_m16n8k16<Element>(s[m][n], q[step / K_STEPS % 2][m], k[step % 2][tile_of_step]);
        }
      }
    }
  };

  // 4. Online softmax, of rows that lie in a quad. Any number that is no more than 8 below a row's maximum serves as m:
  // the weights stay below 2^8, and m cancels in O / l.
  const auto softmax = [&]() {
    float largest[TILES_Q][2];  // of the scores that this lane holds
    bool grown = false;
#pragma unroll
    for (int m = 0; m < TILES_Q; ++m) {
#pragma unroll
      for (int half_tile = 0; half_tile < 2; ++half_tile) {
        largest[m][half_tile] = s[m][0][half_tile * 2];
#pragma unroll
        for (int n = 0; n < TILES_KV; ++n) {
          largest[m][half_tile] =
              fmaxf(largest[m][half_tile], fmaxf(s[m][n][half_tile * 2], s[m][n][half_tile * 2 + 1]));
        }
        // Scaled and rounded like each score below, and __fmul_rn keeps the compiler from making an FMA of that: so
        // the largest weight is 1, also of scores of 10^4, whose product with the scale is rounded by 2^-11.
        largest[m][half_tile] *= scale_log2;
        grown |= largest[m][half_tile] > row_max[m][half_tile] + 8;
      }
    }
    if (!LAZY_RESCALE || __any_sync(~0u, grown)) {
#pragma unroll
      for (int m = 0; m < TILES_Q; ++m) {
#pragma unroll
        for (int half_tile = 0; half_tile < 2; ++half_tile) {
          const float new_max = fmaxf(row_max[m][half_tile], quad_max(largest[m][half_tile]));
          const float correction = exp2_approx(row_max[m][half_tile] - new_max);  // at first 2^-inf = 0
          row_max[m][half_tile] = new_max;
          row_sum[m][half_tile] *= correction;
#pragma unroll
          for (int n = 0; n < TILES_D; ++n) {
#pragma unroll
            for (int i = half_tile * 2; i < half_tile * 2 + 2; ++i) o[m][n][i] *= correction;
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < TILES_Q; ++m) {
#pragma unroll
      for (int n = 0; n < TILES_KV; ++n) {
#pragma unroll
        for (int half_tile = 0; half_tile < 2; ++half_tile) {
          const float max = row_max[m][half_tile];
          const float first = exp2_approx(__fmul_rn(s[m][n][half_tile * 2], scale_log2) - max);  // a score's weight
          const float second = exp2_approx(__fmul_rn(s[m][n][half_tile * 2 + 1], scale_log2) - max);
          row_sum[m][half_tile] += first + second;
          p[m][n / 2][n % 2 * 2 + half_tile] = round_pair<Element>(first, second);  // two tiles are one fragment
        }
      }
    }
  };

  // 5. O += P · V: this warp's queries, all columns, while the next tile of V is copied.
  const auto add_values = [&](unsigned stage, unsigned next_stage, bool copies) {
    const unsigned v_tile = v_address + stage;
    unsigned v[2][2 * PAIRS][2];  // fragments, of two steps in turn
    const auto load_fragments = [&](int step) {
#pragma unroll
      for (int pair = 0; pair < PAIRS; ++pair) {  // rows of V are keys: .trans puts them along the registers
        unsigned (&fragment)[2][2] = reinterpret_cast<unsigned (&)[2][2]>(v[step % 2][2 * pair]);
        const int n = (step % V_STEPS * PAIRS + pair) * 2;
        ldmatrix_x4_trans(fragment[0][0], fragment[0][1], fragment[1][0], fragment[1][1],
                          columns_on(v_tile, n * MMA_N) + step / V_STEPS * MMA_K * ROW_BYTES);
      }
    };
    if (FRAGMENTS_AHEAD) load_fragments(0);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (step + FRAGMENTS_AHEAD < STEPS) load_fragments(step + FRAGMENTS_AHEAD);
      if (SPREAD && copies) copy_with_step(step, v_target + next_stage, v_source);
#pragma unroll
      for (int tile_of_step = 0; tile_of_step < 2 * PAIRS; ++tile_of_step) {
        const int n = step % V_STEPS * PAIRS * 2 + tile_of_step;
#pragma unroll
        for (int i = 0; i < TILES_Q; ++i) {
          const int m = n % 2 ? TILES_Q - 1 - i : i;
          mma_m16n8k16<Element>(o[m][n], p[m][step / V_STEPS], v[step % 2][tile_of_step]);
        }
      }
    }
  };

  cp_async_wait<1>();  // each thread waits for its own copies of Q and K0, then everybody for everybody's
  __syncthreads();
  compute_scores(0, 0, false);
  softmax();
  unsigned stage = 0;  // offset in the rings, in bytes, of the tile of V that is read; the next of K is in the other
  for (int tile = 0; tile < kv_tiles; ++tile) {
    cp_async_wait<0>();  // each thread waits for its own copies of this tile of V and the next of K, then all for all:
    __syncthreads();     // they are complete, and the tiles that are overwritten next have been read by all
    const unsigned other = TILE_BYTES - stage;
    if (!SPREAD) {
      if (tile + 1 < kv_tiles) copy_at_once(v_target + other, v_source);
      if (tile + 2 < kv_tiles) copy_at_once(k_target + stage, k_source);
      cp_async_commit();
    }
    add_values(stage, other, tile + 1 < kv_tiles);
    if (tile + 1 < kv_tiles) {
      compute_scores(other, stage, tile + 2 < kv_tiles);
      cp_async_commit();
      softmax();
    }
    k_source += BLOCK_KV * HEAD_DIM;
    v_source += BLOCK_KV * HEAD_DIM;
    stage = other;
  }

  // 6. Divide by the sums; round once, and store two neighbours at a time.
#pragma unroll
  for (int m = 0; m < TILES_Q; ++m) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      const int row = warp_row + m * MMA_M + half_tile * 8 + lane / 4;
      const float inverse = 1 / quad_sum(row_sum[m][half_tile]);
#pragma unroll
      for (int n = 0; n < TILES_D; ++n) {
        const int col = n * MMA_N + lane % 4 * 2;
        *reinterpret_cast<unsigned *>(&O[block_start + row * HEAD_DIM + col]) =
            round_pair<Element>(o[m][n][half_tile * 2] * inverse, o[m][n][half_tile * 2 + 1] * inverse);
      }
    }
  }
}

extern "C" cudaError_t launch_attention(const Element *Q, const Element *K, const Element *V, Element *O, int B, int H,
                                        int N, float scale, cudaStream_t stream) {
  if (B < 1 || H < 1 || N < 1 || !(scale > 0 && scale < INFINITY)) return cudaErrorInvalidValue;
  if (N % BLOCK_Q || N % BLOCK_KV) return cudaErrorInvalidValue;
  const long long blocks = (long long)B * H * (N / BLOCK_Q);
  if (blocks > INT_MAX) return cudaErrorInvalidValue;
  const int shared_bytes = sizeof(Shared);  // more than 48 KB must be asked for
  const cudaError_t status =
      cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  const float log2_e = 1.44269504f;
  attention_kernel<<<blocks, THREADS, shared_bytes, stream>>>(Q, K, V, O, N, scale * log2_e);
  return cudaGetLastError();
}
