// What makes a program of a stage that multiplies matrices: this stands behind its kernel.cu. Arguments: M N K.

#include <cstdio>
#include <cstdlib>
#include <vector>

static Element *uploaded(size_t count) {  // numbers between -1 and 1
  std::vector<Element> host(count);
  static unsigned state = 1;
  for (Element &element : host) element = Element(float((state = state * 1664525 + 1013904223) >> 8) / (1 << 23) - 1);
  Element *device;
  cudaMalloc(&device, count * sizeof(Element));
  cudaMemcpy(device, host.data(), count * sizeof(Element), cudaMemcpyHostToDevice);
  return device;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  const int M = atoi(argv[1]), N = atoi(argv[2]), K = atoi(argv[3]);
  Element *A = uploaded((size_t)M * K), *B = uploaded((size_t)K * N), *C;
  std::vector<Element> result((size_t)M * N);
  cudaMalloc(&C, result.size() * sizeof(Element));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const cudaError_t launched = launch_gemm(A, B, C, M, N, K, stream);
  const cudaError_t finished = cudaDeviceSynchronize();
  cudaMemcpy(result.data(), C, result.size() * sizeof(Element), cudaMemcpyDeviceToHost);
  printf("launch: %s, end: %s\n", cudaGetErrorName(launched), cudaGetErrorName(finished));
  for (Element *pointer : {A, B, C}) cudaFree(pointer);
  cudaStreamDestroy(stream);
  return launched || finished;
}
