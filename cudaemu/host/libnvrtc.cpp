// NVRTC for a process whose driver is the emulator: NVIDIA's own, except that a compute capability sm_90 becomes
// compute_90 and what is called a cubin is PTX, which has the lines of the source. A copy stands in front of each
// release's library (front_ends.py).

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace {
void *real = nullptr;                                        // NVIDIA's library
const char *(*where)(const char *, const char *) = nullptr;  // a directive: where this source of that name is

using Call = void *(*)(void *, void *, void *, void *, void *, void *);
Call find(const char *name) { return reinterpret_cast<Call>(dlsym(real, name)); }
constexpr intptr_t INVALID_INPUT = 3;  // of nvrtcResult

bool is_arch(const std::string &option) { return option == "-arch" || option == "--gpu-architecture"; }

// sm_90a -> compute_90a
std::string virtual_arch(const std::string &option) {
  const size_t at = option.rfind("sm_");
  return at == std::string::npos ? option : option.substr(0, at) + "compute_" + option.substr(at + 3);
}
}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))
// Numbers and pointers, which registers hold whatever they mean.
#define FORWARD(NAME)                                                               \
  EXPORTED void *NAME(void *a, void *b, void *c, void *d, void *e, void *f) {       \
    static const Call call = find(#NAME);                                           \
    return call ? call(a, b, c, d, e, f) : reinterpret_cast<void *>(INVALID_INPUT); \
  }
#define AS(OTHER, NAME)                                                       \
  EXPORTED void *NAME(void *a, void *b, void *c, void *d, void *e, void *f) { \
    static const Call call = find(#OTHER);                                    \
    return call(a, b, c, d, e, f);                                            \
  }

FORWARD(nvrtcAddNameExpression)
FORWARD(nvrtcDestroyProgram)
FORWARD(nvrtcGetBundledHeadersInfo)
FORWARD(nvrtcGetErrorString)
FORWARD(nvrtcGetLTOIR)
FORWARD(nvrtcGetLTOIRSize)
FORWARD(nvrtcGetLoweredName)
FORWARD(nvrtcGetNumSupportedArchs)
FORWARD(nvrtcGetOptiXIR)
FORWARD(nvrtcGetOptiXIRSize)
FORWARD(nvrtcGetPCHCreateStatus)
FORWARD(nvrtcGetPCHHeapSize)
FORWARD(nvrtcGetPCHHeapSizeRequired)
FORWARD(nvrtcGetPTX)
FORWARD(nvrtcGetPTXSize)
FORWARD(nvrtcGetProgramLog)
FORWARD(nvrtcGetProgramLogSize)
FORWARD(nvrtcGetSupportedArchs)
FORWARD(nvrtcGetTileIR)
FORWARD(nvrtcGetTileIRSize)
FORWARD(nvrtcInstallBundledHeaders)
FORWARD(nvrtcRemoveBundledHeaders)
FORWARD(nvrtcSetFlowCallback)
FORWARD(nvrtcSetPCHHeapSize)
FORWARD(nvrtcVersion)
AS(nvrtcGetPTX, nvrtcGetCUBIN)
AS(nvrtcGetPTXSize, nvrtcGetCUBINSize)

EXPORTED void emulator_real(const char *path) { real = dlopen(path, RTLD_NOW | RTLD_LOCAL); }
EXPORTED void emulator_sources(const char *(*call)(const char *, const char *)) { where = call; }

EXPORTED void *nvrtcCreateProgram(
    void *program, const char *source, const char *name, void *headers, void *texts, void *names) {
  static const Call call = find("nvrtcCreateProgram");
  const char *const directive = where && source ? where(source, name ? name : "") : nullptr;
  const std::string placed = directive ? std::string(directive) + source : std::string();
  const char *const given = directive ? placed.c_str() : source;
  return call(program, const_cast<char *>(given), const_cast<char *>(name), headers, texts, names);
}

EXPORTED void *nvrtcCompileProgram(void *program, int count, const char *const *given) {
  const std::vector<std::string> said(given, given + count);
  const auto has = [&](const std::vector<std::string> &any) {
    return std::find_first_of(said.begin(), said.end(), any.begin(), any.end()) != said.end();
  };
  static const std::vector<std::string> lines = {"-lineinfo", "--generate-line-info"};
  const bool linked_later = has({"-dlto", "--dlink-time-opt", "-gen-ltoir"});
  std::vector<std::string> options;
  for (size_t i = 0; i < said.size(); ++i) {
    const bool names_arch = is_arch(said[i].substr(0, said[i].find('='))) || (i && is_arch(said[i - 1]));
    // The linker does not take lines of two compilers.
    if (linked_later && std::count(lines.begin(), lines.end(), said[i])) continue;
    options.push_back(names_arch && !linked_later ? virtual_arch(said[i]) : said[i]);
  }
  if (!linked_later && !has(lines) && !has({"-G", "--device-debug"})) options.push_back("-lineinfo");
  std::vector<const char *> words;
  for (const std::string &each : options) words.push_back(each.c_str());
  static const Call call = find("nvrtcCompileProgram");
  return call(program, reinterpret_cast<void *>(words.size()), words.data(), nullptr, nullptr, nullptr);
}
