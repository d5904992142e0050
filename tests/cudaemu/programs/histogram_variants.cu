// Histograms in four ways: global atomics, shared atomics per warp, votes, and bytes packed four to a word.
// Run: cudaemu histogram_variants.cu
// Prints: 4 histograms of 8192 bytes agree
#include "check.h"

constexpr int BINS = 64;

__global__ void global_atomics(const unsigned char *in, int n, int *bins) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(bins + in[i], 1);
}

__global__ void per_warp(const uchar4 *in, int n, int *bins) {
  extern __shared__ int counts[];  // [warp][bin]
  int *const mine = counts + threadIdx.x / 32 * BINS;
  for (int b = threadIdx.x % 32; b < BINS; b += 32) mine[b] = 0;
  __syncwarp();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += gridDim.x * blockDim.x) {
    const uchar4 four = in[i];
    atomicAdd(mine + four.x, 1), atomicAdd(mine + four.y, 1), atomicAdd(mine + four.z, 1), atomicAdd(mine + four.w, 1);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) {
    int sum = 0;
    for (int w = 0; w < int(blockDim.x) / 32; ++w) sum += counts[w * BINS + b];
    atomicAdd(bins + b, sum);
  }
}

// Lane l counts bins l and l + 32: six ballots tell each lane who has its bin.
__global__ void by_votes(const unsigned char *in, int n, int *bins) {
  const int lane = threadIdx.x;
  int low = 0, high = 0;
  for (int i = blockIdx.x * 32 + lane; i < n; i += gridDim.x * 32) {
    const int value = in[i];
    unsigned same = ~0u;
    for (int bit = 0; bit < 5; ++bit) {
      const unsigned set = __ballot_sync(~0u, value >> bit & 1);
      same &= lane >> bit & 1 ? set : ~set;
    }
    const unsigned upper = __ballot_sync(~0u, value >= 32);
    low += __popc(same & ~upper), high += __popc(same & upper);
  }
  atomicAdd(bins + lane, low), atomicAdd(bins + lane + 32, high);
}

// Each thread has 64 counters of 8 bits of its own, four in a word: at most 255 values per thread.
__global__ void packed(const unsigned char *in, int each, int *bins) {
  __shared__ unsigned counts[BINS / 4][64];
  const int t = threadIdx.x;
  for (int b = 0; b < BINS / 4; ++b) counts[b][t] = 0;
  for (int i = 0; i < each; ++i) {
    const int value = in[(blockIdx.x * each + i) * 64 + t];
    reinterpret_cast<unsigned char *>(&counts[value / 4][t])[value % 4] += 1;
  }
  __syncthreads();
  int sum = 0;
  for (int k = 0; k < 64; ++k) sum += counts[t / 4][k] >> 8 * (t % 4) & 255;
  atomicAdd(bins + t, sum);
}

int main() {
  const int n = 8192;
  std::vector<unsigned char> in(n);
  std::vector<int> expected(BINS, 0), zeros(BINS, 0);
  Random random;
  for (auto &x : in) x = static_cast<unsigned char>(random.below(8) * random.below(9)), ++expected[x];
  Array<unsigned char> data(in);
  Array<int> a(zeros), b(zeros), c(zeros), d(zeros);
  global_atomics<<<4, 128>>>(data, n, a);
  per_warp<<<4, 128, 4 * BINS * sizeof(int)>>>(reinterpret_cast<uchar4 *>(data.data), n, b);
  by_votes<<<4, 32>>>(data, n, c);
  packed<<<2, 64>>>(data, n / 128, d);
  for (const Array<int> *each : {&a, &b, &c, &d}) MUST(each->host() == expected);
  std::printf("4 histograms of %d bytes agree\n", n);
}
