// What the programs of NVIDIA's cuda-samples take from their helper_cuda_drvapi.h: the same by the driver's functions.
#pragma once

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

#include <string>

#include "helper_string.h"

#ifndef checkCudaErrors
inline void __checkCudaErrors(CUresult error, const char *file, int line) {
  if (error == CUDA_SUCCESS) return;
  const char *name = NULL;
  cuGetErrorName(error, &name);
  fprintf(stderr, "CUDA error at %s:%d code=%d(%s)\n", file, line, int(error), name ? name : "an unknown error");
  exit(EXIT_FAILURE);
}
#define checkCudaErrors(CALL) __checkCudaErrors(CALL, __FILE__, __LINE__)
#endif

template <class T>
void getCudaAttribute(T *value, CUdevice_attribute attribute, int device) {
  int answer = 0;
  checkCudaErrors(cuDeviceGetAttribute(&answer, attribute, device));
  *value = T(answer);
}
inline int _ConvertSMVer2CoresDRV(int major, int minor) {
  return (major == 6 && minor == 0) || major == 7 || (major == 8 && minor == 0) ? 64 : 128;
}
inline int gpuGetMaxGflopsDeviceIdDRV() { return 0; }
inline int gpuDeviceInitDRV(int argc, const char **argv) {
  checkCudaErrors(cuInit(0));
  int count = 0;
  checkCudaErrors(cuDeviceGetCount(&count));
  const int device = getCmdLineArgumentInt(argc, argv, "device");
  if (device < 0 || device >= count) {
    fprintf(stderr, "cudaDeviceInit: there is no GPU %d, but %d of them\n", device, count);
    return -1;
  }
  return device;
}
inline CUdevice findCudaDeviceDRV(int argc, const char **argv) {
  const int number = gpuDeviceInitDRV(argc, argv);
  if (number < 0) exit(EXIT_FAILURE);
  CUdevice device;
  checkCudaErrors(cuDeviceGet(&device, number));
  char name[100];
  checkCudaErrors(cuDeviceGetName(name, sizeof name, device));
  printf("> Using CUDA Device [%d]: %s\n", number, name);
  return device;
}
// Reads a file of machine code or PTX from the program's folders.
inline bool findFatbinPath(const char *name, std::string &path, char **argv, std::ostringstream &code) {
  char *const found = sdkFindFilePath(name, argv[0]);
  if (!found) return false;
  path = found;
  free(found);
  code << std::ifstream(path, std::ios::binary).rdbuf();
  return true;
}
inline bool checkCudaCapabilitiesDRV(int major, int minor, int device) {
  int own = 0, part = 0;
  getCudaAttribute(&own, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  getCudaAttribute(&part, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return own > major || (own == major && part >= minor);
}
