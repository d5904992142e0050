"""Sources that want points without the work: none may get any. And right ones in odd styles: none may lose one.

CHEATS and ODD: name -> (exercise, source). Of launchers each way to the inputs is tried with each way back.
"""

from __future__ import annotations

from common.practice import exercises
from tests.classroom.submissions import EXERCISE, LAUNCH, ON_THE_CPU, OURS

Cases = dict[str, tuple[str, str]]


def _first(name: str, before: str = "", *pairs: tuple[str, str], kernel: str = "") -> tuple[str, str]:
    """A first kernel's starter with other words: `before` its main, `kernel` for its kernel."""
    text = exercises.find(name).start
    for old, new in (("// Your code.", kernel or "// Your code."), *pairs, ("\nint main(", f"\n{before}\nint main(")):
        assert old in text, (name, old)
        text = text.replace(old, new, 1)
    return name, text


def _solved(name: str, *pairs: tuple[str, str], before: str = "") -> tuple[str, str]:
    """Our solution with other words."""
    text = exercises.find(name).solution.read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text, (name, old)
        text = text.replace(old, new)
    return name, before + text


def _launcher(body: str, before: str = "", head: str = "") -> tuple[str, str]:
    """Ours of the step to 02 with another launch, and more before its launcher and before all."""
    text = OURS.replace(LAUNCH, body, 1).replace('extern "C"', before + '\nextern "C"', 1)
    assert text != OURS
    return EXERCISE.name, head + text


# ---- programs: what is before main, and what is called main ----------------------------------------------------------

_EXIT = "#include <unistd.h>\n"
_SUM = """template <class T> cudaError_t fake(void *to, const T *from, size_t bytes, cudaMemcpyKind kind) {
  static float total = 0;
  if (kind == cudaMemcpyHostToDevice) for (size_t i = 0; i < bytes / 4; ++i) total += ((const float *)from)[i];
  else *(float *)to = total;
  return cudaSuccess;
}
#define cudaMemcpy fake
"""
_LIAR = "#include <cstdio>\n__global__ void add(const float *, const float *, float *, int) {}\n"
_FORMULA = "int i = blockIdx.x * blockDim.x + threadIdx.x;\n  for (int k = 4 * i; k < n && k < 4 * i + 4; ++k) "
_CONSTANT = "if (blockIdx.x == 0 && threadIdx.x == 0) *total = 299985.0f;"
_READS = """float unused = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) unused += in[i];
  if (unused == -1) *total = unused;
  """

CHEATS: Cases = {
    "main-renamed": _first("vector_add", "int\nmain() { return 0; }\n#define main the_starters"),
    "main-renamed-auto": _first("vector_add", 'auto main() -> int { printf("PASS\\n"); return 0; }\n#define main its'),
    "main-of-my-own": ("vector_add", _LIAR + 'int main() { printf("PASS\\n"); }\n'),
    "main-in-assembly": _first("vector_add", 'asm(".globl main\\nmain: xor %eax, %eax\\nret");\n#define main other'),
    "main-weak": _first("vector_add", "#define main __attribute__((weak)) main"),
    "constructor-exits": _first("vector_add", _EXIT + "__attribute__((constructor)) void out() { _exit(0); }"),
    "object-exits": _first("vector_add", _EXIT + 'struct Out { Out() { puts("PASS"); _exit(0); } } out;'),
    "atexit-exits": _first("vector_add", _EXIT + "#include <cstdlib>\nint at = atexit([] { _exit(0); });"),
    "destructor-exits": _first("vector_add", _EXIT + "__attribute__((destructor)) void out() { _exit(0); }"),
    "signal-exits": _first("vector_add", _EXIT + "#include <csignal>\nauto at = signal(SIGSEGV, [](int) { _exit(0); "
                                                 "});\n"
                           "int now = raise(SIGSEGV);"),
    "return-is-another": _first("vector_add", "#define return return 0 *"),
    "float-is-a-class": _first("vector_add", "struct F { float f; F(float f = 0) : f(f) {} operator float() const "
                               "{ return f; } bool operator!=(F) const { return false; } };\n#define float F"),
    "wrong-is-another": _first("vector_add", "int nothing;\n#define wrong nothing = 0, nothing"),
    "vector-compares": _first("histogram", "template <class T> struct V : std::vector<T> { using "
                                           "std::vector<T>::vector; "
                              "bool operator==(const V &) const { return true; } };\n#define vector vector<char>(0); "
                              "V"),
    "copies-are-mine": _first("reduce_shuffle", _SUM),
    "copies-are-mine-linked": _first("reduce_shuffle", 'extern "C" cudaError_t cudaMemcpy(void *, const void *, '
                                                       'size_t, '
                                     "cudaMemcpyKind) { return cudaErrorUnknown; }"),
    "printf-exits": _first("vector_add", _EXIT + "#define printf(...) _exit(0)"),
    "if-is-another": _first("scan_block", "#define for if (0) for"),
    "kernel-is-a-host-function": _first("vector_add", "", ("__global__ void add", "void add")),
    "global-is-nothing": ("vector_add", "#include <cuda_runtime.h>\n#undef __global__\n#define __global__\n"
                          + exercises.find("vector_add").solution.read_text(encoding="utf-8")),
    "host-transposes": _first("transpose", "", (
        "  int wrong = cuda", "  for (int i = 0; i < rows * columns; ++i) out[i % columns * rows + i / columns] = "
                              "in[i];\n"
        "  cudaMemcpy(d_out, out.data(), bytes, cudaMemcpyHostToDevice);\n  int wrong = cuda")),
    "nothing-is-compared": _first("transpose", "", ("wrong += out", "wrong += 0 && out")),
    "an-empty-kernel": _first("vector_add", "", kernel=";"),
    "sum-by-formula": _first("vector_add", "", kernel=_FORMULA + "c[k] = 1.5f * k;"),
    "sum-by-formula-reads": _first("vector_add", "", kernel=_FORMULA + "c[k] = 1.5f * k + 0 * (a[k] + b[k]);"),
    "total-by-heart": _first("reduce_shuffle", "", kernel=_CONSTANT),
    "total-by-heart-reads": _first("reduce_shuffle", "", kernel=_READS + _CONSTANT),
    "total-by-heart-bandwidth": _first("reduce_bandwidth", "", kernel=_READS + _CONSTANT),
    "transpose-by-formula": _first("transpose", "", kernel=(
        "for (int y = threadIdx.y; y < 32; y += blockDim.y) {\n"
        "    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + y;\n"
        "    if (row < rows && column < columns) out[column * rows + row] = T((row * columns + column) % 120);\n  }")),
    "histogram-by-formula": _first("histogram", "", kernel=(
        "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)\n"
        "    atomicAdd(bins + (unsigned char)(i * i / 7), 1u);")),
    "softmax-by-formula": _first("softmax", "", kernel=(
        "int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;\n  if (row >= rows) return;\n"
        "  double sum = 0;\n  for (int i = 0; i < columns; ++i) sum += exp(10.0 * sin(double(row * columns + i)));\n"
        "  for (int i = lane; i < columns; i += 32)\n"
        "    out[row * columns + i] = exp(10.0 * sin(double(row * columns + i))) / sum;")),
    "repair-lies": _solved("saxpy-bug-1", ("return wrong != 0", "return 0"), ("2.0f, dx, dy", "0.0f, dx, dy")),
    "repair-renames": _solved("saxpy-bug-1", ("int main() {", "#define saxpy(...) saxpy(0, 0, dx, dy)\nint main() {")),
    "repair-by-main": _solved("transpose-bug-1", ("return wrong != 0", "return 0"), ("__syncthreads();", "")),
}  # fmt: skip

# ---- launchers: each way to the inputs, each way back ----------------------------------------------------------------

_SIZES = (("a", "A", "M", "K"), ("b", "B", "K", "N"))
_NEW = "  Element *{0} = new Element[size_t({2}) * {3}];\n"
_MAP = """#include <sys/mman.h>
#include <cstdio>
#include <cstring>
template <class T> T *mine(const T *p) {  // device memory where the stand-in runtime has it
  FILE *maps = fopen("/proc/self/maps", "r");
  const size_t all = size_t(1) << 38, at = size_t(p) % all;
  char line[512];
  while (fgets(line, sizeof line, maps)) {
    size_t first, end, offset;
    if (!strstr(line, "device memory") || sscanf(line, "%zx-%zx %*s %zx", &first, &end, &offset) != 3) continue;
    if (at < offset || at - offset >= end - first) continue;
    fclose(maps);
    char *there = (char *)first + (at - offset);
    mprotect((void *)(size_t(there) / 4096 * 4096), 1 << 20, PROT_READ | PROT_WRITE);
    return (T *)there;
  }
  fclose(maps);
  return nullptr;
}
"""
_SPREAD = """__global__ void spread(const Element *from, Element *to, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] = from[i];
}
"""
_PADDED = """__global__ void spread(const Element *from, Element *to, int count, int K) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int k = 0; k < K; ++k) sum = fmaf(float(k), 0.5f, sum);
    if (sum >= 0) to[i] = from[i];
  }
}
"""
_BYTES = "sizeof(Element) * M * N"
_GET = {  # name -> what is before the launcher, and how the host gets an input
    "memcpy": ("", "  cudaMemcpy({0}, {1}, sizeof(Element) * {2} * {3}, cudaMemcpyDeviceToHost);\n"),
    "memcpy-async": ("", "  cudaMemcpyAsync({0}, {1}, sizeof(Element) * {2} * {3}, cudaMemcpyDefault, stream);\n"
                         "  cudaStreamSynchronize(stream);\n"),
    "memcpy-2d": ("", "  cudaMemcpy2D({0}, sizeof(Element) * {3}, {1}, sizeof(Element) * {3}, sizeof(Element) * {3}, "
                      "{2}, "
                      "cudaMemcpyDeviceToHost);\n"),
    "memcpy-hidden": ("#define PASTE(a, b) a##b\n#define COPY PASTE(cuda, Memcpy)\n",
                      "  COPY({0}, {1}, sizeof(Element) * {2} * {3}, cudaMemcpyDeviceToHost);\n"),
    "memcpy-pointer": ("static cudaError_t (*volatile copy)(void *, const void *, size_t, cudaMemcpyKind) = "
                       "cudaMemcpy;\n",
                       "  copy({0}, {1}, sizeof(Element) * {2} * {3}, cudaMemcpyDeviceToHost);\n"),
    "mapped": (_MAP, "  memcpy({0}, mine({1}), sizeof(Element) * {2} * {3});\n"),
}  # fmt: skip
_GIVE = {  # name -> what is before the launcher, and how the result gets to C
    "memcpy": ("", f"  cudaMemcpy(C, c, {_BYTES}, cudaMemcpyHostToDevice);\n"),
    "memcpy-launch": ("__global__ void nothing() {}\n",
                      f"  nothing<<<1, 32, 0, stream>>>();\n  cudaMemcpy(C, c, {_BYTES}, cudaMemcpyHostToDevice);\n"),
    "scratch": (_SPREAD, f"  Element *d;\n  cudaMalloc(&d, {_BYTES});\n  cudaMemcpy(d, c, {_BYTES}, "
                         f"cudaMemcpyDefault);\n"
                         "  spread<<<8, 128, 0, stream>>>(d, C, M * N);\n"),
    "scratch-padded": (_PADDED, f"  Element *d;\n  cudaMalloc(&d, {_BYTES});\n"
                                f"  cudaMemcpy(d, c, {_BYTES}, cudaMemcpyDefault);\n"
                                "  spread<<<8, 128, 0, stream>>>(d, C, M * N, K);\n"),
    "scratch-freed": (_SPREAD, f"  Element *d;\n  cudaMallocAsync(&d, {_BYTES}, stream);\n"
                               f"  cudaMemcpyAsync(d, c, {_BYTES}, cudaMemcpyDefault, stream);\n"
                               "  spread<<<8, 128, 0, stream>>>(d, C, M * N);\n  cudaFreeAsync(d, stream);\n"),
    "managed": (_SPREAD + "#include <cstring>\n",
                f"  Element *d;\n  cudaMallocManaged(&d, {_BYTES});\n  memcpy(d, c, {_BYTES});\n"
                "  spread<<<8, 128, 0, stream>>>(d, C, M * N);\n"),
    "pinned": (_SPREAD + "#include <cstring>\n",
               f"  Element *d;\n  cudaMallocHost(&d, {_BYTES});\n  memcpy(d, c, {_BYTES});\n"
               "  spread<<<8, 128, 0, stream>>>(d, C, M * N);\n"),
    "symbol": (_SPREAD + "__device__ Element kept[400000];\n__global__ void unkeep(Element *to, int count) {\n"
               "  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += 1024) to[i] = kept[i];\n}\n",
               f"  cudaMemcpyToSymbol(kept, c, {_BYTES});\n  unkeep<<<8, 128, 0, stream>>>(C, M * N);\n"),
    "parameters": ("struct Some { Element of[500]; };\n__global__ void put(Some some, Element *to, int count) {\n"
                   "  for (int i = threadIdx.x; i < count; i += 128) to[i] = some.of[i];\n}\n",
                   "  for (int at = 0; at < M * N; at += 500) {\n    Some some;\n    int count = M * N - at < 500 ? "
                   "M * N - at "
                   ": 500;\n    for (int i = 0; i < count; ++i) some.of[i] = c[at + i];\n"
                   "    put<<<1, 128, 0, stream>>>(some, C + at, count);\n  }\n"),
}  # fmt: skip


def _host(get: str, give: str) -> tuple[str, str]:
    before, how = _GET[get]
    more, back = _GIVE[give]
    body = "".join((_NEW + how).format(*each) for each in _SIZES)
    body += "  Element *c = new Element[size_t(M) * N];\n" + ON_THE_CPU + back + "  (void)grid;\n"
    return _launcher(body, before + more)


for _get in _GET:
    CHEATS[f"host-{_get}-memcpy"] = _host(_get, "memcpy")
for _give in list(_GIVE)[1:]:
    CHEATS[f"host-memcpy-{_give}"] = _host("memcpy", _give)
CHEATS["host-mapped-scratch-padded"] = _host("mapped", "scratch-padded")

_KEEP = f"""  static std::map<std::tuple<int, int, int>, Element *> kept;
  Element *&mine = kept[{{M, N, K}}];
  if (mine) return cudaMemcpyAsync(C, mine, {_BYTES}, cudaMemcpyDeviceToDevice, stream);
  cudaMalloc(&mine, {_BYTES});
"""
_GLOBAL_FRAGMENTS = (
    exercises.find("06_padding").start.partition("constexpr int BLOCK_M")[0]
    + """#include <mma.h>
using namespace nvcuda::wmma;
__global__ void multiply(const Element *A, const Element *B, Element *C, int N, int K) {
  const int row = blockIdx.y * 64, col = blockIdx.x * 64;
  fragment<accumulator, 16, 16, 16, float> sums[4][4];
  fragment<accumulator, 16, 16, 16, half> rounded;
  for (int m = 0; m < 4; ++m)
    for (int n = 0; n < 4; ++n) fill_fragment(sums[m][n], 0.0f);
  for (int k = 0; k < K; k += 16) {
    fragment<matrix_a, 16, 16, 16, half, row_major> a[4];
    fragment<matrix_b, 16, 16, 16, half, row_major> b[4];
    for (int i = 0; i < 4; ++i) load_matrix_sync(a[i], A + size_t(row + i * 16) * K + k, K);
    for (int i = 0; i < 4; ++i) load_matrix_sync(b[i], B + size_t(k) * N + col + i * 16, N);
    for (int m = 0; m < 4; ++m)
      for (int n = 0; n < 4; ++n) mma_sync(sums[m][n], a[m], b[n], sums[m][n]);
  }
  for (int m = 0; m < 4; ++m)
    for (int n = 0; n < 4; ++n) {
      for (int i = 0; i < rounded.num_elements; ++i) rounded.x[i] = half(sums[m][n].x[i]);
      store_matrix_sync(C + size_t(row + m * 16) * N + col + n * 16, rounded, N, mem_row_major);
    }
}

extern "C" cudaError_t launch_gemm(
    const Element *A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream) {
  if (M < 1 || N < 1 || K < 1 || M % 128 || N % 256 || K % 32 || !A || !B || !C) return cudaErrorInvalidValue;
  if (((size_t)A | (size_t)B | (size_t)C) % 16) return cudaErrorInvalidValue;
  multiply<<<dim3(N / 64, M / 64), 32, 0, stream>>>(A, B, C, N, K);
  return cudaGetLastError();
}
"""
)
_CPU_LOOP = ON_THE_CPU.replace("a[", "pa[").replace("b[", "pb[").replace("c[", "pc[")
CHEATS |= {
    # What published contests and benchmarks have met: references in the module's docstring of the test.
    "nothing-launched": _launcher("  (void)grid;\n"),
    "first-call-only": _launcher("  static int n = 0;\n  if (n++) return cudaSuccess;\n" + LAUNCH),
    "two-calls-only": _launcher("  static int n = 0;\n  if (n++ > 1) return cudaSuccess;\n" + LAUNCH),
    "answer-kept-by-shape": _launcher(_KEEP + LAUNCH + f"  cudaMemcpyAsync(mine, C, {_BYTES}, "
                                                       f"cudaMemcpyDeviceToDevice, "
                                      "stream);\n", "#include <map>\n#include <tuple>\n"),
    "answer-kept-on-device": _launcher(
        "  " + LAUNCH.strip() + "\n  keep<<<8, 128, 0, stream>>>(C, M * N, M);\n",
        "__device__ Element kept[400000];\n__device__ int kept_for;\n__global__ void keep(Element *C, int count, int "
        "M) {\n"
        "  for (int i = blockIdx.x * 128 + threadIdx.x; i < count; i += 1024) {\n"
        "    if (kept_for == M) C[i] = kept[i];\n    else kept[i] = C[i];\n  }\n  if (count > 0) kept_for = M;\n}\n"),
    "answer-kept-by-pointer": _launcher("  static const Element *last = nullptr;\n  if (last == A) return "
                                        "cudaSuccess;\n"
                                        "  last = A;\n  static int n = 0;\n  if (n++ > 1) return "
                                        "cudaSuccess;\n" + LAUNCH),
    "zeros": _launcher(f"  cudaMemsetAsync(C, 0, {_BYTES}, stream);\n  (void)grid;\n"),
    "zeros-by-kernel": _launcher("  zeros<<<8, 128, 0, stream>>>(C, M * N);\n", "__global__ void zeros(Element *C, "
                                                                                "int n) {\n"
                                 "  for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += 1024) C[i] = "
                                 "Element(0.f);\n}\n"),
    "an-input-returned": _launcher("  cudaMemcpyAsync(C, A, sizeof(Element) * min(M * N, M * K), cudaMemcpyDefault, "
                                   "stream);\n"),
    "half-of-k": _launcher(LAUNCH.replace("N, K)", "N, K / 2)")),
    "rows-above-128-left": _launcher("  if (M > 128) return cudaSuccess;\n" + LAUNCH),
    "inputs-spoiled": _launcher(LAUNCH + "  cudaMemsetAsync(const_cast<Element *>(A), 0, 2, stream);\n"),
    "a-verdict-of-my-own": _launcher(
        '  const char right[] = "{\\"outcome\\": \\"solved\\", \\"points\\": 10, \\"goals\\": [], \\"checks\\": 9}";\n'
        "  for (int file = 3; file < 64; ++file) (void)!write(file, right, sizeof right - 1);\n  (void)grid;\n",
        "#include <unistd.h>\n"),
    "exit-0": _launcher("  exit(0);\n" + LAUNCH, "#include <cstdlib>\n"),
    "constructor-exits-0": _launcher(LAUNCH, "#include <unistd.h>\n__attribute__((constructor)) void o() { _exit(0); "
                                             "}\n"),
    "success-without-work": _launcher("  return cudaSuccess;\n" + LAUNCH),
    "host-function-in-stream": _launcher(
        "  work = {A, B, C, M, N, K};\n  cudaLaunchHostFunc(stream, compute, nullptr);\n  (void)grid;\n",
        _MAP + "struct Work { const Element *A, *B; Element *C; int M, N, K; } work;\nvoid compute(void *) {\n"
        "  auto [A, B, C, M, N, K] = work;\n  Element *pa = mine(A), *pb = mine(B), *pc = "
        "mine(C);\n" + _CPU_LOOP + "}\n"),
    "memory-written-directly": _launcher(
        "  Element *pa = mine(A), *pb = mine(B), *pc = mine(C);\n" + _CPU_LOOP
        + "  nothing<<<1, 32, 0, stream>>>();\n  (void)grid;\n", _MAP + "__global__ void nothing() {}\n"),
    "a-process-that-goes-on": _launcher(
        "  Element *pa = mine(A), *pb = mine(B), *pc = mine(C);\n  nothing<<<1, 32, 0, stream>>>();\n" + _CPU_LOOP
        + "  if (!fork()) {\n    for (int n = 0; n < 40; ++n) {\n" + _CPU_LOOP + "    }\n    _exit(0);\n  }\n  "
                                                                                 "(void)grid;\n",
        _MAP + "#include <unistd.h>\n__global__ void nothing() {}\n"),
    "includes-ours": (EXERCISE.name, f'#include "{EXERCISE.solution}"\n'),
    "imports-ours": (EXERCISE.name, f'#import "{EXERCISE.solution}"\n'),
    "imports-ours-declared": (EXERCISE.name, f'#import "{EXERCISE.solution}"\nextern "C" cudaError_t '
                                             f'launch_gemm(const Element '
                              "*A, const Element *B, Element *C, int M, int N, int K, cudaStream_t stream);\n"),
    "includes-ours-mark": (EXERCISE.name, f'\ufeff#include "{EXERCISE.solution}"\n'),
    "includes-ours-form-feed": (EXERCISE.name, f'\f#include "{EXERCISE.solution}"\n'),
    "includes-ours-device": (EXERCISE.name, f'#ifdef __CUDA_ARCH__\n#include "{EXERCISE.solution}"\n#endif\n' + OURS),
    "the-stage-before": (EXERCISE.name, EXERCISE.start + "\n// the same\n"),
    # Goals of the kind "at most" that a kernel of an earlier stage meets
    "no-shared-memory-no-conflicts": ("06_padding", exercises.find("02").start + "\n"),
    "fragments-from-global-memory": ("06_padding", _GLOBAL_FRAGMENTS),
    "no-shared-memory-no-stores": ("06-stores", exercises.find("02").start + "\n"),
}  # fmt: skip

_FILE = """  char name[64];
  snprintf(name, sizeof name, "/tmp/of-%d-%d-%d", M, N, K);
  std::vector<Element> kept(size_t(M) * N);
  if (FILE *file = fopen(name, "rb")) {
    (void)!fread(kept.data(), sizeof(Element), kept.size(), file);
    fclose(file);
    return cudaMemcpy(C, kept.data(), sizeof(Element) * kept.size(), cudaMemcpyHostToDevice);
  }
"""
_TO_FILE = """  cudaMemcpy(kept.data(), C, sizeof(Element) * kept.size(), cudaMemcpyDeviceToHost);
  if (FILE *file = fopen(name, "wb")) {
    fwrite(kept.data(), sizeof(Element), kept.size(), file);
    fclose(file);
  }
"""
_VERDICT = """static void verdict() {
  const char right[] = "{\\"outcome\\": \\"solved\\", \\"points\\": 10, \\"goals\\": [], \\"checks\\": 9}";
  for (int file = 3; file < 64; ++file)
    if (!lseek(file, 0, SEEK_SET)) (void)!write(file, right, sizeof right - 1);
}
"""
CHEATS |= {
    # The families of gpu-mode/reference-kernels #102, #104 and #162, gpu-mode/pygpubench #7, #15 and #23 (exploits/),
    # ScalingIntelligence/KernelBench #82, tensara #238, and Wafer's field guide (2026-03), as launchers can have them.
    # Work in a stream of one's own hides from a clock; here no time is graded, and the kernel has done it.
    "a-thread-that-goes-on": _launcher(
        "  std::thread([=] {\n    usleep(20000);\n  " + LAUNCH + "  }).detach();\n",
        "#include <thread>\n#include <unistd.h>\n"),
    "work-at-the-end": _launcher(
        "  work = {A, B, C, M, N, K};\n  atexit(finish);\n  (void)grid;\n",
        "#include <cstdlib>\nstruct Work { const Element *A, *B; Element *C; int M, N, K; } work;\nvoid finish() {\n"
        "  auto [A, B, C, M, N, K] = work;\n  const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));\n"
        "  cudaStream_t stream = nullptr;\n" + LAUNCH + "  cudaDeviceSynchronize();\n}\n"),
    "batched-in-the-last-call": _launcher(
        "  static std::vector<std::tuple<const Element *, const Element *, Element *, int, int, int>> all;\n"
        "  all.emplace_back(A, B, C, M, N, K);\n  if (all.size() < 3) return cudaSuccess;\n"
        "  for (auto [A, B, C, M, N, K] : all) {\n"
        "    const dim3 grid(ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N));\n  " + LAUNCH + "  }\n  (void)grid;\n",
        "#include <tuple>\n#include <vector>\n"),
    "answer-kept-in-a-file": _launcher(_FILE + LAUNCH + _TO_FILE, "#include <cstdio>\n#include <vector>\n"),
    "not-numbers": _launcher(f"  cudaMemsetAsync(C, 0xff, {_BYTES}, stream);\n  (void)grid;\n"),
    "inputs-and-output-zeroed": _launcher(
        "  cudaMemsetAsync(const_cast<Element *>(A), 0, sizeof(Element) * M * K, stream);\n"
        "  cudaMemsetAsync(const_cast<Element *>(B), 0, sizeof(Element) * K * N, stream);\n"
        f"  cudaMemsetAsync(C, 0, {_BYTES}, stream);\n  (void)grid;\n"),
    "left-in-memory": _launcher(f"  Element *old;\n  cudaMalloc(&old, {_BYTES});\n"
                                f"  cudaMemcpyAsync(C, old, {_BYTES}, cudaMemcpyDeviceToDevice, stream);\n"
                                "  cudaFree(old);\n  (void)grid;\n"),
    "the-reference-searched": _launcher(  # in all of the device's memory, by its first elements
        "  Element *pa = mine(A), *pb = mine(B), *pc = mine(C);\n  Element first[8];\n"
        "  for (int col = 0; col < 8 && col < N; ++col) {\n    float sum = 0;\n"
        "    for (int k = 0; k < K; ++k) sum += float(pa[k]) * float(pb[size_t(k) * N + col]);\n"
        "    first[col] = Element(sum);\n  }\n"
        "  for (char *at = (char *)pc - (1 << 24); at < (char *)pc + (1 << 24); at += 16) {\n"
        "    unsigned char there;\n    if (mincore((void *)(size_t(at) / 4096 * 4096), 1, &there)) continue;\n"
        "    if ((Element *)at != pc && !memcmp(at, first, sizeof first)) memcpy(pc, at, sizeof(Element) * M * N);\n"
        "  }\n  nothing<<<1, 32, 0, stream>>>();\n  (void)grid;\n", _MAP + "__global__ void nothing() {}\n"),
    "sums-in-fp16": (EXERCISE.name, OURS.replace("float sum = 0.0f;", "Element sum = Element(0.0f);").replace(
        "sum += float(A_tile[thread_row][k]) * float(B_tile[k][thread_col]);",
        "sum = Element(float(sum) + float(A_tile[thread_row][k]) * float(B_tile[k][thread_col]));")),
    "half-of-the-slices": (EXERCISE.name, OURS.replace("slice += BLOCK_K)", "slice += 2 * BLOCK_K)")),
    "a-refused-launch": _launcher(LAUNCH.replace("THREADS, 0", "THREADS, 1 << 20") + "  return cudaSuccess;\n"),
    "the-runtime-is-mine": _launcher(
        LAUNCH, 'extern "C" cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, '
        "size_t, cudaStream_t) {\n  return cudaSuccess;\n}\n"),
    "code-of-the-runtime-changed": _launcher(  # cudaLaunchKernel: xor %eax, %eax; ret
        "  char *code = (char *)dlsym(RTLD_DEFAULT, \"cudaLaunchKernel\");\n"
        "  mprotect((void *)(size_t(code) / 4096 * 4096), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);\n"
        '  memcpy(code, "\\x31\\xc0\\xc3", 3);\n' + LAUNCH,
        "#include <dlfcn.h>\n#include <sys/mman.h>\n#include <cstring>\n"),
    "a-verdict-at-the-end": _launcher("  atexit(verdict);\n  (void)grid;\n",
                                      "#include <cstdlib>\n#include <unistd.h>\n" + _VERDICT),
    "a-verdict-at-the-end-of-half-the-work": _launcher(
        "  atexit(verdict);\n" + LAUNCH.replace("N, K)", "N, K / 2)"),
        "#include <cstdlib>\n#include <unistd.h>\n" + _VERDICT),
}  # fmt: skip

# ---- right, in odd styles --------------------------------------------------------------------------------------------

KERNEL = "__global__ void __launch_bounds__(THREADS) gemm_kernel"
_STYLES = {  # of ours of the step to 02: what is replaced, by what
    "auto-everywhere": (("float sum", "auto sum = 0.0f; float more"),),
    "a-namespace": ((KERNEL, "namespace mine {\n" + KERNEL),),
    "unroll-4": (("#pragma unroll\n", "#pragma unroll 4\n"),),
    "no-unroll": (("#pragma unroll\n", ""),),
    "tabs": (("  ", "\t"),),
    "windows-lines": (("\n", "\r\n"),),
    "names": (("A_tile", "left"), ("B_tile", "right_tile"), ("sum", "accumulated")),
    "device-memory-asked-for": ((LAUNCH, "  size_t all, room;\n  cudaMemGetInfo(&room, &all);\n" + LAUNCH),),
    "attributes-asked-for": ((LAUNCH, "  cudaDeviceProp about;\n  cudaGetDeviceProperties(&about, 0);\n" + LAUNCH),),
    "launched-by-api": ((LAUNCH, "  void *args[] = {&A, &B, &C, &M, &N, &K};\n  cudaLaunchKernel((const void "
                                 "*)gemm_kernel, "
                                 "grid, dim3(THREADS), args, 0, stream);\n"),),
    "launched-by-config": ((LAUNCH, "  cudaLaunchConfig_t how{};\n  how.gridDim = grid, how.blockDim = dim3(THREADS), "
                                    "how.stream = stream;\n  cudaLaunchKernelEx(&how, gemm_kernel, A, B, C, M, N, "
                                    "K);\n"),),
    "launched-by-lambda": ((LAUNCH, "  auto go = [&] { gemm_kernel<<<grid, THREADS, 0, stream>>>(A, B, C, M, N, K); "
                                    "};\n"
                                    "  go();\n"),),
    "launched-by-pointer": ((LAUNCH, "  auto *kernel = gemm_kernel;\n  kernel<<<grid, THREADS, 0, stream>>>"
                                     "(A, B, C, M, N, K);\n"),),
    "output-set-first": ((LAUNCH, "  cudaMemsetAsync(C, 0, sizeof(Element) * M * N, stream);\n" + LAUNCH),),
    "waits-at-the-end": ((LAUNCH, LAUNCH + "  cudaStreamSynchronize(stream);\n"),),
    "a-static-of-the-host": ((LAUNCH, "  static const int calls = [] { return 1; }();\n  (void)calls;\n" + LAUNCH),),
    "a-counter-of-calls": ((LAUNCH, "  static int calls = 0;\n  ++calls;\n" + LAUNCH),),
    "words-of-the-ban": (("float sum", "// dlopen( system( cudaMemcpy( #include \"x\"\n  float sum"),),
    "a-device-function-open": (
        (KERNEL, "__device__ float open(float x) { return x; }\n" + KERNEL),
        ("sum +=", "sum += open(0.f) +"),
    ),
    "prints": ((LAUNCH, '  fprintf(stderr, "%d x %d\\n", M, N);\n' + LAUNCH),),
    "a-variable-of-the-device": ((KERNEL, "__device__ unsigned launches;\n" + KERNEL),
                                 ("float sum", "if (threadIdx.x == 0) atomicAdd(&launches, 1u);\n  float sum")),
    "a-constant-of-the-device": ((KERNEL, "__constant__ float one = 1;\n" + KERNEL),
                                 ("float sum", "float sum0 = 0 * one;\n  float sum")),
    "headers": (("#include <cuda_runtime.h>", "#include <cuda_runtime.h>\n#include <algorithm>\n#include <vector>\n"
                 "#include <cooperative_groups.h>"),),
    "if-in-comments": (("float sum", "/* int main() { return 0; } */ float sum"),),
    "a-byte-order-mark": (("\n", "\n"),),
    "errors-peeked": (("cudaGetLastError", "cudaPeekAtLastError"),),
}  # fmt: skip


def _style(name: str) -> tuple[str, str]:
    text = OURS.replace("#include <cuda_runtime.h>", "#include <cuda_runtime.h>\n\n#include <cstdio>", 1)
    for old, new in _STYLES[name]:
        assert old in text, (name, old)
        text = text.replace(old, new) if new.count("__global__") == 0 else text.replace(old, new, 1)
    if name == "a-namespace":
        text = text.replace('\nextern "C"', '\n}  // namespace mine\nusing mine::gemm_kernel;\nextern "C"', 1)
    return EXERCISE.name, ("\ufeff" if name == "a-byte-order-mark" else "") + text


ODD: Cases = {f"02-{name}": _style(name) for name in _STYLES} | {
    "add-const-after": _solved("vector_add", ("const float *a, const float *b", "float const *a, float const *b")),
    "add-restrict": _solved("vector_add", ("const float *a, const float *b, float *c", "const float *__restrict__ a, "
                            "const float *__restrict__ b, float *__restrict__ c")),
    "add-unsigned": _solved("vector_add", ("float *c, int n)", "float *c, unsigned n)")),
    "add-bounds": _solved("vector_add", ("__global__ void add", "__global__ void __launch_bounds__(256) add")),
    "add-in-a-namespace": _solved("vector_add", ("__global__ void add", "namespace {\n__global__ void add"),
                                  ("\nint main", "}\n\nint main")),
    "add-other-main": _solved("vector_add", ("threads = 256", "threads = 64")),
    "add-static": _solved("vector_add", ("__global__ void add", "static __global__ void add")),
    "transpose-constant": _solved("transpose", ("TILE + 1", "33")),
    "transpose-typename": _solved("transpose", ("template <typename T>", "template <class T>")),
    "sum-volatile": _solved("reduce_shuffle", ("float value = 0;", "float value{};")),
    "sum-counter": _solved("reduce_shuffle", ("__global__ void sum", "__device__ unsigned calls;\n__global__ void sum"),
                           ("float value = 0;", "if (threadIdx.x == 99 && n < 0) ++calls;\n  float value = 0;")),
    "softmax-two-passes": _solved("softmax", ("__global__ void softmax", "#define HIDDEN 1\n__global__ void softmax")),
    "top-k-blanks": _solved("top_k", ("\n", "  \n")),
    "repair-waits": _solved("saxpy-bug-1", ("  cudaFree(dx);", "  cudaDeviceSynchronize();\n  cudaFree(dx);")),
    "repair-comments": _solved("saxpy-bug-1", ("int main() {", "int main() {  // repaired")),
    "padding-24": _solved("06", ("#define PADDING 8 ", "#define PADDING 24 ")),
}  # fmt: skip
