// Calls of cuBLAS for test_cublas.py: which, with what, is in a structure; matrices come from NumPy.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstring>
#include <vector>

enum What {
  GEMM_EX,
  GEMM,
  STRIDED,
  BATCHED,
  BATCHED_EX,
  MATMUL,
  AXPY,
  COPY,
  SWAP,
  SCAL,
  DOT,
  DOTC,
  NRM2,
  ASUM,
  IAMAX,
  IAMIN,
  ROT,
  GEMV,
  GER,
  GEAM,
  DGMM,
  SYRK,
  SYMM,
  TRSM,
  TRMM,
  TRANSFORM,
  DOT_EX
};

struct Call {
  int what, on_device, transa, transb, m, n, k, lda, ldb, ldc, batches, atype, btype, ctype, compute, scale;
  int side, uplo, diag, epilogue, orders, math;  // orders: a bit each for A, B, C that lies row by row
  long long stridea, strideb, stridec;
  double alpha[2], beta[2];
};

static char *to_device(const void *from, size_t bytes) {
  char *made;
  cudaMalloc(&made, bytes);
  cudaMemcpy(made, from, bytes, cudaMemcpyHostToDevice);
  return made;
}

// A scalar of the type, on the host or on the device.
struct Scalar {
  char value[16];
  void *device = nullptr;
  Scalar(int type, const double *from, bool on_device) {
    const float single[] = {float(from[0]), float(from[1])};
    const __half half = __float2half(single[0]);
    const int whole = int(from[0]);
    memcpy(value, from, 16);
    if (type == CUDA_R_32F || type == CUDA_C_32F) memcpy(value, single, 8);
    if (type == CUDA_R_16F) memcpy(value, &half, 2);
    if (type == CUDA_R_32I) memcpy(value, &whole, 4);
    if (on_device) device = to_device(value, 16);
  }
  const void *at() const { return device ? device : value; }
};

template <class T>
struct Of;
#define OF(TYPE, X, R, N, I)                                       \
  template <>                                                      \
  struct Of<TYPE> {                                                \
    typedef R Real;                                                \
    static constexpr auto axpy = cublas##X##axpy;                  \
    static constexpr auto copy = cublas##X##copy;                  \
    static constexpr auto swap = cublas##X##swap;                  \
    static constexpr auto scal = cublas##X##scal;                  \
    static constexpr auto gemv = cublas##X##gemv;                  \
    static constexpr auto gemm = cublas##X##gemm;                  \
    static constexpr auto geam = cublas##X##geam;                  \
    static constexpr auto dgmm = cublas##X##dgmm;                  \
    static constexpr auto syrk = cublas##X##syrk;                  \
    static constexpr auto symm = cublas##X##symm;                  \
    static constexpr auto trsm = cublas##X##trsm;                  \
    static constexpr auto trmm = cublas##X##trmm;                  \
    static constexpr auto strided = cublas##X##gemmStridedBatched; \
    static constexpr auto batched = cublas##X##gemmBatched;        \
    static constexpr auto nrm2 = cublas##N##nrm2;                  \
    static constexpr auto asum = cublas##N##asum;                  \
    static constexpr auto iamax = cublasI##I##amax;                \
    static constexpr auto iamin = cublasI##I##amin;                \
  };
OF(float, S, float, S, s)
OF(double, D, double, D, d)
OF(cuComplex, C, float, Sc, c)
OF(cuDoubleComplex, Z, double, Dz, z)
template <class T>
struct Dot;
template <>
struct Dot<float> {
  static constexpr auto u = cublasSdot, c = cublasSdot;
  static constexpr auto ger = cublasSger;
};
template <>
struct Dot<double> {
  static constexpr auto u = cublasDdot, c = cublasDdot;
  static constexpr auto ger = cublasDger;
};
template <>
struct Dot<cuComplex> {
  static constexpr auto u = cublasCdotu, c = cublasCdotc;
  static constexpr auto ger = cublasCgerc;
};
template <>
struct Dot<cuDoubleComplex> {
  static constexpr auto u = cublasZdotu, c = cublasZdotc;
  static constexpr auto ger = cublasZgerc;
};

template <class T>
int typed(cublasHandle_t h, const Call &c, T *A, T *B, T *C, T *out, const T *alpha, const T *beta) {
  const auto ta = cublasOperation_t(c.transa), tb = cublasOperation_t(c.transb);
  const auto side = cublasSideMode_t(c.side);
  const auto uplo = cublasFillMode_t(c.uplo);
  const auto diag = cublasDiagType_t(c.diag);
  typedef typename Of<T>::Real R;
  std::vector<T *> a, b, d;
  switch (c.what) {
    case GEMM:
      return Of<T>::gemm(h, ta, tb, c.m, c.n, c.k, alpha, A, c.lda, B, c.ldb, beta, C, c.ldc);
    case STRIDED:
      return Of<T>::strided(h, ta, tb, c.m, c.n, c.k, alpha, A, c.lda, c.stridea, B, c.ldb, c.strideb, beta, C, c.ldc,
                            c.stridec, c.batches);
    case BATCHED: {
      for (int i = c.batches - 1; i >= 0; --i)
        a.push_back(A + i * c.stridea), b.push_back(B + i * c.strideb), d.push_back(C + i * c.stridec);
      const size_t bytes = c.batches * sizeof(T *);
      return Of<T>::batched(
          h, ta, tb, c.m, c.n, c.k, alpha, (T **)to_device(a.data(), bytes), c.lda, (T **)to_device(b.data(), bytes),
          c.ldb, beta, (T **)to_device(d.data(), bytes), c.ldc, c.batches);
    }
    case AXPY:
      return Of<T>::axpy(h, c.n, alpha, A, c.lda, C, c.ldc);
    case COPY:
      return Of<T>::copy(h, c.n, A, c.lda, C, c.ldc);
    case SWAP:
      return Of<T>::swap(h, c.n, A, c.lda, C, c.ldc);
    case SCAL:
      return Of<T>::scal(h, c.n, alpha, C, c.ldc);
    case DOT:
      return Dot<T>::u(h, c.n, A, c.lda, B, c.ldb, out);
    case DOTC:
      return Dot<T>::c(h, c.n, A, c.lda, B, c.ldb, out);
    case NRM2:
      return Of<T>::nrm2(h, c.n, A, c.lda, (R *)out);
    case ASUM:
      return Of<T>::asum(h, c.n, A, c.lda, (R *)out);
    case IAMAX:
      return Of<T>::iamax(h, c.n, A, c.lda, (int *)out);
    case IAMIN:
      return Of<T>::iamin(h, c.n, A, c.lda, (int *)out);
    case GEMV:
      return Of<T>::gemv(h, ta, c.m, c.n, alpha, A, c.lda, B, c.ldb, beta, C, c.ldc);
    case GER:
      return Dot<T>::ger(h, c.m, c.n, alpha, A, c.lda, B, c.ldb, C, c.ldc);
    case GEAM:
      return Of<T>::geam(h, ta, tb, c.m, c.n, alpha, A, c.lda, beta, B, c.ldb, C, c.ldc);
    case DGMM:
      return Of<T>::dgmm(h, side, c.m, c.n, A, c.lda, B, c.ldb, C, c.ldc);
    case SYRK:
      return Of<T>::syrk(h, uplo, ta, c.n, c.k, alpha, A, c.lda, beta, C, c.ldc);
    case SYMM:
      return Of<T>::symm(h, side, uplo, c.m, c.n, alpha, A, c.lda, B, c.ldb, beta, C, c.ldc);
    case TRSM:
      return Of<T>::trsm(h, side, uplo, ta, diag, c.m, c.n, alpha, A, c.lda, C, c.ldc);
    case TRMM:
      return Of<T>::trmm(h, side, uplo, ta, diag, c.m, c.n, alpha, A, c.lda, B, c.ldb, C, c.ldc);
  }
  return -1;
}

static int by_types(cublasHandle_t h, const Call &c, void *A, void *B, void *C, const void *alpha, const void *beta) {
  const auto ta = cublasOperation_t(c.transa), tb = cublasOperation_t(c.transb);
  const auto at = cudaDataType(c.atype), bt = cudaDataType(c.btype), ct = cudaDataType(c.ctype);
  const auto compute = cublasComputeType_t(c.compute);
  if (c.what == GEMM)
    return cublasHgemm(h, ta, tb, c.m, c.n, c.k, (const __half *)alpha, (__half *)A, c.lda, (__half *)B, c.ldb,
                       (const __half *)beta, (__half *)C, c.ldc);
  if (c.batches <= 1)
    return cublasGemmEx(h, ta, tb, c.m, c.n, c.k, alpha, A, at, c.lda, B, bt, c.ldb, beta, C, ct, c.ldc, compute,
                        CUBLAS_GEMM_DEFAULT);
  return cublasGemmStridedBatchedEx(h, ta, tb, c.m, c.n, c.k, alpha, A, at, c.lda, c.stridea, B, bt, c.ldb, c.strideb,
                                    beta, C, ct, c.ldc, c.stridec, c.batches, compute, CUBLAS_GEMM_DEFAULT);
}

template <class T>
static int put(cublasLtMatmulDesc_t to, cublasLtMatmulDescAttributes_t attribute, T value) {
  return cublasLtMatmulDescSetAttribute(to, attribute, &value, sizeof value);
}

static cublasLtMatrixLayout_t layout(const Call &c, int bit, int type, int rows, int columns, int ld, long long stride) {
  cublasLtMatrixLayout_t made;
  cublasLtMatrixLayoutCreate(&made, cudaDataType(type), rows, columns, ld);
  const int order = c.orders >> bit & 1 ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
  const int64_t offset = stride;
  cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
  cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &c.batches, sizeof c.batches);
  cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset, sizeof offset);
  return made;
}

// D is where C is, unless there is an E.
static int matmul(const Call &c, void *A, void *B, void *C, void *E, void *bias, void *aux, float *scales,
                  const void *alpha, const void *beta) {
  cublasLtHandle_t h;
  cublasLtCreate(&h);
  cublasLtMatmulDesc_t how;
  cublasLtMatmulDescCreate(&how, cublasComputeType_t(c.compute), cudaDataType(c.scale));
  put(how, CUBLASLT_MATMUL_DESC_TRANSA, c.transa);
  put(how, CUBLASLT_MATMUL_DESC_TRANSB, c.transb);
  put(how, CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  put(how, CUBLASLT_MATMUL_DESC_POINTER_MODE, c.on_device);
  if (bias) put(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (aux)
    put(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux),
        put(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(128));
  if (scales) {
    put(how, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales);
    put(how, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales + 1);
    put(how, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, scales + 2);
    put(how, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, scales + 3);
  }
  const auto a = layout(c, 0, c.atype, c.transa ? c.k : c.m, c.transa ? c.m : c.k, c.lda, c.stridea);
  const auto b = layout(c, 1, c.btype, c.transb ? c.n : c.k, c.transb ? c.k : c.n, c.ldb, c.strideb);
  const auto d = layout(c, 2, c.ctype, c.m, c.n, c.ldc, c.stridec);
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulPreferenceCreate(&preference);
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  int status = cublasLtMatmulAlgoGetHeuristic(h, how, a, b, d, d, preference, 1, &found, &count);
  if (!status) status = cublasLtMatmul(h, how, alpha, A, a, B, b, beta, C, d, E ? E : C, d, &found.algo, nullptr, 0, 0);
  cublasLtMatmulPreferenceDestroy(preference);
  for (auto each : {a, b, d}) cublasLtMatrixLayoutDestroy(each);
  cublasLtMatmulDescDestroy(how);
  cublasLtDestroy(h);
  return status;
}

static int transform(const Call &c, void *A, void *B, void *C, const void *alpha, const void *beta) {
  cublasLtHandle_t h;
  cublasLtCreate(&h);
  cublasLtMatrixTransformDesc_t how;
  cublasLtMatrixTransformDescCreate(&how, cudaDataType(c.scale));
  const int operations[] = {c.transa, c.transb};
  cublasLtMatrixTransformDescSetAttribute(how, CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, &operations[0], 4);
  cublasLtMatrixTransformDescSetAttribute(how, CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB, &operations[1], 4);
  const auto a = layout(c, 0, c.atype, c.transa ? c.n : c.m, c.transa ? c.m : c.n, c.lda, c.stridea);
  const auto b = layout(c, 1, c.btype, c.transb ? c.n : c.m, c.transb ? c.m : c.n, c.ldb, c.strideb);
  const auto d = layout(c, 2, c.ctype, c.m, c.n, c.ldc, c.stridec);
  return cublasLtMatrixTransform(h, how, alpha, A, a, beta, B, b, C, d, 0);
}

extern "C" int blas(Call c, void *A, void *B, void *C, void *out, void *bias, void *aux, float *scales) {
  cublasHandle_t h;
  cublasCreate(&h);
  cublasSetMathMode(h, cublasMath_t(c.math));
  if (c.on_device) cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE);
  const bool on_device = c.on_device;
  const Scalar alpha(c.scale, c.alpha, on_device), beta(c.scale, c.beta, on_device);
  char host_result[16] = {};
  void *result = on_device ? out : host_result;
  int status;
  if (c.what == MATMUL)
    status = matmul(c, A, B, C, out, bias, aux, scales, alpha.at(), beta.at());
  else if (c.what == TRANSFORM)
    status = transform(c, A, B, C, alpha.at(), beta.at());
  else if (c.what == DOT_EX)
    status = cublasDotEx(h, c.n, A, cudaDataType(c.atype), c.lda, B, cudaDataType(c.btype), c.ldb, result, CUDA_R_32F,
                         CUDA_R_32F);
  else if (c.what == GEMM_EX || c.atype == CUDA_R_16F)
    status = by_types(h, c, A, B, C, alpha.at(), beta.at());
#define TYPED(T) typed<T>(h, c, (T *)A, (T *)B, (T *)C, (T *)result, (const T *)alpha.at(), (const T *)beta.at())
  else
    status = c.atype == CUDA_R_32F   ? TYPED(float)
             : c.atype == CUDA_R_64F ? TYPED(double)
             : c.atype == CUDA_C_32F ? TYPED(cuComplex)
                                     : TYPED(cuDoubleComplex);
  if (out && !on_device && c.what != MATMUL && c.what >= DOT) cudaMemcpy(out, host_result, 16, cudaMemcpyHostToDevice);
  cublasDestroy(h);
  return status;
}
