// A prefix sum at the speed of memory: large tiles, and a warp that looks back at 32 blocks at a time.
//
// scan_look_back has 128 elements per block, and one thread that asks one block after the other. Here a block has 4096:
// they exchange a thirty-second part of that, and most of them find a prefix at the first look.
// A lane loads 16 bytes; a warp scans 128 elements per round, and carries their sum into the next round.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

constexpr int THREADS = 256, WARPS = THREADS / 32, ROUNDS = 4, TILE = THREADS * ROUNDS * 4;  // elements of a block
constexpr unsigned ALL = 0xffffffffu;
enum Status : unsigned { NOTHING, TOTAL, PREFIX };
using State = unsigned long long;  // status and value in one word: nobody sees one without the other

__device__ State packed(Status status, int value) { return State(status) << 32 | unsigned(value); }

__device__ State look(const State *state) {
  State found;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(state) : "memory");
  return found;
}

__device__ void publish(State *state, State value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(state), "l"(value) : "memory");
}

__device__ int warp_scan(int value) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(ALL, value, distance);
    if (threadIdx.x % 32 >= distance) value += below;
  }
  return value;
}

// What a whole warp finds before `block`: the sum of all elements of the blocks before it.
__device__ int look_back(const State *states, int block) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int end = block;; end -= 32) {
    const int other = end - 1 - lane;  // lane 0 has the nearest
    State state = packed(PREFIX, 0);   // before the first block there is nothing
    while (other >= 0 && (state = look(&states[other])) >> 32 == NOTHING);
    __syncwarp();
    const unsigned prefixes = __ballot_sync(ALL, state >> 32 == PREFIX);
    const int nearest = prefixes ? __ffs(prefixes) - 1 : 31;
    before += __reduce_add_sync(ALL, lane <= nearest ? unsigned(state) : 0u);
    if (prefixes) return before;
  }
}

__global__ void __launch_bounds__(THREADS) scan(const int *in, int *out, State *states, unsigned *counter, int n) {
  __shared__ int warp_totals[WARPS], before_block;
  __shared__ unsigned number;
  if (threadIdx.x == 0) number = atomicAdd(counter, 1u);  // so that whoever is waited for has started
  __syncthreads();
  const int block = number, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = block * TILE + warp * (TILE / WARPS) + lane * 4;  // of the lane's elements in round 0

  // 1. Each warp scans its share, a round at a time.
  int4 x[ROUNDS];
  int carry = 0;
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    const int i = first + round * 128;
    const auto at = [&](int k) { return i + k < n ? in[i + k] : 0; };
    x[round] = i + 3 < n ? *reinterpret_cast<const int4 *>(in + i) : make_int4(at(0), at(1), at(2), at(3));
  }
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    int4 &v = x[round];
    v.y += v.x, v.z += v.y, v.w += v.z;
    const int inclusive = warp_scan(v.w), before = carry + inclusive - v.w;
    v.x += before, v.y += before, v.z += before, v.w += before;
    carry += __shfl_sync(ALL, inclusive, 31);
  }
  if (lane == 0) warp_totals[warp] = carry;
  __syncthreads();  // the totals of all warps are there

  // 2. The first warp publishes the block's total, looks back, and publishes the prefix.
  if (warp == 0) {
    const int total = __reduce_add_sync(ALL, unsigned(lane < WARPS ? warp_totals[lane] : 0));
    if (lane == 0) publish(&states[block], packed(block ? TOTAL : PREFIX, total));
    const int before = look_back(states, block);
    if (lane == 0) {
      if (block) publish(&states[block], packed(PREFIX, before + total));
      before_block = before;
    }
  }
  __syncthreads();  // the prefix of all blocks before this one is there

  // 3. What came before, in other blocks and in other warps, is added.
  int before = before_block;
  for (int w = 0; w < warp; ++w) before += warp_totals[w];
#pragma unroll
  for (int round = 0; round < ROUNDS; ++round) {
    const int i = first + round * 128;
    const int values[] = {x[round].x + before, x[round].y + before, x[round].z + before, x[round].w + before};
    if (i + 3 < n) *reinterpret_cast<int4 *>(out + i) = make_int4(values[0], values[1], values[2], values[3]);
    for (int k = 0; i + 3 >= n && k < 4; ++k)
      if (i + k < n) out[i + k] = values[k];
  }
}

int main() {
  const int n = 300'002, blocks = (n + TILE - 1) / TILE;
  std::vector<int> in(n), out(n);
  for (int i = 0; i < n; ++i) in[i] = i % 11 - 4;
  int *d_in, *d_out;
  State *states;
  unsigned *counter;
  cudaMalloc(&d_in, n * sizeof(int));
  cudaMalloc(&d_out, n * sizeof(int));
  cudaMalloc(&states, blocks * sizeof *states);
  cudaMalloc(&counter, sizeof *counter);
  cudaMemcpy(d_in, in.data(), n * sizeof(int), cudaMemcpyHostToDevice);
  cudaMemset(states, 0, blocks * sizeof *states);
  cudaMemset(counter, 0, sizeof *counter);
  scan<<<blocks, THREADS>>>(d_in, d_out, states, counter, n);
  int wrong = cudaMemcpy(out.data(), d_out, n * sizeof(int), cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int i = 0, sum = 0; i < n; ++i) wrong += out[i] != (sum += in[i]);
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  for (void *pointer : {(void *)d_in, (void *)d_out, (void *)states, (void *)counter}) cudaFree(pointer);
  return wrong != 0;
}
