// C++ of these days in kernels: extended lambdas with captures, generic ones, pointers to them, folds, deduction, if
// constexpr, concepts, structured bindings, bit fields, unions, placement new and pointers to members.
// Run: cudaemu "--flags=-std=c++20 --extended-lambda --expt-relaxed-constexpr" lambdas_and_templates.cu
// Prints: 10 features of C++ agree
#include <array>
#include <concepts>
#include <new>
#include <tuple>

#include "check.h"

template <typename T>
concept Number = std::integral<T> || std::floating_point<T>;

template <Number... T>
__host__ __device__ auto sum_of(T... each) {
  return (each + ... + 0);
}
template <typename T>
struct Holder {
  T value;
  __host__ __device__ explicit Holder(T v) : value(v) {}
  template <int N>
  __host__ __device__ auto times() const {
    if constexpr (N == 0)
      return 0;
    else
      return value + times<N - 1>();
  }
};
struct Packed {
  unsigned low : 5, middle : 11;
  int high : 16;
};
union Bits {
  float real;
  unsigned word;
};
struct Base {
  int a = 1;
  __host__ __device__ int first(int x) const { return a + x; }
  __host__ __device__ int second(int x) const { return a * x; }
};
struct Derived : Base, private Holder<int> {
  __host__ __device__ Derived(int x) : Base{x}, Holder<int>(2 * x) {}
  __host__ __device__ int both() const { return a + value; }
};
__host__ __device__ constexpr std::array<int, 16> make_squares() {
  std::array<int, 16> out{};
  for (int i = 0; i < 16; ++i) out[i] = i * i;
  return out;
}

__host__ __device__ int features(int i) {
  auto [quotient, remainder] = std::pair{i / 7, i % 7};
  int total = quotient * 100 + remainder + int(sum_of(i, 2.5, 'a', 3ull)) + Holder(i).times<4>();
  Packed p{unsigned(i), unsigned(i * 31), -i};
  p.middle += 5, p.high ^= 0x55;
  Bits bits{.real = float(i)};
  total += int(p.low + p.middle) + p.high + int(bits.word >> 20);
  int (Base::*const members[])(int) const = {&Base::first, &Base::second};
  const Derived derived(i);
  total += (derived.*members[i % 2])(5) + derived.both();
  alignas(Derived) unsigned char room[sizeof(Derived)];
  auto *made = new (room) Derived(i + 1);
  total += made->both();
  made->~Derived();
  const auto generic = [=](auto x) { return x * i; };
  constexpr std::array<int, 16> squares = make_squares();
  total += generic(2) + int(generic(0.5)) + squares[i % 16];
  return total + std::get<1>(std::tuple{1, i, 'c'}) + (i + 1) % 36;
}

struct Counted { int by; };

template <typename F>
__global__ void for_each(int n, F f) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) f(i);
}

__global__ void stored(int *out) {
  const int i = threadIdx.x;
  int (*f)(int, int) = [](int x, int y) { return x + y; };
  if (i % 3 == 1) f = [](int x, int y) { return x * y; };
  if (i % 3 == 2) f = nullptr;
  out[i] = f ? f(10, i) : -1;
}

int main() {
  const int n = 100;
  Array<int> out(n);
  int *const to = out, *const base = nullptr;
  for_each<<<2, 32>>>(n, [=] __device__(int i) { to[i] = features(i) + int(base - base); });
  auto got = out.host();
  for (int i = 0; i < n; ++i) MUST(got[i] == features(i));
  Counted captured{3};
  for_each<<<1, 64>>>(n, [captured, to] __host__ __device__(int i) mutable { to[i] += captured.by++; });
  const auto again = out.host();
  for (int i = 0; i < n; ++i) MUST(again[i] == got[i] + 3 + i / 64);
  stored<<<1, 64>>>(out);
  got = out.host();
  for (int i = 0; i < 64; ++i) MUST(got[i] == (i % 3 == 0 ? 10 + i : i % 3 == 1 ? 10 * i : -1));
  std::printf("10 features of C++ agree\n");
}
