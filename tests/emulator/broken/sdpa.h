// A program around launch_sdpa: B, H, H_KV, N, N_KV and splits are its arguments; dense tensors, [B, H, N, HEAD_DIM].
#include <cstdio>
#include <cstdlib>
#include <vector>

Element *tensor(int heads, int rows, int step) {
  std::vector<Element> host((size_t)heads * rows * HEAD_DIM);
  for (size_t i = 0; i < host.size(); ++i) host[i] = Element((float(i * step % 13) - 6) / 4);
  Element *device;
  cudaMalloc(&device, host.size() * sizeof(Element));
  if (step) cudaMemcpy(device, host.data(), host.size() * sizeof(Element), cudaMemcpyHostToDevice);
  return device;
}

int main(int, char **argv) {
  int sizes[6];
  for (int i = 0; i < 6; ++i) sizes[i] = atoi(argv[i + 1]);
  const auto [B, H, H_KV, N, N_KV, splits] = sizes;
  const Element *Q = tensor(B * H, N, 7), *K = tensor(B * H_KV, N_KV, 8), *V = tensor(B * H_KV, N_KV, 9);
  Element *O = tensor(B * H, N, 0);
  float *LSE, *partial_O, *partial_LSE;
  cudaMalloc(&LSE, (size_t)B * H * N * sizeof(float));
  cudaMalloc(&partial_O, (size_t)splits * B * H * N * HEAD_DIM * sizeof(float));
  cudaMalloc(&partial_LSE, (size_t)splits * B * H * N * sizeof(float));
  const long long row = HEAD_DIM, head = N * row, head_kv = N_KV * row;
  cudaError_t status =
      launch_sdpa(Q, K, V, O, LSE, partial_O, partial_LSE, B, H, H_KV, N, N_KV, H * head, head, row, H_KV * head_kv,
                  head_kv, row, H_KV * head_kv, head_kv, row, H * head, head, row, splits, 0.1f, nullptr);
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  printf("%s\n", cudaGetErrorName(status));
  return status != cudaSuccess;
}
