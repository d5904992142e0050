// Products by mma.sync with ldmatrix, written in PTX: fp16, bf16, TF32, bytes and doubles, one warp, against the host.
// Run: cudaemu tensor_core_fragments.cu
// Prints: mma of 5 types agrees
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "check.h"

__device__ unsigned shared_address(const void *p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

template <typename T>
__global__ void halves(const T *a, const T *b, float *c) {  // 16 x 16 times 16 x 8, by rows and by rows
  __shared__ alignas(16) T left[16][16], right[16][8];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) left[i / 16][i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) right[i / 8][i % 8] = b[i];
  __syncwarp();
  unsigned x[4], y[2];
  float d[4] = {};
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(&left[lane % 16][lane / 16 * 8])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(y[0]), "=r"(y[1])
               : "r"(shared_address(&right[lane % 16][0])));
  if constexpr (sizeof(T) == 2 && std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int i = 0; i < 4; ++i) c[(lane / 4 + 8 * (i / 2)) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

__global__ void others(const float *a, const float *b, float *c, const char *p, const char *q, int *r, const double *u,
                       const double *v, double *w) {  // 16x8 by 8x8; 16x32 by 32x8, the second by columns; 8x4 by 4x8
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  float d[4] = {};
  unsigned x[4], y[2];
  for (int i = 0; i < 4; ++i)
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x[i]) : "f"(a[(g + 8 * (i % 2)) * 8 + t + 4 * (i / 2)]));
  for (int i = 0; i < 2; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y[i]) : "f"(b[(t + 4 * i) * 8 + g]));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 8 + t * 2 + i % 2] = d[i];
  int e[4] = {};
  for (int i = 0; i < 4; ++i)
    x[i] = *reinterpret_cast<const unsigned *>(p + (g + 8 * (i % 2)) * 32 + t * 4 + 16 * (i / 2));
  for (int i = 0; i < 2; ++i) y[i] = *reinterpret_cast<const unsigned *>(q + g * 32 + t * 4 + 16 * i);
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int i = 0; i < 4; ++i) r[(g + 8 * (i / 2)) * 8 + t * 2 + i % 2] = e[i];
  double f[2] = {};
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+d"(f[0]), "+d"(f[1])
      : "d"(u[g * 4 + t]), "d"(v[t * 8 + g]));
  for (int i = 0; i < 2; ++i) w[g * 8 + t * 2 + i] = f[i];
}

// Small integers, so that every sum is exact. B by columns: element (k, n) at n * K + k.
template <typename A, typename C>
void check(const std::vector<A> &a, const std::vector<A> &b, const std::vector<C> &c, int m, int k,
           bool columns = false) {
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < 8; ++j) {
      double sum = 0;
      for (int x = 0; x < k; ++x)
        sum += double(float(a[i * k + x])) * double(float(b[columns ? j * k + x : x * 8 + j]));
      MUST(double(c[i * 8 + j]) == sum);
    }
}
template <typename T>
std::vector<T> some(int n) {
  static Random random;
  std::vector<T> out(n);
  for (T &x : out) x = T(float(random.below(15) - 7));
  return out;
}
template <typename T>
void check_halves() {
  const auto a = some<T>(256), b = some<T>(128);
  Array<T> left(a), right(b);
  Array<float> out(128);
  halves<T><<<1, 32>>>(left, right, out);
  check(a, b, out.host(), 16, 16);
}

int main() {
  check_halves<__half>();
  check_halves<__nv_bfloat16>();
  const auto a = some<float>(128), b = some<float>(64);
  const auto p = some<char>(512), q = some<char>(256);
  const auto u = some<double>(32), v = some<double>(32);
  Array<float> aa(a), bb(b), c(128);
  Array<char> pp(p), qq(q);
  Array<int> r(128);
  Array<double> uu(u), vv(v), w(64);
  others<<<1, 32>>>(aa, bb, c, pp, qq, r, uu, vv, w);
  check(a, b, c.host(), 16, 8), check(p, q, r.host(), 16, 32, true), check(u, v, w.host(), 8, 4);
  std::printf("mma of 5 types agrees\n");
}
