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

namespace {

// CuTe DSL's host code does not ask the driver for a tensor map: it writes the hardware's own 64 bytes, and 64 that mean
// nothing. What they hold is not documented; this is what its compiler stores (nvidia-cutlass-dsl 4.8, compute capability
// 9.0). False for anything else, such as a map of im2col.
bool hardware_tensor_map(const uint64_t *word, CUtensorMap *made, CUresult *error) {
  constexpr uint64_t KIND = 0xf, OFTEN = 1 << 18 | 1 << 21, KNOWN = KIND | 7 << 4 | 15 << 7 | 3 << 13 | OFTEN;
  const uint64_t head = uint32_t(word[1]), type = head >> 7 & 15, rank = (head >> 4 & 7) + 1;
  if ((head & KIND) != 2 || head & ~KNOWN || type >= TENSOR_MAP_TYPES || rank > TensorMap::MOST_DIMENSIONS ||
      word[0] % 16 || word[0] >> 57 || word[6] >> 32 & 0xffffff || word[7] >> 32)
    return false;
  const uint64_t low[] = {word[1] >> 32, uint32_t(word[2]), word[2] >> 32, uint32_t(word[3])};  // units of 16 bytes
  cuuint64_t sizes[5], strides[4];
  cuuint32_t box[5], steps[] = {1, 1, 1, 1, 1};
  for (unsigned n = 0; n < rank; ++n) {
    sizes[n] = uint64_t(uint32_t(word[4 + n / 2] >> n % 2 * 32)) + 1;
    box[n] = (n ? word[7] >> 8 * (n - 1) & 255 : word[6] >> 56) + 1;
    if (n) strides[n - 1] = (low[n - 1] | (word[3] >> (28 + 4 * n) & 15) << 32) * 16;
  }
  *error = encode_tiled(made, CUtensorMapDataType(type), rank, reinterpret_cast<void *>(word[0]), sizes, strides, box,
                        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CUtensorMapSwizzle(head >> 13 & 3),
                        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return true;
}

// A kernel's arguments, with tensor maps as the emulator has them.
struct Arguments {
  std::vector<void *> all;
  std::vector<std::vector<CUtensorMap>> copies;  // CUtensorMap: for its alignment
  CUresult error = CUDA_SUCCESS;

  Arguments(const void *kernel, void **given) {
    const Function *const function = find(kernel);
    for (size_t n = 0; function && n < function->params.size(); ++n) {
      const size_t bytes = function->params[n].second;
      all.push_back(given[n]);
      for (size_t at = 0; at + sizeof(CUtensorMap) <= bytes && !error; at += 64) {
        uint64_t words[8];
        CUtensorMap made;
        memcpy(words, static_cast<char *>(given[n]) + at, sizeof words);
        if (!hardware_tensor_map(words, &made, &error) || error) continue;
        if (all.back() == given[n]) {
          copies.emplace_back(bytes / sizeof made + 1);
          all.back() = memcpy(static_cast<void *>(copies.back().data()), given[n], bytes);
        }
        memcpy(static_cast<char *>(all.back()) + at, &made, sizeof made);
      }
    }
  }
};

}  // namespace

extern "C" {

cudaError_t _cudaLaunchKernelEx(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
  CALL(cudaLaunchKernelExC);
  Arguments changed(kernel, arguments);
  return changed.error ? cudaError_t(changed.error) : cudaLaunchKernelExC(config, kernel, changed.all.data());
}
cudaError_t _cudaLaunchKernel(
    const void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, void **arguments, size_t shared, cudaStream_t stream) {
  CALL(cudaLaunchKernel);
  Arguments changed(kernel, arguments);
  if (changed.error) return cudaError_t(changed.error);
  const dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
  return cudaLaunchKernel(kernel, grid, block, changed.all.data(), shared, stream);
}
const char *cuda_dialect_get_error_name(cudaError_t error) { return cudaGetErrorName(error); }
void cuda_dialect_print_on_error(cudaError_t error) {
  if (error) fprintf(stderr, "%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
}
void cuda_dialect_assert_success(cudaError_t error) { cuda_dialect_print_on_error(error); }

// With TVM's calling convention (enable_tvm_ffi) the library is loaded at the first call, and errors are raised by one of
// TVM's functions, which is passed.
int cuda_dialect_init_library_once(
    cudaLibrary_t *library, cudaError_t (*init)(cudaLibrary_t *), cudaError_t (*load)(cudaLibrary_t *, int),
    void (*raise)(const char *, const char *)) {
  static std::mutex loading;
  std::lock_guard lock(loading);
  if (*library) return 0;
  cudaError_t error = init(library);
  if (!error) error = load(library, 0);
  if (error) raise("CUDADialectError", format("CUDA Error Code: %d", int(error)).c_str());
  return error;
}
void cuda_dialect_unload_library_once(cudaLibrary_t *library) {
  if (*library) cudaLibraryUnload(*library);
  *library = nullptr;
}
void CuteDSLRT_TVMFFISetRaisedCudaError(void (*raise)(const char *, const char **, int), int error) {
  const std::string message = format("CUDA Error Code: %d", error);
  const char *part = message.c_str();
  raise("CUDADialectError", &part, 1);
}
void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(void (*raise)(const char *, const char **, int)) {
  CuteDSLRT_TVMFFISetRaisedCudaError(raise, cudaErrorInvalidConfiguration);
}

}  // extern "C"
