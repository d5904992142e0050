// How long one thing takes that waits for another: the latencies, in clocks of the SM.
//
// Problem   When does the result of an instruction arrive? Each kernel is a chain in which every link needs the result of
//           the one before it, run by one warp (one thread, where memory is read): clocks / links is the latency.
// Idea      Memory holds lines that point to one another: to read one is to learn the address of the next. The order is
//           that of the generator i -> (1664525 i + 1013904223) mod lines, which visits every line of a power of two
//           once: neither neighbours nor a stride that hardware could foresee.

#include <cuda_runtime.h>

#include <cstdint>

constexpr int WARP = 32;
constexpr int LINKS = 128;           // of a chain, unrolled: what the loop costs is little beside them
constexpr int SHARED_LINES = 256;    // 32 KB
constexpr int LINE_WORDS = 128 / 4;  // of 4 bytes
constexpr int BARRIER_THREADS = 8 * WARP;

__device__ inline uint64_t load(uint64_t address, bool through_l1) {
  uint64_t next;
  if (through_l1) {
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(next) : "l"(address));
  } else {
    asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(next) : "l"(address));
  }
  return next;
}
__device__ inline uint32_t load_shared(uint32_t address) {
  uint32_t next;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(next) : "r"(address));
  return next;
}
__device__ inline uint32_t following(uint32_t line, uint32_t lines) { return (1664525u * line + 1013904223u) % lines; }

// One thread per line: write where the next line is into its first 8 bytes, or, of lines that are no chain, its own
// address. lines: a power of two, `stride` bytes apart.
__global__ void link_kernel(char *memory, long long stride, uint32_t lines, bool chained) {
  const uint32_t line = blockIdx.x * blockDim.x + threadIdx.x;
  if (line >= lines) return;
  *(char **)(memory + line * stride) = memory + (chained ? following(line, lines) : line) * stride;
}

// From line 0, `warm` links and then `links` more, which are timed. Before that one word of every `page` bytes of the
// first `bytes` is read, so that the addresses have been translated (page = 0: nothing is).
// clocks [1], last [1]: the address that the last link gave, as a distance from memory.
template <bool THROUGH_L1>
__global__ void chase_kernel(
    const char *memory, long long bytes, long long page, int warm, int links, long long *clocks, long long *last) {
  uint64_t at = (uint64_t)memory, none = 0;
  for (long long offset = page / 2; page && offset < bytes; offset += page) none |= load(at + offset, false) & 1;
  at += none & 2;  // 0, which the compiler does not know: the chain starts when these loads are done
  for (int link = 0; link < warm; ++link) at = load(at, THROUGH_L1);
  if (at == 0) return;  // it never is: the clock is read when all this has come
  const long long begin = clock64();
#pragma unroll 1
  for (int link = 0; link < links; link += LINKS) {
#pragma unroll
    for (int i = 0; i < LINKS; ++i) at = load(at, THROUGH_L1);
  }
  *last = at - (uint64_t)memory;  // is known when the last load is done
  *clocks = clock64() - begin;
}

// Each line in turn is read `links` times: it points to itself. clocks [lines].
__global__ void slices_kernel(
    const char *memory, long long stride, int lines, int links, long long *clocks, long long *last) {
  for (int line = 0; line < lines; ++line) {
    uint64_t at = load((uint64_t)memory + line * stride, false);  // from now on it is in L2
    if (at == 0) return;  // it never is: the clock is read when the line has come
    const long long begin = clock64();
#pragma unroll 1
    for (int link = 0; link < links; link += LINKS) {
#pragma unroll
      for (int i = 0; i < LINKS; ++i) at = load(at, false);
    }
    *last = at - (uint64_t)memory;
    clocks[line] = clock64() - begin;
  }
}

__global__ void shared_kernel(int links, long long *clocks, long long *last) {
  __shared__ uint32_t lines[SHARED_LINES][LINE_WORDS];
  const uint32_t base = (uint32_t)__cvta_generic_to_shared(lines);
  for (int line = 0; line < SHARED_LINES; ++line) {
    lines[line][0] = base + following(line, SHARED_LINES) * sizeof(lines[0]);
  }
  uint32_t at = base;
  const long long begin = clock64();
#pragma unroll 1
  for (int link = 0; link < links; link += LINKS) {
#pragma unroll
    for (int i = 0; i < LINKS; ++i) at = load_shared(at);
  }
  *last = at - base;
  *clocks = clock64() - begin;
}

__global__ void __launch_bounds__(BARRIER_THREADS) barrier_kernel(int links, long long *clocks) {
  __syncthreads();  // all warps have started
  const long long begin = clock64();
#pragma unroll 1
  for (int link = 0; link < links; link += LINKS) {
#pragma unroll
    for (int i = 0; i < LINKS; ++i) __syncthreads();  // nothing to protect: what is measured is the waiting itself
  }
  if (threadIdx.x == 0) *clocks = clock64() - begin;
}

// result [32] here and below: each lane's, so that nothing can be left out.
__global__ void fma_kernel(int links, long long *clocks, float *result) {
  const float a = 0.5f + 0.01f * threadIdx.x, b = 1.0f;
  float x = threadIdx.x;
  const long long begin = clock64();
#pragma unroll 1
  for (int link = 0; link < links; link += LINKS) {
#pragma unroll
    for (int i = 0; i < LINKS; ++i) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(a), "f"(b));
  }
  result[threadIdx.x] = x;
  if (threadIdx.x == 0) *clocks = clock64() - begin;
}

__global__ void shuffle_kernel(int links, long long *clocks, float *result) {
  float x = threadIdx.x;
  const long long begin = clock64();
#pragma unroll 1
  for (int link = 0; link < links; link += LINKS) {
#pragma unroll
    for (int i = 0; i < LINKS; ++i) x = __shfl_down_sync(0xffffffff, x, 1);
  }
  result[threadIdx.x] = x;
  if (threadIdx.x == 0) *clocks = clock64() - begin;
}

// m16n8k16, the accumulators of one the addend of the next; all operands are 1, so that each adds 16.
__global__ void mma_kernel(int links, long long *clocks, float *result) {
  const uint32_t ones = 0x3c003c00;  // two halves
  float acc[4] = {};
  const long long begin = clock64();
#pragma unroll 1
  for (int link = 0; link < links; link += LINKS) {
#pragma unroll
    for (int i = 0; i < LINKS; ++i) {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                   "{%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                   : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]) : "r"(ones));
    }
  }
  result[threadIdx.x] = acc[0] + acc[1] + acc[2] + acc[3];
  if (threadIdx.x == 0) *clocks = clock64() - begin;
}

__global__ void empty_kernel() {}

// In all launchers `links` is a multiple of 128.

// Lines of memory that are linked, and then, unless `filler` is null, pushed out of L2 by writing its `filled` bytes.
extern "C" cudaError_t launch_chase(
    int through_l1, char *memory, long long stride, int lines, long long page, int warm, int links, char *filler,
    long long filled, long long *clocks, long long *last, cudaStream_t stream) {
  link_kernel<<<(lines + 255) / 256, 256, 0, stream>>>(memory, stride, lines, true);
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && filler) error = cudaMemsetAsync(filler, 0, filled, stream);
  if (error != cudaSuccess) return error;
  if (through_l1) {
    chase_kernel<true><<<1, 1, 0, stream>>>(memory, stride * lines, page, warm, links, clocks, last);
  } else {
    chase_kernel<false><<<1, 1, 0, stream>>>(memory, stride * lines, page, warm, links, clocks, last);
  }
  return cudaGetLastError();
}

extern "C" cudaError_t launch_slices(
    char *memory, int stride, int lines, int links, long long *clocks, long long *last, cudaStream_t stream) {
  link_kernel<<<(lines + 255) / 256, 256, 0, stream>>>(memory, stride, lines, false);
  slices_kernel<<<1, 1, 0, stream>>>(memory, stride, lines, links, clocks, last);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_shared(int links, long long *clocks, long long *last, cudaStream_t stream) {
  shared_kernel<<<1, 1, 0, stream>>>(links, clocks, last);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_barrier(int links, long long *clocks, cudaStream_t stream) {
  barrier_kernel<<<1, BARRIER_THREADS, 0, stream>>>(links, clocks);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_fma(int links, long long *clocks, float *result, cudaStream_t stream) {
  fma_kernel<<<1, WARP, 0, stream>>>(links, clocks, result);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_shuffle(int links, long long *clocks, float *result, cudaStream_t stream) {
  shuffle_kernel<<<1, WARP, 0, stream>>>(links, clocks, result);
  return cudaGetLastError();
}

extern "C" cudaError_t launch_mma(int links, long long *clocks, float *result, cudaStream_t stream) {
  mma_kernel<<<1, WARP, 0, stream>>>(links, clocks, result);
  return cudaGetLastError();
}

// `count` kernels that do nothing, one after the other.
extern "C" cudaError_t launch_empty(int count, cudaStream_t stream) {
  for (int launch = 0; launch < count; ++launch) empty_kernel<<<1, 1, 0, stream>>>();
  return cudaGetLastError();
}
