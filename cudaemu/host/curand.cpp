// A stand-in for cuRAND's host interface: linked, beside the stand-in runtime, to programs that call it. randoms.py makes
// the numbers. What kernels include, curand_kernel.h, is code of its own and needs nothing of this.

#include <curand.h>

#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "library.h"

using emulator::Operand;

struct curandGenerator_st {
  curandRngType_t type;
  bool on_host;
  uint64_t number = 0;  // of this state: none has had it before
  uint64_t seed = 0, offset = 0;
  int order = CURAND_ORDERING_PSEUDO_DEFAULT;
  unsigned dimensions = 1;
  cudaStream_t stream = nullptr;
  bool quasi() const { return type >= CURAND_RNG_QUASI_DEFAULT; }
};

namespace {

std::mutex guard;
auto &generators() {
  static auto &all = *new std::set<curandGenerator_t>;
  return all;
}
uint64_t states = 0;
constexpr unsigned DIMENSIONS = 32;  // of Sobol's numbers, as randoms.py has them

curandStatus_t refuse(const char *call, curandStatus_t status, const std::string &why) {
  return emulator::refuse(call, status, why), status;
}

#define CALL(NAME)                                                                                          \
  constexpr const char *call = NAME;                                                                        \
  emulator::called(call);                                                                                   \
  {                                                                                                         \
    std::lock_guard lock(guard);                                                                            \
    if (!generators().count(generator))                                                                     \
      return refuse(call, CURAND_STATUS_NOT_INITIALIZED, "the generator was not created, or is destroyed"); \
  }

curandStatus_t create(const char *call, curandGenerator_t *generator, curandRngType_t type, bool on_host) {
  emulator::called(call);
  if (type == CURAND_RNG_PSEUDO_DEFAULT) type = CURAND_RNG_PSEUDO_XORWOW;
  if (type == CURAND_RNG_QUASI_DEFAULT) type = CURAND_RNG_QUASI_SOBOL32;
  switch (type) {
    case CURAND_RNG_PSEUDO_XORWOW:
    case CURAND_RNG_PSEUDO_MRG32K3A:
    case CURAND_RNG_PSEUDO_MTGP32:
    case CURAND_RNG_PSEUDO_MT19937:
    case CURAND_RNG_PSEUDO_PHILOX4_32_10:
    case CURAND_RNG_QUASI_SOBOL32:
      break;
    case CURAND_RNG_QUASI_SCRAMBLED_SOBOL32:
    case CURAND_RNG_QUASI_SOBOL64:
    case CURAND_RNG_QUASI_SCRAMBLED_SOBOL64:
      return refuse(call, CURAND_STATUS_TYPE_ERROR,
                    "the emulator has Sobol's numbers of 32 bits without scrambling only");
    default:
      return refuse(call, CURAND_STATUS_TYPE_ERROR, "there is no generator " + std::to_string(int(type)));
  }
  if (emulator::broken()) return CURAND_STATUS_INITIALIZATION_FAILED;
  std::lock_guard lock(guard);
  *generator = new curandGenerator_st{type, on_host};
  (*generator)->number = ++states;
  if ((*generator)->quasi()) (*generator)->order = CURAND_ORDERING_QUASI_DEFAULT;
  generators().insert(*generator);
  return CURAND_STATUS_SUCCESS;
}

void restart(curandGenerator_t generator) {
  std::lock_guard lock(guard);
  generator->number = ++states;
}

enum Distribution { BITS, UNIFORM, UNIFORM_DOUBLE, NORMAL, NORMAL_DOUBLE, POISSON };  // of randoms.py

int64_t bits_of(double value) {
  int64_t bits;
  return memcpy(&bits, &value, sizeof bits), bits;
}

curandStatus_t generate(const char *call, curandGenerator_t generator, void *out, uint32_t type, size_t n,
                        Distribution distribution, double mean = 0, double deviation = 1, bool exponential = false) {
  if (emulator::broken()) return CURAND_STATUS_PREEXISTING_FAILURE;
  const curandGenerator_st &g = *generator;
  if (g.quasi() && n % g.dimensions)
    return refuse(
        call, CURAND_STATUS_LENGTH_NOT_MULTIPLE,
        std::to_string(n) + " numbers are no multiple of the " + std::to_string(g.dimensions) + " dimensions");
  const bool pairs = distribution == NORMAL || distribution == NORMAL_DOUBLE;
  if (pairs && n % 2 && !g.quasi() && g.type != CURAND_RNG_PSEUDO_PHILOX4_32_10)
    return refuse(call, CURAND_STATUS_LENGTH_NOT_MULTIPLE,
                  "normal numbers come in pairs: their number must be even, got " + std::to_string(n));
  if (!n) return CURAND_STATUS_SUCCESS;
  const uint32_t where = g.on_host ? uint32_t(Operand::ON_HOST) : 0;
  const Operand operand{"outputPtr", out, type, Operand::WRITES | where, int64_t(n)};
  const cudaError_t error = emulator::compute(
      call, "random", g.stream, {operand},
      {int64_t(g.number), g.type, int64_t(g.seed), int64_t(g.offset), g.order, g.dimensions, distribution,
       bits_of(mean), bits_of(deviation), exponential},
      g.on_host);
  return error ? CURAND_STATUS_LAUNCH_FAILURE : CURAND_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

curandStatus_t curandCreateGenerator(curandGenerator_t *generator, curandRngType_t type) {
  return create("curandCreateGenerator", generator, type, false);
}
curandStatus_t curandCreateGeneratorHost(curandGenerator_t *generator, curandRngType_t type) {
  return create("curandCreateGeneratorHost", generator, type, true);
}
curandStatus_t curandDestroyGenerator(curandGenerator_t generator) {
  CALL("curandDestroyGenerator");
  std::lock_guard lock(guard);
  generators().erase(generator);
  return delete generator, CURAND_STATUS_SUCCESS;
}
curandStatus_t curandGetVersion(int *version) {
  emulator::called("curandGetVersion");
  return *version = CURAND_VERSION, CURAND_STATUS_SUCCESS;
}
curandStatus_t curandGetProperty(libraryPropertyType type, int *value) {
  emulator::called("curandGetProperty");
  const int parts[] = {CURAND_VER_MAJOR, CURAND_VER_MINOR, CURAND_VER_PATCH};
  if (type > PATCH_LEVEL) return CURAND_STATUS_OUT_OF_RANGE;
  return *value = parts[type], CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream) {
  CALL("curandSetStream");
  return generator->stream = stream, CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator, unsigned long long seed) {
  CALL("curandSetPseudoRandomGeneratorSeed");
  if (generator->quasi()) return refuse(call, CURAND_STATUS_TYPE_ERROR, "a quasirandom generator has no seed");
  generator->seed = seed;
  return restart(generator), CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator, unsigned long long offset) {
  CALL("curandSetGeneratorOffset");
  if (generator->type == CURAND_RNG_PSEUDO_MTGP32 || generator->type == CURAND_RNG_PSEUDO_MT19937)
    return refuse(call, CURAND_STATUS_TYPE_ERROR, "a Mersenne twister has no offset");
  generator->offset = offset;
  return restart(generator), CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetGeneratorOrdering(curandGenerator_t generator, curandOrdering_t order) {
  CALL("curandSetGeneratorOrdering");
  const bool known =
      generator->quasi()
          ? order == CURAND_ORDERING_QUASI_DEFAULT
          : order == CURAND_ORDERING_PSEUDO_BEST || order == CURAND_ORDERING_PSEUDO_DEFAULT ||
                order == CURAND_ORDERING_PSEUDO_LEGACY;
  if (!known)
    return refuse(call, CURAND_STATUS_OUT_OF_RANGE, "the emulator has the best, the default and the legacy order only");
  generator->order = order;
  return restart(generator), CURAND_STATUS_SUCCESS;
}
curandStatus_t curandSetQuasiRandomGeneratorDimensions(curandGenerator_t generator, unsigned int dimensions) {
  CALL("curandSetQuasiRandomGeneratorDimensions");
  if (!generator->quasi()) return refuse(call, CURAND_STATUS_TYPE_ERROR, "it is no quasirandom generator");
  if (dimensions < 1 || dimensions > DIMENSIONS)
    return refuse(
        call, CURAND_STATUS_OUT_OF_RANGE,
        "the emulator has 1 to " + std::to_string(DIMENSIONS) + " dimensions, got " + std::to_string(dimensions));
  generator->dimensions = dimensions;
  return restart(generator), CURAND_STATUS_SUCCESS;
}
curandStatus_t curandGenerateSeeds(curandGenerator_t generator) {
  CALL("curandGenerateSeeds");
  return CURAND_STATUS_SUCCESS;
}

curandStatus_t curandGenerate(curandGenerator_t generator, unsigned int *out, size_t n) {
  CALL("curandGenerate");
  return generate(call, generator, out, CUDA_R_32U, n, BITS);
}
curandStatus_t curandGenerateUniform(curandGenerator_t generator, float *out, size_t n) {
  CALL("curandGenerateUniform");
  return generate(call, generator, out, CUDA_R_32F, n, UNIFORM);
}
curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double *out, size_t n) {
  CALL("curandGenerateUniformDouble");
  return generate(call, generator, out, CUDA_R_64F, n, UNIFORM_DOUBLE);
}
curandStatus_t curandGenerateNormal(curandGenerator_t generator, float *out, size_t n, float mean, float stddev) {
  CALL("curandGenerateNormal");
  return generate(call, generator, out, CUDA_R_32F, n, NORMAL, mean, stddev);
}
curandStatus_t curandGenerateNormalDouble(
    curandGenerator_t generator, double *out, size_t n, double mean, double stddev) {
  CALL("curandGenerateNormalDouble");
  return generate(call, generator, out, CUDA_R_64F, n, NORMAL_DOUBLE, mean, stddev);
}
curandStatus_t curandGenerateLogNormal(curandGenerator_t generator, float *out, size_t n, float mean, float stddev) {
  CALL("curandGenerateLogNormal");
  return generate(call, generator, out, CUDA_R_32F, n, NORMAL, mean, stddev, true);
}
curandStatus_t curandGenerateLogNormalDouble(
    curandGenerator_t generator, double *out, size_t n, double mean, double stddev) {
  CALL("curandGenerateLogNormalDouble");
  return generate(call, generator, out, CUDA_R_64F, n, NORMAL_DOUBLE, mean, stddev, true);
}
curandStatus_t curandGeneratePoisson(curandGenerator_t generator, unsigned int *out, size_t n, double lambda) {
  CALL("curandGeneratePoisson");
  if (!(lambda > 0)) return refuse(call, CURAND_STATUS_OUT_OF_RANGE, "lambda must be above 0");
  return generate(call, generator, out, CUDA_R_32U, n, POISSON, lambda);
}

}  // extern "C"
