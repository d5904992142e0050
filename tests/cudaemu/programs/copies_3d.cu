// Pitched memory in two and three dimensions: fills and copies of boxes within boxes, between host, device and arrays.
// Run: cudaemu copies_3d.cu
// Prints: boxes in 3 dimensions agree
#include "check.h"

constexpr int W = 13, H = 7, D = 5;

__global__ void add_index(cudaPitchedPtr box) {
  const int x = threadIdx.x, y = threadIdx.y, z = blockIdx.x;
  char *const slice = static_cast<char *>(box.ptr) + z * box.pitch * H;
  reinterpret_cast<int *>(slice + y * box.pitch)[x] += x + 100 * y + 10000 * z;
}

int main() {
  const cudaExtent all = make_cudaExtent(W * sizeof(int), H, D);
  cudaPitchedPtr box;
  CUDA(cudaMalloc3D(&box, all));
  MUST(box.pitch >= W * sizeof(int) && box.xsize == W * sizeof(int) && box.ysize == H);
  CUDA(cudaMemset3D(box, 1, all));  // each byte
  add_index<<<D, dim3(W, H)>>>(box);
  std::vector<int> host(W * H * D, -1);
  cudaMemcpy3DParms out = {};
  out.srcPtr = box, out.dstPtr = make_cudaPitchedPtr(host.data(), W * sizeof(int), W, H);
  out.extent = all, out.kind = cudaMemcpyDeviceToHost;
  CUDA(cudaMemcpy3D(&out));
  for (int z = 0; z < D; ++z)
    for (int y = 0; y < H; ++y)
      for (int x = 0; x < W; ++x) MUST(host[(z * H + y) * W + x] == 0x01010101 + x + 100 * y + 10000 * z);

  // A box of 4 x 3 x 2 from (2, 1, 3) on, to (5, 2, 0) of the host's.
  std::vector<int> part(W * H * D, -1);
  cudaMemcpy3DParms some = {};
  some.srcPtr = box, some.srcPos = make_cudaPos(2 * sizeof(int), 1, 3);
  some.dstPtr = make_cudaPitchedPtr(part.data(), W * sizeof(int), W, H),
  some.dstPos = make_cudaPos(5 * sizeof(int), 2, 0);
  some.extent = make_cudaExtent(4 * sizeof(int), 3, 2), some.kind = cudaMemcpyDeviceToHost;
  CUDA(cudaMemcpy3DAsync(&some, 0));
  CUDA(cudaDeviceSynchronize());
  for (int z = 0; z < D; ++z)
    for (int y = 0; y < H; ++y)
      for (int x = 0; x < W; ++x) {
        const bool in = x >= 5 && x < 9 && y >= 2 && y < 5 && z < 2;
        MUST(part[(z * H + y) * W + x] == (in ? host[((z + 3) * H + y - 1) * W + x - 3] : -1));
      }

  int *plane;
  size_t pitch;
  CUDA(cudaMallocPitch(&plane, &pitch, W * sizeof(int), H));
  CUDA(cudaMemcpy2D(plane, pitch, host.data(), W * sizeof(int), W * sizeof(int), H, cudaMemcpyHostToDevice));
  CUDA(cudaMemset2D(reinterpret_cast<char *>(plane) + pitch, pitch, 0, 2 * sizeof(int),
                    2));  // of rows 1 and 2, 2 columns
  cudaArray_t array;
  const auto integers = cudaCreateChannelDesc<int>();
  CUDA(cudaMallocArray(&array, &integers, W, H));
  CUDA(cudaMemcpy2DToArray(array, 0, 0, plane, pitch, W * sizeof(int), H, cudaMemcpyDeviceToDevice));
  std::vector<int> back(W * H);
  CUDA(cudaMemcpy2DFromArray(back.data(), W * sizeof(int), array, 0, 0, W * sizeof(int), H, cudaMemcpyDeviceToHost));
  for (int y = 0; y < H; ++y)
    for (int x = 0; x < W; ++x) MUST(back[y * W + x] == ((y == 1 || y == 2) && x < 2 ? 0 : host[y * W + x]));
  cudaChannelFormatDesc channels;
  cudaExtent extent;
  unsigned flags;
  CUDA(cudaArrayGetInfo(&channels, &extent, &flags, array));
  MUST(channels.x == 32 && extent.width == W && extent.height == H && extent.depth == 0);
  CUDA(cudaFreeArray(array));
  CUDA(cudaFree(plane));
  CUDA(cudaFree(box.ptr));
  std::printf("boxes in 3 dimensions agree\n");
}
