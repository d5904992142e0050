// Stage 16 · final: an attention that a person would call.
//
// Problem   O = softmax(Q · Kᵀ · scale) · V for each of B · H heads; Q and O are [B, H, N, HEAD_DIM], K and V
//           [B, H_KV, N_KV, HEAD_DIM], all with strides of their own; 16-bit DTYPE in and out, fp32 accumulation and
//           softmax. CAUSAL: query i sees keys 0 to i. LSE, if asked for, is log Σ exp(scores), [B, H, N], fp32. A row
//           all of whose scores are -inf has O = 0 and LSE = -inf, as in torch's attention.
// Idea      Stage 15 with a faster loop: a warp computes its weights first and looks for maxima only if a weight is too
//           large, the tensor cores add the weights up, fragments are loaded one step ahead, copies are spread over the
//           products, and there is one barrier per tile. Around the loop, what real use needs: any lengths (zeros
//           copied, scores masked), a causal mask (hidden tiles are skipped, long blocks start first), grouped heads
//           (packed into one tile if their queries are few), and few queries against many keys (keys split over blocks,
//           combined by a second kernel: split-KV).
//
//   level  | S = Q · Kᵀ (queries × keys)   | O += P · V (queries × columns)      | who
//   -------+-------------------------------+-------------------------------------+-----------------------
//   block  | 128 × 64   (few queries: 64)  | 128 × HEAD_DIM                      | 128 threads = 4 warps
//   warp   | 32 × 64    (16)               | 32 × HEAD_DIM: its queries          | 32 lanes together
//   mma    | 16 × 8, 2 × 8 (1 × 8)         | 16 × 8, 2 × HEAD_DIM / 8            | the tensor core
//
// Thread map   mma: row = lane / 4 (+ 8 for registers 2, 3), column = lane % 4 * 2 (+ 1 for registers 1, 3): a row lies
//              in a quad of lanes, and a lane's rows of S are its rows of O.
//              ldmatrix: lane L gives the address of row L % 8 of matrix L / 8.
// Limits       HEAD_DIM 64 or 128; rows that begin at multiples of 16 bytes; scale > 0; H a multiple of H_KV; compute
//              capability 8.0; 96 KB of shared memory (48 KB for HEAD_DIM 64).
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
#ifndef CAUSAL
#define CAUSAL 0  // 1: query i sees keys 0 to i only, as torch's is_causal has it
#endif
#ifndef MAX_WARP_Q
#define MAX_WARP_Q 32  // queries per warp where there are enough of them: 16 or 32
#endif
#ifndef WEIGHTS_FIRST
#define WEIGHTS_FIRST 1  // 1: weights come first, and maxima only if a weight is too large; 0: maxima come first
#endif
#ifndef SPREAD_COPIES
#define SPREAD_COPIES 1  // 1: tiles of 128 columns are copied in parts, with the steps of a product; 0: before it
#endif
#ifndef FRAGMENTS_AHEAD
#define FRAGMENTS_AHEAD 1  // 1: each step of a product loads the fragments of the next one; 0: its own
#endif

using Element = DTYPE;

constexpr int WARPS = 4, THREADS = WARPS * 32;    // per block
constexpr int BLOCK_KV = 64;                      // keys, and their values, per tile
constexpr int MMA_M = 16, MMA_N = 8, MMA_K = 16;  // rows, columns and depth of a tensor instruction
constexpr int SMALL_BLOCK_Q = WARPS * MMA_M;      // queries per block where there are few
constexpr int TILES_KV = BLOCK_KV / MMA_N, TILES_D = HEAD_DIM / MMA_N, DEPTH_KV = BLOCK_KV / MMA_K;
constexpr int STEPS = 16;             // of each product
constexpr int PAIRS = HEAD_DIM / 64;  // of tiles of K or V in a step: one ldmatrix.x4 brings a pair
constexpr int K_STEPS = TILES_KV / 2 / PAIRS, V_STEPS = TILES_D / 2 / PAIRS;  // that share a fragment of Q, of P
constexpr int ROW_BYTES = HEAD_DIM * 2, TILE_BYTES = BLOCK_KV * ROW_BYTES;
constexpr int VECTOR = 16 / sizeof(Element), ROW_CHUNKS = HEAD_DIM / VECTOR;  // elements in a chunk, one 16-byte copy
constexpr int COPY_ROWS = THREADS / ROW_CHUNKS;  // rows of a part: each thread copies one chunk of it
constexpr int PARTS = BLOCK_KV / COPY_ROWS;      // of a tile of K or V
constexpr int COPY_GROUP = 2;                    // parts that are copied with one step of a product
constexpr long long SECTION_BYTES = 16 << 20;    // of K and V: a quarter of the L2 that this was measured on
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;
constexpr float LOWEST = -3.4028235e38f;  // an m to begin with: finite, so that scores of -inf weigh 2^-inf = 0
constexpr float MOST = 256;               // that a weight may be: m is the row's maximum, or at most 8 less
constexpr float EXACT = 16777216;         // 2^24: below, m is within 1 of the product that it was rounded from

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(MAX_WARP_Q == 16 || MAX_WARP_Q == 32, "more queries than 32 do not fit into the registers of a warp");
static_assert(HEAD_DIM / MMA_K * K_STEPS == STEPS && DEPTH_KV * V_STEPS == STEPS, "each product has 16 steps");

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

// Instructions and addresses: declared here, defined at the end. (A specialization must be declared before its first
// use, and a template is inlined by force only if its first declaration says so.)
__device__ unsigned shared_address(const void *pointer);
__device__ void ldmatrix_x4(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned address);
__device__ void ldmatrix_x4_trans(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned address);
__device__ void cp_async_16_or_zeros(unsigned shared, const void *global, bool inside);
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
__device__ unsigned max_pair(unsigned a, unsigned b);
__device__ float exp2_approx(float x), quad_max(float x), quad_sum(float x);
template <int COLUMNS>
__device__ __forceinline__ int swizzle(int row, int col);  // the column where col of a row lies
__device__ unsigned columns_on(unsigned address, int col);

struct Strides { long long batch, head, row; };  // in elements

struct Arguments {
  const Element *Q, *K, *V;
  Element *O;
  float *LSE;                      // or null
  float *partial_O, *partial_LSE;  // [splits, B, H, N, HEAD_DIM] and [splits, B, H, N], where splits > 1
  Strides q, k, v, o;
  int batches, heads, heads_kv, n, n_kv;
  int splits;        // blocks that share the keys of a tile of queries
  float scale_log2;  // scale · log₂e
  int packed;        // heads whose queries share a tile
  int section;       // CAUSAL: heads (groups of packed ones) whose tiles run together, the longest first
};

template <int BLOCK_Q>
struct Shared {  // row-major, in swizzled chunks; written and read by the whole block
  alignas(128) Element Q[BLOCK_Q][HEAD_DIM];
  alignas(128) Element K[2][BLOCK_KV][HEAD_DIM];  // the tile that is read, and the one that arrives
  alignas(128) Element V[2][BLOCK_KV][HEAD_DIM];
};

// Copies one tile of K or V after the other to shared memory, in the background, part by part: a thread has one chunk
// of each part. RAGGED: rows after the end of the tensor become zeros.
template <bool RAGGED>
struct TileCopy {
  unsigned target;        // of this thread's chunk of part 0, in the first buffer
  const Element *source;  // this thread's chunk of the part that is copied next
  long long part_stride;  // elements
  int left;               // rows from that chunk to the end of the tensor
  int skipped;            // parts between two tiles of this block: those of the blocks that share the keys

  __device__ __forceinline__ void copy(int part, unsigned buffer) {
    const unsigned chunk = target + buffer + part * COPY_ROWS * ROW_BYTES;  // rows 8 apart are swizzled alike
    cp_async_16_or_zeros(chunk, source, !RAGGED || left > 0);
    const int parts = part == PARTS - 1 ? skipped + 1 : 1;
    source += parts * part_stride;
    left -= parts * COPY_ROWS;
  }
  __device__ __forceinline__ void copy_all(unsigned buffer) {
    for (int part = 0; part < PARTS; ++part) copy(part, buffer);
  }
  // The parts that go with a step of a product: evenly, COPY_GROUP at a time.
  __device__ __forceinline__ void copy_with(int step, unsigned buffer) {
    for (int part = 0; part < PARTS; ++part) {
      if (step == part / COPY_GROUP * COPY_GROUP * STEPS / PARTS) copy(part, buffer);
    }
  }
};

// S = Q · Kᵀ: this warp's queries, all keys of a tile. If `copies`, a later tile of K is copied to `buffer` meanwhile.
// Turn t loads the fragments of step t and multiplies those of step t - FRAGMENTS_AHEAD. (Loops around little code have
// no #pragma: nvcc unrolls them by itself.)
template <int TILES_Q, bool RAGGED>
__device__ __forceinline__ void compute_scores(float (&s)[TILES_Q][TILES_KV][4], unsigned q_address, unsigned k_address,
                                               bool copies, TileCopy<RAGGED> &k_copy, unsigned buffer) {
  unsigned q[2][TILES_Q][4], k[2][PAIRS][2][2];  // fragments, of two steps in turn
#pragma unroll
  for (int m = 0; m < TILES_Q; ++m) {
    for (int n = 0; n < TILES_KV; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
  }
#pragma unroll
  for (int turn = 0; turn < STEPS + FRAGMENTS_AHEAD; ++turn) {
    if (turn < STEPS) {  // load the fragments of step `turn`
      const int d = turn / K_STEPS * MMA_K;
      if (turn % K_STEPS == 0) {
#pragma unroll
        for (int m = 0; m < TILES_Q; ++m) {
          unsigned (&fragment)[4] = q[turn / K_STEPS % 2][m];
          ldmatrix_x4(fragment[0], fragment[1], fragment[2], fragment[3],
                      columns_on(q_address, d) + m * MMA_M * ROW_BYTES);
        }
      }
      for (int pair = 0; pair < PAIRS; ++pair) {
        unsigned (&fragment)[2][2] = k[turn % 2][pair];
        const int n = (turn % K_STEPS * PAIRS + pair) * 2;
        ldmatrix_x4(fragment[0][0], fragment[0][1], fragment[1][0], fragment[1][1],
                    columns_on(k_address, d) + n * MMA_N * ROW_BYTES);
      }
    }
    const int step = turn - FRAGMENTS_AHEAD;
    if (step < 0) continue;
    if (copies) k_copy.copy_with(step, buffer);
    for (int tile = 0; tile < 2 * PAIRS; ++tile) {
      const int n = step % K_STEPS * PAIRS * 2 + tile;
      for (int i = 0; i < TILES_Q; ++i) {
        const int m = n % 2 ? TILES_Q - 1 - i : i;  // to and fro: neighbours in time share a fragment
        mma_m16n8k16<Element>(s[m][n], q[step / K_STEPS % 2][m], k[step % 2][tile / 2][tile % 2]);
      }
    }
  }
}

// O += P · V: this warp's queries, all columns; and l += P · 1, so that O is divided by the sum of the very weights,
// rounded, that it was made with, and no thread adds them. If `copies`, the next tile of V is copied meanwhile.
template <int TILES_Q, bool RAGGED>
__device__ __forceinline__ void add_values(
    float (&o)[TILES_Q][TILES_D][4], float (&l)[TILES_Q][4], const unsigned (&p)[TILES_Q][DEPTH_KV][4],
    unsigned v_address, bool copies, TileCopy<RAGGED> &v_copy, unsigned buffer) {
  unsigned v[2][PAIRS][2][2];  // fragments, of two steps in turn
  const unsigned ones[2] = {round_pair<Element>(1, 1), round_pair<Element>(1, 1)};
#pragma unroll
  for (int turn = 0; turn < STEPS + FRAGMENTS_AHEAD; ++turn) {
    if (turn < STEPS) {                           // load the fragments of step `turn`
      for (int pair = 0; pair < PAIRS; ++pair) {  // rows of V are keys: .trans puts them along the registers
        unsigned (&fragment)[2][2] = v[turn % 2][pair];
        const int n = (turn % V_STEPS * PAIRS + pair) * 2;
        ldmatrix_x4_trans(fragment[0][0], fragment[0][1], fragment[1][0], fragment[1][1],
                          columns_on(v_address, n * MMA_N) + turn / V_STEPS * MMA_K * ROW_BYTES);
      }
    }
    const int step = turn - FRAGMENTS_AHEAD;
    if (step < 0) continue;
    if (copies) v_copy.copy_with(step, buffer);
#pragma unroll
    for (int m = 0; m < TILES_Q; ++m) {
      if (step % V_STEPS == 0) mma_m16n8k16<Element>(l[m], p[m][step / V_STEPS], ones);
    }
    for (int tile = 0; tile < 2 * PAIRS; ++tile) {
      const int n = step % V_STEPS * PAIRS * 2 + tile;
      for (int i = 0; i < TILES_Q; ++i) {
        const int m = n % 2 ? TILES_Q - 1 - i : i;
        mma_m16n8k16<Element>(o[m][n], p[m][step / V_STEPS], v[step % 2][tile / 2][tile % 2]);
      }
    }
  }
}

// No key, no weight: scores of keys after the last one that a query sees become -inf. `row` is this lane's first row
// among the `packed` heads' queries, `key` its first key.
template <int TILES_Q>
__device__ __forceinline__ void mask(float (&s)[TILES_Q][TILES_KV][4], int row, int key, int packed, int n_kv) {
#pragma unroll
  for (int m = 0; m < TILES_Q; ++m) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      const int query = (row + m * MMA_M + half_tile * 8) / packed;
      const int last = CAUSAL ? min(query, n_kv - 1) : n_kv - 1;
#pragma unroll
      for (int n = 0; n < TILES_KV; ++n) {
        for (int i = 0; i < 2; ++i) {
          if (key + n * MMA_N + i > last) s[m][n][half_tile * 2 + i] = -INFINITY;
        }
      }
    }
  }
}

// The weights P of 16 queries, rounded to 16 bits, and their sums before that; whether one is larger than MOST.
// `rounded`: each product with the scale is rounded before m is subtracted, as m was; otherwise it is one FMA.
__device__ __forceinline__ bool weigh(unsigned (&p)[DEPTH_KV][4], float (&sum)[2], const float (&s)[TILES_KV][4],
                                      const float (&row_max)[2], float scale_log2, bool rounded) {
  unsigned largest = 0;
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int n = 0; n < TILES_KV; ++n) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      float weight[2];
      for (int i = 0; i < 2; ++i) {
        const float score = s[n][half_tile * 2 + i], max = row_max[half_tile];
        weight[i] = exp2_approx(rounded ? __fmul_rn(score, scale_log2) - max : fmaf(score, scale_log2, -max));
      }
      sum[half_tile] += weight[0] + weight[1];
      const unsigned pair = round_pair<Element>(weight[0], weight[1]);
      p[n / 2][n % 2 * 2 + half_tile] = pair;  // two tiles are one fragment
      largest = max_pair(largest, pair);
    }
  }
  const unsigned most = round_pair<Element>(MOST, MOST);  // floats above 0 are ordered as their bits are
  return WEIGHTS_FIRST && __any_sync(~0u, largest > most || largest << 16 > most << 16);
}

// m becomes the maximum of each row's scores so far, and what was summed by the old m is corrected. WEIGHTS_FIRST = 0:
// only if one of the warp's maxima is more than 8 above its m.
__device__ __forceinline__ void raise_max(float (&row_max)[2], float (&o)[TILES_D][4], float (&l)[4],
                                          float (&exact_sum)[2], const float (&s)[TILES_KV][4], float scale_log2) {
  float largest[2];
#pragma unroll
  for (int half_tile = 0; half_tile < 2; ++half_tile) {
    largest[half_tile] = s[0][half_tile * 2];
#pragma unroll
    for (int n = 0; n < TILES_KV; ++n) {
      largest[half_tile] = fmaxf(largest[half_tile], fmaxf(s[n][half_tile * 2], s[n][half_tile * 2 + 1]));
    }
  }
  const bool grown = largest[0] * scale_log2 > row_max[0] + 8 || largest[1] * scale_log2 > row_max[1] + 8;
  if (!WEIGHTS_FIRST && !__any_sync(~0u, grown)) return;
#pragma unroll
  for (int half_tile = 0; half_tile < 2; ++half_tile) {
    const float new_max = fmaxf(row_max[half_tile], quad_max(largest[half_tile]) * scale_log2);
    const float correction = exp2_approx(row_max[half_tile] - new_max);  // at first 0
    row_max[half_tile] = new_max;
    exact_sum[half_tile] *= correction;
    for (int i = half_tile * 2; i < half_tile * 2 + 2; ++i) {
      l[i] *= correction;
      for (int n = 0; n < TILES_D; ++n) o[n][i] *= correction;
    }
  }
}

// Whether an m is so large that it may be more than 1 off the product that it was rounded from. Also true of LOWEST,
// the first m, so that the first tile's maxima are looked for at once.
__device__ __forceinline__ bool is_huge(const float (&row_max)[2]) {
  return __any_sync(~0u, fmaxf(fabsf(row_max[0]), fabsf(row_max[1])) > EXACT);
}

// Online softmax of 16 queries, rows that lie in a quad. Any number that is no more than 8 below a row's maximum serves
// as m: it cancels in O / l (the conditional rescaling of FlashAttention-4). So the weights come first; only where one
// is more than 2^8 the maxima of the scores are looked for, and the weights computed again.
__device__ __forceinline__ void softmax(
    unsigned (&p)[DEPTH_KV][4], float (&row_max)[2], float (&o)[TILES_D][4], float (&l)[4], float (&exact_sum)[2],
    const float (&s)[TILES_KV][4], float scale_log2) {
  float sum[2];
  if (!WEIGHTS_FIRST) raise_max(row_max, o, l, exact_sum, s, scale_log2);
  if (is_huge(row_max) || weigh(p, sum, s, row_max, scale_log2, false)) {
    raise_max(row_max, o, l, exact_sum, s, scale_log2);
    weigh(p, sum, s, row_max, scale_log2, is_huge(row_max));
  }
  exact_sum[0] += sum[0];
  exact_sum[1] += sum[1];
}

// Where a row of a tile lies in a tensor: row r is query r / packed of head r % packed.
__device__ __forceinline__ long long row_offset(const Strides &strides, int batch, int head, int row, int packed) {
  const int query = packed == 1 ? row : row / packed;
  return batch * strides.batch + (head + row - query * packed) * strides.head + query * strides.row;
}

// Many queries: 32 per warp, as in stage 15. With few, memory is what limits: 16 per warp.
constexpr int blocks_per_sm(int warp_q) { return (warp_q == 16 ? 3 : 2) + (HEAD_DIM == 64 ? 1 : 0); }  // by registers

// RAGGED: the last tile of queries or of keys may reach over the end. WITH_LSE: LSE is asked for.
template <int WARP_Q, bool RAGGED, bool WITH_LSE>
__global__ void __launch_bounds__(THREADS, blocks_per_sm(WARP_Q))
    attention_kernel(const __grid_constant__ Arguments arguments) {
  constexpr int BLOCK_Q = WARPS * WARP_Q;  // queries per block
  constexpr int TILES_Q = WARP_Q / MMA_M;
  constexpr bool SPREAD = SPREAD_COPIES && HEAD_DIM == 128 && WARP_Q == 32;  // copies go with the products' steps
  static_assert(!SPREAD || BLOCK_Q <= 2 * BLOCK_KV, "a warp that skips more than the last tile would skip its copies");
  extern __shared__ __align__(128) unsigned char shared[];
  Shared<BLOCK_Q> &tiles = *reinterpret_cast<Shared<BLOCK_Q> *>(shared);
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();  // combine_kernel's blocks may come, and wait for what this one writes
#endif

  // 1. Which queries are mine, and which keys? Neighbouring blocks share a head: they find its K and V in L2. Under a
  // causal mask the last queries have the most keys: they come first in a section of heads, whose K and V fit in L2,
  // and the grid ends with short blocks.
  const int packed = arguments.packed;
  const int rows = arguments.n * packed;
  const int q_tiles = ceil_div(rows, BLOCK_Q);
  const int head_groups = arguments.heads / packed;
  int group = blockIdx.x / q_tiles;
  int q_tile = blockIdx.x % q_tiles;
  if (CAUSAL) {
    const int first_group = group / arguments.section * arguments.section;
    const int groups = min(arguments.section, (int)gridDim.x / q_tiles - first_group);
    const int place = blockIdx.x - first_group * q_tiles;  // within the section
    group = first_group + place % groups;
    q_tile = q_tiles - 1 - place / groups;
  }
  const int batch = group / head_groups;
  const int head = group % head_groups * packed;  // the first of those that are packed
  const int tile_row = q_tile * BLOCK_Q;
  const int n_kv = CAUSAL ? min(arguments.n_kv, (tile_row + BLOCK_Q - 1) / packed + 1) : arguments.n_kv;
  const int splits = gridDim.y;  // blocks that share the keys in turn: what is read at a time lies side by side
  const int kv_tiles = ceil_div(ceil_div(n_kv, BLOCK_KV) - (int)blockIdx.y, splits);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int warp_row = warp * WARP_Q;  // of this warp's queries, within the block's
  // whole_tiles: tiles whose keys all of this warp's queries see. seen_tiles: tiles of which any of them sees a key.
  const int first_query = (tile_row + warp_row) / packed;
  const int last_query = (tile_row + warp_row + WARP_Q - 1) / packed;
  const int whole_tiles = (CAUSAL ? min(arguments.n_kv, first_query + 1) : arguments.n_kv) / BLOCK_KV;
  const bool idle = WARP_Q == 16 && tile_row + warp_row >= rows;  // no query: it only copies, without SPREAD
  const int seen_tiles = idle ? 0 : CAUSAL ? min(kv_tiles, last_query / BLOCK_KV + 1) : kv_tiles;

  // 2. Global -> shared: all of Q, and the first tiles of K and V.
  const int copy_row = threadIdx.x / ROW_CHUNKS;
  const int copy_col = threadIdx.x % ROW_CHUNKS * VECTOR;
  const unsigned target = copy_row * ROW_BYTES + swizzle<HEAD_DIM>(copy_row, copy_col) * (unsigned)sizeof(Element);
  const int kv_head = head / (arguments.heads / arguments.heads_kv);
  const int first_key = blockIdx.y * BLOCK_KV + copy_row;
  const auto tile_copy = [&](const void *buffers, const Element *tensor, const Strides &strides) {
    const Element *source =
        tensor + batch * strides.batch + kv_head * strides.head + first_key * strides.row + copy_col;
    return TileCopy<RAGGED>{shared_address(buffers) + target, source, COPY_ROWS * strides.row,
                            arguments.n_kv - first_key, (splits - 1) * PARTS};
  };
  TileCopy<RAGGED> k_copy = tile_copy(tiles.K, arguments.K, arguments.k);
  TileCopy<RAGGED> v_copy = tile_copy(tiles.V, arguments.V, arguments.v);
#pragma unroll
  for (int row = copy_row; row < copy_row + BLOCK_Q; row += COPY_ROWS) {
    const Element *source = arguments.Q + row_offset(arguments.q, batch, head, tile_row + row, packed) + copy_col;
    cp_async_16_or_zeros(shared_address(tiles.Q) + target + (row - copy_row) * ROW_BYTES, source,
                         !RAGGED || tile_row + row < rows);
  }
  k_copy.copy_all(0);
  cp_async_commit();
  if (kv_tiles > 1) k_copy.copy_all(TILE_BYTES);
  v_copy.copy_all(0);
  cp_async_commit();

  // Where this lane's rows of ldmatrix begin, in column 0 of the first tile.
  const int q_row = warp_row + lane % 16, q_col = lane / 16 * 8;         // rows 0-7 | 8-15 of chunk 0, then of chunk 1
  const int k_row = lane / 16 * 8 + lane % 8, k_col = lane / 8 % 2 * 8;  // chunk 0 | 1 of keys 0-7, then of keys 8-15
  const int v_row = lane % 16, v_col = lane / 16 * 8;                    // keys 0-7 | 8-15 of chunk 0, then of chunk 1
  const unsigned q_address = shared_address(&tiles.Q[q_row][swizzle<HEAD_DIM>(q_row, q_col)]);
  const unsigned k_address = shared_address(&tiles.K[0][k_row][swizzle<HEAD_DIM>(k_row, k_col)]);
  const unsigned v_address = shared_address(&tiles.V[0][v_row][swizzle<HEAD_DIM>(v_row, v_col)]);

  float o[TILES_Q][TILES_D][4] = {};  // 32 × HEAD_DIM of O per warp, in mma's layout
  float s[TILES_Q][TILES_KV][4];      // 32 × 64 of S per warp, likewise
  unsigned p[TILES_Q][DEPTH_KV][4];   // 32 × 64 of P per warp, as mma wants its first operand
  float row_max[TILES_Q][2];          // m of this lane's rows, 0-7 and 8-15 of each mma tile, or up to 8 less
  float l[TILES_Q][4] = {};           // the sums of these rows of P, each twice, in mma's layout
  float exact_sum[TILES_Q][2] = {};   // the same of weights not yet rounded, and of this lane's keys: for LSE
#pragma unroll
  for (int m = 0; m < TILES_Q; ++m) row_max[m][0] = row_max[m][1] = LOWEST;

  // 3. Tile after tile: its values, then the weights of the next keys.
  const auto weigh_scores = [&](int tile) {
    const int kv_tile = blockIdx.y + tile * splits;
    if ((RAGGED || CAUSAL) && kv_tile >= whole_tiles) {
      mask(s, tile_row + warp_row + lane / 4, kv_tile * BLOCK_KV + lane % 4 * 2, packed, arguments.n_kv);
    }
#pragma unroll
    for (int m = 0; m < TILES_Q; ++m) {
      softmax(p[m], row_max[m], o[m], l[m], exact_sum[m], s[m], arguments.scale_log2);
    }
  };
  cp_async_wait<1>();  // each thread waits for its own copies of Q and K0, then everybody for everybody's
  __syncthreads();
  if (!idle) {
    compute_scores(s, q_address, k_address, false, k_copy, 0);
    weigh_scores(0);
  }
  unsigned buffer = 0;  // offset in the rings, in bytes, of the tile of V that is read; the next of K is in the other
  for (int tile = 0; tile < kv_tiles; ++tile) {
    cp_async_wait<0>();  // each thread waits for its copies of this tile of V and the next of K, then all for all: they
    __syncthreads();     // are complete, and the tiles that are overwritten next have been read by all
    const unsigned other = TILE_BYTES - buffer;
    const bool copies_v = tile + 1 < kv_tiles;
    const bool copies_k = tile + 2 < kv_tiles;
    if (!SPREAD && copies_v) v_copy.copy_all(other);
    if (!SPREAD && copies_k) k_copy.copy_all(buffer);
    if (tile < seen_tiles) add_values(o, l, p, v_address + buffer, SPREAD && copies_v, v_copy, other);
    cp_async_commit();  // also of warps that see no more: their copies are for others
    if (tile + 1 < kv_tiles && tile + 1 < seen_tiles) {
      compute_scores(s, q_address, k_address + other, SPREAD && copies_k, k_copy, buffer);
      if (SPREAD) cp_async_commit();
      weigh_scores(tile + 1);
    }
    buffer = other;
  }

  // 4. Divide by the sums. Shares of split keys are combined later, and stay in fp32; others are rounded once, and
  // leave as whole chunks, by way of this warp's rows of Q, which nobody reads any more.
#pragma unroll
  for (int m = 0; m < TILES_Q; ++m) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      const int row = warp_row + m * MMA_M + half_tile * 8 + lane / 4;
      const float sum = l[m][half_tile * 2];
      const float inverse = 1 / (sum == 0 ? 1 : sum);  // 0: every score was -inf, and so O is 0
      const float log2_sum = row_max[m][half_tile] + log2f(WITH_LSE ? quad_sum(exact_sum[m][half_tile]) : sum);
      const bool inside = !RAGGED || tile_row + row < rows;
      const int query = (tile_row + row) / packed;
      const size_t place = ((size_t)batch * arguments.heads + head + (tile_row + row) % packed) * arguments.n + query;
      if (gridDim.y > 1) {
        const size_t share = blockIdx.y * (size_t)(gridDim.x / q_tiles) * rows + place;
        if (inside && lane % 4 == 0) arguments.partial_LSE[share] = log2_sum;
#pragma unroll
        for (int n = 0; n < TILES_D; ++n) {
          if (!inside) continue;
          *reinterpret_cast<float2 *>(&arguments.partial_O[share * HEAD_DIM + n * MMA_N + lane % 4 * 2]) =
              make_float2(o[m][n][half_tile * 2] * inverse, o[m][n][half_tile * 2 + 1] * inverse);
        }
      } else {
        if (WITH_LSE && inside && lane % 4 == 0) arguments.LSE[place] = log2_sum * LN_2;
#pragma unroll
        for (int n = 0; n < TILES_D; ++n) {
          *reinterpret_cast<unsigned *>(&tiles.Q[row][swizzle<HEAD_DIM>(row, n * MMA_N) + lane % 4 * 2]) =
              round_pair<Element>(o[m][n][half_tile * 2] * inverse, o[m][n][half_tile * 2 + 1] * inverse);
        }
      }
    }
  }
  if (gridDim.y > 1) return;
  __syncwarp();  // the warp waits for its own writers: its rows are complete
#pragma unroll
  for (int chunk = lane; chunk < WARP_Q * HEAD_DIM / VECTOR; chunk += 32) {
    const int row = warp_row + chunk / (HEAD_DIM / VECTOR);
    const int col = chunk % (HEAD_DIM / VECTOR) * VECTOR;
    if (RAGGED && tile_row + row >= rows) break;
    *reinterpret_cast<uint4 *>(&arguments.O[row_offset(arguments.o, batch, head, tile_row + row, packed) + col]) =
        *reinterpret_cast<const uint4 *>(&tiles.Q[row][swizzle<HEAD_DIM>(row, col)]);
  }
}

// O of each query is the mean over its shares of the keys, weighted by their sums of weights, 2^LSE. A block per query:
// each warp adds up some shares, a lane some columns, relative to the largest LSE that the warp has seen.
__global__ void __launch_bounds__(THREADS) combine_kernel(const __grid_constant__ Arguments arguments) {
  constexpr int COLUMNS = HEAD_DIM / 32;  // of a lane
  constexpr int AT_ONCE = 16;             // shares that a warp waits for together
  struct alignas(COLUMNS * sizeof(float)) Columns { float x[COLUMNS]; };
  __shared__ Columns warp_o[WARPS][32];
  __shared__ float warp_max[WARPS], warp_sum[WARPS];
  const int row = blockIdx.x;  // of all batches, heads and queries
  const size_t rows = gridDim.x;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // attention_kernel has written all shares
#endif
  float largest = LOWEST, sum = 0;
  Columns o = {};
  for (int first = warp; first < arguments.splits; first += WARPS * AT_ONCE) {
    float lse[AT_ONCE];
    Columns share_o[AT_ONCE] = {};
    float new_max = largest;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const size_t place = (first + i * WARPS) * rows + row;
      const bool there = first + i * WARPS < arguments.splits;
      lse[i] = there ? arguments.partial_LSE[place] : -INFINITY;
      if (there) share_o[i] = reinterpret_cast<const Columns *>(&arguments.partial_O[place * HEAD_DIM])[lane];
    }
    for (int i = 0; i < AT_ONCE; ++i) new_max = fmaxf(new_max, lse[i]);
    const float correction = exp2_approx(largest - new_max);
    largest = new_max;
    sum *= correction;
    for (int col = 0; col < COLUMNS; ++col) o.x[col] *= correction;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const float weight = exp2_approx(lse[i] - largest);
      sum += weight;
      for (int col = 0; col < COLUMNS; ++col) o.x[col] += weight * share_o[i].x[col];
    }
  }
  if (lane == 0) warp_max[warp] = largest, warp_sum[warp] = sum;
  warp_o[warp][lane] = o;
  __syncthreads();  // everybody waits for everybody: the sums of all warps are complete
  if (warp > 0) return;
  for (int each = 0; each < WARPS; ++each) largest = fmaxf(largest, warp_max[each]);
  sum = 0, o = {};
  for (int each = 0; each < WARPS; ++each) {
    const float weight = exp2_approx(warp_max[each] - largest);
    sum += weight * warp_sum[each];
    for (int col = 0; col < COLUMNS; ++col) o.x[col] += weight * warp_o[each][lane].x[col];
  }
  const float inverse = 1 / (sum == 0 ? 1 : sum);  // 0: every score was -inf, and so O is 0
  const int query = row % arguments.n, head = row / arguments.n % arguments.heads;
  const int batch = row / arguments.n / arguments.heads;
  Element *target = arguments.O + row_offset(arguments.o, batch, head, query, 1) + lane * COLUMNS;
  for (int col = 0; col < COLUMNS; col += 2) {
    *reinterpret_cast<unsigned *>(&target[col]) = round_pair<Element>(o.x[col] * inverse, o.x[col + 1] * inverse);
  }
  if (arguments.LSE && lane == 0) arguments.LSE[row] = (largest + log2f(sum)) * LN_2;
}

template <int WARP_Q>
cudaError_t launch(const Arguments &arguments, cudaStream_t stream) {
  constexpr int BLOCK_Q = WARPS * WARP_Q;
  const int rows = arguments.n * arguments.packed, splits = arguments.splits;
  const long long heads = (long long)arguments.batches * arguments.heads;
  const long long blocks = heads / arguments.packed * ceil_div(rows, BLOCK_Q);
  const long long outputs = heads * arguments.n;  // each combined by a block
  if (blocks > INT_MAX || splits > 65535 || (splits > 1 && outputs > INT_MAX)) return cudaErrorInvalidValue;
  const bool ragged = rows % BLOCK_Q || arguments.n_kv % BLOCK_KV;
  const auto kernel =
      arguments.LSE ? attention_kernel<WARP_Q, true, true>
      : ragged      ? attention_kernel<WARP_Q, true, false>
                    : attention_kernel<WARP_Q, false, false>;
  const int shared_bytes = sizeof(Shared<BLOCK_Q>);  // more than 48 KB must be asked for
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  kernel<<<dim3(blocks, splits), THREADS, shared_bytes, stream>>>(arguments);
  status = cudaGetLastError();
  if (status != cudaSuccess || splits == 1) return status;
  cudaFuncAttributes compiled;  // only code for 9.0 and newer waits for the shares, and may begin before they are there
  if ((status = cudaFuncGetAttributes(&compiled, combine_kernel)) != cudaSuccess) return status;
  cudaLaunchAttribute early = {cudaLaunchAttributeProgrammaticStreamSerialization};
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {dim3(outputs), dim3(THREADS), 0, stream, &early, compiled.ptxVersion >= 90};
  return cudaLaunchKernelEx(&config, combine_kernel, arguments);
}

// Whether each row begins at a multiple of 16 bytes. A stride that is never taken may be anything.
bool rows_in_chunks(const Element *first, const Strides &strides, int batches, int heads, int rows) {
  return first && reinterpret_cast<size_t>(first) % 16 == 0 && (batches == 1 || strides.batch % VECTOR == 0) &&
         (heads == 1 || strides.head % VECTOR == 0) && (rows == 1 || strides.row % VECTOR == 0);
}

// Strides are in elements: of the batches, the heads and the rows of Q, of K, of V and of O, in this order. partial_O
// and partial_LSE hold [splits, B, H, N, HEAD_DIM] and [splits, B, H, N] floats if splits > 1.
extern "C" cudaError_t launch_sdpa(
    const Element *Q, const Element *K, const Element *V, Element *O, float *LSE, float *partial_O, float *partial_LSE,
    int B, int H, int H_KV, int N, int N_KV, long long q_batch, long long q_head, long long q_row, long long k_batch,
    long long k_head, long long k_row, long long v_batch, long long v_head, long long v_row, long long o_batch,
    long long o_head, long long o_row, int splits, float scale, cudaStream_t stream) {
  const float scale_log2 = scale * LOG2_E;
  const Strides q = {q_batch, q_head, q_row}, k = {k_batch, k_head, k_row}, v = {v_batch, v_head, v_row};
  const Strides o = {o_batch, o_head, o_row};
  if (B < 1 || H < 1 || H_KV < 1 || H % H_KV || N < 1 || N_KV < 1 || splits < 1) return cudaErrorInvalidValue;
  if (!(scale_log2 > 0 && scale_log2 < INFINITY) || (CAUSAL && splits > 1)) return cudaErrorInvalidValue;
  if (!rows_in_chunks(Q, q, B, H, N) || !rows_in_chunks(O, o, B, H, N)) return cudaErrorInvalidValue;
  if (!rows_in_chunks(K, k, B, H_KV, N_KV) || !rows_in_chunks(V, v, B, H_KV, N_KV)) return cudaErrorInvalidValue;
  if (splits > 1 && !(partial_O && partial_LSE)) return cudaErrorInvalidValue;
  const int packed = N * (long long)(H / H_KV) <= SMALL_BLOCK_Q ? H / H_KV : 1;
  const int section = max(SECTION_BYTES / ((long long)N_KV * ROW_BYTES * 2), 4LL);
  const int shares = min(splits, ceil_div(N_KV, BLOCK_KV));  // none without a tile
  const Arguments arguments = {
      Q, K, V, O, LSE, partial_O, partial_LSE, q, k, v, o, B, H, H_KV, N, N_KV, shares, scale_log2, packed, section};
  return N * packed <= SMALL_BLOCK_Q ? launch<16>(arguments, stream) : launch<MAX_WARP_Q>(arguments, stream);
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

// 16 bytes, global -> shared, in the background; .cg caches in L2 only. For a chunk outside the matrix nothing is read,
// and 16 bytes of zeros are written.
__device__ __forceinline__ void cp_async_16_or_zeros(unsigned shared, const void *global, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(inside ? 16 : 0) : "memory");
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

// The larger of two pairs of 16-bit numbers, each half for itself.
__device__ __forceinline__ unsigned max_pair(unsigned a, unsigned b) {
  if constexpr (std::is_same_v<Element, half>)
    asm("max.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  else
    asm("max.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  return a;
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

// The address col columns further on in the same row, col a multiple of 16: within a line of 128 bytes the XOR of the
// swizzle and that of the step commute.
__device__ __forceinline__ unsigned columns_on(unsigned address, int col) {
  return (address ^ col % 64 * 2) + col / 64 * 128;
}
