// Stage h8 · fp8: e4m3 operands, which the tensor cores multiply twice as fast.
//
// Problem   O = softmax(Q · Kᵀ · scale) · V for each of B · H heads, from 8-bit Q, K and V [B, H, N, HEAD_DIM], as
//           quantize.cu makes them: 64 rows share a scale; fp32 accumulation and softmax, O in 16-bit DTYPE.
// Idea      e4m3 has 4 significant bits and ends at 448. The scales of Q and K are a factor of the scores. That of V
//           goes into the weights: the softmax is of score + log₂(scale of V). P stays in registers, since quantize.cu
//           puts V's keys in P's order. Eight rows below V, of ones, make sums of the rounded weights columns of P · V.
//           (Scales, order of V's keys: Shah et al., "FlashAttention-3", 2024.) After the first tile no maximum before
//           the weights: they are made with the m of the tiles before, and one that reaches 2^8 shows that m must rise.
//
//   level     | S = Q · Kᵀ (queries × keys)  | O += P · V (queries × columns)    | who
//   ----------+------------------------------+-----------------------------------+------------------------------
//   block     | 128 × KEYS                   | 128 × HEAD_DIM                    | 3 warpgroups
//   producer  | tiles K0, K1, V0, K2, V1, ...                                    | 1 thread of the last one, and TMA
//   consumer  | 64 × KEYS: its queries       | 64 × HEAD_DIM: its queries        | 2
//   wgmma     | Q 64 × 32, K KEYS × 32       | P 64 × 32, Vᵀ (HEAD_DIM + 8) × 32 | the tensor cores of the SM
//
// Thread map   S and O as in stage h7. P as wgmma wants it has, for each lane, 4 neighbouring keys of 16: t * 4 to
//              t * 4 + 3, where t = lane % 4. In S the lane has keys t * 2, t * 2 + 1, 8 + t * 2, 9 + t * 2. So these
//              four are what stands at t * 4 to t * 4 + 3 in V, and nothing moves between lanes. Q is in registers too.
// Limits       HEAD_DIM 64 or 128; N a multiple of 128; no mask; scale > 0; scores times scale below a million, where
//              fp32 rounds them by as much as e4m3 the weights; a head's scales of V at least a 16th of its largest;
//              compute capability 9.0a; 165 KB of shared memory (85 KB for HEAD_DIM 64).
// Layouts      wgmma multiplies 8-bit operands whose rows lie along K alone: V is transposed, [B, H, HEAD_DIM, N].
//              PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor maps", "mbarrier".

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of O
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128  // elements of a query, a key, a value: 64 or 128
#endif
#ifndef KEYS
#define KEYS 128  // keys, and their values, per tile: 64 or 128
#endif

using Element = DTYPE;
using Fp8 = __nv_fp8_e4m3;  // an element of Q, K and V

constexpr int STAGES = 4;                       // tiles in each ring, of K and of V
constexpr int WGMMA_M = 64, WGMMA_K = 32;       // rows of S or O, and depth, of a tensor instruction
constexpr int WARP_M = WGMMA_M / 4, MMA_N = 8;  // rows of S or O per warp; columns per four registers of a lane
constexpr int CONSUMERS = 2, BLOCK_Q = CONSUMERS * WGMMA_M, THREADS = (CONSUMERS + 1) * 128;
constexpr int ROWS = 64, SCALES = KEYS / ROWS;  // rows of Q, K or V that share a scale; scales of a tile
constexpr int TILES_KV = KEYS / MMA_N, TILES_SCALE = ROWS / MMA_N, TILES_D = HEAD_DIM / MMA_N;
constexpr int LINE = 64;                  // elements of O in 128 bytes, a row of the swizzle
constexpr int ONES = MMA_N;               // rows below V, for the sums of P
constexpr float ROOM = 4;                 // the largest weight is 2^ROOM, and below 2^8 where m lags behind the maximum
constexpr float LOWEST = -3.4028235e38f;  // an m to begin with: finite, so that its difference to -inf is not NaN

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(KEYS == 64 || KEYS == 128, "KEYS is 64 or 128: a tensor instruction each");

// Instructions, declared here, defined at the end. (A template is inlined by force if its first declaration says so.)
__device__ unsigned shared_address(const void *pointer);
__device__ void mbarrier_init(unsigned barrier, int count), fence_mbarrier_init();
__device__ void mbarrier_arrive(unsigned barrier), mbarrier_arrive_expect(unsigned barrier, int bytes);
__device__ void mbarrier_wait(unsigned barrier, int parity);
__device__ void tma_load(unsigned shared, const CUtensorMap *map, int row, int col, unsigned full);
__device__ void tma_store(const CUtensorMap *map, int row, int col, unsigned shared), bulk_commit();
template <int N>
__device__ __forceinline__ void bulk_wait_read();
template <int N>
__device__ __forceinline__ void setmaxnreg_dec();
template <int N>
__device__ __forceinline__ void setmaxnreg_inc();
__device__ void wgmma_fence(), wgmma_commit();
template <int N, typename... Sums>
__device__ __forceinline__ void wgmma_wait(Sums &...sums);
template <int WIDTH>  // bytes of a row, and of the swizzle: 64 or 128
__device__ __forceinline__ unsigned long long descriptor_of_rows(unsigned address);
template <int N>  // D[64, N] = A[64, 32] · B[N, 32]ᵀ, and D before if `add`
__device__ __forceinline__ void wgmma_fp8(float (&d)[N / 8][4], const unsigned (&a)[4], unsigned long long b, int add);
template <typename T>
__device__ unsigned round_pair(float first, float second);
template <>
__device__ unsigned round_pair<Element>(float first, float second);
__device__ unsigned round_four(float x0, float x1, float x2, float x3);
__device__ float exp2_approx(float x), quad_max(float x);
__device__ void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3), fence_proxy_async();

struct Shared {  // written by TMA, but O; its swizzle repeats after 8 rows
  alignas(1024) Fp8 K[STAGES][KEYS][HEAD_DIM];
  alignas(1024) Fp8 V[STAGES][HEAD_DIM + ONES][KEYS];              // and ones, which stay
  alignas(1024) Element O[HEAD_DIM / LINE][BLOCK_Q][LINE];         // on its way to TMA
  alignas(8) unsigned long long full_K[STAGES], full_V[STAGES];    // mbarriers: a tile has come
  alignas(8) unsigned long long empty_K[STAGES], empty_V[STAGES];  // ... the consumers have read it
};

__global__ void __launch_bounds__(THREADS, 1) attention_kernel(
    const Fp8 *__restrict__ Q,                  // [B · H · N, HEAD_DIM]
    const __grid_constant__ CUtensorMap K_map,  // [B · H · N, HEAD_DIM] in boxes of KEYS rows
    const __grid_constant__ CUtensorMap V_map,  // [B · H · HEAD_DIM, N] in boxes of HEAD_DIM rows and KEYS columns
    const __grid_constant__ CUtensorMap O_map,  // [B · H · N, HEAD_DIM] in boxes of WARP_M rows and LINE columns
    const float *__restrict__ scales,           // [3, B · H · N / ROWS]: of Q, of K, of V
    int rows, int N, float scale_log2) {        // B · H · N; scale · log₂e
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared &shared = *reinterpret_cast<Shared *>(memory);

  // 1. A block per multiprocessor takes every gridDim.x-th tile of queries. Neighbours share a head, whose K and V they
  // find in L2. Tiles of K and V follow one another in their rings, from one tile of queries to the next.
  const int thread = threadIdx.x;
  const int warp = __shfl_sync(~0u, thread / 32, 0);  // so the compiler knows that the lanes of a warp agree
  const int lane = thread % 32;
  const int consumer = warp / 4;
  const int tiles = N / KEYS;  // of K and V, for each tile of queries
  unsigned position = 0;       // of the first of them, in the order of all that pass through the rings

  for (int stage = 0; thread == 0 && stage < STAGES; ++stage) {
    mbarrier_init(shared_address(&shared.full_K[stage]), 1);
    mbarrier_init(shared_address(&shared.full_V[stage]), 1);
    mbarrier_init(shared_address(&shared.empty_K[stage]), CONSUMERS);
    mbarrier_init(shared_address(&shared.empty_V[stage]), CONSUMERS);
  }
  if (thread == 0) fence_mbarrier_init();
  // Ones below each tile of V: for keys that share the first scale in even rows, for the others in odd ones. So a lane
  // has both sums of a row of P, in neighbouring columns.
  for (int i = thread; i < STAGES * ONES * KEYS / 4; i += THREADS) {  // four at a time
    const int stage = i / (ONES * KEYS / 4), one_row = i / (KEYS / 4) % ONES, place = i % (KEYS / 4) * 4;
    const int key = (place / 16 ^ one_row) * 16;  // of the 16 that the swizzle puts there
    const bool one = SCALES == 1 || key / ROWS == one_row % 2;
    reinterpret_cast<unsigned &>(shared.V[stage][HEAD_DIM + one_row][place]) = one ? round_four(1, 1, 1, 1) : 0;
  }
  fence_proxy_async();  // wgmma reads them
  __syncthreads();      // nobody waits at a barrier that is not made yet

  // 2. The producer. Global -> shared, by TMA: each tile into the next stage, once the tile before it there is read.
  if (consumer == CONSUMERS) {
    setmaxnreg_dec<24>();
    if (thread % 128 > 0) return;
    const auto load = [&](auto &ring, auto &full, auto &empty, const CUtensorMap *map, unsigned at, int row, int col) {
      const unsigned stage = at % STAGES;
      if (at >= STAGES) mbarrier_wait(shared_address(&empty[stage]), (at / STAGES - 1) % 2);
      mbarrier_arrive_expect(shared_address(&full[stage]), KEYS * HEAD_DIM);
      tma_load(shared_address(ring[stage]), map, row, col, shared_address(&full[stage]));
    };
    for (int row = blockIdx.x * BLOCK_Q; row < rows; row += gridDim.x * BLOCK_Q, position += tiles) {
      const int head = row / N;
      for (int tile = 0; tile <= tiles; ++tile) {  // in the order in which they are multiplied
        const unsigned at = position + tile;
        if (tile < tiles) load(shared.K, shared.full_K, shared.empty_K, &K_map, at, head * N + tile * KEYS, 0);
        if (tile > 0) load(shared.V, shared.full_V, shared.empty_V, &V_map, at - 1, head * HEAD_DIM, (tile - 1) * KEYS);
      }
    }
    return;
  }

  // 3. The consumers.
  setmaxnreg_inc<240>();
  const int warp_row = warp * WARP_M;  // of this warp's 16 queries, in the block's tile
  const auto wait_for = [&](auto &full, unsigned at) {
    mbarrier_wait(shared_address(&full[at % STAGES]), at / STAGES % 2);
  };
  const auto give_back = [&](auto &empty, unsigned at) {
    if (thread % 128 == 0) mbarrier_arrive(shared_address(&empty[at % STAGES]));
  };
  unsigned q[HEAD_DIM / WGMMA_K][4];  // 16 × HEAD_DIM of Q per warp, as wgmma wants its first operand
  const auto read_Q = [&](int row) {  // four bytes a lane: columns t * 4 to t * 4 + 3 of each 16, rows lane / 4 and + 8
#pragma unroll
    for (int i = 0; i < HEAD_DIM / WGMMA_K * 4; ++i)
      q[i / 4][i % 4] = reinterpret_cast<const unsigned &>(
          Q[(size_t)(row + warp_row + i % 2 * 8 + lane / 4) * HEAD_DIM + i / 2 * 16 + lane % 4 * 4]);
  };
  read_Q(blockIdx.x * BLOCK_Q);

  for (int row = blockIdx.x * BLOCK_Q; row < rows; row += gridDim.x * BLOCK_Q, position += tiles) {
    float s[TILES_KV][4];                         // 16 × KEYS of S per warp, in wgmma's layout
    float o[TILES_D + 1][4] = {};                 // 16 × HEAD_DIM of O per warp, likewise, and sums of P in two columns
    float row_max[2] = {LOWEST, LOWEST};          // m of this lane's rows, in 0-7 and in 8-15 of the warp's
    float row_sum[2] = {};                        // l of these rows
    bool moved;                                   // did m move with this tile?
    float correction[2];                          // if m moved: of what was summed by the m before
    using Weights = unsigned[KEYS / WGMMA_K][4];  // 16 × KEYS of P per warp, as wgmma wants its first operand
    Weights p_even, p_odd;                        // of tiles with such numbers: one is made while wgmma reads the other

    // S = Q · Kᵀ: this warpgroup's queries, all keys. 32 columns are 32 bytes on, in a row.
    const auto start_scores = [&](unsigned at) {
      const auto k = descriptor_of_rows<HEAD_DIM>(shared_address(shared.K[at % STAGES]));
#pragma unroll
      for (int d = 0; d < HEAD_DIM; d += WGMMA_K) wgmma_fp8<KEYS>(s, q[d / WGMMA_K], k + d / 16, d > 0);
      wgmma_commit();
    };

    // O += P · V: this warpgroup's queries, all columns. 32 keys are 32 bytes on, in a row of Vᵀ. And the sums of P's
    // rows: numerator and denominator of O have the same rounded weights.
    const auto start_values = [&](const Weights &p, unsigned at) {
      const auto v = descriptor_of_rows<KEYS>(shared_address(shared.V[at % STAGES]));
#pragma unroll
      for (int key = 0; key < KEYS; key += WGMMA_K) wgmma_fp8<HEAD_DIM + ONES>(o, p[key / WGMMA_K], v + key / 16, true);
      wgmma_commit();
    };

    // Of each 64 keys: K's scale is a factor of the scores, V's adds log₂ of it to the exponents. They come from L2: a
    // tile's are read while the tile before it is weighed.
    const float *K_scales = scales + rows / ROWS + row / N * N / ROWS, *V_scales = K_scales + rows / ROWS;
    const float Q_scale = scales[row / ROWS + consumer] * scale_log2;
    float next_K[SCALES] = {}, next_V[SCALES] = {}, factor[SCALES], power[SCALES], power_before[SCALES];
    const auto read_scales = [&](int tile) {  // those that were read before are of this tile now
#pragma unroll
      for (int i = 0; i < SCALES; ++i) {
        power_before[i] = power[i], factor[i] = next_K[i] * Q_scale, power[i] = __log2f(next_V[i]);
        next_K[i] = K_scales[tile * SCALES + i], next_V[i] = V_scales[tile * SCALES + i];
      }
    };

    // 4. Online softmax, of rows that lie in a quad: scores become weights 2^(score + log₂(scale of V) - m + ROOM). m
    // cancels in O / l, so any serves that leaves no weight too large (the conditional rescaling of FlashAttention-4).
    // After the first tile the weights are made with the m so far. Only if one is 2^8 or more, m becomes the largest
    // score + log₂(scale of V), and they are made again.
    const auto weigh = [&](Weights &p, bool first) {
      const auto make_weights = [&] {  // four side by side are a register of P; is one of this lane's too large?
        unsigned high = 0;
#pragma unroll
        for (int n = 0; n < TILES_KV; n += 2) {
#pragma unroll
          for (int half_tile = 0; half_tile < 2; ++half_tile) {
            const int block = n / TILES_SCALE;
            const float most = row_max[half_tile] - ROOM - power[block];
            float w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
              w[i] = exp2_approx(fmaf(s[n + i / 2][half_tile * 2 + i % 2], factor[block], -most));
            const unsigned four = p[n / 4][n % 4 + half_tile] = round_four(w[0], w[1], w[2], w[3]);
            high |= four + 0x08080808;  // e4m3 of 2^8 is 0x78, and of more, or of what is no number, at most 0x7f
          }
        }
        return (high & 0x80808080) != 0;
      };

      moved = first || __any_sync(~0u, make_weights());  // a vote: all lanes of the warp take the same branch
      if (!moved) return;
#pragma unroll
      for (int half_tile = 0; half_tile < 2; ++half_tile) {
        float largest = LOWEST;
#pragma unroll
        for (int i = 0; i < SCALES; ++i) {
          float of_block = LOWEST;
#pragma unroll
          for (int n = i * TILES_SCALE; n < (i + 1) * TILES_SCALE; ++n)
            of_block = fmaxf(of_block, fmaxf(s[n][half_tile * 2], s[n][half_tile * 2 + 1]));
          largest = fmaxf(largest, fmaf(of_block, factor[i], power[i]));
        }
        const float new_max = fmaxf(row_max[half_tile], quad_max(largest));
        correction[half_tile] = exp2_approx(row_max[half_tile] - new_max);  // at first 0
        row_max[half_tile] = new_max;
      }
      make_weights();
    };

    // The sums of the tile before have come, times the scale of V; the next ones begin at 0. (Times 0: ptxas makes each
    // product wait for the one before if a constant is written into an accumulator.)
    const auto add_sums = [&](const float (&power)[SCALES]) {
#pragma unroll
      for (int i = 0; i < SCALES * 2; ++i) {
        float &sum = o[TILES_D][i / SCALES * 2 + i % SCALES];
        row_sum[i / SCALES] = fmaf(sum, exp2_approx(-power[i % SCALES]), row_sum[i / SCALES]);
        sum *= 0.f;
      }
    };

    // A tile: its scores and the values of the one before are started together; then the scores are weighed.
    const auto step = [&](int tile, const Weights &p_before, Weights &p) {
      const unsigned at = position + tile;
      read_scales(min(tile + 1, tiles - 1));
      wait_for(shared.full_K, at);
      wgmma_fence();
      start_scores(at);
      wait_for(shared.full_V, at - 1);
      start_values(p_before, at - 1);
      wgmma_wait<1>(s);  // the scores are there
      give_back(shared.empty_K, at);
      weigh(p, false);
      wgmma_wait<0>(o);  // the products have read p_before and V and written o
      give_back(shared.empty_V, at - 1);
      add_sums(power_before);
      if (moved) {
        row_sum[0] *= correction[0], row_sum[1] *= correction[1];
#pragma unroll
        for (int n = 0; n < TILES_D; ++n) {
          o[n][0] *= correction[0], o[n][1] *= correction[0];
          o[n][2] *= correction[1], o[n][3] *= correction[1];
        }
      }
    };

    // The first scores, with no values beside them, tile after tile, and the last values.
    read_scales(0);
    read_scales(min(1, tiles - 1));
    wait_for(shared.full_K, position);
    wgmma_fence();
    start_scores(position);
    wgmma_wait<0>(s);
    give_back(shared.empty_K, position);
    weigh(p_even, true);
    for (int tile = 1; tile < tiles; tile += 2) {
      step(tile, p_even, p_odd);
      if (tile + 1 < tiles) step(tile + 1, p_odd, p_even);
    }
    wait_for(shared.full_V, position + tiles - 1);
    wgmma_fence();
    if (tiles % 2)
      start_values(p_even, position + tiles - 1);
    else
      start_values(p_odd, position + tiles - 1);
    if (row + gridDim.x * BLOCK_Q < rows) read_Q(row + gridDim.x * BLOCK_Q);  // nobody reads q any more
    wgmma_wait<0>(o);
    give_back(shared.empty_V, position + tiles - 1);
    add_sums(power);

    // 5. Divide by the sums, round once, and store by TMA: each warp its own rows. It waits for no other.
    const float inverse[2] = {1 / row_sum[0], 1 / row_sum[1]};
    if (lane == 0) bulk_wait_read<0>();  // TMA has read the last tile's O,
    __syncwarp();                        // ... all lanes know
#pragma unroll
    for (int n = 0; n < TILES_D; n += 2) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
      const int at = (n * MMA_N % LINE + lane / 16 * 8) ^ lane % 8 * 8;  // swizzled, as TMA reads it
      const auto &left = o[n], &right = o[n + 1];
      stmatrix_x4(shared_address(&shared.O[n * MMA_N / LINE][warp_row + lane % 16][at]),
                  round_pair<Element>(left[0] * inverse[0], left[1] * inverse[0]),
                  round_pair<Element>(left[2] * inverse[1], left[3] * inverse[1]),
                  round_pair<Element>(right[0] * inverse[0], right[1] * inverse[0]),
                  round_pair<Element>(right[2] * inverse[1], right[3] * inverse[1]));
    }
    fence_proxy_async();  // each lane shows TMA what it wrote,
    __syncwarp();         // ... and the warp's rows are complete
    if (lane == 0) {
      for (int col = 0; col < HEAD_DIM; col += LINE)
        tma_store(&O_map, row + warp_row, col, shared_address(shared.O[col / LINE][warp_row]));
      bulk_commit();
    }
  }
  if (lane == 0) bulk_wait_read<0>();  // shared memory is there until TMA has read it
}

template <typename T>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<Fp8> = CU_TENSOR_MAP_DATA_TYPE_UINT8;

// A matrix of rows × cols, row-major, for TMA in boxes of box_rows × box_cols, as wide as their swizzle: 64, 128 bytes.
template <typename T>
static cudaError_t tensor_map(CUtensorMap *map, const T *matrix, int rows, int cols, int box_rows, int box_cols) {
  static void *const found = [] {  // a function of the driver: no library to link
    void *function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return function;
  }();
  if (!found) return cudaErrorNotSupported;
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  const cuuint64_t sizes[] = {(cuuint64_t)cols, (cuuint64_t)rows}, row_bytes[] = {cols * sizeof(T)};
  const cuuint32_t box[] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows}, steps[] = {1, 1};
  const auto swizzle = box_cols * sizeof(T) == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
  const CUresult made = encode(
      map, TENSOR_MAP_TYPE<T>, 2, const_cast<T *>(matrix), sizes, row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

extern "C" cudaError_t launch_attention_fp8(const Fp8 *Q8, const Fp8 *K8, const Fp8 *V8, const float *scales,
                                            Element *O, int B, int H, int N, float scale, cudaStream_t stream) {
  const float log2_e = 1.44269504f;
  const float scale_log2 = scale * log2_e;
  const long long rows = (long long)B * H * N;
  if (B < 1 || H < 1 || N < 1 || N % BLOCK_Q || rows > INT_MAX - (1 << 20)) return cudaErrorInvalidValue;
  if (!(scale_log2 > 0 && scale_log2 < INFINITY)) return cudaErrorInvalidValue;
  if (!Q8 || !K8 || !V8 || !scales || !O || (size_t)Q8 % 16 || (size_t)scales % 4) return cudaErrorInvalidValue;
  CUtensorMap K_map, V_map, O_map;  // which check K8, V8 and O
  cudaError_t status = tensor_map(&K_map, K8, rows, HEAD_DIM, KEYS, HEAD_DIM);
  if (status == cudaSuccess) status = tensor_map(&V_map, V8, rows / N * HEAD_DIM, N, HEAD_DIM, KEYS);
  if (status == cudaSuccess) status = tensor_map(&O_map, O, rows, HEAD_DIM, WARP_M, LINE);
  const int shared_bytes = sizeof(Shared);  // more than 48 KB must be asked for
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  int device, multiprocessors;
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const int blocks = min((int)rows / BLOCK_Q, multiprocessors);
  attention_kernel<<<blocks, THREADS, shared_bytes, stream>>>(Q8, K_map, V_map, O_map, scales, rows, N, scale_log2);
  return cudaGetLastError();
}

// What h1 to h7 have, word for word, but for e4m3.
__device__ __forceinline__ unsigned shared_address(const void *pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool mbarrier_try_wait(unsigned barrier, int parity) {
  unsigned ended;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
  return ended;
}
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

__device__ __forceinline__ void tma_load(unsigned shared, const CUtensorMap *map, int row, int col, unsigned full) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %2}], [%4];" ::"r"(shared),
               "l"(map), "r"(row), "r"(col), "r"(full) : "memory");
}

template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Each is named, as if it changed: the compiler may move what reads a register above a wait that does not name it.
template <int TILES>
__device__ __forceinline__ void wgmma_wrote(float (&sums)[TILES][4]) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
    asm volatile("" : "+f"(sums[tile][0]), "+f"(sums[tile][1]), "+f"(sums[tile][2]), "+f"(sums[tile][3])::"memory");
}

template <int N, typename... Sums>
__device__ __forceinline__ void wgmma_wait(Sums &...sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
  (wgmma_wrote(sums), ...);
}

// Address, leading and stride in units of 16 bytes; 8 rows are WIDTH * 8 bytes on.
template <int WIDTH>
__device__ __forceinline__ unsigned long long descriptor_of_rows(unsigned address) {
  return (address & 0x3ffff) >> 4 | 1ull << 16 | (unsigned long long)(8 * WIDTH >> 4) << 32 |
         (WIDTH == 128 ? 1ull : 2ull) << 62;
}

// A in registers, 16 rows per warp: register 0 has row lane / 4, columns lane % 4 * 4 to lane % 4 * 4 + 3; register 1
// row + 8; registers 2 and 3 columns + 16. Operands: N / 2 accumulators, A, B, add.
#define FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define ACCUMULATORS_64 SIXTEEN(0), SIXTEEN(4)
#define ACCUMULATORS_72 ACCUMULATORS_64, FOUR(8)
#define ACCUMULATORS_128 ACCUMULATORS_64, SIXTEEN(8), SIXTEEN(12)
#define ACCUMULATORS_136 ACCUMULATORS_128, FOUR(16)
#define OPERANDS_64                                                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPERANDS_72 OPERANDS_64 ", %32, %33, %34, %35"
#define OPERANDS_128                                                                                                   \
  OPERANDS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
              "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPERANDS_136 OPERANDS_128 ", %64, %65, %66, %67"
#define WGMMA(N, A, B, ADD)                                                                             \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N \
               "k32.f32.e4m3.e4m3 {" OPERANDS_##N "}, {" A "}, " B ", add, 1, 1;\n}" : ACCUMULATORS_##N \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
template <int N>
__device__ __forceinline__ void wgmma_fp8(float (&d)[N / 8][4], const unsigned (&a)[4], unsigned long long b, int add) {
  if constexpr (N == 64) WGMMA(64, "%32, %33, %34, %35", "%36", "%37");
  if constexpr (N == 72) WGMMA(72, "%36, %37, %38, %39", "%40", "%41");
  if constexpr (N == 128) WGMMA(128, "%64, %65, %66, %67", "%68", "%69");
  if constexpr (N == 136) WGMMA(136, "%68, %69, %70, %71", "%72", "%73");
}

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

// Beyond ±448 they are ±448.
__device__ __forceinline__ unsigned round_four(float x0, float x1, float x2, float x3) {
  unsigned four;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}" : "=r"(four)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return four;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3) : "memory");
}

__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void tma_store(const CUtensorMap *map, int row, int col, unsigned shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %1}], [%3];" ::"l"(map), "r"(row),
               "r"(col), "r"(shared) : "memory");
}
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
