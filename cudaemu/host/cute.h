// The runtime library of CuTe DSL (libcute_dsl_runtime.so, which CUTE_DSL_LIBS names): what its compiled host code calls.
// Most are CUDA's own functions with an underscore before their names. A part of libcuda.cpp, which includes it.

#define CUTE_ALIAS(NAME) asm(".globl _" #NAME "\n.set _" #NAME ", " #NAME "\n")

CUTE_ALIAS(cuDeviceGet);
CUTE_ALIAS(cuKernelGetAttribute);
CUTE_ALIAS(cuLibraryGetGlobal);
CUTE_ALIAS(cuLibraryGetKernel);
CUTE_ALIAS(cuLibraryGetKernelCount);
CUTE_ALIAS(cuLibraryGetModule);
CUTE_ALIAS(cuLibraryLoadData);
CUTE_ALIAS(cuLibraryLoadFromFile);
CUTE_ALIAS(cuLibraryUnload);
CUTE_ALIAS(cuTensorMapEncodeTiled);
CUTE_ALIAS(cudaDeviceGetAttribute);
CUTE_ALIAS(cudaDeviceSynchronize);
CUTE_ALIAS(cudaEventCreate);
CUTE_ALIAS(cudaEventDestroy);
CUTE_ALIAS(cudaEventElapsedTime);
CUTE_ALIAS(cudaEventRecord);
CUTE_ALIAS(cudaFree);
CUTE_ALIAS(cudaFreeAsync);
CUTE_ALIAS(cudaFreeHost);
CUTE_ALIAS(cudaFuncSetAttribute);
CUTE_ALIAS(cudaGetDevice);
CUTE_ALIAS(cudaGetDeviceCount);
CUTE_ALIAS(cudaGetDeviceProperties);
CUTE_ALIAS(cudaGraphDestroy);
CUTE_ALIAS(cudaGraphExecDestroy);
CUTE_ALIAS(cudaGraphInstantiate);
CUTE_ALIAS(cudaGraphLaunch);
CUTE_ALIAS(cudaKernelSetAttributeForDevice);
CUTE_ALIAS(cudaLibraryGetGlobal);
CUTE_ALIAS(cudaLibraryGetKernel);
CUTE_ALIAS(cudaLibraryGetKernelCount);
CUTE_ALIAS(cudaLibraryLoadData);
CUTE_ALIAS(cudaLibraryLoadFromFile);
CUTE_ALIAS(cudaLibraryUnload);
CUTE_ALIAS(cudaMalloc);
CUTE_ALIAS(cudaMallocAsync);
CUTE_ALIAS(cudaMallocHost);
CUTE_ALIAS(cudaMallocManaged);
CUTE_ALIAS(cudaMemcpy);
CUTE_ALIAS(cudaMemcpyAsync);
CUTE_ALIAS(cudaMemset);
CUTE_ALIAS(cudaMemsetAsync);
CUTE_ALIAS(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
CUTE_ALIAS(cudaProfilerStart);
CUTE_ALIAS(cudaProfilerStop);
CUTE_ALIAS(cudaSetDevice);
CUTE_ALIAS(cudaStreamAddCallback);
CUTE_ALIAS(cudaStreamBeginCapture);
CUTE_ALIAS(cudaStreamCreate);
CUTE_ALIAS(cudaStreamDestroy);
CUTE_ALIAS(cudaStreamEndCapture);
CUTE_ALIAS(cudaStreamSynchronize);
CUTE_ALIAS(cudaStreamWaitEvent);

extern "C" {

cudaError_t _cudaLaunchKernelEx(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
  return cudaLaunchKernelExC(config, kernel, arguments);
}
cudaError_t _cudaLaunchKernel(const void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, void **arguments, size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, dim3(grid_x, grid_y, grid_z), dim3(block_x, block_y, block_z), arguments, shared,
                          stream);
}
const char *cuda_dialect_get_error_name(cudaError_t error) { return cudaGetErrorName(error); }
void cuda_dialect_print_on_error(cudaError_t error) {
  if (error) fprintf(stderr, "%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // extern "C"
