// A program around a stage's launch_gemm: M N K are its arguments. Includes nothing of its own from the course.
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int, char **argv) {
  const int M = atoi(argv[1]), N = atoi(argv[2]), K = atoi(argv[3]);
  std::vector<Element> a((size_t)M * K), b((size_t)K * N);
  for (size_t i = 0; i < a.size(); ++i) a[i] = Element(float(i * 7 % 13) - 6);
  for (size_t i = 0; i < b.size(); ++i) b[i] = Element(float(i * 5 % 11) - 5);
  Element *A, *B, *C;
  cudaMalloc(&A, a.size() * sizeof(Element));
  cudaMalloc(&B, b.size() * sizeof(Element));
  cudaMalloc(&C, (size_t)M * N * sizeof(Element));
  cudaMemcpy(A, a.data(), a.size() * sizeof(Element), cudaMemcpyHostToDevice);
  cudaMemcpy(B, b.data(), b.size() * sizeof(Element), cudaMemcpyHostToDevice);
  cudaError_t status = launch_gemm(A, B, C, M, N, K, nullptr);
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  printf("%s\n", cudaGetErrorName(status));
  return status != cudaSuccess;
}
