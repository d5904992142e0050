// c = a + b: four elements per thread and access, and a tail.
//
// A lane loads 16 bytes at a time, so a warp asks for 512 in one request, and four times as many bytes are in flight as
// with single floats. Pointers of cudaMalloc are aligned for that. The last n % 4 elements are added one by one.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

__global__ void add(const float *a, const float *b, float *c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 4) {
    const float4 x = reinterpret_cast<const float4 *>(a)[i], y = reinterpret_cast<const float4 *>(b)[i];
    reinterpret_cast<float4 *>(c)[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
  }
  const int tail = n / 4 * 4 + i;
  if (tail < n) c[tail] = a[tail] + b[tail];
}

int main() {
  const int n = 40'003, threads = 256;
  std::vector<float> a(n), b(n), c(n);
  for (int i = 0; i < n; ++i) a[i] = float(i), b[i] = 0.5f * i;
  const size_t bytes = n * sizeof(float);
  float *da, *db, *dc;
  cudaMalloc(&da, bytes);
  cudaMalloc(&db, bytes);
  cudaMalloc(&dc, bytes);
  cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice);
  const int work = n / 4 > n % 4 ? n / 4 : n % 4;
  add<<<(work + threads - 1) / threads, threads>>>(da, db, dc, n);
  int wrong = cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost) != cudaSuccess;
  for (int i = 0; i < n; ++i) wrong += c[i] != a[i] + b[i];
  printf(wrong ? "FAIL: %d elements are wrong\n" : "PASS\n", wrong);
  for (float *pointer : {da, db, dc}) cudaFree(pointer);
  return wrong != 0;
}
