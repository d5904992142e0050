// Functions of the math library in double precision, each within a few units of the last place of the host's.
// Run: cudaemu math_double.cu
// Prints: 38 functions of doubles agree
#include "check.h"

// clang-format off
#define FUNCTIONS(F)                                                                                          \
  F(sin(x)) F(cos(x)) F(tan(x)) F(asin(x / 12)) F(acos(x / 12)) F(atan(x)) F(atan2(x, 3.0)) F(sinh(x))        \
  F(cosh(x)) F(tanh(x)) F(asinh(x)) F(acosh(1 + x * x)) F(atanh(x / 12)) F(exp(x)) F(exp2(x)) F(expm1(x))     \
  F(log(1 + x * x)) F(log2(1 + x * x)) F(log10(1 + x * x)) F(log1p(x *x)) F(pow(fabs(x), 1.7)) F(cbrt(x))     \
  F(sqrt(fabs(x))) F(hypot(x, 4.0)) F(erf(x)) F(erfc(x / 4)) F(tgamma(x / 2 + 7)) F(lgamma(x *x + 0.5))       \
  F(fmod(x, 0.7)) F(remainder(x, 0.7)) F(floor(x) + ceil(x) + trunc(x) + rint(x) + round(x)) F(fma(x, x, -x)) \
  F(ldexp(x, 5)) F(logb(x + 20)) F(nextafter(x, 100.0)) F(copysign(3.0, x)) F(fdim(x, 1.0)) F(j0(x))
// clang-format on

#define ONE(expression) out[at++ * n + i] = expression;
__global__ void device(const double *in, double *out, int n) {
  const int i = threadIdx.x;
  const double x = in[i];
  int at = 0;
  FUNCTIONS(ONE)
}

void host(const double *in, double *out, int n) {
  for (int i = 0; i < n; ++i) {
    const double x = in[i];
    int at = 0;
    FUNCTIONS(ONE)
  }
}

__global__ void only_the_device_has(double *out) {
  const double x = threadIdx.x / 64.0;
  out[threadIdx.x] =
      fabs(sinpi(x) - sin(M_PI * x)) + fabs(cospi(x) - cos(M_PI * x)) + fabs(rsqrt(x + 1) * sqrt(x + 1) - 1) +
      fabs(erfinv(erf(x)) - x) + fabs(erfcinv(erfc(x)) - x) + fabs(normcdfinv(normcdf(x)) - x) +
      fabs(erfcx(x) - exp(x * x) * erfc(x)) + fabs(norm3d(x, 1, 2) - sqrt(x * x + 5)) +
      fabs(rcbrt(x + 1) * cbrt(x + 1) - 1) + fabs(rhypot(x, 1.0) * hypot(x, 1.0) - 1) +
      fabs(exp10(x) / pow(10.0, x) - 1) +
      fabs(cyl_bessel_i0(x) - 1 -
           x * x / 4 * (1 + x * x / 16 * (1 + x * x / 36 * (1 + x * x / 64 * (1 + x * x / 100)))));
}

int main() {
  const int n = 128, functions = 38;
  std::vector<double> in(n), expected(functions * n);
  Random random;
  for (double &x : in) x = random.unit() * 20 - 10;
  host(in.data(), expected.data(), n);
  Array<double> inputs(in), out(functions * n), errors(64);
  device<<<1, n>>>(inputs, out, n);
  const auto got = out.host();
  for (int f = 0; f < functions; ++f)
    for (int i = 0; i < n; ++i) {
      const double right = expected[f * n + i], off = std::fabs(got[f * n + i] - right);
      if (!(off <= 4e-15 * std::fmax(std::fabs(right), 0.1)))
        return std::printf("function %d of %.17g: %.17g, not %.17g\n", f, in[i], got[f * n + i], right), 1;
    }
  only_the_device_has<<<1, 64>>>(errors);
  for (double error : errors.host()) MUST(error < 1e-9);
  std::printf("%d functions of doubles agree\n", functions);
}
