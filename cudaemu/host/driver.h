// The driver's functions, for programs and frameworks that bring PTX: linked directly (with -lcuda, which is ignored),
// or found with cudaGetDriverEntryPoint. Each is the runtime's own, with the driver's error codes, which have the same
// numbers. A part of runtime.cpp, which includes it.

#undef cuCtxCreate

namespace {

struct Module { std::string prefix; };  // of the names that its kernels and variables have in the other process

struct Context { int device = 0; } the_context;  // there is one
thread_local std::vector<Context *> contexts;    // a thread's stack of them: the last is current

auto &modules() {
  static auto &all = *new std::set<Module *>;
  return all;
}
auto &loaded_functions() {
  static auto &all = *new std::map<std::string, Function>;
  return all;
}

Function *loaded_function(const void *handle) {
  for (auto &[name, function] : loaded_functions())
    if (&function == handle) return &function;
  return nullptr;
}

// A call of the driver does not change the runtime's last error.
struct Apart {
  const cudaError_t before = last_error;
  ~Apart() {
    if (!sticky) last_error = before;
  }
};
#define DRIVER(NAME, ...) \
  CALL(NAME);             \
  const Apart apart;      \
  return CUresult(__VA_ARGS__)

// Options of the just-in-time compiler, of which the buffer for errors is used.
struct JitOptions {
  unsigned count = 0;
  const CUjit_option *names = nullptr;
  void *const *values = nullptr;
  void tell(const std::string &error) const {
    char *buffer = nullptr;
    size_t size = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (names[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = static_cast<char *>(values[i]);
      if (names[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = reinterpret_cast<uintptr_t>(values[i]);
    }
    if (buffer && size) snprintf(buffer, size, "%s", error.c_str());
  }
};

CUresult wrong_image(CUresult code, const std::string &why, const JitOptions &options) {
  options.tell(why);
  return driver_refuses(code, why);
}

CUresult load_module(const char *call, CUmodule *out, const void *image, const JitOptions &options = {}) {
  const char *const text = static_cast<const char *>(image);
  const auto begins = [&](const char *magic) { return !memcmp(text, magic, 4); };
  if (!out || !text)
    return driver_refuses(CUDA_ERROR_INVALID_VALUE, format("%s: its arguments must not be null", call));
  if (begins("\177ELF") || begins("\x50\xed\x55\xba") || begins("\xb1\x43\x62\x46"))
    return wrong_image(CUDA_ERROR_NO_BINARY_FOR_GPU,
                       format("%s: the emulator runs PTX, not machine code: load the text of nvcc -ptx", call),
                       options);
  Answer answer = ask(Request::MODULE, Packet().text(text));
  const uint32_t number = answer.take<uint32_t>();
  if (!number) return wrong_image(CUDA_ERROR_INVALID_PTX, answer.rest(), options);
  Module *const made = new Module{"module" + std::to_string(number) + ":"};
  modules().insert(made);
  return *out = reinterpret_cast<CUmodule>(made), CUDA_SUCCESS;
}

CUresult load_file(const char *call, CUmodule *module, const char *name) {
  FILE *const file = fopen(name, "rb");
  if (!file) return driver_refuses(CUDA_ERROR_FILE_NOT_FOUND, format("%s: %s: %s", call, name, strerror(errno)));
  std::string text;
  char piece[4096];
  for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;) text.append(piece, got);
  fclose(file);
  return load_module(call, module, text.c_str());
}

CUresult no_module(const char *call) {
  return driver_refuses(CUDA_ERROR_INVALID_HANDLE, format("%s: the module does not exist (or no longer)", call));
}

Module *module_of(CUmodule handle) {
  Module *const module = reinterpret_cast<Module *>(handle);
  return modules().count(module) ? module : nullptr;
}

CUresult find_function(const char *call, CUfunction *out, CUmodule handle, const char *name) {
  const Module *const module = module_of(handle);
  if (!module) return no_module(call);
  Function &function = loaded_functions()[module->prefix + name];
  function.name = module->prefix + name;
  if (!learn(function))
    return driver_refuses(CUDA_ERROR_NOT_FOUND, format("%s: the module has no kernel '%s'", call, name));
  return *out = reinterpret_cast<CUfunction>(&function), CUDA_SUCCESS;
}

CUresult find_variable(const char *call, CUdeviceptr *address, size_t *bytes, CUmodule handle, const char *name) {
  const Module *const module = module_of(handle);
  if (!module) return no_module(call);
  Answer answer = ask(Request::SYMBOL, Packet().text(module->prefix + name));
  const uint64_t base = answer.take<uint64_t>(), size = answer.take<uint64_t>();
  if (!base) return driver_refuses(CUDA_ERROR_NOT_FOUND, format("%s: the module has no variable '%s'", call, name));
  if (address) *address = base;
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

CUresult launch_function(CUfunction handle, dim3 grid, dim3 block, unsigned shared, CUstream stream, void **arguments,
                         void **extra, bool cooperative, dim3 cluster = dim3(0, 0, 0), bool may_begin_early = false) {
  Function *const function = reinterpret_cast<Function *>(handle);
  std::vector<void *> packed;
  for (char *buffer = nullptr; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra != CU_LAUNCH_PARAM_BUFFER_POINTER) continue;
    buffer = static_cast<char *>(extra[1]);
    for (const auto &parameter : function->params) packed.push_back(buffer + parameter.first);
    arguments = packed.data();
  }
  return CUresult(launch(function, grid, block, cluster, shared, stream, arguments, cooperative, may_begin_early));
}

void *at(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

cudaError_t fill_words(CUdeviceptr address, unsigned value, size_t count, unsigned bytes) {
  cudaMemsetParams p{};
  p.dst = at(address), p.value = value, p.elementSize = bytes, p.width = count, p.height = 1;
  return count ? fill_work(p)() : cudaSuccess;
}

// Of CUresult, by number: older headers do not have all of them.
const auto &error_names() {
  // clang-format off
  static const auto &all = *new std::map<int, const char *>{
      {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, "CUDA_ERROR_NOT_INITIALIZED"}, {4, "CUDA_ERROR_DEINITIALIZED"}, {5, "CUDA_ERROR_PROFILER_DISABLED"},
      {6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED"}, {7, "CUDA_ERROR_PROFILER_ALREADY_STARTED"},
      {8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED"}, {34, "CUDA_ERROR_STUB_LIBRARY"},
      {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER"}, {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
      {47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL"}, {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"},
      {102, "CUDA_ERROR_DEVICE_NOT_LICENSED"}, {200, "CUDA_ERROR_INVALID_IMAGE"},
      {201, "CUDA_ERROR_INVALID_CONTEXT"}, {202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT"},
      {205, "CUDA_ERROR_MAP_FAILED"}, {206, "CUDA_ERROR_UNMAP_FAILED"}, {207, "CUDA_ERROR_ARRAY_IS_MAPPED"},
      {208, "CUDA_ERROR_ALREADY_MAPPED"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {210, "CUDA_ERROR_ALREADY_ACQUIRED"}, {211, "CUDA_ERROR_NOT_MAPPED"}, {212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY"},
      {213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
      {215, "CUDA_ERROR_UNSUPPORTED_LIMIT"}, {216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE"},
      {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"}, {218, "CUDA_ERROR_INVALID_PTX"},
      {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT"}, {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"},
      {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"}, {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
      {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED"}, {224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"},
      {225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC"}, {226, "CUDA_ERROR_CONTAINED"},
      {227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION"}, {300, "CUDA_ERROR_INVALID_SOURCE"},
      {301, "CUDA_ERROR_FILE_NOT_FOUND"}, {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"},
      {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"}, {304, "CUDA_ERROR_OPERATING_SYSTEM"},
      {400, "CUDA_ERROR_INVALID_HANDLE"}, {401, "CUDA_ERROR_ILLEGAL_STATE"}, {402, "CUDA_ERROR_LOSSY_QUERY"},
      {500, "CUDA_ERROR_NOT_FOUND"}, {600, "CUDA_ERROR_NOT_READY"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}, {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
      {703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING"}, {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
      {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"}, {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"},
      {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"}, {710, "CUDA_ERROR_ASSERT"}, {711, "CUDA_ERROR_TOO_MANY_PEERS"},
      {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"}, {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
      {714, "CUDA_ERROR_HARDWARE_STACK_ERROR"}, {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"},
      {716, "CUDA_ERROR_MISALIGNED_ADDRESS"}, {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"},
      {718, "CUDA_ERROR_INVALID_PC"}, {719, "CUDA_ERROR_LAUNCH_FAILED"},
      {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"}, {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK"},
      {800, "CUDA_ERROR_NOT_PERMITTED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"}, {802, "CUDA_ERROR_SYSTEM_NOT_READY"},
      {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"},
      {805, "CUDA_ERROR_MPS_CONNECTION_FAILED"}, {806, "CUDA_ERROR_MPS_RPC_FAILURE"},
      {807, "CUDA_ERROR_MPS_SERVER_NOT_READY"}, {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"},
      {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"}, {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
      {811, "CUDA_ERROR_CDP_NOT_SUPPORTED"}, {812, "CUDA_ERROR_CDP_VERSION_MISMATCH"},
      {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}, {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"}, {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
      {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"}, {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}, {907, "CUDA_ERROR_CAPTURED_EVENT"},
      {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"}, {909, "CUDA_ERROR_TIMEOUT"},
      {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"}, {911, "CUDA_ERROR_EXTERNAL_DEVICE"},
      {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE"}, {913, "CUDA_ERROR_FUNCTION_NOT_LOADED"},
      {914, "CUDA_ERROR_INVALID_RESOURCE_TYPE"}, {915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"},
      {916, "CUDA_ERROR_KEY_ROTATION"}, {917, "CUDA_ERROR_STREAM_DETACHED"},
      {918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE"}, {919, "CUDA_ERROR_FABRIC_NOT_READY"}, {999, "CUDA_ERROR_UNKNOWN"}};
  // clang-format on
  return all;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult CUDAAPI cuDriverGetVersion(int *version) { return CUresult(cudaDriverGetVersion(version)); }
CUresult CUDAAPI cuDeviceGetCount(int *count) { DRIVER(cuDeviceGetCount, cudaGetDeviceCount(count)); }
CUresult CUDAAPI cuDeviceGet(CUdevice *device_, int ordinal) {
  return ordinal ? CUDA_ERROR_INVALID_DEVICE : (*device_ = 0, CUDA_SUCCESS);
}
CUresult CUDAAPI cuDeviceGetName(char *name, int bytes, CUdevice) {
  return snprintf(name, bytes, "emulator of compute capability %d.%d", device.major, device.minor), CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice) { return *bytes = device.total_memory, CUDA_SUCCESS; }
CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal) {
  DRIVER(cuDeviceGetAttribute, cudaDeviceGetAttribute(value, cudaDeviceAttr(attribute), ordinal));
}
CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice, CUdevice) { return *can = 0, CUDA_SUCCESS; }
CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice) {
  return *major = device.major, *minor = device.minor, CUDA_SUCCESS;
}

// There is one context, the primary one.
CUresult CUDAAPI cuCtxGetCurrent(CUcontext *out) {
  return *out = contexts.empty() ? nullptr : reinterpret_cast<CUcontext>(contexts.back()), CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPushCurrent(CUcontext to) {
  return contexts.push_back(reinterpret_cast<Context *>(to)), CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxPopCurrent(CUcontext *out) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) cuCtxGetCurrent(out);
  return contexts.pop_back(), CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCurrent(CUcontext to) {
  if (!contexts.empty()) contexts.pop_back();
  return to ? cuCtxPushCurrent(to) : CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *out, unsigned, CUdevice) {
  contexts.push_back(&the_context);
  return cuCtxGetCurrent(out);
}
#if CUDA_VERSION >= 12050
CUresult CUDAAPI cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *, unsigned flags, CUdevice ordinal) {
  return cuCtxCreate_v2(out, flags, ordinal);
}
#endif
CUresult CUDAAPI cuCtxDestroy(CUcontext) {
  if (!contexts.empty()) contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxGetDevice(CUdevice *out) { return *out = 0, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSynchronize() { DRIVER(cuCtxSynchronize, cudaDeviceSynchronize()); }
CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice) {
  return *out = reinterpret_cast<CUcontext>(&the_context), CUDA_SUCCESS;
}
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice, unsigned) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image) {
  CALL(cuModuleLoadData);
  return load_module("cuModuleLoadData", module, image);
}
CUresult CUDAAPI cuModuleLoadDataEx(
    CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
  CALL(cuModuleLoadDataEx);
  return load_module("cuModuleLoadDataEx", module, image, {count, options, values});
}
CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *name) {
  CALL(cuModuleLoad);
  return load_file("cuModuleLoad", module, name);
}
CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
  Module *const module = module_of(handle);
  if (!module) return no_module("cuModuleUnload");
  modules().erase(module);
  return delete module, CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
  CALL(cuModuleGetFunction);
  return find_function("cuModuleGetFunction", out, handle, name);
}
CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule handle, const char *name) {
  CALL(cuModuleGetGlobal);
  return find_variable("cuModuleGetGlobal", address, bytes, handle, name);
}

CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
  const Function &function = *reinterpret_cast<Function *>(handle);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return *value = int(function.max_threads), CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return *value = int(function.static_shared), CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return *value = int(function.local), CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return *value = function.ptx_version, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return *value = int(function.dynamic_limit()), CUDA_SUCCESS;
    default:
      return *value = 0, CUDA_SUCCESS;  // registers are ptxas's business
  }
}
CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  CALL(cuFuncSetAttribute);
  const Apart apart;
  Function *const function = reinterpret_cast<Function *>(handle);
  return CUresult(set_attribute(function, cudaFuncAttribute(attribute), value));
}
CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, CUfunction handle, int threads, size_t shared) {
  const Function &function = *reinterpret_cast<Function *>(handle);
  const bool impossible = threads > int(function.max_threads) || shared > function.dynamic_limit();
  return *blocks = impossible ? 0 : occupancy(function, threads, shared), CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, CUstream stream, void **arguments, void **extra) {
  CALL(cuLaunchKernel);
  const Apart apart;
  const dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
  return launch_function(function, grid, block, shared, stream, arguments, extra, false);
}
CUresult CUDAAPI cuLaunchCooperativeKernel(
    CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, CUstream stream, void **arguments) {
  CALL(cuLaunchCooperativeKernel);
  const Apart apart;
  const dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
  return launch_function(function, grid, block, shared, stream, arguments, nullptr, true);
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *out, size_t bytes) {
  if (!bytes) return driver_refuses(CUDA_ERROR_INVALID_VALUE, "cuMemAlloc: bytesize must be at least 1");
  DRIVER(cuMemAlloc, cudaMalloc(reinterpret_cast<void **>(out), bytes));
}
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
  DRIVER(cuMemAllocManaged, cudaMallocManaged(reinterpret_cast<void **>(out), bytes, flags));
}
CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned) {
  DRIVER(cuMemAllocPitch, cudaMallocPitch(reinterpret_cast<void **>(out), pitch, width, height));
}
CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
  DRIVER(cuMemAllocAsync, cudaMallocAsync(reinterpret_cast<void **>(out), bytes, stream));
}
CUresult CUDAAPI cuMemFree(CUdeviceptr address) { DRIVER(cuMemFree, cudaFree(at(address))); }
CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  DRIVER(cuMemFreeAsync, cudaFreeAsync(at(address), stream));
}
CUresult CUDAAPI cuMemAllocHost(void **out, size_t bytes) { DRIVER(cuMemAllocHost, cudaMallocHost(out, bytes)); }
CUresult CUDAAPI cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  DRIVER(cuMemHostAlloc, cudaHostAlloc(out, bytes, flags));
}
CUresult CUDAAPI cuMemFreeHost(void *address) { DRIVER(cuMemFreeHost, cudaFreeHost(address)); }
CUresult CUDAAPI cuMemGetInfo(size_t *free, size_t *total) { DRIVER(cuMemGetInfo, cudaMemGetInfo(free, total)); }
CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  CALL(cuMemGetAddressRange);
  const Apart apart;
  const Marked found = range("cuMemGetAddressRange", at(address), 1);
  if (!found.size) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = found.base;
  if (size) *size = found.size;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  DRIVER(cuMemcpy, cudaMemcpy(at(to), at(from), bytes, cudaMemcpyDefault));
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  DRIVER(cuMemcpyAsync, cudaMemcpyAsync(at(to), at(from), bytes, cudaMemcpyDefault, stream));
}
CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
  DRIVER(cuMemcpyHtoD, cudaMemcpy(at(to), from, bytes, cudaMemcpyHostToDevice));
}
CUresult CUDAAPI cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
  DRIVER(cuMemcpyDtoH, cudaMemcpy(to, at(from), bytes, cudaMemcpyDeviceToHost));
}
CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  DRIVER(cuMemcpyDtoD, cudaMemcpy(at(to), at(from), bytes, cudaMemcpyDeviceToDevice));
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  DRIVER(cuMemcpyHtoDAsync, cudaMemcpyAsync(at(to), from, bytes, cudaMemcpyHostToDevice, stream));
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  DRIVER(cuMemcpyDtoHAsync, cudaMemcpyAsync(to, at(from), bytes, cudaMemcpyDeviceToHost, stream));
}
CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  DRIVER(cuMemcpyDtoDAsync, cudaMemcpyAsync(at(to), at(from), bytes, cudaMemcpyDeviceToDevice, stream));
}
CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  DRIVER(cuMemsetD8, cudaMemset(at(to), value, count));
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  DRIVER(cuMemsetD8Async, cudaMemsetAsync(at(to), value, count, stream));
}
CUresult CUDAAPI cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  DRIVER(cuMemsetD16, fill_words(to, value, count, 2));
}
CUresult CUDAAPI cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  DRIVER(cuMemsetD32, fill_words(to, value, count, 4));
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  DRIVER(
      cuMemsetD32Async,
      in_stream(stream, "cuMemsetD32Async", [=] { return fill_words(to, value, count, 4); }, cudaGraphNodeTypeMemset));
}

CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned flags) {
  DRIVER(cuStreamCreate, cudaStreamCreateWithFlags(stream, flags));
}
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  DRIVER(cuStreamCreateWithPriority, cudaStreamCreateWithPriority(stream, flags, priority));
}
CUresult CUDAAPI cuStreamDestroy(CUstream stream) { DRIVER(cuStreamDestroy, cudaStreamDestroy(stream)); }
CUresult CUDAAPI cuStreamSynchronize(CUstream stream) { DRIVER(cuStreamSynchronize, cudaStreamSynchronize(stream)); }
CUresult CUDAAPI cuStreamQuery(CUstream stream) { DRIVER(cuStreamQuery, cudaStreamQuery(stream)); }
CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  DRIVER(cuStreamWaitEvent, cudaStreamWaitEvent(stream, event, flags));
}
CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned flags) {
  DRIVER(cuEventCreate, cudaEventCreateWithFlags(event, flags));
}
CUresult CUDAAPI cuEventDestroy(CUevent event) { DRIVER(cuEventDestroy, cudaEventDestroy(event)); }
CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  DRIVER(cuEventRecord, cudaEventRecord(event, stream));
}
CUresult CUDAAPI cuEventSynchronize(CUevent event) { DRIVER(cuEventSynchronize, cudaEventSynchronize(event)); }
CUresult CUDAAPI cuEventQuery(CUevent event) { DRIVER(cuEventQuery, cudaEventQuery(event)); }
CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  DRIVER(cuEventElapsedTime, cudaEventElapsedTime(milliseconds, start, end));
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **name) {
  const auto found = error_names().find(error);
  *name = found == error_names().end() ? nullptr : found->second;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
  const ErrorText *const found = find_text(cudaError_t(error));
  if (!found) return cuGetErrorName(error, text);
  return *text = found->text, CUDA_SUCCESS;
}

}  // extern "C"
