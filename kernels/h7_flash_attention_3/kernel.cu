// Stage h7 · Flash Attention-3: the softmax runs under the products.
//
// Problem   O = softmax(Q · Kᵀ · scale) · V for each of B · H heads; Q and O are [B, H, N, HEAD_DIM], K and V
//           [B, H_KV, N_KV, HEAD_DIM], all with strides of their own; 16-bit DTYPE in and out, fp32 accumulation and
//           softmax. CAUSAL: query i sees keys 0 to i. LSE, if asked for, is log Σ exp(scores), [B, H, N], fp32. A row
//           all of whose scores are -inf has O = 0 and LSE = -inf, as in torch's attention.
// Idea      In stage h6 the tensor cores wait for the softmax, and the softmax for the tensor cores. Two overlaps (Shah
//           et al., "FlashAttention-3", 2024). SCORES_AHEAD, within a warpgroup: the scores of the next tile are
//           started before the product of this one with V, and weighed before that is waited for (but three
//           warpgroups have registers for one P only). PING_PONG, between warpgroups: three take turns to start their
//           products, so that one weighs while the others multiply.
//           PERSISTENT, between tiles of queries: the producer brings the next Q, K and V while the last O is made and
//           stored. And LAZY_RESCALE: m, and with it all that was summed, moves only when a score is far above it.
//           Around them, what real use needs: the features of stage 16, by tensor maps of four dimensions.
//
//   level     | S = Q · Kᵀ (queries × keys)  | O += P · V (queries × columns) | who
//   ----------+------------------------------+--------------------------------+------------------------------
//   block     | 128 × KEYS  (or 192)         | 128 × HEAD_DIM  (or 192)       | 3 warpgroups (or 4)
//   producer  | Q, and tiles K0, K1, V0, K2, V1, ... in boxes of 64 columns   | 1 thread of the last one, and TMA
//   consumer  | 64 × KEYS: its queries       | 64 × HEAD_DIM: its queries     | 2 (or 3; for few queries 1)
//   wgmma     | Q 64 × 16, K KEYS × 16       | P 64 × 16, V 16 × HEAD_DIM     | the tensor cores of the SM
//
// Thread map   wgmma: each warp has 16 rows of S and O; row = lane / 4 (+ 8 for registers 2, 3), column = n * 8 +
//              lane % 4 * 2 (+ 1 for registers 1, 3): for each 16 × 8 the layout of mma.m16n8k16. A row lies in a
//              quad of lanes; two neighbouring tiles of S are a fragment of P, 16 × 16, as in stage 13.
// Limits       HEAD_DIM 64 or 128; rows that begin at multiples of 16 bytes; scale > 0; H a multiple of H_KV; compute
//              capability 9.0a; 193 KB of shared memory (113 KB for HEAD_DIM 64).
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
#ifndef CAUSAL
#define CAUSAL 0  // 1: query i sees keys 0 to i only, as torch's is_causal has it
#endif
#ifndef KEYS
#define KEYS 128  // keys, and their values, per tile: 64 or 128
#endif
#ifndef MAX_WARPGROUPS
#define MAX_WARPGROUPS 3  // that multiply: 2; or 3, for HEAD_DIM 64, where their tiles fit N
#endif
#ifndef PERSISTENT
#define PERSISTENT 1  // 1: a block per multiprocessor, which computes tile after tile; 0: a block per tile
#endif
#ifndef PING_PONG
#define PING_PONG 1  // 1: three warpgroups take turns to start their products; 2: two as well; 0: each when it can
#endif
#ifndef SCORES_AHEAD
#define SCORES_AHEAD 1  // 1: one or two warpgroups weigh scores under the product before with V; 0: after it, as three
#endif
#ifndef LAZY_RESCALE
#define LAZY_RESCALE 1  // 1: m moves only when a score is far above it; 0: with every tile
#endif

using Element = DTYPE;

constexpr int STAGES = 2;    // tiles in each ring, of K and of V
constexpr int WGMMA_M = 64;  // rows of S or O per tensor instruction and warpgroup
constexpr int WGMMA_K = 16;  // depth of a tensor instruction
constexpr int MMA_N = 8;     // columns of S or O per four registers of a lane
constexpr int TILES_KV = KEYS / MMA_N;
constexpr int TILES_D = HEAD_DIM / MMA_N;
constexpr int VECTOR = 16 / sizeof(Element);    // elements in a chunk of 16 bytes
constexpr int LINE = 128 / sizeof(Element);     // elements in 128 bytes, a row of the swizzle
constexpr int BOXES = HEAD_DIM / LINE;          // 64 columns after 64 columns: boxes of a tile
constexpr int EIGHT_ROWS = 8 * 128;             // bytes from 8 rows of an operand to the next 8
constexpr int KV_BOX = KEYS * 128;              // bytes from 64 columns of K or V to the next 64
constexpr int ROW_BYTES = HEAD_DIM * 2;         // of K or of V
constexpr int WARPS = 4, THREADS = WARPS * 32;  // of a warpgroup, and of a block that combines
constexpr long long SECTION_BYTES = 40 << 20;   // of K and V: two thirds of the L2 that this was measured on
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.69314718f;
constexpr float LOWEST = -3.4028235e38f;  // an m to begin with: finite, so that scores of -inf weigh 2^-inf = 0

constexpr float MOST = 15;        // as a power of two: what a weight may grow to before m moves; fp16 ends at 2^16
constexpr float FUSED = 1 << 20;  // up to such an m, a product with the scale may stay unrounded in an FMA: see `weigh`

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "HEAD_DIM is 64 or 128");
static_assert(KEYS == 64 || KEYS == 128, "KEYS is 64 or 128: a tensor instruction each");
static_assert(MAX_WARPGROUPS == 2 || MAX_WARPGROUPS == 3, "more warpgroups than 3 have too few registers");
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

// A box of a tensor of four dimensions, global -> shared, in the background: from (batch, row, head, col) on, as the
// map says. Its bytes count on the mbarrier `full`.
__device__ __forceinline__ void tma_load_4d(
    unsigned shared, const CUtensorMap *map, int batch, int row, int head, int col, unsigned full) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%5, %4, %3, %2}], [%6];" ::"r"(shared),
               "l"(map), "r"(batch), "r"(row), "r"(head), "r"(col), "r"(full) : "memory");
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

// The reverse of ldmatrix: four 8 × 8 matrices; lane L points at row L % 8 of matrix L / 8.
__device__ __forceinline__ void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3) : "memory");
}

// Makes what stmatrix wrote visible to TMA, which reads through another proxy, the asynchronous one.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A box of a tensor of four dimensions, shared -> global, in the background; what lies beyond it is not written.
__device__ __forceinline__ void tma_store_4d(
    const CUtensorMap *map, int batch, int row, int head, int col, unsigned shared) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%4, %3, %2, %1}], [%5];" ::"l"(map),
               "r"(batch), "r"(row), "r"(head), "r"(col), "r"(shared) : "memory");
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

struct Strides { long long batch, head, row; };  // in elements

struct Arguments {
  Element *O;
  float *LSE;                      // or null
  float *partial_O, *partial_LSE;  // [splits, B, H, N, HEAD_DIM] and [splits, B, H, N], where splits > 1
  Strides o;
  int batches, heads, heads_kv, n, n_kv;
  int splits;        // parts of the keys of a tile of queries, each for another block
  float scale_log2;  // scale · log₂e
  int packed;        // heads whose queries share a tile
  int section;       // CAUSAL: groups of packed heads whose tiles run together, the longest first
};

// What a block computes at a time.
struct Work {
  int batch, head;  // the first of the heads that are packed
  int row;          // the first of the tile's, among the packed heads' queries
  int part, tiles;  // of keys: those with numbers part, part + splits, part + 2 · splits, ...
};

template <int CONSUMERS>
struct Shared {  // tiles of 64 columns after 64 columns, written by TMA; its swizzle repeats after 8 rows, 1 KB
  static constexpr int Q_ROWS = (CONSUMERS == 1 ? 2 : CONSUMERS) * WGMMA_M;  // room for rows that packing adds
  alignas(1024) Element Q[2][BOXES][Q_ROWS][LINE];                           // ... and then O, on its way to TMA
  alignas(1024) Element K[STAGES][BOXES][KEYS][LINE];
  alignas(1024) Element V[STAGES][BOXES][KEYS][LINE];
  alignas(8) unsigned long long full_Q[2], full_K[STAGES], full_V[STAGES];  // mbarriers: a tile has come
  alignas(8) unsigned long long empty_Q[2];                                 // ... O, in the place of Q, has left
  alignas(8) unsigned long long empty_K[STAGES], empty_V[STAGES];           // ... the consumers have read it
};

// Where a row of a tile lies in a tensor: row r is query r / packed of head r % packed.
__device__ __forceinline__ long long row_offset(const Strides &strides, int batch, int head, int row, int packed) {
  const int query = packed == 1 ? row : row / packed;
  return batch * strides.batch + (head + row - query * packed) * strides.head + query * strides.row;
}

// Neighbouring blocks share a head: they find its K and V in L2. Under a causal mask the last queries have the most
// keys, so they come first in a section of heads, whose K and V fit in L2. PERSISTENT: blocks take the tiles of a
// section to and fro, so that a long one is followed by a short one.
template <int BLOCK_Q>
struct Schedule {
  int q_tiles, head_groups, groups, turns;

  __device__ explicit Schedule(const Arguments &arguments) {
    q_tiles = ceil_div(arguments.n * arguments.packed, BLOCK_Q);
    head_groups = arguments.heads / arguments.packed;
    groups = arguments.batches * head_groups;
    turns = 1;
    if (PERSISTENT)
      turns = CAUSAL ? ceil_div(groups, arguments.section) * rounds(arguments)
                     : ceil_div(groups * q_tiles * arguments.splits - blockIdx.x, gridDim.x);
  }

  // Turns of each block in a section.
  __device__ int rounds(const Arguments &arguments) const { return ceil_div(arguments.section * q_tiles, gridDim.x); }

  // The work of a turn; without tiles there is none.
  __device__ Work work(const Arguments &arguments, int turn) const {
    const int packed = arguments.packed;
    int index = blockIdx.x + turn * gridDim.x;
    int group = index / q_tiles % groups, q_tile = index % q_tiles;
    const int part = CAUSAL ? 0 : index / q_tiles / groups;
    if (CAUSAL) {
      int section = index / (arguments.section * q_tiles);
      index %= arguments.section * q_tiles;
      if (PERSISTENT) {
        const int round = turn % rounds(arguments);
        section = turn / rounds(arguments);
        index = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
      }
      const int size = min(arguments.section, groups - section * arguments.section);
      if (index >= size * q_tiles) return {};
      group = section * arguments.section + index % size;
      q_tile = q_tiles - 1 - index / size;
    }
    const int row = q_tile * BLOCK_Q;
    const int n_kv = CAUSAL ? min(arguments.n_kv, (row + BLOCK_Q - 1) / packed + 1) : arguments.n_kv;
    const int tiles = ceil_div(ceil_div(n_kv, KEYS) - part, arguments.splits);
    return {group / head_groups, group % head_groups * packed, row, part, tiles};
  }
};

// The first key of a tile: the last tile comes first, since masks are for the last ones. Parts take tiles in turn, so
// that what is read at a time lies side by side.
__device__ __forceinline__ int first_key(const Work &work, int tile, int splits) {
  return (work.part + (work.tiles - 1 - tile) * splits) * KEYS;
}

template <int CONSUMERS>
__global__ void __launch_bounds__((CONSUMERS + 1) * 128, 1) attention_kernel(
    const __grid_constant__ CUtensorMap Q_map,  // [B, N, H, HEAD_DIM] in boxes of [1, BLOCK_Q / packed, packed, LINE]
    const __grid_constant__ CUtensorMap K_map,  // [B, N_KV, H_KV, HEAD_DIM] in boxes of [1, KEYS, 1, LINE]
    const __grid_constant__ CUtensorMap V_map,  // likewise
    const __grid_constant__ CUtensorMap O_map,  // like Q, in boxes of [1, WGMMA_M / packed, packed, LINE]
    const __grid_constant__ Arguments arguments) {
  constexpr int BLOCK_Q = CONSUMERS * WGMMA_M;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto &shared = *reinterpret_cast<Shared<CONSUMERS> *>(memory);
  cudaTriggerProgrammaticLaunchCompletion();  // combine_kernel's blocks may come, and wait for what this one writes

  // 1. Which work is mine? Tiles of K and V follow one another in their rings, from one tile of queries to the next.
  const Schedule<BLOCK_Q> schedule(arguments);
  const int packed = arguments.packed, splits = arguments.splits;
  const int thread = threadIdx.x;
  const int warp = __shfl_sync(~0u, thread / 32, 0);  // so the compiler knows that the lanes of a warp agree
  const int lane = thread % 32;
  const int consumer = warp / 4;
  int count = 0;          // of this block's tiles of queries so far
  unsigned position = 0;  // of the first tile of K and V, in the order of all that pass through the rings

  if (thread == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared_address(&shared.full_Q[i]), 1);
      mbarrier_init(shared_address(&shared.empty_Q[i]), CONSUMERS);
    }
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(shared_address(&shared.full_K[stage]), 1);
      mbarrier_init(shared_address(&shared.full_V[stage]), 1);
      mbarrier_init(shared_address(&shared.empty_K[stage]), CONSUMERS);
      mbarrier_init(shared_address(&shared.empty_V[stage]), CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // nobody waits at a barrier that is not made yet

  // 2. The producer. Global -> shared, by TMA: each tile into the next stage, once the tile before it there is read,
  // and Q where O has left. What lies beyond a tensor becomes zeros.
  if (consumer == CONSUMERS) {
    if constexpr (CONSUMERS > 1) setmaxnreg_dec<CONSUMERS == 2 ? 24 : 32>();
    if (thread % 128 > 0) return;
    for (int turn = 0; turn < schedule.turns; ++turn) {
      const Work work = schedule.work(arguments, turn);
      if (work.tiles == 0) continue;
      const int kv_head = work.head / (arguments.heads / arguments.heads_kv);
      const unsigned full_Q = shared_address(&shared.full_Q[count % 2]);
      if (count >= 2) mbarrier_wait(shared_address(&shared.empty_Q[count % 2]), (count / 2 - 1) % 2);
      mbarrier_arrive_expect(full_Q, BOXES * ceil_div(BLOCK_Q, packed) * packed * 128);
      for (int box = 0; box < BOXES; ++box)
        tma_load_4d(shared_address(shared.Q[count % 2][box]), &Q_map, work.batch, work.row / packed, work.head,
                    box * LINE, full_Q);
      const auto load = [&](auto &ring, auto &full, auto &empty, const CUtensorMap *map, int tile) {
        const unsigned at = position + tile, stage = at % STAGES;
        if (at >= STAGES) mbarrier_wait(shared_address(&empty[stage]), (at / STAGES - 1) % 2);
        mbarrier_arrive_expect(shared_address(&full[stage]), sizeof(ring[stage]));
        for (int box = 0; box < BOXES; ++box)
          tma_load_4d(shared_address(ring[stage][box]), map, work.batch, first_key(work, tile, splits), kv_head,
                      box * LINE, shared_address(&full[stage]));
      };
      for (int tile = 0; tile <= work.tiles; ++tile) {  // in the order in which they are multiplied
        if (tile < work.tiles) load(shared.K, shared.full_K, shared.empty_K, &K_map, tile);
        if (tile > 0) load(shared.V, shared.full_V, shared.empty_V, &V_map, tile - 1);
      }
      ++count;
      position += work.tiles;
    }
    return;
  }

  // 3. The consumers.
  if constexpr (CONSUMERS > 1) setmaxnreg_inc<CONSUMERS == 2 ? 240 : 160>();
  constexpr bool TURNS = CONSUMERS == 3 ? PING_PONG > 0 : CONSUMERS == 2 && PING_PONG == 2;
  const int my_turn = 1 + consumer, next_turn = 1 + (consumer + 1) % CONSUMERS;  // named barriers
  const auto wait_for = [&](auto &full, unsigned at) {
    mbarrier_wait(shared_address(&full[at % STAGES]), at / STAGES % 2);
  };
  const auto give_back = [&](auto &empty, unsigned at) {
    if (thread % 128 == 0) mbarrier_arrive(shared_address(&empty[at % STAGES]));
  };

  for (int turn = 0; turn < schedule.turns; ++turn) {
    const Work work = schedule.work(arguments, turn);
    if (work.tiles == 0) continue;
    auto &Q_tile = shared.Q[count % 2];
    const unsigned Q_rows = shared_address(Q_tile[0][consumer * WGMMA_M]);  // of this warpgroup's 64
    const int warp_row = work.row + warp * 16;      // of this warp's 16 queries, among the packed heads'
    float o[TILES_D][4] = {};                       // 16 × HEAD_DIM of O per warp, in wgmma's layout
    float s[TILES_KV][4];                           // 16 × KEYS of S per warp, likewise
    using Weights = unsigned[KEYS / WGMMA_K][4];    // 16 × KEYS of P per warp, as wgmma wants its first operand
    constexpr int COPIES = CONSUMERS == 3 ? 1 : 2;  // one is made while wgmma reads the other, if registers allow
    Weights p[COPIES];
    float m[2] = {LOWEST, LOWEST};  // of this lane's rows, in 0-7 and in 8-15 of the warp's
    float row_sum[2][2] = {};       // l of these rows, in two sums; only keys that this lane has seen
    bool moved, large = false;      // did m move with this tile? is m so large that products are rounded?
    float correction[2];            // if m moved: of what was summed by the m before

    // S = Q · Kᵀ: this warpgroup's queries, all keys. 16 columns are 32 bytes on, in a row.
    const auto start_scores = [&](unsigned at) {
      const unsigned long long q = descriptor(Q_rows, 16, EIGHT_ROWS);
      const unsigned long long k = descriptor(shared_address(shared.K[at % STAGES]), 16, EIGHT_ROWS);
#pragma unroll
      for (int d = 0; d < HEAD_DIM; d += WGMMA_K) {  // in a descriptor's unit, 16 bytes
        const int columns = d % LINE * sizeof(Element) / 16, box = d / LINE;
        wgmma_scores<KEYS>(s, q + box * sizeof(Q_tile[0]) / 16 + columns, k + box * KV_BOX / 16 + columns, d > 0);
      }
      wgmma_commit();
    };

    // O += P · V: this warpgroup's queries, all columns. 16 keys are 16 rows on, 2 KB.
    const auto start_values = [&](const Weights &p, unsigned at) {
      const unsigned long long v = descriptor(shared_address(shared.V[at % STAGES]), KV_BOX, EIGHT_ROWS);
#pragma unroll
      for (int key = 0; key < KEYS; key += WGMMA_K) wgmma_values<HEAD_DIM>(o, p[key / WGMMA_K], v + key * 128 / 16);
      wgmma_commit();
    };

    // Online softmax, of rows that lie in a quad: scores become weights, and two tiles of weights side by side are a
    // fragment of P. A key that a query does not see has none. m cancels in O / l, so any serves that leaves no weight
    // too large (the conditional rescaling of FlashAttention-4): it moves after the first tile, and when a score is
    // more than MOST above it. It is never above the maximum, so small weights lose no more bits than torch's.
    const auto weigh = [&](int tile, Weights &p, bool first) {
      const int from = first_key(work, tile, splits);
      const int whole_keys = CAUSAL ? min(arguments.n_kv, warp_row / packed + 1) : arguments.n_kv;  // that all rows see
      if ((CAUSAL || tile == 0) && from + KEYS > whole_keys) {
#pragma unroll
        for (int half_tile = 0; half_tile < 2; ++half_tile) {
          const int query = (warp_row + half_tile * 8 + lane / 4) / packed;
          const int last = CAUSAL ? min(query, arguments.n_kv - 1) : arguments.n_kv - 1;
#pragma unroll
          for (int n = 0; n < TILES_KV; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              if (from + n * MMA_N + lane % 4 * 2 + i > last) s[n][half_tile * 2 + i] = -INFINITY;
            }
          }
        }
      }

      float largest[2], above[2];  // of this lane's scores; and how far above m
#pragma unroll
      for (int half_tile = 0; half_tile < 2; ++half_tile) {
        largest[half_tile] = fmaxf(s[0][half_tile * 2], s[0][half_tile * 2 + 1]);
#pragma unroll
        for (int n = 1; n < TILES_KV; ++n)
          largest[half_tile] = fmaxf(largest[half_tile], fmaxf(s[n][half_tile * 2], s[n][half_tile * 2 + 1]));
        above[half_tile] = fmaf(largest[half_tile], arguments.scale_log2, -m[half_tile]);
      }
      // A vote: all lanes of the warp take the same branch.
      moved = first || !LAZY_RESCALE || __any_sync(~0u, fmaxf(above[0], above[1]) > MOST);
      if (moved) {
#pragma unroll
        for (int half_tile = 0; half_tile < 2; ++half_tile) {
          const float new_m = fmaxf(m[half_tile], quad_max(__fmul_rn(largest[half_tile], arguments.scale_log2)));
          correction[half_tile] = exp2_approx(m[half_tile] - new_m);  // at first 0, or 1 if all are -inf
          m[half_tile] = new_m;
          row_sum[0][half_tile] *= correction[half_tile];
          row_sum[1][half_tile] *= correction[half_tile];
        }
        large = __any_sync(~0u, fmaxf(fabsf(m[0]), fabsf(m[1])) > FUSED);
      }
      // Where m is so large that the rounding of its product matters, each score is rounded like it.
      float scale = arguments.scale_log2;
      if (large) {
#pragma unroll
        for (int n = 0; n < TILES_KV; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[n][i] = __fmul_rn(s[n][i], scale);
        }
        scale = 1;
      }

      float sums[2][2] = {};  // of this lane's weights of its two rows, in two chains
#pragma unroll
      for (int n = 0; n < TILES_KV; ++n) {
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = exp2_approx(fmaf(s[n][i], scale, -m[i / 2]));
        sums[n % 2][0] += w[0] + w[1];
        sums[n % 2][1] += w[2] + w[3];
        p[n / 2][n % 2 * 2] = round_pair<Element>(w[0], w[1]);
        p[n / 2][n % 2 * 2 + 1] = round_pair<Element>(w[2], w[3]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) row_sum[i][0] += sums[i][0], row_sum[i][1] += sums[i][1];
    };

    // The first scores, with nothing of this tile of queries under them.
    mbarrier_wait(shared_address(&shared.full_Q[count % 2]), count / 2 % 2);
    wait_for(shared.full_K, position);
    wgmma_fence();
    start_scores(position);
    if (TURNS && consumer == CONSUMERS - 1 && work.tiles > 1) named_barrier_arrive(next_turn, 256);  // the first begins
    if (count > 0 && thread % 128 == 0) {
      bulk_wait_read<0>();  // TMA has read the last tile's O: the producer may overwrite it
      mbarrier_arrive(shared_address(&shared.empty_Q[(count - 1) % 2]));
    }
    wgmma_wait<0>(s);
    give_back(shared.empty_K, position);
    weigh(0, p[0], true);

    // A tile: its scores and the values of the one before are started together; then the scores are weighed.
    const auto step = [&](int tile, const Weights &p_before, Weights &p) {
      const unsigned at = position + tile;
      const auto end_values = [&] {
        wgmma_wait<0>(o);  // the products have read p_before and V and written o
        give_back(shared.empty_V, at - 1);
      };
      wait_for(shared.full_K, at);
      if (TURNS) named_barrier_sync(my_turn, 256);  // the warpgroup before has started its products
      wgmma_fence();
      start_scores(at);
      wait_for(shared.full_V, at - 1);
      start_values(p_before, at - 1);
      if (TURNS && (consumer < CONSUMERS - 1 || tile + 1 < work.tiles)) named_barrier_arrive(next_turn, 256);
      wgmma_wait<SCORES_AHEAD ? 1 : 0>(s);  // the scores are there
      give_back(shared.empty_K, at);
      if (COPIES == 1) end_values();  // p is p_before
      weigh(tile, p, false);
      if (COPIES == 2) end_values();
      if (moved) {
#pragma unroll
        for (int n = 0; n < TILES_D; ++n) {
          o[n][0] *= correction[0], o[n][1] *= correction[0];
          o[n][2] *= correction[1], o[n][3] *= correction[1];
        }
      }
    };
    for (int tile = 1; tile < work.tiles; tile += COPIES) {
      step(tile, p[0], p[COPIES - 1]);
      if (COPIES == 2 && tile + 1 < work.tiles) step(tile + 1, p[COPIES - 1], p[0]);
    }

    // The last values.
    position += work.tiles;
    wait_for(shared.full_V, position - 1);
    wgmma_fence();
    if (work.tiles % COPIES == COPIES - 1)
      start_values(p[0], position - 1);
    else
      start_values(p[COPIES - 1], position - 1);
    wgmma_wait<0>(o);
    give_back(shared.empty_V, position - 1);

    // 4. Divide by the sums. Parts of a split row are combined later, and stay in fp32.
    float inverse[2];
#pragma unroll
    for (int half_tile = 0; half_tile < 2; ++half_tile) {
      const int row = warp_row + half_tile * 8 + lane / 4;
      const float sum = quad_sum(row_sum[0][half_tile] + row_sum[1][half_tile]);
      inverse[half_tile] = 1 / (sum == 0 ? 1 : sum);  // 0: every score was -inf, and so O is 0
      if (row >= arguments.n * packed || (splits == 1 && !arguments.LSE)) continue;
      const float log2_sum = m[half_tile] + log2f(sum);
      const size_t head = (size_t)work.batch * arguments.heads + work.head + row % packed;
      const size_t place = head * arguments.n + row / packed;
      if (splits == 1) {
        if (lane % 4 == 0) arguments.LSE[place] = log2_sum * LN_2;
        continue;
      }
      const size_t part = work.part * ((size_t)arguments.batches * arguments.heads * arguments.n) + place;
      if (lane % 4 == 0) arguments.partial_LSE[part] = log2_sum;
#pragma unroll
      for (int n = 0; n < TILES_D; ++n)
        *reinterpret_cast<float2 *>(&arguments.partial_O[part * HEAD_DIM + n * MMA_N + lane % 4 * 2]) =
            make_float2(o[n][half_tile * 2] * inverse[half_tile], o[n][half_tile * 2 + 1] * inverse[half_tile]);
    }
    ++count;
    if (splits > 1) continue;

    // 5. Others are rounded once, and leave by TMA, by way of this warpgroup's rows of Q, which nobody reads any more.
#pragma unroll
    for (int n = 0; n < TILES_D; n += 2) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
      const int row = warp * 16 + lane % 16;
      const int col = n * MMA_N + lane / 16 * 8;
      const unsigned address = shared_address(&Q_tile[col / LINE][row][swizzle<LINE>(row, col % LINE)]);
      const auto &left = o[n], &right = o[n + 1];
      stmatrix_x4(address, round_pair<Element>(left[0] * inverse[0], left[1] * inverse[0]),
                  round_pair<Element>(left[2] * inverse[1], left[3] * inverse[1]),
                  round_pair<Element>(right[0] * inverse[0], right[1] * inverse[0]),
                  round_pair<Element>(right[2] * inverse[1], right[3] * inverse[1]));
    }
    fence_proxy_async();                        // each warp shows TMA what it wrote,
    named_barrier_sync(4 + consumer, THREADS);  // ... and the warpgroup's rows are complete
    if (thread % 128 == 0) {
      for (int box = 0; box < BOXES; ++box)
        tma_store_4d(&O_map, work.batch, work.row / packed + consumer * WGMMA_M, work.head, box * LINE,
                     shared_address(Q_tile[box][consumer * WGMMA_M]));
      bulk_commit();
    }
  }
  if (thread % 128 == 0) bulk_wait_read<0>();  // shared memory is there until TMA has read it
}

// O of each query is the mean of its parts, weighted by their sums of weights, 2^LSE. A block per query: each warp adds
// up some of the parts, a lane some of the columns, relative to the largest LSE that the warp has seen.
__global__ void __launch_bounds__(THREADS) combine_kernel(const __grid_constant__ Arguments arguments) {
  constexpr int COLUMNS = HEAD_DIM / 32;  // of a lane
  constexpr int AT_ONCE = 16;             // parts that a warp waits for together
  struct alignas(COLUMNS * sizeof(float)) Columns { float x[COLUMNS]; };
  __shared__ Columns warp_o[WARPS][32];
  __shared__ float warp_max[WARPS], warp_sum[WARPS];
  const int row = blockIdx.x;  // of all batches, heads and queries
  const size_t rows = gridDim.x;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  cudaGridDependencySynchronize();  // attention_kernel has written all parts
  float largest = LOWEST, sum = 0;
  Columns o = {};
  for (int first = warp; first < arguments.splits; first += WARPS * AT_ONCE) {
    float lse[AT_ONCE];
    Columns part_o[AT_ONCE] = {};
    float new_max = largest;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const size_t place = (first + i * WARPS) * rows + row;
      const bool there = first + i * WARPS < arguments.splits;
      lse[i] = there ? arguments.partial_LSE[place] : -INFINITY;
      if (there) part_o[i] = reinterpret_cast<const Columns *>(&arguments.partial_O[place * HEAD_DIM])[lane];
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
      for (int col = 0; col < COLUMNS; ++col) o.x[col] += weight * part_o[i].x[col];
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

// A tensor [batches, heads, rows, HEAD_DIM] for TMA, in boxes of box_rows × box_heads × 64 elements with a swizzle of
// 128 bytes: a row of each head, then the next row of each.
static cudaError_t tensor_map(CUtensorMap *map, const Element *tensor, const Strides &strides, int batches, int heads,
                              int rows, int box_heads, int box_rows) {
  static void *const found = [] {  // a function of the driver: no library to link
    void *function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return function;
  }();
  if (!found) return cudaErrorNotSupported;
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  const cuuint64_t sizes[] = {HEAD_DIM, (cuuint64_t)heads, (cuuint64_t)rows, (cuuint64_t)batches};
  const auto bytes = [](int size, long long stride) {  // a stride that is never taken may be anything
    return size == 1 ? 16 : (cuuint64_t)stride * sizeof(Element);
  };
  const cuuint64_t steps[] = {bytes(heads, strides.head), bytes(rows, strides.row), bytes(batches, strides.batch)};
  const cuuint32_t box[] = {LINE, (cuuint32_t)box_heads, (cuuint32_t)box_rows, 1}, every[] = {1, 1, 1, 1};
  const CUresult made =
      encode(map, TENSOR_MAP_TYPE<Element>, 4, const_cast<Element *>(tensor), sizes, steps, box, every,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

struct Tensors {
  const Element *Q, *K, *V;
  Strides q, k, v;
};

// How many groups a section has: at most `most`, and about as many as the others; where possible, so that its tiles
// divide evenly among the blocks, since in a partial last round most blocks would wait.
static int section_size(int groups, int q_tiles, int blocks, int most) {
  const int even = ceil_div(groups, ceil_div(groups, most));
  int step = 1;
  while ((long long)step * q_tiles % blocks) ++step;
  const int whole = ceil_div(even, step) * step;
  return min(whole <= most ? whole : even, groups);
}

template <int CONSUMERS>
cudaError_t launch(const Tensors &tensors, Arguments arguments, cudaStream_t stream) {
  constexpr int BLOCK_Q = CONSUMERS * WGMMA_M;
  const int batches = arguments.batches, heads = arguments.heads, n = arguments.n;
  const int packed = arguments.packed, splits = arguments.splits;
  const long long outputs = (long long)batches * heads * n;  // each combined by a block
  const long long groups = (long long)batches * heads / packed, tiles = groups * ceil_div(n * packed, BLOCK_Q) * splits;
  if (tiles > INT_MAX || (splits > 1 && outputs > INT_MAX)) return cudaErrorInvalidValue;
  int device, blocks = tiles;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess && PERSISTENT)
    status = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  arguments.section = section_size(groups, ceil_div(n * packed, BLOCK_Q), blocks, arguments.section);
  CUtensorMap Q_map, K_map, V_map, O_map;
  const int heads_kv = arguments.heads_kv, n_kv = arguments.n_kv;
  if (status == cudaSuccess)
    status = tensor_map(&Q_map, tensors.Q, tensors.q, batches, heads, n, packed, ceil_div(BLOCK_Q, packed));
  if (status == cudaSuccess) status = tensor_map(&K_map, tensors.K, tensors.k, batches, heads_kv, n_kv, 1, KEYS);
  if (status == cudaSuccess) status = tensor_map(&V_map, tensors.V, tensors.v, batches, heads_kv, n_kv, 1, KEYS);
  if (status == cudaSuccess)
    status = tensor_map(&O_map, arguments.O, arguments.o, batches, heads, n, packed, packed > 1 ? n : WGMMA_M);
  const auto kernel = attention_kernel<CONSUMERS>;
  const int shared_bytes = sizeof(Shared<CONSUMERS>);  // more than 48 KB must be asked for
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  const int grid = min((long long)blocks, tiles);
  kernel<<<grid, (CONSUMERS + 1) * 128, shared_bytes, stream>>>(Q_map, K_map, V_map, O_map, arguments);
  status = cudaGetLastError();
  if (status != cudaSuccess || splits == 1) return status;
  cudaLaunchAttribute early = {cudaLaunchAttributeProgrammaticStreamSerialization};
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {dim3(outputs), dim3(THREADS), 0, stream, &early, 1};
  return cudaLaunchKernelEx(&config, combine_kernel, arguments);
}

// Strides are in elements: of the batches, the heads and the rows of Q, of K, of V and of O, in this order. partial_O
// and partial_LSE hold [splits, B, H, N, HEAD_DIM] and [splits, B, H, N] floats if splits > 1.
extern "C" cudaError_t launch_sdpa(
    const Element *Q, const Element *K, const Element *V, Element *O, float *LSE, float *partial_O, float *partial_LSE,
    int B, int H, int H_KV, int N, int N_KV, long long q_batch, long long q_head, long long q_row, long long k_batch,
    long long k_head, long long k_row, long long v_batch, long long v_head, long long v_row, long long o_batch,
    long long o_head, long long o_row, int splits, float scale, cudaStream_t stream) {
  const float scale_log2 = scale * LOG2_E;
  const Tensors tensors = {Q, K, V, {q_batch, q_head, q_row}, {k_batch, k_head, k_row}, {v_batch, v_head, v_row}};
  if (B < 1 || H < 1 || H_KV < 1 || H % H_KV || N < 1 || N_KV < 1 || splits < 1) return cudaErrorInvalidValue;
  if (!(scale_log2 > 0 && scale_log2 < INFINITY) || (CAUSAL && splits > 1)) return cudaErrorInvalidValue;
  if (!Q || !K || !V || !O) return cudaErrorInvalidValue;  // the tensor maps check addresses and strides
  if (splits > 1 && !(partial_O && partial_LSE)) return cudaErrorInvalidValue;
  const int packed = N * (long long)(H / H_KV) <= WGMMA_M ? H / H_KV : 1;
  const int section = max(SECTION_BYTES / ((long long)N_KV * ROW_BYTES * 2), 4LL);
  const int parts = min(splits, ceil_div(N_KV, KEYS));  // none without a tile
  const Strides o = {o_batch, o_head, o_row};
  const Arguments arguments = {
      O, LSE, partial_O, partial_LSE, o, B, H, H_KV, N, N_KV, parts, scale_log2, packed, section};
  if (N * packed <= WGMMA_M) return launch<1>(tensors, arguments, stream);
  if constexpr (HEAD_DIM == 64 && MAX_WARPGROUPS == 3) {
    // Tiles of 192 queries are faster, long sequences by a fifth; where N leaves more than that of them empty, 128 are
    // better. Under a causal mask tiles of 192 have more keys that only some of their queries see.
    const long long tenths = CAUSAL ? 11 : 12;
    if (10LL * ceil_div(N, 192) * 192 < tenths * ceil_div(N, 128) * 128) return launch<3>(tensors, arguments, stream);
  }
  return launch<2>(tensors, arguments, stream);
}
