// What the programs of this folder share: instructions of PTX by name, and how main ends.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

__device__ inline unsigned at(const void *shared) { return unsigned(__cvta_generic_to_shared(shared)); }

// ---- mbarriers: initialise; show to TMA; arrive; arrive and expect bytes; wait for the phase of that parity ---------
__device__ inline void init(uint64_t *bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(bar)), "r"(arrivals) : "memory");
}
__device__ inline void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(uint64_t *bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(bar)) : "memory");
}
__device__ inline void expect(uint64_t *bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(bar)), "r"(bytes) : "memory");
}
__device__ inline void wait(unsigned bar, int parity) {
  for (unsigned done = 0; !done;)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(parity) : "memory");
}
__device__ inline void wait(uint64_t *bar, int parity) { wait(at(bar), parity); }

// ---- bulk copies (TMA): load; store, in a bulk group of its own; the fence between ordinary accesses and theirs -----
__device__ inline void load(void *to, const void *from, int bytes, uint64_t *bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at(to)),
               "l"(from), "r"(bytes), "r"(at(bar)) : "memory");
}
__device__ inline void store(void *to, const void *from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2; cp.async.bulk.commit_group;" ::"l"(to),
               "r"(at(from)), "r"(bytes) : "memory");
}
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ inline void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters: this block's rank; a barrier; the address of a variable of another block -----------------------------
__device__ inline unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ inline unsigned at_rank(const void *shared, unsigned rank) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(at(shared)), "r"(rank));
  return address;
}

// ---- cp.async: 16 bytes; a group; wait until at most so many groups are in flight -----------------------------------
__device__ inline void copy16(void *to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(to)), "l"(from) : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int IN_FLIGHT = 0>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(IN_FLIGHT) : "memory");
}

// ---- wgmma: a matrix without a swizzle, in core matrices of 8 x 16 bytes, and how far these are apart ---------------
__device__ inline uint64_t describe(const void *matrix, unsigned along_k, unsigned along_rows) {
  return (at(matrix) & 0x3ffff) >> 4 | uint64_t(along_k >> 4) << 16 | uint64_t(along_rows >> 4) << 32;
}
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Wait for all products; no read of `sums` may move above the wait.
template <int N>
__device__ inline void wgmma_wait(float (&sums)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (float &sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

// The end of main: 0 if the GPU has done its work and `right` holds for each of `count` results.
template <typename Right>
int verdict(int count, Right right) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  int wrong = 0;
  if (error == cudaSuccess)
    for (int i = 0; i < count; ++i) wrong += !right(i);
  if (error != cudaSuccess)
    printf("FAIL: %s\n", cudaGetErrorString(error));
  else
    printf(wrong ? "FAIL: %d of %d are wrong\n" : "PASS\n", wrong, count);
  return error != cudaSuccess || wrong;
}
