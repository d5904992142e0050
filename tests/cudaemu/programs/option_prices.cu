// Prices of options three ways: the closed formula with normcdf, a binomial tree in shared memory, and random paths.
// Run: cudaemu option_prices.cu
// Prints: 64 options: formula, tree and paths agree
#include "check.h"

struct Option { float spot, strike, years; };
constexpr float RATE = 0.03f, VOLATILITY = 0.25f;
constexpr int STEPS = 127, PATHS = 256;

__global__ void formula(const Option *options, float2 *prices) {
  const Option o = options[threadIdx.x];
  const float root = sqrtf(o.years),
              d1 = (__logf(o.spot / o.strike) + (RATE + VOLATILITY * VOLATILITY / 2) * o.years) / (VOLATILITY * root);
  const float d2 = d1 - VOLATILITY * root, discounted = o.strike * __expf(-RATE * o.years);
  prices[threadIdx.x] = make_float2(
      o.spot * normcdff(d1) - discounted * normcdff(d2), discounted * normcdff(-d2) - o.spot * normcdff(-d1));
}

__global__ void tree(const Option *options, float *calls) {
  __shared__ double value[STEPS + 2];
  const Option o = options[blockIdx.x];
  const double dt = double(o.years) / STEPS, up = exp(VOLATILITY * sqrt(dt)), grow = exp(RATE * dt);
  const double p = (grow - 1 / up) / (up - 1 / up);
  const int i = threadIdx.x;
  value[i] = fmax(o.spot * pow(up, 2.0 * i - STEPS) - o.strike, 0.0);
  for (int step = STEPS; step > 0; --step) {
    __syncthreads();
    const double next = i < step ? (p * value[i + 1] + (1 - p) * value[i]) / grow : 0;
    __syncthreads();
    if (i < step) value[i] = next;
  }
  if (i == 0) calls[blockIdx.x] = float(value[0]);
}

// A counter goes in, a random number comes out: ten rounds of Philox 2x32.
__device__ float2 normal_pair(unsigned counter, unsigned key) {
  unsigned x = counter, y = 77;
  for (int round = 0; round < 10; ++round, key += 0x9e3779b9u) {
    const unsigned high = __umulhi(x, 0xd256d193u), low = x * 0xd256d193u;
    x = high ^ key ^ y, y = low;
  }
  const float radius = sqrtf(-2 * logf((x + 1.0f) * 2.3283063e-10f));
  float sine, cosine;
  sincosf(6.2831853f * y * 2.3283064e-10f, &sine, &cosine);
  return make_float2(radius * cosine, radius * sine);
}

__global__ void paths(const Option *options, float *calls) {
  const Option o = options[blockIdx.x];
  float sum = 0;
  for (int k = threadIdx.x; k < PATHS; k += 32) {
    const float2 z = normal_pair(k, blockIdx.x);
    const float drift = (RATE - VOLATILITY * VOLATILITY / 2) * o.years, width = VOLATILITY * sqrtf(o.years);
    for (float each : {z.x, -z.x, z.y, -z.y}) sum += fmaxf(o.spot * expf(drift + width * each) - o.strike, 0);
  }
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x == 0) calls[blockIdx.x] = sum / (4 * PATHS) * expf(-RATE * o.years);
}

int main() {
  const int n = 64;
  std::vector<Option> options(n);
  Random random;
  for (Option &o : options) o = {80 + 40 * random.unit(), 80 + 40 * random.unit(), 0.25f + random.unit()};
  Array<Option> data(options);
  Array<float2> prices(n);
  Array<float> by_tree(n), by_paths(n);
  formula<<<1, n>>>(data, prices);
  tree<<<n, STEPS + 1>>>(data, by_tree);
  paths<<<n, 32>>>(data, by_paths);
  const auto p = prices.host();
  const auto t = by_tree.host(), m = by_paths.host();
  for (int i = 0; i < n; ++i) {
    const double s = options[i].spot, k = options[i].strike, years = options[i].years, root = std::sqrt(years);
    const double d1 = (std::log(s / k) + (RATE + VOLATILITY * VOLATILITY / 2) * years) / (VOLATILITY * root);
    auto cdf = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
    const double call = s * cdf(d1) - k * std::exp(-RATE * years) * cdf(d1 - VOLATILITY * root);
    MUST(std::fabs(p[i].x - call) < 2e-4 && std::fabs(p[i].x - p[i].y - s + k * std::exp(-RATE * years)) < 2e-4);
    MUST(std::fabs(t[i] - call) < 0.1 && std::fabs(m[i] - call) < 2);
  }
  std::printf("%d options: formula, tree and paths agree\n", n);
}
