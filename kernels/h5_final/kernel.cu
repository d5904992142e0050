// Stage h5 · final: a tile that reads less, any size, and what a layer adds to the product.
//
// Problem   C[M, N] = activation(A[M, K] · B[K, N] + bias[N]), all row-major; or B_TRANSPOSED, B[N, K]; 16-bit DTYPE
//           in and out, fp32 accumulation. The bias may be null; activations: none, ReLU, GELU.
// Idea      Both consumers share a tile of 128 × 256, by rows: it reads less from L2 than two of 128 × 128, and an
//           instruction of 256 columns less from shared memory. TMA fills with zeros what lies beyond A and B, and
//           clips C: the loop knows no edges. Bias and activation are applied to accumulators. Each warp stores its own
//           rows, box by box, and waits for no other.
//
//   level     | tile of C (M × N)                | tiles of A, B per K slice              | who
//   ----------+----------------------------------+----------------------------------------+----------------------------
//   block     | 128 × BLOCK_N                    | STAGES × (A 128 × 64, B 64 × BLOCK_N)  | 384 threads = 3 warpgroups
//   producer  |                                  | boxes of 64 along K, or N              | 1 thread of the last one
//   consumer  | 64 × BLOCK_N; 128 × half of that | none: operands stay in shared memory   | 2 warpgroups of 128
//   wgmma     | 64 × WGMMA_N                     | A 64 × 16, B 16 × WGMMA_N              | the SM's tensor cores
//
// Thread map   wgmma: each warp has 16 rows of C; row = lane / 4 (+ 8 for registers 2, 3), column = n * 8 +
//              lane % 4 * 2 (+ 1 for registers 1, 3): for each 16 × 8 the layout of mma.m16n8k16.
// Limits       N and K multiples of 8; compute capability 9.0a; up to 225 KB of shared memory.
// Layouts      PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor maps", "mbarrier".

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
#ifndef BLOCK_N
#define BLOCK_N 256  // columns of C per tile
#endif
#ifndef BY_ROWS
#define BY_ROWS 1  // the consumers share a tile by rows, 64 each; 0: by columns, half of them each
#endif

using Element = DTYPE;
constexpr int BLOCK_M = 128;                              // rows of C per tile
constexpr int BLOCK_K = 64;                               // depth of a K slice
constexpr int GROUP_M = 16;                               // block swizzle: rows of tiles that concurrent blocks share
constexpr int WGMMA_M = 64;                               // rows of C per tensor instruction and warpgroup
constexpr int WGMMA_N = BY_ROWS ? BLOCK_N : BLOCK_N / 2;  // ... its columns, and those of a consumer
constexpr int WGMMA_K = 16;                               // depth of a tensor instruction
constexpr int WARP_M = WGMMA_M / 4;                       // rows of C per warp
constexpr int MMA_N = 8;                                  // columns of C per four registers of a lane
constexpr int CONSUMERS = 2;                              // warpgroups that multiply
constexpr int THREADS = (CONSUMERS + 1) * 128;            // ... and the producer's
constexpr int TILES_M = BY_ROWS ? 1 : BLOCK_M / WGMMA_M;
constexpr int TILES_N = WGMMA_N / MMA_N;
constexpr int VECTOR = 16 / sizeof(Element);  // elements in a chunk of 16 bytes
constexpr int LINE = 128 / sizeof(Element);   // elements in 128 bytes, a row of the swizzle
constexpr int EIGHT_ROWS = 8 * 128;           // bytes from 8 rows of an operand to the next 8
constexpr int B_BOX = BLOCK_K * 128;          // bytes from 64 columns of B to the next 64
constexpr int C_BOXES = 2;                    // of C, on their way to TMA, per consumer
constexpr int BOXES = WGMMA_N / LINE;         // of 64 columns, in 64 rows of a consumer

static_assert(sizeof(Element) == 2, "these tensor instructions take 16-bit elements");
static_assert(BLOCK_K == LINE && WGMMA_N % LINE == 0, "the descriptors take rows of 128 bytes");
static_assert(TILES_M * BOXES % C_BOXES == 0, "each tile begins with the same box");

template <typename T>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
template <>
constexpr CUtensorMapDataType TENSOR_MAP_TYPE<__nv_bfloat16> = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
__host__ __device__ constexpr int ceil_div(int a, int b) { return (a - 1) / b + 1; }

// Instructions, declared here, defined at the end. (A template is inlined by force if its first declaration says so.)
__device__ unsigned shared_address(const void *pointer);
__device__ void mbarrier_init(unsigned barrier, int count), fence_mbarrier_init();
__device__ void mbarrier_arrive(unsigned barrier), mbarrier_arrive_expect(unsigned barrier, int bytes);
__device__ void mbarrier_wait(unsigned barrier, int parity);
__device__ void tma_load(unsigned shared, const CUtensorMap *map, int row, int col, unsigned full);
__device__ void tma_store(const CUtensorMap *map, int row, int col, unsigned shared), bulk_commit();
template <int N>
__device__ __forceinline__ void bulk_wait_read();
__device__ bool elect_one();
template <int N>
__device__ __forceinline__ void setmaxnreg_dec();
template <int N>
__device__ __forceinline__ void setmaxnreg_inc();
__device__ void wgmma_fence(), wgmma_commit();
template <int N, typename... Sums>
__device__ __forceinline__ void wgmma_wait(Sums &...sums);
__device__ unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride);
template <typename T, int N>  // half or __nv_bfloat16; without `add` D = A · B
__device__ void wgmma(float (&d)[N / 8][4], unsigned long long a, unsigned long long b, int add);
template <>
__device__ void wgmma<Element, WGMMA_N>(float (&d)[TILES_N][4], unsigned long long a, unsigned long long b, int add);
template <typename T>
__device__ unsigned pack(float low, float high);
template <>
__device__ unsigned pack<Element>(float low, float high);
__device__ void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3), fence_proxy_async();
template <int ACTIVATION, int TILES>  // 0: none; 1: ReLU; 2: GELU
__device__ __forceinline__ void finish_tiles(float (&acc)[TILES][4], const Element *bias, int col, int N);

struct Tiles {  // one stage of the ring, written by TMA; its swizzle repeats after 8 rows, 1 KB
  alignas(1024) Element A[BLOCK_M][LINE];
  alignas(1024) Element B[BLOCK_N * BLOCK_K];  // [BLOCK_N / LINE][BLOCK_K][LINE]; B_TRANSPOSED, [BLOCK_N][LINE]
};

constexpr int STAGES = 192 * 1024 / sizeof(Tiles);  // of the ring, as many as fit

struct Shared {
  Tiles ring[STAGES];
  alignas(1024) Element C[CONSUMERS][C_BOXES][WGMMA_M][LINE];  // of each consumer's part, on its way to TMA
  alignas(8) unsigned long long full[STAGES];                  // mbarriers: a stage's bytes have come
  alignas(8) unsigned long long empty[STAGES];                 // ... the consumers have read it
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

__global__ void __launch_bounds__(THREADS, 1) linear_kernel(
    const __grid_constant__ CUtensorMap A_map,  // [M, K] in boxes of [BLOCK_M, LINE]
    const __grid_constant__ CUtensorMap B_map,  // [K, N] in boxes of [BLOCK_K, LINE]; [N, K] of [BLOCK_N, LINE]
    const __grid_constant__ CUtensorMap C_map,  // [M, N] in boxes of [WARP_M, LINE]
    const Element *bias, int M, int N, int K, int activation) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared &shared = *reinterpret_cast<Shared *>(memory);

  // 1. Which tiles of C are mine? Every gridDim.x-th, by turns; their slices follow one another in the ring.
  const int tiles_m = ceil_div(M, BLOCK_M);
  const int tiles_n = ceil_div(N, BLOCK_N);
  const int slices = ceil_div(K, BLOCK_K);
  const int turns = ceil_div(tiles_m * tiles_n - blockIdx.x, gridDim.x);
  const int thread = threadIdx.x;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int consumer = warp / 4;

  if (thread == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(shared_address(&shared.full[stage]), 1);
      mbarrier_init(shared_address(&shared.empty[stage]), CONSUMERS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();  // nobody waits at a barrier that is not made yet

  // 2. The producer. Global -> shared, by TMA: each slice into the next stage, once the slice before it there is read.
  if (consumer == CONSUMERS) {
    setmaxnreg_dec<40>();
    if (warp % 4 > 0 || !elect_one()) return;
    for (int turn = 0; turn < turns; ++turn) {
      const Place tile = place(blockIdx.x + turn * gridDim.x, tiles_m, tiles_n);
      for (int slice = 0; slice < slices; ++slice) {
        const int position = turn * slices + slice;  // in the order of all slices that pass through the ring
        Tiles &tiles = shared.ring[position % STAGES];
        const unsigned full = shared_address(&shared.full[position % STAGES]);
        if (position >= STAGES)
          mbarrier_wait(shared_address(&shared.empty[position % STAGES]), (position / STAGES - 1) % 2);
        mbarrier_arrive_expect(full, sizeof(Tiles));  // all of it: what lies beyond A and B comes as zeros
        tma_load(shared_address(tiles.A), &A_map, tile.row, slice * BLOCK_K, full);
        if (B_TRANSPOSED) tma_load(shared_address(tiles.B), &B_map, tile.col, slice * BLOCK_K, full);
        for (int col = 0; col < BLOCK_N && !B_TRANSPOSED; col += LINE)
          tma_load(shared_address(&tiles.B[col * BLOCK_K]), &B_map, slice * BLOCK_K, tile.col + col, full);
      }
    }
    return;
  }

  // 3. The consumers. Shared -> tensor cores: 4 instructions per slice, of 256 columns; or 8.
  setmaxnreg_inc<232>();
  const int group_row = BY_ROWS ? consumer * WGMMA_M : 0;  // where this consumer's part begins, within the tile
  const int group_col = BY_ROWS ? 0 : consumer * WGMMA_N;
  const int warp_row = warp % 4 * WARP_M;  // ... and this warp's rows, among 64

  for (int turn = 0; turn < turns; ++turn) {
    const Place tile = place(blockIdx.x + turn * gridDim.x, tiles_m, tiles_n);
    float acc[TILES_M][TILES_N][4];  // 16 rows of C per warp, or twice as many, in wgmma's layout

    for (int slice = 0; slice < slices; ++slice) {
      const int position = turn * slices + slice;
      mbarrier_wait(shared_address(&shared.full[position % STAGES]), position / STAGES % 2);
      const Tiles &tiles = shared.ring[position % STAGES];
      const unsigned A_rows = shared_address(tiles.A[group_row]);
      const unsigned B_rows = shared_address(&tiles.B[group_col * BLOCK_K]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < BLOCK_K; k += WGMMA_K) {
        const unsigned long long b =
            B_TRANSPOSED ? descriptor(B_rows + k * sizeof(Element), 16, EIGHT_ROWS)  // 32 bytes on
                         : descriptor(B_rows + k * 128, B_BOX, EIGHT_ROWS);          // 16 rows on
#pragma unroll
        for (int m = 0; m < TILES_M; ++m) {  // 64 rows on; 32 bytes, in a row
          const unsigned a_rows = A_rows + m * WGMMA_M * 128 + k * sizeof(Element);
          wgmma<Element, WGMMA_N>(acc[m], descriptor(a_rows, 16, EIGHT_ROWS), b, slice > 0 || k > 0);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();  // this slice's products run on, the last slice's have read their tiles
      if (slice > 0 && thread % 128 == 0) mbarrier_arrive(shared_address(&shared.empty[(position - 1) % STAGES]));
    }
    wgmma_wait<0>(acc[0], acc[TILES_M - 1]);  // acc is complete
    if (thread % 128 == 0) mbarrier_arrive(shared_address(&shared.empty[(turn * slices + slices - 1) % STAGES]));

    // 4. Bias and activation, on the accumulators. The activation is a constant of each loop.
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      const int col = tile.col + group_col + lane % 4 * 2;
      if (activation == 2) {
        finish_tiles<2>(acc[m], bias, col, N);
      } else if (activation == 1) {
        finish_tiles<1>(acc[m], bias, col, N);
      } else if (bias) {
        finish_tiles<0>(acc[m], bias, col, N);
      }

      // 5. Round once, at the end: registers -> shared, swizzled -> global, by TMA, box by box, while the next tile is
      //    copied. Each warp stores its own rows, and waits for no other.
#pragma unroll
      for (int i = 0; i < BOXES; ++i) {
        auto &box = shared.C[consumer][(m * BOXES + i) % C_BOXES];
        if (elect_one()) bulk_wait_read<C_BOXES - 1>();  // TMA has read what was there,
        __syncwarp();                                    // ... all lanes know
#pragma unroll
        for (int n = 0; n < LINE / MMA_N; n += 2) {  // matrices: rows 0-7 | 8-15 of columns 0-7, then of columns 8-15
          const int row = warp_row + lane % 16;
          const int at = (n * MMA_N + lane / 16 * 8) ^ row % 8 * VECTOR;  // swizzled, as TMA reads it
          const auto &left = acc[m][i * LINE / MMA_N + n], &right = acc[m][i * LINE / MMA_N + n + 1];
          stmatrix_x4(shared_address(&box[row][at]), pack<Element>(left[0], left[1]), pack<Element>(left[2], left[3]),
                      pack<Element>(right[0], right[1]), pack<Element>(right[2], right[3]));
        }
        fence_proxy_async();  // each lane shows TMA what it wrote,
        __syncwarp();         // ... and the warp's rows are complete
        if (elect_one()) {    // what lies beyond C is not written
          tma_store(&C_map, tile.row + group_row + m * WGMMA_M + warp_row, tile.col + group_col + i * LINE,
                    shared_address(box[warp_row]));
          bulk_commit();
        }
      }
    }
  }
  if (elect_one()) bulk_wait_read<0>();  // shared memory is there until TMA has read it
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

// activation: 0: none; 1: ReLU; 2: GELU. A, B and C begin at multiples of 16 bytes.
extern "C" cudaError_t launch_linear(const Element *A, const Element *B, Element *C, const Element *bias, int M, int N,
                                     int K, int activation, cudaStream_t stream) {
  if (M < 1 || N < 1 || K < 1 || N % 8 || K % 8 || activation < 0 || activation > 2) return cudaErrorInvalidValue;
  if (!A || !B || !C || ((size_t)A | (size_t)B | (size_t)C) % 16) return cudaErrorInvalidValue;  // as TMA wants them
  const long long tiles = (long long)ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N);
  if (tiles > 0x7fffffff || (size_t)bias % sizeof(Element)) return cudaErrorInvalidValue;
  CUtensorMap A_map, B_map, C_map;
  cudaError_t status = tensor_map(&A_map, A, M, K, BLOCK_M);
  if (status == cudaSuccess)
    status = B_TRANSPOSED ? tensor_map(&B_map, B, N, K, BLOCK_N) : tensor_map(&B_map, B, K, N, BLOCK_K);
  if (status == cudaSuccess) status = tensor_map(&C_map, C, M, N, WARP_M);
  int device = 0, multiprocessors = 0;
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const dim3 grid(tiles < multiprocessors ? tiles : multiprocessors);
  const int shared_bytes = sizeof(Shared);  // more than 48 KB must be asked for
  if (status == cudaSuccess)
    status = cudaFuncSetAttribute(linear_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  linear_kernel<<<grid, THREADS, shared_bytes, stream>>>(A_map, B_map, C_map, bias, M, N, K, activation);
  return cudaGetLastError();
}

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

// Bias and activation, from column col on. What lies beyond C takes the bias of its edge: nothing is tested per number.
template <int ACTIVATION, int TILES>
__device__ __forceinline__ void finish_tiles(float (&acc)[TILES][4], const Element *bias, int col, int N) {
#pragma unroll
  for (int n = 0; n < TILES; ++n) {
    const int at = min(col + n * MMA_N, N - MMA_N + col % MMA_N);
    const float added[2] = {bias ? float(bias[at]) : 0.0f, bias ? float(bias[at + 1]) : 0.0f};
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      acc[n][x] += added[x % 2];
      if constexpr (ACTIVATION == 1) acc[n][x] = fmaxf(acc[n][x], 0.0f);
      if constexpr (ACTIVATION == 2) acc[n][x] = gelu(acc[n][x]);
    }
  }
}

// What h1 to h4 have, word for word, but for elect_one and wgmma.
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

// True in one lane of the warp, always the same. ptxas knows that it is one, as it does not of `lane == 0`.
__device__ __forceinline__ bool elect_one() {
  unsigned elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected;
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

__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
  return (address & 0x3ffff) >> 4 | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
         1ull << 62;
}

// D[64, N] = A[64, 16] · B[16, N], and D before if `add`. Operands: N / 2 accumulators, A, B, B's layout, add.
#define FOUR(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SIXTEEN(n) FOUR(n), FOUR(n + 1), FOUR(n + 2), FOUR(n + 3)
#define ACCUMULATORS_64 SIXTEEN(0), SIXTEEN(4)
#define ACCUMULATORS_128 ACCUMULATORS_64, SIXTEEN(8), SIXTEEN(12)
#define ACCUMULATORS_256 ACCUMULATORS_128, SIXTEEN(16), SIXTEEN(20), SIXTEEN(24), SIXTEEN(28)
#define OPERANDS_64                                                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPERANDS_128                                                                                                   \
  OPERANDS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
              "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPERANDS_256                                                                                         \
  OPERANDS_128                                                                                               \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "   \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "   \
  "%121, %122, %123, %124, %125, %126, %127"
#define WGMMA(T, TYPE, N, A, B, B_ROWS, ADD)                                                       \
  template <>                                                                                      \
  __device__ __forceinline__ void wgmma<T, N>(                                                     \
      float (&d)[N / 8][4], unsigned long long a, unsigned long long b, int add) {                 \
    asm volatile("{\n.reg .pred add;\nsetp.ne.u32 add, " ADD ", 0;\n"                              \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" OPERANDS_##N \
                 "}, " A ", " B ", add, 1, 1, 0, " B_ROWS ";\n}" : ACCUMULATORS_##N                \
                 : "l"(a), "l"(b), "n"(!B_TRANSPOSED), "r"(add));                                  \
  }
#define BOTH_TYPES(N, ...) WGMMA(half, "f16", N, __VA_ARGS__) WGMMA(__nv_bfloat16, "bf16", N, __VA_ARGS__)
BOTH_TYPES(64, "%32", "%33", "%34", "%35")
BOTH_TYPES(128, "%64", "%65", "%66", "%67")
BOTH_TYPES(256, "%128", "%129", "%130", "%131")

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
