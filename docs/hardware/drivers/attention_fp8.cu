// Makes a program of a stage that computes attention in fp8: stands behind its kernel.cu and data.cu. Arguments: B H N
// HEAD_DIM.

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  const int B = atoi(argv[1]), H = atoi(argv[2]), N = atoi(argv[3]), head_dim = atoi(argv[4]);
  if (head_dim != HEAD_DIM) return 2;
  const size_t count = (size_t)B * H * N * head_dim;
  Element *Q = uploaded(count), *K = uploaded(count), *V = uploaded(count), *O;
  Fp8 *Q8, *K8, *V8;
  float *scales;
  std::vector<Element> result(count);
  for (Fp8 **pointer : {&Q8, &K8, &V8}) cudaMalloc(pointer, count);
  cudaMalloc(&scales, 3 * (count / head_dim / ROWS) * sizeof(float));
  cudaMalloc(&O, count * sizeof(Element));
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const cudaError_t quantized = launch_quantize(Q, K, V, Q8, K8, V8, scales, B, H, N, stream);
  const cudaError_t launched = launch_attention_fp8(Q8, K8, V8, scales, O, B, H, N, 0.125f, stream);
  const cudaError_t finished = cudaDeviceSynchronize();
  cudaMemcpy(result.data(), O, count * sizeof(Element), cudaMemcpyDeviceToHost);
  printf("launches: %s, %s, end: %s\n", cudaGetErrorName(quantized), cudaGetErrorName(launched),
         cudaGetErrorName(finished));
  for (Element *pointer : {Q, K, V, O}) cudaFree(pointer);
  for (Fp8 *pointer : {Q8, K8, V8}) cudaFree(pointer);
  cudaFree(scales);
  cudaStreamDestroy(stream);
  return quantized || launched || finished;
}
