// When and where a block ran: what rates per clock are computed from.

#pragma once

struct Stamp {
  long long sm;         // the multiprocessor's number
  long long clocks[2];  // its clock before and after the work
  long long ns[2];      // the GPU's timer, in nanoseconds, likewise
};

// All threads of the block: note the beginning (when = 0) or the end (when = 1) of its work in stamps [gridDim.x].
__device__ inline void note(Stamp *stamps, int when) {
  __syncthreads();  // thread 0 waits for all warps: the work begins and ends with the slowest
  if (threadIdx.x != 0) return;
  Stamp &mine = stamps[blockIdx.x];
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(mine.ns[when]));
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(mine.clocks[when]));
  mine.sm = sm;
}
