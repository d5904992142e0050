// Programmatic dependent launch: a kernel begins before the one ahead of it in the stream has ended.
//
// Eight steps of smoothing, each a launch that needs the result of the one before. No kernel writes the weights, which
// a step needs as well: it fetches them first, while the step before still runs. Then it waits until that step has
// ended and its writes can be read. The launch needs an attribute, and a GPU of compute capability 9.0 or newer: code
// for older ones has no wait, so it is launched as usual.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

constexpr int THREADS = 128, RADIUS = 4, TAPS = 2 * RADIUS + 1, STEPS = 8;

__global__ void smooth(const float *weights, const float *in, float *out, int n) {
  __shared__ float weight[TAPS];
  if (threadIdx.x < TAPS) weight[threadIdx.x] = weights[threadIdx.x];
  __syncthreads();
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();            // the step before has written `in` and read `out`
  cudaTriggerProgrammaticLaunchCompletion();  // when all blocks have come to here, the next step may begin
#endif
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= n) return;
  float sum = 0;
  for (int tap = 0; tap < TAPS; ++tap) {
    const int from = i + tap - RADIUS;
    if (from >= 0 && from < n) sum += weight[tap] * in[from];
  }
  out[i] = sum;
}

int main() {
  const int n = 1000;
  std::vector<float> weights(TAPS), x(n), result(n);
  for (int tap = 0; tap < TAPS; ++tap) weights[tap] = (1 + RADIUS - std::abs(tap - RADIUS)) / 25.0f;
  for (int i = 0; i < n; ++i) x[i] = i * 37 % 101 / 50.0f - 1;

  float *d_weights, *d_in, *d_out;
  cudaMalloc(&d_weights, TAPS * sizeof(float));
  cudaMalloc(&d_in, n * sizeof(float));
  cudaMalloc(&d_out, n * sizeof(float));
  cudaMemcpy(d_weights, weights.data(), TAPS * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpy(d_in, x.data(), n * sizeof(float), cudaMemcpyHostToDevice);
  cudaStream_t stream;
  cudaStreamCreate(&stream);

  cudaFuncAttributes compiled;
  cudaFuncGetAttributes(&compiled, smooth);
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((n + THREADS - 1) / THREADS);
  config.blockDim = dim3(THREADS);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = compiled.ptxVersion >= 90;
  for (int step = 0; step < STEPS; ++step) {
    const float *taps = d_weights, *in = d_in;
    const cudaError_t error = cudaLaunchKernelEx(&config, smooth, taps, in, d_out, n);
    if (error != cudaSuccess) return printf("FAIL: %s\n", cudaGetErrorString(error)), 1;
    std::swap(d_in, d_out);
  }
  cudaStreamSynchronize(stream);
  cudaMemcpy(result.data(), d_in, n * sizeof(float), cudaMemcpyDeviceToHost);

  for (int step = 0; step < STEPS; ++step) {
    std::vector<float> next(n);
    for (int i = 0; i < n; ++i)
      for (int tap = 0; tap < TAPS; ++tap)
        if (const int from = i + tap - RADIUS; from >= 0 && from < n) next[i] += weights[tap] * x[from];
    std::swap(x, next);
  }
  int wrong = 0;
  for (int i = 0; i < n; ++i) wrong += !(std::abs(result[i] - x[i]) < 1e-5f);
  printf(wrong ? "FAIL: %d\n" : "PASS\n", wrong);
  cudaStreamDestroy(stream);
  cudaFree(d_weights);
  cudaFree(d_in);
  cudaFree(d_out);
  return wrong != 0;
}
