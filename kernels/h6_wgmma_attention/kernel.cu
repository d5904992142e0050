// Stage h6 · wgmma attention: both products by wgmma, P its operand in registers.
//
// Problem   O = softmax(Q · Kᵀ · scale) · V for each of B · H heads; Q, K, V, O are [B, H, N, HEAD_DIM], row-major;
//           16-bit DTYPE in and out, fp32 accumulation and softmax.
// Idea      Stage 13 on stage h3's machine. A producer brings Q, K and V by TMA; two consumer warpgroups own 64
//           queries each, for which they read all keys and values, straight from shared memory. wgmma takes its first
//           operand from registers, too, in the layout in which accumulators lie: so P stays where it is, as in stage
//           13. V lies as B in stage h1, its rows along N: for 16-bit elements a flag of the instruction says so, and
//           nothing is transposed.
//
//   level     | S = Q · Kᵀ (queries × keys)  | O += P · V (queries × columns) | who
//   ----------+------------------------------+--------------------------------+------------------------------
//   block     | 128 × KEYS                   | 128 × HEAD_DIM                 | 384 threads = 3 warpgroups
//   producer  | Q once, then tiles K0, V0, K1, V1, ... in boxes of 64 columns | 1 thread of the last one, and TMA
//   consumer  | 64 × KEYS: its queries       | 64 × HEAD_DIM: its queries     | 2 warpgroups, 128 threads each
//   wgmma     | Q 64 × 16, K KEYS × 16       | P 64 × 16, V 16 × HEAD_DIM     | the tensor cores of the SM
//
// Thread map   wgmma: each warp has 16 rows of S and O; row = lane / 4 (+ 8 for registers 2, 3), column = n * 8 +
//              lane % 4 * 2 (+ 1 for registers 1, 3): for each 16 × 8 the layout of mma.m16n8k16. A row lies in a
//              quad of lanes; two neighbouring tiles of S are a fragment of P, 16 × 16, as in stage 13.
// Limits       N a multiple of 128 (and of KEYS); HEAD_DIM 64 or 128; scale > 0; compute capability 9.0a; 160 KB of
//              shared memory (80 KB for HEAD_DIM 64).
// Layouts      PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor maps", "mbarrier".

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of Q, K, V and O
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128  // elements of a query, a key, a value: 64 or 128
#endif
#ifndef KEYS
#define KEYS 128  // keys, and their values, per tile: 64 or 128
#endif

using Element = DTYPE;

constexpr int STAGES = 4;     // tiles in the ring: two of K and two of V
constexpr int WGMMA_M = 64;   // rows of S or O per tensor instruction and warpgroup
constexpr int WGMMA_K = 16;   // depth of a tensor instruction
constexpr int MMA_N = 8;      // columns of S or O per four registers of a lane
constexpr int CONSUMERS = 2;  // warpgroups that multiply

constexpr int THREADS = (CONSUMERS + 1) * 128;  // ... and the producer's
constexpr int BLOCK_Q = CONSUMERS * WGMMA_M;    // queries per block
constexpr int TILES_KV = KEYS / MMA_N;
constexpr int TILES_D = HEAD_DIM / MMA_N;
constexpr int LINE = 128 / sizeof(Element);  // elements in 128 bytes, a row of the swizzle
constexpr int BOXES = HEAD_DIM / LINE;       // 64 columns after 64 columns: boxes of a tile
constexpr int EIGHT_ROWS = 8 * 128;          // bytes from 8 rows of an operand to the next 8
constexpr int Q_BOX = BLOCK_Q * 128;         // bytes from 64 columns of Q to the next 64
constexpr int KV_BOX = KEYS * 128;           // ... of K and of V

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(KEYS == 64 || KEYS == 128, "KEYS is 64 or 128: a tensor instruction each");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");

template <typename T>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

// An address within shared memory, as PTX wants it: 32 bits.
__device__ __forceinline__ unsigned shared_address(const void *pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Makes an mbarrier: a phase of it ends when `count` threads have arrived and the bytes that it expects have come.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Orders mbarrier_init before all that TMA and other threads do with the mbarrier.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase wait for `bytes` more.
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Has the phase of this parity ended? May sleep a while before it says no.
__device__ __forceinline__ bool mbarrier_try_wait(unsigned barrier, int parity) {
  unsigned ended;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(ended) : "r"(barrier), "r"(parity) : "memory");
  return ended;
}

// Waits for the end of the phase of this parity: of the first phase it is 0, of the second 1, of the third 0.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

// A box of a matrix, global -> shared, in the background: from (row, col) on, as the map says. Its bytes count on
// the mbarrier `full`.
__device__ __forceinline__ void tma_load(unsigned shared, const CUtensorMap *map, int row, int col, unsigned full) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %2}], [%4];" ::"r"(shared),
               "l"(map), "r"(row), "r"(col), "r"(full) : "memory");
}

// The warpgroup keeps N registers per thread and gives the others back, or takes as many as it lacks.
template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

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

// D[64, N] = A[64, 16] · B[N, 16]ᵀ, or += if `add`; fp32 accumulation; rows of both lie along K, in shared memory.
#define FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define ACCUMULATORS_64 SIXTEEN(0), SIXTEEN(4)
#define ACCUMULATORS_128 ACCUMULATORS_64, SIXTEEN(8), SIXTEEN(12)
#define OPERANDS_64                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPERANDS_128                                                                 \
  OPERANDS_64                                                                        \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PTX_OF(dtype) PTX_##dtype
#define PTX_NAME(dtype) PTX_OF(dtype)
#define PTX_half "f16"
#define PTX___nv_bfloat16 "bf16"
#define PTX_DTYPE PTX_NAME(DTYPE)  // as PTX calls it

template <int N>
__device__ void wgmma_scores(float (&d)[N / 8][4], unsigned long long a, unsigned long long b, bool add);

template <>
__device__ __forceinline__ void wgmma_scores<64>(
    float (&d)[8][4], unsigned long long a, unsigned long long b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." PTX_DTYPE "." PTX_DTYPE " {" OPERANDS_64 "}, "
               "%32, %33, add, 1, 1, 0, 0;\n}" : ACCUMULATORS_64 : "l"(a), "l"(b), "r"((int)add));
}

template <>
__device__ __forceinline__ void wgmma_scores<128>(
    float (&d)[16][4], unsigned long long a, unsigned long long b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." PTX_DTYPE "." PTX_DTYPE " {" OPERANDS_128 "}, "
               "%64, %65, add, 1, 1, 0, 0;\n}" : ACCUMULATORS_128 : "l"(a), "l"(b), "r"((int)add));
}

// D[64, N] += A[64, 16] · B[16, N], fp32 accumulation; A in registers, 16 rows per warp, as mma.m16n8k16 has them; rows
// of B lie along N, in shared memory.
template <int N>
__device__ void wgmma_values(float (&d)[N / 8][4], const unsigned (&a)[4], unsigned long long b);

template <>
__device__ __forceinline__ void wgmma_values<64>(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." PTX_DTYPE "." PTX_DTYPE " {" OPERANDS_64 "}, "
               "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}" : ACCUMULATORS_64
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma_values<128>(float (&d)[16][4], const unsigned (&a)[4], unsigned long long b) {
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." PTX_DTYPE "." PTX_DTYPE " {" OPERANDS_128 "}, "
               "{%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}" : ACCUMULATORS_128
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
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

struct Shared {  // written by TMA; its swizzle repeats after 8 rows, 1 KB
  alignas(1024) Element Q[BOXES][BLOCK_Q][LINE];
  alignas(1024) Element ring[STAGES][BOXES][KEYS][LINE];  // K0, V0, K1, V1, ... pass through it
  alignas(8) unsigned long long full_Q;                   // mbarriers: Q has come
  alignas(8) unsigned long long full[STAGES];             // ... a stage's tile has come
  alignas(8) unsigned long long empty[STAGES];            // ... the consumers have read it
};

__global__ void __launch_bounds__(THREADS, 1) attention_kernel(
    const __grid_constant__ CUtensorMap Q_map,  // [B · H · N, HEAD_DIM] in boxes of [BLOCK_Q, LINE]
    const __grid_constant__ CUtensorMap K_map,  // [B · H · N, HEAD_DIM] in boxes of [KEYS, LINE]
    const __grid_constant__ CUtensorMap V_map,  // likewise
    Element *__restrict__ O,                    // [B · H · N, HEAD_DIM]
    int N, float scale_log2) {                  // scale · log₂e
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared &shared = *reinterpret_cast<Shared *>(memory);

  // 1. Which queries are mine? Neighbouring blocks share a head: they find its K and V in L2.
  const int block_row = blockIdx.x * BLOCK_Q;  // of all heads' rows
  const int head_row = block_row / N * N;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int kv_tiles = 2 * (N / KEYS);  // of K and of V, by turns

  if (thread == 0) {
    mbarrier_init(shared_address(&shared.full_Q), 1);
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(shared_address(&shared.full[stage]), 1);
      mbarrier_init(shared_address(&shared.empty[stage]), CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // nobody waits at a barrier that is not made yet

  // 2. The producer. Global -> shared, by TMA: each tile into the next stage, once the tile before it there is read.
  if (warp / 4 == CONSUMERS) {
    setmaxnreg_dec<24>();
    if (thread % 128 > 0) return;
    const unsigned full_Q = shared_address(&shared.full_Q);
    mbarrier_arrive_expect(full_Q, sizeof(shared.Q));
    for (int box = 0; box < BOXES; ++box)
      tma_load(shared_address(shared.Q[box]), &Q_map, block_row, box * LINE, full_Q);
    for (int tile = 0; tile < kv_tiles; ++tile) {
      const int stage = tile % STAGES;
      const unsigned full = shared_address(&shared.full[stage]);
      if (tile >= STAGES) mbarrier_wait(shared_address(&shared.empty[stage]), (tile / STAGES - 1) % 2);
      mbarrier_arrive_expect(full, sizeof(shared.ring[stage]));
      for (int box = 0; box < BOXES; ++box)
        tma_load(shared_address(shared.ring[stage][box]), tile % 2 ? &V_map : &K_map, head_row + tile / 2 * KEYS,
                 box * LINE, full);
    }
    return;
  }

  // 3. The consumers, tile after tile.
  setmaxnreg_inc<240>();
  const unsigned Q_rows = shared_address(shared.Q[0][warp / 4 * WGMMA_M]);  // of this warpgroup's 64 queries
  float o[TILES_D][4] = {};                                                 // 16 × HEAD_DIM of O per warp
  float row_max[2] = {-INFINITY, -INFINITY};  // m of this lane's rows, in 0-7 and in 8-15 of the warp's
  float row_sum[2] = {};                      // l of these rows, but only the keys that this lane has seen
  const auto next = [&](int tile) {           // waits for it, and says where it is
    mbarrier_wait(shared_address(&shared.full[tile % STAGES]), tile / STAGES % 2);
    return shared_address(shared.ring[tile % STAGES]);
  };
  const auto give_back = [&](int tile) {
    if (thread % 128 == 0) mbarrier_arrive(shared_address(&shared.empty[tile % STAGES]));
  };
  mbarrier_wait(shared_address(&shared.full_Q), 0);

  for (int tile = 0; tile < kv_tiles; tile += 2) {
    // S = Q · Kᵀ: this warpgroup's queries, all keys. 16 columns are 32 bytes on, in a row.
    float s[TILES_KV][4];  // 16 × KEYS of S per warp, in wgmma's layout
    const unsigned K_rows = next(tile);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += WGMMA_K) {
      const unsigned q = Q_rows + d / LINE * Q_BOX + d % LINE * sizeof(Element);
      const unsigned k = K_rows + d / LINE * KV_BOX + d % LINE * sizeof(Element);
      wgmma_scores<KEYS>(s, descriptor(q, 16, EIGHT_ROWS), descriptor(k, 16, EIGHT_ROWS), d > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(s);  // the products have read K and written s
    give_back(tile);

    // 4. Online softmax, of rows that lie in a quad.
    unsigned p[KEYS / WGMMA_K][4];  // 16 × KEYS of P per warp, as wgmma wants its first operand
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      float largest = s[0][half_tile * 2];
#pragma unroll
      for (int n = 0; n < TILES_KV; ++n) largest = fmaxf(largest, fmaxf(s[n][half_tile * 2], s[n][half_tile * 2 + 1]));
      // Scaled and rounded like each score below, and __fmul_rn keeps the compiler from making an FMA of that: so the
      // largest weight is 1, also of scores of 10^4, whose product with the scale is rounded by 2^-11.
      const float new_max = fmaxf(row_max[half_tile], quad_max(largest) * scale_log2);
      const float correction = exp2_approx(row_max[half_tile] - new_max);  // at first 2^-inf = 0
      row_max[half_tile] = new_max;
      row_sum[half_tile] *= correction;
#pragma unroll
      for (int n = 0; n < TILES_D; ++n) {
        o[n][half_tile * 2] *= correction;
        o[n][half_tile * 2 + 1] *= correction;
      }
#pragma unroll
      for (int n = 0; n < TILES_KV; ++n) {
#pragma unroll
        for (int i = half_tile * 2; i < half_tile * 2 + 2; ++i) {
          s[n][i] = exp2_approx(__fmul_rn(s[n][i], scale_log2) - new_max);  // a score becomes a weight
          row_sum[half_tile] += s[n][i];
        }
        p[n / 2][n % 2 * 2 + half_tile] =  // two tiles side by side become one fragment
            round_pair<Element>(s[n][half_tile * 2], s[n][half_tile * 2 + 1]);
      }
    }

    // 5. O += P · V: this warpgroup's queries, all columns. 16 keys are 16 rows on, 2 KB.
    const unsigned V_rows = next(tile + 1);
    wgmma_fence();
#pragma unroll
    for (int key = 0; key < KEYS; key += WGMMA_K)
      wgmma_values<HEAD_DIM>(o, p[key / WGMMA_K], descriptor(V_rows + key * 128, KV_BOX, EIGHT_ROWS));
    wgmma_commit();
    wgmma_wait<0>(o);  // the products have read p and V and written o
    give_back(tile + 1);
  }

  // 6. Divide by the sums; round once, and store two neighbours at a time.
#pragma unroll
  for (int half_tile = 0; half_tile < 2; ++half_tile) {
    const size_t row = block_row + warp * 16 + half_tile * 8 + lane / 4;
    const float inverse = 1 / quad_sum(row_sum[half_tile]);
#pragma unroll
    for (int n = 0; n < TILES_D; ++n)
      *reinterpret_cast<unsigned *>(&O[row * HEAD_DIM + n * MMA_N + lane % 4 * 2]) =
          round_pair<Element>(o[n][half_tile * 2] * inverse, o[n][half_tile * 2 + 1] * inverse);
  }
}

// A matrix of rows × cols, row-major, for TMA in boxes of box_rows × 64 elements with a swizzle of 128 bytes.
static cudaError_t tensor_map(CUtensorMap *map, const Element *matrix, int rows, int cols, int box_rows) {
  void *found = nullptr;  // a function of the driver: no library to link
  cudaDriverEntryPointQueryResult result;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
  if (status != cudaSuccess) return status;
  if (result != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  const cuuint64_t sizes[] = {(cuuint64_t)cols, (cuuint64_t)rows}, row_bytes[] = {cols * sizeof(Element)};
  const cuuint32_t box[] = {LINE, (cuuint32_t)box_rows}, steps[] = {1, 1};
  const CUresult made =
      encode(map, TENSOR_MAP_TYPE<Element>, 2, const_cast<Element *>(matrix), sizes, row_bytes, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

extern "C" cudaError_t launch_attention(const Element *Q, const Element *K, const Element *V, Element *O, int B, int H,
                                        int N, float scale, cudaStream_t stream) {
  const float log2_e = 1.44269504f;
  const float scale_log2 = scale * log2_e;
  if (B < 1 || H < 1 || N < 1 || !(scale_log2 > 0 && scale_log2 < INFINITY)) return cudaErrorInvalidValue;
  if (N % BLOCK_Q || N % KEYS) return cudaErrorInvalidValue;
  if (!Q || !K || !V || !O || (size_t)O % 16) return cudaErrorInvalidValue;  // the tensor maps check Q, K and V
  const long long rows = (long long)B * H * N;
  if (rows > INT_MAX) return cudaErrorInvalidValue;
  CUtensorMap Q_map, K_map, V_map;
  cudaError_t status = tensor_map(&Q_map, Q, rows, HEAD_DIM, BLOCK_Q);
  if (status == cudaSuccess) status = tensor_map(&K_map, K, rows, HEAD_DIM, KEYS);
  if (status == cudaSuccess) status = tensor_map(&V_map, V, rows, HEAD_DIM, KEYS);
  const int shared_bytes = sizeof(Shared);  // more than 48 KB must be asked for
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  attention_kernel<<<rows / BLOCK_Q, THREADS, shared_bytes, stream>>>(Q_map, K_map, V_map, O, N, scale_log2);
  return cudaGetLastError();
}
