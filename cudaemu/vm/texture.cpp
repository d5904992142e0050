// Textures and surfaces: fetches through an object that describes an array, or plain memory, and how to look into it.
//
// Filtering is the Programming Guide's ("Texture Fetching"): with linear filtering, texel i = floor(x - 0.5) and the one
// after it are weighted by the fraction of x - 0.5, which the hardware holds in fixed point with 8 fraction bits.
// What the guide leaves open is as on an H200 (2026-11-23, docs/hardware/texture_probe.cu): rounding to that fraction is to
// the nearest; bytes that are read as floats are mixed to 16 bits; a line is a plane of one row, looked at on that row's
// edge; layers count as unsigned. The counters know textures as instructions only.
#include "texture.h"

#include <algorithm>
#include <cmath>

#include "block.h"
#include "half.h"

namespace vm {

// shape: dimensions | integer coordinates << 4 | layered << 5 | component to gather + 1 << 8 | surface: element bytes << 12 |
// register bytes << 16 | elements << 20 | boundary mode << 24
struct Form {
  u32 dimensions, gather, bytes, reg, count, boundary;
  bool integer, layered;
  explicit Form(u32 s)
      : dimensions(s & 15),
        gather(s >> 8 & 15),
        bytes(s >> 12 & 15),
        reg(s >> 16 & 15),
        count(s >> 20 & 15),
        boundary(s >> 24 & 15),
        integer(s >> 4 & 1),
        layered(s >> 5 & 1) {}
};
enum Boundary : u32 { TRAP, CLAMP_TO_EDGE, ZERO };

// The lanes, of those that are `left`, that have the same object as the first of them; null if it is none.
static const Texture *object(Warp &w, const Instr &i, const u64 *handle, bool surface, u32 *left, u32 *here) {
  const u64 first = handle[__builtin_ctz(*left)];
  *here = *left & ballot([=](u64 other) { return other == first; }, handle);
  *left &= ~*here;
  Block &b = *w.block;
  const Texture *found = reinterpret_cast<const Texture *>(first);
  if (first % alignof(Texture) || !find(b.launch, first, sizeof(Texture)) || found->magic != Texture::MAGIC ||
      (surface && !found->surface)) {
    b.report(Problem::NO_TEXTURE, i.pc, b.thread(w, __builtin_ctz(*here)), first, sizeof(Texture));
    b.halt();
    return nullptr;
  }
  return found;
}

// Where texel `index` along an axis is to be found; -1: outside, in the border.
static s64 place(s64 index, s64 size, u32 mode, bool normalized) {
  if (index >= 0 && index < size) return index;
  if (mode == Texture::BORDER) return -1;
  if (mode == Texture::WRAP && normalized) return (index % size + size) % size;
  if (mode == Texture::MIRROR && normalized) {
    const s64 at = (index % (2 * size) + 2 * size) % (2 * size);
    return at < size ? at : 2 * size - 1 - at;
  }
  return std::clamp<s64>(index, 0, size - 1);
}

// A channel of a texel, as the register takes it.
static u32 channel(const Texture &t, const u8 *at) {
  const u32 bits = t.channel_bytes == 1 ? *at : t.channel_bytes == 2 ? bits_of<u16>(at) : bits_of<u32>(at);
  if (t.kind == Texture::FLOAT) return t.channel_bytes == 2 ? as<u32>(widen_half(u16(bits))) : bits;
  const s32 value =
      t.kind == Texture::UNSIGNED ? s32(bits)
      : t.channel_bytes == 1      ? s8(bits)
      : t.channel_bytes == 2      ? s16(bits)
                                  : s32(bits);
  if (!t.normalized_read) return u32(value);
  const float most = float((1 << (8 * t.channel_bytes - (t.kind == Texture::SIGNED))) - 1);
  return as<u32>(std::max(float(value) / most, -1.0f));
}

// A coordinate along an axis in 1/256 of a texel; what is beyond all textures, or no number, is held there.
static s64 fixed_point(float x) {
  constexpr float FAR = 1 << 24;
  return std::isnan(x) ? 0 : s64(std::floor(double(std::clamp(x, -FAR, FAR)) * 256 + 0.5));
}

// o: handle, shape, coordinates (layer, x, y, z), four results
static void fetch(Warp &w, const Instr &i, u32 mask) {
  const Form f(i.o[1]);
  u64 handle[LANES];
  std::copy_n(w.reg<u64>(i.o[0]), LANES, handle);
  alignas(64) u32 result[4][LANES] = {};
  for (u32 left = mask, here; left;) {
    const Texture *const t = object(w, i, handle, false, &left, &here);
    if (!t) return;
    const u32 axes = f.dimensions, texel = t->channels * t->channel_bytes;
    const bool filter = !f.integer && t->linear_filter, corners_wanted = filter || f.gather;
    s64 low[3][LANES] = {};
    float weight[3][LANES] = {};
    u64 layer[LANES] = {};
    for (u32 rest = here; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      if (f.layered) layer[lane] = std::min<u64>(w.reg<u32>(i.o[2])[lane], std::max<u64>(t->layers, 1) - 1);
      for (u32 axis = 0; axis < axes; ++axis) {
        if (f.integer) {
          low[axis][lane] = w.reg<s32>(i.o[3 + axis])[lane];
          continue;
        }
        const float given = w.reg<float>(i.o[3 + axis])[lane];
        const float x = t->normalized ? given * float(t->size[axis]) : given;
        if (corners_wanted) {
          const s64 at = fixed_point(x - 0.5f);
          low[axis][lane] = at >> 8;
          weight[axis][lane] = float(at & 255) / 256;
        } else {
          low[axis][lane] = std::isnan(x) ? 0 : s64(std::floor(std::clamp(x, -0x1p30f, 0x1p30f)));
        }
      }
    }
    // Sums are of floats, and of bytes that are read as floats in 1/65535.
    const bool of_bytes = t->normalized_read && t->kind == Texture::UNSIGNED && t->channel_bytes == 1;
    double sum[4][LANES] = {};
    for (u32 corner = 0; corner < (corners_wanted ? 1u << axes : 1u); ++corner) {
      u64 address[LANES];
      u32 inside = 0;
      for (u32 rest = here; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        s64 at[3] = {};
        bool outside = false;
        for (u32 axis = 0; axis < axes; ++axis) {
          const u32 mode = f.integer ? u32(Texture::BORDER) : t->address[axis];
          at[axis] = place(low[axis][lane] + (corner >> axis & 1), t->size[axis], mode, t->normalized);
          outside |= at[axis] < 0;
        }
        address[lane] = t->base + at[0] * texel + at[1] * t->pitch + (at[2] + layer[lane]) * t->slice;
        inside |= u32(!outside) << lane;
      }
      if (!access(w, i, {inside, Space::GLOBAL, address, texel, 1, UNCOUNTED, LOAD, Noted::READ})) return;
      // Gathered are the texels (0, 1), (1, 1), (1, 0), (0, 0) around the point, in this order.
      constexpr u32 GATHERED[] = {3, 2, 0, 1};
      for (u32 rest = here; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        float share = 1;
        for (u32 axis = 0; axis < axes && filter; ++axis)
          share *= corner >> axis & 1 ? weight[axis][lane] : 1 - weight[axis][lane];
        for (u32 n = 0; n < 4; ++n) {
          u32 value = n == 3 && (t->kind == Texture::FLOAT || t->normalized_read) ? as<u32>(1.0f) : 0;
          if (!(inside >> lane & 1))
            value = f.integer ? 0 : as<u32>(t->border[n]);
          else if (n < t->channels)
            value = channel(*t, reinterpret_cast<const u8 *>(address[lane]) + n * t->channel_bytes);
          if (f.gather) {
            if (n == f.gather - 1) result[GATHERED[corner]][lane] = value;
          } else if (filter) {
            sum[n][lane] += share * (of_bytes ? std::round(as<float>(value) * 65535.0) : as<float>(value));
          } else {
            result[n][lane] = value;
          }
        }
      }
    }
    const bool on_edge = axes == 1 && t->address[1] == Texture::BORDER;
    if (filter && !f.gather)
      for (u32 n = 0; n < 4; ++n)
        for (u32 rest = here; rest; rest &= rest - 1) {
          const int lane = __builtin_ctz(rest);
          const double x = of_bytes ? std::floor(sum[n][lane] + 0.5) / 65535 : sum[n][lane];
          result[n][lane] = as<u32>(float(on_edge ? (x + t->border[n]) / 2 : x));
        }
  }
  if (w.block->launch.count) ++w.block->counters[i.pc].requests;
  ++w.reads;
  for (u32 n = 0; n < 4; ++n)
    if (i.o[6 + n] != ALL) blend<1>(w.reg<u32>(i.o[6 + n]), result[n], mask);
}

// Where the elements of a surface access lie; the lanes that are inside. False if the launch must stop.
static bool surface_places(Warp &w, const Instr &i, const Form &f, const Texture &t, u32 here, u64 *address,
                           u32 *inside) {
  Block &b = *w.block;
  const s64 bytes = f.bytes * f.count, row = t.size[0] * t.channels * t.channel_bytes;
  *inside = 0;
  for (u32 rest = here; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    s64 at[4] = {};  // x in bytes, y, z, layer
    const s64 size[4] = {row - bytes + 1, s64(t.size[1]), s64(t.size[2]), std::max<s64>(t.layers, 1)};
    for (u32 axis = 0; axis < f.dimensions; ++axis) at[axis] = w.reg<s32>(i.o[3 + axis])[lane];
    if (f.layered) at[3] = w.reg<s32>(i.o[2])[lane];
    bool outside = false;
    for (u32 axis = 0; axis < 4; ++axis) {
      outside |= at[axis] < 0 || at[axis] >= size[axis];
      if (f.boundary == CLAMP_TO_EDGE) at[axis] = std::clamp<s64>(at[axis], 0, size[axis] - 1);
    }
    address[lane] = t.base + at[0] + at[1] * t.pitch + (at[2] + at[3]) * t.slice;
    if (outside && f.boundary == TRAP) {
      b.report(Problem::SURFACE_BOUNDS, i.pc, b.thread(w, lane), t.base, bytes);
      b.halt();
      return false;
    }
    if (!outside || f.boundary == CLAMP_TO_EDGE) *inside |= 1u << lane;
  }
  return true;
}

// o: handle, shape, layer, x in bytes, y, z, registers
static void load_surface(Warp &w, const Instr &i, u32 mask) {
  const Form f(i.o[1]);
  u64 handle[LANES], address[LANES];
  std::copy_n(w.reg<u64>(i.o[0]), LANES, handle);
  alignas(64) u8 value[LANES][16] = {};
  const Elements elements{f.bytes, f.reg, f.count, false, i.o + 6};
  for (u32 left = mask, here, inside; left;) {
    const Texture *const t = object(w, i, handle, true, &left, &here);
    if (!t || !surface_places(w, i, f, *t, here, address, &inside)) return;
    Access a(inside, Space::GLOBAL, address, f.bytes * f.count, 1, UNCOUNTED, LOAD, Noted::READ);
    a.elements = &elements;
    if (!access(w, i, a)) return;
    for (u32 rest = inside; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      memcpy(value[lane], reinterpret_cast<const u8 *>(address[lane]), f.bytes * f.count);
    }
  }
  if (w.block->launch.count) ++w.block->counters[i.pc].requests;
  ++w.reads;
  for (u32 n = 0; n < f.count; ++n)
    for (u32 rest = i.o[6 + n] == ALL ? 0 : mask; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      u8 *const to = w.frame + i.o[6 + n] + lane * f.reg;
      memset(to, 0, f.reg);
      memcpy(to, value[lane] + n * f.bytes, f.bytes);
    }
}

static void store_surface(Warp &w, const Instr &i, u32 mask) {
  const Form f(i.o[1]);
  Block &b = *w.block;
  const u32 bytes = f.bytes * f.count;
  u64 handle[LANES], address[LANES];
  std::copy_n(w.reg<u64>(i.o[0]), LANES, handle);
  alignas(64) u8 value[LANES][32];
  for (u32 n = 0; n < f.count; ++n)
    for (u32 rest = mask; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      memcpy(value[lane] + n * f.bytes, w.frame + i.o[6 + n] + lane * f.reg, f.bytes);
    }
  const Elements elements{f.bytes, f.reg, f.count, false, i.o + 6};
  const Change change(w, Space::GLOBAL);
  for (u32 left = mask, here, inside; left;) {
    const Texture *const t = object(w, i, handle, true, &left, &here);
    if (!t || !surface_places(w, i, f, *t, here, address, &inside)) return;
    Access a(inside, Space::GLOBAL, address, bytes, bytes, UNCOUNTED, STORE, Noted::WRITTEN);
    a.value = value, a.elements = &elements;
    if (!access(w, i, a)) return;
    for (u32 rest = inside; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      memcpy(reinterpret_cast<u8 *>(address[lane]), value[lane], bytes);
    }
  }
  if (b.launch.count) ++b.counters[i.pc].requests;
}

void register_texture(Registry &r) {
  constexpr u32 handle = 0, registers = 6;
  enter(r, {{"tex", fetch, "s8 n s4? s4? s4? s4? d4? d4? d4? d4?",
             About::loads("texture", IN_GLOBAL, handle, Undefined::ALL_OF_IT)},
            {"suld", load_surface, "s8 n s4? s4? s4? s4? d*?+",
             About::loads("surface", IN_GLOBAL, handle, Undefined::ALL_OF_IT)},
            {"sust", store_surface, "s8 n s4? s4? s4? s4? s*+",
             About::stores("surface", IN_GLOBAL, handle, registers, Undefined::ALL_OF_IT)}});
}

}  // namespace vm
