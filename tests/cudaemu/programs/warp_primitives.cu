// What lanes of a warp can do together: shuffles of every type, votes, matches and reductions, also of parts of the
// warp.
// Run: cudaemu warp_primitives.cu
// Prints: 20 exchanges in 3 warps agree
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

constexpr int KINDS = 20;

__global__ void device(const int *in, long long *out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, x = in[i];
  const unsigned all = ~0u;
  int at = 0, same;
  auto put = [&](long long value) { out[at++ * n + i] = value; };
  put(__shfl_sync(all, x, x & 31)), put(__shfl_up_sync(all, x, 3, 8)), put(__shfl_down_sync(all, x, 5, 16));
  put(__shfl_xor_sync(all, x, 9)), put((long long)(__shfl_sync(all, double(x) * (1ll << 40), 31 - lane)));
  put(__shfl_down_sync(all, (long long)x << 35, 1)),
      put((long long)__half2float(__shfl_xor_sync(all, __int2half_rn(x), 1)));
  put((long long)__high2float(__shfl_sync(all, __floats2half2_rn(1, x), 4)));
  put((long long)__bfloat162float(__shfl_up_sync(all, __int2bfloat16_rn(x), 1)));
  put((long long)__shfl_sync(all, float(x), lane + 33)), put(__ballot_sync(all, x > 50));
  put(__any_sync(all, x == 7) + 2 * __all_sync(all, x < 100)), put(__match_any_sync(all, x % 5));
  put(__match_all_sync(all, x / 1000, &same) + 2ll * same), put(__reduce_add_sync(all, unsigned(x)));
  put(__reduce_max_sync(all, x - 60)), put(__reduce_xor_sync(all, unsigned(x))),
      put(__match_any_sync(all, (long long)(x % 3) << 40));
  if (lane % 2) {  // half of the warp
    const unsigned half = __activemask();
    put(__reduce_min_sync(0xaaaaaaaau, x) + (half == 0xaaaaaaaau ? 0 : 1000));
    put(__popc(__ballot_sync(0xaaaaaaaau, x & 1)));
  } else {
    put(__shfl_sync(0x55555555u, x, 2));
    put(__reduce_or_sync(0x55555555u, unsigned(x)));
  }
}

int main() {
  const int n = 96;
  std::vector<int> in(n);
  Random random;
  for (int &x : in) x = random.below(100);
  Array<int> data(in);
  Array<long long> out(KINDS * n);
  device<<<1, n>>>(data, out, n);
  const auto got = out.host();
  for (int i = 0; i < n; ++i) {
    const int *w = &in[i / 32 * 32], lane = i % 32, x = in[i];
    long long ballot = 0, five = 0, three = 0, sum = 0, most = -100, bits = 0, least = 1000, odd = 0, either = 0;
    bool seven = false;
    for (int l = 0; l < 32; ++l) {
      ballot |= (long long)(w[l] > 50) << l, five |= (long long)(w[l] % 5 == x % 5) << l;
      three |= (long long)(w[l] % 3 == x % 3) << l, sum += w[l],
          most = std::max<long long>(most, w[l] - 60), bits ^= w[l];
      seven |= w[l] == 7;
      if (l % 2)
        least = std::min<long long>(least, w[l]), odd += w[l] & 1;
      else
        either |= w[l];
    }
    const long long expected[KINDS] = {
        w[x & 31],
        lane % 8 >= 3 ? w[lane - 3] : x,
        lane % 16 + 5 < 16 ? w[lane + 5] : x,
        w[lane ^ 9],
        (long long)(double(w[31 - lane]) * (1ll << 40)),
        (long long)(lane < 31 ? w[lane + 1] : x) << 35,
        w[lane ^ 1],
        w[4],
        lane ? w[lane - 1] : x,
        w[(lane + 1) % 32],
        ballot,
        seven + 2,
        five,
        0xffffffffll + 2,
        sum,
        most,
        bits,
        three,
        lane % 2 ? least : w[2],
        lane % 2 ? odd : either};
    for (int k = 0; k < KINDS; ++k)
      if (got[k * n + i] != expected[k])
        return std::printf("exchange %d of thread %d: %lld, not %lld\n", k, i, got[k * n + i], expected[k]), 1;
  }
  std::printf("%d exchanges in %d warps agree\n", KINDS, n / 32);
}
