// PyTorch's C++ interface, as far as a learner's CUDA extension needs it: tensors in, tensors out.
//
// nvcc takes half a minute or more for the real headers at every change; these are quick. A Tensor here is memory of
// the emulated device with sizes, strides and a dtype; it has no operators that compute. Functions are entered by
// PYBIND11_MODULE or by EMULATOR_FUNCTION, and called by runtime.cpp with the arguments that Python sends.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../call.h"

struct __nv_fp8_e4m3;  // of cuda_fp8.h, which whoever computes with them includes
struct __nv_fp8_e5m2;

namespace c10 {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Parts>
std::string str(const Parts &...parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// The numbers are PyTorch's.
enum class ScalarType : int8_t {
  Byte = 0,
  Char = 1,
  Short = 2,
  Int = 3,
  Long = 4,
  Half = 5,
  Float = 6,
  Double = 7,
  Bool = 11,
  BFloat16 = 15,
  Float8_e5m2 = 23,
  Float8_e4m3fn = 24,
};
constexpr ScalarType kByte = ScalarType::Byte, kUInt8 = kByte, kChar = ScalarType::Char, kInt8 = kChar;
constexpr ScalarType kShort = ScalarType::Short, kInt16 = kShort, kInt = ScalarType::Int, kInt32 = kInt;
constexpr ScalarType kLong = ScalarType::Long, kInt64 = kLong, kHalf = ScalarType::Half, kFloat16 = kHalf;
constexpr ScalarType kFloat = ScalarType::Float, kFloat32 = kFloat, kDouble = ScalarType::Double, kFloat64 = kDouble;
constexpr ScalarType kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16;
constexpr ScalarType kFloat8_e5m2 = ScalarType::Float8_e5m2, kFloat8_e4m3fn = ScalarType::Float8_e4m3fn;

typedef __half Half;
typedef __nv_bfloat16 BFloat16;
typedef __nv_fp8_e5m2 Float8_e5m2;
typedef __nv_fp8_e4m3 Float8_e4m3fn;

inline size_t elementSize(ScalarType type) {
  switch (type) {
    case kByte:
    case kChar:
    case kBool:
    case kFloat8_e5m2:
    case kFloat8_e4m3fn:
      return 1;
    case kShort:
    case kHalf:
    case kBFloat16:
      return 2;
    case kInt:
    case kFloat:
      return 4;
    default:
      return 8;
  }
}
inline bool isFloat8(ScalarType type) { return type == kFloat8_e5m2 || type == kFloat8_e4m3fn; }
inline bool isFloatingType(ScalarType type) {
  return type == kHalf || type == kFloat || type == kDouble || type == kBFloat16 || isFloat8(type);
}
inline const char *toString(ScalarType type) {
  switch (type) {
    case kByte:
      return "Byte";
    case kChar:
      return "Char";
    case kShort:
      return "Short";
    case kInt:
      return "Int";
    case kLong:
      return "Long";
    case kHalf:
      return "Half";
    case kFloat:
      return "Float";
    case kDouble:
      return "Double";
    case kBool:
      return "Bool";
    case kFloat8_e5m2:
      return "Float8_e5m2";
    case kFloat8_e4m3fn:
      return "Float8_e4m3fn";
    default:
      return "BFloat16";
  }
}
inline std::ostream &operator<<(std::ostream &out, ScalarType type) { return out << toString(type); }

template <class T>
struct CppTypeToScalarType;
#define EMULATOR_SCALAR(TYPE, NAME)                       \
  template <>                                             \
  struct CppTypeToScalarType<TYPE> {                      \
    static constexpr ScalarType value = ScalarType::NAME; \
  };
EMULATOR_SCALAR(uint8_t, Byte)
EMULATOR_SCALAR(int8_t, Char)
EMULATOR_SCALAR(int16_t, Short)
EMULATOR_SCALAR(int, Int)
EMULATOR_SCALAR(int64_t, Long)
EMULATOR_SCALAR(long long, Long)
EMULATOR_SCALAR(__half, Half)
EMULATOR_SCALAR(float, Float)
EMULATOR_SCALAR(double, Double)
EMULATOR_SCALAR(bool, Bool)
EMULATOR_SCALAR(__nv_bfloat16, BFloat16)
EMULATOR_SCALAR(__nv_fp8_e5m2, Float8_e5m2)
EMULATOR_SCALAR(__nv_fp8_e4m3, Float8_e4m3fn)
#undef EMULATOR_SCALAR

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
inline std::ostream &operator<<(std::ostream &out, DeviceType type) { return out << (type == kCUDA ? "cuda" : "cpu"); }

struct Device {
  DeviceType kind = kCUDA;
  int8_t number = 0;
  Device(DeviceType kind = kCUDA, int number = 0) : kind(kind), number(int8_t(number)) {}
  DeviceType type() const { return kind; }
  int8_t index() const { return number; }
  bool is_cuda() const { return kind == kCUDA; }
  bool is_cpu() const { return kind == kCPU; }
  bool operator==(const Device &other) const { return kind == other.kind && number == other.number; }
  bool operator!=(const Device &other) const { return !(*this == other); }
};
inline std::ostream &operator<<(std::ostream &out, Device device) { return out << device.kind; }

class IntArrayRef {
 public:
  IntArrayRef() = default;
  IntArrayRef(std::initializer_list<int64_t> sizes) : sizes_(sizes) {}
  IntArrayRef(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}
  IntArrayRef(int64_t size) : sizes_{size} {}
  size_t size() const { return sizes_.size(); }
  int64_t operator[](size_t at) const { return sizes_.at(at); }
  const int64_t *begin() const { return sizes_.data(); }
  const int64_t *end() const { return sizes_.data() + sizes_.size(); }
  const int64_t *data() const { return sizes_.data(); }
  std::vector<int64_t> vec() const { return sizes_; }
  bool operator==(const IntArrayRef &other) const { return sizes_ == other.sizes_; }
  bool operator!=(const IntArrayRef &other) const { return sizes_ != other.sizes_; }

 private:
  std::vector<int64_t> sizes_;
};
inline std::ostream &operator<<(std::ostream &out, const IntArrayRef &sizes) {
  out << "[";
  for (size_t at = 0; at < sizes.size(); ++at) out << (at ? ", " : "") << sizes[at];
  return out << "]";
}

struct Layout {};
constexpr Layout kStrided{};

struct TensorOptions {
  ScalarType type = kFloat;
  Device place = kCUDA;
  TensorOptions() = default;
  TensorOptions(ScalarType type) : type(type) {}
  TensorOptions(Device place) : place(place) {}
  TensorOptions(DeviceType place) : place(place) {}
  TensorOptions dtype(ScalarType to) const {
    TensorOptions o = *this;
    return o.type = to, o;
  }
  TensorOptions device(Device to) const {
    TensorOptions o = *this;
    return o.place = to, o;
  }
  TensorOptions device(DeviceType to, int = 0) const { return device(Device(to)); }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions requires_grad(bool) const { return *this; }
  ScalarType dtype() const { return type; }
  Device device() const { return place; }
};

[[noreturn]] inline void fail(const char *file, int line, const std::string &what) {
  (void)file, (void)line;
  throw Error(what);
}
inline void must(cudaError_t error, const char *file, int line) {
  if (error != cudaSuccess) fail(file, line, str("CUDA error: ", cudaGetErrorString(error)));
}

}  // namespace c10

#define TORCH_CHECK(CONDITION, ...)                                                                              \
  do {                                                                                                           \
    if (!(CONDITION)) {                                                                                          \
      const std::string why = ::c10::str(__VA_ARGS__);                                                           \
      ::c10::fail(__FILE__, __LINE__, why.empty() ? "Expected " #CONDITION " to be true, but got false." : why); \
    }                                                                                                            \
  } while (0)
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define TORCH_CHECK_TYPE TORCH_CHECK
#define TORCH_CHECK_VALUE TORCH_CHECK
#define AT_ASSERT(CONDITION) TORCH_CHECK(CONDITION)
#define AT_ASSERTM TORCH_CHECK
#define AT_ERROR(...) ::c10::fail(__FILE__, __LINE__, ::c10::str(__VA_ARGS__))
#define TORCH_WARN(...) fprintf(stderr, "warning: %s\n", ::c10::str(__VA_ARGS__).c_str())
#define C10_CUDA_CHECK(CALL) ::c10::must(CALL, __FILE__, __LINE__)
#define AT_CUDA_CHECK(CALL) C10_CUDA_CHECK(CALL)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())

namespace at {

using c10::BFloat16;
using c10::Device;
using c10::DeviceType;
using c10::Float8_e4m3fn;
using c10::Float8_e5m2;
using c10::Half;
using c10::IntArrayRef;
using c10::kBFloat16;
using c10::kBool;
using c10::kByte;
using c10::kChar;
using c10::kCPU;
using c10::kCUDA;
using c10::kDouble;
using c10::kFloat;
using c10::kFloat16;
using c10::kFloat32;
using c10::kFloat64;
using c10::kFloat8_e4m3fn;
using c10::kFloat8_e5m2;
using c10::kHalf;
using c10::kInt;
using c10::kInt16;
using c10::kInt32;
using c10::kInt64;
using c10::kInt8;
using c10::kLong;
using c10::kShort;
using c10::kStrided;
using c10::kUInt8;
using c10::ScalarType;
using c10::TensorOptions;

template <class T>
struct DefaultPtrTraits {
  typedef T *Pointer;
};
template <class T>
struct RestrictPtrTraits {
  typedef T *__restrict__ Pointer;
};

// What a kernel gets instead of a Tensor: a[i][j] follows the strides.
template <class T, size_t N, template <class> class Traits, class Index>
class AccessorOf {
 public:
  __host__ __device__ AccessorOf(T *data, const Index *sizes, const Index *strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  __host__ __device__ AccessorOf<T, N - 1, Traits, Index> operator[](Index at) const {
    return {data_ + strides_[0] * at, sizes_ + 1, strides_ + 1};
  }
  __host__ __device__ Index size(int dimension) const { return sizes_[dimension]; }

 private:
  T *data_;
  const Index *sizes_, *strides_;
};
template <class T, template <class> class Traits, class Index>
class AccessorOf<T, 1, Traits, Index> {
 public:
  __host__ __device__ AccessorOf(T *data, const Index *sizes, const Index *strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  __host__ __device__ T &operator[](Index at) const { return data_[strides_[0] * at]; }
  __host__ __device__ Index size(int dimension) const { return sizes_[dimension]; }

 private:
  T *data_;
  const Index *sizes_, *strides_;
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = int64_t>
class GenericPackedTensorAccessor {
 public:
  GenericPackedTensorAccessor(T *data, const int64_t *sizes, const int64_t *strides) : data_(data) {
    for (size_t at = 0; at < N; ++at) sizes_[at] = Index(sizes[at]), strides_[at] = Index(strides[at]);
  }
  __host__ __device__ decltype(auto) operator[](Index at) const {
    return AccessorOf<T, N, Traits, Index>(data_, sizes_, strides_)[at];
  }
  __host__ __device__ Index size(int dimension) const { return sizes_[dimension]; }
  __host__ __device__ Index stride(int dimension) const { return strides_[dimension]; }
  __host__ __device__ T *data() const { return data_; }

 private:
  T *data_;
  Index sizes_[N], strides_[N];
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;

class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<void> memory, void *data, ScalarType type, std::vector<int64_t> sizes,
         std::vector<int64_t> strides)
      : memory_(std::move(memory)), data_(data), type_(type), sizes_(std::move(sizes)), strides_(std::move(strides)) {}

  bool defined() const { return memory_ != nullptr || data_ != nullptr; }
  int64_t dim() const { return int64_t(sizes_.size()); }
  int64_t ndimension() const { return dim(); }
  int64_t size(int64_t dimension) const { return sizes_.at(wrapped(dimension)); }
  int64_t stride(int64_t dimension) const { return strides_.at(wrapped(dimension)); }
  IntArrayRef sizes() const { return sizes_; }
  IntArrayRef strides() const { return strides_; }
  int64_t numel() const {
    int64_t count = 1;
    for (int64_t size : sizes_) count *= size;
    return count;
  }
  size_t element_size() const { return c10::elementSize(type_); }
  size_t itemsize() const { return element_size(); }
  size_t nbytes() const { return numel() * element_size(); }
  ScalarType scalar_type() const { return type_; }
  ScalarType dtype() const { return type_; }
  ScalarType type() const { return type_; }
  TensorOptions options() const { return TensorOptions(type_); }
  Device device() const { return c10::kCUDA; }
  int8_t get_device() const { return 0; }
  bool is_cuda() const { return true; }
  bool is_cpu() const { return false; }
  bool requires_grad() const { return false; }
  bool is_floating_point() const { return c10::isFloatingType(type_); }
  bool is_contiguous() const {
    int64_t expected = 1;
    for (int64_t at = dim(); at-- > 0;) {
      if (sizes_[at] != 1 && strides_[at] != expected) return false;
      expected *= sizes_[at];
    }
    return true;
  }
  bool is_same(const Tensor &other) const { return data_ == other.data_; }
  Tensor contiguous() const {
    TORCH_CHECK(is_contiguous(), "the emulator's tensors cannot be made contiguous: pass contiguous ones");
    return *this;
  }
  Tensor detach() const { return *this; }
  void *data_ptr() const { return data_; }
  template <class T>
  T *data_ptr() const {
    typedef typename std::remove_const<T>::type Plain;
    TORCH_CHECK(c10::CppTypeToScalarType<Plain>::value == type_, "expected scalar type ",
                c10::CppTypeToScalarType<Plain>::value, " but found ", type_);
    return static_cast<T *>(data_);
  }
  template <class T>
  T *data() const {
    return data_ptr<T>();
  }
  template <class T>
  T *mutable_data_ptr() const {
    return data_ptr<T>();
  }
  template <class T>
  const T *const_data_ptr() const {
    return data_ptr<T>();
  }
  void *mutable_data_ptr() const { return data_; }
  const void *const_data_ptr() const { return data_; }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor32<T, N, Traits> packed_accessor32() const {
    TORCH_CHECK(dim() == int64_t(N), "expected ", N, " dims but tensor has ", dim());
    return {data_ptr<T>(), sizes_.data(), strides_.data()};
  }
  template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
  PackedTensorAccessor64<T, N, Traits> packed_accessor64() const {
    TORCH_CHECK(dim() == int64_t(N), "expected ", N, " dims but tensor has ", dim());
    return {data_ptr<T>(), sizes_.data(), strides_.data()};
  }
  Tensor view(IntArrayRef sizes) const {
    TORCH_CHECK(is_contiguous(), "view of a tensor that is not contiguous");
    std::vector<int64_t> to = sizes.vec();
    int64_t known = 1, open = -1;
    for (size_t at = 0; at < to.size(); ++at) to[at] == -1 ? void(open = int64_t(at)) : void(known *= to[at]);
    if (open >= 0) to[open] = known ? numel() / known : 0, known *= to[open];
    TORCH_CHECK(known == numel(), "shape '", sizes, "' is invalid for input of size ", numel());
    return Tensor(memory_, data_, type_, to, dense(to));
  }
  Tensor reshape(IntArrayRef sizes) const { return view(sizes); }
  Tensor flatten() const { return view({numel()}); }
  Tensor transpose(int64_t one, int64_t other) const {
    Tensor result = *this;
    std::swap(result.sizes_.at(wrapped(one)), result.sizes_.at(wrapped(other)));
    std::swap(result.strides_.at(wrapped(one)), result.strides_.at(wrapped(other)));
    return result;
  }
  Tensor t() const { return transpose(0, 1); }
  Tensor &zero_() {
    TORCH_CHECK(is_contiguous(), "zero_ of a tensor that is not contiguous");
    C10_CUDA_CHECK(cudaMemset(data_, 0, nbytes()));
    return *this;
  }
  Tensor clone() const;
  template <class T>
  T item() const {
    TORCH_CHECK(numel() == 1, "a Tensor with ", numel(), " elements cannot be converted to Scalar");
    TORCH_CHECK(!c10::isFloat8(type_), "item of a tensor of ", type_, " is not there in the emulator");
    switch (type_) {
      case kFloat:
        return T(fetch<float>());
      case kDouble:
        return T(fetch<double>());
      case kInt:
        return T(fetch<int>());
      case kLong:
        return T(fetch<int64_t>());
      case kHalf:
        return T(float(fetch<__half>()));
      case kBFloat16:
        return T(float(fetch<__nv_bfloat16>()));
      case kShort:
        return T(fetch<int16_t>());
      case kChar:
        return T(fetch<int8_t>());
      default:
        return T(fetch<uint8_t>());
    }
  }
  static std::vector<int64_t> dense(const std::vector<int64_t> &sizes) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t at = sizes.size(); at-- > 1;) strides[at - 1] = strides[at] * sizes[at];
    return strides;
  }

 private:
  size_t wrapped(int64_t dimension) const { return size_t(dimension < 0 ? dimension + dim() : dimension); }
  template <class T>
  T fetch() const {
    T value;
    C10_CUDA_CHECK(cudaMemcpy(&value, data_, sizeof value, cudaMemcpyDeviceToHost));
    return value;
  }
  std::shared_ptr<void> memory_;
  void *data_ = nullptr;
  ScalarType type_ = kFloat;
  std::vector<int64_t> sizes_, strides_;
};

inline Tensor empty(IntArrayRef sizes, TensorOptions options = {}) {
  TORCH_CHECK(options.device().is_cuda(), "the emulator has tensors on the device only");
  int64_t count = 1;
  for (int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
    count *= size;
  }
  void *data = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&data, count * c10::elementSize(options.dtype())));
  return Tensor(std::shared_ptr<void>(data, [](void *memory) { cudaFree(memory); }), data, options.dtype(), sizes.vec(),
                Tensor::dense(sizes.vec()));
}
inline Tensor zeros(IntArrayRef sizes, TensorOptions options = {}) { return empty(sizes, options).zero_(); }
inline Tensor full(IntArrayRef sizes, double value, TensorOptions options = {}) {
  TORCH_CHECK(!c10::isFloat8(options.dtype()), "torch::full of ", options.dtype(), " is not there in the emulator");
  Tensor result = empty(sizes, options);
  const auto fill = [&](auto one) {
    std::vector<decltype(one)> all(result.numel(), one);
    C10_CUDA_CHECK(cudaMemcpy(result.data_ptr(), all.data(), result.nbytes(), cudaMemcpyHostToDevice));
  };
  switch (options.dtype()) {
    case kFloat:
      fill(float(value));
      break;
    case kDouble:
      fill(value);
      break;
    case kInt:
      fill(int(value));
      break;
    case kLong:
      fill(int64_t(value));
      break;
    case kHalf:
      fill(__float2half(float(value)));
      break;
    case kBFloat16:
      fill(__float2bfloat16(float(value)));
      break;
    case kShort:
      fill(int16_t(value));
      break;
    default:
      fill(uint8_t(value));
  }
  return result;
}
inline Tensor ones(IntArrayRef sizes, TensorOptions options = {}) { return full(sizes, 1, options); }
inline Tensor empty_like(const Tensor &like) { return empty(like.sizes(), like.options()); }
inline Tensor empty_like(const Tensor &like, TensorOptions options) { return empty(like.sizes(), options); }
inline Tensor zeros_like(const Tensor &like) { return zeros(like.sizes(), like.options()); }
inline Tensor ones_like(const Tensor &like) { return ones(like.sizes(), like.options()); }
inline Tensor full_like(const Tensor &like, double value) { return full(like.sizes(), value, like.options()); }
inline Tensor Tensor::clone() const {
  TORCH_CHECK(is_contiguous(), "clone of a tensor that is not contiguous");
  Tensor copy = empty(sizes_, options());
  C10_CUDA_CHECK(cudaMemcpy(copy.data_ptr(), data_, nbytes(), cudaMemcpyDeviceToDevice));
  return copy;
}

namespace cuda {
class CUDAStream {
 public:
  operator cudaStream_t() const { return nullptr; }  // PyTorch's current stream is the default one, unless it is told
  cudaStream_t stream() const { return nullptr; }
  void synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(nullptr)); }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline cudaDeviceProp *getCurrentDeviceProperties() {
  static cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  return &properties;
}
struct CUDAGuard {
  template <class T>
  explicit CUDAGuard(const T &) {}
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() = default;
  template <class T>
  explicit OptionalCUDAGuard(const T &) {}
};
}  // namespace cuda

inline c10::Device device_of(const Tensor &tensor) { return tensor.device(); }

}  // namespace at

namespace c10 {
namespace cuda {
using namespace at::cuda;
}
}  // namespace c10

namespace torch {
using namespace at;
using c10::Layout;
typedef at::TensorOptions TensorOptions;
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions device(Device place) { return TensorOptions(place); }
template <class T>
using optional = std::optional<T>;
namespace cuda {
inline void synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
}  // namespace cuda
}  // namespace torch
namespace c10 {
template <class T>
using optional = std::optional<T>;
}

#define EMULATOR_CASE(NAME, TYPE, ...)      \
  case ::c10::ScalarType::NAME: {           \
    using scalar_t [[maybe_unused]] = TYPE; \
    return __VA_ARGS__();                   \
  }
#define EMULATOR_SWITCH(TYPE, NAME, ...)                                                      \
  [&] {                                                                                       \
    const ::c10::ScalarType emulator_type = TYPE;                                             \
    switch (emulator_type) {                                                                  \
      __VA_ARGS__                                                                             \
      default:                                                                                \
        AT_ERROR('"', NAME, "\" not implemented for '", ::c10::toString(emulator_type), "'"); \
    }                                                                                         \
  }()
#define EMULATOR_FLOATS(...) EMULATOR_CASE(Float, float, __VA_ARGS__) EMULATOR_CASE(Double, double, __VA_ARGS__)
#define EMULATOR_HALVES(...) \
  EMULATOR_CASE(Half, ::c10::Half, __VA_ARGS__) EMULATOR_CASE(BFloat16, ::c10::BFloat16, __VA_ARGS__)
// clang-format off
#define EMULATOR_INTEGERS(...)                                                        \
  EMULATOR_CASE(Byte, uint8_t, __VA_ARGS__) EMULATOR_CASE(Char, int8_t, __VA_ARGS__)  \
  EMULATOR_CASE(Short, int16_t, __VA_ARGS__) EMULATOR_CASE(Int, int32_t, __VA_ARGS__) \
  EMULATOR_CASE(Long, int64_t, __VA_ARGS__)
// clang-format on
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...) EMULATOR_SWITCH(TYPE, NAME, EMULATOR_FLOATS(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(TYPE, NAME, ...) \
  EMULATOR_SWITCH(TYPE, NAME, EMULATOR_FLOATS(__VA_ARGS__) EMULATOR_CASE(Half, ::c10::Half, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(ONE, OTHER, TYPE, NAME, ...) \
  EMULATOR_SWITCH(TYPE, NAME, EMULATOR_FLOATS(__VA_ARGS__) EMULATOR_HALVES(__VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) EMULATOR_SWITCH(TYPE, NAME, EMULATOR_HALVES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) EMULATOR_SWITCH(TYPE, NAME, EMULATOR_INTEGERS(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) \
  EMULATOR_SWITCH(TYPE, NAME, EMULATOR_FLOATS(__VA_ARGS__) EMULATOR_INTEGERS(__VA_ARGS__))

// ---- how Python calls the functions: see call_extension in runtime.cpp, and extension.py ----------------------------

namespace emulator_extension {

using at::Tensor;

class Reader {
 public:
  explicit Reader(const char *at) : at_(at) {}
  template <class T>
  T take() {
    T value;
    memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const uint32_t size = take<uint32_t>();
    at_ += size;
    return std::string(at_ - size, size);
  }

 private:
  const char *at_;
};

struct Writer {
  std::string data;
  std::vector<Tensor> kept;  // the result's tensors live until Python has read them
  template <class T>
  void put(const T &value) {
    data.append(reinterpret_cast<const char *>(&value), sizeof value);
  }
};

// Kinds besides those of call.h: T tensor, L list of tensors, t text, O and a kind: that, or None.
template <class T>
struct Value {
  static_assert(std::is_arithmetic<T>::value, "the emulator passes tensors, lists of them, numbers and text");
  static constexpr const char *kind() {
    return std::is_same<T, bool>::value ? "b" : std::is_integral<T>::value ? "s" : "f";
  }
  static T take(Reader &from) { return std::is_integral<T>::value ? T(from.take<int64_t>()) : T(from.take<double>()); }
  static void put(Writer &to, T value) {
    to.put(kind()[0]);
    std::is_integral<T>::value ? to.put(int64_t(value)) : to.put(double(value));
  }
};
template <>
struct Value<Tensor> {
  static constexpr const char *kind() { return "T"; }
  static Tensor take(Reader &from) {
    void *const data = reinterpret_cast<void *>(from.take<uint64_t>());
    const auto type = c10::ScalarType(from.take<int32_t>());
    std::vector<int64_t> sizes(from.take<uint32_t>());
    for (int64_t &size : sizes) size = from.take<int64_t>();
    return Tensor(std::shared_ptr<void>(data, [](void *) {}), data, type, sizes, Tensor::dense(sizes));
  }
  static void put(Writer &to, const Tensor &value) {
    to.kept.push_back(value);
    to.put('T');
    to.put(reinterpret_cast<uint64_t>(value.data_ptr()));
    to.put(int32_t(value.scalar_type()));
    to.put(uint32_t(value.dim()));
    for (int64_t size : value.sizes()) to.put(size);
    for (int64_t stride : value.strides()) to.put(stride);
  }
};
template <>
struct Value<std::string> {
  static constexpr const char *kind() { return "t"; }
  static std::string take(Reader &from) { return from.text(); }
};
template <class T>
struct Value<std::vector<T>> {
  static constexpr const char *kind() { return "L"; }
  static std::vector<T> take(Reader &from) {
    std::vector<T> all;
    for (uint32_t left = from.take<uint32_t>(); left; --left) all.push_back(Value<T>::take(from));
    return all;
  }
  static void put(Writer &to, const std::vector<T> &all) {
    to.put('L');
    to.put(uint32_t(all.size()));
    for (const T &value : all) Value<T>::put(to, value);
  }
};
template <class T>
struct Value<std::optional<T>> {
  static constexpr const char *kind() {
    return Value<T>::kind()[0] == 'T' ? "OT" : Value<T>::kind()[0] == 'f' ? "Of" : "Os";
  }
  static std::optional<T> take(Reader &from) {
    if (from.take<char>() == 0) return std::nullopt;
    return Value<T>::take(from);
  }
};
template <class... T>
struct Value<std::tuple<T...>> {
  static void put(Writer &to, const std::tuple<T...> &all) {
    to.put('P');
    to.put(uint32_t(sizeof...(T)));
    std::apply([&](const T &...values) { (Value<T>::put(to, values), ...); }, all);
  }
};
template <class A, class B>
struct Value<std::pair<A, B>> {
  static void put(Writer &to, const std::pair<A, B> &both) {
    Value<std::tuple<A, B>>::put(to, std::tuple<A, B>(both.first, both.second));
  }
};

struct Parameter { const char *kind, *name; };
struct Function {
  std::vector<Parameter> parameters;
  std::function<void(Reader &, Writer &)> call;
};
inline std::map<std::string, Function> &functions() {
  static std::map<std::string, Function> all;
  return all;
}

template <class T>
using Bare = typename std::decay<T>::type;

template <class R, class... A>
bool enter(const char *name, R (*function)(A...)) {
  functions()[name] = {
      {Parameter{Value<Bare<A>>::kind(), emulator_call::name<Bare<A>>()}...}, [function](Reader &from, Writer &to) {
        std::tuple<Bare<A>...> values{Value<Bare<A>>::take(from)...};  // braces: from left to right
        if constexpr (std::is_void<R>::value)
          std::apply(function, values), to.put('N');
        else
          Value<Bare<R>>::put(to, std::apply(function, values));
      }};
  return true;
}

// What PYBIND11_MODULE's body sees as `m`.
struct Module {
  template <class F, class... More>
  Module &def(const char *name, F function, const More &...) {
    return enter(name, +function), *this;  // +: a lambda becomes a function
  }
  std::string &doc() {
    static std::string text;
    return text;
  }
};

}  // namespace emulator_extension

namespace pybind11 {
typedef emulator_extension::Module module_;
struct arg {
  explicit arg(const char *) {}
  template <class T>
  arg &operator=(const T &) {
    return *this;
  }
};
struct gil_scoped_release {};
}  // namespace pybind11
namespace py = pybind11;
namespace torch {
namespace py = pybind11;
}
inline pybind11::arg operator""_a(const char *name, size_t) { return pybind11::arg(name); }

#ifndef TORCH_EXTENSION_NAME
#define TORCH_EXTENSION_NAME emulated
#endif
#define PYBIND11_MODULE(NAME, MODULE)                                     \
  static void emulator_define_module(emulator_extension::Module &MODULE); \
  static const bool emulator_defined = [] {                               \
    emulator_extension::Module made;                                      \
    emulator_define_module(made);                                         \
    return true;                                                          \
  }();                                                                    \
  static void emulator_define_module(emulator_extension::Module &MODULE)
#define EMULATOR_FUNCTION(FUNCTION) \
  static const bool emulator_entered_##FUNCTION = emulator_extension::enter(#FUNCTION, &FUNCTION);

#ifndef __CUDA_ARCH__
// Kind and type of each parameter of a function, as text with a line for each; null if there is no such function.
extern "C" const char *emulator_extension_parameters(const char *name) {
  static std::string text;
  const auto found = emulator_extension::functions().find(name);
  if (found == emulator_extension::functions().end()) return nullptr;
  text.clear();
  for (const auto &parameter : found->second.parameters)
    text += std::string(parameter.kind) + " " + parameter.name + "\n";
  return text.c_str();
}
// Call it; `done` gets the result while its tensors live, or why there is none.
extern "C" void emulator_extension_call(
    const char *name, const char *arguments, void (*done)(int status, const char *data, size_t bytes)) {
  try {
    emulator_extension::Reader from(arguments);
    emulator_extension::Writer to;
    emulator_extension::functions().at(name).call(from, to);
    done(0, to.data.data(), to.data.size());
  } catch (const std::exception &error) {
    done(1, error.what(), strlen(error.what()));
  }
}
#endif
