// Stage h4 · ping_pong: one tile is stored while the next is multiplied.
//
// Problem   C[M, N] = A[M, K] · B[K, N], all row-major; 16-bit DTYPE in and out, fp32 accumulation.
// Idea      As many blocks as SMs, and each computes tile after tile, so that a tile's first slices are copied while
//           the tile before it is finished. The two consumers have tiles of their own and take turns: one multiplies
//           while the other rounds its tile, hands it to TMA through shared memory, and waits for its turn.
//
//   level     | tile of C (M × N) | tiles of A, B per K slice              | who
//   ----------+-------------------+----------------------------------------+------------------------------
//   block     | 1 or 2 at a time  | STAGES × (A 128 × 64, B 64 × BLOCK_N)  | 384 threads = 3 warpgroups
//   producer  |                   | boxes of 128 × 64 and 64 × 64          | 1 thread of the last one, and TMA
//   consumer  | 128 × 128         | none: operands stay in shared memory   | 2 warpgroups, 128 threads each
//   wgmma     | 64 × 128          | A 64 × 16, B 16 × 128, by descriptor   | the tensor cores of the SM
//
// Thread map   wgmma: each warp has 16 rows of C; row = lane / 4 (+ 8 for registers 2, 3), column = n * 8 +
//              lane % 4 * 2 (+ 1 for registers 1, 3): for each 16 × 8 the layout of mma.m16n8k16.
// Limits       M a multiple of 128, N of BLOCK_N, K of 64; compute capability 9.0a; up to 224 KB of shared memory.
// Layouts      PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor maps", "mbarrier".

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#ifndef DTYPE
#define DTYPE half  // -DDTYPE=half | __nv_bfloat16: the elements of A, B and C
#endif
#ifndef PING_PONG
#define PING_PONG 1  // 1: each consumer has a tile of its own, they take turns; 0: both share one of 128 × 256
#endif
#ifndef GROUP_M
#define GROUP_M 12  // block swizzle: rows of tiles that concurrent blocks share; 1: row by row
#endif

using Element = DTYPE;

constexpr int BLOCK_M = 128;                    // rows of C per tile
constexpr int BLOCK_N = PING_PONG ? 128 : 256;  // columns of C per tile
constexpr int STAGES = PING_PONG ? 5 : 3;       // of the ring, as many as fit
constexpr int GROUP_N = 128;                    // columns of C per consumer
constexpr int BLOCK_K = 64;                     // depth of a K slice
constexpr int WGMMA_M = 64;                     // rows of C per tensor instruction and warpgroup
constexpr int WGMMA_K = 16;                     // depth of a tensor instruction
constexpr int MMA_N = 8;                        // columns of C per four registers of a lane

constexpr int CONSUMERS = 2;                    // warpgroups that multiply
constexpr int THREADS = (CONSUMERS + 1) * 128;  // ... and the producer's
constexpr int TILES_M = BLOCK_M / WGMMA_M;
constexpr int TILES_N = GROUP_N / MMA_N;
constexpr int VECTOR = 16 / sizeof(Element);  // elements in a chunk of 16 bytes
constexpr int LINE = 128 / sizeof(Element);   // elements in 128 bytes, a row of the swizzle
constexpr int EIGHT_ROWS = 8 * 128;           // bytes from 8 rows of an operand to the next 8
constexpr int B_BOX = BLOCK_K * 128;          // bytes from 64 columns of B to the next 64

static_assert(STAGES >= 2, "one tile to multiply and one to fill");
static_assert(GROUP_M >= 1, "at least one row of tiles per group");
static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(BLOCK_K == LINE && BLOCK_N % LINE == 0, "the descriptors take rows of 128 bytes");

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

// D[64, 128] += A[64, 16] · B[16, 128], fp32 accumulation; rows of A lie along K, rows of B along N.
#define FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define ACCUMULATORS SIXTEEN(0), SIXTEEN(4), SIXTEEN(8), SIXTEEN(12)
#define OPERANDS                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

template <typename T>
__device__ void wgmma_m64n128k16(float (&d)[16][4], unsigned long long a, unsigned long long b);

template <>
__device__ __forceinline__ void wgmma_m64n128k16<half>(float (&d)[16][4], unsigned long long a, unsigned long long b) {
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" OPERANDS "}, %64, %65, add, 1, 1, 0, 1;\n}"
               : ACCUMULATORS : "l"(a), "l"(b));
}

template <>
__device__ __forceinline__ void wgmma_m64n128k16<__nv_bfloat16>(
    float (&d)[16][4], unsigned long long a, unsigned long long b) {
  asm volatile("{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" OPERANDS "}, %64, %65, add, 1, 1, 0, 1;\n}"
               : ACCUMULATORS : "l"(a), "l"(b));
}

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

// Named barriers, of some of the block's warps: wait for `threads` threads, the caller among them; or only arrive.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

struct Tiles {  // one stage of the ring, written by TMA; its swizzle repeats after 8 rows, 1 KB
  alignas(1024) Element A[BLOCK_M][LINE];
  alignas(1024) Element B[BLOCK_N / LINE][BLOCK_K][LINE];  // 64 columns after 64 columns
};

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

struct Shared {
  Tiles ring[STAGES];
  alignas(1024) Element C[CONSUMERS][GROUP_N / LINE][BLOCK_M][LINE];  // each consumer's tile, on its way to TMA
  alignas(8) unsigned long long full[STAGES];                         // mbarriers: a stage's bytes have come
  alignas(8) unsigned long long empty[STAGES];                        // ... the consumers have read it
};

struct Place {  // of a tile
  int row, col;
};

// Blocks walk down GROUP_M rows of tiles before they step to the right.
__device__ __forceinline__ Place place(int tile, int tiles_m, int tiles_n) {
  const int group = tile / (GROUP_M * tiles_n);
  const int in_group = tile % (GROUP_M * tiles_n);
  const int group_rows = min(GROUP_M, tiles_m - group * GROUP_M);  // the last group may be lower
  return {(group * GROUP_M + in_group % group_rows) * BLOCK_M, in_group / group_rows * BLOCK_N};
}

__global__ void __launch_bounds__(THREADS, 1) gemm_kernel(
    const __grid_constant__ CUtensorMap A_map,  // [M, K] in boxes of [BLOCK_M, LINE]
    const __grid_constant__ CUtensorMap B_map,  // [K, N] in boxes of [BLOCK_K, LINE]
    const __grid_constant__ CUtensorMap C_map,  // [M, N] in boxes of [BLOCK_M, LINE]
    int M, int N, int K) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared &shared = *reinterpret_cast<Shared *>(memory);

  // 1. Which tiles of C are mine? Every gridDim.x-th, by turns; their slices follow one another in the ring.
  const int tiles_m = M / BLOCK_M;
  const int tiles_n = N / BLOCK_N;
  const int slices = K / BLOCK_K;
  const int turns = ceil_div(tiles_m * tiles_n - blockIdx.x, gridDim.x);
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int consumer = warp / 4;

  if (thread == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(shared_address(&shared.full[stage]), 1);
      mbarrier_init(shared_address(&shared.empty[stage]), PING_PONG ? 1 : CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // nobody waits at a barrier that is not made yet

  // 2. The producer. Global -> shared, by TMA: each slice into the next stage, once the slice before it there is read.
  if (consumer == CONSUMERS) {
    setmaxnreg_dec<40>();
    if (thread % 128 > 0) return;
    for (int turn = 0; turn < turns; ++turn) {
      const Place tile = place(blockIdx.x + turn * gridDim.x, tiles_m, tiles_n);
      for (int slice = 0; slice < slices; ++slice) {
        const int position = turn * slices + slice;  // in the order of all slices that pass through the ring
        Tiles &tiles = shared.ring[position % STAGES];
        const unsigned full = shared_address(&shared.full[position % STAGES]);
        if (position >= STAGES)
          mbarrier_wait(shared_address(&shared.empty[position % STAGES]), (position / STAGES - 1) % 2);
        mbarrier_arrive_expect(full, sizeof(Tiles));
        tma_load(shared_address(tiles.A), &A_map, tile.row, slice * BLOCK_K, full);
        for (int box = 0; box < BLOCK_N / LINE; ++box)
          tma_load(shared_address(tiles.B[box]), &B_map, slice * BLOCK_K, tile.col + box * LINE, full);
      }
    }
    return;
  }

  // 3. The consumers. Shared -> tensor cores: 8 instructions per slice.
  setmaxnreg_inc<232>();
  const int tile_barrier = 1 + consumer;  // of this consumer's four warps
  const int my_turn = 3 + consumer, other_turn = 4 - consumer;
  const int group_col = PING_PONG ? 0 : consumer * GROUP_N;  // of this consumer's 128 columns, within the tile
  auto &C_tile = shared.C[consumer];

  for (int turn = PING_PONG ? consumer : 0; turn < turns; turn += PING_PONG ? CONSUMERS : 1) {
    const Place tile = place(blockIdx.x + turn * gridDim.x, tiles_m, tiles_n);
    float acc[TILES_M][TILES_N][4] = {};  // 2 × 16 rows of C per warp, 128 columns, in wgmma's layout
    if (PING_PONG && turn > 0) named_barrier_sync(my_turn, CONSUMERS * 128);  // the other has issued its last slice

    for (int slice = 0; slice < slices; ++slice) {
      const int position = turn * slices + slice;
      mbarrier_wait(shared_address(&shared.full[position % STAGES]), position / STAGES % 2);
      const Tiles &tiles = shared.ring[position % STAGES];
      const unsigned A_rows = shared_address(tiles.A);
      const unsigned B_rows = shared_address(tiles.B[group_col / LINE]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < BLOCK_K; k += WGMMA_K) {
        const unsigned long long b = descriptor(B_rows + k * 128, B_BOX, EIGHT_ROWS);  // 16 rows on
#pragma unroll
        for (int m = 0; m < TILES_M; ++m) {  // 64 rows on; 32 bytes, in a row
          const unsigned a_rows = A_rows + m * WGMMA_M * 128 + k * sizeof(Element);
          wgmma_m64n128k16<Element>(acc[m], descriptor(a_rows, 16, EIGHT_ROWS), b);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();  // this slice's products run on, the last slice's have read their tiles
      if (slice > 0 && thread % 128 == 0) mbarrier_arrive(shared_address(&shared.empty[(position - 1) % STAGES]));
    }
    if (PING_PONG && turn + 1 < turns) named_barrier_arrive(other_turn, CONSUMERS * 128);
    wgmma_wait<0>(acc[0], acc[1]);  // acc is complete
    if (thread % 128 == 0) mbarrier_arrive(shared_address(&shared.empty[(turn * slices + slices - 1) % STAGES]));

    // 4. Round once, at the end: registers -> shared, swizzled -> global, by TMA, while the next tile is multiplied.
    if (thread % 128 == 0) bulk_wait_read<0>();  // TMA has read this consumer's last tile,
    named_barrier_sync(tile_barrier, 128);       // ... all its warps know
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
#pragma unroll
      for (int n = 0; n < TILES_N; n += 2) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
        const int row = m * WGMMA_M + warp % 4 * 16 + lane % 16;
        const int col = n * MMA_N + lane / 16 * 8;
        const unsigned address = shared_address(&C_tile[col / LINE][row][swizzle<LINE>(row, col % LINE)]);
        const auto &left = acc[m][n], &right = acc[m][n + 1];
        stmatrix_x4(address, pack<Element>(left[0], left[1]), pack<Element>(left[2], left[3]),
                    pack<Element>(right[0], right[1]), pack<Element>(right[2], right[3]));
      }
    }
    fence_proxy_async();                    // each warp shows TMA what it wrote,
    named_barrier_sync(tile_barrier, 128);  // ... and the tile is complete
    if (thread % 128 == 0) {
      for (int box = 0; box < GROUP_N / LINE; ++box)
        tma_store(&C_map, tile.row, tile.col + group_col + box * LINE, shared_address(C_tile[box]));
      bulk_commit();
    }
  }
  if (thread % 128 == 0) bulk_wait_read<0>();  // shared memory is there until TMA has read it
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
  CUtensorMap A_map, B_map, C_map;
  cudaError_t status = tensor_map(&A_map, A, M, K, BLOCK_M);
  if (status == cudaSuccess) status = tensor_map(&B_map, B, K, N, BLOCK_K);
  if (status == cudaSuccess) status = tensor_map(&C_map, C, M, N, BLOCK_M);
  int device = 0, multiprocessors = 0;
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const int tiles = (M / BLOCK_M) * (N / BLOCK_N);
  const dim3 grid(tiles < multiprocessors ? tiles : multiprocessors);
  const int shared_bytes = sizeof(Shared);  // more than 48 KB must be asked for
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  gemm_kernel<<<grid, THREADS, shared_bytes, stream>>>(A_map, B_map, C_map, M, N, K);
  return cudaGetLastError();
}
