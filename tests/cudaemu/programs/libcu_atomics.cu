// libcu++: cuda::atomic and atomic_ref of several scopes and types, with waiting, flags, semaphores and a latch.
// Run: cudaemu libcu_atomics.cu
// Prints: atomics, flag, semaphore and latch agree
#include <cuda/atomic>
#include <cuda/latch>
#include <cuda/semaphore>

#include "check.h"

struct Shared {
  cuda::atomic<int, cuda::thread_scope_device> sum{0}, most{-1}, ready{0};
  cuda::atomic<unsigned long long, cuda::thread_scope_system> bits{0};
  cuda::atomic<float, cuda::thread_scope_device> real{0};
  cuda::atomic<double, cuda::thread_scope_device> product{1};
  cuda::atomic<short, cuda::thread_scope_device> narrow{0};
  cuda::std::atomic_flag locked;
  cuda::counting_semaphore<cuda::thread_scope_device, 4> slots{2};
  int plain = 0, under_lock = 0, message = 0, seen = 0, inside = 0, most_inside = 0;
};

__global__ void work(Shared *s, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  s->sum.fetch_add(i, cuda::std::memory_order_relaxed);
  s->most.fetch_max(i * 7 % n);
  s->bits.fetch_or(1ull << i % 64);
  s->real.fetch_add(0.25f);
  s->narrow += 1;
  double seen = s->product.load();
  while (!s->product.compare_exchange_weak(seen, seen * 1.0625)) {
  }
  cuda::atomic_ref<int, cuda::thread_scope_device>(s->plain)++;
  while (s->locked.test_and_set(cuda::std::memory_order_acquire)) {
  }
  s->under_lock += 2;
  s->locked.clear(cuda::std::memory_order_release);
}

// One block writes a message and says so; the other sleeps until then.
__global__ void message(Shared *s) {
  if (threadIdx.x) return;
  if (blockIdx.x == 0) {
    s->ready.wait(0);
    s->seen = s->message;
  } else {
    s->message = 42;
    s->ready.store(1, cuda::std::memory_order_release);
    s->ready.notify_all();
  }
}

__global__ void at_most_two(Shared *s) {
  if (threadIdx.x) return;
  s->slots.acquire();
  cuda::atomic_ref<int, cuda::thread_scope_device> inside(s->inside), most(s->most_inside);
  most.fetch_max(inside.fetch_add(1) + 1);
  inside.fetch_sub(1);
  s->slots.release();
}

__global__ void with_a_latch(int *out) {
  __shared__ cuda::latch<cuda::thread_scope_block> *latch;
  __shared__ alignas(
      cuda::latch<cuda::thread_scope_block>) unsigned char room[sizeof(cuda::latch<cuda::thread_scope_block>)];
  __shared__ int values[64];
  if (threadIdx.x == 0) latch = new (room) cuda::latch<cuda::thread_scope_block>(64);
  __syncthreads();
  values[threadIdx.x] = threadIdx.x * threadIdx.x;
  latch->arrive_and_wait();
  out[threadIdx.x] = values[63 - threadIdx.x];
}

int main() {
  const int n = 256;
  Shared *s;
  CUDA(cudaMallocManaged(&s, sizeof *s));
  new (s) Shared;
  work<<<4, 64>>>(s, n);
  message<<<2, 32>>>(s);
  at_most_two<<<8, 32>>>(s);
  CUDA(cudaDeviceSynchronize());
  double product = 1;
  for (int i = 0; i < n; ++i) product *= 1.0625;
  MUST(s->sum == n * (n - 1) / 2 && s->most == n - 1 && s->bits.load() == ~0ull);
  MUST(s->real == n / 4 && s->product == product && s->narrow == n && s->plain == n && s->under_lock == 2 * n);
  MUST(s->seen == 42 && s->most_inside >= 1 && s->most_inside <= 2);
  Array<int> out(64);
  with_a_latch<<<1, 64>>>(out);
  const auto got = out.host();
  for (int i = 0; i < 64; ++i) MUST(got[i] == (63 - i) * (63 - i));
  CUDA(cudaFree(s));
  std::printf("atomics, flag, semaphore and latch agree\n");
}
