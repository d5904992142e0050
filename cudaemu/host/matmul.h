// The matrix product of cuBLASLt: a part of cublas.cpp, which includes it. What programs set of layouts and descriptions is
// kept in the opaque structures themselves, which may lie in their own memory.

namespace {

struct Layout {
  int32_t type, order;
  uint64_t rows, columns;
  int64_t ld, stride, plane;
  int32_t batches;
};
static_assert(sizeof(Layout) <= 64, "CUDA 12 has 64 bytes for it");

struct Description {
  int32_t compute, scale, pointer_mode, transa, transb, transc, fill, epilogue;
  const void *bias;
  int64_t bias_stride;
  void *aux;
  int64_t aux_ld, aux_stride, alpha_stride;
  int32_t aux_type, bias_type;  // -1: not set
  const void *a_scale, *b_scale, *c_scale, *d_scale;
  void *amax;
  int32_t multiprocessors;
  int8_t fast_sums;
};
static_assert(sizeof(Description) <= 184, "releases of CUDA 12 have 184 bytes for it");

struct Transformation { int32_t scale, pointer_mode, transa, transb; };

// An attribute of such a structure: its number, where it is, and its bytes.
struct Attribute {
  int number;
  size_t offset, size;
};
#define FIELD(NUMBER, STRUCT, NAME) {int(NUMBER), offsetof(STRUCT, NAME), sizeof(STRUCT::NAME)}
const std::vector<Attribute> OF_LAYOUT = {
    FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, Layout, type),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, Layout, order),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, Layout, rows),
    FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, Layout, columns),
    FIELD(CUBLASLT_MATRIX_LAYOUT_LD, Layout, ld),
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Layout, batches),
    FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, Layout, stride),
    FIELD(CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, Layout, plane),
};
const std::vector<Attribute> OF_DESCRIPTION = {
    FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, Description, compute),
    FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, Description, scale),
    FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, Description, pointer_mode),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, Description, transa),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, Description, transb),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSC, Description, transc),
    FIELD(CUBLASLT_MATMUL_DESC_FILL_MODE, Description, fill),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, Description, epilogue),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Description, bias),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, Description, bias_stride),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, Description, aux),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, Description, aux_ld),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, Description, aux_stride),
    FIELD(CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, Description, alpha_stride),
    FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, Description, multiprocessors),
    FIELD(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, Description, a_scale),
    FIELD(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, Description, b_scale),
    FIELD(CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, Description, c_scale),
    FIELD(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, Description, d_scale),
    FIELD(CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, Description, amax),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, Description, aux_type),
    FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, Description, fast_sums),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, Description, bias_type),
};
const std::vector<Attribute> OF_TRANSFORMATION = {
    FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE, Transformation, scale),
    FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE, Transformation, pointer_mode),
    FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, Transformation, transa),
    FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB, Transformation, transb),
};
#undef FIELD

// The field that an attribute names, for so many bytes; null, and the call refused, if there is none.
char *field(const char *call, const std::vector<Attribute> &all, const void *structure, int number, size_t size,
            cublasStatus_t *status) {
  *status = CUBLAS_STATUS_SUCCESS;
  const auto found = std::find_if(all.begin(), all.end(), [=](const Attribute &each) { return each.number == number; });
  if (!structure)
    *status = invalid(call, "the structure must not be null");
  else if (found == all.end())
    *status = unsupported(call, "the emulator does not have attribute " + std::to_string(number));
  else if (size != found->size)
    *status = invalid(call, "attribute " + std::to_string(number) + " has " + std::to_string(found->size) +
                                " bytes, got " + std::to_string(size));
  return *status ? nullptr : static_cast<char *>(const_cast<void *>(structure)) + found->offset;
}

cublasStatus_t set(const char *call, const std::vector<Attribute> &all, void *structure, int number, const void *value,
                   size_t size) {
  emulator::called(call);
  CHECK(there(call, {{"the value", value}}));
  cublasStatus_t status;
  if (char *const at = field(call, all, structure, number, size, &status)) memcpy(at, value, size);
  return status;
}

cublasStatus_t get(const char *call, const std::vector<Attribute> &all, const void *structure, int number, void *value,
                   size_t size, size_t *written) {
  emulator::called(call);
  if (!size) {  // only asked how large it is
    CHECK(there(call, {{"sizeWritten", written}}));
    for (const Attribute &each : all)
      if (each.number == number) return *written = each.size, CUBLAS_STATUS_SUCCESS;
  }
  cublasStatus_t status;
  const char *const at = field(call, all, structure, number, size, &status);
  if (at) {
    CHECK(there(call, {{"the value", value}}));
    memcpy(value, at, size);
    if (written) *written = size;
  }
  return status;
}

template <class T, class Opaque>
cublasStatus_t make(const char *call, Opaque **out, T content) {
  emulator::called(call);
  CHECK(there(call, {{"the address of the structure", out}}));
  *out = new Opaque{};
  memcpy(*out, &content, sizeof content);
  return CUBLAS_STATUS_SUCCESS;
}

template <class Opaque>
cublasStatus_t unmake(Opaque *structure) {
  return delete structure, CUBLAS_STATUS_SUCCESS;
}

template <class T, class Opaque>
T content(const Opaque *structure) {
  T made;
  memcpy(&made, structure, sizeof made);
  return made;
}

Layout layout_of(cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld) {
  return {type, CUBLASLT_ORDER_COL, rows, columns, ld, 0, 0, 1};
}

Description description_of(cublasComputeType_t compute, cudaDataType scale) {
  Description made{};
  made.compute = compute, made.scale = scale, made.fill = CUBLAS_FILL_MODE_FULL;
  made.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  made.aux_type = made.bias_type = -1;
  return made;
}

Operand matrix(const char *name, const void *at, uint32_t how, const Layout &layout) {
  Operand made =
      matrix(name, at, layout.type, how, layout.rows, layout.columns, layout.ld, layout.batches, layout.stride);
  if (layout.order == CUBLASLT_ORDER_ROW) std::swap(made.row_step, made.column_step);
  return made;
}

cublasStatus_t check_layout(const char *call, const std::string &name, const Layout &layout) {
  const bool by_row = layout.order == CUBLASLT_ORDER_ROW;
  if (layout.order != CUBLASLT_ORDER_COL && !by_row)
    return unsupported(call, "the emulator has row and column order of " + name + " only");
  return leading(call, ("the leading dimension of " + name).c_str(), layout.ld,
                 int64_t(by_row ? layout.columns : layout.rows));
}

constexpr int EPILOGUES[] = {
    CUBLASLT_EPILOGUE_DEFAULT,     CUBLASLT_EPILOGUE_RELU,          CUBLASLT_EPILOGUE_BIAS,
    CUBLASLT_EPILOGUE_RELU_BIAS,   CUBLASLT_EPILOGUE_GELU,          CUBLASLT_EPILOGUE_GELU_BIAS,
    CUBLASLT_EPILOGUE_RELU_AUX,    CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_DRELU,
    CUBLASLT_EPILOGUE_DRELU_BGRAD, CUBLASLT_EPILOGUE_GELU_AUX,      CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
    CUBLASLT_EPILOGUE_DGELU,       CUBLASLT_EPILOGUE_DGELU_BGRAD,   CUBLASLT_EPILOGUE_BGRADA,
    CUBLASLT_EPILOGUE_BGRADB,
};

// Whether there is such a product: what a heuristic would find an algorithm for.
cublasStatus_t check_product(
    const char *call, const Description &how, const Layout &a, const Layout &b, const Layout &c, const Layout &d) {
  CHECK(ops(call, cublasOperation_t(how.transa), cublasOperation_t(how.transb)));
  CHECK(check_layout(call, "A", a));
  CHECK(check_layout(call, "B", b));
  CHECK(check_layout(call, "C", c));
  CHECK(check_layout(call, "D", d));
  const bool plain_a = how.transa == CUBLAS_OP_N, plain_b = how.transb == CUBLAS_OP_N;
  const uint64_t m = plain_a ? a.rows : a.columns, k = plain_a ? a.columns : a.rows;
  const uint64_t n = plain_b ? b.columns : b.rows, k_of_b = plain_b ? b.rows : b.columns;
  const auto text = [](uint64_t rows, uint64_t columns) {
    return std::to_string(rows) + " x " + std::to_string(columns);
  };
  if (k != k_of_b || d.rows != m || d.columns != n || c.rows != m || c.columns != n)
    return invalid(call, "op(A) is " + text(m, k) + ", op(B) is " + text(k_of_b, n) + ", C is " +
                             text(c.rows, c.columns) + ", D is " + text(d.rows, d.columns));
  if (a.batches != d.batches || b.batches != d.batches || c.batches != d.batches)
    return invalid(call, "the batch counts of A, B, C and D must be the same");
  cudaDataType scale = CUDA_R_32F;
  if (!scale_of(cublasComputeType_t(how.compute), cudaDataType(a.type), cudaDataType(b.type), cudaDataType(d.type),
                &scale) ||
      scale != how.scale)
    return unsupported(call, "no product has these types of A, B and D with this compute and scale type");
  const bool small = fp8(cudaDataType(a.type));
  if (c.type != d.type && !(small && fp8(cudaDataType(d.type)) && (c.type == CUDA_R_16F || c.type == CUDA_R_16BF)))
    return unsupported(call, "C and D must have the same type");
  if (small) {
    const int capability = emulator::compute_capability();
    if (capability < 89) return unsupported(call, "products of fp8 need compute capability 8.9 or newer");
    if (capability < 100 && (plain_a || !plain_b || a.order || b.order))
      return unsupported(call, "before compute capability 10.0, products of fp8 need transa T and transb N");
    if (m % 16 || k % 16 || a.ld % 16 || b.ld % 16)
      return unsupported(call, "for fp8, m, k, lda and ldb must be multiples of 16");
  }
  if (how.transc || how.fill != CUBLAS_FILL_MODE_FULL)
    return unsupported(call, "the emulator has neither TRANSC nor FILL_MODE");
  if (std::find(std::begin(EPILOGUES), std::end(EPILOGUES), how.epilogue) == std::end(EPILOGUES))
    return unsupported(call, "the emulator does not have epilogue " + std::to_string(how.epilogue));
  if (how.epilogue & 128 && how.aux_ld < int64_t(m))
    return invalid(call, "EPILOGUE_AUX_LD must be at least the rows of D, " + std::to_string(m) + ", got " +
                             std::to_string(how.aux_ld));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  emulator::called("cublasLtCreate");
  return cublasCreate_v2(reinterpret_cast<cublasHandle_t *>(handle));  // one kind of handle, as in the library
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  CALL("cublasLtDestroy");
  std::lock_guard lock(guard);
  handles().erase(handle);
  delete reinterpret_cast<cublasHandle_t>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char *cublasLtGetStatusName(cublasStatus_t status) { return cublasGetStatusName(status); }
const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusString(status); }
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }

cublasStatus_t cublasLtMatrixLayoutInit_internal(
    cublasLtMatrixLayout_t layout, size_t, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
  const Layout made = layout_of(type, rows, cols, ld);
  return memcpy(layout, &made, sizeof made), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
  return make("cublasLtMatrixLayoutCreate", layout, layout_of(type, rows, cols, ld));
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return unmake(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t size) {
  return set("cublasLtMatrixLayoutSetAttribute", OF_LAYOUT, layout, attribute, value, size);
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(
    cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, void *value, size_t size,
    size_t *written) {
  return get("cublasLtMatrixLayoutGetAttribute", OF_LAYOUT, layout, attribute, value, size, written);
}

cublasStatus_t cublasLtMatmulDescInit_internal(
    cublasLtMatmulDesc_t description, size_t, cublasComputeType_t compute, cudaDataType_t scale) {
  const Description made = description_of(compute, scale);
  return memcpy(description, &made, sizeof made), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t *description, cublasComputeType_t compute, cudaDataType_t scale) {
  return make("cublasLtMatmulDescCreate", description, description_of(compute, scale));
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) { return unmake(description); }
cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t size) {
  return set("cublasLtMatmulDescSetAttribute", OF_DESCRIPTION, description, attribute, value, size);
}
cublasStatus_t cublasLtMatmulDescGetAttribute(
    cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, void *value, size_t size,
    size_t *written) {
  return get("cublasLtMatmulDescGetAttribute", OF_DESCRIPTION, description, attribute, value, size, written);
}

// What is preferred makes no difference: there is one algorithm, without a workspace.
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t size) {
  return memset(preference, 0, size), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  return make("cublasLtMatmulPreferenceCreate", preference, 0);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return unmake(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void *, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result) {
  CALL("cublasLtMatmulAlgoCheck");
  CHECK(there(call, {{"operationDesc", description},
                     {"Adesc", Adesc},
                     {"Bdesc", Bdesc},
                     {"Cdesc", Cdesc},
                     {"Ddesc", Ddesc},
                     {"result", result}}));
  CHECK(check_product(call, content<Description>(description), content<Layout>(Adesc), content<Layout>(Bdesc),
                      content<Layout>(Cdesc), content<Layout>(Ddesc)));
  *result = {};
  if (algo) result->algo = *algo;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t results[], int *returned) {
  CALL("cublasLtMatmulAlgoGetHeuristic");
  CHECK(there(call, {{"preference", preference}, {"returnAlgoCount", returned}}));
  *returned = 0;
  CHECK(at_least(call, "requestedAlgoCount", requested, "1", 1));
  CHECK(cublasLtMatmulAlgoCheck(handle, description, Adesc, Bdesc, Cdesc, Ddesc, nullptr, results));
  return *returned = 1, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetIds(
    cublasLtHandle_t handle, cublasComputeType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t,
    cudaDataType_t, int requested, int ids[], int *returned) {
  CALL("cublasLtMatmulAlgoGetIds");
  CHECK(at_least(call, "requestedAlgoCount", requested, "1", 1));
  return ids[0] = 0, *returned = 1, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(
    cublasLtHandle_t handle, cublasComputeType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t,
    cudaDataType_t, int id, cublasLtMatmulAlgo_t *algo) {
  CALL("cublasLtMatmulAlgoInit");
  if (id) return invalid(call, "the emulator has algorithm 0 only, got " + std::to_string(id));
  return *algo = {}, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha, const void *A,
    cublasLtMatrixLayout_t Adesc, const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta, const void *C,
    cublasLtMatrixLayout_t Cdesc, void *D, cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *, void *, size_t,
    cudaStream_t stream) {
  CALL("cublasLtMatmul");
  CHECK(there(call,
              {{"computeDesc", description}, {"Adesc", Adesc}, {"Bdesc", Bdesc}, {"Cdesc", Cdesc}, {"Ddesc", Ddesc}}));
  const auto how = content<Description>(description);
  const auto a = content<Layout>(Adesc), b = content<Layout>(Bdesc), c = content<Layout>(Cdesc),
             d = content<Layout>(Ddesc);
  CHECK(check_product(call, how, a, b, c, d));
  if (how.pointer_mode < 0 || how.pointer_mode > CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST)
    return invalid(call, "POINTER_MODE must be one of cublasLtPointerMode_t");
  const auto mode = cublasLtPointerMode_t(how.pointer_mode);
  const bool no_beta = mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO;
  CHECK(there(call, {{"alpha", alpha}, {"beta", no_beta ? alpha : beta}}));
  const int64_t m = int64_t(d.rows), n = int64_t(d.columns), batches = d.batches;
  if (!m || !n || !batches) return CUBLAS_STATUS_SUCCESS;
  const auto factor = [&](const char *name, const void *at, bool on_host, bool of_rows) {
    Operand made = scalar(name, at, how.scale, on_host);
    if (of_rows) made.rows = m, made.batches = how.alpha_stride ? batches : 1, made.batch_step = how.alpha_stride;
    return made;
  };
  const bool vectors = mode >= CUBLASLT_POINTER_MODE_DEVICE_VECTOR, host = mode == CUBLASLT_POINTER_MODE_HOST;
  static const double ZERO[2] = {};
  std::vector<Operand> operands{
      factor("alpha", alpha, host, vectors),
      factor("beta", no_beta ? ZERO : beta, host || mode > CUBLASLT_POINTER_MODE_DEVICE_VECTOR,
             mode == CUBLASLT_POINTER_MODE_DEVICE_VECTOR),
      matrix("A", A, READS, a),
      matrix("B", B, READS, b),
      matrix("C", C, READS, c),
      matrix("D", D, WRITES, d)};
  const int epilogue = how.epilogue;
  const bool gradient = epilogue & (16 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
  if (epilogue & 4 || gradient) {
    if (!how.bias) return invalid(call, "the epilogue needs BIAS_POINTER");
    const uint32_t type = how.bias_type >= 0 ? how.bias_type : fp8(cudaDataType(d.type)) ? CUDA_R_16BF : d.type;
    Operand bias =
        matrix("bias", how.bias, type, gradient ? WRITES : READS, epilogue == CUBLASLT_EPILOGUE_BGRADB ? n : m, 1, 0);
    if (how.bias_stride || gradient) bias.batches = batches, bias.batch_step = how.bias_stride;
    operands.push_back(bias);
  }
  if (epilogue & 128) {
    if (!how.aux) return invalid(call, "the epilogue needs EPILOGUE_AUX_POINTER");
    const bool reads = epilogue & (8 | 64), bits = epilogue & (2 | 8);
    const uint32_t type = bits ? CUDA_R_8U : how.aux_type >= 0 ? how.aux_type : d.type;
    const int64_t per = bits ? 8 : 1;  // elements of D in one of these
    operands.push_back(matrix("aux", how.aux, type, reads ? READS : WRITES, (m + per - 1) / per, n, how.aux_ld / per,
                              batches, how.aux_stride / per));
  }
  for (const auto &[name, at] :
       {std::pair<const char *, const void *>{"A scale", how.a_scale},
        {"B scale", how.b_scale},
        {"C scale", how.c_scale},
        {"D scale", how.d_scale}})
    if (at) operands.push_back(scalar(name, at, CUDA_R_32F, false));
  if (how.amax) operands.push_back(scalar("D amax", how.amax, CUDA_R_32F, false, WRITES));
  return done(emulator::compute(call, "gemm", stream, operands, {how.compute, how.transa, how.transb, epilogue}, false));
}

cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t *description, cudaDataType scale) {
  return make("cublasLtMatrixTransformDescCreate", description, Transformation{scale, 0, 0, 0});
}
cublasStatus_t cublasLtMatrixTransformDescDestroy(cublasLtMatrixTransformDesc_t description) {
  return unmake(description);
}
cublasStatus_t cublasLtMatrixTransformDescSetAttribute(
    cublasLtMatrixTransformDesc_t description, cublasLtMatrixTransformDescAttributes_t attribute, const void *value,
    size_t size) {
  return set("cublasLtMatrixTransformDescSetAttribute", OF_TRANSFORMATION, description, attribute, value, size);
}
cublasStatus_t cublasLtMatrixTransform(
    cublasLtHandle_t handle, cublasLtMatrixTransformDesc_t description, const void *alpha, const void *A,
    cublasLtMatrixLayout_t Adesc, const void *beta, const void *B, cublasLtMatrixLayout_t Bdesc, void *C,
    cublasLtMatrixLayout_t Cdesc, cudaStream_t stream) {
  CALL("cublasLtMatrixTransform");
  CHECK(there(call, {{"transformDesc", description}, {"alpha", alpha}, {"Adesc", Adesc}, {"Cdesc", Cdesc}}));
  const auto how = content<Transformation>(description);
  const auto a = content<Layout>(Adesc), c = content<Layout>(Cdesc);
  CHECK(ops(call, cublasOperation_t(how.transa), cublasOperation_t(how.transb)));
  CHECK(check_layout(call, "A", a));
  CHECK(check_layout(call, "C", c));
  const auto fits = [&](const Layout &x, int op) {
    return c.rows == (op ? x.columns : x.rows) && c.columns == (op ? x.rows : x.columns) && c.batches == x.batches;
  };
  if (!fits(a, how.transa)) return invalid(call, "op(A) must have the rows, columns and batches of C");
  static const double ZERO[2] = {};
  const bool host = how.pointer_mode == CUBLASLT_POINTER_MODE_HOST, two = B && Bdesc && beta;
  std::vector<Operand> operands{scalar("alpha", alpha, how.scale, host), matrix("A", A, READS, a),
                                scalar("beta", two ? beta : ZERO, how.scale, host || !two)};
  if (two) {
    const auto b = content<Layout>(Bdesc);
    CHECK(check_layout(call, "B", b));
    if (!fits(b, how.transb)) return invalid(call, "op(B) must have the rows, columns and batches of C");
    operands.push_back(matrix("B", B, READS, b));
  }
  operands.push_back(matrix("C", C, WRITES, c));
  if (!c.rows || !c.columns || !c.batches) return CUBLAS_STATUS_SUCCESS;
  return done(emulator::compute(call, "geam", stream, operands, {how.transa, how.transb}, false));
}

}  // extern "C"
