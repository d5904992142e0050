// What the programs of NVIDIA's cuda-samples take from their helper_cuda.h: checked calls, and the choice of a GPU.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "helper_string.h"

#ifndef MAX
#define MAX(A, B) ((A) > (B) ? (A) : (B))
#endif

namespace emulator_samples {
inline const char *name_of(cudaError_t error) { return cudaGetErrorName(error); }
#ifdef __cuda_cuda_h__
inline const char *name_of(CUresult error) {
  const char *name = NULL;
  return cuGetErrorName(error, &name) == CUDA_SUCCESS ? name : "an unknown error";
}
#endif
#ifdef NVRTC_GET_TYPE_NAME
inline const char *name_of(nvrtcResult) { return "an error of NVRTC"; }
#endif
template <class Status>
const char *name_of(Status) {  // of a library
  return "an error of a library";
}
}  // namespace emulator_samples

template <class Status>
const char *_cudaGetErrorEnum(Status status) {
  return emulator_samples::name_of(status);
}

template <class Status>
void check(Status status, const char *call, const char *file, int line) {
  if (!status) return;
  fprintf(stderr, "CUDA error at %s:%d code=%u(%s) \"%s\"\n", file, line, unsigned(status),
          emulator_samples::name_of(status), call);
  exit(EXIT_FAILURE);
}
#define checkCudaErrors(CALL) check((CALL), #CALL, __FILE__, __LINE__)

inline void __getLastCudaError(const char *what, const char *file, int line) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s(%d): CUDA error: %s: (%d) %s\n", file, line, what, int(error), cudaGetErrorString(error));
  exit(EXIT_FAILURE);
}
#define getLastCudaError(WHAT) __getLastCudaError(WHAT, __FILE__, __LINE__)
inline void __printLastCudaError(const char *what, const char *file, int line) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s(%d): CUDA error: %s: (%d) %s\n", file, line, what, int(error), cudaGetErrorString(error));
}
#define printLastCudaError(WHAT) __printLastCudaError(WHAT, __FILE__, __LINE__)

inline int ftoi(float value) { return value >= 0 ? int(value + 0.5f) : int(value - 0.5f); }

// Lanes for fp32 of a multiprocessor, by the Programming Guide ("Arithmetic Instructions").
inline int _ConvertSMVer2Cores(int major, int minor) {
  return (major == 6 && minor == 0) || major == 7 || (major == 8 && minor == 0) ? 64 : 128;
}
inline const char *_ConvertSMVer2ArchName(int major, int minor) {
  switch (major) {
    case 6:
      return "Pascal";
    case 7:
      return minor < 5 ? "Volta" : "Turing";
    case 8:
      return minor < 9 ? "Ampere" : "Ada";
    case 9:
      return "Hopper";
    default:
      return major >= 10 ? "Blackwell" : "Graphics Device";
  }
}

#ifdef __CUDA_RUNTIME_H__
// Uses the GPU of that number; ends the program if there is none.
inline int gpuDeviceInit(int device) {
  int count = 0;
  checkCudaErrors(cudaGetDeviceCount(&count));
  device = device < 0 ? 0 : device;
  if (device >= count) {
    fprintf(stderr, "gpuDeviceInit: there is no GPU %d, but %d of them\n", device, count);
    return -device;
  }
  checkCudaErrors(cudaSetDevice(device));
  return device;
}
inline int gpuGetMaxGflopsDeviceId() { return 0; }
inline int findCudaDevice(int argc, const char **argv) {
  int device = gpuGetMaxGflopsDeviceId();
  if (checkCmdLineFlag(argc, argv, "device")) {
    device = gpuDeviceInit(getCmdLineArgumentInt(argc, argv, "device"));
    if (device < 0) exit(EXIT_FAILURE);
  } else {
    checkCudaErrors(cudaSetDevice(device));
  }
  int major = 0, minor = 0;
  checkCudaErrors(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  checkCudaErrors(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  printf("GPU Device %d: \"%s\" with compute capability %d.%d\n\n", device, _ConvertSMVer2ArchName(major, minor), major,
         minor);
  return device;
}
inline int findIntegratedGPU() {
  fprintf(stderr, "CUDA error: there is no integrated GPU\n");
  exit(EXIT_FAILURE);
}
inline bool checkCudaCapabilities(int major, int minor) {
  cudaDeviceProp properties;
  checkCudaErrors(cudaGetDeviceProperties(&properties, 0));
  const bool there = properties.major > major || (properties.major == major && properties.minor >= minor);
  if (!there) printf("  No GPU was found with compute capability %d.%d or newer\n", major, minor);
  return there;
}
#endif
