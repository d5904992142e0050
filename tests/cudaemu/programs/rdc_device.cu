// The other file of rdc_main.cu.
#include "rdc_shared.h"

__device__ int counter = 0;
__constant__ int scale = 1;
static __device__ int offset = 100;  // each file has its own

__device__ int polynomial(int x) { return x * here(x - 7) + offset; }

static __device__ int square(int x) { return x * x; }
static __device__ int negative(int x) { return -x; }
__device__ Operation operations[2] = {square, negative};

__device__ int Twice::of(int x) const { return 2 * x; }
__device__ int Thrice::of(int x) const { return 3 * x; }

namespace {
struct Square : Shape {
  __device__ int of(int x) const override { return x * x; }
};
}  // namespace
__device__ Shape *make_square() { return new Square; }
__device__ void free_shape(const Shape *shape) { delete shape; }
