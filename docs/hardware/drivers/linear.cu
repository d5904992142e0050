// Makes a program of stage h5: stands behind its kernel.cu and data.cu. Arguments: M N K.

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  const int M = atoi(argv[1]), N = atoi(argv[2]), K = atoi(argv[3]);
  Element *A = uploaded((size_t)M * K), *B = uploaded((size_t)K * N), *C;
  std::vector<Element> result((size_t)M * N);
  cudaMalloc(&C, result.size() * sizeof(Element));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const cudaError_t launched = launch_linear(A, B, C, nullptr, M, N, K, 0, stream);
  const cudaError_t finished = cudaDeviceSynchronize();
  cudaMemcpy(result.data(), C, result.size() * sizeof(Element), cudaMemcpyDeviceToHost);
  printf("launch: %s, end: %s\n", cudaGetErrorName(launched), cudaGetErrorName(finished));
  for (void *pointer : {(void *)A, (void *)B, (void *)C}) cudaFree(pointer);
  cudaStreamDestroy(stream);
  return launched || finished;
}
