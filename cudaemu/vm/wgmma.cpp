// wgmma: four warps multiply 64 rows by a matrix in shared memory, in the background.
//
// A warp remembers its part of the product, 16 of the rows, and computes it in the wait_group that waits for it: code that
// reads the accumulators or overwrites an operand before that gets other numbers. Operands in registers are taken when the
// instruction is issued. The warps of a warpgroup execute the same instructions, so its n-th product is that of all of
// them, and what it reads of B is converted once.
#include <algorithm>

#include "block.h"
#include "fragments.h"

namespace vm {

// The operands of an instruction. o: columns, depth in elements, type of A, of B, D in halves, flags, registers of D, of A
// (0: it has a descriptor), predicate: D is added; descriptors of A and B, registers of D, of A, of D again (if read)
enum WgmmaFlag : u32 { NEGATE = 1, TRANSPOSE_A = 2, TRANSPOSE_B = 4, SATURATE = 8, BITS = 16 };
struct Operands {
  const u32 columns, depth, a_type, b_type, halves, flags, d_count, a_count;
  const u32 *d, *a;
  explicit Operands(const Instr &i)
      : columns(i.o[0]),
        depth(i.o[1]),
        a_type(i.o[2]),
        b_type(i.o[3]),
        halves(i.o[4]),
        flags(i.o[5]),
        d_count(i.o[6]),
        a_count(i.o[7]),
        d(i.o + 11),
        a(d + d_count) {}
};

// A matrix in shared memory, as a descriptor has it: rows of 32 bytes along k, or if it is transposed, k rows of the other
// dimension. It is read in pieces of 16 bytes. Of a swizzled matrix, bits of the address from 4 on are exclusive-or-ed with
// those from 7 on.
struct Matrix {
  u32 start, leading, stride, base, swizzled;  // all in bytes but the base offset; swizzled: 16, if it is not
  bool transposed;

  Matrix(u64 d, bool transposed)
      : start(field(d, 0)), leading(field(d, 16)), stride(field(d, 32)), base(d >> 49 & 7), transposed(transposed) {
    constexpr u32 BYTES[] = {16, 128, 64, 32};
    swizzled = BYTES[d >> 62];
  }

  // `at`: of the matrix's rows, or of its columns if it is transposed, the number of the piece's 8; `k`: likewise along k,
  // of its 16 bytes, or of its 8 rows. `row`: 0 to 7 within these.
  u32 piece(u32 at, u32 k, u32 row) const {
    u32 offset = row * swizzled;
    if (!transposed)
      offset += at * stride + k * (swizzled == 16 ? leading : 16);
    else if (swizzled == 16)
      offset += at * stride + k * leading;
    else
      offset += at * 16 / swizzled * leading + at * 16 % swizzled + k * stride;
    const u32 address = start + offset, pattern = (address >> 7) - base;
    return (address ^ (pattern & (swizzled / 16 - 1)) << 4) & 0x3ffff;
  }

 private:
  static u32 field(u64 d, u32 at) { return u32(d >> at & 0x3fff) << 4; }
};

// 8 pieces of 16 bytes, side by side. What lies beyond shared memory is ones.
static void gather(const Block &b, const Matrix &m, u32 at, u32 k, u8 (&bytes)[128]) {
  for (u32 row = 0; row < 8; ++row) {
    const u32 from = m.piece(at, k, row);
    if (from + 16 <= b.launch.shared_window)
      memcpy(bytes + 16 * row, b.shared + from, 16);
    else
      memset(bytes + 16 * row, 0xff, 16);
  }
}

// Pieces along k, and their elements.
static u32 depth_of(const Matrix &m, u32 depth) { return m.transposed ? depth / 8 : 2; }

template <class T>
static void read_rows(const Block &b, const Matrix &m, u32 first, const Operands &s, T (*a)[MOST_K]) {
  alignas(64) u8 bytes[128];
  alignas(64) T values[8 * LANES];
  for (u32 half = 0; half < 2; ++half)
    for (u32 k = 0; k < depth_of(m, s.depth); ++k) {
      gather(b, m, first / 8 + half, k, bytes);
      const int width = 4 * read_register(bytes, s.a_type, values);
      if (m.transposed)
        for (int row = 0; row < 8; ++row)
          for (int column = 0; column < 8; ++column) a[8 * half + column][8 * k + row] = values[8 * row + column];
      else
        by_width(width, [&](auto n) { place_rows<n>(values, a + 8 * half, width * k); });
    }
}

// As 8 columns beside each other, k ascending.
template <class T>
static void read_columns(const Block &b, const Matrix &m, const Operands &s, T (*to)[8]) {
  alignas(64) u8 bytes[128];
  alignas(64) T values[8 * LANES];
  for (u32 n = 0; n < s.columns / 8; ++n, to += s.depth)
    for (u32 k = 0; k < depth_of(m, s.depth); ++k) {
      gather(b, m, n, k, bytes);
      const int width = 4 * read_register(bytes, s.b_type, values);
      if (m.transposed)
        memcpy(to + 8 * k, values, 64 * sizeof(T));
      else
        by_width(width, [&](auto e) { place_columns<e>(values, to + width * k); });
    }
}

template <class T>
static void issue(Warp &w, const Instr &i, u32 m) {
  const int lane = __builtin_ctz(m);
  const Operands s(i);
  const u64 descriptor_a = s.a_count ? 0 : w.reg<u64>(i.o[9])[lane], descriptor_b = w.reg<u64>(i.o[10])[lane];
  Wgmma mine{
      &i, w.products_issued++, w.product_group, descriptor_a, descriptor_b, bool(w.pred(i.o[8]) >> lane & 1), {}};
  if (s.a_count) {
    alignas(64) T a[16][MOST_K];
    read_a(w, s.a, s.a_count, s.a_type, a);
    mine.a_rows.resize(16 * s.depth);
    for (u32 row = 0; row < 16; ++row) memcpy(&mine.a_rows[row * s.depth], a[row], s.depth * sizeof(T));
  }
  w.products.push_back(std::move(mine));
}

template <class T>
static void multiply(Warp &w, const Wgmma &mine) {
  Block &b = *w.block;
  const Operands s(*mine.i);
  alignas(64) T a[16][MOST_K], tile[16][8] = {};
  if (s.a_count)
    for (u32 row = 0; row < 16; ++row) memcpy(a[row], &mine.a_rows[row * s.depth], s.depth * sizeof(T));
  else
    read_rows(b, Matrix(mine.a, s.flags & TRANSPOSE_A), w.index % 4 * 16, s, a);
  if (s.flags & NEGATE)
    for (auto &row : a)
      for (u32 k = 0; k < s.depth; ++k) row[k] = -row[k];
  Warpgroup &group = b.warpgroup(w);
  Warpgroup::Product &product = group.products[mine.number];
  if (!product.b) {
    product.b.reset(new u32[s.columns * s.depth]);
    read_columns(b, Matrix(mine.b, s.flags & TRANSPOSE_B), s, reinterpret_cast<T(*)[8]>(product.b.get()));
  }
  const auto columns = reinterpret_cast<const T(*)[8]>(product.b.get());
  const u32 step = s.halves ? 2 : 4;
  for (u32 n = 0; n < s.columns / 8; ++n) {
    if (mine.accumulate)
      read_c(w, s.d + step * n, s.halves, tile);
    else
      memset(tile, 0, sizeof tile);
    if constexpr (std::is_same<T, float>::value)
      multiply(tile, a, columns + n * s.depth, s.depth, false);
    else if (s.flags & BITS)
      count_bits(tile, a, columns + n * s.depth, s.depth, false);
    else
      multiply(tile, a, columns + n * s.depth, s.depth, s.flags & SATURATE);
    write_d(w, s.d + step * n, s.halves, tile, ALL);
  }
  if (++product.done == 4) group.products.erase(mine.number);
}

// Do all products but those of the last `keep` groups.
static void wait(Warp &w, const Instr &i, u32) {
  const auto over = [&](const Wgmma &p) { return p.group + i.o[0] < w.product_group; };
  for (const Wgmma &p : w.products)
    if (over(p)) p.i->run == issue<float> ? multiply<float>(w, p) : multiply<s32>(w, p);
  w.products.erase(std::remove_if(w.products.begin(), w.products.end(), over), w.products.end());
}

void register_wgmma(Registry &r) {
  const char *const product = "n n n n n n n n s0 s8? s8 d4+ s4+";
  enter(r, {{"wgmma.f32", issue<float>, product},
            {"wgmma.s32", issue<s32>, product},
            {"wgmma.fence", [](Warp &, const Instr &, u32) {}, ""},
            {"wgmma.commit_group", [](Warp &w, const Instr &, u32) { ++w.product_group; }, ""},
            {"wgmma.wait_group", wait, "n"}});
}

}  // namespace vm
