// What a CUtensorMap holds here: the stand-in for the driver writes it (host/runtime.cpp), the machine reads it (bulk.cpp).
// The driver's own encoding is not documented.
#pragma once

#include <cstdint>

struct TensorMap {
  static constexpr uint32_t MAGIC = 0x50414d54;  // "TMAP"
  static constexpr uint32_t MOST_DIMENSIONS = 5, BYTES = 128;

  uint32_t magic;
  uint8_t rank, type, interleave, swizzle, promotion, fill;  // but for the rank: the numbers of cuda.h
  uint8_t step[MOST_DIMENSIONS];                             // elements from one that is taken to the next
  uint16_t box[MOST_DIMENSIONS];                             // elements that a copy goes over, along each dimension
  uint64_t size[MOST_DIMENSIONS];                            // elements of the tensor
  uint64_t base, stride[MOST_DIMENSIONS];                    // bytes; that of dimension 0 is an element's
};
static_assert(sizeof(TensorMap) <= TensorMap::BYTES, "it has to fit into a CUtensorMap");

// Bytes of an element, by CUtensorMapDataType. The packed types beyond need compute capability 10.0.
constexpr uint32_t TENSOR_MAP_TYPES = 13;
constexpr uint8_t TENSOR_MAP_BYTES[TENSOR_MAP_TYPES] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
