// Makes a program of a stage that computes attention in fp8: stands behind its kernel.cu and data.cu. Arguments: B H N
// HEAD_DIM.

static Fp8 *uploaded_fp8(size_t count) {  // numbers between -1 and 1
  std::vector<Fp8> host(count);
  for (size_t i = 0; i < count; ++i) host[i] = Fp8(float(i * 2654435761u % 255) / 127 - 1);
  Fp8 *device;
  cudaMalloc(&device, count);
  cudaMemcpy(device, host.data(), count, cudaMemcpyHostToDevice);
  return device;
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  const int B = atoi(argv[1]), H = atoi(argv[2]), N = atoi(argv[3]), head_dim = atoi(argv[4]);
  if (head_dim != HEAD_DIM) return 2;
  const size_t count = (size_t)B * H * N * head_dim, blocks = count / head_dim / ROWS;
  Fp8 *Q = uploaded_fp8(count), *K = uploaded_fp8(count), *V = uploaded_fp8(count);
  const std::vector<float> ones(3 * blocks, 1);
  std::vector<Element> result(count);
  float *scales;
  Element *O;
  cudaMalloc(&scales, ones.size() * sizeof(float));
  cudaMemcpy(scales, ones.data(), ones.size() * sizeof(float), cudaMemcpyHostToDevice);
  cudaMalloc(&O, count * sizeof(Element));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const cudaError_t launched = launch_attention_fp8(Q, K, V, scales, O, B, H, N, 0.125f, stream);
  const cudaError_t finished = cudaDeviceSynchronize();
  cudaMemcpy(result.data(), O, count * sizeof(Element), cudaMemcpyDeviceToHost);
  printf("launch: %s, end: %s\n", cudaGetErrorName(launched), cudaGetErrorName(finished));
  for (Fp8 *pointer : {Q, K, V}) cudaFree(pointer);
  cudaFree(scales);
  cudaFree(O);
  cudaStreamDestroy(stream);
  return launched || finished;
}
