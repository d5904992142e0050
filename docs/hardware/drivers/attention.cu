// Makes a program of a stage that computes attention: stands behind its kernel.cu and data.cu. Arguments: B H N HEAD_DIM.

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  const int B = atoi(argv[1]), H = atoi(argv[2]), N = atoi(argv[3]), head_dim = atoi(argv[4]);
  if (head_dim != HEAD_DIM) return 2;
  const size_t count = (size_t)B * H * N * head_dim;
  Element *Q = uploaded(count), *K = uploaded(count), *V = uploaded(count), *O;
  std::vector<Element> result(count);
  cudaMalloc(&O, count * sizeof(Element));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const cudaError_t launched = launch_attention(Q, K, V, O, B, H, N, 0.125f, stream);
  const cudaError_t finished = cudaDeviceSynchronize();
  cudaMemcpy(result.data(), O, count * sizeof(Element), cudaMemcpyDeviceToHost);
  printf("launch: %s, end: %s\n", cudaGetErrorName(launched), cudaGetErrorName(finished));
  for (Element *pointer : {Q, K, V, O}) cudaFree(pointer);
  cudaStreamDestroy(stream);
  return launched || finished;
}
