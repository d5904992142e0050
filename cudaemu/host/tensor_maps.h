// The driver: tensor maps, with its rules and refusals, and how the runtime finds its functions. A part of runtime.cpp,
// which includes it.

namespace {

// An error of the driver: it does not change the runtime's last error.
CUresult driver_refuses(CUresult error, const std::string &why) {
  explain(error, why);
  return error;
}

// What is wrong with a tensor map, or nothing: the rules of the driver's manual, as driver 580 applies them on an H200
// (2026-11-22; it accepts a null address, and any swizzle of an interleaved layout). The names are its parameters'.
std::string wrong_tensor_map(
    const void *map, unsigned type, unsigned rank, const void *address, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, unsigned interleave, unsigned swizzle,
    unsigned promotion, unsigned fill) {
  const char *const types[] = {"UINT8",   "UINT16",  "UINT32",   "INT32",       "UINT64",   "INT64",       "FLOAT16",
                               "FLOAT32", "FLOAT64", "BFLOAT16", "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ"};
  const auto aligned = [](const void *at, unsigned to) { return reinterpret_cast<uintptr_t>(at) % to == 0; };
  if (!map || !aligned(map, 64)) return format("tensorMap must be an address that is a multiple of 64, got %p", map);
  if (type >= TENSOR_MAP_TYPES)
    return format("tensorDataType must be one that compute capability 9.0 has (0 to 12), got %u", type);
  if (interleave > CU_TENSOR_MAP_INTERLEAVE_32B) return format("interleave must be 0 to 2, got %u", interleave);
  if (swizzle > CU_TENSOR_MAP_SWIZZLE_128B)
    return format("swizzle must be one that compute capability 9.0 has (0 to 3), got %u", swizzle);
  if (promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) return format("l2Promotion must be 0 to 3, got %u", promotion);
  if (fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA) return format("oobFill must be 0 or 1, got %u", fill);
  const unsigned least = interleave ? 3 : 1;
  if (rank < least || rank > TensorMap::MOST_DIMENSIONS)
    return format("tensorRank must be %u to 5%s, got %u", least, interleave ? " with an interleaved layout" : "", rank);
  const unsigned unit = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16, bytes = TENSOR_MAP_BYTES[type];
  if (!aligned(address, unit)) return format("globalAddress must be a multiple of %u bytes, got %p", unit, address);
  if (!sizes || !box || !steps || (rank > 1 && !strides))
    return "globalDim, globalStrides, boxDim and elementStrides must not be null";
  for (unsigned n = 0; n < rank; ++n) {
    if (!sizes[n] || sizes[n] > 1ull << 32)
      return format("globalDim[%u] must be 1 to 2^32 elements, got %llu", n, (unsigned long long)sizes[n]);
    if (!box[n] || box[n] > 256) return format("boxDim[%u] must be 1 to 256 elements, got %u", n, box[n]);
    if (!steps[n] || steps[n] > 8) return format("elementStrides[%u] must be 1 to 8, got %u", n, steps[n]);
    if (n && (strides[n - 1] % unit || strides[n - 1] >= 1ull << 40))
      return format("globalStrides[%u], from one element of dimension %u to the next, must be a multiple of %u bytes "
                    "below 2^40, got %llu",
                    n - 1, n, unit, (unsigned long long)strides[n - 1]);
  }
  const unsigned inner = box[0] * bytes, span = swizzle ? 16u << swizzle : 0;
  if (!interleave && inner % 16)
    return format("boxDim[0] must be a multiple of 16 bytes, got %u elements of %u bytes", box[0], bytes);
  if (!interleave && span && inner > span)
    return format("boxDim[0] must be at most the %u bytes of the swizzle, got %u elements of %u bytes", span, box[0],
                  bytes);
  uint64_t room = bytes;  // that of one step may be 128 KiB, and not 512 KiB: the limit is taken to be a block's
  for (unsigned n = 0; n < rank; ++n) room *= box[n];
  if (channel >= 0 && room > unsigned(device.shared_per_block))
    return format("boxDim must fit into the %d bytes of shared memory that a block may have, got %llu bytes",
                  device.shared_per_block, (unsigned long long)room);
  if (fill && type < CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
    return format("oobFill must be 0 for integers, got 1 for CU_TENSOR_MAP_DATA_TYPE_%s", types[type]);
  return "";
}

CUresult CUDAAPI encode_tiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *sizes,
    const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  CALL(cuTensorMapEncodeTiled);
  if (channel >= 0 && device.major < 9)
    return driver_refuses(CUDA_ERROR_NOT_SUPPORTED,
                          format("cuTensorMapEncodeTiled: tensor maps need compute capability 9.0, this is %d.%d",
                                 device.major, device.minor));
  const std::string wrong =
      wrong_tensor_map(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill);
  if (!wrong.empty()) return driver_refuses(CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: " + wrong);
  TensorMap made{};
  made.magic = TensorMap::MAGIC;
  made.last = uint8_t(rank - 1), made.type = type, made.interleave = interleave, made.swizzle = swizzle;
  made.promotion = promotion, made.fill = fill;
  made.base = reinterpret_cast<uint64_t>(address);
  for (unsigned n = 0; n < rank; ++n) {
    made.size[n] = uint32_t(sizes[n]), made.box[n] = box[n];
    made.step[n] = n || interleave ? steps[n] : 1;
    made.stride[n] = n ? strides[n - 1] : 0;
  }
  memset(static_cast<void *>(map), 0, sizeof *map);
  memcpy(static_cast<void *>(map), &made, sizeof made);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI replace_address(CUtensorMap *map, void *address) {
  CALL(cuTensorMapReplaceAddress);
  TensorMap made{};
  if (map) memcpy(&made, map, sizeof made);
  const unsigned unit = made.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  if (made.magic != TensorMap::MAGIC)
    return driver_refuses(CUDA_ERROR_INVALID_VALUE, "cuTensorMapReplaceAddress: tensorMap must be one that is encoded");
  if (!address || reinterpret_cast<uintptr_t>(address) % unit)
    return driver_refuses(
        CUDA_ERROR_INVALID_VALUE,
        format("cuTensorMapReplaceAddress: globalAddress must be a multiple of %u bytes, got %p", unit, address));
  made.base = reinterpret_cast<uint64_t>(address);
  memcpy(static_cast<void *>(map), &made, sizeof made);
  return CUDA_SUCCESS;
}

// The driver's functions here, by name, and the version of CUDA that introduced them.
void *driver_function(const char *name, unsigned *since);

cudaError_t entry_point(const char *call, const char *name, void **function, unsigned version, unsigned long long flags,
                        enum cudaDriverEntryPointQueryResult *status) {
  if (!name || !*name || !function)
    return refuse(cudaErrorInvalidValue, format("%s: its arguments must not be null", call));
  if (flags > cudaEnablePerThreadDefaultStream)
    return refuse(cudaErrorInvalidValue, format("%s: flags must be 0 to 2, got %llu", call, flags));
  unsigned since = 0;
  *function = driver_function(name, &since);
  const bool early = *function && version < since;
  if (early) *function = nullptr;
  if (!*function && !early)
    driver_refuses(
        CUDA_ERROR_NOT_FOUND,
        format("%s: the emulator has no driver function '%s': leave it out (#ifndef __EMULATOR__)", call, name));
  if (status)
    *status = early       ? cudaDriverEntryPointVersionNotSufficent
              : *function ? cudaDriverEntryPointSuccess
                          : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // namespace
