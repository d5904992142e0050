// The driver's library, libcuda.so.1, for Python: Numba, CuPy, cuda.bindings and others find the emulator in it.
//
// It is the stand-in runtime with what programs of nvcc do not call: libraries of kernels, linking, the table of
// functions. The device is in the same process, and requests are calls (driver.py). So device memory is mapped where
// kernels see it, host code that touches it does not fault, and pages are never protected. The
// runtime's functions are for libraries that have brought their own (front_ends.py).

#include "runtime.cpp"

#undef cuGetProcAddress

namespace {

// ---- PTX that is linked ------------------------------------------------------------------------------------------

struct Link {
  std::vector<std::pair<std::string, std::string>> parts;  // names and texts
  JitOptions options;
  std::vector<CUjit_option> names;
  std::vector<void *> values;
  std::string result;
};

Link *link_of(CUlinkState state) { return reinterpret_cast<Link *>(state); }

CUresult add_part(const char *call, CUlinkState state, const std::string &text, const char *name) {
  Link &link = *link_of(state);
  if (text.compare(0, 4, "\177ELF") == 0 || text.compare(0, 4, "\x50\xed\x55\xba") == 0 ||
      text.compare(0, 2, "!<") == 0)
    return wrong_image(CUDA_ERROR_NO_BINARY_FOR_GPU,
                       format("%s: %s: the emulator links PTX, not machine code", call, name ? name : "the input"),
                       link.options);
  link.parts.emplace_back(name ? name : "", text.c_str());
  return CUDA_SUCCESS;
}

// ---- functions that are not there --------------------------------------------------------------------------------

// Tables of the driver's functions must be complete, even if nobody calls what is missing: it has a place that says so.
constexpr size_t MOST_ABSENT = 512;
auto &absent_names() {
  static auto &all = *new std::vector<std::string>;
  return all;
}
template <size_t N>
CUresult absent() {
  return driver_refuses(CUDA_ERROR_NOT_SUPPORTED,
                        format("%s: the emulator does not have this function", absent_names()[N].c_str()));
}
template <size_t... N>
void *absent_at(size_t number, std::index_sequence<N...>) {
  static void *const all[] = {reinterpret_cast<void *>(&absent<N>)...};
  return all[number];
}
void *absent_function(const std::string &name) {
  auto &names = absent_names();
  const auto found = std::find(names.begin(), names.end(), name);
  const size_t number = found - names.begin();
  if (number >= MOST_ABSENT) return nullptr;
  if (found == names.end()) names.push_back(name);
  return absent_at(number, std::make_index_sequence<MOST_ABSENT>());
}

// ---- copies of rows and boxes ------------------------------------------------------------------------------------

uint64_t first_byte(CUmemorytype kind, const void *host, CUdeviceptr at, size_t x, size_t y, size_t pitch) {
  return (kind == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : at) + y * pitch + x;
}

cudaError_t copy_rows(const CUDA_MEMCPY2D &p) {
  const char *const call = "cuMemcpy2D";
  if (p.srcMemoryType == CU_MEMORYTYPE_ARRAY || p.dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return refuse(cudaErrorNotSupported, "cuMemcpy2D: the emulator's driver API has no arrays");
  const uint64_t from = first_byte(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcXInBytes, p.srcY, p.srcPitch);
  const uint64_t to = first_byte(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstXInBytes, p.dstY, p.dstPitch);
  const size_t from_pitch = p.srcPitch ? p.srcPitch : p.WidthInBytes;
  const size_t to_pitch = p.dstPitch ? p.dstPitch : p.WidthInBytes;
  return copy_2d(call, reinterpret_cast<void *>(to), to_pitch, reinterpret_cast<void *>(from), from_pitch,
                 p.WidthInBytes, p.Height, cudaMemcpyDefault);
}

cudaError_t copy_boxes(const CUDA_MEMCPY3D &p) {
  if (p.srcMemoryType == CU_MEMORYTYPE_ARRAY || p.dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return refuse(cudaErrorNotSupported, "cuMemcpy3D: the emulator's driver API has no arrays");
  cudaError_t error = cudaSuccess;
  for (size_t z = 0; z < p.Depth && !error; ++z) {
    CUDA_MEMCPY2D rows{};
    rows.srcMemoryType = p.srcMemoryType, rows.srcHost = p.srcHost, rows.srcDevice = p.srcDevice;
    rows.srcXInBytes = p.srcXInBytes, rows.srcPitch = p.srcPitch, rows.srcY = p.srcY + (p.srcZ + z) * p.srcHeight;
    rows.dstMemoryType = p.dstMemoryType, rows.dstHost = p.dstHost, rows.dstDevice = p.dstDevice;
    rows.dstXInBytes = p.dstXInBytes, rows.dstPitch = p.dstPitch, rows.dstY = p.dstY + (p.dstZ + z) * p.dstHeight;
    rows.WidthInBytes = p.WidthInBytes, rows.Height = p.Height;
    error = copy_rows(rows);
  }
  return error;
}

cudaError_t fill_rows(CUdeviceptr address, size_t pitch, unsigned value, size_t width, size_t height, unsigned bytes) {
  cudaError_t error = cudaSuccess;
  for (size_t row = 0; row < height && !error; ++row) error = fill_words(address + row * pitch, value, width, bytes);
  return error;
}

Function &kernel_of(CUkernel kernel) { return *reinterpret_cast<Function *>(kernel); }
Function &kernel_of(CUfunction function) { return *reinterpret_cast<Function *>(function); }
std::string own_name(const Function &function) { return function.name.substr(function.name.find(':') + 1); }
std::string module_prefix(const Function &function) { return function.name.substr(0, function.name.find(':') + 1); }

CUmodule module_with(const Function &function) {
  for (Module *each : modules())
    if (each->prefix == module_prefix(function)) return reinterpret_cast<CUmodule>(each);
  return nullptr;
}

CUresult name_of(const Function &function, const char **name) {
  static auto &all = *new std::set<std::string>;
  return *name = all.insert(own_name(function)).first->c_str(), CUDA_SUCCESS;
}

CUresult parameter_of(const Function &function, size_t index, size_t *offset, size_t *bytes) {
  if (index >= function.params.size()) return CUDA_ERROR_INVALID_VALUE;  // so callers learn how many there are
  if (offset) *offset = function.params[index].first;
  if (bytes) *bytes = function.params[index].second;
  return CUDA_SUCCESS;
}

// One attribute of a pointer; false if it has none.
bool pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr at) {
  const auto *host = host_memory(at);
  const bool known = host || in_arena(at);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext *>(data) = known ? reinterpret_cast<CUcontext>(&the_context) : nullptr;
      return known;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned *>(data) =
          !known ? 0
          : host && host->second.kind == PINNED
              ? unsigned(CU_MEMORYTYPE_HOST)
              : unsigned(CU_MEMORYTYPE_DEVICE);
      return known;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr *>(data) = known ? at : 0;
      return known;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<void **>(data) = host ? reinterpret_cast<void *>(at) : nullptr;
      return host;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned *>(data) = host && host->second.kind == MANAGED;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int *>(data) = known ? 0 : -2;
      return known;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned *>(data) = known;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: {
      const Marked found = known ? range("cuPointerGetAttribute", reinterpret_cast<void *>(at), 0) : Marked();
      *static_cast<uint64_t *>(data) = attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE ? found.size : found.base;
      return found.size;
    }
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
      const auto lent = from_pools().find(reinterpret_cast<void *>(at));
      *static_cast<void **>(data) = lent == from_pools().end() ? nullptr : lent->second.first;
      return known;
    }
    default:
      *static_cast<unsigned *>(data) = 0;
      return known;
  }
}

}  // namespace

extern "C" {

// ---- the device that is in this process --------------------------------------------------------------------------

// Python's lock, of a thread that may have it.
static void *let_go_of_python() {
  static const auto has = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  static const auto save = reinterpret_cast<void *(*)()>(dlsym(RTLD_DEFAULT, "PyEval_SaveThread"));
  return has && save && has() ? save() : nullptr;
}

// `serve` answers requests by `emulator_answer`, `place` says where the program is; `file`: the device's memory.
__attribute__((visibility("default"))) int emulator_serve(
    void (*serve)(const char *, size_t, Answer *), uint64_t (*place)(), int file) {
  served_here = serve, place_here = place, channel = memory_file = file;
  let_go = let_go_of_python;
  take_back = reinterpret_cast<void (*)(void *)>(dlsym(RTLD_DEFAULT, "PyEval_RestoreThread"));
  device = ask(Request::HELLO).take<Device>();
  void *const both = mmap(nullptr, 2 * device.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (both == MAP_FAILED) return errno;
  alias = static_cast<char *>(both);
  shared = static_cast<Shared *>(both);
  return 0;
}
__attribute__((visibility("default"))) void emulator_answer(Answer *answer, const char *data, size_t bytes) {
  answer->data.assign(data, bytes);
}

// Python ends, and what still frees its memory gets no answers.
__attribute__((visibility("default"))) void emulator_end() {
  served_here = [](const char *, size_t, Answer *) {};
  place_here = [] { return uint64_t(0); };
}

// A function in place of one that is not there.
__attribute__((visibility("default"))) void *emulator_absent(const char *name) { return absent_function(name); }

// ---- devices and contexts ----------------------------------------------------------------------------------------

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice) {
  memcpy(uuid->bytes, "cudaemu emulator", sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetPCIBusId(char *text, int bytes, CUdevice ordinal) {
  return CUresult(cudaDeviceGetPCIBusId(text, bytes, ordinal));
}
CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *out, const char *) { return *out = 0, CUDA_SUCCESS; }
CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal) {
  DRIVER(cuDeviceGetDefaultMemPool, cudaDeviceGetDefaultMemPool(pool, ordinal));
}
CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal) {
  DRIVER(cuDeviceGetMemPool, cudaDeviceGetMemPool(pool, ordinal));
}
CUresult CUDAAPI cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
  DRIVER(cuDeviceSetMemPool, cudaDeviceSetMemPool(ordinal, pool));
}
CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
  return *flags = 0, *active = 1, CUDA_SUCCESS;
}
// All that was allocated goes; a fault is forgotten.
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice) {
  CALL(cuDevicePrimaryCtxReset);
  const CUresult result = CUresult(cudaDeviceReset());
  while (!registered().empty()) unregister(registered().begin()->first);
  std::vector<uint64_t> addresses;
  for (const auto &[address, bytes] : blocks()) addresses.push_back(address);
  for (const uint64_t address : addresses) {
    const auto *host = host_memory(address);
    release(reinterpret_cast<void *>(address), host && host->second.kind == PINNED, "cuDevicePrimaryCtxReset");
  }
  return result;
}
CUresult CUDAAPI cuCtxGetFlags(unsigned *flags) { return *flags = 0, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSetFlags(unsigned) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetId(CUcontext, unsigned long long *id) { return *id = 1, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetApiVersion(CUcontext, unsigned *version) { return *version = 3020, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit) {
  return CUresult(cudaDeviceGetLimit(value, cudaLimit(limit)));
}
CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  return CUresult(cudaDeviceSetLimit(cudaLimit(limit), value));
}
CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache *config) { return *config = CU_FUNC_CACHE_PREFER_NONE, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  return CUresult(cudaDeviceGetStreamPriorityRange(least, greatest));
}
CUresult CUDAAPI cuProfilerStart() { return CUDA_SUCCESS; }
CUresult CUDAAPI cuProfilerStop() { return CUDA_SUCCESS; }

// ---- modules, libraries, links -----------------------------------------------------------------------------------

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  CALL(cuModuleLoadFatBinary);
  return load_module("cuModuleLoadFatBinary", module, image);
}
CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  return *mode = CU_MODULE_EAGER_LOADING, CUDA_SUCCESS;
}

CUresult CUDAAPI cuLinkCreate(unsigned count, CUjit_option *options, void **values, CUlinkState *out) {
  Link *const made = new Link;
  made->names.assign(options, options + count);
  made->values.assign(values, values + count);
  made->options = {count, made->names.data(), made->values.data()};
  return *out = reinterpret_cast<CUlinkState>(made), CUDA_SUCCESS;
}
CUresult CUDAAPI cuLinkAddData(
    CUlinkState state, CUjitInputType, void *data, size_t bytes, const char *name, unsigned, CUjit_option *, void **) {
  return add_part("cuLinkAddData", state, std::string(static_cast<char *>(data), bytes), name);
}
CUresult CUDAAPI cuLinkAddFile(CUlinkState state, CUjitInputType, const char *path, unsigned, CUjit_option *, void **) {
  FILE *const file = fopen(path, "rb");
  if (!file) return driver_refuses(CUDA_ERROR_FILE_NOT_FOUND, format("cuLinkAddFile: %s: %s", path, strerror(errno)));
  std::string text;
  char piece[4096];
  for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;) text.append(piece, got);
  fclose(file);
  return add_part("cuLinkAddFile", state, text, path);
}
CUresult CUDAAPI cuLinkComplete(CUlinkState state, void **out, size_t *bytes) {
  Link &link = *link_of(state);
  Packet packet;
  packet.add(uint32_t(link.parts.size()));
  for (const auto &[name, text] : link.parts) packet.text(name).text(text);
  Answer answer = ask(Request::LINK, packet);
  const bool right = answer.take<uint32_t>();
  link.result = answer.rest();
  if (!right) return wrong_image(CUDA_ERROR_INVALID_PTX, link.result, link.options);
  *out = &link.result[0];
  if (bytes) *bytes = link.result.size() + 1;  // the null that ends the text is part of the "cubin"
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLinkDestroy(CUlinkState state) { return delete link_of(state), CUDA_SUCCESS; }

CUresult CUDAAPI cuLibraryLoadData(CUlibrary *out, const void *image, CUjit_option *options, void **values,
                                   unsigned count, CUlibraryOption *, void **, unsigned) {
  CALL(cuLibraryLoadData);
  return load_module("cuLibraryLoadData", reinterpret_cast<CUmodule *>(out), image, {count, options, values});
}
CUresult CUDAAPI cuLibraryLoadFromFile(
    CUlibrary *out, const char *name, CUjit_option *, void **, unsigned, CUlibraryOption *, void **, unsigned) {
  CALL(cuLibraryLoadFromFile);
  return load_file("cuLibraryLoadFromFile", reinterpret_cast<CUmodule *>(out), name);
}
CUresult CUDAAPI cuLibraryUnload(CUlibrary library) { return cuModuleUnload(reinterpret_cast<CUmodule>(library)); }
CUresult CUDAAPI cuLibraryGetModule(CUmodule *out, CUlibrary library) {
  return *out = reinterpret_cast<CUmodule>(library), CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
  CALL(cuLibraryGetKernel);
  CUfunction *const function = reinterpret_cast<CUfunction *>(out);
  return find_function("cuLibraryGetKernel", function, reinterpret_cast<CUmodule>(library), name);
}
CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
  CALL(cuLibraryGetGlobal);
  return find_variable("cuLibraryGetGlobal", address, bytes, reinterpret_cast<CUmodule>(library), name);
}
CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name) {
  CALL(cuLibraryGetManaged);
  return find_variable("cuLibraryGetManaged", address, bytes, reinterpret_cast<CUmodule>(library), name);
}
CUresult CUDAAPI cuModuleGetFunctionCount(unsigned *count, CUmodule handle) {
  const Module *const module = module_of(handle);
  if (!module) return no_module("cuModuleGetFunctionCount");
  return *count = ask(Request::KERNELS, Packet().text(module->prefix)).take<uint32_t>(), CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction *out, unsigned room, CUmodule handle) {
  const Module *const module = module_of(handle);
  if (!module) return no_module("cuModuleEnumerateFunctions");
  Answer answer = ask(Request::KERNELS, Packet().text(module->prefix));
  const uint32_t count = answer.take<uint32_t>();
  const std::string names = answer.rest();  // each ends with a null
  const char *name = names.c_str();
  for (uint32_t i = 0; i < count && i < room; ++i, name += strlen(name) + 1)
    if (const CUresult error = find_function("cuModuleEnumerateFunctions", &out[i], handle, name)) return error;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
  return cuModuleGetFunctionCount(count, reinterpret_cast<CUmodule>(library));
}
CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *out, unsigned room, CUlibrary library) {
  return cuModuleEnumerateFunctions(reinterpret_cast<CUfunction *>(out), room, reinterpret_cast<CUmodule>(library));
}

// The runtime's names for these.

cudaError_t cudaLibraryLoadData(cudaLibrary_t *out, const void *image, enum cudaJitOption *, void **, unsigned,
                                enum cudaLibraryOption *, void **, unsigned) {
  CALL(cudaLibraryLoadData);
  return cudaError_t(load_module("cudaLibraryLoadData", reinterpret_cast<CUmodule *>(out), image));
}
cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t *out, const char *name, enum cudaJitOption *, void **, unsigned,
                                    enum cudaLibraryOption *, void **, unsigned) {
  CALL(cudaLibraryLoadFromFile);
  return cudaError_t(load_file("cudaLibraryLoadFromFile", reinterpret_cast<CUmodule *>(out), name));
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  return cudaError_t(cuModuleUnload(reinterpret_cast<CUmodule>(library)));
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *out, cudaLibrary_t library, const char *name) {
  CALL(cudaLibraryGetKernel);
  CUfunction *const function = reinterpret_cast<CUfunction *>(out);
  return cudaError_t(find_function("cudaLibraryGetKernel", function, reinterpret_cast<CUmodule>(library), name));
}
cudaError_t cudaLibraryGetGlobal(void **address, size_t *bytes, cudaLibrary_t library, const char *name) {
  CALL(cudaLibraryGetGlobal);
  CUdeviceptr *const found = reinterpret_cast<CUdeviceptr *>(address);
  return cudaError_t(find_variable("cudaLibraryGetGlobal", found, bytes, reinterpret_cast<CUmodule>(library), name));
}
cudaError_t cudaLibraryGetKernelCount(unsigned *count, cudaLibrary_t library) {
  return cudaError_t(cuModuleGetFunctionCount(count, reinterpret_cast<CUmodule>(library)));
}
cudaError_t cudaLibraryEnumerateKernels(cudaKernel_t *out, unsigned room, cudaLibrary_t library) {
  CUfunction *const functions = reinterpret_cast<CUfunction *>(out);
  return cudaError_t(cuModuleEnumerateFunctions(functions, room, reinterpret_cast<CUmodule>(library)));
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int) {
  return cudaFuncSetAttribute(kernel, attribute, value);
}

// ---- kernels -----------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
  return *out = reinterpret_cast<CUfunction>(kernel), CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetLibrary(CUlibrary *out, CUkernel kernel) {
  return *out = reinterpret_cast<CUlibrary>(module_with(kernel_of(kernel))), CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  return cuFuncGetAttribute(value, attribute, reinterpret_cast<CUfunction>(kernel));
}
CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(kernel), attribute, value);
}
CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel, CUfunc_cache, CUdevice) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel kernel) { return name_of(kernel_of(kernel), name); }
CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes) {
  return parameter_of(kernel_of(kernel), index, offset, bytes);
}
CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction function) { return name_of(kernel_of(function), name); }
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  return parameter_of(kernel_of(function), index, offset, bytes);
}
CUresult CUDAAPI cuFuncGetModule(CUmodule *out, CUfunction function) {
  return *out = module_with(kernel_of(function)), CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncSetSharedMemConfig(CUfunction, CUsharedconfig) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction) {
  return *state = CU_FUNCTION_LOADING_STATE_LOADED, CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncLoad(CUfunction) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, CUfunction function, int threads, size_t shared, unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(
    int *grid, int *block, CUfunction handle, CUoccupancyB2DSize needs, size_t shared, int most, unsigned) {
  const Function &function = kernel_of(handle);
  const int limit = most > 0 ? std::min(most, int(function.max_threads)) : int(function.max_threads);
  int best = 0;
  for (int threads = (limit + 31) / 32 * 32; threads > 0; threads -= 32) {
    const int here = std::min(threads, limit);
    const size_t bytes = needs ? needs(here) : shared;
    const int blocks = bytes > function.dynamic_limit() ? 0 : occupancy(function, here, bytes);
    if (blocks * here > best) best = blocks * here, *block = here, *grid = blocks * device.multiprocessors;
  }
  return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(
    int *grid, int *block, CUfunction function, CUoccupancyB2DSize needs, size_t shared, int most) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, needs, shared, most, 0);
}
CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks, int) {
  const size_t fixed = kernel_of(handle).static_shared;
  const size_t each = ask(Request::SHARED_ROOM, Packet().add(uint32_t(blocks))).take<uint64_t>();
  return *bytes = each > fixed ? each - fixed : 0, CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int *clusters, CUfunction handle, const CUlaunchConfig *config) {
  const Function &function = kernel_of(handle);
  unsigned blocks = std::max(1u, function.cluster.x * function.cluster.y * function.cluster.z);
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (const auto &each = config->attrs[i]; each.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      blocks = each.value.clusterDim.x * each.value.clusterDim.y * each.value.clusterDim.z;
  const int threads = int(config->blockDimX * config->blockDimY * config->blockDimZ);
  const int fit =
      config->sharedMemBytes > function.dynamic_limit() ? 0 : occupancy(function, threads, config->sharedMemBytes);
  return *clusters = fit * device.multiprocessors / int(std::max(1u, blocks)), CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *) {
  return *size = device.major < 9 ? 1 : int(most_blocks(kernel_of(function))), CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
  CALL(cuLaunchKernelEx);
  const Apart apart;
  dim3 cluster(0, 0, 0);
  bool cooperative = false, may_begin_early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute &each = config->attrs[i];
    if (each.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      cluster = dim3(each.value.clusterDim.x, each.value.clusterDim.y, each.value.clusterDim.z);
    if (each.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = each.value.cooperative;
    if (each.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      may_begin_early = each.value.programmaticStreamSerializationAllowed && device.major >= 9;
  }
  const dim3 grid(config->gridDimX, config->gridDimY, config->gridDimZ);
  const dim3 block(config->blockDimX, config->blockDimY, config->blockDimZ);
  return launch_function(function, grid, block, config->sharedMemBytes, config->hStream, arguments, extra, cooperative,
                         cluster, may_begin_early);
}
CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
  DRIVER(cuLaunchHostFunc, cudaLaunchHostFunc(stream, function, data));
}

// ---- memory ------------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *out, void *host, unsigned flags) {
  DRIVER(cuMemHostGetDevicePointer, cudaHostGetDevicePointer(reinterpret_cast<void **>(out), host, flags));
}
CUresult CUDAAPI cuMemHostGetFlags(unsigned *flags, void *host) { return CUresult(cudaHostGetFlags(flags, host)); }
CUresult CUDAAPI cuMemHostRegister(void *address, size_t bytes, unsigned flags) {
  DRIVER(cuMemHostRegister, cudaHostRegister(address, bytes, flags));
}
CUresult CUDAAPI cuMemHostUnregister(void *address) { DRIVER(cuMemHostUnregister, cudaHostUnregister(address)); }
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuMemAdvise(CUdeviceptr, size_t, CUmem_advise, CUmemLocation) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return cuMemcpyDtoD(to, from, bytes);
}
CUresult CUDAAPI cuMemcpyPeerAsync(
    CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) {
  return cuMemcpyDtoDAsync(to, from, bytes, stream);
}
CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D *how) { DRIVER(cuMemcpy2D, copy_rows(*how)); }
CUresult CUDAAPI cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *how) { DRIVER(cuMemcpy2DUnaligned, copy_rows(*how)); }
CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D *how, CUstream stream) {
  DRIVER(cuMemcpy2DAsync, in_stream(stream, "cuMemcpy2DAsync", [p = *how] { return copy_rows(p); }));
}
CUresult CUDAAPI cuMemcpy3D(const CUDA_MEMCPY3D *how) { DRIVER(cuMemcpy3D, copy_boxes(*how)); }
CUresult CUDAAPI cuMemcpy3DAsync(const CUDA_MEMCPY3D *how, CUstream stream) {
  DRIVER(cuMemcpy3DAsync, in_stream(stream, "cuMemcpy3DAsync", [p = *how] { return copy_boxes(p); }));
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  DRIVER(cuMemsetD16Async, in_stream(stream, "cuMemsetD16Async", [=] { return fill_words(to, value, count, 2); }));
}
CUresult CUDAAPI cuMemsetD2D8(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  DRIVER(cuMemsetD2D8, fill_rows(to, pitch, value, width, height, 1));
}
CUresult CUDAAPI cuMemsetD2D16(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  DRIVER(cuMemsetD2D16, fill_rows(to, pitch, value, width, height, 2));
}
CUresult CUDAAPI cuMemsetD2D32(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  DRIVER(cuMemsetD2D32, fill_rows(to, pitch, value, width, height, 4));
}
CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr at) {
  return pointer_attribute(data, attribute, at) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute *which, void **data, CUdeviceptr at) {
  for (unsigned i = 0; i < count; ++i) pointer_attribute(data[i], which[i], at);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuPointerSetAttribute(const void *, CUpointer_attribute, CUdeviceptr) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *) {
  DRIVER(cuMemPoolCreate, cudaMemPoolCreate(pool, nullptr));
}
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) { DRIVER(cuMemPoolDestroy, cudaMemPoolDestroy(pool)); }
CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value) {
  DRIVER(cuMemPoolGetAttribute, cudaMemPoolGetAttribute(pool, cudaMemPoolAttr(which), value));
}
CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value) {
  DRIVER(cuMemPoolSetAttribute, cudaMemPoolSetAttribute(pool, cudaMemPoolAttr(which), value));
}
CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc *, size_t) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool, CUmemLocation *) {
  return *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  DRIVER(cuMemAllocFromPoolAsync, cudaMallocFromPoolAsync(reinterpret_cast<void **>(out), bytes, pool, stream));
}

// ---- streams, events, graphs -------------------------------------------------------------------------------------

CUresult CUDAAPI cuStreamGetCtx(CUstream stream, CUcontext *out) {
  *out = reinterpret_cast<CUcontext>(&the_context);
  return CUresult(check(stream, "cuStreamGetCtx"));
}
CUresult CUDAAPI cuStreamGetDevice(CUstream, CUdevice *out) { return *out = 0, CUDA_SUCCESS; }
CUresult CUDAAPI cuStreamGetId(CUstream stream, unsigned long long *id) {
  return *id = stream_of(stream).id, CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetFlags(CUstream stream, unsigned *flags) {
  return *flags = stream_of(stream).flags, CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetPriority(CUstream stream, int *priority) {
  return *priority = stream_of(stream).priority, CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data, unsigned flags) {
  DRIVER(cuStreamAddCallback,
         cudaStreamAddCallback(stream, reinterpret_cast<cudaStreamCallback_t>(function), data, flags));
}
CUresult CUDAAPI cuStreamAttachMemAsync(CUstream, CUdeviceptr, size_t, unsigned) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  DRIVER(cuStreamBeginCapture, cudaStreamBeginCapture(stream, cudaStreamCaptureMode(mode)));
}
CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *out) {
  DRIVER(cuStreamEndCapture, cudaStreamEndCapture(stream, out));
}
CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return CUresult(cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus *>(status)));
}
CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count) {
  const auto found = captures().find(stream);
  cuStreamIsCapturing(stream, status);
  if (id) *id = found == captures().end() ? 0 : reinterpret_cast<cuuint64_t>(found->second);
  if (graph) *graph = found == captures().end() ? nullptr : reinterpret_cast<CUgraph>(found->second);
  if (after) *after = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  return CUresult(cudaThreadExchangeStreamCaptureMode(reinterpret_cast<cudaStreamCaptureMode *>(mode)));
}
CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  return cuEventRecord(event, stream);
}
CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
  DRIVER(cuGraphInstantiate, cudaGraphInstantiateWithFlags(out, graph, flags));
}
CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *how) {
  how->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  DRIVER(cuGraphInstantiateWithParams, cudaGraphInstantiateWithFlags(out, graph, how->flags));
}
CUresult CUDAAPI cuGraphCreate(CUgraph *out, unsigned flags) { DRIVER(cuGraphCreate, cudaGraphCreate(out, flags)); }
CUresult CUDAAPI cuGraphDestroy(CUgraph graph) { DRIVER(cuGraphDestroy, cudaGraphDestroy(graph)); }
CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec graph) { DRIVER(cuGraphExecDestroy, cudaGraphExecDestroy(graph)); }
CUresult CUDAAPI cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  DRIVER(cuGraphLaunch, cudaGraphLaunch(graph, stream));
}

// ---- the table of functions --------------------------------------------------------------------------------------

CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *) { return *table = nullptr, CUDA_ERROR_NOT_FOUND; }

CUresult CUDAAPI cuGetProcAddress_v2(
    const char *name, void **out, int version, cuuint64_t, CUdriverProcAddressQueryResult *status);
CUresult CUDAAPI cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, nullptr);
}

}  // extern "C"

namespace {

void *library_function(const std::string &name, int version) {
  if (name == "cuGetProcAddress")
    return version < 12000 ? reinterpret_cast<void *>(&::cuGetProcAddress)
                           : reinterpret_cast<void *>(&::cuGetProcAddress_v2);
  if (name == "cuCtxCreate")
    return version < 12050 ? reinterpret_cast<void *>(&::cuCtxCreate_v2) : reinterpret_cast<void *>(&::cuCtxCreate_v4);
  // Older forms of these have other parameters.
  static const std::map<std::string, int> since = {
      {"cuMemAdvise", 12020}, {"cuMemPrefetchAsync", 12020}, {"cuStreamGetCaptureInfo", 12030}};
  if (const auto found = since.find(name); found != since.end() && version < found->second) return nullptr;
  static const std::map<std::string, void *> all = {
#define X(function) {#function, reinterpret_cast<void *>(&::function)}
      // clang-format off
      X(cuDeviceGetUuid), X(cuDeviceGetPCIBusId), X(cuDeviceGetByPCIBusId), X(cuDeviceCanAccessPeer),
      X(cuDeviceGetDefaultMemPool), X(cuDeviceGetMemPool), X(cuDeviceSetMemPool), X(cuDevicePrimaryCtxGetState),
      X(cuDevicePrimaryCtxReset), X(cuCtxGetFlags), X(cuCtxSetFlags), X(cuCtxGetId), X(cuCtxGetApiVersion),
      X(cuCtxGetLimit), X(cuCtxSetLimit), X(cuCtxGetCacheConfig), X(cuCtxSetCacheConfig),
      X(cuCtxGetStreamPriorityRange), X(cuProfilerStart), X(cuProfilerStop), X(cuModuleLoadFatBinary),
      X(cuModuleGetLoadingMode), X(cuLinkCreate), X(cuLinkAddData), X(cuLinkAddFile), X(cuLinkComplete),
      X(cuLinkDestroy), X(cuLibraryLoadData), X(cuLibraryLoadFromFile), X(cuLibraryUnload), X(cuLibraryGetModule),
      X(cuLibraryGetKernel), X(cuLibraryGetGlobal), X(cuLibraryGetManaged), X(cuModuleGetFunctionCount),
      X(cuModuleEnumerateFunctions), X(cuLibraryGetKernelCount), X(cuLibraryEnumerateKernels), X(cuKernelGetFunction),
      X(cuKernelGetLibrary), X(cuKernelGetAttribute), X(cuKernelSetAttribute), X(cuKernelSetCacheConfig),
      X(cuKernelGetName), X(cuKernelGetParamInfo), X(cuFuncGetName), X(cuFuncGetParamInfo), X(cuFuncGetModule),
      X(cuFuncSetSharedMemConfig), X(cuFuncIsLoaded), X(cuFuncLoad),
      X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags), X(cuOccupancyMaxPotentialBlockSizeWithFlags),
      X(cuOccupancyMaxPotentialBlockSize), X(cuOccupancyAvailableDynamicSMemPerBlock),
      X(cuOccupancyMaxActiveClusters), X(cuOccupancyMaxPotentialClusterSize), X(cuLaunchKernelEx),
      X(cuLaunchHostFunc), X(cuMemHostGetDevicePointer), X(cuMemHostGetFlags), X(cuMemHostRegister),
      X(cuMemHostUnregister), X(cuMemPrefetchAsync), X(cuMemAdvise), X(cuMemcpyPeer), X(cuMemcpyPeerAsync),
      X(cuMemcpy2D), X(cuMemcpy2DUnaligned), X(cuMemcpy2DAsync), X(cuMemcpy3D), X(cuMemcpy3DAsync),
      X(cuMemsetD16Async), X(cuMemsetD2D8), X(cuMemsetD2D16), X(cuMemsetD2D32), X(cuPointerGetAttribute),
      X(cuPointerGetAttributes), X(cuPointerSetAttribute), X(cuMemPoolCreate), X(cuMemPoolDestroy),
      X(cuMemPoolGetAttribute), X(cuMemPoolSetAttribute), X(cuMemPoolTrimTo), X(cuMemPoolSetAccess),
      X(cuMemPoolGetAccess), X(cuMemAllocFromPoolAsync), X(cuStreamGetCtx), X(cuStreamGetDevice), X(cuStreamGetId),
      X(cuStreamGetFlags), X(cuStreamGetPriority), X(cuStreamAddCallback), X(cuStreamAttachMemAsync),
      X(cuStreamBeginCapture), X(cuStreamEndCapture), X(cuStreamIsCapturing), X(cuStreamGetCaptureInfo),
      X(cuThreadExchangeStreamCaptureMode), X(cuEventRecordWithFlags), X(cuGraphInstantiateWithFlags),
      X(cuGraphInstantiateWithParams), X(cuGraphCreate), X(cuGraphDestroy), X(cuGraphExecDestroy), X(cuGraphUpload),
      X(cuGraphLaunch), X(cuGetExportTable),
      {"cuGraphInstantiate", reinterpret_cast<void *>(&cuGraphInstantiateWithFlags)},
  // clang-format on
#undef X
  };
  if (const auto found = all.find(name); found != all.end()) return found->second;
  unsigned from;
  return driver_function(name.c_str(), &from);
}

}  // namespace

extern "C" CUresult CUDAAPI cuGetProcAddress_v2(
    const char *name, void **out, int version, cuuint64_t, CUdriverProcAddressQueryResult *status) {
  if (!name || !out) return CUDA_ERROR_INVALID_VALUE;
  *out = library_function(name, version);
  if (!*out && !strncmp(name, "cu", 2)) *out = absent_function(name);
  if (status) *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS;
}

#include "cute.h"
