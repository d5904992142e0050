// CUB's algorithms for a whole device: histograms, segmented sums and sorts, run lengths, selections, scans by key,
// merges.
// Run: cudaemu cub_device.cu
// Prints: 9 algorithms of cub::Device agree
#include <algorithm>
#include <cub/cub.cuh>
#include <map>
#include <numeric>

#include "check.h"

// Calls it twice: for the size of the memory that it needs, and with it.
template <typename Algorithm>
void with_room(Algorithm algorithm) {
  size_t bytes = 0;
  CUDA(algorithm(nullptr, bytes));
  Array<char> room(bytes);
  CUDA(algorithm(room.data, bytes));
}

struct Even {
  __host__ __device__ bool operator()(int x) const { return x % 2 == 0; }
};

int main() {
  const int n = 3000, segments = 5;
  const std::vector<int> offsets = {0, 7, 7, 900, 2200, n};
  std::vector<int> in(n), runs(n);
  Random random;
  for (int i = 0; i < n; ++i) in[i] = random.below(1000), runs[i] = i / 5 * 7 % 11 + i / 90 % 2;
  Array<int> data(in), repeated(runs), ends(offsets), out(n), out2(n), count(1);

  Array<int> bins(10);
  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceHistogram::HistogramEven(room, bytes, data.data, bins.data, 11, 0, 1000, n);
  });
  std::vector<int> expected(10, 0);
  for (int x : in) ++expected[x / 100];
  MUST(bins.host() == expected);

  Array<int> sums(segments);
  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceSegmentedReduce::Sum(room, bytes, data.data, sums.data, segments, ends.data, ends.data + 1);
  });
  for (int s = 0; s < segments; ++s)
    MUST(sums.host()[s] == std::accumulate(in.begin() + offsets[s], in.begin() + offsets[s + 1], 0));

  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceSegmentedSort::SortKeys(room, bytes, data.data, out.data, n, segments, ends.data, ends.data + 1);
  });
  std::vector<int> sorted = in;
  for (int s = 0; s < segments; ++s) std::sort(sorted.begin() + offsets[s], sorted.begin() + offsets[s + 1]);
  MUST(out.host() == sorted);

  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceRunLengthEncode::Encode(room, bytes, repeated.data, out.data, out2.data, count.data, n);
  });
  const int found = count.host()[0];
  const auto lengths = out2.host(), values = out.host();
  std::vector<int> decoded;
  for (int r = 0; r < found; ++r) decoded.insert(decoded.end(), lengths[r], values[r]);
  MUST(decoded == runs);

  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceSelect::If(room, bytes, data.data, out.data, count.data, n, Even());
  });
  std::vector<int> even;
  std::copy_if(in.begin(), in.end(), std::back_inserter(even), Even());
  auto got = out.host();
  got.resize(count.host()[0]);
  MUST(got == even);

  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceScan::ExclusiveSumByKey(room, bytes, repeated.data, data.data, out.data, n);
  });
  got = out.host();
  for (int i = 0, sum = 0; i < n; sum += in[i++]) {
    if (i && runs[i] != runs[i - 1]) sum = 0;
    MUST(got[i] == sum);
  }

  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceReduce::ReduceByKey(
        room, bytes, repeated.data, out.data, data.data, out2.data, count.data, ::cuda::maximum<>(), n);
  });
  const auto most = out2.host();
  for (int r = 0, at = 0; r < found; at += lengths[r++])
    MUST(most[r] == *std::max_element(in.begin() + at, in.begin() + at + lengths[r]));

  CUDA(cudaMemcpy(out, data, n * sizeof(int), cudaMemcpyDeviceToDevice));
  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceMergeSort::StableSortKeys(room, bytes, out.data, n, ::cuda::std::greater<int>());
  });
  sorted = in;
  std::sort(sorted.begin(), sorted.end(), std::greater<int>());
  MUST(out.host() == sorted);

  cub::KeyValuePair<int, int> least;
  Array<cub::KeyValuePair<int, int>> smallest(1);
  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceReduce::ArgMin(room, bytes, data.data, smallest.data, n);
  });
  least = smallest.host()[0];
  MUST(least.key == std::min_element(in.begin(), in.end()) - in.begin() && least.value == in[least.key]);
  std::printf("9 algorithms of cub::Device agree\n");
}
