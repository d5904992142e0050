// What the programs of this folder share: calls that must succeed, numbers that look random, arrays that must agree.
#pragma once
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CUDA(call)                                                                \
  do {                                                                            \
    if (const cudaError_t error = (call)) {                                       \
      std::printf("line %d: %s: %s\n", __LINE__, cudaGetErrorName(error), #call); \
      std::exit(1);                                                               \
    }                                                                             \
  } while (0)

#define MUST(condition)                                                                         \
  do {                                                                                          \
    if (!(condition)) std::printf("line %d: not so: %s\n", __LINE__, #condition), std::exit(1); \
  } while (0)

// Numbers that look random, the same in every run.
struct Random {
  unsigned state = 12345;
  unsigned next() { return state = state * 1664525u + 1013904223u, state >> 8; }
  int below(int n) { return next() % n; }
  float unit() { return next() / 16777216.0f; }
};

// An array of the device, with the contents of a vector or unwritten; `host()` copies it back.
template <typename T>
struct Array {
  T *data = nullptr;
  size_t size;
  explicit Array(size_t size) : size(size) { CUDA(cudaMalloc(&data, size * sizeof(T))); }
  Array(const std::vector<T> &from) : Array(from.size()) {
    CUDA(cudaMemcpy(data, from.data(), size * sizeof(T), cudaMemcpyHostToDevice));
  }
  Array(const Array &) = delete;
  ~Array() { cudaFree(data); }
  operator T *() const { return data; }
  std::vector<T> host() const {
    std::vector<T> to(size);
    CUDA(cudaMemcpy(to.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }
};

// The largest difference, in proportion to the larger of 1 and what is expected; infinite if anything is no number.
template <typename T>
double difference(const std::vector<T> &got, const std::vector<T> &expected) {
  double most = got.size() == expected.size() ? 0 : INFINITY;
  for (size_t i = 0; i < got.size() && most < INFINITY; ++i) {
    const double each = std::fabs(double(got[i]) - double(expected[i])) / std::fmax(1, std::fabs(double(expected[i])));
    most = each <= most ? most : each == each ? each : INFINITY;
  }
  return most;
}
