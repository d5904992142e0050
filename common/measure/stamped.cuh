// Stamps: when a block did what. This file goes before a copy of a stage's kernel.cu that stamps.patch, beside it, has
// made: the copy calls begin() and end(), and its launcher stamp_into() (stamped.py).

#include <cuda_runtime.h>

enum class Event {
  BLOCK,  // all that the warpgroup does
  TIMER,  // the same in the GPU's nanoseconds
  // The producer waits until a stage of a ring is free; starts the copies into it; a consumer waits until they have come.
  EMPTY,
  EMPTY_Q,
  EMPTY_K,
  EMPTY_V,
  COPY,
  COPY_Q,
  COPY_K,
  COPY_V,
  FULL,
  FULL_Q,
  FULL_K,
  FULL_V,
  // A group of wgmma: all of them are issued, all are done. The first was issued after the stamp before.
  PRODUCTS,
  SCORES,
  VALUES,
  TURN,     // a consumer waits for its turn
  SOFTMAX,  // ... weighs scores
  STORES,   // ... stores a tile, or hands it to TMA
  DRAIN,    // ... waits until TMA has read the tile before
  COUNT
};

namespace stamps {

constexpr int BLOCKS = 256;   // that are stamped, the first ones
constexpr int GROUPS = 4;     // warpgroups of a block
constexpr int NUMBERS = 256;  // of slices, tiles or turns, from 0: what comes later is not stamped

__constant__ long long *times;  // [BLOCKS][GROUPS][Event::COUNT][begin, end][NUMBERS], zeros

__device__ __forceinline__ void note(Event event, int when, int number, long long time) {
  if (blockIdx.x >= BLOCKS || number >= NUMBERS) return;
  const int group = blockIdx.x * GROUPS + threadIdx.x / 128;
  times[((group * int(Event::COUNT) + int(event)) * 2 + when) * NUMBERS + number] = time;
}

// The clock of the SM, as the first thread of a warpgroup reads it.
__device__ __forceinline__ void stamp(Event event, int when, int number) {
  if (threadIdx.x % 128 != 0) return;
  long long clocks;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clocks)::"memory");
  note(event, when, number, clocks);
  if (event != Event::BLOCK) return;
  long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  note(Event::TIMER, when, number, ns);
}

}  // namespace stamps

// Of the number-th slice, tile or turn. All threads of a warpgroup may call them, or its first one.
__device__ __forceinline__ void begin(Event event, int number = 0) { stamps::stamp(event, 0, number); }
__device__ __forceinline__ void end(Event event, int number = 0) { stamps::stamp(event, 1, number); }

// Has the launches that follow on the stream write their stamps there. What is known is not copied again: it would take
// time between the two events of a timed launch.
static cudaError_t stamp_into(long long *times, cudaStream_t stream) {
  static long long *known = nullptr;
  if (times == known) return cudaSuccess;
  known = times;
  return cudaMemcpyToSymbolAsync(stamps::times, &times, sizeof times, 0, cudaMemcpyHostToDevice, stream);
}
