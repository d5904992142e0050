// The driver's functions: a module of PTX text that the program brings, its kernels, a global variable, and memory.
// Run: cudaemu driver_ptx.cu -lcuda
// Prints: module loaded: 100 values, total 9900
#include <cuda.h>

#include "check.h"

#define DRIVER(call)                                        \
  if (const CUresult error = (call)) {                      \
    const char *name;                                       \
    cuGetErrorName(error, &name);                           \
    return std::printf("line %d: %s\n", __LINE__, name), 1; \
  }

const char *const text = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 total;
.visible .const .align 4 .u32 factor = 2;
.visible .entry twice(.param .u64 data, .param .u32 n) {
  .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mad.lo.s32 %r2, %r2, %r3, 0;
  mov.u32 %r3, %tid.x;
  add.s32 %r2, %r2, %r3;
  setp.ge.s32 %p, %r2, %r1;
  @%p ret;
  cvta.to.global.u64 %rd1, %rd1;
  mul.wide.s32 %rd2, %r2, 4;
  add.s64 %rd1, %rd1, %rd2;
  ld.global.u32 %r4, [%rd1];
  ld.const.u32 %r5, [factor];
  mul.lo.s32 %r4, %r4, %r5;
  st.global.u32 [%rd1], %r4;
  red.global.add.u32 [total], %r4;
  ret;
}
)";

int main() {
  int n = 100, count, major;
  std::vector<int> values(n), got(n);
  for (int i = 0; i < n; ++i) values[i] = i;
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUfunction kernel;
  CUdeviceptr data, total;
  size_t bytes;
  char name[100];
  DRIVER(cuInit(0));
  DRIVER(cuDeviceGetCount(&count));
  DRIVER(cuDeviceGet(&device, 0));
  DRIVER(cuDeviceGetName(name, sizeof name, device));
  int peer = 1;  // there is one GPU
  DRIVER(cuDeviceCanAccessPeer(&peer, device, device));
  MUST(!peer && cudaDeviceGetP2PAttribute(&peer, cudaDevP2PAttrAccessSupported, 0, 1) == cudaErrorInvalidDevice);
  MUST(cudaGetLastError() == cudaErrorInvalidDevice);
  DRIVER(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  DRIVER(cuDevicePrimaryCtxRetain(&context, device));
  DRIVER(cuCtxSetCurrent(context));
  DRIVER(cuModuleLoadData(&module, text));
  DRIVER(cuModuleGetFunction(&kernel, module, "twice"));
  DRIVER(cuModuleGetGlobal(&total, &bytes, module, "total"));
  MUST(bytes == 4 && count == 1 && major == 8);
  DRIVER(cuMemAlloc(&data, n * sizeof(int)));
  DRIVER(cuMemcpyHtoD(data, values.data(), n * sizeof(int)));
  DRIVER(cuMemsetD32(total, 0, 1));
  void *arguments[] = {&data, &n};
  CUstream stream;
  DRIVER(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DRIVER(cuLaunchKernel(kernel, 4, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
  DRIVER(cuStreamSynchronize(stream));
  DRIVER(cuMemcpyDtoH(got.data(), data, n * sizeof(int)));
  int sum;
  DRIVER(cuMemcpyDtoH(&sum, total, sizeof sum));
  for (int i = 0; i < n; ++i) MUST(got[i] == 2 * i);
  MUST(cuModuleGetFunction(&kernel, module, "thrice") == CUDA_ERROR_NOT_FOUND);
  DRIVER(cuMemFree(data));
  DRIVER(cuStreamDestroy(stream));
  DRIVER(cuModuleUnload(module));
  DRIVER(cuDevicePrimaryCtxRelease(device));
  std::printf("module loaded: %d values, total %d\n", n, sum);
}
