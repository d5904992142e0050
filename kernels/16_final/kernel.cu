// Stage 16 · final: an attention that a person would call.
//
// Problem   O = softmax(Q · Kᵀ · scale) · V for each of B · H heads; Q and O are [B, H, N, HEAD_DIM], K and V
//           [B, H_KV, N_KV, HEAD_DIM], all with strides of their own; 16-bit DTYPE in and out, fp32 accumulation and
//           softmax. CAUSAL: query i sees keys 0 to i. LSE, if asked for, is log Σ exp(scores), [B, H, N], fp32. A row
//           all of whose scores are -inf has O = 0 and LSE = -inf, as in torch's attention.
// Idea      Stage 15 with a faster loop: a warp computes its weights first and looks for maxima only if one is too
//           large, the tensor cores add the weights up, and a tile of keys has one barrier. Around the loop, what real
//           use needs: any lengths (zeros copied, scores masked), a causal mask (hidden tiles are skipped, long blocks
//           start first), grouped heads (packed into one tile if their queries are few), and few queries against many
//           keys (keys split over blocks, combined by a second kernel: split-KV).
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

using Element = DTYPE;

constexpr int WARPS = 4, THREADS = WARPS * 32;         // per block
constexpr int BLOCK_KV = 64;                           // keys, and their values, per tile
constexpr int MMA_M = 16, MMA_N = 8, MMA_K = 16;       // rows, columns and depth of a tensor instruction
constexpr int SMALL_BLOCK_Q = WARPS * MMA_M;           // queries per block where there are few
constexpr int BLOCKS_PER_SM = HEAD_DIM == 64 ? 3 : 2;  // registers are limited so that they fit
constexpr int TILES_KV = BLOCK_KV / MMA_N, TILES_D = HEAD_DIM / MMA_N, DEPTH_KV = BLOCK_KV / MMA_K;
constexpr int VECTOR = 16 / sizeof(Element), ROW_CHUNKS = HEAD_DIM / VECTOR;  // elements in a chunk, one 16-byte copy
constexpr int COPY_ROWS = THREADS / ROW_CHUNKS;  // rows that the block copies at a time, a thread one chunk
constexpr int ROW_BYTES = HEAD_DIM * 2, TILE_BYTES = BLOCK_KV * ROW_BYTES;
constexpr int SECTION_KEYS = (16 << 20) / (2 * ROW_BYTES);  // K and V of so many are a quarter of an H200's L2
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;
constexpr float LOWEST = -3.4028235e38f;  // an m to begin with: finite, so that scores of -inf weigh 2^-inf = 0
constexpr float MOST = 256;               // that a weight may be: m is the row's maximum, or at most 8 less
constexpr float EXACT = 16777216;         // 2^24: below, m is within 1 of the product that it was rounded from

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(MAX_WARP_Q == 16 || MAX_WARP_Q == 32, "more queries than 32 do not fit into the registers of a warp");

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

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
};

template <int BLOCK_Q>
struct Shared {  // row-major, in swizzled chunks; written and read by the whole block
  alignas(ROW_BYTES) Element Q[BLOCK_Q][HEAD_DIM];
  alignas(ROW_BYTES) Element K[2][BLOCK_KV][HEAD_DIM];  // the tile that is read, and the one that arrives
  alignas(ROW_BYTES) Element V[2][BLOCK_KV][HEAD_DIM];
};

// What a lane holds of 16 queries: of its two rows, 0-7 and 8-15 of the tile, as far as keys have been read.
struct Result {
  float o[TILES_D][4] = {};         // 16 × HEAD_DIM of O per warp, in mma's layout
  float l[4] = {};                  // the sums of the weights, rounded as in P, each twice, in mma's layout
  float max[2] = {LOWEST, LOWEST};  // m, the maximum of the scores, scaled, or up to 8 less
  float exact_sum[2] = {};          // as l, of weights not yet rounded, and of this lane's keys: for LSE
};

// Parts of the kernel, instructions and addresses: declared here, defined after the kernels. (A specialization must be
// declared before its first use, and a template is inlined by force only if its first declaration says so.)
__device__ void mask(float (&s)[TILES_KV][4], int row, int key, int packed, int n_kv);
__device__ void softmax(unsigned (&p)[DEPTH_KV][4], Result &result, const float (&s)[TILES_KV][4], float scale_log2);
__device__ long long row_offset(const Strides &strides, int batch, int head, int row, int packed);
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

// WARP_Q: 32 queries per warp as in stage 15, or 16 if there are few: then memory is what limits. RAGGED: the last tile
// of queries or of keys may reach over the end. WITH_LSE: LSE is asked for.
template <int WARP_Q, bool RAGGED, bool WITH_LSE>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    attention_kernel(const __grid_constant__ Arguments arguments) {
  constexpr int BLOCK_Q = WARPS * WARP_Q;  // queries per block
  constexpr int TILES_Q = WARP_Q / MMA_M;
  extern __shared__ __align__(ROW_BYTES) unsigned char shared[];
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
    const int section = max(SECTION_KEYS / arguments.n_kv, 4);  // heads whose tiles run together
    const int first_group = group / section * section;
    const int groups = min(section, (int)gridDim.x / q_tiles - first_group);
    const int turn = blockIdx.x - first_group * q_tiles;  // within the section
    group = first_group + turn % groups;
    q_tile = q_tiles - 1 - turn / groups;
  }
  const int batch = group / head_groups;
  const int head = group % head_groups * packed;  // the first of those that are packed
  const int tile_row = q_tile * BLOCK_Q;
  const int n_kv = CAUSAL ? min(arguments.n_kv, (tile_row + BLOCK_Q - 1) / packed + 1) : arguments.n_kv;
  const int splits = gridDim.y;  // blocks that share the keys in turn: what is read at a time lies side by side
  const int kv_tiles = ceil_div(ceil_div(n_kv, BLOCK_KV) - (int)blockIdx.y, splits);
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * WARP_Q;       // of this warp's queries, within the block's
  const int lane_row = tile_row + warp_row + lane / 4;  // of this lane's first query
  // Keys that all queries of this warp see, and tiles of which any sees a key.
  const int last_query = (tile_row + warp_row + WARP_Q - 1) / packed;
  const int common_keys = CAUSAL ? min(arguments.n_kv, (tile_row + warp_row) / packed + 1) : arguments.n_kv;
  const bool idle = WARP_Q == 16 && tile_row + warp_row >= rows;  // no query: it only copies
  const int seen_tiles = idle ? 0 : CAUSAL ? min(kv_tiles, last_query / BLOCK_KV + 1) : kv_tiles;

  // 2. Global -> shared, in the background: Q once; K and V tile by tile. Rows 8 apart are swizzled alike, so that a
  // thread's copies differ by constants. RAGGED: rows after the end become zeros.
  const int copy_row = threadIdx.x / ROW_CHUNKS;
  const int copy_col = threadIdx.x % ROW_CHUNKS * VECTOR;
  const unsigned copy_place = copy_row * ROW_BYTES + swizzle<HEAD_DIM>(copy_row, copy_col) * (unsigned)sizeof(Element);
  const int kv_head = head / (arguments.heads / arguments.heads_kv);
  const int copy_key = blockIdx.y * BLOCK_KV + copy_row;
  const Element *keys = arguments.K + row_offset(arguments.k, batch, kv_head, copy_key, 1) + copy_col;
  const Element *values = arguments.V + row_offset(arguments.v, batch, kv_head, copy_key, 1) + copy_col;
  const auto copy_tile = [&](unsigned buffer, const Element *&source, long long row_stride, int tile) {
    const int left = arguments.n_kv - copy_key - tile * splits * BLOCK_KV;  // rows from this thread's first one on
#pragma unroll
    for (int row = 0; row < BLOCK_KV; row += COPY_ROWS) {
      cp_async_16_or_zeros(buffer + copy_place + row * ROW_BYTES, source + row * row_stride, !RAGGED || row < left);
    }
    source += splits * BLOCK_KV * row_stride;
  };
#pragma unroll
  for (int row = 0; row < BLOCK_Q; row += COPY_ROWS) {
    const int from = tile_row + copy_row + row;
    const Element *source = arguments.Q + row_offset(arguments.q, batch, head, from, packed) + copy_col;
    cp_async_16_or_zeros(shared_address(tiles.Q) + copy_place + row * ROW_BYTES, source, !RAGGED || from < rows);
  }
  copy_tile(shared_address(tiles.K[0]), keys, arguments.k.row, 0);
  copy_tile(shared_address(tiles.V[0]), values, arguments.v.row, 0);
  cp_async_commit();

  // Where this lane's rows of ldmatrix begin: of Q and V, and of K. Rows are aligned to their length: XOR with the size
  // of d columns, a multiple of 16, leads d columns further on, since it commutes with the XOR of the swizzle.
  const int q_row = lane % 16, q_col = lane / 16 * 8;                    // rows 0-7 | 8-15 of chunk 0, then of chunk 1
  const int k_row = lane / 16 * 8 + lane % 8, k_col = lane / 8 % 2 * 8;  // chunk 0 | 1 of keys 0-7, then of keys 8-15
  const unsigned q_rows = shared_address(&tiles.Q[warp_row + q_row][swizzle<HEAD_DIM>(warp_row + q_row, q_col)]);
  const unsigned k_rows = shared_address(&tiles.K[0][k_row][swizzle<HEAD_DIM>(k_row, k_col)]);
  const unsigned v_rows = shared_address(&tiles.V[0][q_row][swizzle<HEAD_DIM>(q_row, q_col)]);
  const unsigned ones[2] = {round_pair<Element>(1, 1), round_pair<Element>(1, 1)};
  Result result[TILES_Q];
  for (int tile = 0; tile < kv_tiles; ++tile) {
    cp_async_wait<0>();  // each thread waits for its own copies of this tile, then everybody for everybody's: it is
    __syncthreads();     // complete, and the one before, whose place the next one takes, has been read by all
    const unsigned buffer = tile % 2 * TILE_BYTES, other = TILE_BYTES - buffer;
    unsigned p[TILES_Q][DEPTH_KV][4];  // WARP_Q × 64 of P per warp, as mma wants its first operand
    if (tile + 1 < kv_tiles) copy_tile(shared_address(tiles.K) + other, keys, arguments.k.row, tile + 1);

    // 3. S = Q · Kᵀ: this warp's queries, all keys; and the weights of these scores.
    if (tile < seen_tiles) {
      float s[TILES_Q][TILES_KV][4] = {};  // WARP_Q × 64 of S per warp, in mma's layout
#pragma unroll
      for (int d = 0; d < HEAD_DIM; d += MMA_K) {
        unsigned q[TILES_Q][4];
#pragma unroll
        for (int m = 0; m < TILES_Q; ++m) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
          ldmatrix_x4(q[m][0], q[m][1], q[m][2], q[m][3], (q_rows ^ d * 2) + m * MMA_M * ROW_BYTES);
        }
#pragma unroll
        for (int n = 0; n < TILES_KV; n += 2) {  // matrices: columns 0-7 | 8-15 of keys 0-7, then of keys 8-15
          unsigned k[2][2];
          ldmatrix_x4(k[0][0], k[0][1], k[1][0], k[1][1], (k_rows + buffer ^ d * 2) + n * MMA_N * ROW_BYTES);
#pragma unroll
          for (int m = 0; m < TILES_Q; ++m) {
            mma_m16n8k16<Element>(s[m][n], q[m], k[0]);
            mma_m16n8k16<Element>(s[m][n + 1], q[m], k[1]);
          }
        }
      }
      const int tile_key = (blockIdx.y + tile * splits) * BLOCK_KV;
#pragma unroll
      for (int m = 0; m < TILES_Q; ++m) {
        if ((RAGGED || CAUSAL) && common_keys - tile_key < BLOCK_KV) {
          mask(s[m], lane_row + m * MMA_M, tile_key + lane % 4 * 2, packed, arguments.n_kv);
        }
        softmax(p[m], result[m], s[m], arguments.scale_log2);
      }
    }
    if (tile + 1 < kv_tiles) copy_tile(shared_address(tiles.V) + other, values, arguments.v.row, tile + 1);
    cp_async_commit();

    // 4. O += P · V, all columns; and l += P · 1, so that O is divided by the sum of the very weights that made it.
    if (tile >= seen_tiles) continue;
#pragma unroll
    for (int key = 0; key < BLOCK_KV; key += MMA_K) {
#pragma unroll
      for (int m = 0; m < TILES_Q; ++m) mma_m16n8k16<Element>(result[m].l, p[m][key / MMA_K], ones);
#pragma unroll
      for (int n = 0; n < TILES_D; n += 2) {  // rows of V are keys: .trans puts them along the registers
        unsigned v[2][2];
        ldmatrix_x4_trans(v[0][0], v[0][1], v[1][0], v[1][1], (v_rows + buffer ^ n * MMA_N * 2) + key * ROW_BYTES);
#pragma unroll
        for (int m = 0; m < TILES_Q; ++m) {
          mma_m16n8k16<Element>(result[m].o[n], p[m][key / MMA_K], v[0]);
          mma_m16n8k16<Element>(result[m].o[n + 1], p[m][key / MMA_K], v[1]);
        }
      }
    }
  }

  // 5. Divide by the sums, and store two neighbours at a time: rounded, or in fp32 if shares are to be combined.
#pragma unroll
  for (int m = 0; m < TILES_Q; ++m) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      const int row = lane_row + m * MMA_M + half_tile * 8;
      const float sum = result[m].l[half_tile * 2];
      const float inverse = 1 / (sum == 0 ? 1 : sum);  // 0: every score was -inf, and so O is 0
      const float exact_sum = WITH_LSE ? quad_sum(result[m].exact_sum[half_tile]) : sum;
      const float log2_sum = result[m].max[half_tile] + log2f(exact_sum);
      if (RAGGED && row >= rows) continue;
      const size_t place = ((size_t)batch * arguments.heads + head + row % packed) * arguments.n + row / packed;
      const size_t share = blockIdx.y * (size_t)arguments.batches * arguments.heads * arguments.n + place;
      if (splits > 1 && lane % 4 == 0) arguments.partial_LSE[share] = log2_sum;
      if (splits == 1 && WITH_LSE && lane % 4 == 0) arguments.LSE[place] = log2_sum * LN_2;
      Element *o = arguments.O + row_offset(arguments.o, batch, head, row, packed);
#pragma unroll
      for (int n = 0; n < TILES_D; ++n) {
        const int col = n * MMA_N + lane % 4 * 2;
        const float2 pair = {result[m].o[n][half_tile * 2] * inverse, result[m].o[n][half_tile * 2 + 1] * inverse};
        if (splits > 1) {
          *reinterpret_cast<float2 *>(&arguments.partial_O[share * HEAD_DIM + col]) = pair;
        } else {
          *reinterpret_cast<unsigned *>(&o[col]) = round_pair<Element>(pair.x, pair.y);
        }
      }
    }
  }
}

// O of each query is the mean over its shares of the keys, weighted by their sums of weights, 2^LSE, relative to the
// largest one. A block per query, a thread per column.
__global__ void __launch_bounds__(HEAD_DIM) combine_kernel(const __grid_constant__ Arguments arguments) {
  constexpr int AT_ONCE = 32;                     // shares that a thread waits for together
  const int row = blockIdx.x, col = threadIdx.x;  // a row is a query of a head of a batch
  const size_t rows = gridDim.x;
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // attention_kernel has written all shares
#endif
  float largest = LOWEST, sum = 0, o = 0;
  for (int first = 0; first < arguments.splits; first += AT_ONCE) {
    float lse[AT_ONCE], share_o[AT_ONCE], new_max = largest;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const size_t share = (first + i) * rows + row;
      const bool there = first + i < arguments.splits;
      lse[i] = there ? arguments.partial_LSE[share] : -INFINITY;
      share_o[i] = there ? arguments.partial_O[share * HEAD_DIM + col] : 0;
      new_max = fmaxf(new_max, lse[i]);
    }
    const float correction = exp2_approx(largest - new_max);
    largest = new_max;
    sum *= correction;
    o *= correction;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const float weight = exp2_approx(lse[i] - largest);
      sum += weight;
      o += weight * share_o[i];
    }
  }
  const int query = row % arguments.n, head = row / arguments.n % arguments.heads;
  const int batch = row / arguments.n / arguments.heads;
  const float mean = o / (sum == 0 ? 1 : sum);  // 0: every score was -inf, and so O is 0
  arguments.O[row_offset(arguments.o, batch, head, query, 1) + col] = Element(mean);
  if (arguments.LSE && col == 0) arguments.LSE[row] = (largest + log2f(sum)) * LN_2;
}

template <int WARP_Q>
cudaError_t launch(const Arguments &arguments, cudaStream_t stream) {
  constexpr int BLOCK_Q = WARPS * WARP_Q, SHARED_BYTES = sizeof(Shared<BLOCK_Q>);  // beyond 48 KB to be asked for
  const int rows = arguments.n * arguments.packed, splits = arguments.splits;
  const long long outputs = (long long)arguments.batches * arguments.heads * arguments.n;  // each combined by a block
  const long long blocks = outputs / rows * ceil_div(rows, BLOCK_Q);
  if (blocks > INT_MAX || splits > 65535 || (splits > 1 && outputs > INT_MAX)) return cudaErrorInvalidValue;
  const bool ragged = rows % BLOCK_Q || arguments.n_kv % BLOCK_KV;
  const auto kernel =
      arguments.LSE ? attention_kernel<WARP_Q, true, true>
      : ragged      ? attention_kernel<WARP_Q, true, false>
                    : attention_kernel<WARP_Q, false, false>;
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  if (status != cudaSuccess) return status;
  kernel<<<dim3(blocks, splits), THREADS, SHARED_BYTES, stream>>>(arguments);
  status = cudaGetLastError();
  if (status != cudaSuccess || splits == 1) return status;
  cudaFuncAttributes compiled;  // only code for 9.0 and newer waits for the shares, and may begin before they are there
  if ((status = cudaFuncGetAttributes(&compiled, combine_kernel)) != cudaSuccess) return status;
  cudaLaunchAttribute early = {cudaLaunchAttributeProgrammaticStreamSerialization};
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {dim3(outputs), HEAD_DIM, 0, stream, &early, compiled.ptxVersion >= 90 ? 1u : 0u};
  return cudaLaunchKernelEx(&config, combine_kernel, arguments);
}

// Whether each row begins at a multiple of 16 bytes. A stride that is never taken may be anything.
bool rows_in_chunks(const Element *first, const Strides &strides, int batches, int heads, int rows) {
  return first && reinterpret_cast<size_t>(first) % 16 == 0 && (batches == 1 || strides.batch % VECTOR == 0) &&
         (heads == 1 || strides.head % VECTOR == 0) && (rows == 1 || strides.row % VECTOR == 0);
}

// Strides are in elements: of the batches, the heads and the rows of Q, of K, of V and of O, in this order.
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
  const int shares = min(splits, ceil_div(N_KV, BLOCK_KV));  // none without a tile
  const Arguments arguments = {
      Q, K, V, O, LSE, partial_O, partial_LSE, q, k, v, o, B, H, H_KV, N, N_KV, shares, scale_log2, packed};
  return N * packed <= SMALL_BLOCK_Q ? launch<16>(arguments, stream) : launch<MAX_WARP_Q>(arguments, stream);
}

// No key, no weight: scores of keys after the last one that a query sees become -inf. `row` is this lane's first row
// among the `packed` heads' queries, `key` its first key.
__device__ __forceinline__ void mask(float (&s)[TILES_KV][4], int row, int key, int packed, int n_kv) {
#pragma unroll
  for (int half_tile = 0; half_tile < 2; ++half_tile) {
    const int query = (row + half_tile * 8) / packed;
    const int last = CAUSAL ? min(query, n_kv - 1) : n_kv - 1;
#pragma unroll
    for (int n = 0; n < TILES_KV; ++n) {
      for (int i = 0; i < 2; ++i) {
        if (key + n * MMA_N + i > last) s[n][half_tile * 2 + i] = -INFINITY;
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
  return __any_sync(~0u, largest > most || largest << 16 > most << 16);
}

// m becomes the maximum of each row's scores so far, and what was summed by the old m is corrected.
__device__ __forceinline__ void raise_max(Result &result, const float (&s)[TILES_KV][4], float scale_log2) {
#pragma unroll
  for (int half_tile = 0; half_tile < 2; ++half_tile) {
    float largest = s[0][half_tile * 2];
#pragma unroll
    for (int n = 0; n < TILES_KV; ++n) largest = fmaxf(largest, fmaxf(s[n][half_tile * 2], s[n][half_tile * 2 + 1]));
    const float new_max = fmaxf(result.max[half_tile], quad_max(largest) * scale_log2);
    const float correction = exp2_approx(result.max[half_tile] - new_max);  // at first 0
    result.max[half_tile] = new_max;
    result.exact_sum[half_tile] *= correction;
    for (int i = half_tile * 2; i < half_tile * 2 + 2; ++i) {
      result.l[i] *= correction;
      for (int n = 0; n < TILES_D; ++n) result.o[n][i] *= correction;
    }
  }
}

// Online softmax of 16 queries, rows that lie in a quad. Any number that is no more than 8 below a row's maximum serves
// as m: it cancels in O / l (the conditional rescaling of FlashAttention-4). So the weights come first; only where one
// is more than 2^8 the maxima of the scores are looked for, and the weights computed again.
__device__ __forceinline__ void softmax(
    unsigned (&p)[DEPTH_KV][4], Result &result, const float (&s)[TILES_KV][4], float scale_log2) {
  float sum[2];
  // An m beyond 2^24 may be more than 1 off the product that it was rounded from: too coarse for an FMA. So is LOWEST,
  // the first m, and the first tile's maxima are looked for at once.
  const bool coarse = __any_sync(~0u, fmaxf(fabsf(result.max[0]), fabsf(result.max[1])) > EXACT);
  if (coarse || weigh(p, sum, s, result.max, scale_log2, false)) {
    raise_max(result, s, scale_log2);
    weigh(p, sum, s, result.max, scale_log2, true);
  }
  result.exact_sum[0] += sum[0];
  result.exact_sum[1] += sum[1];
}

// Where a row of a tile lies in a tensor: row r is query r / packed of head r % packed.
__device__ __forceinline__ long long row_offset(const Strides &strides, int batch, int head, int row, int packed) {
  const int query = packed == 1 ? row : row / packed;
  return batch * strides.batch + (head + row - query * packed) * strides.head + query * strides.row;
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
