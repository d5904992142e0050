// The functions that have sizes: a part of cublas_v2.h, which includes it twice. Of those whose sizes have 64 bits the names
// end in _64.

cublasStatus_t EMULATOR_NAME(cublasSetVector)(
    EMULATOR_INT n, EMULATOR_INT size, const void *x, EMULATOR_INT incx, void *y, EMULATOR_INT incy);
cublasStatus_t EMULATOR_NAME(cublasGetVector)(
    EMULATOR_INT n, EMULATOR_INT size, const void *x, EMULATOR_INT incx, void *y, EMULATOR_INT incy);
cublasStatus_t EMULATOR_NAME(cublasSetMatrix)(EMULATOR_INT rows, EMULATOR_INT cols, EMULATOR_INT size, const void *A,
                                              EMULATOR_INT lda, void *B, EMULATOR_INT ldb);
cublasStatus_t EMULATOR_NAME(cublasGetMatrix)(EMULATOR_INT rows, EMULATOR_INT cols, EMULATOR_INT size, const void *A,
                                              EMULATOR_INT lda, void *B, EMULATOR_INT ldb);
cublasStatus_t EMULATOR_NAME(cublasSetVectorAsync)(EMULATOR_INT n, EMULATOR_INT size, const void *x, EMULATOR_INT incx,
                                                   void *y, EMULATOR_INT incy, cudaStream_t stream);
cublasStatus_t EMULATOR_NAME(cublasGetVectorAsync)(EMULATOR_INT n, EMULATOR_INT size, const void *x, EMULATOR_INT incx,
                                                   void *y, EMULATOR_INT incy, cudaStream_t stream);
cublasStatus_t EMULATOR_NAME(cublasSetMatrixAsync)(
    EMULATOR_INT rows, EMULATOR_INT cols, EMULATOR_INT size, const void *A, EMULATOR_INT lda, void *B, EMULATOR_INT ldb,
    cudaStream_t stream);
cublasStatus_t EMULATOR_NAME(cublasGetMatrixAsync)(
    EMULATOR_INT rows, EMULATOR_INT cols, EMULATOR_INT size, const void *A, EMULATOR_INT lda, void *B, EMULATOR_INT ldb,
    cudaStream_t stream);

// X: the letter of the type T. R and L: the real type that belongs to T, and its letter.
#define EMULATOR_BLAS(X, T)                                                                                            \
  cublasStatus_t EMULATOR_NAME(cublas##X##axpy_v2)(                                                                    \
      cublasHandle_t, EMULATOR_INT n, const T *alpha, const T *x, EMULATOR_INT incx, T *y, EMULATOR_INT incy);         \
  cublasStatus_t EMULATOR_NAME(cublas##X##copy_v2)(                                                                    \
      cublasHandle_t, EMULATOR_INT n, const T *x, EMULATOR_INT incx, T *y, EMULATOR_INT incy);                         \
  cublasStatus_t EMULATOR_NAME(cublas##X##swap_v2)(                                                                    \
      cublasHandle_t, EMULATOR_INT n, T * x, EMULATOR_INT incx, T * y, EMULATOR_INT incy);                             \
  cublasStatus_t EMULATOR_NAME(cublas##X##scal_v2)(                                                                    \
      cublasHandle_t, EMULATOR_INT n, const T *alpha, T *x, EMULATOR_INT incx);                                        \
  cublasStatus_t EMULATOR_NAME(cublas##X##gemv_v2)(                                                                    \
      cublasHandle_t, cublasOperation_t, EMULATOR_INT m, EMULATOR_INT n, const T *alpha, const T *A, EMULATOR_INT lda, \
      const T *x, EMULATOR_INT incx, const T *beta, T *y, EMULATOR_INT incy);                                          \
  cublasStatus_t EMULATOR_NAME(cublas##X##gemm_v2)(                                                                    \
      cublasHandle_t, cublasOperation_t, cublasOperation_t, EMULATOR_INT m, EMULATOR_INT n, EMULATOR_INT k,            \
      const T *alpha, const T *A, EMULATOR_INT lda, const T *B, EMULATOR_INT ldb, const T *beta, T *C,                 \
      EMULATOR_INT ldc);                                                                                               \
  cublasStatus_t EMULATOR_NAME(cublas##X##syrk_v2)(                                                                    \
      cublasHandle_t, cublasFillMode_t, cublasOperation_t, EMULATOR_INT n, EMULATOR_INT k, const T *alpha, const T *A, \
      EMULATOR_INT lda, const T *beta, T *C, EMULATOR_INT ldc);                                                        \
  cublasStatus_t EMULATOR_NAME(cublas##X##symm_v2)(                                                                    \
      cublasHandle_t, cublasSideMode_t, cublasFillMode_t, EMULATOR_INT m, EMULATOR_INT n, const T *alpha, const T *A,  \
      EMULATOR_INT lda, const T *B, EMULATOR_INT ldb, const T *beta, T *C, EMULATOR_INT ldc);                          \
  cublasStatus_t EMULATOR_NAME(cublas##X##trsm_v2)(                                                                    \
      cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, EMULATOR_INT m,         \
      EMULATOR_INT n, const T *alpha, const T *A, EMULATOR_INT lda, T *B, EMULATOR_INT ldb);                           \
  cublasStatus_t EMULATOR_NAME(cublas##X##trmm_v2)(                                                                    \
      cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t, cublasDiagType_t, EMULATOR_INT m,         \
      EMULATOR_INT n, const T *alpha, const T *A, EMULATOR_INT lda, const T *B, EMULATOR_INT ldb, T *C,                \
      EMULATOR_INT ldc);                                                                                               \
  cublasStatus_t EMULATOR_NAME(cublas##X##geam)(                                                                       \
      cublasHandle_t, cublasOperation_t, cublasOperation_t, EMULATOR_INT m, EMULATOR_INT n, const T *alpha,            \
      const T *A, EMULATOR_INT lda, const T *beta, const T *B, EMULATOR_INT ldb, T *C, EMULATOR_INT ldc);              \
  cublasStatus_t EMULATOR_NAME(cublas##X##dgmm)(                                                                       \
      cublasHandle_t, cublasSideMode_t, EMULATOR_INT m, EMULATOR_INT n, const T *A, EMULATOR_INT lda, const T *x,      \
      EMULATOR_INT incx, T *C, EMULATOR_INT ldc);                                                                      \
  EMULATOR_BATCHED(X, T)
#define EMULATOR_BATCHED(X, T)                                                                                   \
  cublasStatus_t EMULATOR_NAME(cublas##X##gemmBatched)(                                                          \
      cublasHandle_t, cublasOperation_t, cublasOperation_t, EMULATOR_INT m, EMULATOR_INT n, EMULATOR_INT k,      \
      const T *alpha, const T *const A[], EMULATOR_INT lda, const T *const B[], EMULATOR_INT ldb, const T *beta, \
      T *const C[], EMULATOR_INT ldc, EMULATOR_INT batches);                                                     \
  cublasStatus_t EMULATOR_NAME(cublas##X##gemmStridedBatched)(                                                   \
      cublasHandle_t, cublasOperation_t, cublasOperation_t, EMULATOR_INT m, EMULATOR_INT n, EMULATOR_INT k,      \
      const T *alpha, const T *A, EMULATOR_INT lda, long long int strideA, const T *B, EMULATOR_INT ldb,         \
      long long int strideB, const T *beta, T *C, EMULATOR_INT ldc, long long int strideC, EMULATOR_INT batches);
#define EMULATOR_REAL_BLAS(X, T)                                                                                   \
  cublasStatus_t EMULATOR_NAME(cublas##X##dot_v2)(                                                                 \
      cublasHandle_t, EMULATOR_INT n, const T *x, EMULATOR_INT incx, const T *y, EMULATOR_INT incy, T *result);    \
  cublasStatus_t EMULATOR_NAME(cublas##X##rot_v2)(                                                                 \
      cublasHandle_t, EMULATOR_INT n, T * x, EMULATOR_INT incx, T * y, EMULATOR_INT incy, const T *c, const T *s); \
  cublasStatus_t EMULATOR_NAME(cublas##X##ger_v2)(                                                                 \
      cublasHandle_t, EMULATOR_INT m, EMULATOR_INT n, const T *alpha, const T *x, EMULATOR_INT incx, const T *y,   \
      EMULATOR_INT incy, T *A, EMULATOR_INT lda);
#define EMULATOR_COMPLEX_BLAS(X, T, L, R)                                                                        \
  cublasStatus_t EMULATOR_NAME(cublas##X##dotu_v2)(                                                              \
      cublasHandle_t, EMULATOR_INT n, const T *x, EMULATOR_INT incx, const T *y, EMULATOR_INT incy, T *result);  \
  cublasStatus_t EMULATOR_NAME(cublas##X##dotc_v2)(                                                              \
      cublasHandle_t, EMULATOR_INT n, const T *x, EMULATOR_INT incx, const T *y, EMULATOR_INT incy, T *result);  \
  cublasStatus_t EMULATOR_NAME(cublas##X##geru_v2)(                                                              \
      cublasHandle_t, EMULATOR_INT m, EMULATOR_INT n, const T *alpha, const T *x, EMULATOR_INT incx, const T *y, \
      EMULATOR_INT incy, T *A, EMULATOR_INT lda);                                                                \
  cublasStatus_t EMULATOR_NAME(cublas##X##gerc_v2)(                                                              \
      cublasHandle_t, EMULATOR_INT m, EMULATOR_INT n, const T *alpha, const T *x, EMULATOR_INT incx, const T *y, \
      EMULATOR_INT incy, T *A, EMULATOR_INT lda);                                                                \
  cublasStatus_t EMULATOR_NAME(cublas##X##L##scal_v2)(                                                           \
      cublasHandle_t, EMULATOR_INT n, const R *alpha, T *x, EMULATOR_INT incx);
// N: the letters of nrm2 and asum, I: that of iamax.
#define EMULATOR_REDUCTIONS(N, I, T, R)                                                     \
  cublasStatus_t EMULATOR_NAME(cublas##N##nrm2_v2)(                                         \
      cublasHandle_t, EMULATOR_INT n, const T *x, EMULATOR_INT incx, R *result);            \
  cublasStatus_t EMULATOR_NAME(cublas##N##asum_v2)(                                         \
      cublasHandle_t, EMULATOR_INT n, const T *x, EMULATOR_INT incx, R *result);            \
  cublasStatus_t EMULATOR_NAME(cublasI##I##amax_v2)(                                        \
      cublasHandle_t, EMULATOR_INT n, const T *x, EMULATOR_INT incx, EMULATOR_INT *result); \
  cublasStatus_t EMULATOR_NAME(cublasI##I##amin_v2)(                                        \
      cublasHandle_t, EMULATOR_INT n, const T *x, EMULATOR_INT incx, EMULATOR_INT *result);

EMULATOR_BLAS(S, float)
EMULATOR_BLAS(D, double)
EMULATOR_BLAS(C, cuComplex)
EMULATOR_BLAS(Z, cuDoubleComplex)
EMULATOR_BATCHED(H, __half)
EMULATOR_REAL_BLAS(S, float)
EMULATOR_REAL_BLAS(D, double)
EMULATOR_COMPLEX_BLAS(C, cuComplex, s, float)
EMULATOR_COMPLEX_BLAS(Z, cuDoubleComplex, d, double)
EMULATOR_REDUCTIONS(S, s, float, float)
EMULATOR_REDUCTIONS(D, d, double, double)
EMULATOR_REDUCTIONS(Sc, c, cuComplex, float)
EMULATOR_REDUCTIONS(Dz, z, cuDoubleComplex, double)

#undef EMULATOR_BLAS
#undef EMULATOR_BATCHED
#undef EMULATOR_REAL_BLAS
#undef EMULATOR_COMPLEX_BLAS
#undef EMULATOR_REDUCTIONS

cublasStatus_t EMULATOR_NAME(cublasHgemm)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, EMULATOR_INT m, EMULATOR_INT n,
    EMULATOR_INT k, const __half *alpha, const __half *A, EMULATOR_INT lda, const __half *B, EMULATOR_INT ldb,
    const __half *beta, __half *C, EMULATOR_INT ldc);
cublasStatus_t EMULATOR_NAME(cublasSgemmEx)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, EMULATOR_INT m, EMULATOR_INT n,
    EMULATOR_INT k, const float *alpha, const void *A, cudaDataType Atype, EMULATOR_INT lda, const void *B,
    cudaDataType Btype, EMULATOR_INT ldb, const float *beta, void *C, cudaDataType Ctype, EMULATOR_INT ldc);
cublasStatus_t EMULATOR_NAME(cublasGemmEx)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, EMULATOR_INT m, EMULATOR_INT n,
    EMULATOR_INT k, const void *alpha, const void *A, cudaDataType Atype, EMULATOR_INT lda, const void *B,
    cudaDataType Btype, EMULATOR_INT ldb, const void *beta, void *C, cudaDataType Ctype, EMULATOR_INT ldc,
    cublasComputeType_t computeType, cublasGemmAlgo_t algo);
cublasStatus_t EMULATOR_NAME(cublasGemmBatchedEx)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, EMULATOR_INT m, EMULATOR_INT n,
    EMULATOR_INT k, const void *alpha, const void *const Aarray[], cudaDataType Atype, EMULATOR_INT lda,
    const void *const Barray[], cudaDataType Btype, EMULATOR_INT ldb, const void *beta, void *const Carray[],
    cudaDataType Ctype, EMULATOR_INT ldc, EMULATOR_INT batchCount, cublasComputeType_t computeType,
    cublasGemmAlgo_t algo);
cublasStatus_t EMULATOR_NAME(cublasGemmStridedBatchedEx)(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, EMULATOR_INT m, EMULATOR_INT n,
    EMULATOR_INT k, const void *alpha, const void *A, cudaDataType Atype, EMULATOR_INT lda, long long int strideA,
    const void *B, cudaDataType Btype, EMULATOR_INT ldb, long long int strideB, const void *beta, void *C,
    cudaDataType Ctype, EMULATOR_INT ldc, long long int strideC, EMULATOR_INT batchCount,
    cublasComputeType_t computeType, cublasGemmAlgo_t algo);
cublasStatus_t EMULATOR_NAME(cublasAxpyEx)(
    cublasHandle_t handle, EMULATOR_INT n, const void *alpha, cudaDataType alphaType, const void *x, cudaDataType xType,
    EMULATOR_INT incx, void *y, cudaDataType yType, EMULATOR_INT incy, cudaDataType executiontype);
cublasStatus_t EMULATOR_NAME(cublasScalEx)(
    cublasHandle_t handle, EMULATOR_INT n, const void *alpha, cudaDataType alphaType, void *x, cudaDataType xType,
    EMULATOR_INT incx, cudaDataType executionType);
cublasStatus_t EMULATOR_NAME(cublasDotEx)(
    cublasHandle_t handle, EMULATOR_INT n, const void *x, cudaDataType xType, EMULATOR_INT incx, const void *y,
    cudaDataType yType, EMULATOR_INT incy, void *result, cudaDataType resultType, cudaDataType executionType);
cublasStatus_t EMULATOR_NAME(cublasNrm2Ex)(
    cublasHandle_t handle, EMULATOR_INT n, const void *x, cudaDataType xType, EMULATOR_INT incx, void *result,
    cudaDataType resultType, cudaDataType executionType);
