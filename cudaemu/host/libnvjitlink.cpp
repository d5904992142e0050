// nvJitLink for a process whose driver is the emulator: what it calls a cubin is PTX. Texts of PTX are linked by the
// emulator (link.py); LTO-IR becomes PTX by NVIDIA's own library. A copy stands in front of each release's library
// (front_ends.py).

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {
enum Result { SUCCESS = 0, INVALID_INPUT = 3, PTX_COMPILE = 4, NVVM_COMPILE = 5, INTERNAL = 6 };  // of nvJitLinkResult
enum Input { LTOIR = 3, LIBRARY = 6 };  // of nvJitLinkInputType

void *real = nullptr;  // NVIDIA's library
template <class F>
F find(const char *name) {
  return reinterpret_cast<F>(dlsym(real, name));
}

struct Part {
  int type;
  std::string data, name;
};
struct Linker {
  std::vector<std::string> options;
  std::vector<Part> parts;
  std::string result, error;
};
Linker &of(void *handle) { return *static_cast<Linker *>(handle); }

// Of the device's own runtime, libcudadevrt.a, what a cooperative launch needs: the last block to arrive lets all go.
const char *const GRIDS = R"(.version 7.0
.target sm_70
.address_size 64
.global .align 8 .u64 cudaemu_arrived;
.visible .func (.param .b64 result) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
  .reg .b64 %rd<2>;
  mov.u64 %rd1, 1;
  st.param.b64 [result], %rd1;
  ret;
}
.visible .func (.param .b32 result) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
  .reg .pred %p<3>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<6>;
  bar.sync 0;
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %tid.y;
  mov.u32 %r3, %tid.z;
  or.b32 %r1, %r1, %r2;
  or.b32 %r1, %r1, %r3;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra $together;
  mov.u32 %r4, %nctaid.x;
  mov.u32 %r5, %nctaid.y;
  mov.u32 %r6, %nctaid.z;
  mul.lo.u32 %r4, %r4, %r5;
  mul.lo.u32 %r4, %r4, %r6;
  cvt.u64.u32 %rd1, %r4;
  atom.add.acq_rel.gpu.global.u64 %rd2, [cudaemu_arrived], 1;
  div.u64 %rd3, %rd2, %rd1;
  add.u64 %rd3, %rd3, 1;
  mul.lo.u64 %rd3, %rd3, %rd1;
$wait:
  ld.acquire.gpu.global.u64 %rd4, [cudaemu_arrived];
  setp.lt.u64 %p2, %rd4, %rd3;
  @%p2 bra $wait;
$together:
  bar.sync 0;
  mov.u32 %r7, 0;
  st.param.b32 [result], %r7;
  ret;
}
)";

// The LTO-IR among the parts as PTX.
int compile(Linker &linker, std::string *ptx) {
  using Create = int (*)(void **, uint32_t, const char **);
  using Add = int (*)(void *, int, const void *, size_t, const char *);
  using Complete = int (*)(void *);
  using Size = int (*)(void *, size_t *);
  using Get = int (*)(void *, char *);
  std::vector<const char *> options;
  for (const std::string &each : linker.options) options.push_back(each.c_str());
  for (const char *each : {"-lto", "-ptx"}) {
    bool there = false;
    for (const char *option : options) there |= !strcmp(option, each);
    if (!there) options.push_back(each);
  }
  void *handle = nullptr;
  int error = find<Create>("nvJitLinkCreate")(&handle, uint32_t(options.size()), options.data());
  for (const Part &part : linker.parts)
    if (!error && part.type == LTOIR)
      error = find<Add>("nvJitLinkAddData")(handle, LTOIR, part.data.data(), part.data.size(), part.name.c_str());
  if (!error) error = find<Complete>("nvJitLinkComplete")(handle);
  const auto text = [&](const char *size, const char *get) {
    size_t bytes = 0;
    if (!handle || find<Size>(size)(handle, &bytes)) return std::string();
    std::string got(bytes, '\0');
    find<Get>(get)(handle, &got[0]);
    return std::string(got.c_str());
  };
  if (error)
    linker.error = text("nvJitLinkGetErrorLogSize", "nvJitLinkGetErrorLog");
  else
    *ptx = text("nvJitLinkGetLinkedPtxSize", "nvJitLinkGetLinkedPtx");
  if (handle) find<int (*)(void **)>("nvJitLinkDestroy")(&handle);
  return error;
}

// The driver's linker: libcuda.cpp.
int link(Linker &linker, const std::vector<std::pair<std::string, std::string>> &texts) {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!driver) return INTERNAL;
  const auto call = [&](const char *name) { return dlsym(driver, name); };
  using Create = int (*)(unsigned, int *, void **, void **);
  using Add = int (*)(void *, int, const void *, size_t, const char *, unsigned, int *, void **);
  using Complete = int (*)(void *, void **, size_t *);
  constexpr int PTX = 1, ERROR_LOG = 5, ERROR_LOG_BYTES = 6;  // of CUjitInputType, CUjit_option
  std::string log(4096, '\0');
  int names[] = {ERROR_LOG, ERROR_LOG_BYTES};
  void *values[] = {&log[0], reinterpret_cast<void *>(log.size())};
  void *state = nullptr, *made = nullptr;
  size_t bytes = 0;
  reinterpret_cast<Create>(call("cuLinkCreate_v2"))(2, names, values, &state);
  int error = 0;
  for (const auto &[name, text] : texts)
    if (!error)
      error = reinterpret_cast<Add>(call("cuLinkAddData_v2"))(
          state, PTX, text.data(), text.size(), name.c_str(), 0, nullptr, nullptr);
  if (!error) error = reinterpret_cast<Complete>(call("cuLinkComplete"))(state, &made, &bytes);
  if (!error) linker.result.assign(static_cast<char *>(made), bytes);
  reinterpret_cast<int (*)(void *)>(call("cuLinkDestroy"))(state);
  linker.error = log.c_str();
  return error ? PTX_COMPILE : SUCCESS;
}

int give(const std::string &text, char *out) { return memcpy(out, text.c_str(), text.size() + 1), SUCCESS; }
}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void emulator_real(const char *path) { real = dlopen(path, RTLD_NOW | RTLD_LOCAL); }

EXPORTED int nvJitLinkVersion(unsigned *major, unsigned *minor) {
  return find<int (*)(unsigned *, unsigned *)>("nvJitLinkVersion")(major, minor);
}
EXPORTED int nvJitLinkCreate(void **handle, uint32_t count, const char **options) {
  *handle = new Linker{{options, options + count}, {}, {}, {}};
  return SUCCESS;
}
EXPORTED int nvJitLinkDestroy(void **handle) {
  delete static_cast<Linker *>(*handle);
  *handle = nullptr;
  return SUCCESS;
}
EXPORTED int nvJitLinkAddData(void *handle, int type, const void *data, size_t bytes, const char *name) {
  std::string text(static_cast<const char *>(data), bytes);
  if (type != LTOIR) text = text.c_str()[0] == '\177' ? text : std::string(text.c_str());
  of(handle).parts.push_back({type, std::move(text), name ? name : ""});
  return SUCCESS;
}
EXPORTED int nvJitLinkAddFile(void *handle, int type, const char *name) {
  std::ifstream file(name, std::ios::binary);
  if (!file) return INVALID_INPUT;
  std::stringstream text;
  text << file.rdbuf();
  const std::string data = text.str();
  return nvJitLinkAddData(handle, type, data.data(), data.size(), name);
}
EXPORTED int nvJitLinkComplete(void *handle) {
  Linker &linker = of(handle);
  std::vector<std::pair<std::string, std::string>> texts;
  bool later = false;
  for (const Part &part : linker.parts) {
    later |= part.type == LTOIR;
    const bool own = part.type == LIBRARY && part.name.find("cudadevrt") != std::string::npos;
    if (part.type != LTOIR) texts.emplace_back(part.name, own ? GRIDS : part.data);
  }
  if (later) {
    std::string ptx;
    if (const int error = compile(linker, &ptx)) return error;
    texts.emplace_back("the LTO-IR", ptx);
  }
  return link(linker, texts);
}
EXPORTED int nvJitLinkGetLinkedCubinSize(void *handle, size_t *bytes) {
  return *bytes = of(handle).result.size(), SUCCESS;
}
EXPORTED int nvJitLinkGetLinkedCubin(void *handle, char *out) {
  return memcpy(out, of(handle).result.data(), of(handle).result.size()), SUCCESS;
}
EXPORTED int nvJitLinkGetLinkedPtxSize(void *handle, size_t *bytes) {
  return nvJitLinkGetLinkedCubinSize(handle, bytes);
}
EXPORTED int nvJitLinkGetLinkedPtx(void *handle, char *out) { return nvJitLinkGetLinkedCubin(handle, out); }
EXPORTED int nvJitLinkGetErrorLogSize(void *handle, size_t *bytes) {
  return *bytes = of(handle).error.size() + 1, SUCCESS;
}
EXPORTED int nvJitLinkGetErrorLog(void *handle, char *out) { return give(of(handle).error, out); }
EXPORTED int nvJitLinkGetInfoLogSize(void *, size_t *bytes) { return *bytes = 1, SUCCESS; }
EXPORTED int nvJitLinkGetInfoLog(void *, char *out) { return *out = '\0', SUCCESS; }
