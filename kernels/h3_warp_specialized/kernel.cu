// Stage h3 · warp_specialized: one warp copies, the others multiply.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; 16-bit DTYPE in and out, fp32 accumulation.
// Idea      In stage h2 the thread that copies also multiplies: it looks for an empty stage only between its products,
//           and its warpgroup waits for it. Here a producer has nothing else to do. It fills every stage as soon as the
//           consumers have emptied it, as far ahead as the ring is long; they never copy. The producer's warpgroup
//           gives registers away, the consumers' take them (setmaxnreg).
//
//   level     | tile of C (M × N) | tiles of A, B per K slice              | who
//   ----------+-------------------+----------------------------------------+------------------------------
//   block     | 128 × 256         | STAGES × (A 128 × 64, B 64 × 256)      | 384 threads = 3 warpgroups
//   producer  |                   | A: a box of 128 × 64; B: four, 64 × 64 | 1 thread of the last one, and TMA
//   consumer  | 64 × 256          | none: operands stay in shared memory   | 2 warpgroups, 128 threads each
//   wgmma     | 64 × 256          | A 64 × 16, B 16 × 256, by descriptor   | the tensor cores of the SM
//
// Thread map   wgmma: each warp has 16 rows of C; row = lane / 4 (+ 8 for registers 2, 3), column = n * 8 +
//              lane % 4 * 2 (+ 1 for registers 1, 3): for each 16 × 8 the layout of mma.m16n8k16.
// Limits       M a multiple of 128, N of 256, K of 64; compute capability 9.0a; 48 KB of shared memory per stage.
// Layouts      PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor maps", "mbarrier".

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of A, B and C
#endif
#ifndef STAGES
#define STAGES 4  // tiles in the ring: STAGES - 1 slices in flight while one is multiplied
#endif
#ifndef GROUP_M
#define GROUP_M 12  // block swizzle: rows of tiles that concurrent blocks share; 1: row by row
#endif

using Element = DTYPE;

constexpr int BLOCK_M = 128;  // rows of C per block
constexpr int BLOCK_N = 256;  // columns of C per block
constexpr int BLOCK_K = 64;   // depth of a K slice
constexpr int WGMMA_M = 64;   // rows of C per tensor instruction and warpgroup
constexpr int WGMMA_K = 16;   // depth of a tensor instruction
constexpr int MMA_N = 8;      // columns of C per four registers of a lane

constexpr int CONSUMERS = BLOCK_M / WGMMA_M;    // warpgroups that multiply
constexpr int THREADS = (CONSUMERS + 1) * 128;  // ... and the producer's
constexpr int TILES_N = BLOCK_N / MMA_N;
constexpr int LINE = 128 / sizeof(Element);  // elements in 128 bytes, a row of the swizzle
constexpr int EIGHT_ROWS = 8 * 128;          // bytes from 8 rows of an operand to the next 8
constexpr int B_BOX = BLOCK_K * 128;         // bytes from 64 columns of B to the next 64

static_assert(STAGES >= 2, "one tile to multiply and one to fill");
static_assert(GROUP_M >= 1, "at least one row of tiles per group");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(BLOCK_K == LINE && BLOCK_N % LINE == 0, "the descriptors take rows of 128 bytes");

template <typename T>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

struct alignas(4) Pair { Element element[2]; };  // neighbours in a row of C, held by one lane

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

// D[64, 256] += A[64, 16] · B[16, 256], fp32 accumulation; rows of A lie along K, rows of B along N.
#define FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define ACCUMULATORS SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12), SIXTEEN(16), SIXTEEN(20), SIXTEEN(24), SIXTEEN(28)
#define OPERANDS                                                                                 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

template <typename T>
__device__ void wgmma_m64n256k16(float (&d)[32][4], unsigned long long a, unsigned long long b);

template <>
__device__ __forceinline__ void wgmma_m64n256k16<half>(float (&d)[32][4], unsigned long long a, unsigned long long b) {
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" OPERANDS "}, %128, %129, add, 1, 1, 0, 1;\n}"
               : ACCUMULATORS : "l"(a), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma_m64n256k16<__nv_bfloat16>(
    float (&d)[32][4], unsigned long long a, unsigned long long b) {
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" OPERANDS "}, %128, %129, add, 1, 1, 0, 1;\n}"
               : ACCUMULATORS : "l"(a), "l"(b));
}

struct Tiles {  // one stage of the ring, written by TMA; its swizzle repeats after 8 rows, 1 KB
  alignas(1024) Element A[BLOCK_M][LINE];
  alignas(1024) Element B[BLOCK_N / LINE][BLOCK_K][LINE];  // 64 columns after 64 columns
};

struct Shared {
  Tiles ring[STAGES];
  alignas(8) unsigned long long full[STAGES];   // mbarriers: a stage's bytes have come
  alignas(8) unsigned long long empty[STAGES];  // ... the consumers have read it
};

__global__ void __launch_bounds__(THREADS, 1) gemm_kernel(
    const __grid_constant__ CUtensorMap A_map,  // [M, K] in boxes of [BLOCK_M, LINE]
    const __grid_constant__ CUtensorMap B_map,  // [K, N] in boxes of [BLOCK_K, LINE]
    Element *__restrict__ C,                    // [M, N]
    int M, int N, int K) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared &shared = *reinterpret_cast<Shared *>(memory);

  // 1. Which tile of C is mine? Blocks walk down GROUP_M rows of tiles before they step to the right.
  const int tiles_m = M / BLOCK_M;
  const int tiles_n = N / BLOCK_N;
  const int group = blockIdx.x / (GROUP_M * tiles_n);
  const int in_group = blockIdx.x % (GROUP_M * tiles_n);
  const int group_rows = min(GROUP_M, tiles_m - group * GROUP_M);  // the last group may be lower
  const int tile_m = group * GROUP_M + in_group % group_rows;
  const int tile_n = in_group / group_rows;
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int group_row = warp / 4 * WGMMA_M;  // of this warpgroup's 64 × 256, within the block's tile
  const int slices = K / BLOCK_K;

  if (thread == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(shared_address(&shared.full[stage]), 1);
      mbarrier_init(shared_address(&shared.empty[stage]), CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // nobody waits at a barrier that is not made yet

  // 2. The producer. Global -> shared, by TMA: each slice into the next stage, once the slice before it there is read.
  if (warp / 4 == CONSUMERS) {
    setmaxnreg_dec<40>();
    if (thread % 128 > 0) return;
    for (int slice = 0; slice < slices; ++slice) {
      Tiles &tiles = shared.ring[slice % STAGES];
      const unsigned full = shared_address(&shared.full[slice % STAGES]);
      if (slice >= STAGES) mbarrier_wait(shared_address(&shared.empty[slice % STAGES]), (slice / STAGES - 1) % 2);
      mbarrier_arrive_expect(full, sizeof(Tiles));
      tma_load(shared_address(tiles.A), &A_map, tile_m * BLOCK_M, slice * BLOCK_K, full);
      for (int box = 0; box < BLOCK_N / LINE; ++box)
        tma_load(shared_address(tiles.B[box]), &B_map, slice * BLOCK_K, tile_n * BLOCK_N + box * LINE, full);
    }
    return;
  }

  // 3. The consumers. Shared -> tensor cores: 4 instructions per slice.
  setmaxnreg_inc<232>();
  float acc[TILES_N][4] = {};  // 16 × 256 of C per warp, in wgmma's layout
  for (int slice = 0; slice < slices; ++slice) {
    mbarrier_wait(shared_address(&shared.full[slice % STAGES]), slice / STAGES % 2);
    const Tiles &tiles = shared.ring[slice % STAGES];
    const unsigned A_rows = shared_address(tiles.A[group_row]);
    const unsigned B_rows = shared_address(tiles.B);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_K; k += WGMMA_K) {
      const unsigned long long a = descriptor(A_rows + k * sizeof(Element), 16, EIGHT_ROWS);  // 32 bytes on, in a row
      const unsigned long long b = descriptor(B_rows + k * 128, B_BOX, EIGHT_ROWS);           // 16 rows on
      wgmma_m64n256k16<Element>(acc, a, b);
    }
    wgmma_commit();
    wgmma_wait<0>(acc);  // the products have read their tiles and written acc
    if (thread % 128 == 0) mbarrier_arrive(shared_address(&shared.empty[slice % STAGES]));
  }

  // 4. Round once, at the end, and store straight from the registers, two neighbours at a time.
#pragma unroll
  for (int half_tile = 0; half_tile < 2; ++half_tile) {  // rows 0-7, rows 8-15 of the warp's 16
    const int row = tile_m * BLOCK_M + warp * 16 + half_tile * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < TILES_N; ++n) {
      const int col = tile_n * BLOCK_N + n * MMA_N + lane % 4 * 2;
      const Pair pair = {{Element(acc[n][half_tile * 2]), Element(acc[n][half_tile * 2 + 1])}};
      *reinterpret_cast<Pair *>(&C[(size_t)row * N + col]) = pair;
    }
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

extern "C" cudaError_t launch_gemm(
    const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  if (M < 1 || N < 1 || K < 1) return cudaErrorInvalidValue;
  if (M % BLOCK_M || N % BLOCK_N || K % BLOCK_K) return cudaErrorInvalidValue;
  if (!A || !B || !C || ((size_t)A | (size_t)B | (size_t)C) % 16) return cudaErrorInvalidValue;  // as TMA wants them
  CUtensorMap A_map, B_map;
  cudaError_t status = tensor_map(&A_map, A, M, K, BLOCK_M);
  if (status == cudaSuccess) status = tensor_map(&B_map, B, K, N, BLOCK_K);
  const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));
  const int shared_bytes = sizeof(Shared);  // more than 48 KB must be asked for
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  gemm_kernel<<<grid, THREADS, shared_bytes, stream>>>(A_map, B_map, C, M, N, K);
  return cudaGetLastError();
}
