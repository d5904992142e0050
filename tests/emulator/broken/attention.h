// A program around a stage's launch_attention: B H N are its arguments.
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int, char **argv) {
  const int B = atoi(argv[1]), H = atoi(argv[2]), N = atoi(argv[3]);
  std::vector<Element> host((size_t)B * H * N * HEAD_DIM);
  Element *tensors[4];  // Q, K, V, O
  for (int tensor = 0; tensor < 4; ++tensor) {
    cudaMalloc(&tensors[tensor], host.size() * sizeof(Element));
    if (tensor == 3) break;
    for (size_t i = 0; i < host.size(); ++i) host[i] = Element((float(i * (7 + tensor) % 13) - 6) / 4);
    cudaMemcpy(tensors[tensor], host.data(), host.size() * sizeof(Element), cudaMemcpyHostToDevice);
  }
  cudaError_t status = launch_attention(tensors[0], tensors[1], tensors[2], tensors[3], B, H, N, 0.1f, nullptr);
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  printf("%s\n", cudaGetErrorName(status));
  return status != cudaSuccess;
}
