// Makes a program of stage 16: stands behind its kernel.cu and data.cu. Arguments: B H H_KV N N_KV HEAD_DIM splits.

int main(int argc, char **argv) {
  if (argc != 8) return 2;
  const int B = atoi(argv[1]), H = atoi(argv[2]), H_KV = atoi(argv[3]), N = atoi(argv[4]), N_KV = atoi(argv[5]);
  const int head_dim = atoi(argv[6]), splits = atoi(argv[7]);
  if (head_dim != HEAD_DIM) return 2;
  const size_t queries = (size_t)B * H * N, keys = (size_t)B * H_KV * N_KV;
  Element *Q = uploaded(queries * head_dim), *K = uploaded(keys * head_dim), *V = uploaded(keys * head_dim), *O;
  float *LSE, *partial_O = nullptr, *partial_LSE = nullptr;
  std::vector<Element> result(queries * head_dim);
  cudaMalloc(&O, result.size() * sizeof(Element));
  cudaMalloc(&LSE, queries * sizeof(float));
  if (splits > 1) {
    cudaMalloc(&partial_O, splits * result.size() * sizeof(float));
    cudaMalloc(&partial_LSE, splits * queries * sizeof(float));
  }
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const long long row = head_dim, q_head = row * N, kv_head = row * N_KV;
  const cudaError_t launched =
      launch_sdpa(Q, K, V, O, LSE, partial_O, partial_LSE, B, H, H_KV, N, N_KV, q_head * H, q_head, row, kv_head * H_KV,
                  kv_head, row, kv_head * H_KV, kv_head, row, q_head * H, q_head, row, splits, 0.125f, stream);
  const cudaError_t finished = cudaDeviceSynchronize();
  cudaMemcpy(result.data(), O, result.size() * sizeof(Element), cudaMemcpyDeviceToHost);
  printf("launch: %s, end: %s\n", cudaGetErrorName(launched), cudaGetErrorName(finished));
  for (void *pointer : {(void *)Q, (void *)K, (void *)V, (void *)O, (void *)LSE}) cudaFree(pointer);
  if (splits > 1) cudaFree(partial_O), cudaFree(partial_LSE);
  cudaStreamDestroy(stream);
  return launched || finished;
}
