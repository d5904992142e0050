// PyTorch's C++ interface, as far as a learner's CUDA extension needs it: tensors in, tensors out.
//
// nvcc takes half a minute or more for the real headers at every change; these are quick. A Tensor here is memory of
// the emulated device or of the host with sizes, strides and a dtype; it has no operators that compute. Functions are
// entered by PYBIND11_MODULE, TORCH_LIBRARY or EMULATOR_FUNCTION, and called by runtime.cpp with the arguments that
// Python sends.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// Sources rely on what PyTorch's headers bring along.
#include <algorithm>
#include <array>
#include <cassert>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
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

template <ScalarType TYPE>
struct ScalarTypeToCppType;
#define EMULATOR_CPP_TYPE(NAME, TYPE)            \
  template <>                                    \
  struct ScalarTypeToCppType<ScalarType::NAME> { \
    typedef TYPE type;                           \
  };
EMULATOR_CPP_TYPE(Byte, uint8_t)
EMULATOR_CPP_TYPE(Char, int8_t)
EMULATOR_CPP_TYPE(Short, int16_t)
EMULATOR_CPP_TYPE(Int, int)
EMULATOR_CPP_TYPE(Long, int64_t)
EMULATOR_CPP_TYPE(Half, __half)
EMULATOR_CPP_TYPE(Float, float)
EMULATOR_CPP_TYPE(Double, double)
EMULATOR_CPP_TYPE(Bool, bool)
EMULATOR_CPP_TYPE(BFloat16, __nv_bfloat16)
EMULATOR_CPP_TYPE(Float8_e5m2, __nv_fp8_e5m2)
EMULATOR_CPP_TYPE(Float8_e4m3fn, __nv_fp8_e4m3)
#undef EMULATOR_CPP_TYPE

// What Tensor::dtype() is. It prints as the C++ type.
class TypeMeta {
 public:
  TypeMeta(ScalarType type) : type_(type) {}
  operator ScalarType() const { return type_; }
  ScalarType toScalarType() const { return type_; }
  size_t itemsize() const { return elementSize(type_); }
  const char *name() const {
    switch (type_) {
      case kByte:
        return "unsigned char";
      case kChar:
        return "signed char";
      case kShort:
        return "short int";
      case kInt:
        return "int";
      case kLong:
        return "long int";
      case kHalf:
        return "c10::Half";
      case kFloat:
        return "float";
      case kDouble:
        return "double";
      case kBool:
        return "bool";
      case kFloat8_e5m2:
        return "c10::Float8_e5m2";
      case kFloat8_e4m3fn:
        return "c10::Float8_e4m3fn";
      default:
        return "c10::BFloat16";
    }
  }
  bool operator==(TypeMeta other) const { return type_ == other.type_; }
  bool operator!=(TypeMeta other) const { return type_ != other.type_; }
  bool operator==(ScalarType other) const { return type_ == other; }
  bool operator!=(ScalarType other) const { return type_ != other; }

 private:
  ScalarType type_;
};
inline bool operator==(ScalarType one, TypeMeta other) { return other == one; }
inline bool operator!=(ScalarType one, TypeMeta other) { return other != one; }
inline std::ostream &operator<<(std::ostream &out, TypeMeta type) { return out << type.name(); }
inline ScalarType typeMetaToScalarType(TypeMeta type) { return type; }

// A number of a type that is known when the program runs: what Tensor::item() gives.
class Scalar {
 public:
  Scalar(double value) : floating_(value), whole_(int64_t(value)), kind_(kDouble) {}
  Scalar(float value) : Scalar(double(value)) {}
  Scalar(bool value) : floating_(value), whole_(value), kind_(kBool) {}
  template <class T, class = typename std::enable_if<std::is_integral<T>::value>::type>
  Scalar(T value) : floating_(double(value)), whole_(int64_t(value)), kind_(kLong) {}
  Scalar(__half value) : Scalar(double(__half2float(value))) {}
  Scalar(__nv_bfloat16 value) : Scalar(double(__bfloat162float(value))) {}
  template <class T>
  T to() const {
    if constexpr (std::is_arithmetic<T>::value)
      return kind_ == kDouble ? T(floating_) : T(whole_);
    else
      return T(float(floating_));
  }
  double toDouble() const { return to<double>(); }
  float toFloat() const { return to<float>(); }
  int toInt() const { return to<int>(); }
  int64_t toLong() const { return to<int64_t>(); }
  bool toBool() const { return to<bool>(); }
  bool isFloatingPoint() const { return kind_ == kDouble; }
  ScalarType type() const { return kind_; }

 private:
  double floating_;
  int64_t whole_;
  ScalarType kind_;
};

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
inline std::ostream &operator<<(std::ostream &out, DeviceType type) { return out << (type == kCUDA ? "cuda" : "cpu"); }

struct Device {
  DeviceType kind = kCPU;
  int8_t number = -1;  // any, or the current one
  Device(DeviceType kind, int number = -1) : kind(kind), number(int8_t(number)) {}
  Device(const std::string &text);
  Device(const char *text) : Device(std::string(text)) {}
  DeviceType type() const { return kind; }
  int8_t index() const { return number; }
  bool has_index() const { return number >= 0; }
  bool is_cuda() const { return kind == kCUDA; }
  bool is_cpu() const { return kind == kCPU; }
  std::string str() const {
    std::string text = is_cuda() ? "cuda" : "cpu";
    return has_index() ? text + ":" + std::to_string(int(number)) : text;
  }
  bool operator==(const Device &other) const { return kind == other.kind && number == other.number; }
  bool operator!=(const Device &other) const { return !(*this == other); }
};
inline std::ostream &operator<<(std::ostream &out, const Device &device) { return out << device.str(); }

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

enum class Layout : int8_t { Strided = 0 };
constexpr Layout kStrided = Layout::Strided;
inline std::ostream &operator<<(std::ostream &out, Layout) { return out << "Strided"; }
enum class MemoryFormat : int8_t { Contiguous = 0, Preserve = 1 };

// What is not set has its default: a tensor that nobody asks for on the GPU is on the CPU.
class TensorOptions {
 public:
  TensorOptions() = default;
  TensorOptions(ScalarType type) : type_(type) {}
  TensorOptions(TypeMeta type) : type_(type) {}
  TensorOptions(Device place) : place_(place) {}
  TensorOptions(DeviceType place) : place_(place) {}
  TensorOptions(Layout layout) : layout_(layout) {}
  TensorOptions dtype(ScalarType to) const { return with(&TensorOptions::type_, to); }
  TensorOptions dtype(TypeMeta to) const { return with(&TensorOptions::type_, ScalarType(to)); }
  template <class T>
  TensorOptions dtype() const {
    return dtype(CppTypeToScalarType<T>::value);
  }
  TensorOptions device(Device to) const { return with(&TensorOptions::place_, to); }
  TensorOptions device(DeviceType to, int number = -1) const { return device(Device(to, number)); }
  TensorOptions device_index(int number) const { return device(kCUDA, number); }
  TensorOptions layout(Layout to) const { return with(&TensorOptions::layout_, to); }
  TensorOptions requires_grad(bool to) const { return with(&TensorOptions::grad_, to); }
  TensorOptions pinned_memory(bool to) const { return with(&TensorOptions::pinned_, to); }
  TensorOptions memory_format(MemoryFormat) const { return *this; }
  TypeMeta dtype() const { return type_.value_or(kFloat); }
  Device device() const { return place_.value_or(kCPU); }
  Layout layout() const { return kStrided; }
  bool requires_grad() const { return grad_.value_or(false); }
  bool pinned_memory() const { return pinned_.value_or(false); }
  bool has_dtype() const { return type_.has_value(); }
  bool has_device() const { return place_.has_value(); }
  bool is_cuda() const { return device().is_cuda(); }
  // These, and what only `other` has.
  TensorOptions or_else(const TensorOptions &other) const {
    TensorOptions made = *this;
    if (!type_) made.type_ = other.type_;
    if (!place_) made.place_ = other.place_;
    if (!layout_) made.layout_ = other.layout_;
    return made;
  }
  friend std::ostream &operator<<(std::ostream &out, const TensorOptions &options) {
    const auto flags = out.flags();
    const auto unset = [](const auto &field) { return field ? "" : " (default)"; };
    out << std::boolalpha << "TensorOptions(dtype=" << options.dtype() << unset(options.type_)
        << ", device=" << options.device() << unset(options.place_) << ", layout=" << options.layout()
        << unset(options.layout_) << ", requires_grad=" << options.requires_grad() << unset(options.grad_)
        << ", pinned_memory=" << options.pinned_memory() << unset(options.pinned_) << ", memory_format=(nullopt))";
    out.flags(flags);
    return out;
  }

 private:
  template <class T>
  TensorOptions with(std::optional<T> TensorOptions::*field, T value) const {
    TensorOptions made = *this;
    made.*field = value;
    return made;
  }
  std::optional<ScalarType> type_;
  std::optional<Device> place_;
  std::optional<Layout> layout_;
  std::optional<bool> grad_, pinned_;
};

[[noreturn]] inline void fail(const char *file, int line, const std::string &what) {
  (void)file, (void)line;
  throw Error(what);
}
inline void must(cudaError_t error, const char *file, int line) {
  if (error != cudaSuccess) fail(file, line, str("CUDA error: ", cudaGetErrorString(error)));
}

inline Device::Device(const std::string &text) {
  const size_t colon = text.find(':');
  const std::string kind_text = text.substr(0, colon);
  if (kind_text != "cuda" && kind_text != "cpu") fail(__FILE__, __LINE__, "Invalid device string: '" + text + "'");
  kind = kind_text == "cuda" ? kCUDA : kCPU;
  number = int8_t(colon == std::string::npos ? -1 : atoi(text.c_str() + colon + 1));
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
using c10::Layout;
using c10::MemoryFormat;
using c10::Scalar;
using c10::ScalarType;
using c10::TensorOptions;
using c10::TypeMeta;

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
template <class T, size_t N>
using TensorAccessor = AccessorOf<T, N, DefaultPtrTraits, int64_t>;

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same<From, __half>::value)
    return converted<To>(__half2float(value));
  else if constexpr (std::is_same<From, __nv_bfloat16>::value)
    return converted<To>(__bfloat162float(value));
  else if constexpr (std::is_same<To, __half>::value)
    return __float2half(float(value));
  else if constexpr (std::is_same<To, __nv_bfloat16>::value)
    return __float2bfloat16(float(value));
  else
    return static_cast<To>(value);
}
// body(T()) for the C++ type of a dtype; fp8 is not among them, since only cuda_fp8.h has its conversions.
template <class F>
decltype(auto) with_type(ScalarType type, const char *what, F &&body) {
  switch (type) {
    case kByte:
      return body(uint8_t());
    case kChar:
      return body(int8_t());
    case kShort:
      return body(int16_t());
    case kInt:
      return body(int());
    case kLong:
      return body(int64_t());
    case kHalf:
      return body(__half());
    case kFloat:
      return body(float());
    case kDouble:
      return body(double());
    case kBool:
      return body(bool());
    case kBFloat16:
      return body(__nv_bfloat16());
    default:
      AT_ERROR(what, " of a tensor of ", type, " is not there in the emulator");
  }
}

// What Tensor::type() is, for older sources.
struct TypeOf {
  ScalarType scalar;
  bool cuda;
  operator ScalarType() const { return scalar; }
  ScalarType scalarType() const { return scalar; }
  bool is_cuda() const { return cuda; }
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<void> memory, void *data, ScalarType type, std::vector<int64_t> sizes,
         std::vector<int64_t> strides, Device place = Device(kCUDA, 0))
      : memory_(std::move(memory)),
        data_(data),
        type_(type),
        place_(place),
        sizes_(std::move(sizes)),
        strides_(std::move(strides)) {}

  bool defined() const { return memory_ != nullptr || data_ != nullptr; }
  int64_t dim() const { return int64_t(sizes_.size()); }
  int64_t ndimension() const { return dim(); }
  int64_t size(int64_t dimension) const { return sizes_.at(wrapped(dimension)); }
  int64_t stride(int64_t dimension) const { return strides_.at(wrapped(dimension)); }
  IntArrayRef sizes() const { return sizes_; }
  IntArrayRef strides() const { return strides_; }
  int64_t numel() const { return count(sizes_); }
  size_t element_size() const { return c10::elementSize(type_); }
  size_t itemsize() const { return element_size(); }
  size_t nbytes() const { return numel() * element_size(); }
  ScalarType scalar_type() const { return type_; }
  TypeMeta dtype() const { return type_; }
  TypeOf type() const { return {type_, is_cuda()}; }
  TensorOptions options() const { return TensorOptions(type_).device(place_).layout(kStrided); }
  Device device() const { return place_; }
  int8_t get_device() const { return place_.index(); }
  bool is_cuda() const { return place_.is_cuda(); }
  bool is_cpu() const { return place_.is_cpu(); }
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
  Tensor contiguous() const { return is_contiguous() ? *this : made(dense(sizes_), type_, place_).take(*this); }
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
  template <class T, size_t N>
  TensorAccessor<T, N> accessor() const {
    TORCH_CHECK(dim() == int64_t(N), "expected ", N, " dims but tensor has ", dim());
    TORCH_CHECK(is_cpu(), "accessor() of a tensor on the GPU, which the host cannot read: packed_accessor32, or cpu()");
    return {data_ptr<T>(), sizes_.data(), strides_.data()};
  }

  // ---- the same memory, seen otherwise
  Tensor view(IntArrayRef sizes) const {
    TORCH_CHECK(is_contiguous(), "view of a tensor that is not contiguous");
    std::vector<int64_t> to = sizes.vec();
    int64_t known = 1, open = -1;
    for (size_t at = 0; at < to.size(); ++at) to[at] == -1 ? void(open = int64_t(at)) : void(known *= to[at]);
    if (open >= 0) to[open] = known ? numel() / known : 0, known *= to[open];
    TORCH_CHECK(known == numel(), "shape '", sizes, "' is invalid for input of size ", numel());
    return seen(data_, to, dense(to));
  }
  Tensor reshape(IntArrayRef sizes) const { return contiguous().view(sizes); }
  Tensor flatten() const { return reshape({numel()}); }
  Tensor transpose(int64_t one, int64_t other) const {
    Tensor result = *this;
    std::swap(result.sizes_.at(wrapped(one)), result.sizes_.at(wrapped(other)));
    std::swap(result.strides_.at(wrapped(one)), result.strides_.at(wrapped(other)));
    return result;
  }
  Tensor t() const { return dim() < 2 ? *this : transpose(0, 1); }
  Tensor permute(IntArrayRef order) const {
    TORCH_CHECK(int64_t(order.size()) == dim(), "permute of ", dim(), " dimensions by ", order);
    std::vector<int64_t> sizes, strides;
    for (int64_t at : order) sizes.push_back(size(at)), strides.push_back(stride(at));
    return seen(data_, sizes, strides);
  }
  Tensor unsqueeze(int64_t dimension) const {
    const int64_t at = dimension < 0 ? dimension + dim() + 1 : dimension;
    std::vector<int64_t> sizes = sizes_, strides = strides_;
    strides.insert(strides.begin() + at, at < dim() ? sizes_[at] * strides_[at] : 1);
    sizes.insert(sizes.begin() + at, 1);
    return seen(data_, sizes, strides);
  }
  Tensor squeeze(int64_t dimension) const {
    if (size(dimension) != 1) return *this;
    std::vector<int64_t> sizes = sizes_, strides = strides_;
    sizes.erase(sizes.begin() + wrapped(dimension)), strides.erase(strides.begin() + wrapped(dimension));
    return seen(data_, sizes, strides);
  }
  Tensor squeeze() const {
    Tensor result = *this;
    for (int64_t at = dim(); at-- > 0;) result = result.squeeze(at);
    return result;
  }
  Tensor narrow(int64_t dimension, int64_t start, int64_t length) const {
    if (start < 0) start += size(dimension);
    TORCH_CHECK(start >= 0 && length >= 0 && start + length <= size(dimension), "start (", start, ") + length (",
                length, ") exceeds dimension size (", size(dimension), ").");
    std::vector<int64_t> sizes = sizes_;
    sizes[wrapped(dimension)] = length;
    return seen(static_cast<char *>(data_) + start * stride(dimension) * element_size(), sizes, strides_);
  }
  Tensor select(int64_t dimension, int64_t index) const {
    return narrow(dimension, index, 1).squeeze(dimension < 0 ? dimension + dim() : dimension);
  }
  Tensor operator[](int64_t index) const { return select(0, index); }

  // ---- copies
  Tensor to(const TensorOptions &options, bool = false, bool copy = false) const {
    const ScalarType type = options.has_dtype() ? ScalarType(options.dtype()) : type_;
    const Device place = options.has_device() ? placed(options.device()) : place_;
    if (!copy && type == type_ && place == place_) return *this;
    const std::vector<int64_t> strides = is_dense() ? strides_ : dense(sizes_);
    Tensor result = made(strides, type, place);
    if (type == type_) return result.take(*this);
    const Tensor from = made(strides, type_, c10::kCPU).take(*this), changed = made(strides, type, c10::kCPU);
    with_type(type_, "conversion", [&](auto old) {
      with_type(type, "conversion", [&](auto fresh) {
        const auto *old_values = static_cast<const decltype(old) *>(from.data_);
        auto *values = static_cast<decltype(fresh) *>(changed.data_);
        for (int64_t at = 0; at < numel(); ++at) values[at] = converted<decltype(fresh)>(old_values[at]);
      });
    });
    return result.take(changed);
  }
  Tensor to(Device place, bool wait = false, bool copy = false) const { return to(TensorOptions(place), wait, copy); }
  Tensor to(c10::DeviceType place, bool wait = false, bool copy = false) const { return to(Device(place), wait, copy); }
  Tensor to(ScalarType type, bool wait = false, bool copy = false) const { return to(TensorOptions(type), wait, copy); }
  Tensor to(TypeMeta type, bool wait = false, bool copy = false) const { return to(TensorOptions(type), wait, copy); }
  Tensor to(Device place, ScalarType type, bool wait = false, bool copy = false) const {
    return to(TensorOptions(place).dtype(type), wait, copy);
  }
  Tensor to(const Tensor &other) const { return to(other.options()); }
  Tensor cpu() const { return to(c10::kCPU); }
  Tensor cuda() const { return to(c10::kCUDA); }
  Tensor toType(ScalarType type) const { return to(type); }
  Tensor clone() const { return to(TensorOptions(), false, true); }
  const Tensor &copy_(const Tensor &from, bool = false) const { return take(from.to(type_)), *this; }
  const Tensor &fill_(Scalar value) const {
    const Tensor filled = made(dense(sizes_), type_, c10::kCPU);
    with_type(type_, "fill_", [&](auto one) {
      auto *values = static_cast<decltype(one) *>(filled.data_);
      std::fill(values, values + numel(), value.to<decltype(one)>());
    });
    return take(filled), *this;
  }
  const Tensor &zero_() const {
    if (!is_contiguous()) return fill_(0);
    if (is_cpu()) return memset(data_, 0, nbytes()), *this;
    C10_CUDA_CHECK(cudaMemset(data_, 0, nbytes()));
    return *this;
  }
  Scalar item() const {
    TORCH_CHECK(numel() == 1, "a Tensor with ", numel(), " elements cannot be converted to Scalar");
    return with_type(type_, "item", [&](auto value) {
      C10_CUDA_CHECK(cudaMemcpy(&value, data_, sizeof value, is_cpu() ? cudaMemcpyHostToHost : cudaMemcpyDeviceToHost));
      return Scalar(value);
    });
  }
  template <class T>
  T item() const {
    return item().to<T>();
  }
  Tensor index_select(int64_t dimension, const Tensor &index) const {
    const Tensor chosen = index.to(c10::kCPU).to(c10::kLong).contiguous();
    std::vector<int64_t> sizes = sizes_;
    sizes.at(wrapped(dimension)) = index.numel();
    const Tensor result = made(sizes, dense(sizes), type_, place_);
    for (int64_t at = 0; at < index.numel(); ++at)
      result.narrow(dimension, at, 1).take(narrow(dimension, chosen.data_ptr<int64_t>()[at], 1));
    return result;
  }
  // Values and their places along a dimension, ordered; or of the largest or least of each row.
  std::tuple<Tensor, Tensor> sort(bool stable, int64_t dimension, bool descending) const {
    (void)stable;  // it always is
    return ordered(dimension, descending, size(dimension));
  }
  std::tuple<Tensor, Tensor> sort(int64_t dimension = -1, bool descending = false) const {
    return sort(true, dimension, descending);
  }
  std::tuple<Tensor, Tensor> extremes(int64_t dimension, bool largest, bool keep) const {
    auto [values, places] = ordered(dimension, largest, 1);
    if (keep) return {values, places};
    return {values.select(dimension, 0), places.select(dimension, 0)};
  }
  std::tuple<Tensor, Tensor> max(int64_t dimension, bool keep = false) const { return extremes(dimension, true, keep); }
  std::tuple<Tensor, Tensor> min(int64_t dimension, bool keep = false) const {
    return extremes(dimension, false, keep);
  }
  Tensor max() const { return std::get<0>(flatten().max(0)); }
  Tensor min() const { return std::get<0>(flatten().min(0)); }

  static int64_t count(const std::vector<int64_t> &sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t(1), std::multiplies<int64_t>());
  }
  static std::vector<int64_t> dense(const std::vector<int64_t> &sizes) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t at = sizes.size(); at-- > 1;) strides[at - 1] = strides[at] * std::max<int64_t>(sizes[at], 1);
    return strides;
  }
  // Whether its elements, in some order, fill their memory: then what is like it has the same strides.
  bool is_dense() const {
    std::vector<size_t> order(sizes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](size_t one, size_t other) { return strides_[one] < strides_[other]; });
    int64_t expected = 1;
    for (size_t at : order) {
      if (sizes_[at] != 1 && strides_[at] != expected) return false;
      expected *= sizes_[at];
    }
    return true;
  }
  // A tensor with memory of its own, which nothing has written.
  static Tensor made(const std::vector<int64_t> &sizes, const std::vector<int64_t> &strides, ScalarType type,
                     Device place) {
    const size_t bytes = count(sizes) * c10::elementSize(type);
    place = placed(place);
    void *data = nullptr;
    if (place.is_cpu()) {
      data = malloc(bytes + !bytes);
      TORCH_CHECK(data, "not enough memory: you tried to allocate ", bytes, " bytes.");
    } else {
      C10_CUDA_CHECK(cudaMalloc(&data, bytes));
    }
    std::shared_ptr<void> memory(data, [place](void *mine) { place.is_cpu() ? free(mine) : void(cudaFree(mine)); });
    return Tensor(memory, data, type, sizes, strides, place);
  }

 private:
  static Device placed(Device place) { return place.is_cuda() ? Device(c10::kCUDA, 0) : Device(c10::kCPU); }
  size_t wrapped(int64_t dimension) const { return size_t(dimension < 0 ? dimension + dim() : dimension); }
  Tensor seen(void *data, std::vector<int64_t> sizes, std::vector<int64_t> strides) const {
    return Tensor(memory_, data, type_, std::move(sizes), std::move(strides), place_);
  }
  Tensor made(const std::vector<int64_t> &strides, ScalarType type, Device place) const {
    return made(sizes_, strides, type, place);
  }
  // The elements of another tensor of the same sizes and type, wherever it is.
  const Tensor &take(const Tensor &from) const {
    TORCH_CHECK(from.sizes_ == sizes_, "a tensor of sizes ", sizes(), " cannot take one of ", from.sizes(),
                ": the emulator's tensors are not broadcast");
    const cudaMemcpyKind kind =
        is_cpu()        ? from.is_cpu() ? cudaMemcpyHostToHost : cudaMemcpyDeviceToHost
        : from.is_cpu() ? cudaMemcpyHostToDevice
                        : cudaMemcpyDeviceToDevice;
    const size_t size = element_size();
    const auto copy = [&](int64_t to_at, int64_t from_at, int64_t elements) {
      C10_CUDA_CHECK(cudaMemcpy(static_cast<char *>(data_) + to_at * size,
                                static_cast<const char *>(from.data_) + from_at * size, elements * size, kind));
    };
    if (numel() == 0) return *this;
    if ((is_contiguous() && from.is_contiguous()) || (strides_ == from.strides_ && is_dense()))
      return copy(0, 0, numel()), *this;
    const int64_t row = sizes_.back(), step = strides_.back(), from_step = from.strides_.back();
    std::vector<int64_t> at(sizes_.size(), 0);
    for (int64_t left = numel() / row; left; --left) {
      const int64_t start = std::inner_product(at.begin(), at.end(), strides_.begin(), int64_t(0));
      const int64_t from_start = std::inner_product(at.begin(), at.end(), from.strides_.begin(), int64_t(0));
      if (step == 1 && from_step == 1)
        copy(start, from_start, row);
      else
        C10_CUDA_CHECK(cudaMemcpy2D(
            static_cast<char *>(data_) + start * size, step * size,
            static_cast<const char *>(from.data_) + from_start * size, from_step * size, size, row, kind));
      for (int64_t dimension = dim() - 1; dimension-- > 0 && ++at[dimension] == sizes_[dimension];) at[dimension] = 0;
    }
    return *this;
  }
  std::tuple<Tensor, Tensor> ordered(int64_t dimension, bool descending, int64_t most) const {
    const Tensor rows = transpose(dimension, -1).contiguous().cpu();
    const int64_t length = rows.size(-1);
    TORCH_CHECK(most <= length, "an extreme of no elements");
    std::vector<int64_t> sizes = rows.sizes_;
    sizes.back() = most;
    const Tensor values = made(sizes, dense(sizes), type_, c10::kCPU);
    const Tensor places = made(sizes, dense(sizes), c10::kLong, c10::kCPU);
    with_type(type_, "order", [&](auto one) {
      typedef decltype(one) T;
      std::vector<int64_t> order(length);
      for (int64_t row = 0; row * length < rows.numel(); ++row) {
        const T *const from = static_cast<const T *>(rows.data_) + row * length;
        const auto before = [&](int64_t left, int64_t right) {
          const auto a = Scalar(from[left]), b = Scalar(from[right]);
          if (!a.isFloatingPoint()) return descending ? a.toLong() > b.toLong() : a.toLong() < b.toLong();
          const double x = a.toDouble(), y = b.toDouble();  // a NaN counts as the largest
          return descending ? x > y || (x != x && y == y) : x < y || (x == x && y != y);
        };
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), before);
        for (int64_t at = 0; at < most; ++at) {
          static_cast<T *>(values.data_)[row * most + at] = from[order[at]];
          static_cast<int64_t *>(places.data_)[row * most + at] = order[at];
        }
      }
    });
    return {values.to(place_).transpose(dimension, -1), places.to(place_).transpose(dimension, -1)};
  }
  std::shared_ptr<void> memory_;
  void *data_ = nullptr;
  ScalarType type_ = kFloat;
  Device place_ = c10::kCPU;
  std::vector<int64_t> sizes_, strides_;
};

inline Tensor empty(IntArrayRef sizes, TensorOptions options = {}) {
  for (int64_t size : sizes)
    TORCH_CHECK(size >= 0, "Trying to create tensor with negative dimension ", size, ": ", sizes);
  return Tensor::made(sizes.vec(), Tensor::dense(sizes.vec()), options.dtype(), options.device());
}
inline Tensor full(IntArrayRef sizes, Scalar value, TensorOptions options = {}) {
  return empty(sizes, options.or_else(value.isFloatingPoint() ? kFloat : value.type())).fill_(value);
}
inline Tensor zeros(IntArrayRef sizes, TensorOptions options = {}) { return empty(sizes, options).zero_(); }
inline Tensor ones(IntArrayRef sizes, TensorOptions options = {}) { return empty(sizes, options).fill_(1); }
inline Tensor empty_like(const Tensor &like, TensorOptions options = {}) {
  const TensorOptions of = options.or_else(like.options());
  const std::vector<int64_t> sizes = like.sizes().vec();
  return Tensor::made(sizes, like.is_dense() ? like.strides().vec() : Tensor::dense(sizes), of.dtype(), of.device());
}
inline Tensor zeros_like(const Tensor &like, TensorOptions options = {}) { return empty_like(like, options).fill_(0); }
inline Tensor ones_like(const Tensor &like, TensorOptions options = {}) { return empty_like(like, options).fill_(1); }
inline Tensor full_like(const Tensor &like, Scalar value, TensorOptions options = {}) {
  return empty_like(like, options).fill_(value);
}
template <class T>
Tensor tensor(const std::vector<T> &values, TensorOptions options = {}) {
  const Tensor made = empty({int64_t(values.size())}, c10::CppTypeToScalarType<T>::value);
  std::copy(values.begin(), values.end(), made.data_ptr<T>());
  return made.to(options);
}
template <class T>
Tensor tensor(std::initializer_list<T> values, TensorOptions options = {}) {
  return tensor(std::vector<T>(values), options);
}
inline Tensor from_blob(void *data, IntArrayRef sizes, TensorOptions options = {}) {
  const Device place = options.device().is_cuda() ? Device(kCUDA, 0) : Device(kCPU);
  return Tensor(std::shared_ptr<void>(data, [](void *) {}), data, options.dtype(), sizes.vec(),
                Tensor::dense(sizes.vec()), place);
}
inline std::tuple<Tensor, Tensor> max(const Tensor &x, int64_t dimension, bool keep = false) {
  return x.max(dimension, keep);
}
inline std::tuple<Tensor, Tensor> min(const Tensor &x, int64_t dimension, bool keep = false) {
  return x.min(dimension, keep);
}
inline Tensor max(const Tensor &x) { return x.max(); }
inline Tensor min(const Tensor &x) { return x.min(); }

namespace cuda {
// The current stream is the default one, unless a guard or setCurrentCUDAStream says another.
class CUDAStream {
 public:
  CUDAStream(cudaStream_t stream = nullptr) : stream_(stream) {}
  operator cudaStream_t() const { return stream_; }
  cudaStream_t stream() const { return stream_; }
  int64_t id() const { return int64_t(reinterpret_cast<uintptr_t>(stream_)); }
  Device device() const { return Device(kCUDA, 0); }
  int device_index() const { return 0; }
  bool query() const { return cudaStreamQuery(stream_) == cudaSuccess; }
  void synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream_)); }
  bool operator==(const CUDAStream &other) const { return stream_ == other.stream_; }
  bool operator!=(const CUDAStream &other) const { return stream_ != other.stream_; }

 private:
  cudaStream_t stream_;
};
inline CUDAStream &emulator_current() {
  static thread_local CUDAStream current;
  return current;
}
inline CUDAStream getCurrentCUDAStream(int = -1) { return emulator_current(); }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
inline CUDAStream getStreamFromExternal(cudaStream_t stream, int) { return stream; }
inline CUDAStream getStreamFromPool(bool = false, int = -1) {
  static std::vector<cudaStream_t> pool(32);  // as many as PyTorch's has
  static size_t next = 0;
  cudaStream_t &stream = pool[next++ % pool.size()];
  if (!stream) C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}
inline CUDAStream getStreamFromPool(int, int) { return getStreamFromPool(); }
inline void setCurrentCUDAStream(CUDAStream stream) { emulator_current() = stream; }
class CUDAStreamGuard {
 public:
  explicit CUDAStreamGuard(CUDAStream stream) : before_(getCurrentCUDAStream()) { setCurrentCUDAStream(stream); }
  ~CUDAStreamGuard() { setCurrentCUDAStream(before_); }
  CUDAStreamGuard(const CUDAStreamGuard &) = delete;
  CUDAStreamGuard &operator=(const CUDAStreamGuard &) = delete;
  CUDAStream original_stream() const { return before_; }
  CUDAStream current_stream() const { return getCurrentCUDAStream(); }

 private:
  CUDAStream before_;
};
class CUDAEvent {
 public:
  explicit CUDAEvent(unsigned flags = cudaEventDisableTiming) {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
  }
  ~CUDAEvent() { cudaEventDestroy(event_); }
  CUDAEvent(const CUDAEvent &) = delete;
  CUDAEvent &operator=(const CUDAEvent &) = delete;
  operator cudaEvent_t() const { return event_; }
  cudaEvent_t event() const { return event_; }
  void record(CUDAStream stream = getCurrentCUDAStream()) { C10_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void block(CUDAStream stream) { C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }
  bool query() const { return cudaEventQuery(event_) == cudaSuccess; }
  void synchronize() const { C10_CUDA_CHECK(cudaEventSynchronize(event_)); }
  float elapsed_time(const CUDAEvent &end) const {
    float time = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&time, event_, end.event_));
    return time;
  }

 private:
  cudaEvent_t event_ = nullptr;
};
inline int current_device() { return 0; }
inline int device_count() { return 1; }
inline bool is_available() { return true; }
inline cudaDeviceProp *getCurrentDeviceProperties() {
  static cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, 0);
  return &properties;
}
inline cudaDeviceProp *getDeviceProperties(int) { return getCurrentDeviceProperties(); }
struct CUDAGuard {
  template <class T>
  explicit CUDAGuard(const T &) {}
  void set_index(int) {}
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() = default;
  template <class T>
  explicit OptionalCUDAGuard(const T &) {}
};
}  // namespace cuda

inline c10::Device device_of(const Tensor &tensor) { return tensor.device(); }

// In what a sum of such values is kept (ATen/AccumulateType.h).
template <class T, bool CUDA>
struct AccumulateType {
  typedef typename std::conditional<
      std::is_integral<T>::value, int64_t,
      typename std::conditional<std::is_same<T, double>::value || (std::is_same<T, float>::value && !CUDA), double,
                                float>::type>::type type;
};
template <bool CUDA>
struct AccumulateType<bool, CUDA> {
  typedef bool type;
};
template <class T, bool CUDA>
using acc_type = typename AccumulateType<T, CUDA>::type;

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
typedef at::ScalarType Dtype;
inline TensorOptions dtype(ScalarType type) { return TensorOptions(type); }
inline TensorOptions dtype(TypeMeta type) { return TensorOptions(type); }
inline TensorOptions device(Device place) { return TensorOptions(place); }
inline TensorOptions device(DeviceType place) { return TensorOptions(place); }
inline TensorOptions layout(Layout layout) { return TensorOptions(layout); }
inline TensorOptions requires_grad(bool wanted = true) { return TensorOptions().requires_grad(wanted); }
template <class F>
F wrap_pybind_function(F function) {
  return function;
}
struct NoGradGuard {
  NoGradGuard() {}
};
template <class T>
using optional = std::optional<T>;
namespace cuda {
using namespace at::cuda;
inline void synchronize(int = -1) { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
}  // namespace cuda
}  // namespace torch
namespace c10 {
template <class T>
using optional = std::optional<T>;
using std::nullopt;
}  // namespace c10

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
#define AT_DISPATCH_FLOATING_TYPES_AND2(ONE, OTHER, TYPE, NAME, ...)              \
  EMULATOR_SWITCH(TYPE, NAME,                                                     \
                  EMULATOR_FLOATS(__VA_ARGS__) EMULATOR_CASE_OF(ONE, __VA_ARGS__) \
                      EMULATOR_CASE_OF(OTHER, __VA_ARGS__))
#define EMULATOR_CASE_OF(TYPE, ...)                                           \
  case TYPE: {                                                                \
    using scalar_t [[maybe_unused]] = ::c10::ScalarTypeToCppType<TYPE>::type; \
    return __VA_ARGS__();                                                     \
  }
#define AT_DISPATCH_SWITCH(TYPE, NAME, ...) EMULATOR_SWITCH(TYPE, NAME, __VA_ARGS__)
#define AT_DISPATCH_CASE(TYPE, ...) EMULATOR_CASE_OF(TYPE, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) EMULATOR_FLOATS(__VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...) EMULATOR_INTEGERS(__VA_ARGS__)
#define AT_DISPATCH_CASE_ALL_TYPES(...) EMULATOR_FLOATS(__VA_ARGS__) EMULATOR_INTEGERS(__VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND(ONE, TYPE, NAME, ...) \
  EMULATOR_SWITCH(TYPE, NAME, EMULATOR_FLOATS(__VA_ARGS__) EMULATOR_CASE_OF(ONE, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(TYPE, NAME, ...) EMULATOR_SWITCH(TYPE, NAME, EMULATOR_HALVES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(TYPE, NAME, ...) EMULATOR_SWITCH(TYPE, NAME, EMULATOR_INTEGERS(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(TYPE, NAME, ...) EMULATOR_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(ONE, TYPE, NAME, ...) \
  EMULATOR_SWITCH(TYPE, NAME, AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) EMULATOR_CASE_OF(ONE, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(ONE, OTHER, TYPE, NAME, ...)                              \
  EMULATOR_SWITCH(TYPE, NAME,                                                                \
                  AT_DISPATCH_CASE_ALL_TYPES(__VA_ARGS__) EMULATOR_CASE_OF(ONE, __VA_ARGS__) \
                      EMULATOR_CASE_OF(OTHER, __VA_ARGS__))

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
  static void put(Writer &to, const Tensor &made) {
    const Tensor value = made.is_cpu() ? made.contiguous() : made;
    to.kept.push_back(value);
    to.put(value.is_cpu() ? 'C' : 'T');  // C: its bytes are at the end
    to.put(reinterpret_cast<uint64_t>(value.data_ptr()));
    to.put(int32_t(value.scalar_type()));
    to.put(uint32_t(value.dim()));
    for (int64_t size : value.sizes()) to.put(size);
    for (int64_t stride : value.strides()) to.put(stride);
    if (value.is_cpu()) to.data.append(static_cast<const char *>(value.data_ptr()), value.nbytes());
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
bool enter(const std::string &name, R (*function)(A...)) {
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
  // TORCH_LIBRARY's names may be schemas, "twice(Tensor x) -> Tensor", whose functions another line may give.
  Module &def(const char *) { return *this; }
  template <class F, class... More>
  Module &def(const std::string &name, F function, const More &...) {
    return enter(name.substr(0, name.find('(')), +function), *this;  // +: a lambda becomes a function
  }
  template <class F>
  Module &impl(const char *name, F function) {
    return def(name, function);
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
  arg &none(bool = true) { return *this; }
  arg &noconvert(bool = true) { return *this; }
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
#define EMULATOR_MODULE(NAME, MODULE)                                     \
  static void emulator_define_##NAME(emulator_extension::Module &MODULE); \
  static const bool emulator_defined_##NAME = [] {                        \
    emulator_extension::Module made;                                      \
    emulator_define_##NAME(made);                                         \
    return true;                                                          \
  }();                                                                    \
  static void emulator_define_##NAME(emulator_extension::Module &MODULE)
#define PYBIND11_MODULE(NAME, MODULE) EMULATOR_MODULE(module, MODULE)
#define EMULATOR_LIBRARY(NAME, KEY, MODULE) EMULATOR_MODULE(NAME##_##KEY, MODULE)
#define TORCH_LIBRARY(NAME, MODULE) EMULATOR_LIBRARY(NAME, definitions, MODULE)
#define TORCH_LIBRARY_FRAGMENT(NAME, MODULE) EMULATOR_LIBRARY(NAME, fragment, MODULE)
#define TORCH_LIBRARY_IMPL(NAME, KEY, MODULE) EMULATOR_LIBRARY(NAME, KEY, MODULE)
#define TORCH_FN(FUNCTION) (&FUNCTION)
#define EMULATOR_FUNCTION(FUNCTION) \
  static const bool emulator_entered_##FUNCTION = emulator_extension::enter(#FUNCTION, &FUNCTION);

#ifndef __CUDA_ARCH__
// Weak, since each of a program's files may have them.
// Kind and type of each parameter of a function, as text with a line for each; null if there is no such function.
extern "C" __attribute__((weak)) const char *emulator_extension_parameters(const char *name) {
  static std::string text;
  const auto found = emulator_extension::functions().find(name);
  if (found == emulator_extension::functions().end()) return nullptr;
  text.clear();
  for (const auto &parameter : found->second.parameters)
    text += std::string(parameter.kind) + " " + parameter.name + "\n";
  return text.c_str();
}
// Call it; `done` gets the result while its tensors live, or why there is none.
extern "C" __attribute__((weak)) void emulator_extension_call(
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
