// A stand-in for the CUDA runtime: what a .cu file's host code calls when there is no GPU.
//
// It is linked into each source's shared object, with its symbols hidden there, and compiled against the headers of the
// nvcc that compiles the source. It lives in the process that runs the host code; the device is another process, the
// Python that started this one (process.py). Requests to the device go there through a socket, one at a time. The limits
// of the modelled GPU are known here, and this code refuses what that GPU would refuse, with its error codes.
// `nm -u` of a kernel's object names what nvcc's launch code needs; releases differ: CUDA 12 calls cudaLaunchKernel,
// CUDA 13 __cudaGetKernel and __cudaLaunchKernel.
//
// Device memory is a file that both processes map. Host code cannot touch it at its device address, because only
// managed and pinned memory is mapped there: a device pointer that is dereferenced faults, and the fault is reported.
// Copies go through a second mapping of the file, the alias. After the memory the file has a mark for each byte, which
// says whether it was ever written (memory.py): copies and fills set them without a request.
//
// Here are the functions of the runtime's API. What they rest on is in headers that are included once, here: channel.h,
// known.h, waits.h, faults.h, launches.h, tensor_maps.h, allocations.h, arrays.h, graphs.h, compute.h; driver.h
// has the driver's API. The stand-ins for libraries, cublas.cpp and curand.cpp, are linked to the programs that call them.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../vm/tensor_map.h"
#include "library.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // programs may call what is deprecated

namespace emulator_call {
struct Type {
  char kind, pointee, constant;
  unsigned size, pointee_size;
  const char *name;
};
}  // namespace emulator_call
extern "C" __attribute__((weak)) const emulator_call::Type *emulator_types(unsigned *count);  // see call.h
extern "C" __attribute__((weak)) int emulator_call_launcher(void *const *values);
// Of a source that is written as a PyTorch extension: see extension/emulator_torch.h.
extern "C" __attribute__((weak)) const char *emulator_extension_parameters(const char *name);
extern "C" __attribute__((weak)) void emulator_extension_call(
    const char *name, const char *arguments, void (*done)(int status, const char *data, size_t bytes));

namespace {

constexpr size_t DEFAULT_SHARED = 48 << 10;  // bytes of shared memory per block that need no opt-in
constexpr unsigned MAX_THREADS = 1024;       // per block
constexpr dim3 MAX_BLOCK(1024, 1024, 64);
constexpr dim3 MAX_GRID(0x7fffffff, 65535, 65535);

}  // namespace

// Parts of this file, each of which uses those above it.
// clang-format off
#include "channel.h"
#include "known.h"
#include "waits.h"
#include "faults.h"
// clang-format on

namespace {

// ---- the beginning -----------------------------------------------------------------------------------------------

// Before the constructors of the source, which may call CUDA or crash. EMULATOR_CHANNEL holds two descriptors.
__attribute__((constructor(101))) void attach() {
  const char *descriptors = getenv("EMULATOR_CHANNEL");
  if (!descriptors || sscanf(descriptors, "%d,%d", &channel, &memory_file) != 2) return;
  unsetenv("EMULATOR_CHANNEL");
  for (int descriptor : {channel, memory_file}) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  device = ask(Request::HELLO).take<Device>();
  constexpr int READ_WRITE = PROT_READ | PROT_WRITE;
  void *const both = mmap(nullptr, 2 * device.bytes, READ_WRITE, MAP_SHARED | MAP_NORESERVE, memory_file, 0);
  void *const wanted = reinterpret_cast<void *>(device.base);
  constexpr int RESERVE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void *const reserved = mmap(wanted, device.bytes, PROT_NONE, RESERVE, -1, 0);
  if (both == MAP_FAILED || reserved != wanted) {
    fprintf(stderr, "the emulator cannot lay out device memory in the program's process: %s\n", strerror(errno));
    _exit(126);
  }
  alias = static_cast<char *>(both);
  shared = static_cast<Shared *>(both);
  catch_faults();
}

// Memory that host code may touch at its device address.
bool map_for_host(uint64_t address, size_t bytes, Memory kind) {
  void *const at = reinterpret_cast<void *>(address);
  const off_t offset = address - device.base;
  const int how = MAP_SHARED | MAP_FIXED;
  constexpr int READ_WRITE = PROT_READ | PROT_WRITE;
  if (!served_here && mmap(at, page_up(bytes), READ_WRITE, how, memory_file, offset) == MAP_FAILED) return false;
  Mapped &entry = mapped()[address];
  entry = {std::max(entry.bytes, bytes), kind};
  return true;
}

const std::pair<const uint64_t, Mapped> *host_memory(uint64_t address) {
  auto after = mapped().upper_bound(address);
  return after != mapped().begin() && address - (--after)->first < after->second.bytes ? &*after : nullptr;
}

}  // namespace

// clang-format off
#include "launches.h"
#include "tensor_maps.h"
#include "allocations.h"
#include "arrays.h"
#include "graphs.h"
#include "compute.h"
// clang-format on

namespace {

// ---- error texts -------------------------------------------------------------------------------------------------

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
    ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    ERROR(cudaErrorInvalidFilterSetting, "linear filtering not supported for non-float type"),
    ERROR(cudaErrorInvalidNormSetting, "read as normalized float not supported for 32-bit non float type"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorMissingConfiguration, "__global__ function call is not configured"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    ERROR(cudaErrorInvalidPtx, "a PTX JIT compilation failed"),
    ERROR(cudaErrorFileNotFound, "file not found"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorAssert, "device-side assert triggered"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    ERROR(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    ERROR(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    ERROR(cudaErrorInvalidClusterSize, "a kernel launch error has occurred due to cluster misconfiguration"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorInvalidChannelDescriptor, "invalid channel descriptor"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(cudaErrorGraphExecUpdateFailure,
          "the graph update was not performed because it included changes which violated constraints specific to "
          "instantiated graph update"),
    ERROR(cudaErrorNotPermitted, "operation not permitted"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorUnknown, "unknown error"),
};
#undef ERROR

const ErrorText *find_text(cudaError_t code) {
  for (const ErrorText &error : ERRORS)
    if (error.code == code) return &error;
  return nullptr;
}

// Ask for the launcher's arguments, call it, tell what it returned; again while that is answered with more arguments.
void call_launcher() {
  unsigned count = 0;
  const emulator_call::Type *types = emulator_types(&count);
  Packet packet;
  packet.add(uint32_t(count));
  for (unsigned i = 0; i < count; ++i) {
    const emulator_call::Type &type = types[i];
    packet.add(type.kind).add(type.pointee).add(type.constant).add(uint32_t(type.size)).add(uint32_t(type.pointee_size));
    packet.text(type.name);
  }
  Answer answer = ask(Request::SIGNATURE, packet);
  given = new Stream{0, 0, ++streams_made, {}};
  streams().insert(given);
  std::vector<std::vector<std::max_align_t>> values(count);
  std::vector<void *> addresses(count);
  do {
    bool takes_stream = false;
    for (unsigned i = 0; i < count; ++i) {
      values[i].resize(types[i].size / sizeof(std::max_align_t) + 1);
      addresses[i] = values[i].data();
      for (unsigned at = 0; at < types[i].size; ++at) static_cast<char *>(addresses[i])[at] = answer.take<char>();
      if (types[i].kind != 'S') continue;
      takes_stream = true;
      memcpy(addresses[i], &given, sizeof given);
    }
    if (!takes_stream) given = nullptr;
    const int status = emulator_call_launcher(addresses.data());
    waited(everything());  // the caller does
    Packet result;
    result.add(int32_t(status)).text(cudaGetErrorString(cudaError_t(status))).text("");
    answer = ask(Request::RESULT, result);
  } while (!answer.data.empty());
}

// The same for a function of a PyTorch extension, whose result is more than a status.
void call_extension(const char *name) {
  const char *parameters = emulator_extension_parameters(name);
  const Answer answer =
      ask(Request::EXTENSION, Packet().add(uint32_t(parameters != nullptr)).text(parameters ? parameters : ""));
  emulator_extension_call(name, answer.data.data(), [](int status, const char *data, size_t bytes) {
    const std::string said(data, bytes);
    ask(Request::RESULT, Packet().add(int32_t(status)).text(status ? said : "").text(status ? "" : said));
  });
}

}  // namespace

extern "C" {

// What the process that runs the host code calls (runner.cpp): the launcher if there is one to call, or main.
__attribute__((visibility("default"))) int emulator_start(int argc, char **argv, void *main_of_program) {
  if (emulator_call_launcher) return call_launcher(), 0;
  if (emulator_extension_call) return call_extension(argv[0]), 0;
  return reinterpret_cast<int (*)(int, char **, char **)>(main_of_program)(argc, argv, environ);
}

// --- what nvcc's registration and launch code calls ----------------------------------------------------------------

// A file's handle is its number: of several files, each may have a kernel of some name (link.py).
void **__cudaRegisterFatBinary(void *) {
  static uintptr_t files = 0;
  return reinterpret_cast<void **>(files++);
}

// Of relocatable device code all files are one (build.py).
void **emulator_linked() { return nullptr; }

static std::string name_in(void **file, const char *name) {
  return file ? name + ("$file" + std::to_string(reinterpret_cast<uintptr_t>(file))) : name;
}

void __cudaRegisterFatBinaryEnd(void **) {}

void __cudaUnregisterFatBinary(void **) {}

char __cudaInitModule(void **) { return 1; }

void __cudaRegisterFunction(void **file, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *) {
  functions()[host].name = name_in(file, name);
}

void __cudaRegisterVar(void **file, char *host, char *, const char *name, int, size_t size, int, int) {
  variables()[host] = {name_in(file, name), size};
}

void __cudaRegisterManagedVar(void **file, void **host, char *shadow, const char *name, int, size_t size, int, int) {
  variables()[shadow] = {name_in(file, name), size};
  if (channel < 0) return;
  const uint64_t at = ask(Request::SYMBOL, Packet().text(name_in(file, name))).take<uint64_t>();
  const uint64_t page = at / 4096 * 4096;
  if (at && map_for_host(page, page_up(at + size - page), MANAGED)) *host = reinterpret_cast<void *>(at);
  variables()[host] = {name_in(file, name), size};
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

cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  CALL(a kernel launch);
  return launch(reinterpret_cast<Function *>(kernel), grid, block, dim3(0, 0, 0), shared, stream, arguments);
}

cudaError_t cudaLaunchKernel(
    const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  CALL(cudaLaunchKernel);
  return launch(find(host), grid, block, dim3(0, 0, 0), shared, stream, arguments);
}

cudaError_t cudaLaunchCooperativeKernel(
    const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  CALL(cudaLaunchCooperativeKernel);
  return launch(find(host), grid, block, dim3(0, 0, 0), shared, stream, arguments, true);
}

// The cluster that a launch asks for; 0: none.
static dim3 cluster_of(const cudaLaunchConfig_t &config) {
  dim3 cluster(0, 0, 0);
  for (unsigned i = 0; i < config.numAttrs; ++i)
    if (const cudaLaunchAttribute &each = config.attrs[i]; each.id == cudaLaunchAttributeClusterDimension)
      cluster = dim3(each.val.clusterDim.x, each.val.clusterDim.y, each.val.clusterDim.z);
  return cluster;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **arguments) {
  CALL(cudaLaunchKernelEx);
  const dim3 cluster = cluster_of(*config);
  bool cooperative = false, may_begin_early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute &attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeCooperative) cooperative = attribute.val.cooperative;
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)  // a permission: older GPUs do not use it
      may_begin_early = attribute.val.programmaticStreamSerializationAllowed && device.major >= 9;
  }
  return launch(find(host), config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes, config->stream,
                arguments, cooperative, may_begin_early);
}

// With --default-stream per-thread the headers rename the calls: here both streams are in order anyway.
cudaError_t __cudaLaunchKernel_ptsz(
    cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernel_ptsz(
    const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(host, grid, block, arguments, shared, stream);
}

// --- errors -------------------------------------------------------------------------------------------------------

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

static cudaError_t set_attribute(Function *function, enum cudaFuncAttribute attribute, int value) {
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || function->static_shared + value > size_t(device.shared_per_block))
        return refuse(cudaErrorInvalidValue,
                      format("%s: %d bytes of dynamic shared memory, at most %zu (%d per block less %zu static ones)",
                             function->readable.c_str(), value, device.shared_per_block - function->static_shared,
                             device.shared_per_block, function->static_shared));
      function->max_dynamic = value;
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return value < -1 || value > 100 ? record(cudaErrorInvalidValue) : cudaSuccess;
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      function->large_clusters = value;
      return cudaSuccess;
    default:
      return record(cudaErrorInvalidValue);
  }
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
  CALL(cudaFuncSetAttribute);
  Function *function = find(host);
  return function ? set_attribute(function, attribute, value) : unknown_function("cudaFuncSetAttribute");
}

cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache) {
  return find(host) ? cudaSuccess : unknown_function("cudaFuncSetCacheConfig");
}

cudaError_t cudaFuncSetSharedMemConfig(const void *host, enum cudaSharedMemConfig) {
  return find(host) ? cudaSuccess : unknown_function("cudaFuncSetSharedMemConfig");
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host) {
  CALL(cudaFuncGetAttributes);
  const Function *function = find(host);
  if (!function) return unknown_function("cudaFuncGetAttributes");
  *attributes = {};
  attributes->sharedSizeBytes = function->static_shared;
  attributes->localSizeBytes = function->local;
  attributes->maxThreadsPerBlock = function->max_threads;
  attributes->numRegs = 0;  // ptxas's business
  attributes->ptxVersion = function->ptx_version;
  // nvcc's machine code, for all GPUs of that generation; newer ones compile the PTX.
  const bool native = function->ptx_version / 10 == device.major;
  attributes->binaryVersion = native ? function->ptx_version : device.major * 10 + device.minor;
  attributes->maxDynamicSharedSizeBytes = function->dynamic_limit();
  attributes->preferredShmemCarveout = -1;
  attributes->clusterDimMustBeSet = function->cluster.x > 0;
  attributes->requiredClusterWidth = function->cluster.x;
  attributes->requiredClusterHeight = function->cluster.y;
  attributes->requiredClusterDepth = function->cluster.z;
  attributes->nonPortableClusterSizeAllowed = function->large_clusters;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *host, int threads, size_t dynamic_shared, unsigned) {
  const Function *function = find(host);
  if (!function) return unknown_function("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  if (threads < 1) return record(cudaErrorInvalidValue);
  const bool impossible = threads > int(function->max_threads) || dynamic_shared > function->dynamic_limit();
  *blocks = impossible ? 0 : occupancy(*function, threads, dynamic_shared);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, const void *host, int threads, size_t dynamic_shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, dynamic_shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *host, int blocks, int threads) {
  const Function *function = find(host);
  if (!function) return unknown_function("cudaOccupancyAvailableDynamicSMemPerBlock");
  if (blocks < 1 || threads < 1) return record(cudaErrorInvalidValue);
  const size_t each = ask(Request::SHARED_ROOM, Packet().add(uint32_t(blocks))).take<uint64_t>();
  *bytes = each > function->static_shared ? each - function->static_shared : 0;
  return cudaSuccess;
}

// Which blocks of the GPU can form a cluster is not known here: as if any could.
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *host, const cudaLaunchConfig_t *config) {
  const Function *function = find(host);
  if (!function) return unknown_function("cudaOccupancyMaxActiveClusters");
  const dim3 asked = cluster_of(*config), cluster = asked.x ? asked : function->cluster.x ? function->cluster : dim3(1);
  const dim3 grid(config->gridDim.x ? config->gridDim.x : cluster.x, config->gridDim.y, config->gridDim.z);
  const std::string misfit = wrong_cluster(*function, grid, cluster);
  if (!misfit.empty()) return refuse(cudaErrorInvalidClusterSize, misfit);
  const int threads = int(config->blockDim.x * config->blockDim.y * config->blockDim.z);
  int blocks = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, host, threads, config->dynamicSmemBytes);
  if (!error) *clusters = blocks * device.multiprocessors / int(cluster.x * cluster.y * cluster.z);
  return error;
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *host, const cudaLaunchConfig_t *config) {
  const Function *function = find(host);
  if (!function) return unknown_function("cudaOccupancyMaxPotentialClusterSize");
  if (device.major < 9) return refuse(cudaErrorNotSupported, "clusters need compute capability 9.0");
  const dim3 asked = cluster_of(*config), &own = function->cluster;
  if (asked.x && own.x && (asked.x != own.x || asked.y != own.y || asked.z != own.z))
    return refuse(cudaErrorInvalidClusterSize, wrong_cluster(*function, config->gridDim, asked));
  const int threads = int(config->blockDim.x * config->blockDim.y * config->blockDim.z);
  int blocks = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, host, threads, config->dynamicSmemBytes);
  if (!error) *size = blocks ? int(most_blocks(*function)) : 0;
  return error;
}

// --- the device -----------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int *count) {
  *count = channel >= 0;
  return channel >= 0 ? cudaSuccess : record(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *ordinal) { return *ordinal = 0, cudaSuccess; }

cudaError_t cudaSetDevice(int ordinal) { return ordinal ? record(cudaErrorInvalidDevice) : cudaSuccess; }

cudaError_t cudaInitDevice(int ordinal, unsigned, unsigned) { return cudaSetDevice(ordinal); }

cudaError_t cudaSetValidDevices(int *, int) { return cudaSuccess; }

cudaError_t cudaChooseDevice(int *ordinal, const struct cudaDeviceProp *) { return *ordinal = 0, cudaSuccess; }

cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }

cudaError_t cudaGetDeviceFlags(unsigned *flags) { return *flags = cudaDeviceMapHost, cudaSuccess; }

cudaError_t cudaDeviceSynchronize() {
  CALL(cudaDeviceSynchronize);
  if (!captures().empty()) return forbidden_in_capture("cudaDeviceSynchronize");
  return synchronised(everything());
}

cudaError_t cudaDeviceReset() {
  CALL(cudaDeviceReset);
  sticky = false;
  last_error = cudaSuccess;
  return synchronised(everything());
}

// Values that are set are returned again, and change nothing: the engine's stack and heap have fixed sizes.
static size_t limits[] = {1024, 1 << 20, 8 << 20};  // of a thread's stack, of printf, of malloc
static size_t *limit_of(enum cudaLimit limit) {
  switch (limit) {
    case cudaLimitStackSize:
      return &limits[0];
    case cudaLimitPrintfFifoSize:
      return &limits[1];
    case cudaLimitMallocHeapSize:
      return &limits[2];
    default:
      return nullptr;
  }
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
  if (size_t *known = limit_of(limit)) *known = value;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
  const size_t *known = limit_of(limit);
  *value = known ? *known : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache *config) {
  return *config = cudaFuncCachePreferNone, cudaSuccess;
}
#if CUDART_VERSION < 13000  // older names
cudaError_t cudaThreadExit() { return cudaDeviceReset(); }
cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
cudaError_t cudaThreadSetLimit(enum cudaLimit limit, size_t value) { return cudaDeviceSetLimit(limit, value); }
cudaError_t cudaThreadGetLimit(size_t *value, enum cudaLimit limit) { return cudaDeviceGetLimit(value, limit); }
cudaError_t cudaThreadSetCacheConfig(enum cudaFuncCache config) { return cudaDeviceSetCacheConfig(config); }
cudaError_t cudaThreadGetCacheConfig(enum cudaFuncCache *config) { return cudaDeviceGetCacheConfig(config); }
#endif
cudaError_t cudaDeviceSetSharedMemConfig(enum cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaDeviceGetSharedMemConfig(enum cudaSharedMemConfig *config) {
  return *config = cudaSharedMemBankSizeFourByte, cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int) {
  return snprintf(text, bytes, "0000:00:00.0"), cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceGetP2PAttribute(int *, enum cudaDeviceP2PAttr, int, int) {
  return record(cudaErrorInvalidDevice);  // of two different devices
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return record(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceDisablePeerAccess(int) { return record(cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// Texels along each axis, and layers: an H200's.
static const std::pair<cudaDeviceAttr, int> TEXTURE_LIMITS[] = {
    {cudaDevAttrMaxTexture1DWidth, 131072},        {cudaDevAttrMaxTexture2DWidth, 131072},
    {cudaDevAttrMaxTexture2DHeight, 65536},        {cudaDevAttrMaxTexture3DWidth, 16384},
    {cudaDevAttrMaxTexture3DHeight, 16384},        {cudaDevAttrMaxTexture3DDepth, 16384},
    {cudaDevAttrMaxTexture3DWidthAlt, 8192},       {cudaDevAttrMaxTexture3DHeightAlt, 8192},
    {cudaDevAttrMaxTexture3DDepthAlt, 32768},      {cudaDevAttrMaxTexture1DLayeredWidth, 32768},
    {cudaDevAttrMaxTexture1DLayeredLayers, 2048},  {cudaDevAttrMaxTexture2DLayeredWidth, 32768},
    {cudaDevAttrMaxTexture2DLayeredHeight, 32768}, {cudaDevAttrMaxTexture2DLayeredLayers, 2048},
    {cudaDevAttrMaxTexture2DGatherWidth, 32768},   {cudaDevAttrMaxTexture2DGatherHeight, 32768},
    {cudaDevAttrMaxTexture1DLinearWidth, 1 << 28}, {cudaDevAttrMaxTexture2DLinearWidth, 131072},
    {cudaDevAttrMaxTexture2DLinearHeight, 65000},  {cudaDevAttrMaxTexture2DLinearPitch, 2097120},
    {cudaDevAttrMaxSurface1DWidth, 32768},         {cudaDevAttrMaxSurface2DWidth, 131072},
    {cudaDevAttrMaxSurface2DHeight, 65536},        {cudaDevAttrMaxSurface3DWidth, 16384},
    {cudaDevAttrMaxSurface3DHeight, 16384},        {cudaDevAttrMaxSurface3DDepth, 16384},
    {cudaDevAttrMaxSurface1DLayeredWidth, 32768},  {cudaDevAttrMaxSurface1DLayeredLayers, 2048},
    {cudaDevAttrMaxSurface2DLayeredWidth, 32768},  {cudaDevAttrMaxSurface2DLayeredHeight, 32768},
    {cudaDevAttrMaxSurface2DLayeredLayers, 2048},
};

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = MAX_THREADS;
      break;
    case cudaDevAttrMaxBlockDimX:
      *value = MAX_BLOCK.x;
      break;
    case cudaDevAttrMaxBlockDimY:
      *value = MAX_BLOCK.y;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = MAX_BLOCK.z;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = MAX_GRID.x;
      break;
    case cudaDevAttrMaxGridDimY:
      *value = MAX_GRID.y;
      break;
    case cudaDevAttrMaxGridDimZ:
      *value = MAX_GRID.z;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = DEFAULT_SHARED;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = device.shared_per_block;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = device.shared_per_multiprocessor;
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = device.threads_per_multiprocessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = device.blocks_per_multiprocessor;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = 65536;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = device.multiprocessors;
      break;
    case cudaDevAttrL2CacheSize:
      *value = device.l2_bytes;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.minor;
      break;
    case cudaDevAttrTotalConstantMemory:
      *value = 64 << 10;
      break;
    case cudaDevAttrMaxPitch:
      *value = 0x7fffffff;
      break;
    case cudaDevAttrTextureAlignment:
      *value = 512;
      break;
    case cudaDevAttrTexturePitchAlignment:
      *value = 32;
      break;
    case cudaDevAttrSurfaceAlignment:
      *value = 512;
      break;
    case cudaDevAttrClockRate:
      *value = 1000000;
      break;  // kHz: of no GPU, but a rate to divide by
    case cudaDevAttrMemoryClockRate:
      *value = 1000000;
      break;  // likewise
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 512;
      break;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
      *value = 2;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = 1;
      break;
    case cudaDevAttrComputeMode:
      *value = cudaComputeModeDefault;
      break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrGpuOverlap:
      *value = 1;
      break;
    case cudaDevAttrClusterLaunch:
      *value = device.major >= 9;
      break;
    default:
      if (attribute < 1 || attribute >= cudaDevAttrMax) return record(cudaErrorInvalidValue);
      for (const auto &[which, most] : TEXTURE_LIMITS)
        if (attribute == which) return *value = most, cudaSuccess;
      *value = 0;  // what the emulated device does not have: mipmaps, peers, ...
  }
  return cudaSuccess;
}

#if CUDART_VERSION < 13000
#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *, int);
#endif
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal) {
  CALL(cudaGetDeviceProperties);
  if (ordinal) return record(cudaErrorInvalidDevice);
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulator of compute capability %d.%d", device.major,
           device.minor);
  properties->major = device.major;
  properties->minor = device.minor;
  properties->warpSize = 32;
  properties->multiProcessorCount = device.multiprocessors;
  properties->l2CacheSize = device.l2_bytes;
  properties->totalGlobalMem = device.total_memory;
  properties->totalConstMem = 64 << 10;
  properties->memPitch = 0x7fffffff;
  properties->textureAlignment = 512;
  properties->texturePitchAlignment = 32;
  properties->memoryBusWidth = 512;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = DEFAULT_SHARED;
  properties->sharedMemPerBlockOptin = device.shared_per_block;
  properties->sharedMemPerMultiprocessor = device.shared_per_multiprocessor;
  properties->reservedSharedMemPerBlock = 1024;
  properties->maxThreadsPerBlock = MAX_THREADS;
  properties->maxThreadsPerMultiProcessor = device.threads_per_multiprocessor;
  properties->maxBlocksPerMultiProcessor = device.blocks_per_multiprocessor;
  properties->managedMemory = properties->concurrentManagedAccess = properties->unifiedAddressing = 1;
  properties->canMapHostMemory = properties->concurrentKernels = properties->cooperativeLaunch = 1;
  properties->hostRegisterSupported = 1;
  properties->clusterLaunch = device.major >= 9;
  properties->streamPrioritiesSupported = properties->asyncEngineCount = properties->computePreemptionSupported = 1;
  properties->globalL1CacheSupported = properties->localL1CacheSupported = properties->memoryPoolsSupported = 1;
#if CUDART_VERSION < 13000
  properties->clockRate = properties->memoryClockRate = 1000000;  // kHz: of no GPU, but a rate to divide by
  properties->deviceOverlap = 1;
  properties->singleToDoublePrecisionPerfRatio = 2;
#endif
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

// --- memory pools ---------------------------------------------------------------------------------------------------

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int ordinal) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  return *pool = reinterpret_cast<cudaMemPool_t>(&default_pool), cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int ordinal) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  return *pool = reinterpret_cast<cudaMemPool_t>(pool_of_device), cudaSuccess;
}
cudaError_t cudaDeviceSetMemPool(int ordinal, cudaMemPool_t pool) {
  if (ordinal) return record(cudaErrorInvalidDevice);
  return pool_of_device = reinterpret_cast<MemoryPool *>(pool), cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *) {
  CALL(cudaMemPoolCreate);
  return *pool = reinterpret_cast<cudaMemPool_t>(new MemoryPool), cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  MemoryPool *const pool = reinterpret_cast<MemoryPool *>(handle);
  if (pool == &default_pool)
    return refuse(cudaErrorInvalidValue, "cudaMemPoolDestroy: the device's default pool cannot be destroyed");
  if (pool == pool_of_device) pool_of_device = &default_pool;
  return cudaSuccess;  // what is allocated from it still counts there
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
  CALL(cudaMemPoolSetAttribute);
  MemoryPool *const pool = reinterpret_cast<MemoryPool *>(handle);
  if (attribute >= cudaMemPoolReuseFollowEventDependencies && attribute <= cudaMemPoolReuseAllowInternalDependencies)
    pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies] = *static_cast<int *>(value);
  else if (attribute == cudaMemPoolAttrReleaseThreshold)
    pool->threshold = *static_cast<uint64_t *>(value);
  else if (attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh)
    pool->high = pool->used;  // only 0 may be given
  else
    return record(cudaErrorInvalidValue);
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value) {
  CALL(cudaMemPoolGetAttribute);
  const MemoryPool *const pool = reinterpret_cast<MemoryPool *>(handle);
  if (attribute >= cudaMemPoolReuseFollowEventDependencies && attribute <= cudaMemPoolReuseAllowInternalDependencies) {
    *static_cast<int *>(value) = pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies];
    return cudaSuccess;
  }
  if (attribute < cudaMemPoolAttrReleaseThreshold || attribute > cudaMemPoolAttrUsedMemHigh)
    return record(cudaErrorInvalidValue);
  const bool high = attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh;
  *static_cast<uint64_t *>(value) =
      attribute == cudaMemPoolAttrReleaseThreshold ? pool->threshold
      : high                                       ? pool->high
                                                   : pool->used;
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const struct cudaMemAccessDesc *, size_t) { return cudaSuccess; }

// --- hints, which change nothing here -------------------------------------------------------------------------------

cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaLaunchAttributeID, const cudaLaunchAttributeValue *) {
  return check(stream, "cudaStreamSetAttribute");
}
cudaError_t cudaStreamGetAttribute(cudaStream_t stream, cudaLaunchAttributeID, cudaLaunchAttributeValue *value) {
  *value = {};
  return check(stream, "cudaStreamGetAttribute");
}
cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
  if (const cudaError_t error = check(from, "cudaStreamCopyAttributes")) return error;
  return check(to, "cudaStreamCopyAttributes");
}

// --- streams and events: each call is done when it returns, so that every order is kept ----------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  std::lock_guard lock(guard);
  Stream *made = new Stream{flags, priority, ++streams_made, {}};
  several |= flags & cudaStreamNonBlocking || streams_made > (given ? 2 : 1);
  streams().insert(made);
  *stream = reinterpret_cast<cudaStream_t>(made);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard lock(guard);
  if (!streams().erase(reinterpret_cast<Stream *>(stream)))
    return refuse(cudaErrorInvalidResourceHandle, "cudaStreamDestroy: the stream does not exist (or no longer)");
  Stream *const gone = reinterpret_cast<Stream *>(stream);
  if (is_blocking(*gone)) join(legacy().clock, gone->clock);
  delete gone;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CALL(cudaStreamSynchronize);
  if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread &&
      !streams().count(reinterpret_cast<Stream *>(stream)))
    return refuse(cudaErrorInvalidResourceHandle, "cudaStreamSynchronize: the stream does not exist (or no longer)");
  if (captures().count(stream)) return forbidden_in_capture("cudaStreamSynchronize", stream);
  return synchronised(latest(stream_of(stream)));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
  return *flags = stream ? reinterpret_cast<Stream *>(stream)->flags : 0, cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  return *priority = stream ? reinterpret_cast<Stream *>(stream)->priority : 0, cudaSuccess;
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void *, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!events().count(reinterpret_cast<Event *>(event))) return record(cudaErrorInvalidResourceHandle);
  if (const auto captured = captured_events().find(event); captured != captured_events().end())
    captures()[stream] = captured->second;  // the stream joins
  else
    join(stream_of(stream).clock, reinterpret_cast<Event *>(event)->clock);
  return stream ? check(stream, "cudaStreamWaitEvent") : cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  return in_stream(stream, "cudaLaunchHostFunc", [=] { return call_host(function, data); }, cudaGraphNodeTypeHost);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned) {
  if (const cudaError_t error = check(stream, "cudaStreamAddCallback")) return error;
  waited(latest(stream_of(stream)));  // it may tell other threads
  callback(stream, last_error, data);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  std::lock_guard lock(guard);
  Event *made = new Event{false, {}, flags, {}};
  events().insert(made);
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::lock_guard lock(guard);
  if (!events().erase(reinterpret_cast<Event *>(event))) return record(cudaErrorInvalidResourceHandle);
  delete reinterpret_cast<Event *>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  CALL(cudaEventRecord);
  if (!events().count(reinterpret_cast<Event *>(event)))
    return refuse(cudaErrorInvalidResourceHandle, "cudaEventRecord: the event was not created (or is destroyed)");
  in_flight = nullptr;
  if (stream) {
    if (const cudaError_t error = check(stream, "cudaEventRecord")) return error;
  }
  captured_events().erase(event);
  if (const auto captured = captures().find(stream); captured != captures().end())
    return captured_events()[event] = captured->second, cudaSuccess;
  Event &entry = *reinterpret_cast<Event *>(event);
  entry = {true, std::chrono::steady_clock::now(), entry.flags, latest(stream_of(stream))};
  return sticky ? last_error : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CALL(cudaEventSynchronize);
  Event *const entry = reinterpret_cast<Event *>(event);
  return events().count(entry) ? synchronised(entry->clock) : record(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  UNSAFE_CALL(cudaEventQuery);
  return cudaEventSynchronize(event);
}

// The emulation's time on this machine: a GPU's is not known.
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  for (cudaEvent_t event : {start, end}) {
    const Event *entry = reinterpret_cast<Event *>(event);
    if (!events().count(const_cast<Event *>(entry)) || !entry->recorded || entry->flags & cudaEventDisableTiming)
      return refuse(cudaErrorInvalidResourceHandle,
                    "cudaEventElapsedTime: an event was not recorded, or has no timing");
  }
  const auto between = reinterpret_cast<Event *>(end)->time - reinterpret_cast<Event *>(start)->time;
  *milliseconds = std::chrono::duration<float, std::milli>(between).count();
  return sticky ? last_error : cudaSuccess;
}

// --- memory ----------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void **address, size_t bytes) {
  UNSAFE_CALL(cudaMalloc);
  return allocate(address, bytes, DEVICE);
}
cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
  CALL(cudaMallocAsync);
  return cudaMallocFromPoolAsync(address, bytes, reinterpret_cast<cudaMemPool_t>(pool_of_device), stream);
}
cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t handle, cudaStream_t stream) {
  CALL(cudaMallocFromPoolAsync);
  if (const cudaError_t error = check(stream, "cudaMallocAsync")) return error;
  if (const cudaError_t error = allocate(address, bytes, DEVICE)) return error;
  MemoryPool *const pool = reinterpret_cast<MemoryPool *>(handle);
  pool->used += bytes;
  pool->high = std::max(pool->high, pool->used);
  from_pools()[*address] = {pool, bytes};
  return cudaSuccess;
}
cudaError_t cudaMallocManaged(void **address, size_t bytes, unsigned) {
  UNSAFE_CALL(cudaMallocManaged);
  return allocate(address, bytes, MANAGED);
}
cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
  UNSAFE_CALL(cudaHostAlloc);
  const cudaError_t error = allocate(address, bytes, PINNED);
  if (!error) host_flags()[*address] = flags;
  return error;
}
cudaError_t cudaMallocHost(void **address, size_t bytes) {
  UNSAFE_CALL(cudaMallocHost);
  return allocate(address, bytes, PINNED);
}
cudaError_t cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  UNSAFE_CALL(cudaMallocPitch);
  *pitch = (width + 511) / 512 * 512;
  return allocate(address, *pitch * height, DEVICE);
}
cudaError_t cudaFree(void *address) {
  CALL(cudaFree);
  if (const cudaError_t unsafe = address ? unsafe_in_capture("cudaFree") : cudaSuccess) return unsafe;
  waited(everything());
  return release(address, false, "cudaFree");
}
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
  CALL(cudaFreeAsync);
  if (const cudaError_t error = check(stream, "cudaFreeAsync")) return error;
  if (captures().count(stream)) return cudaSuccess;  // the graph needs it at each of its launches
  return release(address, false, "cudaFreeAsync");
}
cudaError_t cudaFreeHost(void *address) {
  CALL(cudaFreeHost);
  if (const cudaError_t unsafe = address ? unsafe_in_capture("cudaFreeHost") : cudaSuccess) return unsafe;
  waited(everything());
  return release(address, true, "cudaFreeHost");
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned) {
  CALL(cudaHostRegister);
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  if (!at || !bytes) return refuse(cudaErrorInvalidValue, "cudaHostRegister: there must be memory, got none");
  for (const auto &[base, memory] : registered())
    if (at < base + memory.bytes && base < at + bytes)
      return refuse(cudaErrorHostMemoryAlreadyRegistered, "cudaHostRegister: some of the memory is registered already");
  if (host_memory(at))
    return refuse(cudaErrorHostMemoryAlreadyRegistered, "cudaHostRegister: the memory is pinned or managed already");
  registered().emplace(at, Registered{bytes, 0, where(nullptr)});
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *address) {
  CALL(cudaHostUnregister);
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  if (!registered().count(at))
    return refuse(cudaErrorHostMemoryNotRegistered, "cudaHostUnregister: the address must be one of cudaHostRegister");
  waited(everything());
  return unregister(at);
}

cudaError_t cudaHostGetDevicePointer(void **address, void *host, unsigned) {
  CALL(cudaHostGetDevicePointer);
  const uint64_t at = reinterpret_cast<uint64_t>(host);
  *address = host;
  if (host_memory(at)) return cudaSuccess;
  auto *const memory = registered_at(at);
  if (!memory || in_arena(at))
    return refuse(cudaErrorInvalidValue,
                  "cudaHostGetDevicePointer: the memory must be of cudaHostAlloc, cudaMallocHost or "
                  "cudaHostRegister");
  if (const cudaError_t error = lend("cudaHostGetDevicePointer", memory->first, memory->second)) return error;
  *address = reinterpret_cast<void *>(memory->second.device + (at - memory->first));
  return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned *flags, void *address) {
  const auto found = host_flags().find(address);
  return *flags = cudaHostAllocMapped | (found == host_flags().end() ? 0 : found->second), cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  CALL(cudaPointerGetAttributes);
  *attributes = {};
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  const auto *host = host_memory(address);
  if (auto *const memory = host ? nullptr : registered_at(address)) {
    if (const cudaError_t error = lend("cudaPointerGetAttributes", memory->first, memory->second)) return error;
    const uint64_t offset = address - (in_arena(address) ? memory->second.device : memory->first);
    attributes->type = cudaMemoryTypeHost;
    attributes->hostPointer = reinterpret_cast<void *>(memory->first + offset);
    attributes->devicePointer = reinterpret_cast<void *>(memory->second.device + offset);
    return cudaSuccess;
  }
  attributes->type =
      host                ? host->second.kind == MANAGED ? cudaMemoryTypeManaged : cudaMemoryTypeHost
      : in_arena(address) ? cudaMemoryTypeDevice
                          : cudaMemoryTypeUnregistered;
  if (host || in_arena(address)) attributes->devicePointer = const_cast<void *>(pointer);
  if (host || !in_arena(address)) attributes->hostPointer = const_cast<void *>(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  CALL(cudaMemGetInfo);
  if (channel < 0) return record(cudaErrorNoDevice);
  *free = ask(Request::MEMORY).take<uint64_t>();
  *total = device.total_memory;
  return cudaSuccess;
}

cudaError_t cudaMemset(void *address, int value, size_t bytes) {
  CALL(cudaMemset);
  return fill("cudaMemset", address, value, bytes);
}
cudaError_t cudaMemsetAsync(void *address, int value, size_t bytes, cudaStream_t stream) {
  CALL(cudaMemsetAsync);
  return in_stream(stream, "cudaMemsetAsync", [=] { return fill("cudaMemsetAsync", address, value, bytes); });
}
cudaError_t cudaMemset2D(void *address, size_t pitch, int value, size_t width, size_t height) {
  CALL(cudaMemset2D);
  cudaError_t error = cudaSuccess;
  for (size_t row = 0; row < height && !error; ++row)
    error = fill("cudaMemset2D", static_cast<char *>(address) + row * pitch, value, width);
  return error;
}
cudaError_t cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return in_stream(stream, "cudaMemset2DAsync", [=] { return cudaMemset2D(address, pitch, value, width, height); });
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpy);
  const cudaError_t error = copy("cudaMemcpy", to, from, bytes, kind);
  protect_managed(false);  // it waits for what was launched before
  return error;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpyAsync);
  return in_stream(stream, "cudaMemcpyAsync", [=] { return copy("cudaMemcpyAsync", to, from, bytes, kind); });
}
cudaError_t cudaMemcpyPeer(void *to, int, const void *from, int, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
  CALL(cudaMemcpy2D);
  const cudaError_t error = copy_2d("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height, kind);
  protect_managed(false);
  return error;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpy2DAsync);
  return in_stream(stream, "cudaMemcpy2DAsync", [=] {
    return copy_2d("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, height, kind);
  });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemPrefetchAsync(const void *, size_t, struct cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMemAdvise(const void *, size_t, enum cudaMemoryAdvise, struct cudaMemLocation) { return cudaSuccess; }
#else
cudaError_t cudaMemPrefetchAsync(const void *, size_t, int, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemAdvise(const void *, size_t, enum cudaMemoryAdvise, int) { return cudaSuccess; }
cudaError_t cudaMemPrefetchAsync_v2(const void *, size_t, struct cudaMemLocation, unsigned, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMemAdvise_v2(const void *, size_t, enum cudaMemoryAdvise, struct cudaMemLocation) {
  return cudaSuccess;
}
#endif

cudaError_t cudaGetSymbolAddress(void **address, const void *host) {
  CALL(cudaGetSymbolAddress);
  size_t bytes;
  return symbol(address, &bytes, host);
}
cudaError_t cudaGetSymbolSize(size_t *bytes, const void *host) {
  CALL(cudaGetSymbolSize);
  void *address;
  return symbol(&address, bytes, host);
}
cudaError_t cudaMemcpyToSymbol(
    const void *host, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpyToSymbol);
  return copy_symbol("cudaMemcpyToSymbol", true, host, from, bytes, offset, kind);
}
cudaError_t cudaMemcpyToSymbolAsync(
    const void *host, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpyToSymbolAsync);
  return in_stream(stream, "cudaMemcpyToSymbolAsync", [=] {
    return copy_symbol("cudaMemcpyToSymbolAsync", true, host, from, bytes, offset, kind);
  });
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *host, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  CALL(cudaMemcpyFromSymbol);
  return copy_symbol("cudaMemcpyFromSymbol", false, host, to, bytes, offset, kind);
}
cudaError_t cudaMemcpyFromSymbolAsync(
    void *to, const void *host, size_t bytes, size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) {
  CALL(cudaMemcpyFromSymbolAsync);
  return in_stream(stream, "cudaMemcpyFromSymbolAsync", [=] {
    return copy_symbol("cudaMemcpyFromSymbolAsync", false, host, to, bytes, offset, kind);
  });
}

// --- the driver ---------------------------------------------------------------------------------------------------

#undef cudaGetDriverEntryPoint
#undef cudaGetDriverEntryPointByVersion

cudaError_t cudaGetDriverEntryPoint(
    const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  CALL(cudaGetDriverEntryPoint);
  return entry_point("cudaGetDriverEntryPoint", name, function, CUDART_VERSION, flags, status);
}
cudaError_t cudaGetDriverEntryPoint_ptsz(
    const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPoint(name, function, flags, status);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  CALL(cudaGetDriverEntryPointByVersion);
  return entry_point("cudaGetDriverEntryPointByVersion", name, function, version, flags, status);
}
cudaError_t cudaGetDriverEntryPointByVersion_ptsz(
    const char *name, void **function, unsigned version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(name, function, version, flags, status);
}

// For programs that are linked with -lcuda.
CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return encode_tiled(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill);
}
CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap *map, void *address) { return replace_address(map, address); }

}  // extern "C"

#include "driver.h"

namespace {

void *driver_function(const char *name, unsigned *since) {
  *since = 12000;
  if (!strcmp(name, "cuTensorMapEncodeTiled")) return reinterpret_cast<void *>(encode_tiled);
  if (!strcmp(name, "cuTensorMapReplaceAddress")) return reinterpret_cast<void *>(replace_address);
  *since = 2000;
  static const std::map<std::string, void *> all = {
#define X(function) {#function, reinterpret_cast<void *>(&::function)}
      // clang-format off
      X(cuInit), X(cuDriverGetVersion), X(cuDeviceGetCount), X(cuDeviceGet), X(cuDeviceGetName), X(cuDeviceTotalMem),
      X(cuDeviceGetAttribute), X(cuDeviceComputeCapability), X(cuCtxGetCurrent), X(cuCtxSetCurrent),
      X(cuCtxPushCurrent), X(cuCtxPopCurrent), X(cuCtxDestroy), X(cuCtxGetDevice), X(cuCtxSynchronize),
      X(cuDevicePrimaryCtxRetain), X(cuDevicePrimaryCtxRelease), X(cuDevicePrimaryCtxSetFlags), X(cuModuleLoadData),
      X(cuModuleLoadDataEx), X(cuModuleLoad), X(cuModuleUnload), X(cuModuleGetFunction), X(cuModuleGetGlobal),
      X(cuFuncGetAttribute), X(cuFuncSetAttribute), X(cuFuncSetCacheConfig),
      X(cuOccupancyMaxActiveBlocksPerMultiprocessor), X(cuLaunchKernel), X(cuLaunchCooperativeKernel), X(cuMemAlloc),
      X(cuMemAllocManaged), X(cuMemAllocPitch), X(cuMemAllocAsync), X(cuMemFree), X(cuMemFreeAsync),
      X(cuMemAllocHost), X(cuMemHostAlloc), X(cuMemFreeHost), X(cuMemGetInfo), X(cuMemGetAddressRange), X(cuMemcpy),
      X(cuMemcpyAsync), X(cuMemcpyHtoD), X(cuMemcpyDtoH), X(cuMemcpyDtoD), X(cuMemcpyHtoDAsync),
      X(cuMemcpyDtoHAsync), X(cuMemcpyDtoDAsync), X(cuMemsetD8), X(cuMemsetD8Async), X(cuMemsetD16), X(cuMemsetD32), X(cuMemsetD32Async),
      X(cuStreamCreate), X(cuStreamCreateWithPriority), X(cuStreamDestroy), X(cuStreamSynchronize), X(cuStreamQuery),
      X(cuStreamWaitEvent), X(cuEventCreate), X(cuEventDestroy), X(cuEventRecord), X(cuEventSynchronize),
      X(cuEventQuery), X(cuEventElapsedTime), X(cuGetErrorString), X(cuGetErrorName),
      {"cuCtxCreate", reinterpret_cast<void *>(&cuCtxCreate_v2)},
#undef X
      // clang-format on
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace
