// What rdc_main.cu and rdc_device.cu share.
#pragma once
typedef int (*Operation)(int);
extern __device__ int counter;
extern __constant__ int scale;
extern __device__ Operation operations[2];
__device__ int polynomial(int x);
__device__ int here(int x);  // of rdc_main.cu

struct Shape {
  __device__ virtual int of(int x) const = 0;
  __device__ virtual ~Shape() {}
};
struct Twice : Shape { __device__ int of(int x) const override; };
struct Thrice : Shape { __device__ int of(int x) const override; };
__device__ Shape *make_square();
__device__ void free_shape(const Shape *);
