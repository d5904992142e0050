// CUB's algorithms within a block and a warp: sorts, scans, exchanges, histograms, run lengths, differences.
// Run: cudaemu cub_block.cu
// Prints: 8 algorithms of cub::Block and cub::Warp agree
#include <algorithm>
#include <cub/cub.cuh>
#include <numeric>

#include "check.h"

constexpr int THREADS = 64, ITEMS = 4, N = THREADS * ITEMS;

struct Less {
  __device__ bool operator()(int a, int b) const { return a < b; }
};

__global__ void sorts(const int *in, int *radix, int *values, int *merged, int *warp_merged) {
  using Load = cub::BlockLoad<int, THREADS, ITEMS, cub::BLOCK_LOAD_TRANSPOSE>;
  using Radix = cub::BlockRadixSort<int, THREADS, ITEMS, int>;
  using Merge = cub::BlockMergeSort<int, THREADS, ITEMS>;
  using WarpMerge = cub::WarpMergeSort<int, ITEMS>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Radix::TempStorage radix;
    typename Merge::TempStorage merge;
    typename WarpMerge::TempStorage warp[THREADS / 32];
  } room;
  int keys[ITEMS], items[ITEMS], copy[ITEMS];
  Load(room.load).Load(in, keys);
  __syncthreads();
  for (int k = 0; k < ITEMS; ++k) copy[k] = keys[k], items[k] = threadIdx.x * ITEMS + k;
  Radix(room.radix).SortDescending(keys, items);
  __syncthreads();
  cub::StoreDirectBlocked(threadIdx.x, radix, keys);
  cub::StoreDirectBlocked(threadIdx.x, values, items);
  for (int k = 0; k < ITEMS; ++k) keys[k] = copy[k];
  Merge(room.merge).Sort(keys, Less());
  __syncthreads();
  cub::StoreDirectBlocked(threadIdx.x, merged, keys);
  WarpMerge(room.warp[threadIdx.x / 32]).Sort(copy, Less());
  cub::StoreDirectBlocked(threadIdx.x, warp_merged, copy);
}

__global__ void others(const int *in, int *scanned, int *total, int *striped, unsigned *bins, int *flags, int *steps) {
  using Scan = cub::BlockScan<int, THREADS, cub::BLOCK_SCAN_WARP_SCANS>;
  using Exchange = cub::BlockExchange<int, THREADS, ITEMS>;
  using Histogram = cub::BlockHistogram<unsigned char, THREADS, ITEMS, 16>;
  using Heads = cub::BlockDiscontinuity<int, THREADS>;
  using Difference = cub::BlockAdjacentDifference<int, THREADS>;
  __shared__ union {
    typename Scan::TempStorage scan;
    typename Exchange::TempStorage exchange;
    typename Histogram::TempStorage histogram;
    typename Heads::TempStorage heads;
    typename Difference::TempStorage difference;
  } room;
  int items[ITEMS], out[ITEMS], sum;
  unsigned char small[ITEMS];
  cub::LoadDirectBlocked(threadIdx.x, in, items);
  Scan(room.scan).ExclusiveSum(items, out, sum);
  cub::StoreDirectBlocked(threadIdx.x, scanned, out);
  if (threadIdx.x == 0) *total = sum;
  __syncthreads();
  Exchange(room.exchange).BlockedToStriped(items, out);
  for (int k = 0; k < ITEMS; ++k) striped[threadIdx.x * ITEMS + k] = out[k];
  for (int k = 0; k < ITEMS; ++k) small[k] = items[k] % 16;
  __syncthreads();
  Histogram(room.histogram).Histogram(small, bins);
  __syncthreads();
  Heads(room.heads).FlagHeads(out, items, [](int a, int b) { return a / 500 != b / 500; });
  cub::StoreDirectBlocked(threadIdx.x, flags, out);
  __syncthreads();
  Difference(room.difference).SubtractLeft(items, out, [](int a, int b) { return a - b; });
  cub::StoreDirectBlocked(threadIdx.x, steps, out);
}

int main() {
  std::vector<int> in(N);
  Random random;
  for (int &x : in) x = random.below(1000);
  Array<int> data(in), a(N), b(N), c(N), d(N), total(1), flags(N), steps(N);
  sorts<<<1, THREADS>>>(data, a, b, c, d);
  std::vector<int> order(N), sorted = in;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return in[i] > in[j]; });
  std::sort(sorted.begin(), sorted.end());
  MUST(b.host() == order && c.host() == sorted);
  std::reverse(sorted.begin(), sorted.end());
  MUST(a.host() == sorted);
  sorted = in;
  std::sort(sorted.begin(), sorted.begin() + N / 2), std::sort(sorted.begin() + N / 2, sorted.end());
  MUST(d.host() == sorted);
  Array<unsigned> bins(16);
  others<<<1, THREADS>>>(data, a, total, b, bins, flags, steps);
  const auto scanned = a.host(), striped = b.host(), heads = flags.host(), step = steps.host();
  std::vector<unsigned> counts(16, 0);
  for (int i = 0, sum = 0; i < N; sum += in[i++]) {
    ++counts[in[i] % 16];
    MUST(scanned[i] == sum && striped[i] == in[i % ITEMS * THREADS + i / ITEMS]);
    MUST(heads[i] == (i == 0 || in[i] / 500 != in[i - 1] / 500) && step[i] == (i ? in[i] - in[i - 1] : in[i]));
  }
  MUST(total.host()[0] == std::accumulate(in.begin(), in.end(), 0) && bins.host() == counts);
  std::printf("8 algorithms of cub::Block and cub::Warp agree\n");
}
