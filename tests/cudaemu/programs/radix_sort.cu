// Radix sort of floats, 4 bits at a time: counts per block by votes, one scan of all counts, then a stable scatter.
// Run: cudaemu radix_sort.cu
// Prints: 2048 floats sorted in 8 passes
#include <algorithm>

#include "check.h"

constexpr int THREADS = 128, DIGITS = 16;

__host__ __device__ unsigned ordered(unsigned bits) { return bits & 0x80000000u ? ~bits : bits | 0x80000000u; }

__global__ void to_keys(const float *in, unsigned *keys) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  keys[i] = ordered(__float_as_uint(in[i]));
}

// Of each digit: how many this block has, and how many of the same digit stand before each key.
__global__ void count(const unsigned *keys, int shift, int *counts, int *ranks) {
  __shared__ int by_warp[THREADS / 32][DIGITS];
  const int i = blockIdx.x * THREADS + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int digit = keys[i] >> shift & 15;
  const unsigned same = __match_any_sync(~0u, digit);
  if (lane < DIGITS) by_warp[warp][lane] = 0;
  __syncwarp();
  if ((same & ((1u << lane) - 1)) == 0) by_warp[warp][digit] = __popc(same);
  __syncthreads();
  int rank = __popc(same & ((1u << lane) - 1));
  for (int w = 0; w < warp; ++w) rank += by_warp[w][digit];
  ranks[i] = rank;
  if (threadIdx.x < DIGITS) {
    int sum = 0;
    for (int w = 0; w < THREADS / 32; ++w) sum += by_warp[w][threadIdx.x];
    counts[threadIdx.x * gridDim.x + blockIdx.x] = sum;
  }
}

__global__ void scan(int *counts, int n) {  // one block, exclusive
  __shared__ int s[256];
  const int t = threadIdx.x, mine = t < n ? counts[t] : 0;
  s[t] = mine;
  for (int step = 1; step < 256; step *= 2) {
    __syncthreads();
    const int before = t >= step ? s[t - step] : 0;
    __syncthreads();
    s[t] += before;
  }
  if (t < n) counts[t] = s[t] - mine;
}

__global__ void scatter(const unsigned *in, unsigned *out, int shift, const int *offsets, const int *ranks) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  out[offsets[(in[i] >> shift & 15) * gridDim.x + blockIdx.x] + ranks[i]] = in[i];
}

__global__ void to_floats(const unsigned *keys, float *out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = __uint_as_float(keys[i] & 0x80000000u ? keys[i] & 0x7fffffffu : ~keys[i]);
}

int main() {
  const int n = 2048, blocks = n / THREADS;
  std::vector<float> in(n);
  Random random;
  for (float &x : in) x = (random.unit() - 0.5f) * std::exp2(float(random.below(60) - 30));
  Array<float> data(in), out(n);
  Array<unsigned> a(n), b(n);
  Array<int> counts(DIGITS * blocks), ranks(n);
  unsigned *from = a, *to = b;
  to_keys<<<blocks, THREADS>>>(data, from);
  for (int shift = 0; shift < 32; shift += 4, std::swap(from, to)) {
    count<<<blocks, THREADS>>>(from, shift, counts, ranks);
    scan<<<1, 256>>>(counts, DIGITS * blocks);
    scatter<<<blocks, THREADS>>>(from, to, shift, counts, ranks);
  }
  to_floats<<<blocks, THREADS>>>(from, out);
  std::sort(in.begin(), in.end());
  MUST(out.host() == in);
  std::printf("%d floats sorted in 8 passes\n", n);
}
