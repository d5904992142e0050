// Tensor cores and what feeds them: ldmatrix, stmatrix, mma, mma.sp, wmma, cp.async.
//
// In the layouts below g = lane / 4 and t = lane % 4. Products are exact in fp32; a dot product starts from C and adds
// them with k ascending, each sum rounded to nearest. The hardware adds several at once and truncates: the last bits
// differ.
#include <algorithm>

#include "block.h"
#include "fragments.h"

namespace vm {

// ---- ldmatrix, stmatrix, movmatrix: 8×8 matrices of 16 bits; lane L has row g, columns 2t and 2t + 1 ----
//
// Of 8 bits ("PTX ISA", 9.7.14.5.15, 9.7.14.5.16): rows are 16 elements in memory. Without .trans (8×16) a lane has row g,
// columns 4t to 4t + 3. A 16×16 matrix is transposed on the way: its first register has column g, rows 4t to 4t + 3, its
// second one column g + 8. stmatrix (16×8, of which memory has columns) takes rows g and g + 8, columns 2t and 2t + 1.

// Lane 8n + r gives the address of row r of matrix n.
static u32 row_lanes(u32 matrices) { return matrices == 4 ? ALL : (1u << 8 * matrices) - 1; }

// One access of the warp. `for_warp`: what a lane loads goes to other lanes.
static bool touch(Warp &w, const Instr &i, u32 m, Space space, const u64 *address, u32 bytes, TraceKind kind, bool load,
                  bool for_warp, const u32 *taken = nullptr) {
  ++w.reads;
  const Noted noted = !load ? Noted::WRITTEN : for_warp ? Noted::READ_FOR_WARP : Noted::READ;
  Access a(m, space, address, bytes, bytes, IN_FULL, kind, noted);
  a.taken = taken;
  return access(w, i, a);
}

// What is undefined moves like the values: `move` with both frames, and both memories, exchanged. `rows`: of shared memory.
template <class F>
static void move_undefined(Warp &w, u64 *rows, F move) {
  const u64 mirror = reinterpret_cast<u64>(w.block->shared_undefined) - reinterpret_cast<u64>(w.block->shared);
  for (int lane = 0; lane < LANES; ++lane) rows[lane] += mirror;
  std::swap(w.frame, w.undefined);
  move();
  std::swap(w.frame, w.undefined);
}

// o: address, offset, 64-bit address | generic << 1, registers, transposed, bits of an element, registers
constexpr u32 REGISTERS = 6;

// Of a row of shared memory: 16 elements of 4 or 6 bits leave the rest of 16 bytes empty.
static u32 row_bytes(const Instr &i) { return i.o[5] == 16 ? 16 : 2 * i.o[5]; }

static bool matrix_rows(Warp &w, const Instr &i, u32 m, bool load, u64 *rows) {
  alignas(64) u64 address[LANES];
  addresses(w, i.o[0], i.o[1], i.o[2] & 1, address);
  u32 left = m & row_lanes(i.o[3]);
  Space space = Space::SHARED;
  if (i.o[2] & 2) next_space(*w.block, &left, address, &space);
  u32 taken[LANES];
  const u32 bytes = row_bytes(i);
  if (bytes < 16) std::fill(taken, taken + LANES, bytes);
  const u32 *const part = bytes < 16 ? taken : nullptr;
  if (!touch(w, i, m & row_lanes(i.o[3]), space, address, 16, load ? LDMATRIX : STMATRIX, load, true, part))
    return false;
  host_pointers(w, space, address, rows);
  return true;
}

typedef u16 MatrixRow __attribute__((vector_size(16), aligned(2)));

#if __has_builtin(__builtin_shufflevector)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else  // g++ 11
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, MatrixRow{__VA_ARGS__})
#endif

// In place: element (r, c) to (c, r).
static void transpose(MatrixRow (&m)[8]) {
  MatrixRow t[8];
  for (int round = 0; round < 3; ++round) {  // each interleaves rows r and r + 4
    for (int r = 0; r < 4; ++r) {
      t[2 * r] = SHUFFLED(m[r], m[r + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      t[2 * r + 1] = SHUFFLED(m[r], m[r + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    memcpy(m, t, sizeof t);
  }
}

static void load_matrices(Warp &w, const Instr &i, u32 m, const u64 *rows) {
  for (u32 n = 0; n < i.o[3]; ++n) {
    MatrixRow matrix[8] = {};
    for (int r = 0; r < 8; ++r)
      if (m >> (8 * n + r) & 1) memcpy(&matrix[r], reinterpret_cast<const void *>(rows[8 * n + r]), 16);
    if (i.o[4]) transpose(matrix);
    u32 *out = w.reg<u32>(i.o[REGISTERS + n]);  // row g, columns 2t and 2t + 1 to lane 4g + t: one after the other
    if (m == ALL)
      memcpy(out, matrix, sizeof matrix);
    else
      blend<1>(out, reinterpret_cast<const u32 *>(matrix), m);
  }
}

static void load_bytes(Warp &w, const Instr &i, u32 m, const u64 *rows) {
  const u32 bits = i.o[5];
  u8 element[LANES][16] = {};
  for (u32 rest = m & row_lanes(i.o[3]); rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    u64 row[3] = {};
    memcpy(row, reinterpret_cast<const void *>(rows[lane]), row_bytes(i));
    for (u32 n = 0; n < 16; ++n) {
      const u32 at = n * bits, low = at % 64;
      const u64 part = row[at / 64] >> low | (low ? row[at / 64 + 1] << (64 - low) : 0);
      element[lane][n] = u8(part & ((1u << bits) - 1));
    }
  }
  for (u32 n = 0; n < i.o[3]; ++n) {
    u8 out[LANES][4];
    for (u32 lane = 0; lane < LANES; ++lane)
      for (u32 e = 0; e < 4; ++e) {
        const u32 g = lane / 4, t = lane % 4;
        out[lane][e] = i.o[4] ? element[n / 2 * 16 + 4 * t + e][g + n % 2 * 8] : element[8 * n + g][4 * t + e];
      }
    blend<4>(w.reg<u8>(i.o[REGISTERS + n]), out[0], m);
  }
}

using Move = void (*)(Warp &, const Instr &, u32, const u64 *);

template <Move MOVE>
static void load_matrix(Warp &w, const Instr &i, u32 m) {
  u64 rows[LANES];
  Block &b = *w.block;
  if (!matrix_rows(w, i, m, true, rows)) return;
  MOVE(w, i, m, rows);
  if (!b.shared_tainted || !(i.flags & TRACKED)) return;
  for (u32 rest = m & row_lanes(i.o[3]); rest; rest &= rest - 1) {
    const u32 row = u32(rows[__builtin_ctz(rest)] - reinterpret_cast<u64>(b.shared));
    if (b.undefined_shared(row, row_bytes(i))) w.tainted = true, w.origin = b.shared_origin[row / 4];
  }
  if (w.tainted) move_undefined(w, rows, [&] { MOVE(w, i, m, rows); });
}

static void store_matrices(Warp &w, const Instr &i, u32 m, const u64 *rows) {
  for (u32 n = 0; n < i.o[3]; ++n) {
    u16 matrix[8][8];
    const u32 *in = w.reg<u32>(i.o[REGISTERS + n]);
    for (int lane = 0; lane < LANES; ++lane) {
      const int g = lane / 4, t = lane % 4;
      (i.o[4] ? matrix[2 * t][g] : matrix[g][2 * t]) = u16(in[lane]);
      (i.o[4] ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1]) = u16(in[lane] >> 16);
    }
    for (int r = 0; r < 8; ++r)
      if (m >> (8 * n + r) & 1) memcpy(reinterpret_cast<void *>(rows[8 * n + r]), matrix[r], 16);
  }
}

static void store_bytes(Warp &w, const Instr &i, u32 m, const u64 *rows) {
  for (u32 n = 0; n < i.o[3]; ++n) {
    u8 column[8][16];
    const u8 *in = w.reg<u8>(i.o[REGISTERS + n]);
    for (u32 lane = 0; lane < LANES; ++lane)
      for (u32 e = 0; e < 4; ++e) column[lane % 4 * 2 + e % 2][lane / 4 + e / 2 * 8] = in[4 * lane + e];
    for (u32 c = 0; c < 8; ++c)
      if (m >> (8 * n + c) & 1) memcpy(reinterpret_cast<void *>(rows[8 * n + c]), column[c], 16);
  }
}

template <Move MOVE>
static void store_matrix(Warp &w, const Instr &i, u32 m) {
  u64 rows[LANES];
  Block &b = *w.block;
  if (!matrix_rows(w, i, m, false, rows)) return;
  b.changed(w, Space::SHARED);
  MOVE(w, i, m, rows);
  if (!b.shared_tainted && !(w.tainted && i.flags & TRACKED)) return;
  move_undefined(w, rows, [&] { MOVE(w, i, m, rows); });
  for (u32 rest = m & row_lanes(i.o[3]); rest; rest &= rest - 1) {
    const u32 row = u32(rows[__builtin_ctz(rest)] - reinterpret_cast<u64>(b.shared_undefined));
    std::fill_n(b.shared_origin.begin() + row / 4, 4, i.pc);
  }
  b.shared_tainted = true;
}

static void transpose_matrix(Warp &w, const Instr &i, u32 m) {
  u16 matrix[8][8];
  u32 out[LANES];
  memcpy(matrix, w.reg<u32>(i.o[1]), sizeof matrix);
  for (int lane = 0; lane < LANES; ++lane)
    out[lane] = matrix[2 * (lane % 4)][lane / 4] | u32(matrix[2 * (lane % 4) + 1][lane / 4]) << 16;
  blend<1>(w.reg<u32>(i.o[0]), out, m);
}

// ---- mma ----

// o: rows, K, type of A, type of B, D in halves, C in halves, saturate (bits: exclusive or), registers of D, A, B, C
template <class T, bool BITS = false>
static void mma(Warp &w, const Instr &i, u32 m) {
  const u32 rows = i.o[0], depth = BITS ? i.o[1] / 32 : i.o[1], per = elements_per_register(i.o[2]);
  const u32 a_count = rows * depth / per / LANES, b_count = 8 * depth / per / LANES;
  const u32 *d = i.o + 7, *a = d + rows / 4 / (i.o[4] ? 2 : 1), *b = a + a_count, *c = b + b_count;
  alignas(64) T left[16][MOST_K], right[MOST_K][8], tile[16][8];
  read_a(w, a, a_count, i.o[2], left, rows);
  read_b(w, b, b_count, i.o[3], right);
  read_c(w, c, i.o[5], tile, rows);
  if constexpr (BITS)
    count_bits(tile, left, right, depth, i.o[6]);
  else
    multiply(tile, left, right, depth, i.o[6]);
  write_d(w, d, i.o[4], tile, m, rows);
}

// ---- mma with scales: each element of A and of B counts times the scale of its row or column, and of its part of K ----
//
// "PTX ISA", 9.7.14.3. Scales of A are in lanes 4g and 4g + 1 (rows g and g + 8), or in the two after them; of B in lane 4g
// (column g), or in one of the three after it.

enum { UE8M0, UE4M3 };

static double scale_of(u8 bits, u32 type) {
  if (type == UE4M3) return floats_of_8_bits(ELEMENT_E4M3)[bits & 127];
  return bits == 255 ? double(NAN) : std::ldexp(1.0, int(bits) - 127);
}

// o: as of mma up to "saturate", type of the scales, how many each row or column has, registers of D and A, scales of A,
// the first one's byte, lanes, registers of B, scales of B, byte, lane, registers of C
static void multiply_scaled(Warp &w, const Instr &i, u32 m) {
  const u32 depth = i.o[1], parts = i.o[8], *d = i.o + 9, *a = d + 4, *b = a + 7, *c = b + 5;
  alignas(64) double left[16][MOST_K], right[MOST_K][8];
  alignas(64) float tile[16][8];
  read_a(w, a, 4, i.o[2], left);
  read_b(w, b, 2, i.o[3], right);
  read_c(w, c, false, tile);
  const u32 first = __builtin_ctz(m);  // selectors are the same in all lanes
  const auto selector = [&](u32 operand) { return w.reg<u16>(operand)[first] & 3u; };
  const auto scale = [&](const u32 *operands, u32 lane, u32 k) {
    const u32 byte = std::min(selector(operands[1]) + k * parts / depth, 3u);
    return scale_of(w.reg<u8>(operands[0])[4 * lane + byte], i.o[7]);
  };
  const u32 a_lane = selector(a[6]) % 2 * 2, b_lane = selector(b[4]);
  for (u32 k = 0; k < depth; k += depth / parts) {
    for (u32 row = 0; row < 16; ++row) {
      const double factor = scale(a + 4, row % 8 * 4 + a_lane + row / 8, k);
      for (u32 n = k; n < k + depth / parts; ++n) left[row][n] *= factor;
    }
    for (u32 column = 0; column < 8; ++column) {
      const double factor = scale(b + 2, column * 4 + b_lane, k);
      for (u32 n = k; n < k + depth / parts; ++n) right[n][column] *= factor;
    }
  }
  for (u32 row = 0; row < 16; ++row)
    for (u32 column = 0; column < 8; ++column)
      for (u32 k = 0; k < depth; ++k) tile[row][column] = float(tile[row][column] + left[row][k] * right[k][column]);
  write_d(w, d, false, tile, m);
}

// ---- mma.sp: of each few neighbours in a row of A, only some are there; the metadata say which ----
//
// "PTX ISA", 9.7.14.6. Two bits are the place of an element (of 4 bits: of two) among the next four such; of TF32, whose
// rows have one of two, four bits are. A row's places are in as many lanes as its bits need: half a register (row g: the
// lower one) of one lane, or of two for the first and the second half of K; or one register of each of two lanes (rows g
// and g + 8), or of four for the halves of K. `selector`: which of the four lanes, or pairs, it is.

// o: as of mma up to "saturate", selector, registers of D and A, metadata, registers of B, of C
template <class T>
static void multiply_sparse(Warp &w, const Instr &i, u32 m) {
  const u32 depth = i.o[1], type = i.o[2], per = elements_per_register(type), count = 16 * depth / 2 / per / LANES;
  const u32 *d = i.o + 8, *a = d + 4 / (i.o[4] ? 2 : 1), *b = a + count + 1, *c = b + count;
  alignas(64) T left[16][MOST_K], right[2 * MOST_K][8], tile[16][8];
  read_a(w, a, count, type, left);
  read_b(w, b, count, i.o[3], right);
  read_c(w, c, i.o[5], tile);
  const u32 *metadata = w.reg<u32>(a[count]);
  const u32 pair = per == 8 ? 2 : 1, bits_per = per == 1 ? 4 : 2;  // elements that stand together; of a place
  const u32 bits = depth / 2 / pair * bits_per;                    // of a row
  for (u32 row = 0; row < 16; ++row) {
    const u32 g = row % 8 * 4, below = row / 8;
    u64 places;
    if (per <= 2) {  // half registers
      const u32 lane = g + (bits > 16 ? 2 * i.o[7] : i.o[7]);
      places = metadata[lane] >> 16 * below & 0xffff;
      if (bits > 16) places |= u64(metadata[lane + 1] >> 16 * below & 0xffff) << 16;
    } else {
      const u32 lane = g + 2 * i.o[7] + below;
      places = metadata[lane];
      if (bits > 32) places |= u64(metadata[lane + 2]) << 32;
    }
    u32 at[MOST_K];  // in the row, of each element that is there
    for (u32 n = 0; n < depth / 2; ++n) {
      const u32 place = u32(places >> n / pair * bits_per);
      at[n] = per == 1 ? 2 * n + (place >> 3 & 1) : (n / pair / 2 * 4 + (place & 3)) * pair + n % pair;
    }
    for (u32 column = 0; column < 8; ++column) {
      std::conditional_t<std::is_same<T, float>::value, float, s64> sum = tile[row][column];
      for (u32 n = 0; n < depth / 2; ++n) {
        if constexpr (std::is_same<T, float>::value)
          sum = std::fma(left[row][n], right[at[n]][column], sum);
        else
          sum += s64(left[row][n]) * right[at[n]][column];
      }
      if constexpr (!std::is_same<T, float>::value)
        if (i.o[6]) sum = std::clamp<s64>(sum, INT32_MIN, INT32_MAX);
      tile[row][column] = T(sum);
    }
  }
  write_d(w, d, i.o[4], tile, m);
}

// ---- wmma: the layout of its fragments is up to the implementation ----
//
// Ours are those of mma.m16n8k16, tile beside tile, which is also what ptxas makes of them for sm_80 to sm_90. So the
// accesses are modelled after its code, too: A and B of 16 bits come from shared memory by ldmatrix, from elsewhere in
// four-byte pieces of each 8 × 8 matrix (transposed afterwards if need be); accumulators go register by register, two
// neighbours at once where they are neighbours in memory. And wmma.mma counts as the mma it consists of.

struct Shape { int m, n, k; };
constexpr Shape SHAPES[] = {{16, 16, 16}, {32, 8, 16}, {8, 32, 16}, {16, 16, 8}, {8, 8, 4},  // of doubles
                            {8, 8, 4},    {8, 8, 4}};  // of 4 bits and of one: in words of 32 bits

struct Position { int row, col; };

// Where element e of register r of a lane lies in the operand. m8n32k16 is the transpose of m32n8k16.
static Position position(u32 shape, u32 operand, int per, int lane, int r, int e) {
  const int g = lane / 4, t = lane % 4;
  if (shape == 2) {
    const Position p = position(1, operand == OPERAND_C ? OPERAND_C : OPERAND_A + OPERAND_B - operand, per, lane, r, e);
    return {p.col, p.row};
  }
  if (shape >= 4) {  // as mma.m8n8k4 has them
    if (operand == OPERAND_C) return {g, 2 * t + r};
    return operand == OPERAND_A ? Position{g, t} : Position{t, g};
  }
  if (operand == OPERAND_C) {  // r counts elements here: 4 in each tile of 16 × 8
    const int tile = r / 4, i = r % 4;
    return {g + 8 * (i / 2) + (shape == 1 ? 16 * tile : 0), 2 * t + i % 2 + (shape == 1 ? 0 : 8 * tile)};
  }
  const int deep = SHAPES[shape].k / (4 * per);  // registers along k: 2, of 8 bits 1
  if (operand == OPERAND_A) return {g + 8 * (r % 2) + 16 * (r / (2 * deep)), per * t + e + 4 * per * (r / 2 % deep)};
  return {per * t + e + 4 * per * (r % deep), g + 8 * (r / deep)};
}

struct Fragment {
  u32 shape, operand, element;
  u32 registers;  // that hold different elements; halves may come in twice as many, the rest being copies
  int per, rows, cols, bytes;
  int together = 1;  // elements that are moved as one: those of a word
  bool column_major;
  Fragment(u32 shape, u32 operand, u32 element, bool column_major, bool halves)
      : shape(shape), operand(operand), element(element), column_major(column_major) {
    const Shape s = SHAPES[shape];
    rows = operand == OPERAND_B ? s.k : s.m;
    cols = operand == OPERAND_A ? s.k : s.n;
    if (shape > 4 && operand != OPERAND_C) together = shape == 5 ? 8 : 32;
    per = shape >= 4 ? 1 : operand == OPERAND_C ? (halves ? 2 : 1) : elements_per_register(element);
    bytes = (shape == 4 ? 8 : 4) / per;
    registers = rows * cols / LANES / per;
  }
  Position at(int lane, int n) const {  // of the n-th element of a lane
    return operand == OPERAND_C ? position(shape, operand, per, lane, n, 0)
                                : position(shape, operand, per, lane, n / per, n % per);
  }
  u64 index(Position p, u64 stride) const { return column_major ? p.col * stride + p.row : p.row * stride + p.col; }
};

// The accesses that move a fragment. f(lanes, addresses, bytes) for each; false ends it.
template <class F>
static bool accesses(const Fragment &fragment, const u64 *base, const u64 *stride, bool by_rows, F f) {
  alignas(64) u64 address[LANES];
  if (fragment.operand != OPERAND_C && fragment.bytes == 2) {
    const int major = fragment.column_major ? fragment.cols : fragment.rows;
    const int minor = fragment.column_major ? fragment.rows : fragment.cols;
    const int matrices = major / 8 * (minor / 8);
    for (int first = 0; first < matrices; first += by_rows ? 4 : 1) {
      const int count = by_rows ? std::min(4, matrices - first) : 1;
      for (int lane = 0; lane < LANES; ++lane) {
        const int n = by_rows ? std::min(first + lane / 8, matrices - 1) : first, row = by_rows ? lane % 8 : lane / 4;
        const int col = by_rows ? 0 : lane % 4 * 2;
        address[lane] = base[lane] + 2 * ((n % (major / 8) * 8 + row) * stride[lane] + n / (major / 8) * 8 + col);
      }
      if (!f(by_rows ? row_lanes(count) : ALL, address, by_rows ? 16 : 4)) return false;
    }
    return true;
  }
  const bool pairs = fragment.operand == OPERAND_C && (fragment.shape == 2) == fragment.column_major;
  const int step = pairs ? 2 : 1, elements = fragment.registers * fragment.per;
  for (int n = 0; n < elements; n += step) {
    for (int lane = 0; lane < LANES; ++lane)
      address[lane] = base[lane] + fragment.bytes * fragment.index(fragment.at(lane, n), stride[lane]);
    if (!f(ALL, address, fragment.bytes * step)) return false;
  }
  return true;
}

// o: address, offset, 64-bit address, space (3: generic), shape, operand, element, column-major, halves, stride (or
// ~0), number of registers, registers
template <bool LOAD>
static void wmma_move(Warp &w, const Instr &i, u32 m) {
  const Fragment fragment(i.o[4], i.o[5], i.o[6], i.o[7], i.o[8]);
  alignas(64) u64 base[LANES], stride[LANES], to[LANES];
  addresses(w, i.o[0], i.o[1], i.o[2], base);
  u32 left = m;
  Space space = Space(i.o[3]);
  if (i.o[3] == 3) next_space(*w.block, &left, base, &space);
  for (int lane = 0; lane < LANES; ++lane)
    stride[lane] = i.o[9] == ALL ? (fragment.column_major ? fragment.rows : fragment.cols)
                                 : w.reg<u32>(i.o[9])[lane] / fragment.together;
  u32 count = 0;
  const bool fine = accesses(fragment, base, stride, i.o[3] == 1, [&](u32 lanes, const u64 *address, u32 bytes) {
    ++count;
    return touch(w, i, m & lanes, space, address, bytes, WMMA, LOAD, fragment.operand != OPERAND_C);
  });
  if (w.block->launch.count) w.block->counters[i.pc].warps += count - 1;
  if (!fine) return;
  if (!LOAD) w.block->changed(w, space);
  host_pointers(w, space, base, to);
  Block &b = *w.block;
  const bool followed = w.undefined && i.flags & TRACKED;
  const bool undefined =
      LOAD ? followed && b.holds_undefined(space) : b.holds_undefined(space) || (followed && w.tainted);
  u32 bad = 0;
  for (u32 r = 0; r < i.o[10]; ++r)
    for (u32 rest = m; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      for (int e = 0; e < fragment.per; ++e) {
        const Position p = fragment.at(lane, r % fragment.registers * fragment.per + e);
        u8 *memory = reinterpret_cast<u8 *>(to[lane]) + fragment.bytes * fragment.index(p, stride[lane]);
        u8 *element = w.frame + i.o[11 + r] + (fragment.per * lane + e) * fragment.bytes;
        if (LOAD)
          memcpy(element, memory, fragment.bytes);
        else
          memcpy(memory, element, fragment.bytes);
        if (!undefined) continue;
        u8 *bits = followed ? w.undefined + (element - w.frame) : nullptr;
        const u64 address = base[lane] + fragment.bytes * fragment.index(p, stride[lane]);
        if (LOAD)
          w.tainted |= undefined_bits(w, lane, space, address, bits, fragment.bytes);
        else {
          put_undefined(w, i, lane, space, address, bits, fragment.bytes);
          bad |= u32(bits && std::all_of(bits, bits + fragment.bytes, [](u8 x) { return x == 0xff; })) << lane;
        }
      }
    }
  if (bad && space == Space::GLOBAL)
    b.report(Problem::UNDEFINED_STORE, i.pc, b.thread(w, __builtin_ctz(bad)), __builtin_popcount(bad), 0, MANY_THREADS,
             w.origin);
}

// o: shape, element of A, of B, D in halves, C in halves, saturate, registers of D, of A, of B, then those of D, A, B, C
template <class T>
static void wmma_multiply(Warp &w, const Instr &i, u32 m) {
  const u32 shape = i.o[0], depth = SHAPES[shape].k, d_tile = i.o[3] ? 2 : 4, c_tile = i.o[4] ? 2 : 4;
  const u32 *d = i.o + 9, *a = d + i.o[6], *b = a + i.o[7], *c = b + i.o[8];
  u32 a_type = i.o[1], b_type = i.o[2];
  if (shape == 2) std::swap(a, b), std::swap(a_type, b_type);  // the transpose: D' = B' · A'
  const u32 a_step = 16 * depth / elements_per_register(a_type) / LANES, b_step = a_step / 2;
  const bool tall = shape == 1 || shape == 2;  // two tiles below each other, or side by side
  alignas(64) T left[16][MOST_K], right[MOST_K][8], tile[2][16][8];
  for (int n = 0; n < 2; ++n) {
    if (n == 0 || tall) read_a(w, a + a_step * n, a_step, a_type, left);
    if (n == 0 || !tall) read_b(w, b + b_step * n, b_step, b_type, right);
    read_c(w, c + n * c_tile, i.o[4], tile[n]);
    multiply(tile[n], left, right, depth, i.o[5]);
  }
  for (int n = 0; n < 2; ++n) write_d(w, d + n * d_tile, i.o[3], tile[n], m);
  if (w.block->launch.count) ++w.block->counters[i.pc].warps;  // two mma
}

// ---- cp.async: the copy is applied when its thread waits for it, and not before ----

// o: destination, offset, 64-bit, source, offset, 64-bit, bytes, bytes to read (or ~0: all), predicate that says "none"
// (or ~0), past L1 (.cg)
static void copy_async(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  alignas(64) u64 to[LANES], from[LANES];
  addresses(w, i.o[0], i.o[1], i.o[2], to);
  addresses(w, i.o[3], i.o[4], i.o[5], from);
  const u32 size = i.o[6], ignored = i.o[8] == ALL ? 0 : w.pred(i.o[8]) ^ (i.flags & NOT_PRED ? ALL : 0);
  Copy copy;
  copy.mask = m, copy.size = size, copy.pc = i.pc, copy.number = ++w.copies_issued;
  u32 reading = 0, part = 0;
  for (int lane = 0; lane < LANES; ++lane) {
    to[lane] &= ~WINDOW_MASK, from[lane] &= ~WINDOW_MASK;
    const u32 bytes = ignored >> lane & 1 ? 0 : i.o[7] == ALL ? size : std::min(w.reg<u32>(i.o[7])[lane], size);
    copy.copied[lane] = bytes;
    copy.destination[lane] = u32(to[lane]), copy.source[lane] = from[lane];
    copy.group[lane] = w.copy_group[lane];
    reading |= u32(bytes != 0) << lane;
    part |= u32(bytes != 0 && bytes != size) << lane;
  }
  Access source(reading & m, Space::GLOBAL, from, size, size, COST, CP_ASYNC, Noted::READ);
  if (part & m) source.taken = copy.copied;
  if (i.o[9]) source.past_l1_to = to;
  // Shared memory's banks do not show in it, for the hardware counts no wavefronts of it.
  if (!access(w, i, source, {m, Space::SHARED, to, size, size, REQUESTS | BYTES, CP_ASYNC, Noted::IN_FLIGHT})) return;
  w.copies.push_back(copy);
  if (b.cluster.noting) {
    const u32 lane = __builtin_ctz(m);
    b.cluster.note(w, i.pc, EVENT_CP_ASYNC, 0, copy.group[lane], size * __builtin_popcount(m));
  }
}

// The copies of some of its lanes land.
static void apply(Warp &w, Copy &copy, u32 lanes) {
  Block &b = *w.block;
  copy.mask &= ~lanes;
  if (!lanes) return;
  b.changed(w, Space::SHARED);
  Cell landed;
  if (copy.actor && b.launch.sanitize) {
    const Visit visit{b.index, w.index, copy.number, u32(__builtin_ctz(lanes)), copy.pc, Cell(), copy.actor};
    const bool full = b.cluster.visits.size() >= Cluster::MOST_VISITS;
    landed = full ? Cell{Cell::BY_MANY_WARPS} : Cell::by_visit(b.cluster.remember(visit), 0);
  }
  for (u32 rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    u8 *to = b.shared + copy.destination[lane];
    const void *from = reinterpret_cast<const void *>(copy.source[lane]);
    if (copy.copied[lane] == 16)
      memcpy(to, from, 16);
    else {
      memcpy(to, from, copy.copied[lane]);
      memset(to + copy.copied[lane], 0, copy.size - copy.copied[lane]);
    }
    if (!b.launch.sanitize) continue;
    b.undefined_landing(copy.destination[lane], copy.source[lane], copy.copied[lane], copy.size, copy.pc);
    b.shadow_land(w, lane, copy.destination[lane], copy.size, b.program.code[copy.pc], landed);
  }
}

static void forget_landed(Warp &w) {
  w.copies.erase(std::remove_if(w.copies.begin(), w.copies.end(), [](const Copy &c) { return !c.mask; }),
                 w.copies.end());
}

// Apply the copies of the lanes of `m`, but for those of their last `keep` groups.
static void wait_copies(Warp &w, u32 m, u32 keep) {
  Block &b = *w.block;
  const u32 group = w.copy_group[__builtin_ctz(m)];
  if (b.cluster.noting && group > keep) b.cluster.note(w, NO_PC, EVENT_CP_ASYNC_DONE, 0, group - keep, 0);
  for (Copy &copy : w.copies) {
    u32 ready = 0;
    for (int lane = 0; lane < LANES; ++lane) ready |= u32(copy.group[lane] + keep < w.copy_group[lane]) << lane;
    apply(w, copy, ready & copy.mask & m);
  }
  forget_landed(w);
  if (w.copies_arriving && b.launch.sanitize) b.take_from(w, w.copies_arriving);  // what is in flight is marked
}

void hand_over_copies(Warp &w, u32 m, u64 actor) {
  for (size_t n = w.copies.size(); n--;) {
    Copy &copy = w.copies[n];
    if (copy.actor || !(copy.mask & m)) continue;
    Copy mine = copy;
    mine.mask &= m, mine.actor = actor;
    if (copy.mask &= ~m)
      w.copies.push_back(mine);
    else
      copy = mine;
  }
}

void land_copies(Warp &w, u32 m, u32 number) {
  u32 groups = 0;
  for (Copy &copy : w.copies) {
    if (copy.number > number || !(copy.mask & m)) continue;
    groups = std::max(groups, copy.group[__builtin_ctz(copy.mask & m)] + 1);
    apply(w, copy, copy.mask & m);
  }
  forget_landed(w);
  if (w.block->cluster.noting && groups) w.block->cluster.note(w, NO_PC, EVENT_CP_ASYNC_DONE, 0, groups, 0);
}

static void commit(Warp &w, u32 m) {
  for (int lane = 0; lane < LANES; ++lane) w.copy_group[lane] += m >> lane & 1;
}

void register_tensor(Registry &r) {
  const char *const product = "n n n n n n n d4+ s4+";
  const char *const product_of_fragments = "n n n n n n n n n d4+ s4+";
  constexpr u32 spaces = IN_GLOBAL | IN_SHARED;  // generic addresses, too
  constexpr About multiplies = About::does(Effect::MULTIPLIES, "mma", Undefined::PRODUCT);
  constexpr About extended = About::does(Effect::MULTIPLIES, "mma", Undefined::EXTENDED);
  constexpr About fragments = About::does(Effect::MULTIPLIES, "mma", Undefined::FRAGMENTS);
  constexpr About loads = About::loads("ldmatrix", spaces, 0, Undefined::ADDRESS);  // wmma: as ptxas makes it of that
  constexpr About stores = About::stores("store.generic", spaces, 0, 11, Undefined::ADDRESS);
  constexpr About stores_matrices = About::stores("stmatrix", spaces, 0, REGISTERS, Undefined::ADDRESS);
  constexpr About orders = About::does(Effect::ORDERS, "control", Undefined::NOTHING);
  enter(r,
        {{"ldmatrix", load_matrix<load_matrices>, "s* n n n n n d4+", loads},
         {"ldmatrix.b8", load_matrix<load_bytes>, "s* n n n n n d4+", loads},
         {"stmatrix", store_matrix<store_matrices>, "s* n n n n n s4+", stores_matrices},
         {"stmatrix.b8", store_matrix<store_bytes>, "s* n n n n n s4+", stores_matrices},
         {"movmatrix", transpose_matrix, "d4 s4", About::does(Effect::EXCHANGES, "shuffle", Undefined::AS_BITS_MOVE)},
         {"mma.f32", mma<float>, product, multiplies},
         {"mma.s32", mma<s32>, product, multiplies},
         {"mma.b1", mma<s32, true>, product, multiplies},
         {"mma.f64", mma<double>, "n n n n n n n d8+ s8+", multiplies},
         {"mma.scaled", multiply_scaled, "n n n n n n n n n d4+ s4+ s2 s2 s4+ s2 s2 s4+", extended},
         {"mma.sp.f32", multiply_sparse<float>, "n n n n n n n n d4+ s4+", extended},
         {"mma.sp.s32", multiply_sparse<s32>, "n n n n n n n n d4+ s4+", extended},
         {"wmma.load", wmma_move<true>, "s* n n n n n n n n s4? n d4+", loads},
         {"wmma.store", wmma_move<false>, "s* n n n n n n n n s4? n s4+", stores},
         {"wmma.load.f64", wmma_move<true>, "s* n n n n n n n n s4? n d8+", loads},
         {"wmma.store.f64", wmma_move<false>, "s* n n n n n n n n s4? n s8+", stores},
         {"wmma.mma", wmma_multiply<float>, product_of_fragments, fragments},
         {"wmma.mma.s32", wmma_multiply<s32>, product_of_fragments, fragments},
         {"cp.async", copy_async, "s* n n s* n n n s4? s0? n",
          About::transfers("cp.async", IN_GLOBAL, 3, IN_SHARED, 0, Undefined::ADDRESS)},
         {"cp.async.commit_group", [](Warp &w, const Instr &, u32 m) { commit(w, m); }, "", orders},
         {"cp.async.wait_group", [](Warp &w, const Instr &i, u32 m) { wait_copies(w, m, i.o[0]); }, "n", orders},
         {"cp.async.wait_all", [](Warp &w, const Instr &, u32 m) { commit(w, m), wait_copies(w, m, 0); }, "", orders}});
}

}  // namespace vm
