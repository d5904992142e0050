// What stands for a texture or surface object: the stand-in for the runtime writes it into device memory (host/runtime.cpp),
// and its address is the object's handle; the machine reads it (texture.cpp).
#pragma once

#include <cstdint>

struct Texture {
  static constexpr uint64_t MAGIC = 0x0045525554584554;    // "TEXTURE"
  enum Kind : uint8_t { SIGNED, UNSIGNED, FLOAT };         // of a channel: cudaChannelFormatKind
  enum Address : uint8_t { WRAP, CLAMP, MIRROR, BORDER };  // cudaTextureAddressMode

  uint64_t magic;
  uint64_t base, pitch, slice;  // of row and slice or layer, in bytes
  uint64_t size[3];             // texels along x, y, z; 1 where it has no such dimension
  uint64_t layers;              // 0: not layered
  uint8_t dimensions, channels, channel_bytes, kind;
  uint8_t surface, linear_filter, normalized, normalized_read;
  uint8_t address[3], unused;
  float border[4];
};
