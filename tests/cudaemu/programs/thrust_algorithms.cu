// Thrust: sorts, scans and reductions by key, operations of sets, fancy iterators, and vectors that copy themselves.
// Run: cudaemu --flags=--extended-lambda thrust_algorithms.cu
// Prints: 13 algorithms of Thrust agree
#include <thrust/binary_search.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/host_vector.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/permutation_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>
#include <thrust/tuple.h>

#include <algorithm>
#include <map>
#include <vector>

#include "check.h"

struct BySecond {
  template <typename A, typename B>
  __host__ __device__ bool operator()(const A &a, const B &b) const {
    const int x = thrust::get<1>(a), y = thrust::get<1>(b);
    return x != y ? x < y : int(thrust::get<0>(a)) < int(thrust::get<0>(b));
  }
};

int main() {
  const int n = 2000;
  thrust::host_vector<int> keys(n), values(n);
  Random random;
  for (int i = 0; i < n; ++i) keys[i] = random.below(50), values[i] = random.below(1000);
  thrust::device_vector<int> k = keys, v = values, out(n), out_keys(n);

  thrust::stable_sort_by_key(k.begin(), k.end(), v.begin());
  std::map<int, long> sums;
  for (int i = 0; i < n; ++i) sums[keys[i]] += values[i];
  const auto ends = thrust::reduce_by_key(k.begin(), k.end(), v.begin(), out_keys.begin(), out.begin());
  MUST(size_t(ends.first - out_keys.begin()) == sums.size());
  int at = 0;
  for (const auto &[key, sum] : sums) {
    MUST(out_keys[at] == key && out[at] == sum);
    ++at;
  }

  const double squares = thrust::transform_reduce(
      v.begin(), v.end(), [] __host__ __device__(int x) { return double(x) * x; }, 0.0, ::cuda::std::plus<double>());
  double expected = 0;
  for (int x : values) expected += double(x) * x;
  MUST(squares == expected);

  thrust::inclusive_scan_by_key(k.begin(), k.end(), v.begin(), out.begin());
  const thrust::host_vector<int> sorted_keys = k, sorted_values = v, scanned = out;
  for (int i = 0, sum = 0; i < n; ++i) {
    sum = i && sorted_keys[i] == sorted_keys[i - 1] ? sum + sorted_values[i] : sorted_values[i];
    MUST(scanned[i] == sum);
  }

  const auto zipped = thrust::make_zip_iterator(k.begin(), v.begin());
  thrust::sort(zipped, zipped + n, BySecond());
  MUST(thrust::is_sorted(v.begin(), v.end()));

  const auto extremes = thrust::minmax_element(v.begin(), v.end());
  MUST(*extremes.first == *std::min_element(values.begin(), values.end()));
  MUST(*extremes.second == *std::max_element(values.begin(), values.end()));

  const auto middle =
      thrust::stable_partition(out.begin(), out.end(), [] __host__ __device__(int x) { return x % 3 == 0; });
  MUST(middle - out.begin() == std::count_if(scanned.begin(), scanned.end(), [](int x) { return x % 3 == 0; }));

  const auto counting = thrust::make_counting_iterator(0);
  const auto reversed = thrust::make_permutation_iterator(
      v.begin(), thrust::make_transform_iterator(counting, [n] __host__ __device__(int i) { return n - 1 - i; }));
  const long product = thrust::inner_product(thrust::device, counting, counting + n, reversed, 0l);
  const thrust::host_vector<int> ordered = v;
  long right = 0;
  for (int i = 0; i < n; ++i) right += long(i) * ordered[n - 1 - i];
  MUST(product == right);

  thrust::device_vector<int> places(50);
  thrust::lower_bound(v.begin(), v.end(), counting, counting + 50, places.begin());
  for (int i = 0; i < 50; ++i) MUST(places[i] == std::lower_bound(ordered.begin(), ordered.end(), i) - ordered.begin());

  thrust::device_vector<int> twos(n), threes(n), both(2 * n);
  thrust::sequence(twos.begin(), twos.end(), 0, 2);
  thrust::sequence(threes.begin(), threes.end(), 0, 3);
  const thrust::host_vector<int> a = twos, b = threes;
  std::vector<int> set(2 * n);
  const auto same = [&](auto end, auto set_end) {
    set.resize(set_end - set.begin());
    const bool equal = thrust::host_vector<int>(both.begin(), end) == thrust::host_vector<int>(set.begin(), set.end());
    set.resize(2 * n);
    return equal;
  };
  const auto to = both.begin();
  MUST(same(thrust::set_intersection(twos.begin(), twos.end(), threes.begin(), threes.end(), to),
            std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), set.begin())));
  MUST(same(thrust::set_union(twos.begin(), twos.end(), threes.begin(), threes.end(), to),
            std::set_union(a.begin(), a.end(), b.begin(), b.end(), set.begin())));
  MUST(same(thrust::set_difference(twos.begin(), twos.end(), threes.begin(), threes.end(), to),
            std::set_difference(a.begin(), a.end(), b.begin(), b.end(), set.begin())));
  MUST(same(thrust::set_symmetric_difference(twos.begin(), twos.end(), threes.begin(), threes.end(), to),
            std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), set.begin())));
  std::printf("13 algorithms of Thrust agree\n");
}
