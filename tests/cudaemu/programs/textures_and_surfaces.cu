// Textures of bytes, layers and three dimensions, read as numbers between 0 and 1; a surface that a kernel writes and a
// texture reads afterwards; linear memory as a texture; resource and texture descriptions read back.
// Run: cudaemu textures_and_surfaces.cu
// Prints: 6 kinds of textures and surfaces agree
#include "check.h"

__global__ void bytes(cudaTextureObject_t t, float4 *out) {
  out[threadIdx.x] = tex2D<float4>(t, threadIdx.x % 8 + 0.5f, threadIdx.x / 8 + 0.5f);
}
__global__ void linear(cudaTextureObject_t t, cudaTextureObject_t pitched, int *out) {
  const int i = threadIdx.x;
  out[i] = tex1Dfetch<int>(t, 63 - i) + 1000 * tex2D<unsigned char>(pitched, i % 16, i / 16);
}
__global__ void layered(cudaTextureObject_t t, float *out) {
  out[threadIdx.x] = tex2DLayered<float>(t, (threadIdx.x % 4 + 1) / 4.0f, 0.5f, threadIdx.x / 4);  // between two
}
__global__ void volume(cudaTextureObject_t t, float *out) {
  const int i = threadIdx.x;
  out[i] = tex3D<float>(t, i % 4 + 0.5f, i / 4 % 4 + 0.5f, i / 16 + 1.0f);  // halfway between two slices
}
__global__ void write(cudaSurfaceObject_t s, int width) {
  const int x = threadIdx.x, y = blockIdx.x;
  surf2Dwrite(make_short2(short(x - y), short(x * y)), s, x * int(sizeof(short2)), y);
  short2 back;
  surf2Dread(&back, s, x * int(sizeof(short2)), y, cudaBoundaryModeZero);
  back.y += 1;
  surf2Dwrite(back, s, x * int(sizeof(short2)), y, cudaBoundaryModeClamp);
  surf2Dwrite(back, s, (x + width) * int(sizeof(short2)), y, cudaBoundaryModeZero);  // outside: nothing
}
__global__ void read(cudaTextureObject_t t, int *out) {
  const short2 v = tex2D<short2>(t, threadIdx.x, blockIdx.x);
  out[blockIdx.x * blockDim.x + threadIdx.x] = v.x * 1000 + v.y + int(tex2D<short2>(t, -1, blockIdx.x).y);
}

cudaTextureObject_t texture(const cudaResourceDesc &resource, cudaTextureReadMode mode, cudaTextureFilterMode filter,
                            bool normalized, cudaTextureAddressMode border = cudaAddressModeClamp) {
  cudaTextureDesc how = {};
  how.readMode = mode, how.filterMode = filter, how.normalizedCoords = normalized;
  for (auto &each : how.addressMode) each = border;
  cudaTextureObject_t object;
  CUDA(cudaCreateTextureObject(&object, &resource, &how, nullptr));
  return object;
}
cudaResourceDesc of(cudaArray_t array) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray, resource.res.array.array = array;
  return resource;
}

int main() {
  std::vector<uchar4> pixels(64);
  for (int i = 0; i < 64; ++i) pixels[i] = make_uchar4(i, 2 * i, 3 * i, 255 - i);
  const auto four = cudaCreateChannelDesc<uchar4>();
  cudaArray_t array;
  CUDA(cudaMallocArray(&array, &four, 8, 8));
  CUDA(cudaMemcpy2DToArray(array, 0, 0, pixels.data(), 32, 32, 8, cudaMemcpyHostToDevice));
  const auto as_floats = texture(of(array), cudaReadModeNormalizedFloat, cudaFilterModePoint, false);
  Array<float4> colours(64);
  bytes<<<1, 64>>>(as_floats, colours);
  const auto c = colours.host();
  for (int i = 0; i < 64; ++i)
    MUST(c[i].x == i / 255.0f && c[i].z == 3 * i % 256 / 255.0f && c[i].w == (255 - i) / 255.0f);

  std::vector<int> numbers(64);
  for (int i = 0; i < 64; ++i) numbers[i] = i * i;
  Array<int> memory(numbers), out(64);
  cudaResourceDesc line = {}, rows = {};
  line.resType = cudaResourceTypeLinear, line.res.linear.devPtr = memory, line.res.linear.sizeInBytes = 256;
  line.res.linear.desc = cudaCreateChannelDesc<int>();
  unsigned char *pitched;
  size_t pitch;
  CUDA(cudaMallocPitch(&pitched, &pitch, 16, 4));
  CUDA(cudaMemset2D(pitched, pitch, 9, 16, 4));
  rows.resType = cudaResourceTypePitch2D,
  rows.res.pitch2D = {pitched, cudaCreateChannelDesc<unsigned char>(), 16, 4, pitch};
  const auto fetched = texture(line, cudaReadModeElementType, cudaFilterModePoint, false);
  const auto of_rows = texture(rows, cudaReadModeElementType, cudaFilterModePoint, false);
  linear<<<1, 64>>>(fetched, of_rows, out);
  for (int i = 0; i < 64; ++i) MUST(out.host()[i] == (63 - i) * (63 - i) + 9000);

  const auto real = cudaCreateChannelDesc<float>();
  const cudaExtent box = make_cudaExtent(4, 4, 3);
  std::vector<float> cells(48);
  for (int i = 0; i < 48; ++i) cells[i] = float(i * i);
  for (unsigned flag : {unsigned(cudaArrayLayered), 0u}) {
    cudaArray_t solid;
    CUDA(cudaMalloc3DArray(&solid, &real, box, flag));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(cells.data(), 16, 4, 4), copy.dstArray = solid, copy.extent = box;
    copy.kind = cudaMemcpyHostToDevice;
    CUDA(cudaMemcpy3D(&copy));
    Array<float> got(32);
    const auto object = texture(of(solid), cudaReadModeElementType, cudaFilterModeLinear, flag != 0);
    flag ? layered<<<1, 12>>>(object, got) : volume<<<1, 32>>>(object, got);
    CUDA(cudaDeviceSynchronize());
    float g[32];
    CUDA(cudaMemcpy(g, got, (flag ? 12 : 32) * sizeof(float), cudaMemcpyDeviceToHost));
    auto cell = [&](int x, int y, int z) { return cells[z * 16 + y * 4 + (x < 4 ? x : 3)]; };
    for (int i = 0; i < (flag ? 12 : 32); ++i) {
      const int x = i % 4, z = i / 4;
      const float right = flag ? (cell(x, 1, z) + cell(x + 1, 1, z) + cell(x, 2, z) + cell(x + 1, 2, z)) / 4
                               : (cells[i] + cells[i + 16]) / 2;
      MUST(g[i] == right);
    }
    CUDA(cudaDestroyTextureObject(object));
    CUDA(cudaFreeArray(solid));
  }

  const auto shorts = cudaCreateChannelDesc<short2>();
  cudaArray_t canvas;
  CUDA(cudaMallocArray(&canvas, &shorts, 16, 4, cudaArraySurfaceLoadStore));
  const cudaResourceDesc resource = of(canvas);
  cudaSurfaceObject_t surface;
  CUDA(cudaCreateSurfaceObject(&surface, &resource));
  write<<<4, 16>>>(surface, 16);
  const auto painted = texture(resource, cudaReadModeElementType, cudaFilterModePoint, false, cudaAddressModeBorder);
  read<<<4, 16>>>(painted, out);
  for (int i = 0; i < 64; ++i) MUST(out.host()[i] == (i % 16 - i / 16) * 1000 + i % 16 * (i / 16) + 1);
  cudaTextureDesc told;
  CUDA(cudaGetTextureObjectTextureDesc(&told, painted));
  MUST(told.addressMode[0] == cudaAddressModeBorder);
  for (const auto object : {as_floats, fetched, of_rows, painted}) CUDA(cudaDestroyTextureObject(object));
  CUDA(cudaDestroySurfaceObject(surface));
  for (const auto each : {array, canvas}) CUDA(cudaFreeArray(each));
  CUDA(cudaFree(pitched));
  std::printf("6 kinds of textures and surfaces agree\n");
}
