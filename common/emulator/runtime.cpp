// A stand-in for the CUDA runtime: what a kernel.cu's host code calls when there is no GPU.
//
// It is linked into each kernel's shared object, with its symbols hidden there, and compiled against the headers of
// the nvcc that compiles the kernel. It knows the limits of the modelled GPU and refuses what that GPU would refuse,
// with the same error codes; what is left of a launch it hands to Python, and memory calls likewise.
// `nm -u` of a kernel's object names what nvcc's launch code needs; releases differ: CUDA 12 calls cudaLaunchKernel,
// CUDA 13 __cudaGetKernel and __cudaLaunchKernel.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr size_t DEFAULT_SHARED = 48 << 10;  // bytes of shared memory per block that need no opt-in
constexpr unsigned MAX_THREADS = 1024;       // per block
constexpr dim3 MAX_BLOCK(1024, 1024, 64);
constexpr dim3 MAX_GRID(0x7fffffff, 65535, 65535);

struct Function {
  std::string name;
  size_t static_shared = 0;
  size_t local = 0;
  unsigned max_threads = MAX_THREADS;
  long long max_dynamic = -1;  // opted in to; -1: never asked
  size_t dynamic_limit() const {
    if (max_dynamic >= 0) return max_dynamic;
    return static_shared < DEFAULT_SHARED ? DEFAULT_SHARED - static_shared : 0;
  }
};

struct Variable {
  std::string name;
  size_t size;
};

struct Configuration {  // of one <<<...>>>
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

// The kernel's object registers what it has in its constructors, which may run before ours: hence local statics.
auto &functions() {  // keyed by the host function that stands for the kernel
  static std::map<const void *, Function> all;
  return all;
}
auto &variables() {  // keyed by the host variable that stands for the device's
  static std::map<const void *, Variable> all;
  return all;
}
std::vector<Configuration> configurations;
cudaError_t last_error = cudaSuccess;
bool sticky = false;  // after a fault nothing works any more, as in a CUDA context

}  // namespace

// What Python sets: see Runtime in memory.py, which mirrors both structures.
struct Device {
  int major, minor, multiprocessors, l2_bytes;
  int shared_per_block, shared_per_multiprocessor, threads_per_multiprocessor, blocks_per_multiprocessor;
};

struct Callbacks {
  int (*launch)(const char *kernel, const unsigned *grid, const unsigned *block, const unsigned *cluster, size_t shared,
                int cooperative, void **arguments);
  uint64_t (*allocate)(size_t bytes);  // 0: out of memory
  int (*release)(uint64_t address);
  int (*fill)(uint64_t address, int value, size_t bytes);
  int (*copy)(uint64_t to, uint64_t from, size_t bytes);
  uint64_t (*symbol)(const char *name);
};

namespace {

Device device;
Callbacks python;

cudaError_t record(cudaError_t error) {
  if (!sticky && error != cudaSuccess) last_error = error;
  return error;
}

bool fits(dim3 size, dim3 limit) {
  return size.x && size.y && size.z && size.x <= limit.x && size.y <= limit.y && size.z <= limit.z;
}

Function *find(const void *function) {
  const auto found = functions().find(function);
  return found == functions().end() ? nullptr : &found->second;
}

int occupancy(const Function &, int threads, size_t dynamic_shared);

cudaError_t launch(Function *function, dim3 grid, dim3 block, dim3 cluster, size_t shared, bool cooperative,
                   void **arguments) {
  if (sticky) return last_error;
  if (!function) return record(cudaErrorInvalidDeviceFunction);
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  // CUDA 13.0 on an H200, 2026-11-21: whatever is wrong with a configuration is cudaErrorInvalidValue, also where the
  // manual has cudaErrorInvalidConfiguration.
  if (!fits(grid, MAX_GRID) || !fits(block, MAX_BLOCK) || threads > std::min(MAX_THREADS, function->max_threads) ||
      shared > function->dynamic_limit())
    return record(cudaErrorInvalidValue);
  if (cooperative && uint64_t(grid.x) * grid.y * grid.z >
                         uint64_t(occupancy(*function, threads, shared)) * device.multiprocessors)
    return record(cudaErrorCooperativeLaunchTooLarge);
  const unsigned sizes[3][3] = {
      {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {cluster.x, cluster.y, cluster.z}};
  const auto error =
      cudaError_t(python.launch(function->name.c_str(), sizes[0], sizes[1], sizes[2], shared, cooperative, arguments));
  record(error);
  sticky = error != cudaSuccess;
  return error;
}

cudaError_t memory(int error) { return sticky ? last_error : record(cudaError_t(error)); }

int occupancy(const Function &function, int threads, size_t dynamic_shared) {
  // Registers are ptxas's business and not known here: this counts threads, blocks and shared memory.
  const size_t shared = function.static_shared + dynamic_shared + 1024;  // 1 KB per block is the system's
  int blocks = device.blocks_per_multiprocessor;
  blocks = std::min(blocks, device.threads_per_multiprocessor / ((threads + 31) / 32 * 32));
  return std::min<int>(blocks, device.shared_per_multiprocessor / shared);
}

struct ErrorText {
  cudaError_t code;
  const char *name, *text;
};

#define ERROR(code, text) {code, #code, text}
const ErrorText ERRORS[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorAssert, "device-side assert triggered"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    ERROR(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorUnknown, "unknown error"),
};
#undef ERROR

const ErrorText *find_text(cudaError_t code) {
  for (const ErrorText &error : ERRORS)
    if (error.code == code) return &error;
  return nullptr;
}

}  // namespace

extern "C" {

// --- for Python -------------------------------------------------------------------------------------------------

__attribute__((visibility("default"))) void emulator_reset(const Device *modelled, const Callbacks *callbacks) {
  device = *modelled;
  python = *callbacks;
  last_error = cudaSuccess;
  sticky = false;
  configurations.clear();
  for (auto &entry : functions()) entry.second.max_dynamic = -1;
}

__attribute__((visibility("default"))) void emulator_describe(
    const char *name, size_t static_shared, size_t local, unsigned max_threads) {
  for (auto &entry : functions()) {
    Function &function = entry.second;
    if (function.name != name) continue;
    function.static_shared = static_shared;
    function.local = local;
    function.max_threads = max_threads;
  }
}

__attribute__((visibility("default"))) const char *emulator_error_string(int code) {
  return cudaGetErrorString(cudaError_t(code));
}

// --- what nvcc's registration and launch code calls ----------------------------------------------------------------

void **__cudaRegisterFatBinary(void *) {
  static void *handle;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void **) {}

void __cudaUnregisterFatBinary(void **) {}

char __cudaInitModule(void **) { return 1; }

void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *,
                            int *) {
  functions()[host].name = name;
}

void __cudaRegisterVar(void **, char *host, char *, const char *name, int, size_t size, int, int) {
  variables()[host] = {name, size};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (configurations.empty()) return record(cudaErrorMissingConfiguration);
  const Configuration configuration = configurations.back();
  configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t *>(stream) = configuration.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  Function *function = find(host);
  *kernel = reinterpret_cast<cudaKernel_t>(function);
  return function ? cudaSuccess : record(cudaErrorInvalidDeviceFunction);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t) {
  return launch(reinterpret_cast<Function *>(kernel), grid, block, dim3(1), shared, false, arguments);
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                    cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t) {
  return launch(find(host), grid, block, dim3(1), shared, false, arguments);
}

cudaError_t cudaLaunchKernel_ptsz(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                                  cudaStream_t stream) {
  return cudaLaunchKernel(host, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t) {
  return launch(find(host), grid, block, dim3(1), shared, true, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **arguments) {
  dim3 cluster(1);
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute &attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension)
      cluster = dim3(attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z);
    if (attribute.id == cudaLaunchAttributeCooperative) cooperative = attribute.val.cooperative;
  }
  return launch(find(host), config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes, cooperative,
                arguments);
}

// --- what a launcher calls: errors ------------------------------------------------------------------------------

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  if (!sticky) last_error = cudaSuccess;
  return error;
}

const char *cudaGetErrorName(cudaError_t code) {
  const ErrorText *error = find_text(code);
  return error ? error->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code) {
  const ErrorText *error = find_text(code);
  return error ? error->text : "unrecognized error code";
}

// --- kernels ------------------------------------------------------------------------------------------------------

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
  Function *function = find(host);
  if (!function) return record(cudaErrorInvalidDeviceFunction);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || function->static_shared + value > size_t(device.shared_per_block))
        return record(cudaErrorInvalidValue);
      function->max_dynamic = value;
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return value < -1 || value > 100 ? record(cudaErrorInvalidValue) : cudaSuccess;
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      return cudaSuccess;
    default:
      return record(cudaErrorInvalidValue);
  }
}

cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache) {
  return find(host) ? cudaSuccess : record(cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
  const Function *function = find(host);
  if (!function) return record(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->sharedSizeBytes = function->static_shared;
  attributes->localSizeBytes = function->local;
  attributes->maxThreadsPerBlock = function->max_threads;
  attributes->ptxVersion = attributes->binaryVersion = device.major * 10 + device.minor;
  attributes->maxDynamicSharedSizeBytes = function->dynamic_limit();
  attributes->preferredShmemCarveout = -1;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads,
                                                                   size_t dynamic_shared, unsigned) {
  const Function *function = find(host);
  if (!function) return record(cudaErrorInvalidDeviceFunction);
  if (threads < 1) return record(cudaErrorInvalidValue);
  const bool impossible = threads > int(function->max_threads) || dynamic_shared > function->dynamic_limit();
  *blocks = impossible ? 0 : occupancy(*function, threads, dynamic_shared);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads,
                                                          size_t dynamic_shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, dynamic_shared, 0);
}

// --- the device -----------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }

cudaError_t cudaGetDevice(int *ordinal) { return *ordinal = 0, cudaSuccess; }

cudaError_t cudaSetDevice(int ordinal) { return ordinal ? record(cudaErrorInvalidDevice) : cudaSuccess; }

cudaError_t cudaDeviceSynchronize() { return last_error; }

cudaError_t cudaStreamSynchronize(cudaStream_t) { return last_error; }

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = MAX_THREADS; break;
    case cudaDevAttrMaxBlockDimX: *value = MAX_BLOCK.x; break;
    case cudaDevAttrMaxBlockDimY: *value = MAX_BLOCK.y; break;
    case cudaDevAttrMaxBlockDimZ: *value = MAX_BLOCK.z; break;
    case cudaDevAttrMaxGridDimX: *value = MAX_GRID.x; break;
    case cudaDevAttrMaxGridDimY: *value = MAX_GRID.y; break;
    case cudaDevAttrMaxGridDimZ: *value = MAX_GRID.z; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = DEFAULT_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = device.shared_per_block; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = device.shared_per_multiprocessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = device.threads_per_multiprocessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = device.blocks_per_multiprocessor; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMultiProcessorCount: *value = device.multiprocessors; break;
    case cudaDevAttrL2CacheSize: *value = device.l2_bytes; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = device.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = device.minor; break;
    default: return record(cudaErrorNotSupported);
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulator of compute capability %d.%d", device.major,
           device.minor);
  properties->major = device.major;
  properties->minor = device.minor;
  properties->warpSize = 32;
  properties->cooperativeLaunch = 1;
  properties->multiProcessorCount = device.multiprocessors;
  properties->l2CacheSize = device.l2_bytes;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = DEFAULT_SHARED;
  properties->sharedMemPerBlockOptin = device.shared_per_block;
  properties->sharedMemPerMultiprocessor = device.shared_per_multiprocessor;
  properties->reservedSharedMemPerBlock = 1024;
  properties->maxThreadsPerBlock = MAX_THREADS;
  properties->maxThreadsPerMultiProcessor = device.threads_per_multiprocessor;
  properties->maxBlocksPerMultiProcessor = device.blocks_per_multiprocessor;
  const dim3 limits[] = {MAX_BLOCK, MAX_GRID};
  int *const sizes[] = {properties->maxThreadsDim, properties->maxGridSize};
  for (int i = 0; i < 2; ++i) {
    sizes[i][0] = limits[i].x;
    sizes[i][1] = limits[i].y;
    sizes[i][2] = limits[i].z;
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *properties, int ordinal) {  // CUDA 12's name for it
  return cudaGetDeviceProperties(properties, ordinal);
}

// --- memory: device addresses are addresses in the arena of memory.py, in this process ------------------------------

cudaError_t cudaMalloc(void **address, size_t bytes) {
  *address = reinterpret_cast<void *>(bytes ? python.allocate(bytes) : 0);
  return memory(bytes && !*address ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t) { return cudaMalloc(address, bytes); }

cudaError_t cudaFree(void *address) {
  return memory(address ? python.release(reinterpret_cast<uint64_t>(address)) : cudaSuccess);
}

cudaError_t cudaFreeAsync(void *address, cudaStream_t) { return cudaFree(address); }

cudaError_t cudaMemset(void *address, int value, size_t bytes) {
  return memory(python.fill(reinterpret_cast<uint64_t>(address), value, bytes));
}

cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(address, value, bytes);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind) {
  return memory(python.copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  const auto found = variables().find(symbol);
  *address = reinterpret_cast<void *>(found == variables().end() ? 0 : python.symbol(found->second.name.c_str()));
  return *address ? cudaSuccess : record(cudaErrorInvalidSymbol);
}

cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol) {
  const auto found = variables().find(symbol);
  if (found == variables().end()) return record(cudaErrorInvalidSymbol);
  *bytes = found->second.size;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
  void *address;
  const cudaError_t error = cudaGetSymbolAddress(&address, symbol);
  return error ? error : cudaMemcpy(static_cast<char *>(address) + offset, from, bytes, kind);
}

cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}

cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  void *address;
  const cudaError_t error = cudaGetSymbolAddress(&address, symbol);
  return error ? error : cudaMemcpy(to, static_cast<char *>(address) + offset, bytes, kind);
}

}  // extern "C"
