// When and where a block runs: what clocks, and rates per clock, are computed from.

#pragma once

struct Moment {
  long long sm;      // the multiprocessor's number
  long long clocks;  // its clock
  long long ns;      // the GPU's timer, in nanoseconds
};

__device__ inline Moment now() {
  Moment moment;
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(moment.ns));
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(moment.clocks));
  moment.sm = sm;
  return moment;
}

struct Stamp {
  long long sm;
  long long clocks[2];  // before and after the work
  long long ns[2];      // likewise
};

// All threads of the block: note the beginning (when = 0) or the end (when = 1) of its work in stamps [gridDim.x].
__device__ inline void note(Stamp *stamps, int when) {
  __syncthreads();  // thread 0 waits for all warps: the work begins and ends with the slowest
  if (threadIdx.x != 0) return;
  const Moment moment = now();
  Stamp &mine = stamps[blockIdx.x];
  mine.sm = moment.sm;
  mine.clocks[when] = moment.clocks;
  mine.ns[when] = moment.ns;
}
