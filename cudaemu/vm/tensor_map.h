// What a CUtensorMap holds here: the stand-in for the driver writes it (host/tensor_maps.h), the machine reads it (bulk.cpp).
// The driver's own encoding is not documented.
#pragma once

#include <cstddef>
#include <cstdint>

// Bytes of an element, by CUtensorMapDataType. The packed types beyond need compute capability 10.0.
constexpr uint32_t TENSOR_MAP_TYPES = 13;
constexpr uint8_t TENSOR_MAP_BYTES[TENSOR_MAP_TYPES] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

struct TensorMap {
  static constexpr uint32_t MAGIC = 0x50414d54;  // "TMAP"
  static constexpr uint32_t MOST_DIMENSIONS = 5, BYTES = 128;

  uint32_t magic;
  uint8_t last;                                        // dimension
  uint8_t type, interleave, swizzle, promotion, fill;  // the numbers of cuda.h
  uint8_t step[MOST_DIMENSIONS];                       // elements from one that is taken to the next
  uint16_t box[MOST_DIMENSIONS];                       // elements that a copy goes over, along each dimension
  uint32_t size[MOST_DIMENSIONS];                      // elements of the tensor; 0: 2^32
  uint64_t base, stride[MOST_DIMENSIONS];              // bytes; dimension 0 has the size of an element instead

  uint32_t rank() const { return last + 1u; }
  uint32_t item() const { return TENSOR_MAP_BYTES[type]; }
  // Has somebody made it? Either the driver, or tensormap.replace, which sets every field of 128 zero bytes: there is no
  // box without an element.
  bool made() const { return magic == MAGIC || (!magic && box[0]); }
  // Are all fields what they may be? cuTensorMapEncodeTiled sees to it, tensormap.replace does not.
  bool possible() const {
    bool fine = last < MOST_DIMENSIONS && type < TENSOR_MAP_TYPES && swizzle < 4 && base % 16 == 0;
    for (uint32_t d = 0; fine && d < rank(); ++d)
      fine = box[d] && box[d] <= 256 && step[d] && step[d] <= 8 && (d == 0 || stride[d] % 16 == 0);
    return fine;
  }
  int64_t elements(uint32_t dimension) const { return size[dimension] ? int64_t(size[dimension]) : int64_t(1) << 32; }
};
static_assert(sizeof(TensorMap) <= TensorMap::BYTES, "it has to fit into a CUtensorMap");

// tensormap.replace is a store to a field: lower/memory.py has these places.
static_assert(
    offsetof(TensorMap, last) == 4 && offsetof(TensorMap, type) == 5 && offsetof(TensorMap, interleave) == 6 &&
        offsetof(TensorMap, swizzle) == 7 && offsetof(TensorMap, fill) == 9 && offsetof(TensorMap, step) == 10 &&
        offsetof(TensorMap, box) == 16 && offsetof(TensorMap, size) == 28 && offsetof(TensorMap, base) == 48 &&
        offsetof(TensorMap, stride) == 56,
    "lower/memory.py has other places");
