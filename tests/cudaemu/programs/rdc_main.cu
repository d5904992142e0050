// Device code in two files, linked: functions, variables, constants, a table of functions and a class of the other
// file.
// Run: cudaemu --flags=-rdc=true rdc_main.cu rdc_device.cu
// Prints: linked: 64 values, counter 64, 3 virtual functions
#include "check.h"
#include "rdc_shared.h"

static __device__ int offset = 5;  // each file has its own
__device__ int here(int x) { return x + offset; }

__global__ void combine(const int *in, int *out) {
  const int i = threadIdx.x;
  out[i] = polynomial(in[i]) + operations[i % 2](in[i]) + scale * here(in[i]);
  atomicAdd(&counter, 1);
}

__global__ void virtuals(int *out) {
  const Twice twice;
  const Thrice thrice;
  const Shape *shapes[3] = {&twice, &thrice, make_square()};
  for (int i = 0; i < 3; ++i) out[i] = shapes[i]->of(i + 10);
  free_shape(shapes[2]);
}

int main() {
  const int n = 64, factor = 7;
  std::vector<int> in(n);
  for (int i = 0; i < n; ++i) in[i] = 3 * i - 50;
  Array<int> data(in), out(n);
  CUDA(cudaMemcpyToSymbol(scale, &factor, sizeof factor));
  combine<<<1, n>>>(data, out);
  const auto got = out.host();
  for (int i = 0; i < n; ++i) {
    const int x = in[i];
    MUST(got[i] == (x * x - 2 * x + 100) + (i % 2 ? -x : x * x) + factor * (x + 5));
  }
  int count;
  CUDA(cudaMemcpyFromSymbol(&count, counter, sizeof count));
  Array<int> results(3);
  virtuals<<<1, 1>>>(results);
  MUST(results.host() == (std::vector<int>{20, 33, 144}));
  std::printf("linked: %d values, counter %d, 3 virtual functions\n", n, count);
}
