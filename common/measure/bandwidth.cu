// What each level of memory delivers: bytes per clock of one SM, or per second of all of them.
//
// Problem   How fast can data come from shared memory, L1, L2 and device memory, if nothing else has to be done?
// Idea      Every kernel reads 16 bytes per lane, lanes side by side, several loads in flight per warp, and adds up what
//           it reads, so that no load can be left out. What differs is where the data lie:
//
//   kernel              | what is read                                | grid
//   --------------------+---------------------------------------------+------------------
//   shared_load_kernel  | shared memory, by ld.shared.v4 or ldmatrix  | one block per SM
//   shared_store_kernel | (written) shared memory, by st.shared.v4    | one block per SM
//   both_kernel         | ldmatrix in half of the warps, cp.async     | one block
//                       | into shared memory in the other half        |
//   l1_kernel           | L1: each block its own 64 KB, again and     | one block per SM
//                       | again                                       |
//   sweep_kernel        | L2, device memory: all blocks together a    | one block per SM,
//                       | region, again and again                     | or one alone
//   copy_kernel         | device memory: half a region to the other   | one block per SM

#include <cuda_runtime.h>

#include <cstdint>

#include "stamp.cuh"

constexpr int WARP = 32;
constexpr int ROW = WARP * sizeof(uint4);  // what a warp reads at once, in bytes
constexpr int ROWS = 64;                   // of the tile in shared memory: 32 KB
constexpr int SHARED_WARPS = 16;
constexpr int SHARED_THREADS = SHARED_WARPS * WARP;
constexpr int PER_WARP = ROWS / SHARED_WARPS;  // rows that a warp reads per step, or writes
constexpr int THREADS = 1024;                  // of a block that reads global memory
constexpr int L1_HALF = 32 << 10;              // bytes of L1 that a block reads per step, one half of its region
constexpr int IN_FLIGHT = 8;                   // loads from L2 or device memory per thread, copies per warp

static_assert(ROWS % SHARED_WARPS == 0, "every warp has the same number of rows");

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ inline void store_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w) : "memory");
}
// Four 8 × 8 matrices of 16-bit elements; lane L gives the address of one 16-byte row.
__device__ inline uint4 ldmatrix_x4(uint32_t address) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ inline void cp_async_16(uint32_t to, const uint4 *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ inline void load(uint4 &v, const uint4 *from) {
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
}
__device__ inline void load(uint32_t &v, const uint32_t *from) {
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(from));
}

__device__ inline uint32_t sum(uint4 v) { return v.x + v.y + v.z + v.w; }
__device__ inline uint32_t sum(uint32_t v) { return v; }

// A number of its own for each word of the tile in shared memory.
__device__ inline uint4 filling(int row, int lane) {
  const uint32_t word = (row * WARP + lane) * 4;
  return make_uint4(word, word + 1, word + 2, word + 3);
}

// Each warp reads all rows in turn, PER_WARP per step. sink [gridDim.x * blockDim.x]: each thread's sum.
template <bool LDMATRIX>
__global__ void __launch_bounds__(SHARED_THREADS, 1) shared_load_kernel(uint32_t *sink, Stamp *stamps, int steps) {
  __shared__ alignas(16) uint4 tile[ROWS][WARP];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int row = warp; row < ROWS; row += SHARED_WARPS) tile[row][lane] = filling(row, lane);
  const uint32_t shared = (uint32_t)__cvta_generic_to_shared(&tile[0][lane]);
  uint32_t row = warp * PER_WARP, total = 0;
  note(stamps, 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int r = 0; r < PER_WARP; ++r) {
      const uint32_t address = shared + (row + r) * ROW;
      total += sum(LDMATRIX ? ldmatrix_x4(address) : load_shared(address));
    }
    row = (row + PER_WARP) % ROWS;
  }
  sink[blockIdx.x * blockDim.x + threadIdx.x] = total;
  note(stamps, 1);
}

// Each warp writes its own PER_WARP rows at every step. sink: each thread's sum of what is there in the end.
__global__ void __launch_bounds__(SHARED_THREADS, 1) shared_store_kernel(uint32_t *sink, Stamp *stamps, int steps) {
  __shared__ alignas(16) uint4 tile[ROWS][WARP];
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const uint32_t shared = (uint32_t)__cvta_generic_to_shared(&tile[warp * PER_WARP][lane]);
  uint4 value = filling(warp * PER_WARP, lane);
  note(stamps, 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    value.x = step;
#pragma unroll
    for (int r = 0; r < PER_WARP; ++r) store_shared(shared + r * ROW, value);
  }
  note(stamps, 1);
  uint32_t total = 0;
  for (int r = 0; r < PER_WARP; ++r) total += sum(tile[warp * PER_WARP + r][lane]);
  sink[blockIdx.x * blockDim.x + threadIdx.x] = total;
}

// Warps 0 to 7 read shared memory by ldmatrix, `steps` times PER_WARP rows; the others meanwhile copy from `memory`
// (`words` of 16 bytes, which stay in L2) into other rows. copied [gridDim.x]: rows copied when the readers were ready.
// sink as above, of the readers. With loads = 0 nobody reads, and the copies go on for `steps` times PER_WARP rows
// per warp, steps being a multiple of 4.
__global__ void __launch_bounds__(SHARED_THREADS, 1)
    both_kernel(uint32_t *sink, Stamp *stamps, const uint4 *memory, int words, int steps, int loads, unsigned *copied) {
  constexpr int READERS = SHARED_WARPS / 2, HALF = ROWS / 2, TURNS = 4;
  __shared__ alignas(16) uint4 tile[ROWS][WARP];  // [0, HALF) is read, [HALF, ROWS) is written
  __shared__ unsigned readers_left, rows_copied;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int row = warp; row < ROWS; row += SHARED_WARPS) tile[row][lane] = filling(row, lane);
  if (threadIdx.x == 0) readers_left = loads ? READERS : 0, rows_copied = 0;
  const uint32_t shared = (uint32_t)__cvta_generic_to_shared(&tile[0][lane]);
  uint32_t total = 0;
  note(stamps, 0);
  if (warp < READERS) {
    uint32_t row = warp * PER_WARP;
#pragma unroll 1
    for (int step = 0; step < steps * loads; ++step) {
#pragma unroll
      for (int r = 0; r < PER_WARP; ++r) total += sum(ldmatrix_x4(shared + (row + r) * ROW));
      row = (row + PER_WARP) % HALF;
    }
    if (lane == 0 && loads) atomicSub(&readers_left, 1);
  } else {
    const uint32_t to = shared + (HALF + (warp - READERS) * PER_WARP) * ROW;
    int from = (warp - READERS) * PER_WARP * WARP + lane;
    unsigned rows = 0;
#pragma unroll 1
    while (loads ? *(volatile unsigned *)&readers_left != 0 : rows < steps * PER_WARP) {
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {  // several, so that looking at readers_left costs little
#pragma unroll
        for (int r = 0; r < PER_WARP; ++r) cp_async_16(to + r * ROW, memory + from + r * WARP);
        cp_async_commit();
        cp_async_wait_group<IN_FLIGHT>();
        from += READERS * PER_WARP * WARP;
        if (from >= words) from -= words;
      }
      rows += TURNS * PER_WARP;
    }
    cp_async_wait_group<0>();
    if (lane == 0) atomicAdd(&rows_copied, rows);
  }
  sink[blockIdx.x * blockDim.x + threadIdx.x] = total;
  note(stamps, 1);
  if (threadIdx.x == 0) copied[blockIdx.x] = rows_copied;
}

// Each block reads its own two halves of L1_HALF bytes in turn, one per step. Word: what a lane reads at once. BROADCAST:
// all lanes of a warp read the first one's word instead.
template <class Word, bool BROADCAST>
__global__ void __launch_bounds__(THREADS, 1) l1_kernel(uint32_t *sink, Stamp *stamps, const Word *memory, int steps) {
  constexpr int LOADS = L1_HALF / (THREADS * sizeof(Word)), HALF = LOADS * THREADS;
  const int thread = BROADCAST ? threadIdx.x / WARP * WARP : threadIdx.x;
  const Word *mine = memory + (long long)blockIdx.x * 2 * HALF + thread;
  const auto read = [mine](int step) {
    const Word *from = mine + step % 2 * HALF;
    Word v[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) load(v[i], from + i * THREADS);
    uint32_t total = 0;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) total += sum(v[i]);
    return total;
  };
  uint32_t total = read(0) & read(1) & 0;  // from now on they are in L1
  note(stamps, 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) total += read(step);
  sink[blockIdx.x * blockDim.x + threadIdx.x] = total;
  note(stamps, 1);
}

// What sweep_kernel and copy_kernel have in common: at each step a block reads CHUNK words, IN_FLIGHT per thread. The
// chunks of a step lie side by side; their number in all being a power of two, an odd distance from step to step leads
// each block through all chunks before it reads one again: nothing that it reads is left in L1.
constexpr uint32_t CHUNK = IN_FLIGHT * THREADS;
__device__ inline uint32_t first_word(int step) { return (blockIdx.x + step * (gridDim.x | 1)) * CHUNK + threadIdx.x; }
__device__ inline void load_chunk(uint4 (&v)[IN_FLIGHT], const uint4 *memory, uint32_t first, uint32_t mask) {
#pragma unroll
  for (int i = 0; i < IN_FLIGHT; ++i) load(v[i], memory + ((first + i * THREADS) & mask));
}

// All blocks together read a region of memory of mask + 1 words, from its beginning to its end and from the beginning
// again. In `warm` steps before that the region comes into L2.
__global__ void __launch_bounds__(THREADS, 1)
    sweep_kernel(uint32_t *sink, Stamp *stamps, const uint4 *memory, uint32_t mask, int steps, int warm) {
  const auto read = [=](int step) {
    uint4 v[IN_FLIGHT];
    load_chunk(v, memory, first_word(step), mask);
    uint32_t total = 0;
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) total += sum(v[i]);
    return total;
  };
  uint32_t total = 0;
#pragma unroll 1
  for (int step = 0; step < warm; ++step) total += read(step);
  total = 0;
  note(stamps, 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) total += read(step);
  sink[blockIdx.x * blockDim.x + threadIdx.x] = total;
  note(stamps, 1);
}

// All blocks together copy what sweep_kernel reads to the mask + 1 words that follow.
__global__ void __launch_bounds__(THREADS, 1) copy_kernel(Stamp *stamps, uint4 *memory, uint32_t mask, int steps) {
  note(stamps, 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    uint4 v[IN_FLIGHT];
    const uint32_t first = first_word(step);
    load_chunk(v, memory, first, mask);
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) memory[mask + 1ll + ((first + i * THREADS) & mask)] = v[i];
  }
  note(stamps, 1);
}

// Each launcher takes `blocks` blocks, sink with a word per thread, stamps with one per block.

extern "C" cudaError_t launch_shared(
    int ldmatrix, uint32_t *sink, Stamp *stamps, int blocks, int steps, cudaStream_t stream) {
  if (ldmatrix) {
    shared_load_kernel<true><<<blocks, SHARED_THREADS, 0, stream>>>(sink, stamps, steps);
  } else {
    shared_load_kernel<false><<<blocks, SHARED_THREADS, 0, stream>>>(sink, stamps, steps);
  }
  return cudaGetLastError();
}

extern "C" cudaError_t launch_shared_store(uint32_t *sink, Stamp *stamps, int blocks, int steps, cudaStream_t stream) {
  shared_store_kernel<<<blocks, SHARED_THREADS, 0, stream>>>(sink, stamps, steps);
  return cudaGetLastError();
}

// memory: `words` words of 16 bytes, a multiple of 1024.
extern "C" cudaError_t launch_both(uint32_t *sink, Stamp *stamps, uint4 *memory, int words, int steps, int loads,
                                   unsigned *copied, cudaStream_t stream) {
  both_kernel<<<1, SHARED_THREADS, 0, stream>>>(sink, stamps, memory, words, steps, loads, copied);
  return cudaGetLastError();
}

// memory: 64 KB per block. wide: 16 bytes per lane and load, else 4; broadcast: 4, the same for all lanes.
extern "C" cudaError_t launch_l1(
    int wide, int broadcast, uint32_t *sink, Stamp *stamps, void *memory, int blocks, int steps, cudaStream_t stream) {
  if (wide) {
    l1_kernel<uint4, false><<<blocks, THREADS, 0, stream>>>(sink, stamps, (const uint4 *)memory, steps);
  } else if (broadcast) {
    l1_kernel<uint32_t, true><<<blocks, THREADS, 0, stream>>>(sink, stamps, (const uint32_t *)memory, steps);
  } else {
    l1_kernel<uint32_t, false><<<blocks, THREADS, 0, stream>>>(sink, stamps, (const uint32_t *)memory, steps);
  }
  return cudaGetLastError();
}

// memory: `words` words of 16 bytes, a power of two.
extern "C" cudaError_t launch_sweep(
    uint32_t *sink, Stamp *stamps, uint4 *memory, int words, int blocks, int steps, int warm, cudaStream_t stream) {
  sweep_kernel<<<blocks, THREADS, 0, stream>>>(sink, stamps, memory, words - 1, steps, warm);
  return cudaGetLastError();
}

// memory: twice `words` words of 16 bytes.
extern "C" cudaError_t launch_copy(Stamp *stamps, uint4 *memory, int words, int blocks, int steps, cudaStream_t stream) {
  copy_kernel<<<blocks, THREADS, 0, stream>>>(stamps, memory, words - 1, steps);
  return cudaGetLastError();
}
