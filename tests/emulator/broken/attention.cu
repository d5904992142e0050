// What makes a program of a stage that computes attention: this stands behind its kernel.cu. Arguments: B H N HEAD_DIM.

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
