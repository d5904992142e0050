// The functions of cuBLAS that have sizes: a part of cublas.cpp, which includes it twice. Of those whose sizes have 64 bits
// INT is int64_t, and the names end in _64.

extern "C" {

cublasStatus_t NAME(cublasSetVector)(INT n, INT size, const void *x, INT incx, void *y, INT incy) {
  return copy("cublasSetVector" SUFFIX, 1, n, size, x, incx, y, incy, true);
}
cublasStatus_t NAME(cublasGetVector)(INT n, INT size, const void *x, INT incx, void *y, INT incy) {
  return copy("cublasGetVector" SUFFIX, 1, n, size, x, incx, y, incy, false);
}
cublasStatus_t NAME(cublasSetMatrix)(INT rows, INT cols, INT size, const void *A, INT lda, void *B, INT ldb) {
  return copy("cublasSetMatrix" SUFFIX, rows, cols, size, A, lda, B, ldb, true);
}
cublasStatus_t NAME(cublasGetMatrix)(INT rows, INT cols, INT size, const void *A, INT lda, void *B, INT ldb) {
  return copy("cublasGetMatrix" SUFFIX, rows, cols, size, A, lda, B, ldb, false);
}
cublasStatus_t NAME(cublasSetVectorAsync)(
    INT n, INT size, const void *x, INT incx, void *y, INT incy, cudaStream_t stream) {
  return copy("cublasSetVectorAsync" SUFFIX, 1, n, size, x, incx, y, incy, true, stream, false);
}
cublasStatus_t NAME(cublasGetVectorAsync)(
    INT n, INT size, const void *x, INT incx, void *y, INT incy, cudaStream_t stream) {
  return copy("cublasGetVectorAsync" SUFFIX, 1, n, size, x, incx, y, incy, false, stream, false);
}
cublasStatus_t NAME(cublasSetMatrixAsync)(
    INT rows, INT cols, INT size, const void *A, INT lda, void *B, INT ldb, cudaStream_t stream) {
  return copy("cublasSetMatrixAsync" SUFFIX, rows, cols, size, A, lda, B, ldb, true, stream, false);
}
cublasStatus_t NAME(cublasGetMatrixAsync)(
    INT rows, INT cols, INT size, const void *A, INT lda, void *B, INT ldb, cudaStream_t stream) {
  return copy("cublasGetMatrixAsync" SUFFIX, rows, cols, size, A, lda, B, ldb, false, stream, false);
}

#define EACH_TYPE(X, T)                                                                                                \
  cublasStatus_t NAME(cublas##X##axpy_v2)(                                                                             \
      cublasHandle_t handle, INT n, const T *alpha, const T *x, INT incx, T *y, INT incy) {                            \
    CALL("cublas" #X "axpy" SUFFIX);                                                                                   \
    return axpy(call, handle, n, alpha, x, incx, y, incy);                                                             \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##copy_v2)(cublasHandle_t handle, INT n, const T *x, INT incx, T *y, INT incy) {        \
    CALL("cublas" #X "copy" SUFFIX);                                                                                   \
    return copy_or_swap(call, handle, n, x, incx, y, incy, false);                                                     \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##swap_v2)(cublasHandle_t handle, INT n, T * x, INT incx, T * y, INT incy) {            \
    CALL("cublas" #X "swap" SUFFIX);                                                                                   \
    return copy_or_swap<T>(call, handle, n, x, incx, y, incy, true);                                                   \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##scal_v2)(cublasHandle_t handle, INT n, const T *alpha, T *x, INT incx) {              \
    CALL("cublas" #X "scal" SUFFIX);                                                                                   \
    return scal(call, handle, n, alpha, x, incx);                                                                      \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##gemv_v2)(                                                                             \
      cublasHandle_t handle, cublasOperation_t trans, INT m, INT n, const T *alpha, const T *A, INT lda, const T *x,   \
      INT incx, const T *beta, T *y, INT incy) {                                                                       \
    CALL("cublas" #X "gemv" SUFFIX);                                                                                   \
    return gemv(call, handle, trans, m, n, alpha, A, lda, x, incx, beta, y, incy);                                     \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##geam)(                                                                                \
      cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, INT m, INT n, const T *alpha,         \
      const T *A, INT lda, const T *beta, const T *B, INT ldb, T *C, INT ldc) {                                        \
    CALL("cublas" #X "geam" SUFFIX);                                                                                   \
    return geam(call, handle, transa, transb, m, n, alpha, A, lda, beta, B, ldb, C, ldc);                              \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##dgmm)(cublasHandle_t handle, cublasSideMode_t mode, INT m, INT n, const T *A,         \
                                       INT lda, const T *x, INT incx, T *C, INT ldc) {                                 \
    CALL("cublas" #X "dgmm" SUFFIX);                                                                                   \
    return dgmm(call, handle, mode, m, n, A, lda, x, incx, C, ldc);                                                    \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##syrk_v2)(                                                                             \
      cublasHandle_t handle, cublasFillMode_t uplo, cublasOperation_t trans, INT n, INT k, const T *alpha, const T *A, \
      INT lda, const T *beta, T *C, INT ldc) {                                                                         \
    CALL("cublas" #X "syrk" SUFFIX);                                                                                   \
    return syrk(call, handle, uplo, trans, n, k, alpha, A, lda, beta, C, ldc);                                         \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##symm_v2)(                                                                             \
      cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, INT m, INT n, const T *alpha, const T *A,   \
      INT lda, const T *B, INT ldb, const T *beta, T *C, INT ldc) {                                                    \
    CALL("cublas" #X "symm" SUFFIX);                                                                                   \
    return symm(call, handle, side, uplo, m, n, alpha, A, lda, B, ldb, beta, C, ldc);                                  \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##trsm_v2)(                                                                             \
      cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans,                    \
      cublasDiagType_t diag, INT m, INT n, const T *alpha, const T *A, INT lda, T *B, INT ldb) {                       \
    CALL("cublas" #X "trsm" SUFFIX);                                                                                   \
    return triangular<T>(call, handle, side, uplo, trans, diag, m, n, alpha, A, lda, B, ldb, nullptr, 0, true);        \
  }                                                                                                                    \
  cublasStatus_t NAME(cublas##X##trmm_v2)(                                                                             \
      cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t uplo, cublasOperation_t trans,                    \
      cublasDiagType_t diag, INT m, INT n, const T *alpha, const T *A, INT lda, const T *B, INT ldb, T *C, INT ldc) {  \
    CALL("cublas" #X "trmm" SUFFIX);                                                                                   \
    return triangular<T>(call, handle, side, uplo, trans, diag, m, n, alpha, A, lda, B, ldb, C, ldc, false);           \
  }                                                                                                                    \
  EACH_GEMM(X, gemm_v2, T)
#define EACH_GEMM(X, GEMM, T)                                                                                         \
  cublasStatus_t NAME(cublas##X##GEMM)(                                                                               \
      cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, INT m, INT n, INT k, const T *alpha, \
      const T *A, INT lda, const T *B, INT ldb, const T *beta, T *C, INT ldc) {                                       \
    CALL("cublas" #X "gemm" SUFFIX);                                                                                  \
    constexpr cudaDataType type = type_of<T>;                                                                         \
    return multiply(call, handle, transa, transb, m, n, k, alpha, {A, type, lda}, {B, type, ldb}, beta,               \
                    {C, type, ldc}, computed_in<T>(handle));                                                          \
  }                                                                                                                   \
  cublasStatus_t NAME(cublas##X##gemmBatched)(                                                                        \
      cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, INT m, INT n, INT k, const T *alpha, \
      const T *const A[], INT lda, const T *const B[], INT ldb, const T *beta, T *const C[], INT ldc, INT batches) {  \
    CALL("cublas" #X "gemmBatched" SUFFIX);                                                                           \
    constexpr cudaDataType type = type_of<T>;                                                                         \
    return multiply(call, handle, transa, transb, m, n, k, alpha, {A, type, lda}, {B, type, ldb}, beta,               \
                    {C, type, ldc}, computed_in<T>(handle), batches, true);                                           \
  }                                                                                                                   \
  cublasStatus_t NAME(cublas##X##gemmStridedBatched)(                                                                 \
      cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, INT m, INT n, INT k, const T *alpha, \
      const T *A, INT lda, long long int strideA, const T *B, INT ldb, long long int strideB, const T *beta, T *C,    \
      INT ldc, long long int strideC, INT batches) {                                                                  \
    CALL("cublas" #X "gemmStridedBatched" SUFFIX);                                                                    \
    constexpr cudaDataType type = type_of<T>;                                                                         \
    return multiply(call, handle, transa, transb, m, n, k, alpha, {A, type, lda, strideA}, {B, type, ldb, strideB},   \
                    beta, {C, type, ldc, strideC}, computed_in<T>(handle), batches);                                  \
  }
#define EACH_REAL(X, T)                                                                                             \
  cublasStatus_t NAME(cublas##X##dot_v2)(                                                                           \
      cublasHandle_t handle, INT n, const T *x, INT incx, const T *y, INT incy, T *result) {                        \
    CALL("cublas" #X "dot" SUFFIX);                                                                                 \
    return dot(call, handle, n, x, incx, y, incy, result);                                                          \
  }                                                                                                                 \
  cublasStatus_t NAME(cublas##X##rot_v2)(                                                                           \
      cublasHandle_t handle, INT n, T * x, INT incx, T * y, INT incy, const T *c, const T *s) {                     \
    CALL("cublas" #X "rot" SUFFIX);                                                                                 \
    return rot(call, handle, n, x, incx, y, incy, c, s);                                                            \
  }                                                                                                                 \
  cublasStatus_t NAME(cublas##X##ger_v2)(cublasHandle_t handle, INT m, INT n, const T *alpha, const T *x, INT incx, \
                                         const T *y, INT incy, T *A, INT lda) {                                     \
    CALL("cublas" #X "ger" SUFFIX);                                                                                 \
    return ger(call, handle, m, n, alpha, x, incx, y, incy, A, lda);                                                \
  }
#define EACH_COMPLEX(X, T, L, R)                                                                                     \
  cublasStatus_t NAME(cublas##X##dotu_v2)(                                                                           \
      cublasHandle_t handle, INT n, const T *x, INT incx, const T *y, INT incy, T *result) {                         \
    CALL("cublas" #X "dotu" SUFFIX);                                                                                 \
    return dot(call, handle, n, x, incx, y, incy, result);                                                           \
  }                                                                                                                  \
  cublasStatus_t NAME(cublas##X##dotc_v2)(                                                                           \
      cublasHandle_t handle, INT n, const T *x, INT incx, const T *y, INT incy, T *result) {                         \
    CALL("cublas" #X "dotc" SUFFIX);                                                                                 \
    return dot(call, handle, n, x, incx, y, incy, result, true);                                                     \
  }                                                                                                                  \
  cublasStatus_t NAME(cublas##X##geru_v2)(cublasHandle_t handle, INT m, INT n, const T *alpha, const T *x, INT incx, \
                                          const T *y, INT incy, T *A, INT lda) {                                     \
    CALL("cublas" #X "geru" SUFFIX);                                                                                 \
    return ger(call, handle, m, n, alpha, x, incx, y, incy, A, lda);                                                 \
  }                                                                                                                  \
  cublasStatus_t NAME(cublas##X##gerc_v2)(cublasHandle_t handle, INT m, INT n, const T *alpha, const T *x, INT incx, \
                                          const T *y, INT incy, T *A, INT lda) {                                     \
    CALL("cublas" #X "gerc" SUFFIX);                                                                                 \
    return ger(call, handle, m, n, alpha, x, incx, y, incy, A, lda, true);                                           \
  }                                                                                                                  \
  cublasStatus_t NAME(cublas##X##L##scal_v2)(cublasHandle_t handle, INT n, const R *alpha, T *x, INT incx) {         \
    CALL("cublas" #X #L "scal" SUFFIX);                                                                              \
    return scal(call, handle, n, alpha, x, incx);                                                                    \
  }
#define EACH_REDUCTION(N, I, T, R)                                                                            \
  cublasStatus_t NAME(cublas##N##nrm2_v2)(cublasHandle_t handle, INT n, const T *x, INT incx, R *result) {    \
    CALL("cublas" #N "nrm2" SUFFIX);                                                                          \
    return reduce(call, handle, n, x, incx, result, "nrm2");                                                  \
  }                                                                                                           \
  cublasStatus_t NAME(cublas##N##asum_v2)(cublasHandle_t handle, INT n, const T *x, INT incx, R *result) {    \
    CALL("cublas" #N "asum" SUFFIX);                                                                          \
    return reduce(call, handle, n, x, incx, result, "asum");                                                  \
  }                                                                                                           \
  cublasStatus_t NAME(cublasI##I##amax_v2)(cublasHandle_t handle, INT n, const T *x, INT incx, INT *result) { \
    CALL("cublasI" #I "amax" SUFFIX);                                                                         \
    return reduce(call, handle, n, x, incx, result, "iamax", {false});                                        \
  }                                                                                                           \
  cublasStatus_t NAME(cublasI##I##amin_v2)(cublasHandle_t handle, INT n, const T *x, INT incx, INT *result) { \
    CALL("cublasI" #I "amin" SUFFIX);                                                                         \
    return reduce(call, handle, n, x, incx, result, "iamax", {true});                                         \
  }

EACH_TYPE(S, float)
EACH_TYPE(D, double)
EACH_TYPE(C, cuComplex)
EACH_TYPE(Z, cuDoubleComplex)
EACH_GEMM(H, gemm, __half)
EACH_REAL(S, float)
EACH_REAL(D, double)
EACH_COMPLEX(C, cuComplex, s, float)
EACH_COMPLEX(Z, cuDoubleComplex, d, double)
EACH_REDUCTION(S, s, float, float)
EACH_REDUCTION(D, d, double, double)
EACH_REDUCTION(Sc, c, cuComplex, float)
EACH_REDUCTION(Dz, z, cuDoubleComplex, double)

// ---- functions that are given their types ----------------------------------------------------------------------------

cublasStatus_t NAME(cublasSgemmEx)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, INT m, INT n, INT k, const float *alpha,
    const void *A, cudaDataType Atype, INT lda, const void *B, cudaDataType Btype, INT ldb, const float *beta, void *C,
    cudaDataType Ctype, INT ldc) {
  CALL("cublasSgemmEx" SUFFIX);
  return multiply(call, handle, transa, transb, m, n, k, alpha, {A, Atype, lda}, {B, Btype, ldb}, beta, {C, Ctype, ldc},
                  CUBLAS_COMPUTE_32F);
}

cublasStatus_t NAME(cublasGemmEx)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, INT m, INT n, INT k, const void *alpha,
    const void *A, cudaDataType Atype, INT lda, const void *B, cudaDataType Btype, INT ldb, const void *beta, void *C,
    cudaDataType Ctype, INT ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {
  CALL("cublasGemmEx" SUFFIX);
  return multiply(call, handle, transa, transb, m, n, k, alpha, {A, Atype, lda}, {B, Btype, ldb}, beta, {C, Ctype, ldc},
                  compute);
}

cublasStatus_t NAME(cublasGemmBatchedEx)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, INT m, INT n, INT k, const void *alpha,
    const void *const A[], cudaDataType Atype, INT lda, const void *const B[], cudaDataType Btype, INT ldb,
    const void *beta, void *const C[], cudaDataType Ctype, INT ldc, INT batches, cublasComputeType_t compute,
    cublasGemmAlgo_t) {
  CALL("cublasGemmBatchedEx" SUFFIX);
  return multiply(call, handle, transa, transb, m, n, k, alpha, {A, Atype, lda}, {B, Btype, ldb}, beta, {C, Ctype, ldc},
                  compute, batches, true);
}

cublasStatus_t NAME(cublasGemmStridedBatchedEx)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, INT m, INT n, INT k, const void *alpha,
    const void *A, cudaDataType Atype, INT lda, long long int strideA, const void *B, cudaDataType Btype, INT ldb,
    long long int strideB, const void *beta, void *C, cudaDataType Ctype, INT ldc, long long int strideC, INT batches,
    cublasComputeType_t compute, cublasGemmAlgo_t) {
  CALL("cublasGemmStridedBatchedEx" SUFFIX);
  return multiply(call, handle, transa, transb, m, n, k, alpha, {A, Atype, lda, strideA}, {B, Btype, ldb, strideB},
                  beta, {C, Ctype, ldc, strideC}, compute, batches);
}

cublasStatus_t NAME(cublasAxpyEx)(
    cublasHandle_t handle, INT n, const void *alpha, cudaDataType alphaType, const void *x, cudaDataType xType,
    INT incx, void *y, cudaDataType yType, INT incy, cudaDataType) {
  CALL("cublasAxpyEx" SUFFIX);
  CHECK(known(call, {alphaType, xType, yType}));
  CHECK(there(call, {{"alpha", alpha}}));
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  const bool host = handle->pointer_mode == CUBLAS_POINTER_MODE_HOST;
  return done(emulator::compute(
      call, "axpy", handle->stream,
      {scalar("alpha", alpha, alphaType, host), vector("x", x, xType, READS, n, incx),
       vector("y", y, yType, READS | WRITES, n, incy)},
      {}, false));
}

cublasStatus_t NAME(cublasScalEx)(cublasHandle_t handle, INT n, const void *alpha, cudaDataType alphaType, void *x,
                                  cudaDataType xType, INT incx, cudaDataType) {
  CALL("cublasScalEx" SUFFIX);
  CHECK(known(call, {alphaType, xType}));
  CHECK(there(call, {{"alpha", alpha}}));
  if (n <= 0 || incx <= 0) return CUBLAS_STATUS_SUCCESS;
  const bool host = handle->pointer_mode == CUBLAS_POINTER_MODE_HOST;
  return done(emulator::compute(
      call, "scal", handle->stream,
      {scalar("alpha", alpha, alphaType, host), vector("x", x, xType, READS | WRITES, n, incx)}, {}, false));
}

cublasStatus_t NAME(cublasDotEx)(
    cublasHandle_t handle, INT n, const void *x, cudaDataType xType, INT incx, const void *y, cudaDataType yType,
    INT incy, void *result, cudaDataType resultType, cudaDataType) {
  CALL("cublasDotEx" SUFFIX);
  CHECK(known(call, {xType, yType, resultType}));
  n = std::max<INT>(n, 0);
  return reduce_to(call, handle, {vector("x", x, xType, READS, n, incx), vector("y", y, yType, READS, n, incy)}, result,
                   resultType, "dot", {false});
}

cublasStatus_t NAME(cublasNrm2Ex)(cublasHandle_t handle, INT n, const void *x, cudaDataType xType, INT incx,
                                  void *result, cudaDataType resultType, cudaDataType) {
  CALL("cublasNrm2Ex" SUFFIX);
  CHECK(known(call, {xType, resultType}));
  return reduce_to(call, handle, {vector("x", x, xType, READS, std::max<INT>(n, 0), incx)}, result, resultType, "nrm2",
                   {});
}

#undef EACH_TYPE
#undef EACH_GEMM
#undef EACH_REAL
#undef EACH_COMPLEX
#undef EACH_REDUCTION

}  // extern "C"
