// Cooperative groups: labelled and binary partitions, tiles of tiles, scans and reductions over each, several warps as
// one tile, invoke_one.
// Run: cudaemu --flags=-std=c++17 group_partitions.cu
// Prints: groups of 5 kinds agree
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void labelled(const int *keys, const int *values, int *sums, int *ranks, int *before) {
  const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  const int i = cg::this_grid().thread_rank();
  const auto same = cg::labeled_partition(warp, keys[i]);
  sums[i] = cg::reduce(same, values[i], cg::plus<int>());
  ranks[i] = same.thread_rank();
  before[i] = cg::exclusive_scan(same, values[i]);
}

__global__ void binary(const int *values, int *most, int *counts) {
  const auto tile = cg::tiled_partition<16>(cg::tiled_partition<32>(cg::this_thread_block()));
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const auto half = cg::binary_partition(tile, values[i] % 2 == 1);
  most[i] = cg::reduce(half, values[i], cg::greater<int>());
  counts[i] = half.size() + 100 * half.any(values[i] > 90) + 1000 * half.all(values[i] > 5);
}

__global__ void several_warps(const int *values, int *sums, int *inclusive) {
  __shared__ cg::block_tile_memory<256> memory;
  const auto block = cg::this_thread_block(memory);
  const auto tile = cg::tiled_partition<64>(block);
  const int i = block.thread_rank();
  sums[i] = cg::reduce(tile, values[i], cg::plus<int>()) + tile.meta_group_rank() * 100000;
  inclusive[i] = cg::inclusive_scan(tile, values[i], cg::plus<int>());
}

__global__ void active_lanes(int *counters, int *order) {
  if (threadIdx.x % 3 == 0) {
    const auto active = cg::coalesced_threads();
    const int base = cg::invoke_one_broadcast(active, [&] { return atomicAdd(counters, int(active.size())); });
    order[base + active.thread_rank()] = threadIdx.x;
    cg::invoke_one(active, [&] { atomicAdd(counters + 1, 1); });
  }
}

__global__ void shuffled(const int *values, int *out) {
  const auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  const int v = values[threadIdx.x];
  out[threadIdx.x] = tile.shfl(v, 3) + 2 * tile.shfl_down(v, 2) + 3 * tile.shfl_xor(v, 5) + 5 * tile.match_any(v % 3) +
                     tile.meta_group_size() * 1000 + tile.ballot(v & 1);
}

int main() {
  const int n = 256;
  std::vector<int> keys(n), values(n);
  Random random;
  for (int i = 0; i < n; ++i) keys[i] = random.below(4), values[i] = random.below(100);
  Array<int> k(keys), v(values), a(n), b(n), c(n);
  labelled<<<2, 128>>>(k, v, a, b, c);
  auto x = a.host(), y = b.host(), z = c.host();
  for (int i = 0; i < n; ++i) {
    int sum = 0, before = 0, rank = 0;
    for (int j = i / 32 * 32; j < i / 32 * 32 + 32; ++j)
      if (keys[j] == keys[i]) sum += values[j], before += j < i ? values[j] : 0, rank += j < i;
    MUST(x[i] == sum && y[i] == rank && z[i] == before);
  }
  binary<<<2, 128>>>(v, a, b);
  x = a.host(), y = b.host();
  for (int i = 0; i < n; ++i) {
    int most = 0, size = 0, any = 0, all = 1;
    for (int j = i / 16 * 16; j < i / 16 * 16 + 16; ++j)
      if (values[j] % 2 == values[i] % 2)
        most = std::max(most, values[j]), ++size, any |= values[j] > 90, all &= values[j] > 5;
    MUST(x[i] == most && y[i] == size + 100 * any + 1000 * all);
  }
  several_warps<<<1, n>>>(v, a, b);
  x = a.host(), y = b.host();
  for (int i = 0; i < n; ++i) {
    int sum = 0, until = 0;
    for (int j = i / 64 * 64; j < i / 64 * 64 + 64; ++j) sum += values[j], until += j <= i ? values[j] : 0;
    MUST(x[i] == sum + i / 64 * 100000 && y[i] == until);
  }
  Array<int> counters(std::vector<int>(2, 0)), order(n);
  active_lanes<<<1, 96>>>(counters, order);
  MUST(counters.host()[0] == 32 && counters.host()[1] == 3);
  shuffled<<<1, n>>>(v, a);
  x = a.host();
  for (int i = 0; i < n; ++i) {
    const int t = i % 8, first = i - t;
    int match = 0, ballot = 0;
    for (int j = 0; j < 8; ++j)
      match |= (values[first + j] % 3 == values[i] % 3) << j, ballot |= (values[first + j] & 1) << j;
    MUST(x[i] == values[first + 3] + 2 * values[t + 2 < 8 ? i + 2 : i] + 3 * values[first + (t ^ 5)] + 5 * match +
                     32000 + ballot);
  }
  std::printf("groups of 5 kinds agree\n");
}
