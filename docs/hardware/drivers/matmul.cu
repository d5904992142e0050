// Makes a program of kernels/library/hopper_matmul: stands behind its kernel.cu and data.cu. Arguments: M N K.
// It has room for 16 squares of sums.

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  const int M = atoi(argv[1]), N = atoi(argv[2]), K = atoi(argv[3]);
  Element *A = uploaded((size_t)M * K), *B = uploaded((size_t)K * N);
  Output *C;
  std::vector<Output> result((size_t)M * N);
  constexpr int ROOM = 16;
  float4 *sums;
  cudaMalloc(&C, result.size() * sizeof(Output));
  cudaMalloc(&sums, ROOM * 128 * 128 * sizeof(float));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const cudaError_t launched = launch_matmul(
      A, B, C, nullptr, nullptr, sums, M, N, K, K, B_TRANSPOSED ? K : N, N, N, 0, -1, K < 8192 ? 0 : ROOM, stream);
  const cudaError_t finished = cudaDeviceSynchronize();
  cudaMemcpy(result.data(), C, result.size() * sizeof(Output), cudaMemcpyDeviceToHost);
  printf("launch: %s, end: %s\n", cudaGetErrorName(launched), cudaGetErrorName(finished));
  for (void *pointer : {(void *)A, (void *)B, (void *)C, (void *)sums}) cudaFree(pointer);
  cudaStreamDestroy(stream);
  return launched || finished;
}
