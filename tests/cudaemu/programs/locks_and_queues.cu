// Threads that wait for each other in global memory: a ticket lock, a stack without locks, a ring of producers and
// consumers, and blocks that take work from a shared counter.
// Run: cudaemu locks_and_queues.cu
// Prints: lock, stack, ring and counter agree
#include "check.h"

struct Lock { unsigned next, serving; };

__global__ void with_a_lock(Lock *lock, int *list, int *length) {
  if (threadIdx.x) return;  // one thread per block
  const unsigned ticket = atomicAdd(&lock->next, 1);
  while (atomicAdd(&lock->serving, 0) != ticket) __nanosleep(20);
  __threadfence();
  list[*length] = blockIdx.x;
  *length += 1;
  __threadfence();
  atomicAdd(&lock->serving, 1);
}

// The head has a count, so that a node that comes back is not taken for the old one.
__global__ void stack(unsigned long long *head, int *next, int *popped) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned long long old = atomicAdd(head, 0), seen;
  for (;; old = seen) {
    atomicExch(next + i, int(unsigned(old)));
    __threadfence();
    seen = atomicCAS(head, old, ((old >> 32) + 1) << 32 | unsigned(i));
    if (seen == old) break;
  }
  old = atomicAdd(head, 0);
  for (;; old = seen) {
    const int top = int(unsigned(old));
    if (top < 0) return;
    __threadfence();
    seen = atomicCAS(head, old, ((old >> 32) + 1) << 32 | unsigned(atomicAdd(next + top, 0)));
    if (seen == old) {
      atomicAdd(popped + top, 1);
      return;
    }
  }
}

constexpr int SLOTS = 4;
__global__ void ring(volatile int *slots, volatile int *full, int *sums, int n) {
  if (threadIdx.x) return;
  int sum = 0;
  for (int k = 0; k < n; ++k) {
    const int s = k % SLOTS;
    if (blockIdx.x == 0) {
      while (full[s]) {
      }
      slots[s] = k * k;
      __threadfence();
      full[s] = 1;
    } else {
      while (!full[s]) {
      }
      __threadfence();
      sum += slots[s];
      __threadfence();
      full[s] = 0;
    }
  }
  if (blockIdx.x) *sums = sum;
}

__global__ void persistent(int *counter, int *done, int items) {
  __shared__ int item;
  for (;;) {
    if (threadIdx.x == 0) item = atomicAdd(counter, 1);
    __syncthreads();
    const int mine = item;
    __syncthreads();
    if (mine >= items) return;
    if (threadIdx.x < mine % 32) atomicAdd(done + mine, 1);
  }
}

int main() {
  const int n = 48;
  Array<Lock> lock(std::vector<Lock>{{0, 0}});
  Array<int> list(n), length(std::vector<int>{0});
  with_a_lock<<<n, 32>>>(lock, list, length);
  std::vector<int> seen(n, 0);
  for (int block : list.host()) ++seen[block];
  MUST(length.host()[0] == n && seen == std::vector<int>(n, 1));
  Array<unsigned long long> head(std::vector<unsigned long long>{0xffffffffull});
  Array<int> next(128), popped(std::vector<int>(128, 0));
  stack<<<4, 32>>>(head, next, popped);
  MUST(popped.host() == std::vector<int>(128, 1) && unsigned(head.host()[0]) == ~0u);
  Array<int> slots(SLOTS), full(std::vector<int>(SLOTS, 0)), sums(1);
  ring<<<2, 32>>>(slots, full, sums, 20);
  MUST(sums.host()[0] == 19 * 20 * 39 / 6);
  Array<int> counter(std::vector<int>{0}), done(std::vector<int>(100, 0));
  persistent<<<3, 64>>>(counter, done, 100);
  for (int i = 0; i < 100; ++i) MUST(done.host()[i] == i % 32);
  std::printf("lock, stack, ring and counter agree\n");
}
