// Host code: pinned and managed memory, two streams, an event between them, and every call's error looked at.
//
// Work of one stream happens in order; that of two streams in any, unless an event says otherwise. Managed memory may
// be touched by the host when the device is known to be done with it: after a synchronisation.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

void check(cudaError_t error, const char *call, int line) {
  if (error == cudaSuccess) return;
  printf("FAIL: line %d: %s: %s\n", line, call, cudaGetErrorString(error));
  exit(1);
}
#define CHECK(CALL) check(CALL, #CALL, __LINE__)

__global__ void square(const int *in, int *out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] * in[i];
}

__global__ void add_up(const int *in, unsigned long long *sum, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(sum, (unsigned long long)in[i]);
}

int main() {
  const int n = 3000;
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  int *pinned, *d_in, *d_out;
  unsigned long long *sum, expected = 0;
  CHECK(cudaMallocHost(&pinned, n * sizeof(int)));  // copies from it need no copy on the way
  CHECK(cudaMalloc(&d_in, n * sizeof(int)));
  CHECK(cudaMalloc(&d_out, n * sizeof(int)));
  CHECK(cudaMallocManaged(&sum, sizeof *sum));
  for (int i = 0; i < n; ++i) pinned[i] = i % 50, expected += i % 50 * (i % 50);
  *sum = 0;

  cudaStream_t produce, consume;
  cudaEvent_t squared, start, stop;
  CHECK(cudaStreamCreate(&produce));
  CHECK(cudaStreamCreate(&consume));
  CHECK(cudaEventCreateWithFlags(&squared, cudaEventDisableTiming));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  CHECK(cudaEventRecord(start, produce));
  CHECK(cudaMemcpyAsync(d_in, pinned, n * sizeof(int), cudaMemcpyHostToDevice, produce));
  square<<<(n + 255) / 256, 256, 0, produce>>>(d_in, d_out, n);
  CHECK(cudaGetLastError());  // a launch returns nothing: its errors wait here
  CHECK(cudaEventRecord(squared, produce));
  CHECK(cudaStreamWaitEvent(consume, squared, 0));  // what comes now on `consume` waits for the squares
  add_up<<<4, 128, 0, consume>>>(d_out, sum, n);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(stop, consume));
  CHECK(cudaEventSynchronize(stop));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
  CHECK(cudaDeviceSynchronize());  // now the host may look at *sum
  const bool right = *sum == expected && milliseconds >= 0;
  printf(right ? "PASS\n" : "FAIL: %llu instead of %llu\n", *sum, expected);

  for (cudaStream_t stream : {produce, consume}) CHECK(cudaStreamDestroy(stream));
  for (cudaEvent_t event : {squared, start, stop}) CHECK(cudaEventDestroy(event));
  CHECK(cudaFreeHost(pinned));
  CHECK(cudaFree(d_in));
  CHECK(cudaFree(d_out));
  CHECK(cudaFree(sum));
  return !right;
}
