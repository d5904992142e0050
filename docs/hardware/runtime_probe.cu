// What the real runtime answers where the emulator's stand-in had to choose: run by `python -m docs.hardware.counters`
// on a GPU, and in the emulator by test_recorded_hardware.py.
#include <cuda_runtime.h>

#include <cstdio>
__global__ void k(int *p) {
  if (p) *p = 1;
}
__global__ void wait_all(int *p) { atomicAdd(p, 1); }
#define SAY(CALL)                                                      \
  do {                                                                 \
    cudaError_t said = (CALL);                                         \
    printf("%-70s %d %s\n", #CALL, int(said), cudaGetErrorName(said)); \
    cudaGetLastError();                                                \
  } while (0)
int main() {
  int *d, *e, h[4] = {}, *m, *pinned, *nothing = h;
  cudaMalloc(&d, 16);
  cudaMalloc(&e, 16);
  cudaMallocManaged(&m, 16);
  cudaMallocHost(&pinned, 16);
  SAY(cudaMemcpy(d, e, 16, cudaMemcpyDeviceToHost));
  SAY(cudaMemcpy(d, e, 16, cudaMemcpyHostToDevice));
  SAY(cudaMemcpy(h, h + 2, 8, cudaMemcpyDeviceToDevice));
  SAY(cudaMemcpy(d, h, 16, cudaMemcpyDeviceToDevice));
  SAY(cudaMemcpy(d, h, 16, cudaMemcpyDefault));
  SAY(cudaMemcpy(h, m, 16, cudaMemcpyHostToHost));
  SAY(cudaMemcpy(d, pinned, 16, cudaMemcpyDeviceToDevice));
  SAY(cudaMemcpy(h, d, 0, cudaMemcpyDeviceToHost));
  SAY(cudaMemset(h, 0, 4));
  SAY(cudaMalloc(&nothing, 1ull << 45));
  SAY(cudaFree(h));
  SAY(cudaFree(d + 1));
  SAY(cudaFree(pinned));
  SAY(cudaFreeHost(d));
  cudaStream_t s;
  cudaStreamCreate(&s);
  cudaStreamDestroy(s);
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  float ms;
  SAY(cudaEventElapsedTime(&ms, a, b));
  SAY(cudaEventQuery(a));
  SAY(cudaEventSynchronize(a));
  SAY((k<<<1, 2048>>>(d), cudaGetLastError()));
  SAY((k<<<0, 32>>>(d), cudaGetLastError()));
  SAY((k<<<1, 32, 1 << 20>>>(d), cudaGetLastError()));
  void *arguments[] = {&d};
  SAY(cudaLaunchCooperativeKernel(wait_all, dim3(1 << 20), dim3(256), arguments));
  k<<<1, 2048>>>(d);  // what is refused is the last error, and no work that waiting would wait for
  cudaError_t waited = cudaDeviceSynchronize(), here = cudaStreamSynchronize(nullptr), asked = cudaStreamQuery(nullptr);
  printf("after a launch that was refused: %d %d %d, then %d\n", waited, here, asked, cudaGetLastError());
  cudaMalloc(&nothing, 1ull << 45);
  waited = cudaDeviceSynchronize();
  printf("after an allocation that was refused: %d, then %d\n", waited, cudaGetLastError());
  SAY(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, 0);
  int v;
  for (int attribute = 1; attribute < 122; ++attribute)
    if (cudaDeviceGetAttribute(&v, cudaDeviceAttr(attribute), 0) == cudaSuccess)
      printf("attribute %d = %d\n", attribute, v);
    else
      printf("attribute %d: error\n", attribute), cudaGetLastError();
}
