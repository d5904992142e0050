// hopper_matmul: the product that a program calls on Hopper, kernels.matmul. Stage h5 is a lesson of it.
//
// Problem   C[M, N] = activation(A[M, K] · B[K, N] + bias[N]) + residual[M, N], rows side by side or further apart; or
//           B_TRANSPOSED, B[N, K]; 16-bit DTYPE in, DTYPE or fp32 out, fp32 accumulation. Bias and residual may be
//           null.
// Idea      What paid so far, for any size. Persistent blocks whose two consumers share a tile of 128 × 256, which
//           reads little from shared memory and L2. TMA fills with zeros what lies beyond A and B, and clips C.
//           Products too small for that tile on every SM take a smaller one, and split K: over the blocks of a cluster,
//           which add their sums through each other's shared memory; where K is deep, over blocks that are no cluster:
//           the whole grid waits. What follows a product is done on accumulators. Little is done between one tensor
//           instruction and the next. (One elected lane copies: ptxas then needs no loop over lanes for each copy.)
//           Tiles of 96 and 160 rows are EXCHANGED, Cᵀ = Bᵀ · Aᵀ: a tensor instruction has 64 rows, but any
//           multiple of 8 columns. Where rows of A or B do not begin at multiples of 128 bytes, pairs of blocks share
//           their copies of B, by multicast.
//
//   level     | tile of C (M × N)                      | tiles of A, B per K slice of 64 | who
//   ----------+----------------------------------------+---------------------------------+---------------------------
//   split     | one                                    | a share of the slices per block | cluster of SPLITS, or APART
//   block     | 128 × 64 to 256, 192 × 64, 192; or     | as many as fit: STAGES          | 3 or 4 warpgroups
//             | exchanged 96 × 128, 96 × 192, 160 × 128|                                 |
//   producer  |                                        | boxes of 64 along K, or N       | 1 thread of the last one
//   consumer  | 64 × BLOCK_N; exchanged, BLOCK_M × 64  | none                            | 2 warpgroups, or 3
//
// Thread map   wgmma: each warp has 16 rows of C; row = lane / 4 (+ 8 for registers 2, 3), column = n * 8 +
//              lane % 4 * 2 (+ 1 for registers 1, 3): for each 16 × 8 the layout of mma.m16n8k16. EXCHANGED, of Cᵀ.
// Limits       N and K multiples of 8; compute capability 9.0a; 227 KB of shared memory.
// Layouts      PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor maps", "mbarrier".

#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of A, B and C
#endif
#ifndef B_TRANSPOSED
#define B_TRANSPOSED 0  // 1: B is stored as [N, K], as torch's linear layers do
#endif
#ifndef FP32_OUT
#define FP32_OUT 0  // 1: C is fp32
#endif
#ifndef GROUP_M
#define GROUP_M 0  // block swizzle: rows of tiles that blocks walk down, then to the right; 0: the launcher chooses
#endif

using Element = DTYPE;
#if FP32_OUT
using Output = float;
#else
using Output = DTYPE;
#endif

constexpr int BLOCK_K = 64;                   // depth of a K slice
constexpr int WGMMA_M = 64;                   // rows of C per tensor instruction and warpgroup
constexpr int WGMMA_K = 16;                   // depth of a tensor instruction
constexpr int WARP_M = WGMMA_M / 4;           // rows of C per warp
constexpr int MMA_N = 8;                      // columns of C per four registers of a lane
constexpr int VECTOR = 16 / sizeof(Element);  // elements in a chunk of 16 bytes
constexpr int LINE = 128 / sizeof(Element);   // elements in 128 bytes, a row of the swizzle
constexpr int EIGHT_ROWS = 8 * 128;           // bytes from 8 rows of an operand to the next 8
constexpr int B_BOX = BLOCK_K * 128;          // bytes from 64 columns of B to the next 64
constexpr int SHARED_BYTES = 227 * 1024;      // what a block may have

static_assert(GROUP_M >= 0, "rows of tiles per group, or 0");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(BLOCK_K == LINE, "the descriptors take rows of 128 bytes");

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

template <int BLOCK_M, int BLOCK_N>
struct Tiles {  // one stage of the ring, written by TMA; its swizzle repeats after 8 rows, 1 KB
  static constexpr int B_BOXES = ceil_div(BLOCK_N, LINE);                  // the last may be half used,
  static constexpr int B_LINES = B_TRANSPOSED ? BLOCK_N : B_BOXES * LINE;  // ... or there is one, BLOCK_N lines long
  alignas(1024) Element A[BLOCK_M][LINE];
  alignas(1024) Element B[B_LINES * BLOCK_K];  // [B_BOXES][BLOCK_K][LINE], or [BLOCK_N][LINE] if B_TRANSPOSED
};

constexpr int APART = 0;  // in place of SPLITS: any number of blocks, whose sums pass through global memory

template <int BLOCK_M_, int BLOCK_N_, int SPLITS_, int SHARERS_>
struct Shape {
  static constexpr int BLOCK_M = BLOCK_M_;  // rows of C per block
  static constexpr int BLOCK_N = BLOCK_N_;  // columns of C per block
  static constexpr int SPLITS = SPLITS_;    // blocks that share a tile's slices: a cluster of so many; or APART
  static constexpr int SHARERS = SHARERS_;  // blocks with tiles below one another, a cluster: B's copies are shared
  static constexpr bool EXCHANGED = BLOCK_M % WGMMA_M > 0;       // Cᵀ = Bᵀ · Aᵀ: a consumer has 64 columns of C
  static constexpr int WGMMA_N = EXCHANGED ? BLOCK_M : BLOCK_N;  // columns of a tensor instruction: C's, or C's rows
  static constexpr int TILES_N = WGMMA_N / MMA_N;
  static constexpr int CONSUMERS = (EXCHANGED ? BLOCK_N : BLOCK_M) / WGMMA_M;  // warpgroups that multiply
  static constexpr int THREADS = (CONSUMERS + 1) * 128;                        // ... and the producer's
  using Stage = Tiles<BLOCK_M, BLOCK_N>;

  static constexpr int C_LINE = (BLOCK_N * sizeof(Output) % 128 ? 64 : 128) / sizeof(Output);  // columns of a box of C
  static constexpr int C_ROWS = EXCHANGED ? BLOCK_M : WGMMA_M;                                 // ... its rows
  static constexpr int ALL_BOXES = (EXCHANGED ? WGMMA_M : BLOCK_N) / C_LINE;        // of what a consumer has of C,
  static constexpr int BOXES_BYTES = CONSUMERS * C_ROWS * C_LINE * sizeof(Output);  // ... one box of each consumer
  static constexpr int FIT = (SHARED_BYTES - 1024 - 4 * (int)sizeof(Stage)) / BOXES_BYTES;  // beside a ring of four
  static constexpr int C_BOXES = SPLITS != 1 ? 1 : FIT < ALL_BOXES ? FIT : ALL_BOXES;  // a split has no use for one
  static constexpr int STAGES = (SHARED_BYTES - 1024 - C_BOXES * BOXES_BYTES) / sizeof(Stage);

  struct Shared {
    Stage ring[STAGES];
    alignas(1024) Output C[CONSUMERS][C_BOXES][C_ROWS][C_LINE];  // of each consumer's part, on its way to TMA
    alignas(8) unsigned long long full[STAGES];                  // mbarriers: a stage's bytes have come
    alignas(8) unsigned long long empty[STAGES];                 // ... the consumers have read it
  };
  static_assert(sizeof(Shared) <= SHARED_BYTES, "a block has no more shared memory");
  static_assert(sizeof(Shared::ring) >= BLOCK_M * BLOCK_N * sizeof(float), "partial sums take its place");
  static_assert(C_BOXES > 0 && STAGES > 1, "room for a box of C beside the ring");
  static_assert(!EXCHANGED || SPLITS == 1 && C_BOXES == ALL_BOXES, "exchanged, a tile is one block's, and has room");
  static_assert(SPLITS == 1 || SHARERS == 1, "blocks share a tile's slices, or copies");
};

template <typename T>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<float> = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;

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

// The same at the mbarrier at the same place in the cluster's block of that rank.
__device__ __forceinline__ void mbarrier_arrive_at(unsigned barrier, int rank) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
               "r"(rank) : "memory");
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

// The same, to this place in all SHARERS blocks of the cluster, and to the mbarrier at the same place there.
template <int SHARERS>
__device__ __forceinline__ void tma_load_to_all(
    unsigned shared, const CUtensorMap *map, int row, int col, unsigned full) {
  constexpr unsigned short BLOCKS = (1 << SHARERS) - 1;
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%3, %2}], [%4], %5;" ::"r"(shared),
               "l"(map), "r"(row), "r"(col), "r"(full), "h"(BLOCKS) : "memory");
}

// True in one lane of the warp, which is whole. ptxas knows that it is one, as it does not of `lane == 0`.
// It is the same lane each time.
__device__ __forceinline__ bool elect_one() {
  unsigned elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected;
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

// D[64, N] += A[64, 16] · B[16, N], fp32 accumulation; rows of A lie along K, rows of B along N or, transposed,
// along K.
#define FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define ACCUMULATORS_64 SIXTEEN(0), SIXTEEN(4)
#define ACCUMULATORS_96 ACCUMULATORS_64, SIXTEEN(8)
#define ACCUMULATORS_128 ACCUMULATORS_96, SIXTEEN(12)
#define ACCUMULATORS_160 ACCUMULATORS_128, SIXTEEN(16)
#define ACCUMULATORS_192 ACCUMULATORS_160, SIXTEEN(20)
#define ACCUMULATORS_224 ACCUMULATORS_192, SIXTEEN(24)
#define ACCUMULATORS_256 ACCUMULATORS_224, SIXTEEN(28)
#define OPERANDS_64                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPERANDS_96 \
  OPERANDS_64       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define OPERANDS_128 \
  OPERANDS_96        \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPERANDS_160 \
  OPERANDS_128       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define OPERANDS_192 \
  OPERANDS_160       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OPERANDS_224 \
  OPERANDS_192       \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define OPERANDS_256 \
  OPERANDS_224       \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

template <typename T, int N>
__device__ void wgmma(float (&d)[N / 8][4], unsigned long long a, unsigned long long b, int add);

// The operands of the instruction have numbers, after those of the N / 2 accumulators: A, B, their layouts, add.
#define WGMMA(T, TYPE, N, EXCHANGED, A, B, A_ROWS, B_ROWS, ADD)                                                  \
  template <>                                                                                                    \
  __device__ __forceinline__ void wgmma<T, N>(                                                                   \
      float (&d)[N / 8][4], unsigned long long a, unsigned long long b, int add) {                               \
    asm volatile("{\n.reg .pred add;\nsetp.ne.u32 add, " ADD ", 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" OPERANDS_##N               \
                 "}, " A ", " B ", add, 1, 1, " A_ROWS ", " B_ROWS ";\n}" : ACCUMULATORS_##N                     \
                 : "l"(a), "l"(b), "n"(EXCHANGED && !B_TRANSPOSED), "n"(!EXCHANGED && !B_TRANSPOSED), "r"(add)); \
  }
#define BOTH_TYPES(N, ...) WGMMA(half, "f16", N, __VA_ARGS__) WGMMA(__nv_bfloat16, "bf16", N, __VA_ARGS__)
BOTH_TYPES(64, 0, "%32", "%33", "%34", "%35", "%36")
BOTH_TYPES(96, 1, "%48", "%49", "%50", "%51", "%52")
BOTH_TYPES(128, 0, "%64", "%65", "%66", "%67", "%68")
BOTH_TYPES(160, 1, "%80", "%81", "%82", "%83", "%84")
BOTH_TYPES(192, 0, "%96", "%97", "%98", "%99", "%100")
BOTH_TYPES(224, 0, "%112", "%113", "%114", "%115", "%116")
BOTH_TYPES(256, 0, "%128", "%129", "%130", "%131", "%132")

// Two numbers rounded to T, the first in the lower half.
template <typename T>
__device__ unsigned pack(float low, float high);

template <>
__device__ __forceinline__ unsigned pack<half>(float low, float high) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

template <>
__device__ __forceinline__ unsigned pack<__nv_bfloat16>(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// The reverse of ldmatrix: four 8 × 8 matrices; lane L points at row L % 8 of matrix L / 8.
__device__ __forceinline__ void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3) : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void stmatrix_x4_transposed(
    unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3) : "memory");
}

// Makes what stmatrix wrote visible to TMA, which reads through another proxy, the asynchronous one.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A box of a matrix, shared -> global, in the background; what lies beyond the matrix is not written.
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

// A named barrier, of some of the block's warps: waits for `threads` threads, itself among them.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Waits for all threads of the cluster, and for what they wrote to shared memory.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The same, but nothing is made visible, and ptxas puts no fence before it. What a thread has read and used has come.
__device__ __forceinline__ void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The address in block `rank` of the cluster that `address` is in this one.
__device__ __forceinline__ unsigned cluster_address(unsigned address, int rank) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ float4 load_cluster(unsigned address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address) : "memory");
  return v;
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

struct Arguments {
  const Element *bias, *residual;  // [N], [M, N]; or null
  Output *C;                       // [M, N]
  int M, N, K;
  int c_row, residual_row;  // elements from a row to the next
  int activation;           // 0: none; 1: ReLU; 2: GELU
  float4 *sums;             // APART: [order.splits, order.tiles, CONSUMERS, TILES_N, 128], as the registers lie
};

struct alignas(8) Pair { float x, y; };

// x · Φ(x), with Φ to 7.5e-8: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.17, times 1 / √(2π).
__device__ __forceinline__ float gelu(float x) {
  float t, power;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(fabsf(x), 0.23164190f, 1.0f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * x * -0.72134752f));  // e^(-x² / 2)
  const float series =
      fmaf(t, fmaf(t, fmaf(t, fmaf(t, 0.53070271f, -0.72657601f), 0.71070687f), -0.14224837f), 0.12741480f);
  const float tail = t * series * power;
  return x * (x > 0.0f ? 1.0f - tail : tail);
}

struct alignas(4) Addends { Element x, y; };  // of two neighbours of C

// Those of columns col and col + 1; of no row, zeros.
__device__ __forceinline__ Addends load_addends(const Element *row, int col) {
  return row ? *reinterpret_cast<const Addends *>(&row[col]) : Addends{};
}

// Row `row` of what is added after the activation; null if nothing is.
__device__ __forceinline__ const Element *residual_row(const Arguments &arguments, int row) {
  return arguments.residual ? &arguments.residual[(size_t)row * arguments.residual_row] : nullptr;
}

// What follows the product, for two neighbours.
__device__ __forceinline__ Pair finish(Pair v, Addends bias, Addends residual, int activation) {
  v.x += float(bias.x), v.y += float(bias.y);
  if (activation == 1) v = {fmaxf(v.x, 0.0f), fmaxf(v.y, 0.0f)};
  if (activation == 2) v = {gelu(v.x), gelu(v.y)};
  return {v.x + float(residual.x), v.y + float(residual.y)};
}

// The same for all of a lane's accumulators: from (row, col) on, and 8 rows below; EXCHANGED, where neighbours lie
// below one another, 8 columns to the right. The activation is a constant, and what lies beyond C takes the addends of
// its edge, so that nothing is tested per pair. Registers have no index: in place of a loop over them, which would be
// unrolled to thousands of instructions, they move on.
template <int ACTIVATION, bool EXCHANGED, int TILES>
__device__ __forceinline__ void finish_all(float (&acc)[TILES][4], const Arguments &arguments, int row, int col) {
  constexpr int AT_ONCE = TILES % 8 ? 4 : 8;  // tiles
  const int M = arguments.M, N = arguments.N;
  const Element *const rows[] = {
      residual_row(arguments, min(row, M - 1)), residual_row(arguments, min(row + 8, M - 1))};
  const int last = N - MMA_N + col % MMA_N;
  const int cols[] = {min(col, N - 1), min(col + 8, N - 1)};  // EXCHANGED
  const auto of_column = [&](const Element *of_row, int i) { return of_row ? of_row[cols[i]] : Element(0.0f); };
#pragma unroll 1
  for (int first = 0; first < TILES; first += AT_ONCE) {
    Addends bias[AT_ONCE][2], residual[AT_ONCE][2];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int tile = (first + i) * MMA_N, at = min(col + tile, last);
      for (int half_tile = 0; half_tile < 2; ++half_tile) {
        if constexpr (EXCHANGED) {
          const Element *const upper = residual_row(arguments, min(row + tile, M - 1));
          const Element *const lower = residual_row(arguments, min(row + tile + 1, M - 1));
          const Element both = of_column(arguments.bias, half_tile);
          bias[i][half_tile] = {both, both};
          residual[i][half_tile] = {of_column(upper, half_tile), of_column(lower, half_tile)};
        } else {
          bias[i][half_tile] = half_tile ? bias[i][0] : load_addends(arguments.bias, at);
          residual[i][half_tile] = load_addends(rows[half_tile], at);
        }
      }
    }
    float finished[AT_ONCE][4];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      for (int x = 0; x < 4; x += 2) {
        const Pair pair = finish({acc[i][x], acc[i][x + 1]}, bias[i][x / 2], residual[i][x / 2], ACTIVATION);
        finished[i][x] = pair.x, finished[i][x + 1] = pair.y;
      }
    }
#pragma unroll
    for (int n = 0; n < TILES - AT_ONCE; ++n) {
      for (int x = 0; x < 4; ++x) acc[n][x] = acc[n + AT_ONCE][x];
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      for (int x = 0; x < 4; ++x) acc[TILES - AT_ONCE + i][x] = finished[i][x];
    }
  }
}

// Two 16 × 8 tiles of a warp into a box of C: from (row, col) on, swizzled.
template <int COLUMNS>
__device__ __forceinline__ void store_tiles(
    Element (&box)[WGMMA_M][COLUMNS], int row, int col, int lane, const float (&left)[4], const float (&right)[4]) {
  row += lane % 16, col += lane / 16 * 8;  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
  stmatrix_x4(shared_address(&box[row][swizzle<COLUMNS>(row, col)]), pack<Element>(left[0], left[1]),
              pack<Element>(left[2], left[3]), pack<Element>(right[0], right[1]), pack<Element>(right[2], right[3]));
}

// The same, of fp32: 8 bytes a lane.
__device__ __forceinline__ void store_tiles(
    float (&box)[WGMMA_M][LINE / 2], int row, int col, int lane, const float (&left)[4], const float (&right)[4]) {
  row += lane / 4, col += lane % 4 * 2;
  const int key = row % 8 * 4;  // chunks of 4 numbers; rows 8 apart have the same
  *reinterpret_cast<float2 *>(&box[row][col ^ key]) = {left[0], left[1]};
  *reinterpret_cast<float2 *>(&box[row + 8][col ^ key]) = {left[2], left[3]};
  *reinterpret_cast<float2 *>(&box[row][(col + MMA_N) ^ key]) = {right[0], right[1]};
  *reinterpret_cast<float2 *>(&box[row + 8][(col + MMA_N) ^ key]) = {right[2], right[3]};
}

// Two 16 × 8 tiles of Cᵀ into a box of C: from (row, col) on, 8 rows each, swizzled.
template <int ROWS>
__device__ __forceinline__ void store_exchanged(
    Element (&box)[ROWS][LINE], int row, int col, int lane, const float (&upper)[4], const float (&lower)[4]) {
  row += lane / 16 * 8 + lane % 8, col += lane / 8 % 2 * 8;  // matrices: columns 0-7 | 8-15 of 8 rows, then of the next
  stmatrix_x4_transposed(
      shared_address(&box[row][swizzle<LINE>(row, col)]), pack<Element>(upper[0], upper[1]),
      pack<Element>(upper[2], upper[3]), pack<Element>(lower[0], lower[1]), pack<Element>(lower[2], lower[3]));
}

// The same, of fp32: number by number.
template <int ROWS>
__device__ __forceinline__ void store_exchanged(
    float (&box)[ROWS][LINE / 2], int row, int col, int lane, const float (&upper)[4], const float (&lower)[4]) {
  row += lane % 4 * 2, col += lane / 4;
  for (int i = 0; i < 4; ++i) {
    const int r = row + i % 2, c = (col + i / 2 * 8) ^ r % 8 * 4;  // rows 8 apart have the same key
    box[r][c] = upper[i], box[r + 8][c] = lower[i];
  }
}

// Two neighbours of C, rounded.
__device__ __forceinline__ void store_pair(Element *to, Pair v) {
  *reinterpret_cast<unsigned *>(to) = pack<Element>(v.x, v.y);
}
__device__ __forceinline__ void store_pair(float *to, Pair v) { *reinterpret_cast<Pair *>(to) = v; }

__device__ __forceinline__ float4 add(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// What a lane has of a 16 × 8 tile of C: two neighbours from (row, col) on, and two 8 rows below.
__device__ __forceinline__ void store_finished(float4 sum, const Arguments &arguments, int row, int col) {
  if (col >= arguments.N) return;
  const Addends bias = load_addends(arguments.bias, col);
#pragma unroll
  for (int below = 0; below < 16 && row + below < arguments.M; below += 8) {
    const Pair pair = below ? Pair{sum.z, sum.w} : Pair{sum.x, sum.y};
    const Addends residual = load_addends(residual_row(arguments, row + below), col);
    store_pair(&arguments.C[(size_t)(row + below) * arguments.c_row + col],
               finish(pair, bias, residual, arguments.activation));
  }
}

// A number to divide by. The GPU has no instruction that divides integers; with a factor that the host made, one
// multiplication does: n / by = n * times >> shift for 0 <= n < 2^31 (Granlund and Montgomery, "Division by invariant
// integers using multiplication", 1994).
struct Divisor {
  int by, shift;
  unsigned times;
};
__device__ __forceinline__ int operator/(int n, const Divisor &d) {
  return static_cast<int>(static_cast<unsigned long long>(static_cast<unsigned>(n)) * d.times >> d.shift);
}

// Blocks walk down a group of rows of tiles before they step to the right.
struct Order {
  Divisor tiles;        // of C
  Divisor rows;         // of tiles in a group
  Divisor group_tiles;  // in a group
  int high_groups;      // that have all these rows
  Divisor last_rows;    // in the last group, if it is lower
  Divisor splits;       // blocks per tile
};

template <int STAGES>
struct Turn {  // of a slice: its stage, and the parity of that phase of its mbarriers
  int stage = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

struct Place {  // of a tile
  int row, col;
};

template <typename S>
__device__ __forceinline__ Place tile_place(int tile, int sharer, const Order &order) {  // tile: of SHARERS blocks
  const int group = tile / order.group_tiles;
  const int in_group = tile - group * order.group_tiles.by;
  const Divisor &rows = group < order.high_groups ? order.rows : order.last_rows;
  const int tile_n = in_group / rows;
  const int tile_m = group * order.rows.by + in_group - tile_n * rows.by;
  return {(tile_m * S::SHARERS + sharer) * S::BLOCK_M, tile_n * S::BLOCK_N};
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, 1) gemm_kernel(
    const __grid_constant__ CUtensorMap A_map,  // [M, K] in boxes of [min(M, BLOCK_M), LINE]
    const __grid_constant__ CUtensorMap B_map,  // [K, N], [BLOCK_K / SHARERS, LINE]; [N, K], [BLOCK_N / SHARERS, LINE]
    const __grid_constant__ CUtensorMap C_map,  // [M, N] in boxes of [WARP_M, C_LINE]; EXCHANGED, [BLOCK_M, C_LINE]
    const __grid_constant__ Order order, const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto &shared = *reinterpret_cast<typename S::Shared *>(memory);

  // 1. Which tiles of C are mine? My cluster takes every clusters-th; their slices, or my share of them, follow one
  //    another in the ring. APART, blocks with the same share, and other tiles, have neighbouring numbers: neighbours
  //    read the same slices of A, or of B. SHARERS blocks have tiles below one another.
  constexpr int BLOCK_M = S::BLOCK_M, CONSUMERS = S::CONSUMERS;
  const int M = arguments.M;
  const auto split = [&](int n) { return S::SPLITS == 1 ? n : n / order.splits; };
  const int splits = S::SPLITS == APART ? order.splits.by : S::SPLITS;
  const int sharer = blockIdx.x % S::SHARERS;
  const int clusters = split(gridDim.x / S::SHARERS);
  const int share = blockIdx.x / order.tiles;  // APART
  const int cluster = S::SPLITS == APART ? blockIdx.x - share * order.tiles.by : split(blockIdx.x / S::SHARERS);
  const int rank = S::SPLITS == APART ? share : blockIdx.x / S::SHARERS - cluster * splits;
  const int all_slices = max(ceil_div(arguments.K, BLOCK_K), splits);  // at least one per block; beyond K are zeros
  const int first_slice = split(all_slices * rank);
  const int slices = split(all_slices * (rank + 1)) - first_slice;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int consumer = warp / 4;

  if (thread == 0) {
    for (int stage = 0; stage < S::STAGES; ++stage) {
      mbarrier_init(shared_address(&shared.full[stage]), 1);
      mbarrier_init(shared_address(&shared.empty[stage]), CONSUMERS * S::SHARERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();                             // nobody waits at a barrier that is not made yet
  if (S::SHARERS > 1) cluster_sync_relaxed();  // ... or arrives at another's: fence_mbarrier_init has made it visible
  cudaGridDependencySynchronize();             // the launch before has written what we read, read what we write

  // 2. The producer. Global -> shared, by TMA: each slice into the next stage, once the slice before it there is read.
  if (consumer == CONSUMERS) {
    setmaxnreg_dec<40>();
    if (warp % 4 > 0 || !elect_one()) return;
    const auto load_B = [&](Element *to, int row, int col, unsigned full) {
      if constexpr (S::SHARERS == 1) {
        tma_load(shared_address(to), &B_map, row, col, full);
      } else {
        tma_load_to_all<S::SHARERS>(shared_address(to), &B_map, row, col, full);
      }
    };
    Turn<S::STAGES> turn;
    for (int number = cluster; number < order.tiles.by; number += clusters) {
      const Place tile = tile_place<S>(number, sharer, order);
      for (int slice = 0; slice < slices; ++slice, turn.next()) {
        const int k = (first_slice + slice) * BLOCK_K;
        auto &tiles = shared.ring[turn.stage];
        const unsigned full = shared_address(&shared.full[turn.stage]);
        mbarrier_wait(shared_address(&shared.empty[turn.stage]), turn.parity ^ 1);  // at first nobody has it
        mbarrier_arrive_expect(full, min(M, BLOCK_M) * sizeof(tiles.A[0]) + sizeof(tiles.B));
        tma_load(shared_address(tiles.A), &A_map, tile.row, k, full);
        if (B_TRANSPOSED) {
          const int first = sharer * (S::BLOCK_N / S::SHARERS);  // this block's share of the tile
          load_B(&tiles.B[first * LINE], tile.col + first, k, full);
        } else {
          const int first = sharer * (BLOCK_K / S::SHARERS);
          for (int box = 0; box < S::Stage::B_BOXES; ++box)
            load_B(&tiles.B[(box * BLOCK_K + first) * LINE], k + first, tile.col + box * LINE, full);
        }
      }
    }
    return;
  }

  // 3. The consumers. Shared -> tensor cores: 4 instructions per slice.
  setmaxnreg_inc<CONSUMERS == 2 ? 232 : 152>();
  constexpr bool EXCHANGED = S::EXCHANGED;
  const int group_row = consumer * WGMMA_M;  // where this consumer's rows begin (EXCHANGED, its columns),
  const int warp_row = warp % 4 * WARP_M;    // ... and its warp's, among these
  const int group_thread = thread % 128;
  const auto give_back = [&](int stage) {
    const unsigned empty = shared_address(&shared.empty[stage]);
    if (S::SHARERS == 1 && group_thread == 0) mbarrier_arrive(empty);
    if (S::SHARERS > 1 && group_thread < S::SHARERS) mbarrier_arrive_at(empty, group_thread);
  };

  // Where A has fewer rows than a tile, its boxes have no more: the other rows are filled with zeros here, once, not by
  // TMA in each slice.
  if (M < BLOCK_M) {
    constexpr int CHUNKS = LINE / VECTOR;  // of a row
    for (auto &tiles : shared.ring) {
      for (int chunk = M * CHUNKS + thread; chunk < BLOCK_M * CHUNKS; chunk += CONSUMERS * 128)
        reinterpret_cast<uint4 *>(tiles.A)[chunk] = {};
    }
    fence_proxy_async();                     // each warp shows wgmma what it wrote,
    named_barrier_sync(3, CONSUMERS * 128);  // ... and all rows are there
  }

  Turn<S::STAGES> turn;
  int before = 0, boxes = 0;  // the stage of the slice before; this consumer's boxes of C so far
  for (int number = cluster; number < order.tiles.by; number += clusters) {
    const Place tile = tile_place<S>(number, sharer, order);
    float acc[S::TILES_N][4];  // 16 rows of C per warp, in wgmma's layout

    for (int slice = 0; slice < slices; ++slice, turn.next()) {
      const auto &tiles = shared.ring[turn.stage];
      mbarrier_wait(shared_address(&shared.full[turn.stage]), turn.parity);
      const unsigned long long a = descriptor(shared_address(tiles.A[EXCHANGED ? 0 : group_row]), 16, EIGHT_ROWS);
      const unsigned long long b =
          descriptor(shared_address(&tiles.B[EXCHANGED ? group_row * LINE : 0]), B_TRANSPOSED ? 16 : B_BOX, EIGHT_ROWS);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < BLOCK_K; step += WGMMA_K) {  // 16 columns are 32 bytes on, in a row; 16 rows 2 KB
        const int columns = step * sizeof(Element) / 16, rows = step * 128 / 16;  // in a descriptor's unit
        const auto of_a = a + columns, of_b = b + (B_TRANSPOSED ? columns : rows);
        wgmma<Element, S::WGMMA_N>(acc, EXCHANGED ? of_b : of_a, EXCHANGED ? of_a : of_b, slice > 0 || step > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the products of the slice before have read their tiles
      if (slice > 0) give_back(before);
      before = turn.stage;
    }
    wgmma_wait<0>(acc);  // acc is written
    give_back(before);

    // 4. The sums of a shared tile are added by its blocks.
    if constexpr (S::SPLITS == APART) {  // each block adds some strips of 64 × 8, in the order of the parts
      constexpr int STRIPS = CONSUMERS * S::TILES_N, AT_ONCE = 4;
      const auto sums_of = [&](int part) {
        return &arguments.sums[(size_t)(part * order.tiles.by + number) * STRIPS * 128 + group_thread];
      };
#pragma unroll
      for (int n = 0; n < S::TILES_N; ++n)
        sums_of(rank)[(consumer * S::TILES_N + n) * 128] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
      cooperative_groups::this_grid().sync();  // all have written theirs, and see them; the producers have left
      const int step = splits * CONSUMERS;
#pragma unroll 1
      for (int first = rank * CONSUMERS + consumer; first < STRIPS; first += AT_ONCE * step) {
        float4 added[AT_ONCE] = {};
#pragma unroll 1
        for (int part = 0; part < splits; part += AT_ONCE) {
          float4 parts[AT_ONCE][AT_ONCE] = {};  // all on their way together
#pragma unroll
          for (int p = 0; p < AT_ONCE; ++p) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
              if (part + p < splits && first + i * step < STRIPS)
                parts[p][i] = sums_of(part + p)[(first + i * step) * 128];
          }
#pragma unroll
          for (int p = 0; p < AT_ONCE; ++p) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) added[i] = add(added[i], parts[p][i]);
          }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
          const int of = (first + i * step) / S::TILES_N, n = (first + i * step) % S::TILES_N;  // its rows, its columns
          if (of < CONSUMERS)
            store_finished(added[i], arguments, tile.row + of * WGMMA_M + warp_row + lane / 4,
                           tile.col + n * MMA_N + lane % 4 * 2);
        }
      }
      break;                                   // it had one tile
    } else if constexpr (S::SPLITS > 1) {      // a cluster's: each adds some columns, in the order of the blocks
      named_barrier_sync(3, CONSUMERS * 128);  // both consumers have read the ring; the sums take its place
      const unsigned sums = shared_address(shared.ring) + (consumer * S::TILES_N * 128 + group_thread) * sizeof(float4);
#pragma unroll
      for (int n = 0; n < S::TILES_N; ++n)
        reinterpret_cast<float4 *>(memory)[(consumer * S::TILES_N + n) * 128 + group_thread] =
            make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
      cluster_sync();
      constexpr int MINE = S::TILES_N / S::SPLITS;  // tiles that this block adds
      static_assert(MINE * S::SPLITS == S::TILES_N, "the blocks of a cluster have equal shares of the columns");
      const int row = tile.row + group_row + warp_row + lane / 4, col = tile.col + lane % 4 * 2;
      float4 parts[MINE][S::SPLITS] = {};  // all on their way together; what lies beyond C stays where it is
#pragma unroll
      for (int i = 0; i < MINE; ++i) {
        if (row >= M || col + (rank * MINE + i) * MMA_N >= arguments.N) continue;
#pragma unroll
        for (int other = 0; other < S::SPLITS; ++other)
          parts[i][other] = load_cluster(cluster_address(sums + (rank * MINE + i) * 128 * sizeof(float4), other));
      }
#pragma unroll
      for (int i = 0; i < MINE; ++i) {
        float4 sum = {};
#pragma unroll
        for (int other = 0; other < S::SPLITS; ++other) sum = add(sum, parts[i][other]);
        store_finished(sum, arguments, row, col + (rank * MINE + i) * MMA_N);
      }
      cluster_sync_relaxed();  // nobody leaves while another reads its sums
    } else {
      const int along = group_row + warp_row + lane / 4, across = lane % 4 * 2;  // down the accumulators, to the right
      const int row = tile.row + (EXCHANGED ? across : along), col = tile.col + (EXCHANGED ? along : across);
      if (arguments.activation == 2) {
        finish_all<2, EXCHANGED>(acc, arguments, row, col);
      } else if (arguments.activation == 1) {
        finish_all<1, EXCHANGED>(acc, arguments, row, col);
      } else if (arguments.bias || arguments.residual) {
        finish_all<0, EXCHANGED>(acc, arguments, row, col);
      }

      // 5. Round once, at the end: registers -> shared, swizzled -> global, by TMA, box by box, while the next tile is
      //    multiplied. Each warp stores its own rows, and waits for no other.
      if constexpr (EXCHANGED) {  // ... or the warpgroup's columns: TMA writes whole lines
        if (warp % 4 == 0 && elect_one()) bulk_wait_read<0>();  // TMA has read what was there,
        named_barrier_sync(4 + consumer, 128);                  // ... all know
#pragma unroll
        for (int n = 0; n < S::TILES_N; n += 2)
          store_exchanged(shared.C[consumer][warp_row / S::C_LINE], n * MMA_N, warp_row % S::C_LINE, lane, acc[n],
                          acc[n + 1]);
        fence_proxy_async();
        named_barrier_sync(4 + consumer, 128);
        if (warp % 4 == 0 && elect_one()) {
          for (int i = 0; i < S::ALL_BOXES; ++i)
            tma_store(&C_map, tile.row, tile.col + group_row + i * S::C_LINE, shared_address(shared.C[consumer][i]));
          bulk_commit();
        }
      } else {
#pragma unroll
        for (int i = 0; i < S::ALL_BOXES; ++i) {
          auto &box = shared.C[consumer][boxes++ % S::C_BOXES];
          if (elect_one()) bulk_wait_read<S::C_BOXES - 1>();  // TMA has read what was there,
          __syncwarp();                                       // ... all lanes know
#pragma unroll
          for (int col = 0; col < S::C_LINE; col += 2 * MMA_N) {
            const int n = (i * S::C_LINE + col) / MMA_N;
            store_tiles(box, warp_row, col, lane, acc[n], acc[n + 1]);
          }
          fence_proxy_async();  // each lane shows TMA what it wrote,
          __syncwarp();         // ... and the warp's rows are complete
          if (elect_one()) {
            tma_store(&C_map, tile.row + group_row + warp_row, tile.col + i * S::C_LINE, shared_address(box[warp_row]));
            bulk_commit();
          }
        }
      }
    }
  }
  if (elect_one()) bulk_wait_read<0>();        // shared memory is there until TMA has read it
  if (S::SHARERS > 1) cluster_sync_relaxed();  // nobody leaves while another sends or arrives
}

// A matrix of rows × cols, its rows `stride` elements apart, for TMA in boxes of box_rows × 128 bytes,
// or × 64, swizzled alike.
template <typename T>
static cudaError_t tensor_map(
    CUtensorMap *map, const T *matrix, int rows, int cols, int stride, int box_rows, int box_cols = 128 / sizeof(T)) {
  static void *const found = [] {  // a function of the driver: no library to link
    void *function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return function;
  }();
  if (!found) return cudaErrorNotSupported;
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  const cuuint64_t sizes[] = {(cuuint64_t)cols, (cuuint64_t)rows}, row_bytes[] = {stride * sizeof(T)};
  const cuuint32_t box[] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows}, steps[] = {1, 1};
  const CUresult made = encode(
      map, TENSOR_MAP_TYPE<T>, 2, const_cast<T *>(matrix), sizes, row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      box_cols * sizeof(T) == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static Divisor divisor(int by) {
  int log = 0;  // rounded up
  while (1ll << log < by) ++log;
  return {by, 31 + log, static_cast<unsigned>((1ull << (31 + log)) / by + 1)};
}

// What a launch needs; the attributes must live until then. It may begin before the launch ahead of it has ended, and
// waits in the kernel; one that is APART may not: its blocks must all be there at a time.
template <typename S>
static cudaLaunchConfig_t launch_config(int blocks, cudaStream_t stream, cudaLaunchAttribute (&attributes)[2]) {
  cudaLaunchAttribute *next = attributes;
  if (S::SPLITS == APART) {
    next->id = cudaLaunchAttributeCooperative;  // all are at work at a time, or the launch fails
    next++->val.cooperative = 1;
  } else {
    next->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    next++->val.programmaticStreamSerializationAllowed = 1;
  }
  if (S::SPLITS * S::SHARERS > 1) {
    next->id = cudaLaunchAttributeClusterDimension;
    next++->val.clusterDim = {S::SPLITS * S::SHARERS, 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(S::THREADS);
  config.dynamicSmemBytes = sizeof(typename S::Shared);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = next - attributes;
  return config;
}

// How many tiles the GPU computes at a time; APART, how many parts of tiles.
template <typename S>
static cudaError_t prepare(int multiprocessors, int *at_once) {
  cudaError_t status = cudaFuncSetAttribute(  // more than 48 KB must be asked for
      gemm_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(typename S::Shared));
  *at_once = multiprocessors;
  if (status != cudaSuccess || S::SPLITS * S::SHARERS <= 1) return status;
  cudaLaunchAttribute attributes[2];
  const cudaLaunchConfig_t config = launch_config<S>(S::SPLITS * S::SHARERS, nullptr, attributes);
  return cudaOccupancyMaxActiveClusters(at_once, gemm_kernel<S>, &config);
}

template <typename S>
static cudaError_t launch(const Element *A, int a_row, const Element *B, int b_row, const Arguments &arguments,
                          int at_once, int splits, cudaStream_t stream) {
  const int M = arguments.M, N = arguments.N, K = arguments.K;
  CUtensorMap A_map, B_map, C_map;
  cudaError_t status = tensor_map(&A_map, A, M, K, a_row, min(M, S::BLOCK_M));
  if (status == cudaSuccess)
    status = B_TRANSPOSED ? tensor_map(&B_map, B, N, K, b_row, S::BLOCK_N / S::SHARERS)
                          : tensor_map(&B_map, B, K, N, b_row, BLOCK_K / S::SHARERS);
  if (status == cudaSuccess)
    status = tensor_map(&C_map, arguments.C, M, N, arguments.c_row, S::EXCHANGED ? S::BLOCK_M : WARP_M, S::C_LINE);
  if (status != cudaSuccess) return status;
  const int tiles_m = ceil_div(M, S::BLOCK_M * S::SHARERS), tiles_n = ceil_div(N, S::BLOCK_N);
  const int tiles = tiles_m * tiles_n;
  // In up to two waves, 4 rows of tiles ask L2 for less (measured). In more, 16: about as many rows of A as columns of
  // B at a time.
  const int rows = ceil_div(GROUP_M ? GROUP_M : tiles > 2 * at_once ? 16 : 4, S::SHARERS), last_rows = tiles_m % rows;
  const Order order = {
      divisor(tiles), divisor(rows), divisor(rows * tiles_n), tiles_m / rows, divisor(last_rows ? last_rows : rows),
      divisor(splits)};
  cudaLaunchAttribute attributes[2];
  const cudaLaunchConfig_t config =
      launch_config<S>(S::SHARERS * (S::SPLITS != 1 ? tiles * splits : min(tiles, at_once)), stream, attributes);
  return cudaLaunchKernelEx(&config, gemm_kernel<S>, A_map, B_map, C_map, order, arguments);
}

// A tile and a split, and the nanoseconds that they take, fitted to times on an H200, 2026-11-26.
struct Choice {
  int block_m, block_n, splits, sharers;
  int slice_ns, tile_ns, launch_ns;  // of a slice; of what else a tile takes; of what else a launch takes
  cudaError_t (*prepare)(int, int *);
  cudaError_t (*launch)(const Element *, int, const Element *, int, const Arguments &, int, int, cudaStream_t);
};

template <int BLOCK_M, int BLOCK_N, int SPLITS, int SHARERS = 1>
constexpr Choice choice(int slice_ns, int tile_ns, int launch_ns) {
  using S = Shape<BLOCK_M, BLOCK_N, SPLITS, SHARERS>;
  return {BLOCK_M, BLOCK_N, SPLITS, SHARERS, slice_ns, tile_ns, launch_ns, prepare<S>, launch<S>};
}

constexpr Choice CHOICES[] = {
    choice<128, 256, 1>(627, 300, 6600),       choice<128, 224, 1>(565, 300, 6600),
    choice<128, 192, 1>(484, 300, 6000),       choice<160, 128, 1>(412, 300, 6000),
    choice<128, 128, 1>(332, 300, 6300),       choice<96, 128, 1>(305, 300, 6000),
    choice<128, 64, 1>(205, 300, 5700),        choice<192, 64, 1>(280, 300, 6000),
    choice<96, 192, 1>(375, 400, 6000),        choice<128, 64, 2>(250, 4300, 4300),
    choice<128, 64, 4>(220, 2600, 4300),       choice<128, 64, 8>(220, 3000, 4300),
    choice<128, 128, 4>(310, 4700, 4300),      choice<128, 128, APART>(335, 7000, 4300),
    choice<128, 256, APART>(630, 10500, 4300), choice<128, 256, 1, 2>(690, 300, 7500),
    choice<128, 192, 1, 2>(490, 300, 7000),    choice<128, 128, 1, 2>(340, 300, 7000),
    choice<192, 192, 1>(720, 300, 6600),       choice<192, 192, 1, 2>(720, 300, 7500),
};
constexpr int ALL = sizeof(CHOICES) / sizeof(CHOICES[0]);
constexpr int SQUARE = 128;    // rows and columns of C whose sums are a unit of scratch
constexpr int LINE_PS = 1200;  // picoseconds for a line of L2, 128 bytes, to reach a multiprocessor: see lines_of
constexpr int DRAM = 3000;     // bytes of A and B per nanosecond, as on an H100: a product APART is no faster than that

// Blocks that share the slices of a tile. APART: two, or more with FEW_SLICES each or more; MOST at most, and no more
// than find a multiprocessor and have room for their sums. Fewer than two: there is no such split.
static int splits_of(const Choice &choice, int tiles, int slices, int at_once, int room) {
  constexpr int MOST = 16, FEW_SLICES = 8;
  if (choice.splits != APART) return choice.splits;
  const int fit = min((long long)room * SQUARE / choice.block_n / tiles, (long long)MOST);
  return min(min(fit, at_once / tiles), max(slices / FEW_SLICES, 2));
}

// Lines of 128 bytes in a slice of A and a block's share of one of B. A row of a box lies in one, or in two where rows
// do not begin at multiples of 128 bytes. A fit to times: that L2 is asked twice was not counted.
static int lines_of(const Choice &choice, int a_lines, int b_lines) {
  const int b_rows = B_TRANSPOSED ? choice.block_n : BLOCK_K * ceil_div(choice.block_n, LINE);
  return choice.block_m * a_lines + b_rows * b_lines / choice.sharers;
}

// a_row to residual_row: elements from a row to the next. A, B, C and their rows begin at multiples of 16 bytes; bias
// and the residual's rows, at multiples of 4.
// sums: scratch for a split whose sums pass through global memory, as large as `room` squares of SQUARE × SQUARE.
// activation: as in Arguments. choice: an index into CHOICES, or -1 for the one with the least estimate.
extern "C" cudaError_t launch_matmul(
    const Element *A, const Element *B, Output *C, const Element *bias, const Element *residual, float4 *sums, int M,
    int N, int K, int a_row, int b_row, int c_row, int residual_row, int activation, int choice, int room,
    cudaStream_t stream) {
  if (!A || !B || !C || M < 1 || N < 1 || K < 1 || N % 8 || K % 8 || activation < 0 || activation > 2 || choice >= ALL)
    return cudaErrorInvalidValue;
  if (a_row < K || b_row < (B_TRANSPOSED ? K : N) || c_row < N || residual && (residual_row < N || residual_row % 2))
    return cudaErrorInvalidValue;
  if ((size_t)bias % sizeof(Addends) || (size_t)residual % sizeof(Addends)) return cudaErrorInvalidValue;
  if ((long long)ceil_div(M, 128) * ceil_div(N, 64) > 0x7fffffff) return cudaErrorInvalidValue;  // tiles, the most
  if (room < 0 || !sums && room > 0 || (size_t)sums % sizeof(float4)) return cudaErrorInvalidValue;
  constexpr int DEVICES = 64;
  static thread_local int at_once[DEVICES][ALL];  // 0: not asked yet
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  if (device >= DEVICES) return cudaErrorInvalidDevice;
  for (int i = 0; i < ALL && at_once[device][ALL - 1] == 0; ++i) {
    int tiles = 0;
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (status == cudaSuccess) status = CHOICES[i].prepare(multiprocessors, &tiles);
    if (status != cudaSuccess) return status;
    at_once[device][i] = tiles;
  }
  const auto lines_per_row = [](const Element *matrix, int row) {
    return ((size_t)matrix | row * sizeof(Element)) % 128 ? 2 : 1;
  };
  const int a_lines = lines_per_row(A, a_row), b_lines = lines_per_row(B, b_row);
  int choice_of_least = -1, splits_of_least = 0;
  long long least = 0;
  for (int i = choice < 0 ? 0 : choice; i < (choice < 0 ? ALL : choice + 1); ++i) {
    const Choice &c = CHOICES[i];
    const int places = at_once[device][i], all_slices = ceil_div(K, BLOCK_K);
    const long long tiles = (long long)ceil_div(M, c.block_m * c.sharers) * ceil_div(N, c.block_n);
    const int splits = splits_of(c, tiles, all_slices, places, room);
    const bool apart = c.splits == APART;
    if (places < 1 || splits < (apart ? 2 : 1)) continue;
    if (choice < 0 && c.sharers > 1 && a_lines * b_lines == 1) continue;  // nothing is gained
    const long long waves = (tiles * (apart ? splits : 1) - 1) / places + 1;
    const long long read_ns = apart ? ((long long)M + N) * K * (long long)sizeof(Element) / DRAM : 0;
    const int lines_ns = a_lines * b_lines == 1 ? 0 : lines_of(c, a_lines, b_lines) * LINE_PS / 1000;
    const long long slices_ns = waves * ceil_div(all_slices, splits) * max(c.slice_ns, lines_ns);
    const long long ns = c.launch_ns + waves * c.tile_ns + max(slices_ns, read_ns);
    if (choice_of_least < 0 || ns < least) choice_of_least = i, splits_of_least = splits, least = ns;
  }
  if (choice_of_least < 0) return cudaErrorInvalidValue;
  const Arguments arguments = {bias, residual, C, M, N, K, c_row, residual_row, activation, sums};
  return CHOICES[choice_of_least].launch(
      A, a_row, B, b_row, arguments, at_once[device][choice_of_least], splits_of_least, stream);
}
