// Stage h8 · fp8: e4m3 operands, which the tensor cores multiply twice as fast.
//
// Problem   O = softmax(Q · Kᵀ · scale) · V for each of B · H heads, from 8-bit Q, K and V; fp32 accumulation and
//           softmax, O in 16-bit DTYPE. quantize_kernel makes them of Q, K and V [B, H, N, HEAD_DIM] in DTYPE; 64 rows
//           of each share a scale.
// Idea      e4m3 has 4 significant bits and ends at 448. Three steps keep most of the accuracy.
//           Scales: 64 rows of Q, K or V are divided by a number of their own. Those of Q and K are a factor of the
//           scores. That of V goes into the weights: the softmax is of score + log₂(scale of V). So a head's scales of
//           V may not be far apart: the least is a 16th of the largest.
//           Rotation: rounding errs by a share of each number, so a score in which outliers meet is the most wrong. Q
//           and K are multiplied by the same Hadamard matrix, after random signs: Q · Kᵀ stays, and an outlier is
//           shared out over its row. (Scales, rotation, order of V's keys: Shah et al., "FlashAttention-3", 2024.)
//           Sums of the rounded weights: eight rows below V, of ones, make them columns of P · V.
//           And after the first tile no maximum before the weights: they are made with the m of the tiles before, and
//           one that reaches 2^8 shows that m must rise.
//
//   level     | S = Q · Kᵀ (queries × keys)  | O += P · V (queries × columns)    | who
//   ----------+------------------------------+-----------------------------------+------------------------------
//   block     | 128 × KEYS                   | 128 × HEAD_DIM                    | 3 warpgroups
//   producer  | Q, and tiles K0, K1, V0, K2, V1, ...                             | 1 thread of the last one, and TMA
//   consumer  | 64 × KEYS: its queries       | 64 × HEAD_DIM: its queries        | 2
//   wgmma     | Q 64 × 32, K KEYS × 32       | P 64 × 32, Vᵀ (HEAD_DIM + 8) × 32 | the tensor cores of the SM
//
// Thread map   S and O as in stage h7. P as wgmma wants it has, for each lane, 4 neighbouring keys of 16: t * 4 to
//              t * 4 + 3, where t = lane % 4. In S the lane has keys t * 2, t * 2 + 1, 8 + t * 2, 9 + t * 2. So these
//              four are what stands at t * 4 to t * 4 + 3 in V, and nothing moves between lanes. Q is in registers too,
//              as ldmatrix puts it there: its columns are in P's order.
// Limits       HEAD_DIM 64 or 128; N a multiple of 128; no mask; scale > 0; scores times scale below a million, where
//              fp32 rounds them by as much as e4m3 the weights; the scales of V as above; compute capability 9.0a; 197
//              KB of shared memory (101 KB for HEAD_DIM 64).
// Layouts      wgmma multiplies 8-bit operands whose rows lie along K alone: V is transposed, [B, H, HEAD_DIM, N].
//              PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor maps", "mbarrier".

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of O, and of what is quantized
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 128  // elements of a query, a key, a value: 64 or 128
#endif
#ifndef KEYS
#define KEYS 128  // keys, and their values, per tile: 64 or 128
#endif
#ifndef ROTATE
#define ROTATE 1  // 1: Q and K are rotated before they are rounded; 0: they are rounded as they are
#endif

using Element = DTYPE;
using Fp8 = __nv_fp8_e4m3;  // an element of Q, K and V

constexpr int STAGES = 4;     // tiles in each ring, of K and of V
constexpr int WGMMA_M = 64;   // rows of S or O per tensor instruction and warpgroup
constexpr int WGMMA_K = 32;   // depth of a tensor instruction
constexpr int MMA_N = 8;      // columns of S or O per four registers of a lane
constexpr int CONSUMERS = 2;  // warpgroups that multiply
constexpr int BLOCK_Q = CONSUMERS * WGMMA_M;
constexpr int THREADS = (CONSUMERS + 1) * 128;
constexpr int ROWS = 64;  // of Q, K or V that share a scale
constexpr int SCALES = KEYS / ROWS;
constexpr int TILES_KV = KEYS / MMA_N;
constexpr int TILES_SCALE = ROWS / MMA_N;
constexpr int TILES_D = HEAD_DIM / MMA_N;
constexpr int LINE = 64;                  // elements of O in 128 bytes, a row of the swizzle
constexpr int BOXES = HEAD_DIM / LINE;    // of O: 64 columns after 64 columns
constexpr int ONES = MMA_N;               // rows below V, for the sums of P
constexpr float LARGEST = 448;            // that e4m3 has
constexpr float TINY = 0x1p-80f;          // the least |x| that counts as the largest of a block: no scale is 0
constexpr float ROOM = 4;                 // the largest weight is 2^ROOM, and below 2^8 where m lags behind the maximum
constexpr float LOWEST = -3.4028235e38f;  // an m to begin with: finite, so that its difference to -inf is not NaN
constexpr int QUANTIZE_WARPS = 8;
constexpr float LEAST = 0x1p-4f;  // of the largest scale of a head of V: the least of the others

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(KEYS == 64 || KEYS == 128, "KEYS is 64 or 128: a tensor instruction each");
static_assert(sizeof(Element) == 2, "O has 16-bit elements");

template <typename T>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<Fp8> = CU_TENSOR_MAP_DATA_TYPE_UINT8;

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

// A box of a matrix, global -> shared, in the background: from (row, col) on, as the map says. Its bytes count on the
// mbarrier `full`.
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

// The descriptor of an operand whose rows lie along K and have WIDTH bytes, 64 or 128, with the swizzle of that width:
// address, leading and stride in units of 16 bytes; 8 rows are WIDTH * 8 bytes on.
template <int WIDTH>
__device__ __forceinline__ unsigned long long descriptor_of_rows(unsigned address) {
  return (address & 0x3ffff) >> 4 | 1ull << 16 | (unsigned long long)(8 * WIDTH >> 4) << 32 |
         (WIDTH == 128 ? 1ull : 2ull) << 62;
}

// D[64, N] = A[64, 32] · B[N, 32]ᵀ, or += if `add`: e4m3, fp32 accumulation. B in shared memory, rows along K; A in
// registers, 16 rows per warp: register 0 has row lane / 4, columns lane % 4 * 4 to lane % 4 * 4 + 3; register 1 has
// row + 8; registers 2 and 3 have the same rows, columns + 16.
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
template <int N>
__device__ void wgmma(float (&d)[N / 8][4], const unsigned (&a)[4], unsigned long long b, bool add);

template <>
__device__ __forceinline__ void wgmma<64>(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" OPERANDS_64 "}, "
               "{%32, %33, %34, %35}, %36, add, 1, 1;\n}" : ACCUMULATORS_64
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

template <>
__device__ __forceinline__ void wgmma<72>(float (&d)[9][4], const unsigned (&a)[4], unsigned long long b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %41, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 {" OPERANDS_64 ", %32, %33, %34, %35}, "
               "{%36, %37, %38, %39}, %40, add, 1, 1;\n}" : ACCUMULATORS_64, FOUR(8)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

template <>
__device__ __forceinline__ void wgmma<128>(float (&d)[16][4], const unsigned (&a)[4], unsigned long long b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" OPERANDS_128 "}, "
               "{%64, %65, %66, %67}, %68, add, 1, 1;\n}" : ACCUMULATORS_128
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

template <>
__device__ __forceinline__ void wgmma<136>(float (&d)[17][4], const unsigned (&a)[4], unsigned long long b, bool add) {
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %73, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 {" OPERANDS_128 ", %64, %65, %66, %67}, "
               "{%68, %69, %70, %71}, %72, add, 1, 1;\n}" : ACCUMULATORS_128, FOUR(16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
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

// Four numbers rounded to e4m3, side by side in a register: the first in its lowest byte. Beyond ±448 they are ±448.
__device__ __forceinline__ unsigned round_four(float x0, float x1, float x2, float x3) {
  unsigned four;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\nmov.b32 %0, {low, high};\n}" : "=r"(four)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return four;
}

// 2^x, right to about 22 bits; 2^-inf = 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// log₂ x and 1 / x, nearly: for scales, which are far from the smallest numbers.
__device__ __forceinline__ float log2_approx(float x) {
  float log;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(x));
  return log;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

// The largest over the four lanes that hold a row of an accumulator tile.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Four matrices of 8 rows of 16 bytes; lane L points at row L % 8 of matrix L / 8, and gets four bytes of row L / 4 of
// each, from byte L % 4 * 4 on.
__device__ __forceinline__ void ldmatrix_x4(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
}

// The reverse of ldmatrix: lane L points at row L % 8 of matrix L / 8.
__device__ __forceinline__ void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3) : "memory");
}

// Makes what stmatrix wrote visible to TMA, which reads through another proxy, the asynchronous one.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A box of a matrix, shared -> global, in the background.
__device__ __forceinline__ void tma_store(const CUtensorMap *map, int row, int col, unsigned shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %1}], [%3];" ::"l"(map), "r"(row),
               "r"(col), "r"(shared) : "memory");
}

// Closes a group: the stores by TMA that this thread has started since the last one.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but N of this thread's youngest groups have read their shared memory.
template <int N>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

// Named barriers, of some of the block's warps: wait for `threads` threads, the caller among them; or only arrive.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

struct Shared {  // written by TMA, but O; its swizzle repeats after 8 rows
  alignas(1024) Fp8 Q[2][BLOCK_Q][HEAD_DIM];
  alignas(1024) Fp8 K[STAGES][KEYS][HEAD_DIM];
  alignas(1024) Fp8 V[STAGES][HEAD_DIM + ONES][KEYS];                          // and ones, which stay
  alignas(1024) Element O[CONSUMERS][BOXES][WGMMA_M][LINE];                    // on its way to TMA
  alignas(8) unsigned long long full_Q[2], full_K[STAGES], full_V[STAGES];     // mbarriers: a tile has come
  alignas(8) unsigned long long empty_Q[2], empty_K[STAGES], empty_V[STAGES];  // ... the consumers have read it
};

__global__ void __launch_bounds__(THREADS, 1) attention_kernel(
    const __grid_constant__ CUtensorMap Q_map,  // [B · H · N, HEAD_DIM] in boxes of BLOCK_Q rows
    const __grid_constant__ CUtensorMap K_map,  // [B · H · N, HEAD_DIM] in boxes of KEYS rows
    const __grid_constant__ CUtensorMap V_map,  // [B · H · HEAD_DIM, N] in boxes of HEAD_DIM rows and KEYS columns
    const __grid_constant__ CUtensorMap O_map,  // [B · H · N, HEAD_DIM] in boxes of WGMMA_M rows and LINE columns
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
  int count = 0;               // of this block's tiles of queries so far

  if (thread == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared_address(&shared.full_Q[i]), 1);
      mbarrier_init(shared_address(&shared.empty_Q[i]), CONSUMERS * 4);  // warps
    }
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(shared_address(&shared.full_K[stage]), 1);
      mbarrier_init(shared_address(&shared.full_V[stage]), 1);
      mbarrier_init(shared_address(&shared.empty_K[stage]), CONSUMERS);
      mbarrier_init(shared_address(&shared.empty_V[stage]), CONSUMERS);
    }
    fence_mbarrier_init();
  }
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
    for (int row = blockIdx.x * BLOCK_Q; row < rows; row += gridDim.x * BLOCK_Q, ++count) {
      const int head = row / N;
      const unsigned full_Q = shared_address(&shared.full_Q[count % 2]);
      if (count >= 2) mbarrier_wait(shared_address(&shared.empty_Q[count % 2]), (count / 2 - 1) % 2);
      mbarrier_arrive_expect(full_Q, sizeof(shared.Q[0]));
      tma_load(shared_address(shared.Q[count % 2]), &Q_map, row, 0, full_Q);
      const auto stage_for = [&](auto &full, auto &empty, int tile, int bytes) {  // which is free, and expects the tile
        const unsigned at = count * tiles + tile, stage = at % STAGES;
        if (at >= STAGES) mbarrier_wait(shared_address(&empty[stage]), (at / STAGES - 1) % 2);
        mbarrier_arrive_expect(shared_address(&full[stage]), bytes);
        return stage;
      };
      for (int tile = 0; tile <= tiles; ++tile) {  // in the order in which they are multiplied
        if (tile < tiles) {
          const int stage = stage_for(shared.full_K, shared.empty_K, tile, sizeof(shared.K[0]));
          tma_load(shared_address(shared.K[stage]), &K_map, head * N + tile * KEYS, 0,
                   shared_address(&shared.full_K[stage]));
        }
        if (tile > 0) {
          const int stage = stage_for(shared.full_V, shared.empty_V, tile - 1, HEAD_DIM * KEYS);
          tma_load(shared_address(shared.V[stage]), &V_map, head * HEAD_DIM, (tile - 1) * KEYS,
                   shared_address(&shared.full_V[stage]));
        }
      }
    }
    return;
  }

  // 3. The consumers.
  setmaxnreg_inc<240>();
  const auto wait_for = [&](auto &full, unsigned at) {
    mbarrier_wait(shared_address(&full[at % STAGES]), at / STAGES % 2);
  };
  const auto give_back = [&](auto &empty, unsigned at) {
    if (thread % 128 == 0) mbarrier_arrive(shared_address(&empty[at % STAGES]));
  };
  const auto K_rows = descriptor_of_rows<HEAD_DIM>(shared_address(shared.K)),
             V_rows = descriptor_of_rows<KEYS>(shared_address(shared.V));
  const float *K_scales = scales + rows / ROWS, *V_scales = K_scales + rows / ROWS;

  for (int row = blockIdx.x * BLOCK_Q; row < rows; row += gridDim.x * BLOCK_Q, ++count) {
    const unsigned position = count * tiles;     // of the first tile of K and V, in the order of all
    const int first_block = row / N * N / ROWS;  // of this head's rows that share a scale
    const float Q_scale = scales[row / ROWS + consumer] * scale_log2;
    unsigned q[HEAD_DIM / WGMMA_K][4];            // 16 × HEAD_DIM of Q per warp, as wgmma wants its first operand
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
      const auto k = K_rows + at % STAGES * (sizeof(shared.K[0]) / 16);
#pragma unroll
      for (int d = 0; d < HEAD_DIM; d += WGMMA_K) wgmma<KEYS>(s, q[d / WGMMA_K], k + d / 16, d > 0);
      wgmma_commit();
    };

    // O += P · V: this warpgroup's queries, all columns. 32 keys are 32 bytes on, in a row of Vᵀ. And the sums of P's
    // rows: numerator and denominator of O have the same rounded weights.
    const auto start_values = [&](const Weights &p, unsigned at) {
      const auto v = V_rows + at % STAGES * (sizeof(shared.V[0]) / 16);
#pragma unroll
      for (int key = 0; key < KEYS; key += WGMMA_K) wgmma<HEAD_DIM + ONES>(o, p[key / WGMMA_K], v + key / 16, true);
      wgmma_commit();
    };

    // Of the last tile of keys and values, of this one, and of the next: read a tile early, since they come from L2.
    struct Scales { float K[SCALES], V[SCALES]; } before, of_tile, next;
    const auto read_scales = [&](int tile) {
#pragma unroll
      for (int i = 0; i < SCALES; ++i) {
        next.K[i] = K_scales[first_block + tile * SCALES + i];
        next.V[i] = V_scales[first_block + tile * SCALES + i];
      }
    };

    // 4. Online softmax, of rows that lie in a quad: scores become weights 2^(score + log₂(scale of V) - m + ROOM). m
    // cancels in O / l, so any serves that leaves no weight too large (the conditional rescaling of FlashAttention-4).
    // After the first tile the weights are made with the m so far. Only if one is 2^8 or more, m becomes the largest
    // score + log₂(scale of V), and they are made again.
    const auto weigh = [&](Weights &p, bool first) {
      float factor[SCALES], add[SCALES];
#pragma unroll
      for (int i = 0; i < SCALES; ++i) factor[i] = Q_scale * of_tile.K[i], add[i] = log2_approx(of_tile.V[i]);

      const auto make_weights = [&] {  // four side by side are a register of P; is one of this lane's too large?
        unsigned high = 0;
#pragma unroll
        for (int n = 0; n < TILES_KV; n += 2) {
#pragma unroll
          for (int half_tile = 0; half_tile < 2; ++half_tile) {
            const int block = n / TILES_SCALE;
            const float less = row_max[half_tile] - ROOM - add[block];
            float w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
              w[i] = exp2_approx(fmaf(s[n + i / 2][half_tile * 2 + i % 2], factor[block], -less));
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
          const auto *tile = &s[i * TILES_SCALE];
          float of_block = fmaxf(tile[0][half_tile * 2], tile[0][half_tile * 2 + 1]);
#pragma unroll
          for (int n = 1; n < TILES_SCALE; ++n)
            of_block = fmaxf(of_block, fmaxf(tile[n][half_tile * 2], tile[n][half_tile * 2 + 1]));
          largest = fmaxf(largest, fmaf(of_block, factor[i], add[i]));
        }
        const float new_max = fmaxf(row_max[half_tile], quad_max(largest));
        correction[half_tile] = exp2_approx(row_max[half_tile] - new_max);  // at first 0
        row_max[half_tile] = new_max;
      }
      make_weights();
    };

    // The sums of the tile before have come, times the scale of V; the next ones begin at 0. (Times 0: ptxas makes each
    // product wait for the one before if a constant is written into an accumulator.)
    const auto add_sums = [&](const Scales &scales) {
#pragma unroll
      for (int i = 0; i < SCALES; ++i) {
        const float without = reciprocal_approx(scales.V[i]);
#pragma unroll
        for (int half_tile = 0; half_tile < 2; ++half_tile) {
          float &sum = o[TILES_D][half_tile * 2 + i];
          row_sum[half_tile] = fmaf(sum, without, row_sum[half_tile]);
          sum *= 0.f;
        }
      }
    };

    // A tile: its scores and the values of the one before are started together; then the scores are weighed.
    const auto step = [&](int tile, const Weights &p_before, Weights &p) {
      const unsigned at = position + tile;
      before = of_tile, of_tile = next;
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
      add_sums(before);
      if (moved) {
        row_sum[0] *= correction[0], row_sum[1] *= correction[1];
#pragma unroll
        for (int n = 0; n < TILES_D; ++n) {
          o[n][0] *= correction[0], o[n][1] *= correction[0];
          o[n][2] *= correction[1], o[n][3] *= correction[1];
        }
      }
    };

    // Q, into registers; its place is free again.
    read_scales(0);
    of_tile = next;
    read_scales(min(1, tiles - 1));
    mbarrier_wait(shared_address(&shared.full_Q[count % 2]), count / 2 % 2);
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += WGMMA_K) {  // matrices: rows 0-7 | 8-15 of 16 bytes, then of the next 16
      const int q_row = warp % 4 * 16 + lane % 16;
      const int chunk = (d / 16 + lane / 16) ^ (HEAD_DIM == 128 ? q_row % 8 : q_row / 2 % 4);  // swizzled
      auto &a = q[d / WGMMA_K];
      ldmatrix_x4(a[0], a[1], a[2], a[3], shared_address(&shared.Q[count % 2][consumer * WGMMA_M + q_row][chunk * 16]));
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared_address(&shared.empty_Q[count % 2]));

    // The first scores, with no values beside them, tile after tile, and the last values.
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
    wgmma_wait<0>(o);
    give_back(shared.empty_V, position + tiles - 1);
    add_sums(of_tile);

    // 5. Divide by the sums, round once, and store by TMA.
    float inverse[2];
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) inverse[half_tile] = 1 / row_sum[half_tile];
    if (thread % 128 == 0) bulk_wait_read<0>();  // TMA has read the last tile's O,
    named_barrier_sync(4 + consumer, 128);       // ... and the warpgroup knows it
#pragma unroll
    for (int n = 0; n < TILES_D; n += 2) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
      const int o_row = warp % 4 * 16 + lane % 16;
      const int chunk = n % (LINE / MMA_N) + lane / 16;  // of 16 bytes, in the row; the swizzle is an XOR with the row
      const auto &left = o[n], &right = o[n + 1];
      stmatrix_x4(shared_address(&shared.O[consumer][n * MMA_N / LINE][o_row][(chunk ^ o_row % 8) * 8]),
                  round_pair<Element>(left[0] * inverse[0], left[1] * inverse[0]),
                  round_pair<Element>(left[2] * inverse[1], left[3] * inverse[1]),
                  round_pair<Element>(right[0] * inverse[0], right[1] * inverse[0]),
                  round_pair<Element>(right[2] * inverse[1], right[3] * inverse[1]));
    }
    fence_proxy_async();                    // each warp shows TMA what it wrote,
    named_barrier_sync(4 + consumer, 128);  // ... and the warpgroup's rows are complete
    if (thread % 128 == 0) {
      for (int box = 0; box < BOXES; ++box)
        tma_store(&O_map, row + consumer * WGMMA_M, box * LINE, shared_address(shared.O[consumer][box]));
      bulk_commit();
    }
  }
  if (thread % 128 == 0) bulk_wait_read<0>();  // shared memory is there until TMA has read it
}

// The largest of |x| over the block's threads; warp_max: room for a number of each warp.
__device__ __forceinline__ float block_max(float x, float *warp_max) {
  for (int apart = 1; apart < 32; apart *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
  if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = x;
  __syncthreads();
  for (int each = 0; each < QUANTIZE_WARPS; ++each) x = fmaxf(x, warp_max[each]);
  return x;
}

// The scale of 64 rows of V by themselves.
__global__ void __launch_bounds__(QUANTIZE_WARPS * 32)
    scale_kernel(const Element *__restrict__ V, float *__restrict__ scales) {  // [rows, HEAD_DIM], [rows / ROWS]
  constexpr int VECTOR = 16 / sizeof(Element);
  struct alignas(16) Vector { Element x[VECTOR]; };
  __shared__ float warp_max[QUANTIZE_WARPS];
  const Element *block = &V[(size_t)blockIdx.x * ROWS * HEAD_DIM];
  float largest = TINY;
  for (int i = threadIdx.x * VECTOR; i < ROWS * HEAD_DIM; i += blockDim.x * VECTOR) {
    const Vector vector = *reinterpret_cast<const Vector *>(&block[i]);
    for (const Element each : vector.x) largest = fmaxf(largest, fabsf(each));
  }
  largest = block_max(largest, warp_max);
  if (threadIdx.x == 0) scales[blockIdx.x] = largest / LARGEST;
}

// No scale of a head's V is far below the others: its weights would become 0, and the sums of P would lack them. (A
// block of small numbers loses nothing by a scale 16 times as large as it needs: e4m3 has exponents.)
__global__ void __launch_bounds__(QUANTIZE_WARPS * 32) raise_kernel(float *scales, int blocks) {  // [heads, blocks]
  __shared__ float warp_max[QUANTIZE_WARPS];
  float *of_head = &scales[(size_t)blockIdx.x * blocks];
  float largest = 0;
  for (int i = threadIdx.x; i < blocks; i += blockDim.x) largest = fmaxf(largest, of_head[i]);
  largest = block_max(largest, warp_max);
  for (int i = threadIdx.x; i < blocks; i += blockDim.x) of_head[i] = fmaxf(of_head[i], largest * LEAST);
}

// 64 rows of Q, K (rotated) or V (transposed) in e4m3, and the scale of Q's or K's. Lane L has columns L * COLUMNS to
// L * COLUMNS + COLUMNS - 1 of its warp's 8 rows: two times the four keys that neighbour one another in V.
__global__ void __launch_bounds__(QUANTIZE_WARPS * 32) quantize_kernel(
    const Element *__restrict__ Q, const Element *__restrict__ K, const Element *__restrict__ V,  // [rows, HEAD_DIM]
    Fp8 *__restrict__ Q8, Fp8 *__restrict__ K8,                                                   // [rows, HEAD_DIM]
    Fp8 *__restrict__ V8,        // [rows / N, HEAD_DIM, N]
    float *__restrict__ scales,  // [3, rows / ROWS]; V's are there
    int N) {
  constexpr int COLUMNS = HEAD_DIM / 32;
  constexpr int MINE = ROWS / QUANTIZE_WARPS;  // rows of a warp
  struct alignas(COLUMNS * sizeof(Element)) Columns { Element x[COLUMNS]; };
  __shared__ float warp_max[QUANTIZE_WARPS];
  __shared__ alignas(16) unsigned columns[HEAD_DIM][ROWS / 4 + 4];  // of V: four keys a word; + 4: fewer bank conflicts
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int which = blockIdx.y;  // 0: Q, 1: K, 2: V
  const Element *source = which == 0 ? Q : which == 1 ? K : V;
  const size_t first = (size_t)blockIdx.x * ROWS;
  const auto row_of = [&](int i) {  // the warp's rows: keys t * 2, t * 2 + 1, 8 + t * 2, 9 + t * 2 of a group of 16
    const int word = warp * 2 + i / 4, t = word % 4;
    return word / 4 * 16 + i % 4 / 2 * 8 + t * 2 + i % 2;
  };

  // 1. Read, and rotate: random signs, then a Hadamard matrix, by sums and differences of pairs 1, 2, 4, ... apart.
  float x[MINE][COLUMNS];
#pragma unroll
  for (int i = 0; i < MINE; ++i) {
    const Columns row = reinterpret_cast<const Columns *>(&source[(first + row_of(i)) * HEAD_DIM])[lane];
    for (int c = 0; c < COLUMNS; ++c) x[i][c] = row.x[c];
  }
  if (ROTATE && which < 2) {
    const float length = rsqrtf(HEAD_DIM);  // the matrix's rows have it, and then 1
    for (int c = 0; c < COLUMNS; ++c) {
      const float sign = __popc((lane * COLUMNS + c) * 0x9e3779b9u) % 2 ? -length : length;
#pragma unroll
      for (int i = 0; i < MINE; ++i) x[i][c] *= sign;
    }
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
#pragma unroll
      for (int apart = 1; apart < COLUMNS; apart *= 2) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          if (c & apart) continue;
          const float sum = x[i][c] + x[i][c + apart], difference = x[i][c] - x[i][c + apart];
          x[i][c] = sum, x[i][c + apart] = difference;
        }
      }
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          const float other = __shfl_xor_sync(~0u, x[i][c], apart);
          x[i][c] = lane & apart ? other - x[i][c] : x[i][c] + other;
        }
      }
    }
  }

  // 2. The largest of Q's or K's block becomes 448.
  float &scale = scales[(size_t)which * gridDim.x + blockIdx.x];
  float inverse;
  if (which < 2) {
    float largest = TINY;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
      for (int c = 0; c < COLUMNS; ++c) largest = fmaxf(largest, fabsf(x[i][c]));
    }
    largest = block_max(largest, warp_max);
    inverse = LARGEST / largest;
    if (threadIdx.x == 0) scale = largest / LARGEST;
  } else {
    inverse = 1 / scale;
  }

  // 3. Round, and write: Q and K row by row, V column by column.
  if (which < 2) {
    Fp8 *target = which == 0 ? Q8 : K8;
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
      Fp8 *place = &target[(first + row_of(i)) * HEAD_DIM + lane * COLUMNS];
      if constexpr (COLUMNS == 4)
        *reinterpret_cast<unsigned *>(place) =
            round_four(x[i][0] * inverse, x[i][1] * inverse, x[i][2] * inverse, x[i][3] * inverse);
      else
        *reinterpret_cast<unsigned short *>(place) = round_four(x[i][0] * inverse, x[i][1] * inverse, 0, 0);
    }
    return;
  }
#pragma unroll
  for (int word = 0; word < MINE / 4; ++word) {
    const auto &four = reinterpret_cast<const float (&)[4][COLUMNS]>(x[word * 4]);
    for (int c = 0; c < COLUMNS; ++c)
      columns[lane * COLUMNS + c][warp * 2 + word] =
          round_four(four[0][c] * inverse, four[1][c] * inverse, four[2][c] * inverse, four[3][c] * inverse);
  }
  __syncthreads();
  const size_t head = first / N;
  for (int chunk = threadIdx.x; chunk < HEAD_DIM * (ROWS / 16); chunk += QUANTIZE_WARPS * 32) {  // of 16 bytes
    const int column = chunk / (ROWS / 16), part = chunk % (ROWS / 16);
    *reinterpret_cast<uint4 *>(&V8[(head * HEAD_DIM + column) * N + first % N + part * 16]) =
        *reinterpret_cast<const uint4 *>(&columns[column][part * 4]);
  }
}

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

// The number of rows, B · H · N; 0 for what the kernels cannot take.
static int all_rows(int B, int H, int N) {
  const long long rows = (long long)B * H * N;
  return B < 1 || H < 1 || N < 1 || N % BLOCK_Q || N % KEYS || rows > INT_MAX - (1 << 20) ? 0 : rows;
}

extern "C" cudaError_t launch_attention_fp8(const Fp8 *Q8, const Fp8 *K8, const Fp8 *V8, const float *scales,
                                            Element *O, int B, int H, int N, float scale, cudaStream_t stream) {
  const float log2_e = 1.44269504f;
  const float scale_log2 = scale * log2_e;
  const int rows = all_rows(B, H, N);
  if (!rows || !(scale_log2 > 0 && scale_log2 < INFINITY)) return cudaErrorInvalidValue;
  if (!Q8 || !K8 || !V8 || !scales || !O || (size_t)scales % 4) return cudaErrorInvalidValue;
  CUtensorMap Q_map, K_map, V_map, O_map;
  cudaError_t status = tensor_map(&Q_map, Q8, rows, HEAD_DIM, BLOCK_Q, HEAD_DIM);
  if (status == cudaSuccess) status = tensor_map(&K_map, K8, rows, HEAD_DIM, KEYS, HEAD_DIM);
  if (status == cudaSuccess) status = tensor_map(&V_map, V8, rows / N * HEAD_DIM, N, HEAD_DIM, KEYS);
  if (status == cudaSuccess) status = tensor_map(&O_map, O, rows, HEAD_DIM, WGMMA_M, LINE);
  const int shared_bytes = sizeof(Shared);  // more than 48 KB must be asked for
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  int device, multiprocessors;
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const int blocks = min(rows / BLOCK_Q, multiprocessors);
  attention_kernel<<<blocks, THREADS, shared_bytes, stream>>>(Q_map, K_map, V_map, O_map, scales, rows, N, scale_log2);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_quantize(const Element *Q, const Element *K, const Element *V, Fp8 *Q8, Fp8 *K8, Fp8 *V8,
                                       float *scales, int B, int H, int N, cudaStream_t stream) {
  const int rows = all_rows(B, H, N);
  if (!rows || !Q || !K || !V || !Q8 || !K8 || !V8 || !scales) return cudaErrorInvalidValue;
  if (((size_t)Q | (size_t)K | (size_t)V | (size_t)Q8 | (size_t)K8 | (size_t)V8) % 16) return cudaErrorInvalidValue;
  if ((size_t)scales % 4) return cudaErrorInvalidValue;
  float *V_scales = &scales[(size_t)rows / ROWS * 2];
  scale_kernel<<<rows / ROWS, QUANTIZE_WARPS * 32, 0, stream>>>(V, V_scales);
  raise_kernel<<<B * H, QUANTIZE_WARPS * 32, 0, stream>>>(V_scales, N / ROWS);
  quantize_kernel<<<dim3(rows / ROWS, 3), QUANTIZE_WARPS * 32, 0, stream>>>(Q, K, V, Q8, K8, V8, scales, N);
  return cudaGetLastError();
}
