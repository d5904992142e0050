// A stand-in for cuBLAS and for the matrix product of cuBLASLt: linked, beside the stand-in runtime, to programs that call
// them. Here arguments are checked, as the library does, with its status codes; compute.py computes.

#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "library.h"

using emulator::Operand;

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_NOT_ALLOWED;
  int multiprocessors = 0;
};

namespace {

// ---- handles, errors -------------------------------------------------------------------------------------------------

std::mutex guard;
auto &handles() {
  static auto &all = *new std::set<const void *>;
  return all;
}

bool alive(const void *handle) {
  std::lock_guard lock(guard);
  return handles().count(handle);
}

cublasStatus_t refuse(const char *call, cublasStatus_t status, const std::string &why) {
  return emulator::refuse(call, status, std::string(cublasGetStatusName(status)) + ": " + why), status;
}

cublasStatus_t invalid(const char *call, const std::string &why) {
  return refuse(call, CUBLAS_STATUS_INVALID_VALUE, why);
}

cublasStatus_t unsupported(const char *call, const std::string &why) {
  return refuse(call, CUBLAS_STATUS_NOT_SUPPORTED, why);
}

cublasStatus_t no_handle(const char *call) {
  return refuse(call, CUBLAS_STATUS_NOT_INITIALIZED, "the handle was not created, or is destroyed");
}

// Begins a function.
#define CALL(NAME)                   \
  constexpr const char *call = NAME; \
  emulator::called(call);            \
  if (!alive(handle)) return no_handle(call)

#define CHECK(...) \
  if (const cublasStatus_t status = (__VA_ARGS__)) return status

cublasStatus_t at_least(const char *call, const char *name, int64_t value, const char *what, int64_t least) {
  if (value >= least) return CUBLAS_STATUS_SUCCESS;
  return invalid(call, std::string(name) + " must be at least " + what + ", got " + std::to_string(value));
}

cublasStatus_t not_negative(const char *call, std::initializer_list<std::pair<const char *, int64_t>> sizes) {
  for (const auto &[name, value] : sizes) CHECK(at_least(call, name, value, "0", 0));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t leading(const char *call, const char *name, int64_t ld, int64_t rows) {
  const int64_t least = std::max<int64_t>(1, rows);
  return at_least(call, name, ld, ("the rows of the matrix, " + std::to_string(least)).c_str(), least);
}

cublasStatus_t there(const char *call, std::initializer_list<std::pair<const char *, const void *>> pointers) {
  for (const auto &[name, pointer] : pointers)
    if (!pointer) return invalid(call, std::string(name) + " must not be a null pointer");
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t one_of(const char *call, const char *name, T value, T last) {
  if (int(value) >= 0 && value <= last) return CUBLAS_STATUS_SUCCESS;
  return invalid(call, std::string(name) + " must be an enumerator of its type, got " + std::to_string(int(value)));
}

cublasStatus_t ops(const char *call, cublasOperation_t a, cublasOperation_t b = CUBLAS_OP_N) {
  CHECK(one_of(call, "transa", a, CUBLAS_OP_C));
  return one_of(call, "transb", b, CUBLAS_OP_C);
}

cublasStatus_t done(cudaError_t error) {
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS
         : error == cudaErrorInvalidResourceHandle
             ? CUBLAS_STATUS_INVALID_VALUE
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

// ---- operands --------------------------------------------------------------------------------------------------------

template <class T>
constexpr cudaDataType type_of =
    std::is_same_v<T, float>       ? CUDA_R_32F
    : std::is_same_v<T, double>    ? CUDA_R_64F
    : std::is_same_v<T, __half>    ? CUDA_R_16F
    : std::is_same_v<T, cuComplex> ? CUDA_C_32F
    : std::is_same_v<T, int>       ? CUDA_R_32I
    : std::is_same_v<T, int64_t>
        ? CUDA_R_64I
        : CUDA_C_64F;
constexpr uint32_t READS = Operand::READS, WRITES = Operand::WRITES;

Operand scalar(const char *name, const void *at, uint32_t type, bool on_host, uint32_t how = READS) {
  return {name, at, type, how | (on_host ? uint32_t(Operand::ON_HOST) : 0)};
}

// Of a step below 0 the vector begins at its end.
Operand vector(const char *name, const void *at, uint32_t type, uint32_t how, int64_t n, int64_t step) {
  const int64_t before = step < 0 ? (1 - n) * step * int64_t(emulator::size_of(type)) : 0;
  return {name, static_cast<const char *>(at) + before, type, how, n, 1, 1, step};
}

Operand matrix(const char *name, const void *at, uint32_t type, uint32_t how, int64_t rows, int64_t columns, int64_t ld,
               int64_t batches = 1, int64_t stride = 0) {
  return {name, at, type, how, rows, columns, batches, 1, ld, stride};
}

// A call of a handle, of one type: what its functions have in common.
template <class T>
struct Call {
  const char *call;
  cublasHandle_t handle;
  std::vector<Operand> operands{};

  bool host() const { return handle->pointer_mode == CUBLAS_POINTER_MODE_HOST; }
  template <class S = T>
  Call &scalar(const char *name, const S *at, uint32_t how = READS) {
    return operands.push_back(::scalar(name, at, type_of<S>, host(), how)), *this;
  }
  Call &vector(const char *name, const T *at, uint32_t how, int64_t n, int64_t step) {
    return operands.push_back(::vector(name, at, type_of<T>, how, n, step)), *this;
  }
  Call &matrix(const char *name, const T *at, uint32_t how, int64_t rows, int64_t columns, int64_t ld) {
    return operands.push_back(::matrix(name, at, type_of<T>, how, rows, columns, ld)), *this;
  }
  cublasStatus_t run(const char *operation, std::vector<int64_t> numbers = {}, bool has_result = false) {
    const bool waits = has_result && host();
    return done(emulator::compute(call, operation, handle->stream, operands, std::move(numbers), waits));
  }
};

// ---- products --------------------------------------------------------------------------------------------------------

bool complex(cudaDataType type) { return type == CUDA_C_32F || type == CUDA_C_64F; }

// The compute type by which a product of single precision is computed in a handle's math mode.
cublasComputeType_t as_allowed(cublasHandle_t handle, cublasComputeType_t compute, cudaDataType type) {
  if (compute != CUBLAS_COMPUTE_32F || (type != CUDA_R_32F && type != CUDA_C_32F)) return compute;
  const int mode = int(handle->math) & 3;
  if (mode == CUBLAS_TF32_TENSOR_OP_MATH && emulator::compute_capability() >= 80) return CUBLAS_COMPUTE_32F_FAST_TF32;
  return mode == CUBLAS_TENSOR_OP_MATH ? CUBLAS_COMPUTE_32F_FAST_16F : compute;
}

template <class T>
cublasComputeType_t computed_in(cublasHandle_t handle) {
  constexpr cudaDataType type = type_of<T>;
  return type == CUDA_R_16F ? CUBLAS_COMPUTE_16F
         : type == CUDA_R_64F || type == CUDA_C_64F
             ? CUBLAS_COMPUTE_64F
             : as_allowed(handle, CUBLAS_COMPUTE_32F, type);
}

struct Matrix {
  const void *at;
  cudaDataType type;
  int64_t ld, stride = 0;
};

// The type of alpha and beta. 0: these types are no product. `scale`: of cuBLASLt, the type that was asked for.
bool scale_of(cublasComputeType_t compute, cudaDataType a, cudaDataType b, cudaDataType c, cudaDataType *scale) {
  const auto among = [](cudaDataType type, std::initializer_list<cudaDataType> all) {
    return std::find(all.begin(), all.end(), type) != all.end();
  };
  switch (compute) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      return *scale = CUDA_R_16F, a == CUDA_R_16F && b == a && c == a;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      *scale = c == CUDA_R_8I ? CUDA_R_32F : CUDA_R_32I;
      return a == CUDA_R_8I && b == a && among(c, {CUDA_R_32I, CUDA_R_8I});
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
    case CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT:
      return *scale = a, (a == CUDA_R_64F || a == CUDA_C_64F) && b == a && c == a;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      *scale = CUDA_R_32F;
      if (among(a, {CUDA_R_8F_E4M3, CUDA_R_8F_E5M2}))
        return among(b, {CUDA_R_8F_E4M3, CUDA_R_8F_E5M2}) && (a != b || a == CUDA_R_8F_E4M3) &&
               among(c, {CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2});
      if (a == CUDA_R_16F || a == CUDA_R_16BF) return b == a && among(c, {a, CUDA_R_32F});
      if (a == CUDA_R_8I) return b == a && c == CUDA_R_32F;
      if (a == CUDA_C_32F) return *scale = a, b == a && c == a;
      return a == CUDA_R_32F && b == a && c == a;
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_32F_EMULATED_16BFX9:
      return *scale = a, (a == CUDA_R_32F || a == CUDA_C_32F) && b == a && c == a;
    default:
      return false;
  }
}

bool fp8(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

// C = alpha op(A) op(B) + beta C. `arrays`: of pointers to the matrices, in device memory.
cublasStatus_t multiply(const char *call, cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                        int64_t m, int64_t n, int64_t k, const void *alpha, Matrix a, Matrix b, const void *beta,
                        Matrix c, cublasComputeType_t compute, int64_t batches = 1, bool arrays = false) {
  CHECK(ops(call, transa, transb));
  CHECK(not_negative(call, {{"m", m}, {"n", n}, {"k", k}, {"batchCount", batches}}));
  const int64_t rows_a = transa == CUBLAS_OP_N ? m : k, rows_b = transb == CUBLAS_OP_N ? k : n;
  CHECK(leading(call, "lda", a.ld, rows_a));
  CHECK(leading(call, "ldb", b.ld, rows_b));
  CHECK(leading(call, "ldc", c.ld, m));
  CHECK(there(call, {{"alpha", alpha}, {"beta", beta}}));
  cudaDataType scale = CUDA_R_32F;
  if (!scale_of(compute, a.type, b.type, c.type, &scale) || fp8(a.type))
    return unsupported(call, "no product has these types of A, B and C with this compute type");
  if (!m || !n || !batches) return CUBLAS_STATUS_SUCCESS;
  if (arrays) CHECK(there(call, {{"Aarray", a.at}, {"Barray", b.at}, {"Carray", c.at}}));
  const uint32_t how = arrays ? uint32_t(Operand::POINTERS) : 0;
  const bool host = handle->pointer_mode == CUBLAS_POINTER_MODE_HOST;
  const auto operand = [&](const char *name, const Matrix &x, uint32_t does, int64_t rows, int64_t columns) {
    return matrix(name, x.at, x.type, does | how, rows, columns, x.ld, batches, x.stride);
  };
  std::vector<Operand> operands{
      scalar("alpha", alpha, scale, host), scalar("beta", beta, scale, host),
      operand("A", a, READS, rows_a, transa == CUBLAS_OP_N ? k : m),
      operand("B", b, READS, rows_b, transb == CUBLAS_OP_N ? n : k), operand("C", c, READS | WRITES, m, n)};
  return done(emulator::compute(
      call, "gemm", handle->stream, operands,
      {as_allowed(handle, compute, a.type), transa, transb, CUBLASLT_EPILOGUE_DEFAULT}, false));
}

}  // namespace

extern "C" {

// ---- the handle ------------------------------------------------------------------------------------------------------

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
  emulator::called("cublasCreate");
  if (!handle) return invalid("cublasCreate", "the address of the handle must not be null");
  if (emulator::broken()) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext;
  std::lock_guard lock(guard);
  handles().insert(*handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  CALL("cublasDestroy");
  const cudaError_t error = cudaDeviceSynchronize();  // as the library does
  std::lock_guard lock(guard);
  handles().erase(handle);
  delete handle;
  return done(error);
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
  CALL("cublasGetVersion");
  CHECK(there(call, {{"version", version}}));
  return *version = CUBLAS_VERSION, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value) {
  emulator::called("cublasGetProperty");
  CHECK(there("cublasGetProperty", {{"value", value}}));
  const int parts[] = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH};
  CHECK(one_of("cublasGetProperty", "type", type, PATCH_LEVEL));
  return *value = parts[type], CUBLAS_STATUS_SUCCESS;
}

size_t cublasGetCudartVersion(void) { return CUDART_VERSION; }

// Without a workspace it is as fast here.
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *, size_t) {
  CALL("cublasSetWorkspace");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  CALL("cublasSetStream");
  return handle->stream = stream, CUBLAS_STATUS_SUCCESS;
}

#define PROPERTY(TYPE, NAME, FIELD)                                    \
  cublasStatus_t cublasGet##NAME(cublasHandle_t handle, TYPE *value) { \
    CALL("cublasGet" #NAME);                                           \
    CHECK(there(call, {{"the address of the value", value}}));         \
    return *value = handle->FIELD, CUBLAS_STATUS_SUCCESS;              \
  }
#define SETTER(TYPE, NAME, FIELD)                                     \
  cublasStatus_t cublasSet##NAME(cublasHandle_t handle, TYPE value) { \
    CALL("cublasSet" #NAME);                                          \
    return handle->FIELD = value, CUBLAS_STATUS_SUCCESS;              \
  }
PROPERTY(cudaStream_t, Stream_v2, stream)
PROPERTY(cublasPointerMode_t, PointerMode_v2, pointer_mode)
SETTER(cublasPointerMode_t, PointerMode_v2, pointer_mode)
PROPERTY(cublasAtomicsMode_t, AtomicsMode, atomics)
SETTER(cublasAtomicsMode_t, AtomicsMode, atomics)
PROPERTY(cublasMath_t, MathMode, math)
SETTER(cublasMath_t, MathMode, math)
PROPERTY(int, SmCountTarget, multiprocessors)
SETTER(int, SmCountTarget, multiprocessors)

static const struct Text {
  cublasStatus_t status;
  const char *name, *text;
} STATUSES[] = {
    {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS", "success"},
    {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE",
     "an unsupported value or parameter was passed to the function"},
    {CUBLAS_STATUS_ARCH_MISMATCH, "CUBLAS_STATUS_ARCH_MISMATCH",
     "the requested functionality requires a feature absent from the current GPU architecture"},
    {CUBLAS_STATUS_MAPPING_ERROR, "CUBLAS_STATUS_MAPPING_ERROR", "an access to GPU memory space failed"},
    {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED", "the function failed to launch on the GPU"},
    {CUBLAS_STATUS_INTERNAL_ERROR, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED", "the functionality requested is not supported"},
    {CUBLAS_STATUS_LICENSE_ERROR, "CUBLAS_STATUS_LICENSE_ERROR",
     "the functionality requested requires some license and an error was detected when trying to check the current "
     "licensing"},
};
static const Text *text_of(cublasStatus_t status) {
  for (const Text &each : STATUSES)
    if (each.status == status) return &each;
  return nullptr;
}
const char *cublasGetStatusName(cublasStatus_t status) {
  const Text *text = text_of(status);
  return text ? text->name : "<unknown>";
}
const char *cublasGetStatusString(cublasStatus_t status) {
  const Text *text = text_of(status);
  return text ? text->text : "<unknown>";
}

static cublasLogCallback callback = nullptr;  // which gets nothing to log
cublasStatus_t cublasLoggerConfigure(int, int, int, const char *) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetLoggerCallback(cublasLogCallback given) { return callback = given, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetLoggerCallback(cublasLogCallback *out) { return *out = callback, CUBLAS_STATUS_SUCCESS; }

// ---- copies ----------------------------------------------------------------------------------------------------------

static cublasStatus_t copy(
    const char *call, int64_t rows, int64_t columns, int64_t size, const void *from, int64_t from_ld, void *to,
    int64_t to_ld, bool to_device, cudaStream_t stream = nullptr, bool waits = true) {
  emulator::called(call);
  CHECK(not_negative(call, {{"rows", rows}, {"cols", columns}}));
  CHECK(at_least(call, "elemSize", size, "1", 1));
  CHECK(leading(call, "the leading dimension of the source", from_ld, rows));
  CHECK(leading(call, "the leading dimension of the target", to_ld, rows));
  if (!rows || !columns) return CUBLAS_STATUS_SUCCESS;
  const cudaError_t error = emulator::copy_matrix(
      call, to, to_ld * size, from, from_ld * size, rows * size, columns, to_device, stream, waits);
  return error ? CUBLAS_STATUS_MAPPING_ERROR : CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

// ---- functions of each type ------------------------------------------------------------------------------------------

namespace {

template <class T>
cublasStatus_t axpy(const char *call, cublasHandle_t handle, int64_t n, const T *alpha, const T *x, int64_t incx, T *y,
                    int64_t incy) {
  CHECK(there(call, {{"alpha", alpha}}));
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}
      .scalar("alpha", alpha)
      .vector("x", x, READS, n, incx)
      .vector("y", y, READS | WRITES, n, incy)
      .run("axpy");
}

template <class T>
cublasStatus_t copy_or_swap(const char *call, cublasHandle_t handle, int64_t n, const T *x, int64_t incx, T *y,
                            int64_t incy, bool swaps) {
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}
      .vector("x", x, swaps ? READS | WRITES : READS, n, incx)
      .vector("y", y, swaps ? READS | WRITES : WRITES, n, incy)
      .run(swaps ? "swap" : "copy");
}

template <class T, class S>
cublasStatus_t scal(const char *call, cublasHandle_t handle, int64_t n, const S *alpha, T *x, int64_t incx) {
  CHECK(there(call, {{"alpha", alpha}}));
  if (n <= 0 || incx <= 0) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}.scalar("alpha", alpha).vector("x", x, READS | WRITES, n, incx).run("scal");
}

template <class T>
cublasStatus_t rot(const char *call, cublasHandle_t handle, int64_t n, T *x, int64_t incx, T *y, int64_t incy,
                   const T *c, const T *s) {
  CHECK(there(call, {{"c", c}, {"s", s}}));
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}
      .scalar("c", c)
      .scalar("s", s)
      .vector("x", x, READS | WRITES, n, incx)
      .vector("y", y, READS | WRITES, n, incy)
      .run("rot");
}

// A result of no elements is 0.
template <class R>
cublasStatus_t nothing(const char *call, cublasHandle_t handle, R *result) {
  if (handle->pointer_mode == CUBLAS_POINTER_MODE_HOST) return *result = R{}, CUBLAS_STATUS_SUCCESS;
  const cudaError_t error = cudaMemsetAsync(result, 0, sizeof *result, handle->stream);
  return emulator::called(call), done(error);
}

template <class T>
cublasStatus_t dot(const char *call, cublasHandle_t handle, int64_t n, const T *x, int64_t incx, const T *y,
                   int64_t incy, T *result, bool conjugated = false) {
  CHECK(there(call, {{"result", result}}));
  if (n <= 0) return nothing(call, handle, result);
  return Call<T>{call, handle}
      .vector("x", x, READS, n, incx)
      .vector("y", y, READS, n, incy)
      .scalar("result", result, WRITES)
      .run("dot", {conjugated}, true);
}

template <class T, class R>
cublasStatus_t reduce(const char *call, cublasHandle_t handle, int64_t n, const T *x, int64_t incx, R *result,
                      const char *operation, std::vector<int64_t> numbers = {}) {
  CHECK(there(call, {{"result", result}}));
  if (n <= 0 || incx <= 0) return nothing(call, handle, result);
  return Call<T>{call, handle}
      .vector("x", x, READS, n, incx)
      .scalar("result", result, WRITES)
      .run(operation, std::move(numbers), true);
}

template <class T>
cublasStatus_t gemv(const char *call, cublasHandle_t handle, cublasOperation_t trans, int64_t m, int64_t n,
                    const T *alpha, const T *A, int64_t lda, const T *x, int64_t incx, const T *beta, T *y,
                    int64_t incy) {
  CHECK(one_of(call, "trans", trans, CUBLAS_OP_C));
  CHECK(not_negative(call, {{"m", m}, {"n", n}}));
  CHECK(leading(call, "lda", lda, m));
  if (!incx || !incy) return invalid(call, "incx and incy must not be 0");
  CHECK(there(call, {{"alpha", alpha}, {"beta", beta}}));
  if (!m || !n) return CUBLAS_STATUS_SUCCESS;
  const bool plain = trans == CUBLAS_OP_N;
  return Call<T>{call, handle}
      .scalar("alpha", alpha)
      .scalar("beta", beta)
      .matrix("A", A, READS, m, n, lda)
      .vector("x", x, READS, plain ? n : m, incx)
      .vector("y", y, READS | WRITES, plain ? m : n, incy)
      .run("gemv", {trans, computed_in<T>(handle)});
}

template <class T>
cublasStatus_t ger(const char *call, cublasHandle_t handle, int64_t m, int64_t n, const T *alpha, const T *x,
                   int64_t incx, const T *y, int64_t incy, T *A, int64_t lda, bool conjugated = false) {
  CHECK(not_negative(call, {{"m", m}, {"n", n}}));
  if (!incx || !incy) return invalid(call, "incx and incy must not be 0");
  CHECK(leading(call, "lda", lda, m));
  CHECK(there(call, {{"alpha", alpha}}));
  if (!m || !n) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}
      .scalar("alpha", alpha)
      .vector("x", x, READS, m, incx)
      .vector("y", y, READS, n, incy)
      .matrix("A", A, READS | WRITES, m, n, lda)
      .run("ger", {conjugated});
}

template <class T>
cublasStatus_t geam(const char *call, cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                    int64_t m, int64_t n, const T *alpha, const T *A, int64_t lda, const T *beta, const T *B,
                    int64_t ldb, T *C, int64_t ldc) {
  CHECK(ops(call, transa, transb));
  CHECK(not_negative(call, {{"m", m}, {"n", n}}));
  const bool a = transa == CUBLAS_OP_N, b = transb == CUBLAS_OP_N;
  CHECK(leading(call, "lda", lda, a ? m : n));
  CHECK(leading(call, "ldb", ldb, b ? m : n));
  CHECK(leading(call, "ldc", ldc, m));
  CHECK(there(call, {{"alpha", alpha}, {"beta", beta}, {"C", C}}));
  if ((C == A && !a) || (C == B && !b)) return invalid(call, "in place, op must be CUBLAS_OP_N");
  if ((C == A && lda != ldc) || (C == B && ldb != ldc))
    return invalid(call, "in place, both leading dimensions must be the same");
  if (!m || !n) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}
      .scalar("alpha", alpha)
      .scalar("beta", beta)
      .matrix("A", A, READS, a ? m : n, a ? n : m, lda)
      .matrix("B", B, READS, b ? m : n, b ? n : m, ldb)
      .matrix("C", C, WRITES, m, n, ldc)
      .run("geam", {transa, transb});
}

template <class T>
cublasStatus_t dgmm(const char *call, cublasHandle_t handle, cublasSideMode_t side, int64_t m, int64_t n, const T *A,
                    int64_t lda, const T *x, int64_t incx, T *C, int64_t ldc) {
  CHECK(one_of(call, "mode", side, CUBLAS_SIDE_RIGHT));
  CHECK(not_negative(call, {{"m", m}, {"n", n}}));
  CHECK(leading(call, "lda", lda, m));
  CHECK(leading(call, "ldc", ldc, m));
  if (!m || !n) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}
      .matrix("A", A, READS, m, n, lda)
      .vector("x", x, READS, side == CUBLAS_SIDE_LEFT ? m : n, incx)
      .matrix("C", C, WRITES, m, n, ldc)
      .run("dgmm", {side == CUBLAS_SIDE_RIGHT});
}

cublasStatus_t triangle(const char *call, cublasFillMode_t uplo) {
  return one_of(call, "uplo", uplo, CUBLAS_FILL_MODE_UPPER);
}

template <class T>
cublasStatus_t syrk(const char *call, cublasHandle_t handle, cublasFillMode_t uplo, cublasOperation_t trans, int64_t n,
                    int64_t k, const T *alpha, const T *A, int64_t lda, const T *beta, T *C, int64_t ldc) {
  CHECK(triangle(call, uplo));
  const bool plain = trans == CUBLAS_OP_N;
  CHECK(one_of(call, "trans", trans, complex(type_of<T>) ? CUBLAS_OP_T : CUBLAS_OP_C));
  CHECK(not_negative(call, {{"n", n}, {"k", k}}));
  CHECK(leading(call, "lda", lda, plain ? n : k));
  CHECK(leading(call, "ldc", ldc, n));
  CHECK(there(call, {{"alpha", alpha}, {"beta", beta}}));
  if (!n) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}
      .scalar("alpha", alpha)
      .scalar("beta", beta)
      .matrix("A", A, READS, plain ? n : k, plain ? k : n, lda)
      .matrix("C", C, READS | WRITES, n, n, ldc)
      .run("syrk", {uplo, trans, computed_in<T>(handle)});
}

template <class T>
cublasStatus_t symm(const char *call, cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, int64_t m,
                    int64_t n, const T *alpha, const T *A, int64_t lda, const T *B, int64_t ldb, const T *beta, T *C,
                    int64_t ldc) {
  CHECK(one_of(call, "side", side, CUBLAS_SIDE_RIGHT));
  CHECK(triangle(call, uplo));
  CHECK(not_negative(call, {{"m", m}, {"n", n}}));
  const bool right = side == CUBLAS_SIDE_RIGHT;
  const int64_t size = right ? n : m;
  CHECK(leading(call, "lda", lda, size));
  CHECK(leading(call, "ldb", ldb, m));
  CHECK(leading(call, "ldc", ldc, m));
  CHECK(there(call, {{"alpha", alpha}, {"beta", beta}}));
  if (!m || !n) return CUBLAS_STATUS_SUCCESS;
  return Call<T>{call, handle}
      .scalar("alpha", alpha)
      .scalar("beta", beta)
      .matrix("A", A, READS, size, size, lda)
      .matrix("B", B, READS, m, n, ldb)
      .matrix("C", C, READS | WRITES, m, n, ldc)
      .run("symm", {right, uplo, computed_in<T>(handle)});
}

// trmm, or trsm if C is null: that solves in B.
template <class T>
cublasStatus_t triangular(const char *call, cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo,
                          cublasOperation_t trans, cublasDiagType_t diag, int64_t m, int64_t n, const T *alpha,
                          const T *A, int64_t lda, const T *B, int64_t ldb, T *C, int64_t ldc, bool solves) {
  CHECK(one_of(call, "side", side, CUBLAS_SIDE_RIGHT));
  CHECK(triangle(call, uplo));
  CHECK(one_of(call, "trans", trans, CUBLAS_OP_C));
  CHECK(one_of(call, "diag", diag, CUBLAS_DIAG_UNIT));
  CHECK(not_negative(call, {{"m", m}, {"n", n}}));
  const bool right = side == CUBLAS_SIDE_RIGHT;
  const int64_t size = right ? n : m;
  CHECK(leading(call, "lda", lda, size));
  CHECK(leading(call, "ldb", ldb, m));
  if (!solves) CHECK(leading(call, "ldc", ldc, m));
  CHECK(there(call, {{"alpha", alpha}}));
  if (!m || !n) return CUBLAS_STATUS_SUCCESS;
  Call<T> made{call, handle};
  made.scalar("alpha", alpha).matrix("A", A, READS, size, size, lda);
  made.matrix("B", B, solves ? READS | WRITES : READS, m, n, ldb);
  if (solves) return made.run("trsm", {right, uplo, trans, diag});
  return made.matrix("C", C, WRITES, m, n, ldc).run("trmm", {right, uplo, trans, diag, computed_in<T>(handle)});
}

// Of the types of vectors that the functions of level 1 compute with.
cublasStatus_t known(const char *call, std::initializer_list<cudaDataType> types) {
  for (cudaDataType type : types)
    if (type != CUDA_R_16F && type != CUDA_R_16BF && type != CUDA_R_32F && type != CUDA_R_64F && !complex(type))
      return unsupported(call, "the type " + std::to_string(int(type)));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t reduce_to(const char *call, cublasHandle_t handle, std::vector<Operand> operands, void *result,
                         cudaDataType type, const char *operation, std::vector<int64_t> numbers) {
  CHECK(there(call, {{"result", result}}));
  const bool host = handle->pointer_mode == CUBLAS_POINTER_MODE_HOST;
  operands.push_back(scalar("result", result, type, host, WRITES));
  return done(emulator::compute(call, operation, handle->stream, operands, numbers, host));
}

}  // namespace

#define INT int
#define NAME(name) name
#define SUFFIX
#include "cublas_functions.h"
#undef INT
#undef NAME
#undef SUFFIX
#define INT int64_t
#define NAME(name) name##_64
#define SUFFIX "_64"
#include "cublas_functions.h"
#include "matmul.h"
