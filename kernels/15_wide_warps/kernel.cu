// Stage 15 · wide warps: 32 queries per warp, so that each fragment of K and V is multiplied twice.
//
// Problem   O = softmax(Q · Kᵀ · scale) · V for each of B · H heads; Q, K, V, O are [B, H, N, HEAD_DIM], row-major;
//           16-bit DTYPE in and out, fp32 accumulation and softmax.
// Idea      It follows stage 13, where a warp reads every key and value for 16 queries. With 32, shared memory delivers
//           half as many of them per query, and the tensor cores become the bound. The price is registers: fewer warps
//           fit. And O is corrected only when a maximum has grown by more than 8, so that a weight could exceed 2^8,
//           which rarely happens after the first tile (conditional rescaling: Zadouri et al., "FlashAttention-4",
//           2026).
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
// Limits       N a multiple of 128; HEAD_DIM 64 or 128; scale > 0; compute capability 8.0; 64 KB of shared memory
//              (32 KB for HEAD_DIM 64).
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
#ifndef LAZY_RESCALE
#define LAZY_RESCALE 1  // 1: O and l are corrected only when a maximum has grown by more than 8; 0: for every tile
#endif

using Element = DTYPE;

constexpr int BLOCK_KV = 64;  // keys, and their values, per tile
constexpr int WARPS = 4;
constexpr int BUFFERS = 2;  // tiles in the ring: one of K and one of V
constexpr int MMA_M = 16;   // rows of S or O per tensor instruction
constexpr int MMA_N = 8;    // columns of S or O per tensor instruction
constexpr int MMA_K = 16;   // depth of a tensor instruction

constexpr int BLOCK_Q = WARPS * WARP_Q;  // queries per block
constexpr int THREADS = WARPS * 32;
constexpr int BLOCKS_PER_SM = (WARP_Q == 16 ? 3 : 2) + (HEAD_DIM == 64 ? 1 : 0);  // that registers are limited for
constexpr int AHEAD = BUFFERS - 1;  // tiles in flight while one is multiplied
constexpr int TILES_Q = WARP_Q / MMA_M;
constexpr int TILES_KV = BLOCK_KV / MMA_N;
constexpr int TILES_D = HEAD_DIM / MMA_N;
constexpr int VECTOR = 16 / sizeof(Element);  // elements in a chunk, one 16-byte copy

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(WARP_Q == 16 || WARP_Q == 32, "WARP_Q is 16 or 32: the registers of a warp hold no more");
static_assert(BUFFERS >= 2, "one tile to multiply and one to fill");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(WARP_Q % MMA_M == 0 && BLOCK_KV % MMA_K == 0 && HEAD_DIM % MMA_K == 0, "tensor tiles must fit evenly");
static_assert(TILES_KV % 2 == 0 && TILES_D % 2 == 0, "one ldmatrix.x4 brings two tiles of K or V");

// Instructions and addresses: declared here, defined at the end. (A specialization must be declared before its first
// use, and a template is inlined by force only if its first declaration says so.)
__device__ unsigned shared_address(const void *pointer);
__device__ void ldmatrix_x4(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned address);
__device__ void ldmatrix_x4_trans(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned address);
__device__ void cp_async_commit();
template <int N>
__device__ __forceinline__ void cp_async_wait();
template <typename T>  // half or __nv_bfloat16
__device__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
template <>
__device__ void mma_m16n8k16<Element>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
template <typename T>
__device__ unsigned round_pair(float first, float second);
template <>
__device__ unsigned round_pair<Element>(float first, float second);
__device__ float exp2_approx(float x), quad_max(float x), quad_sum(float x);
template <int COLUMNS>
__device__ __forceinline__ int swizzle(int row, int col);  // the column where col of a row lies
template <int ROWS>
__device__ __forceinline__ void copy_rows(Element (&tile)[ROWS][HEAD_DIM], const Element *source);  // in the background

struct Shared {  // row-major, in swizzled chunks; written and read by the whole block
  alignas(128) Element Q[BLOCK_Q][HEAD_DIM];
  alignas(128) Element ring[BUFFERS][BLOCK_KV][HEAD_DIM];  // K0, V0, K1, V1, ... pass through it
};

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

  // 2. Global -> shared, in the background: Q once; K and V, a tile of one and a tile of the other, through a ring.
  const int kv_tiles = 2 * (N / BLOCK_KV);
  const auto copy_kv = [&](int tile) {
    if (tile < kv_tiles) {
      const Element *head = (tile % 2 ? V : K) + head_start;
      copy_rows(tiles.ring[tile % BUFFERS], head + (size_t)(tile / 2) * BLOCK_KV * HEAD_DIM);
    }
    cp_async_commit();  // empty groups at the end keep the count right
  };
  const auto next_kv = [&](int tile) -> const Element(&)[BLOCK_KV][HEAD_DIM] {
    cp_async_wait<AHEAD - 1>();  // each thread waits for its own copies of this tile, then everybody for everybody:
    __syncthreads();             // the tile is complete, and the one before it has been read by all
    copy_kv(tile + AHEAD);
    return tiles.ring[tile % BUFFERS];
  };
  copy_rows(tiles.Q, Q + block_start);  // in one group with K0
#pragma unroll
  for (int tile = 0; tile < AHEAD; ++tile) copy_kv(tile);

  float o[TILES_Q][TILES_D][4] = {};  // WARP_Q × HEAD_DIM of O per warp, in mma's layout
  float row_max[TILES_Q][2];          // m of this lane's rows, in 0-7 and in 8-15 of each mma tile, or up to 8 less
  float row_sum[TILES_Q][2] = {};     // l of these rows, but only the keys that this lane has seen
#pragma unroll
  for (int m = 0; m < TILES_Q; ++m) row_max[m][0] = row_max[m][1] = -INFINITY;

  for (int tile = 0; tile < kv_tiles; tile += 2) {
    // 3. S = Q · Kᵀ: this warp's queries, all keys.
    const auto &K_tile = next_kv(tile);
    float s[TILES_Q][TILES_KV][4] = {};  // WARP_Q × 64 of S per warp, in mma's layout
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += MMA_K) {
      unsigned q[TILES_Q][4];
#pragma unroll
      for (int m = 0; m < TILES_Q; ++m) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
        const int row = warp_row + m * MMA_M + lane % 16;
        const int col = d + lane / 16 * 8;
        ldmatrix_x4(q[m][0], q[m][1], q[m][2], q[m][3], shared_address(&tiles.Q[row][swizzle<HEAD_DIM>(row, col)]));
      }
#pragma unroll
      for (int n = 0; n < TILES_KV; n += 2) {  // matrices: columns 0-7 | 8-15 of keys 0-7, then of keys 8-15
        unsigned k[2][2];
        const int row = n * MMA_N + lane / 16 * 8 + lane % 8;
        const int col = d + lane / 8 % 2 * 8;
        ldmatrix_x4(k[0][0], k[0][1], k[1][0], k[1][1], shared_address(&K_tile[row][swizzle<HEAD_DIM>(row, col)]));
#pragma unroll
        for (int m = 0; m < TILES_Q; ++m) {
          mma_m16n8k16<Element>(s[m][n], q[m], k[0]);
          mma_m16n8k16<Element>(s[m][n + 1], q[m], k[1]);
        }
      }
    }

    // 4. Online softmax, of rows that lie in a quad. Any m serves that is at most 8 below the maximum: the weights stay
    // below 2^8, and m cancels in O / l.
    unsigned p[TILES_Q][BLOCK_KV / MMA_K][4];  // WARP_Q × 64 of P per warp, as mma wants its first operand
    float largest[TILES_Q][2];                 // of the scores that this lane holds, scaled
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
        // Scaled and rounded like each score below, and __fmul_rn keeps the compiler from making an FMA of that: so a
        // maximum that becomes m weighs 1, also of scores of 10^4, whose product with the scale is rounded by 2^-11.
        largest[m][half_tile] *= scale_log2;
        grown |= largest[m][half_tile] > row_max[m][half_tile] + 8;
      }
    }
    if (!LAZY_RESCALE || __any_sync(~0u, grown)) {  // a vote: all lanes of the warp take the same branch
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
      for (int half_tile = 0; half_tile < 2; ++half_tile) {
#pragma unroll
        for (int n = 0; n < TILES_KV; ++n) {
#pragma unroll
          for (int i = half_tile * 2; i < half_tile * 2 + 2; ++i) {
            // a score becomes a weight
            s[m][n][i] = exp2_approx(__fmul_rn(s[m][n][i], scale_log2) - row_max[m][half_tile]);
            row_sum[m][half_tile] += s[m][n][i];
          }
          p[m][n / 2][n % 2 * 2 + half_tile] =  // two tiles side by side become one fragment
              round_pair<Element>(s[m][n][half_tile * 2], s[m][n][half_tile * 2 + 1]);
        }
      }
    }

    // 5. O += P · V: this warp's queries, all columns.
    const auto &V_tile = next_kv(tile + 1);
#pragma unroll
    for (int key = 0; key < BLOCK_KV; key += MMA_K) {
#pragma unroll
      for (int n = 0; n < TILES_D; n += 2) {  // rows of V are keys: .trans puts them along the registers
        unsigned v[2][2];
        const int row = key + lane % 16;
        const int col = n * MMA_N + lane / 16 * 8;
        ldmatrix_x4_trans(v[0][0], v[0][1], v[1][0], v[1][1],
                          shared_address(&V_tile[row][swizzle<HEAD_DIM>(row, col)]));
#pragma unroll
        for (int m = 0; m < TILES_Q; ++m) {
          mma_m16n8k16<Element>(o[m][n], p[m][key / MMA_K], v[0]);
          mma_m16n8k16<Element>(o[m][n + 1], p[m][key / MMA_K], v[1]);
        }
      }
    }
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
  const float log2_e = 1.44269504f;
  const float scale_log2 = scale * log2_e;
  if (B < 1 || H < 1 || N < 1 || !(scale_log2 > 0 && scale_log2 < INFINITY)) return cudaErrorInvalidValue;
  if (N % BLOCK_Q || N % BLOCK_KV) return cudaErrorInvalidValue;
  if (!Q || !K || !V || !O) return cudaErrorInvalidValue;
  if (((size_t)Q | (size_t)K | (size_t)V | (size_t)O) % 16) return cudaErrorInvalidValue;  // copies take 16 bytes
  const long long blocks = (long long)B * H * (N / BLOCK_Q);
  if (blocks > INT_MAX) return cudaErrorInvalidValue;
  const int shared_bytes = sizeof(Shared);  // more than 48 KB must be asked for
  const cudaError_t status =
      cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  attention_kernel<<<blocks, THREADS, shared_bytes, stream>>>(Q, K, V, O, N, scale_log2);
  return cudaGetLastError();
}

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

// 2^x, right to about 22 bits; 2^-inf = 0.
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
