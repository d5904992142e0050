// What textures and surfaces give in a GPU: filters, address modes, formats, layers. It prints one line for each question;
// texture_probe.txt is what an H200 said, and the emulator has to say the same.
#include <cstdio>
#include <cstdlib>
#include <vector>

#define MUST(call)                                              \
  if (cudaError_t error = (call)) {                             \
    printf("line %d: %s\n", __LINE__, cudaGetErrorName(error)); \
    exit(1);                                                    \
  }

template <class T>
__global__ void at_1d(cudaTextureObject_t t, const float *x, T *out) {
  out[threadIdx.x] = tex1D<T>(t, x[threadIdx.x]);
}
template <class T>
__global__ void at_2d(cudaTextureObject_t t, const float *x, T *out) {
  out[threadIdx.x] = tex2D<T>(t, x[2 * threadIdx.x], x[2 * threadIdx.x + 1]);
}
__global__ void at_3d(cudaTextureObject_t t, const float *x, float *out) {
  out[threadIdx.x] = tex3D<float>(t, x[3 * threadIdx.x], x[3 * threadIdx.x + 1], x[3 * threadIdx.x + 2]);
}
template <class T>
__global__ void fetch(cudaTextureObject_t t, T *out) {
  out[threadIdx.x] = tex1Dfetch<T>(t, int(threadIdx.x) - 2);
}
__global__ void gathered(cudaTextureObject_t t, const float *x, float4 *out) {
  out[threadIdx.x] = tex2Dgather<float4>(t, x[2 * threadIdx.x], x[2 * threadIdx.x + 1], 0);
}
__global__ void in_layers(cudaTextureObject_t t, float *out) {
  out[threadIdx.x] = tex2DLayered<float>(t, 0.5f, 1.5f, int(threadIdx.x) - 1) + tex2DLayered<float>(t, 1.5f, 0.5f, 1);
}
__global__ void fine(cudaTextureObject_t t, float *out) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  out[k] = tex1D<float>(t, 0.5f + k / 4096.0f);
}
__global__ void surface(cudaSurfaceObject_t s, int *out) {
  const int x = int(threadIdx.x) - 1;
  int value;
  surf2Dread(&value, s, 4 * x, 1, cudaBoundaryModeZero);
  out[threadIdx.x] = value;
  surf2Dread(&value, s, 4 * x, -3, cudaBoundaryModeClamp);
  out[threadIdx.x + 8] = value;
  surf2Dwrite(100 + x, s, 4 * x, 2, cudaBoundaryModeZero);
}

template <class T>
T *device(const std::vector<T> &values) {
  T *at;
  MUST(cudaMalloc(&at, values.size() * sizeof(T)));
  MUST(cudaMemcpy(at, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return at;
}
template <class T>
std::vector<T> host(const T *at, int n) {
  std::vector<T> values(n);
  MUST(cudaMemcpy(values.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

template <class T>
cudaArray_t array(const std::vector<T> &values, int w, int h, int d, unsigned flags = 0) {
  cudaArray_t made;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<T>();
  MUST(cudaMalloc3DArray(&made, &format, make_cudaExtent(w, h, d), flags));
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = make_cudaPitchedPtr(const_cast<T *>(values.data()), w * sizeof(T), w, h ? h : 1);
  copy.dstArray = made;
  copy.extent = make_cudaExtent(w, h ? h : 1, d ? d : 1);
  copy.kind = cudaMemcpyHostToDevice;
  MUST(cudaMemcpy3D(&copy));
  return made;
}
cudaTextureObject_t look(cudaArray_t in, cudaTextureFilterMode filter, cudaTextureAddressMode mode, bool normalized,
                         cudaTextureReadMode read = cudaReadModeElementType) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = in;
  cudaTextureDesc how = {};
  for (auto &each : how.addressMode) each = mode;
  how.filterMode = filter, how.readMode = read, how.normalizedCoords = normalized;
  for (int n = 0; n < 4; ++n) how.borderColor[n] = float(n + 7);
  cudaTextureObject_t made;
  MUST(cudaCreateTextureObject(&made, &resource, &how, nullptr));
  return made;
}

void say(const char *name, const std::vector<float> &values) {
  printf("%s:", name);
  for (float each : values) printf(" %.9g", each);
  printf("\n");
}

int main() {
  const char *const modes[] = {"wrap", "clamp", "mirror", "border"};
  const std::vector<float> line = {1, 2, 4, 8};
  const std::vector<float> places = {-4.75f, -1.5f,  -0.5f, -0.125f, 0, 0.25f, 0.5f,  0.75f, 1,     1.5f,
                                     2,      2.625f, 3.5f,  3.75f,   4, 4.5f,  7.25f, 9,     1e10f, -1e10f};
  const int n = int(places.size());
  float *x = device(places), *out = device(std::vector<float>(4097));
  const cudaArray_t one = array(line, 4, 0, 0);
  for (bool normalized : {false, true})
    for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear})
      for (int mode = 0; mode < 4; ++mode) {
        std::vector<float> scaled = places;
        for (float &each : scaled) each /= normalized ? 4 : 1;
        MUST(cudaMemcpy(x, scaled.data(), n * sizeof(float), cudaMemcpyHostToDevice));
        at_1d<<<1, n - 2>>>(look(one, filter, cudaTextureAddressMode(mode), normalized), x, out);
        char name[64];
        snprintf(name, sizeof name, "1d %s %s %s", normalized ? "normalized" : "texels", filter ? "linear" : "point",
                 modes[mode]);
        say(name, host(out, n - 2));
      }

  // The fraction that filters have: the sum, so that one line says it, and some of them.
  fine<<<16, 256>>>(look(array(std::vector<float>{0, 1}, 2, 0, 0), cudaFilterModeLinear, cudaAddressModeClamp, false),
                    out);
  const std::vector<float> shares = host(out, 4096);
  double sum = 0;
  int steps = 0;
  for (int k = 0; k < 4096; ++k) sum += shares[k], steps += k && shares[k] != shares[k - 1];
  printf("fractions: sum %.9g, %d steps\n", sum, steps);
  say("fractions from 0", {shares.begin(), shares.begin() + 40});
  say("fractions to 1", {shares.end() - 24, shares.end()});

  std::vector<float> plane(16), volume(27);
  for (int k = 0; k < 16; ++k) plane[k] = float(k * k);
  for (int k = 0; k < 27; ++k) volume[k] = float(k * k % 32);
  float *at =
      device(std::vector<float>{0.5f, 0.5f, 1.25f, 2.75f, 2, 2, 3.75f, 0.25f, -1, 5, 1.5f, 1.75f, 0, 1, 2.5f, 3.5f});
  const cudaArray_t two = array(plane, 4, 4, 0, cudaArrayTextureGather), three = array(volume, 3, 3, 3);
  for (auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
    at_2d<<<1, 8>>>(look(two, filter, cudaAddressModeClamp, false), at, out);
    say(filter ? "2d linear" : "2d point", host(out, 8));
    at_3d<<<1, 5>>>(look(three, filter, cudaAddressModeBorder, false), at, out);
    say(filter ? "3d linear" : "3d point", host(out, 5));
  }
  gathered<<<1, 8>>>(look(two, cudaFilterModePoint, cudaAddressModeClamp, false), at, reinterpret_cast<float4 *>(out));
  say("gather", host(out, 32));

  std::vector<float> stack(12);
  for (int k = 0; k < 12; ++k) stack[k] = float(1 << k);
  in_layers<<<1, 6>>>(look(array(stack, 2, 2, 3, cudaArrayLayered), cudaFilterModePoint, cudaAddressModeClamp, false),
                      out);
  say("layers", host(out, 6));

  const std::vector<uchar4> colours = {{0, 1, 127, 255}, {128, 64, 32, 16}, {255, 255, 0, 0}, {3, 5, 7, 9}};
  const std::vector<short2> pairs = {{-32768, 32767}, {1, -1}, {100, -100}, {0, 16384}};
  float *points = device(std::vector<float>{0.5f, 1.5f, 2.5f, 3.5f, 1.0f, 2.25f});
  at_1d<<<1, 6>>>(
      look(array(colours, 4, 0, 0), cudaFilterModeLinear, cudaAddressModeClamp, false, cudaReadModeNormalizedFloat),
      points, reinterpret_cast<float4 *>(out));
  say("uchar4 as float", host(out, 24));
  at_1d<<<1, 4>>>(
      look(array(pairs, 4, 0, 0), cudaFilterModePoint, cudaAddressModeClamp, false, cudaReadModeNormalizedFloat),
      points, reinterpret_cast<float2 *>(out));
  say("short2 as float", host(out, 8));
  short2 *shorts = device(std::vector<short2>(4));
  at_1d<<<1, 4>>>(look(array(pairs, 4, 0, 0), cudaFilterModePoint, cudaAddressModeClamp, false), points, shorts);
  printf("short2:");
  for (short2 each : host(shorts, 4)) printf(" %d,%d", each.x, each.y);
  printf("\n");

  cudaResourceDesc linear = {};
  linear.resType = cudaResourceTypeLinear;
  linear.res.linear.devPtr = device(std::vector<int>{10, 11, 12, 13});
  linear.res.linear.desc = cudaCreateChannelDesc<int>();
  linear.res.linear.sizeInBytes = 4 * sizeof(int);
  cudaTextureDesc plain = {};
  cudaTextureObject_t fetched;
  MUST(cudaCreateTextureObject(&fetched, &linear, &plain, nullptr));
  int *whole = device(std::vector<int>(16));
  fetch<<<1, 8>>>(fetched, whole);
  printf("fetch:");
  for (int each : host(whole, 8)) printf(" %d", each);
  printf("\n");

  std::vector<int> grid(16);
  for (int k = 0; k < 16; ++k) grid[k] = k;
  const cudaArray_t written = array(grid, 4, 4, 0, cudaArraySurfaceLoadStore);
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = written;
  cudaSurfaceObject_t object;
  MUST(cudaCreateSurfaceObject(&object, &resource));
  surface<<<1, 6>>>(object, whole);
  MUST(cudaMemcpy2DFromArray(grid.data(), 16, written, 0, 0, 16, 4, cudaMemcpyDeviceToHost));
  printf("surface:");
  for (int each : host(whole, 16)) printf(" %d", each);
  printf(" |");
  for (int each : grid) printf(" %d", each);
  printf("\n");

  // What is refused.
  cudaArray_t bad;
  const cudaChannelFormatDesc three_channels = cudaCreateChannelDesc(8, 8, 8, 0, cudaChannelFormatKindUnsigned),
                              integers = cudaCreateChannelDesc<int>();
  printf("three channels: %s\n", cudaGetErrorName(cudaMallocArray(&bad, &three_channels, 4, 4)));
  MUST(cudaMallocArray(&bad, &integers, 4, 4));
  resource.res.array.array = bad;
  printf("surface of a plain array: %s\n", cudaGetErrorName(cudaCreateSurfaceObject(&object, &resource)));
  cudaTextureDesc mixed = {};
  mixed.filterMode = cudaFilterModeLinear;
  printf("filtered integers: %s\n", cudaGetErrorName(cudaCreateTextureObject(&fetched, &resource, &mixed, nullptr)));
  mixed.filterMode = cudaFilterModePoint, mixed.readMode = cudaReadModeNormalizedFloat;
  printf("normalized 32 bits: %s\n", cudaGetErrorName(cudaCreateTextureObject(&fetched, &resource, &mixed, nullptr)));
  printf("beyond the array: %s\n",
         cudaGetErrorName(cudaMemcpy2DToArray(bad, 4, 0, grid.data(), 16, 16, 4, cudaMemcpyHostToDevice)));
}
