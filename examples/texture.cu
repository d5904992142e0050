// Textures and surfaces: an image is turned by an angle through a texture, which filters and repeats it, and written
// through a surface. Then the same from a volume and from an array of layers.
//
// A texture object is a view of an array: kernels read it at any point, and the hardware mixes the texels around it.
// Texel i has its centre at i + 0.5, so x - 0.5 tells which two are mixed, and its fraction, rounded to 1/256, by how
// much. A surface writes to an array: without filter, and with x in bytes.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

constexpr int WIDTH = 40, HEIGHT = 24, DEPTH = 5;

__global__ void turn(cudaTextureObject_t image, cudaSurfaceObject_t turned, float cosine, float sine) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= WIDTH || y >= HEIGHT) return;
  const float u = (x + 0.5f) / WIDTH, v = (y + 0.5f) / HEIGHT;  // normalized: the whole image is from 0 to 1
  surf2Dwrite(tex2D<float>(image, cosine * u - sine * v, sine * u + cosine * v), turned, x * int(sizeof(float)), y);
}

__global__ void slice(cudaTextureObject_t volume, float z, float *out) {
  const int x = threadIdx.x, y = blockIdx.x;
  out[y * WIDTH + x] = tex3D<float>(volume, x + 0.5f, y + 0.5f, z);
}

__global__ void layer(cudaTextureObject_t layers, int number, float *out) {
  const int x = threadIdx.x, y = blockIdx.x;
  out[y * WIDTH + x] = tex2DLayered<float>(layers, x + 0.5f, y + 0.5f, number);
}

float texel(int x, int y, int z = 0) { return float((x * 7 + y * 13 + z * 29) % 64); }

// What linear filtering gives along one axis: the lower of two texels, and the share of the other one.
struct Between {
  int low;
  float share;
};
Between between(float x) {
  const float at = std::floor((x - 0.5f) * 256 + 0.5f) / 256;
  return {int(std::floor(at)), at - std::floor(at)};
}
int wrapped(int i, int size) { return (i % size + size) % size; }

float expected(float u, float v) {
  const Between x = between(u * WIDTH), y = between(v * HEIGHT);
  float sum = 0;
  for (int j = 0; j < 2; ++j)
    for (int i = 0; i < 2; ++i)
      sum += (i ? x.share : 1 - x.share) * (j ? y.share : 1 - y.share) *
             texel(wrapped(x.low + i, WIDTH), wrapped(y.low + j, HEIGHT));
  return sum;
}

cudaTextureObject_t texture(cudaArray_t array, cudaTextureFilterMode filter, cudaTextureAddressMode mode, bool unit) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc how = {};
  for (auto &each : how.addressMode) each = mode;
  how.filterMode = filter;
  how.readMode = cudaReadModeElementType;
  how.normalizedCoords = unit;
  cudaTextureObject_t object = 0;
  cudaCreateTextureObject(&object, &resource, &how, nullptr);
  return object;
}

int main() {
  std::vector<float> volume(WIDTH * HEIGHT * DEPTH), image(WIDTH * HEIGHT);
  for (int i = 0; i < WIDTH * HEIGHT * DEPTH; ++i)
    volume[i] = texel(i % WIDTH, i / WIDTH % HEIGHT, i / (WIDTH * HEIGHT));
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  const size_t row = WIDTH * sizeof(float);

  cudaArray_t source, target;
  cudaMallocArray(&source, &format, WIDTH, HEIGHT);
  cudaMallocArray(&target, &format, WIDTH, HEIGHT, cudaArraySurfaceLoadStore);
  cudaMemcpy2DToArray(source, 0, 0, volume.data(), row, row, HEIGHT, cudaMemcpyHostToDevice);
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = target;
  cudaSurfaceObject_t surface;
  cudaCreateSurfaceObject(&surface, &resource);
  const cudaTextureObject_t repeated = texture(source, cudaFilterModeLinear, cudaAddressModeWrap, true);
  const float cosine = std::cos(0.5f), sine = std::sin(0.5f);
  turn<<<dim3(3, 2), dim3(16, 16)>>>(repeated, surface, cosine, sine);
  cudaMemcpy2DFromArray(image.data(), row, target, 0, 0, row, HEIGHT, cudaMemcpyDeviceToHost);
  float worst = 0;  // a coordinate may round to the next 1/256
  for (int y = 0; y < HEIGHT; ++y)
    for (int x = 0; x < WIDTH; ++x) {
      const float u = (x + 0.5f) / WIDTH, v = (y + 0.5f) / HEIGHT;
      const float right = expected(cosine * u - sine * v, sine * u + cosine * v);
      worst = std::fmax(worst, std::fabs(image[y * WIDTH + x] - right));
    }
  bool good = worst < 0.6f;

  float *out;
  cudaMalloc(&out, WIDTH * HEIGHT * sizeof(float));
  for (unsigned flags : {unsigned(cudaArrayDefault), unsigned(cudaArrayLayered)}) {
    cudaArray_t array;
    const cudaExtent extent = make_cudaExtent(WIDTH, HEIGHT, DEPTH);
    cudaMalloc3DArray(&array, &format, extent, flags);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(volume.data(), row, WIDTH, HEIGHT);
    copy.dstArray = array;
    copy.extent = extent;
    copy.kind = cudaMemcpyHostToDevice;
    cudaMemcpy3D(&copy);
    const bool layered = flags == cudaArrayLayered;
    const auto filter = layered ? cudaFilterModePoint : cudaFilterModeLinear;
    const cudaTextureObject_t object = texture(array, filter, cudaAddressModeClamp, false);
    // A quarter of slice 3, three quarters of slice 2.
    layered ? layer<<<HEIGHT, WIDTH>>>(object, 3, out) : slice<<<HEIGHT, WIDTH>>>(object, 2.75f, out);
    cudaMemcpy(image.data(), out, row * HEIGHT, cudaMemcpyDeviceToHost);
    for (int y = 0; y < HEIGHT; ++y)
      for (int x = 0; x < WIDTH; ++x)
        good &= image[y * WIDTH + x] == (layered ? texel(x, y, 3) : 0.75f * texel(x, y, 2) + 0.25f * texel(x, y, 3));
    cudaDestroyTextureObject(object);
    cudaFreeArray(array);
  }
  cudaDestroySurfaceObject(surface);
  cudaDestroyTextureObject(repeated);
  for (cudaArray_t array : {source, target}) cudaFreeArray(array);
  cudaFree(out);
  good &= cudaGetLastError() == cudaSuccess;
  printf("%s\n", good ? "PASS" : "FAIL");
  return !good;
}
