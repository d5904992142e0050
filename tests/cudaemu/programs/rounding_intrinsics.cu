// Arithmetic with its rounding in the name: each sum, product, quotient, root and conversion as the host's fesetround.
// Run: cudaemu rounding_intrinsics.cu
// Prints: 4 roundings of 18 operations agree
#include <cfenv>

#include "check.h"

template <typename T>
struct Modes {
  T n, z, u, d;
};

#define EACH(T, op, ...) \
  Modes<T> { op##_rn(__VA_ARGS__), op##_rz(__VA_ARGS__), op##_ru(__VA_ARGS__), op##_rd(__VA_ARGS__) }

__global__ void device(const double *in, Modes<float> *f, Modes<double> *d, Modes<long long> *l, int n) {
  const int i = threadIdx.x;
  const double x = in[2 * i], y = in[2 * i + 1];
  const float a = float(x), b = float(y);
  f[0 * n + i] = EACH(float, __fadd, a, b);
  f[1 * n + i] = EACH(float, __fmul, a, b);
  f[2 * n + i] = EACH(float, __fdiv, a, b);
  f[3 * n + i] = EACH(float, __fsqrt, fabsf(a));
  f[4 * n + i] = EACH(float, __frcp, b);
  f[5 * n + i] = EACH(float, __fmaf, a, b, a);
  f[6 * n + i] = EACH(float, __double2float, x);
  f[7 * n + i] = EACH(float, __ll2float, (long long)(x * 1e12));
  d[0 * n + i] = EACH(double, __dadd, x, y);
  d[1 * n + i] = EACH(double, __dmul, x, y);
  d[2 * n + i] = EACH(double, __ddiv, x, y);
  d[3 * n + i] = EACH(double, __dsqrt, fabs(x));
  d[4 * n + i] = EACH(double, __drcp, y);
  d[5 * n + i] = EACH(double, __fma, x, y, x);
  d[6 * n + i] = EACH(double, __ll2double, (long long)(x * 1e15));
  l[0 * n + i] = EACH(long long, __float2ll, a);
  l[1 * n + i] = EACH(long long, __double2ll, x);
  l[2 * n + i] = EACH(long long, __double2int, y);
}

// The same, in the rounding that is set: volatile, so that nothing is computed before.
template <typename T, typename Op>
Modes<T> host(Op op) {
  Modes<T> result;
  const int modes[4] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};
  T *const to[4] = {&result.n, &result.z, &result.u, &result.d};
  for (int m = 0; m < 4; ++m) std::fesetround(modes[m]), *to[m] = op(), std::fesetround(FE_TONEAREST);
  return result;
}

template <typename T>
bool same(Modes<T> a, Modes<T> b) {
  return a.n == b.n && a.z == b.z && a.u == b.u && a.d == b.d;
}

int main() {
  const int n = 128;
  std::vector<double> in(2 * n);
  Random random;
  for (double &x : in) x = (random.unit() + random.next() * 1e-15 - 0.5) * 200;
  Array<double> inputs(in);
  Array<Modes<float>> floats(8 * n);
  Array<Modes<double>> doubles(7 * n);
  Array<Modes<long long>> integers(3 * n);
  device<<<1, n>>>(inputs, floats, doubles, integers, n);
  const auto f = floats.host();
  const auto d = doubles.host();
  const auto l = integers.host();
  for (int i = 0; i < n; ++i) {
    volatile double x = in[2 * i], y = in[2 * i + 1];
    volatile float a = float(x), b = float(y), positive = std::fabs(a);
    volatile long long big = (long long)(x * 1e12), bigger = (long long)(x * 1e15);
    MUST(same(f[0 * n + i], host<float>([&] { return a + b; })));
    MUST(same(f[1 * n + i], host<float>([&] { return a * b; })));
    MUST(same(f[2 * n + i], host<float>([&] { return a / b; })));
    MUST(same(f[3 * n + i], host<float>([&] { return std::sqrt(positive); })));
    MUST(same(f[4 * n + i], host<float>([&] { return 1 / b; })));
    MUST(same(f[5 * n + i], host<float>([&] { return std::fma(a, b, a); })));
    MUST(same(f[6 * n + i], host<float>([&] { return float(x); })));
    MUST(same(f[7 * n + i], host<float>([&] { return float(big); })));
    MUST(same(d[0 * n + i], host<double>([&] { return x + y; })));
    MUST(same(d[1 * n + i], host<double>([&] { return x * y; })));
    MUST(same(d[2 * n + i], host<double>([&] { return x / y; })));
    MUST(same(d[3 * n + i], host<double>([&] { return std::sqrt(std::fabs(x)); })));
    MUST(same(d[4 * n + i], host<double>([&] { return 1 / y; })));
    MUST(same(d[5 * n + i], host<double>([&] { return std::fma(x, y, x); })));
    MUST(same(d[6 * n + i], host<double>([&] { return double(bigger); })));
    MUST(same(l[0 * n + i], host<long long>([&] { return std::llrint(a); })));
    MUST(same(l[1 * n + i], host<long long>([&] { return std::llrint(x); })));
    MUST(same(l[2 * n + i], host<long long>([&] { return std::llrint(y); })));
  }
  std::printf("4 roundings of 18 operations agree\n");
}
