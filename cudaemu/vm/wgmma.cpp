// wgmma: four warps multiply 64 rows by a matrix in shared memory, in the background.
//
// The warps of a warpgroup execute the same instructions, so the n-th of each is a part, 16 of the rows, of one product.
// It is computed as late as possible, when the first of them waits for it, and for all of them at once, since hardware
// is done by then; code that reads the accumulators or overwrites an operand before that gets other numbers. A warp
// cannot wait for a product that another one has not issued yet. Operands in registers are taken at once.
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

// 8 pieces of 16 bytes, side by side.
static void gather(const Block &b, const Matrix &m, u32 at, u32 k, u8 (&bytes)[128]) {
  for (u32 row = 0; row < 8; ++row) memcpy(bytes + 16 * row, b.shared + m.piece(at, k, row), 16);
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

// The addresses of the pieces of `octets` times 8 rows, from `first` on; of all of them if it is transposed.
static void list_pieces(const Matrix &m, u32 first, u32 octets, u32 depth, std::vector<u32> &out) {
  for (u32 at = first; at < first + octets; ++at)
    for (u32 k = 0; k < depth_of(m, depth); ++k)
      for (u32 row = 0; row < 8; ++row) out.push_back(m.piece(at, k, row));
}

// ---- products of floating-point numbers ----
//
// As an H200 adds them, bit for bit (docs/hardware/wgmma_rounding.txt): all products and C at once, each cut off so many
// bits below the largest exponent among them; that of a product is the sum of its factors' exponents. The sum is cut off
// as well, at 24 bits, or as many as the products were; as a half it is rounded.

typedef s32 RowInt __attribute__((vector_size(32), aligned(4)));
typedef double RowDouble __attribute__((vector_size(64)));
typedef u64 RowBits __attribute__((vector_size(64)));

constexpr s32 OF_ZERO = -1000, OF_INFINITY = 128;  // exponents; as large: what is not a number

// Of a type: fraction bits that are kept, the smallest exponent.
struct Precision {
  int kept;
  s32 smallest;
  explicit Precision(u32 type)
      : kept(type == ELEMENT_E4M3 || type == ELEMENT_E5M2 ? 13 : 25),
        smallest(type == ELEMENT_E4M3 ? -6
                 : type == ELEMENT_E5M2 || type == ELEMENT_F16
                     ? -14
                     : -126) {}
};

static inline RowInt exponents(RowInt bits, s32 smallest) {
  const RowInt biased = bits >> 23 & 255, e = biased - 127;
  return (bits & 0x7fffffff) == 0 ? RowInt{} + OF_ZERO : e < smallest ? RowInt{} + smallest : e;
}

// The exponents of `count` floats, a multiple of 8. False if there is an infinity or no number among them.
static bool find_exponents(const u32 *bits, u32 count, u32 type, s32 *out) {
  const s32 smallest = Precision(type).smallest;
  RowInt most = RowInt{} + OF_ZERO;
  for (u32 n = 0; n < count; n += 8) {
    RowInt row;
    memcpy(&row, bits + n, sizeof row);
    const RowInt e = exponents(row, smallest);
    memcpy(out + n, &e, sizeof e);
    most = e > most ? e : most;
  }
  bool finite = true;
  for (int n = 0; n < 8; ++n) finite &= most[n] < OF_INFINITY;
  return finite;
}

struct Factors {  // and their exponents
  const float (*a)[MOST_K];
  const s32 (*a_exponents)[MOST_K];
  const float (*b)[8];
  const s32 (*b_exponents)[8];
};

// c += a · b for a row of 8 columns. False if it is beyond what this is made for.
static inline bool add_row(float *c, const Factors &f, u32 row, u32 depth, int kept, bool as_half) {
  RowInt bits, most;
  memcpy(&bits, c, sizeof bits);
  most = exponents(bits, -126);
  for (u32 k = 0; k < depth; ++k) {
    RowInt e;
    memcpy(&e, f.b_exponents[k], sizeof e);
    e += f.a_exponents[row][k];
    most = e > most ? e : most;
  }
  constexpr s32 SMALLEST = -90, NOTHING = -400;  // less than NOTHING: there is a zero in all products
  const RowInt beyond = (most > 100) | ((most < SMALLEST) & (most > NOTHING));
  for (int n = 0; n < 8; ++n)
    if (beyond[n]) return false;
  most = most < SMALLEST ? RowInt{} + SMALLEST : most;
  const Row scale = Row((127 + kept - most) << 23);
  RowInt sum = {};
  for (u32 k = 0; k < depth; ++k) {
    Row b;
    memcpy(&b, f.b[k], sizeof b);
    sum += __builtin_convertvector(f.a[row][k] * b * scale, RowInt);  // cuts off; 16 of them fit
  }
  const RowInt last = __builtin_convertvector(Row(bits) * scale, RowInt);
  RowDouble total = __builtin_convertvector(sum, RowDouble) + __builtin_convertvector(last, RowDouble);
  total *= RowDouble((__builtin_convertvector(most, RowBits) + (1023 - kept)) << 52);
  if (as_half)
    for (int n = 0; n < 8; ++n) c[n] = odd_float(total[n]);
  else {
    const Row rounded =
        __builtin_convertvector(RowDouble(RowBits(total) & u64(~0ull << (52 - std::min(kept, 23)))), Row);
    memcpy(c, &rounded, sizeof rounded);
  }
  return true;
}

static void add_products(float (*c)[8], const Factors &f, u32 depth, int kept, bool as_half, bool finite) {
  for (u32 row = 0; row < 16; ++row)
    if (!finite || !add_row(c[row], f, row, depth, kept, as_half))
      for (u32 k = 0; k < depth; ++k)
        for (int n = 0; n < 8; ++n) c[row][n] += f.a[row][k] * f.b[k][n];
}

// ---- issue ----

static void trace_pieces(Warp &w, const Warpgroup::Part &mine) {
  const Operands s(*mine.i);
  const auto row = [&](const std::vector<u32> &pieces, u32 first, u32 end) {
    for (; first < end; first += LANES) {
      u64 address[LANES] = {};
      const u32 count = std::min(end - first, u32(LANES));
      std::copy_n(pieces.begin() + first, count, address);
      trace_access(w, *mine.i, count == LANES ? ALL : (1u << count) - 1, Space::SHARED, WGMMA, address, 16);
      --w.seq;
    }
  };
  std::vector<u32> a, b;
  if (!s.a_count) list_pieces(Matrix(mine.a, s.flags & TRANSPOSE_A), w.index % 4 * 2, 2, s.depth, a);
  list_pieces(Matrix(mine.b, s.flags & TRANSPOSE_B), 0, s.columns / 8, s.depth, b);
  const u32 quarter = u32(b.size()) / 4, first = w.index % 4 * quarter;  // as if the warps shared it out
  row(a, 0, u32(a.size()));
  row(b, first, first + quarter);
  ++w.seq;
}

void Block::issue(Warp &w, Warpgroup::Part mine) {
  const Instr &i = *mine.i;
  const Operands s(i);
  const u32 who = thread(w, 0);
  const Program::Touch &registers = program.touches.at(i.pc);
  const u64 number = w.products_issued++;
  Warpgroup::Product &product = warpgroup(w).products[number];
  if (!product.issued++) product.first = w.index;
  if (launch.count) {
    ++counters[i.pc].requests;
    counters[i.pc].bytes += (s.a_count ? 0 : 16 * 32) + s.columns * 32 / 4;
  }
  if (traced) trace_pieces(w, mine);
  if (cluster.noting) cluster.note(w, i.pc, EVENT_WGMMA, 0, w.product_group, s.columns);
  if (launch.sanitize) {
    mine.past = async_past(w);
    const Warpgroup::Part &first = product.part[product.first % 4];
    if (first.i && (first.i != &i || first.a != mine.a || first.b != mine.b))
      report(Problem::WARPGROUP_APART, i.pc, who, 0, 0, product.first * LANES, first.i->pc);
    for (const bool is_a : {true, false}) {
      const Matrix m(is_a ? mine.a : mine.b, false);
      if (is_a && s.a_count) continue;
      // Both wgmma and a bulk copy swizzle by the bits of the address. So a tile may begin anywhere if one copied it and
      // the other reads it from there; but not if the descriptor's base offset says that a pattern begins there.
      const u32 rows = m.swizzled / 16 - 1, phase = ((m.start >> 7) - m.base) & rows;
      const Visit *v = boxed(m.start);
      const bool moved = v && v->shifted && 16u << v->swizzle == m.swizzled;
      const bool together = moved && !(m.base & rows) && !(((m.start >> 7) - (v->shifted >> 7)) & rows);
      if (phase && !together)
        report(Problem::WGMMA_PATTERN, i.pc, who, m.start, m.swizzled | u32(is_a) << 16);
      else if (moved && !phase)
        report_shifted(*v, Problem::SWIZZLE_OFFSET, -CERTAIN, who, i.pc);
    }
    const auto access = [&](u32 number, bool result) {
      const WgmmaRegister &r = w.registers[number];
      if (r.users) {
        const Operands other(program.code[r.pc]);
        const bool alike = result && r.result && s.columns == other.columns && s.depth == other.depth;
        if (!alike && (result || r.result))
          report(result ? Problem::WGMMA_REGISTER_WRITTEN : Problem::WGMMA_REGISTER_READ, i.pc, who, 0, 0, MANY_THREADS,
                 r.pc);
      }
      return r.touched;
    };
    u32 touched = NO_PC;
    for (const u32 r : registers.reads) touched = std::min(touched, access(r, false));
    for (const u32 r : registers.writes) touched = std::min(touched, access(r, true));
    const bool never = w.product_fence == WgmmaFence::NEVER;
    if (never || (w.product_fence == WgmmaFence::BEFORE_WAIT && touched != NO_PC))
      report(Problem::WGMMA_NO_FENCE, i.pc, who, 0, 0, MANY_THREADS, never ? NO_PC : touched);
  }
  for (const u32 r : registers.reads) ++w.registers[r].users, w.registers[r].pc = i.pc, w.registers[r].result = false;
  for (const u32 r : registers.writes) ++w.registers[r].users, w.registers[r].pc = i.pc, w.registers[r].result = true;
  w.products.push_back({number, w.product_group, &i});
  product.part[w.index % 4] = std::move(mine);
  if (product.issued < 4) return;
  for (u32 v = w.index & ~3u; v < std::min(w.index / 4 * 4 + 4, u32(warps.size())); ++v)
    for (Group &g : warps[v].groups)
      if (g.waiting == FOR_WARPGROUP) g.waiting = RUNNABLE;
}

template <class T>
static void issue(Warp &w, const Instr &i, u32 m) {
  const int lane = __builtin_ctz(m);
  const Operands s(i);
  Warpgroup::Part mine{&i, 0, w.reg<u64>(i.o[10])[lane], bool(w.pred(i.o[8]) >> lane & 1), false, {}, {}};
  if (s.a_count) {
    alignas(64) T a[16][MOST_K];
    read_a(w, s.a, s.a_count, s.a_type, a);
    mine.a_rows.resize(16 * s.depth);
    for (u32 row = 0; row < 16; ++row) memcpy(&mine.a_rows[row * s.depth], a[row], s.depth * sizeof(T));
  } else
    mine.a = w.reg<u64>(i.o[9])[lane];
  w.block->issue(w, std::move(mine));
}

static void fence(Warp &w, const Instr &, u32) {
  w.product_fence = WgmmaFence::SINCE_WAIT;
  for (WgmmaRegister &r : w.registers) r.touched = NO_PC;
}

// ---- and wait ----

// B as it was converted last: the four parts of a product mostly have the same.
struct Converted {
  const Instr *i = nullptr;
  u64 descriptor = 0;
  std::vector<u32> words;
  std::vector<s32> exponents;
  bool finite = true;
};

template <class T>
static void multiply(Warp &w, const Warpgroup::Part &mine, Converted &b) {
  constexpr bool FLOATING = std::is_same<T, float>::value;
  const Operands s(*mine.i);
  alignas(64) T a[16][MOST_K], tile[16][8];
  if (s.a_count)
    for (u32 row = 0; row < 16; ++row) memcpy(a[row], &mine.a_rows[row * s.depth], s.depth * sizeof(T));
  else
    read_rows(*w.block, Matrix(mine.a, s.flags & TRANSPOSE_A), w.index % 4 * 16, s, a);
  if (s.flags & NEGATE)
    for (auto &row : a)
      for (u32 k = 0; k < s.depth; ++k) row[k] = -row[k];
  if (b.i != mine.i || b.descriptor != mine.b) {
    b.i = mine.i, b.descriptor = mine.b;
    b.words.resize(s.columns * s.depth);
    read_columns(*w.block, Matrix(mine.b, s.flags & TRANSPOSE_B), s, reinterpret_cast<T(*)[8]>(b.words.data()));
    b.exponents.resize(b.words.size());
    if (FLOATING) b.finite = find_exponents(b.words.data(), u32(b.words.size()), s.b_type, b.exponents.data());
  }
  alignas(64) s32 a_exponents[16][MOST_K];
  bool finite = b.finite;
  for (u32 row = 0; FLOATING && row < 16; ++row)
    finite &= find_exponents(reinterpret_cast<const u32 *>(a[row]), s.depth, s.a_type, a_exponents[row]);
  const auto columns = reinterpret_cast<const T(*)[8]>(b.words.data());
  const u32 step = s.halves ? 2 : 4;
  for (u32 n = 0; n < s.columns / 8; ++n) {
    if (mine.accumulate)
      read_c(w, s.d + step * n, s.halves, tile);
    else
      memset(tile, 0, sizeof tile);
    if constexpr (FLOATING)
      add_products(
          tile,
          {a, a_exponents, columns + n * s.depth, reinterpret_cast<const s32(*)[8]>(b.exponents.data()) + n * s.depth},
          s.depth, Precision(s.a_type).kept, s.halves, finite);
    else if (s.flags & BITS)
      count_bits(tile, a, columns + n * s.depth, s.depth, false);
    else
      multiply(tile, a, columns + n * s.depth, s.depth, s.flags & SATURATE);
    write_d(w, s.d + step * n, s.halves, tile, ALL);
  }
}

// Where the product reads shared memory.
static std::vector<u32> pieces(const Warpgroup::Product &product) {
  std::vector<u32> out;
  const Warpgroup::Part &first = product.part[product.first % 4];
  const Operands s(*first.i);
  if (!s.a_count) list_pieces(Matrix(first.a, s.flags & TRANSPOSE_A), 0, 8, s.depth, out);
  list_pieces(Matrix(first.b, s.flags & TRANSPOSE_B), 0, s.columns / 8, s.depth, out);
  return out;
}

// The product happens now, for all warps that have issued it: the warpgroup multiplies together. A warp that waits later
// has its numbers a little sooner than it may look at them.
void Block::finish(Warp &w, u64 number) {
  Warpgroup::Product &product = warpgroup(w).products.at(number);
  if (!product.read) {
    product.read = true;
    const u32 pc = product.part[product.first % 4].i->pc;
    const std::vector<u32> addresses = pieces(product);
    const u32 last = *std::max_element(addresses.begin(), addresses.end());
    if (last + 16 > launch.shared_bytes) {  // hardware notices if it is not the block's at all
      const bool fatal = last + 16 > launch.shared_window;
      report(fatal ? Problem::WGMMA_BOUNDS : Problem::SHARED_PAST_END, pc, product.first * LANES, last, 16);
      if (fatal) return halt();
    }
    if (launch.sanitize) read_operands(w, number, product);
  }
  static thread_local Converted b;
  b.i = nullptr;
  for (u32 part = 0; part < 4; ++part) {
    Warpgroup::Part &mine = product.part[part];
    if (!mine.i || mine.done) continue;
    mine.done = true;
    Warp &v = warps[w.index / 4 * 4 + part];
    mine.i->o[2] == ELEMENT_S8 || mine.i->o[2] == ELEMENT_U8 || mine.i->o[2] == ELEMENT_B1
        ? multiply<s32>(v, mine, b)
        : multiply<float>(v, mine, b);
  }
}

// Wait for all products but those of the last groups. False if others of the warpgroup have to issue theirs first.
bool Block::wait_for_products(Warp &w, const Instr &i) {
  const auto over = [&](const Wgmma &p) { return p.group + i.o[0] < w.product_group; };
  auto &products = warpgroup(w).products;
  for (const Wgmma &p : w.products)
    if (over(p) && products.at(p.number).issued < 4 && !w.alone) {
      if (cluster.noting) cluster.note_wait(w, i.pc, EVENT_WGMMA_WAIT, 0, 0, 0);
      return false;
    }
  const u32 before = w.product_group - std::min(w.product_group, i.o[0]);
  if (cluster.noting) cluster.note_wait(w, i.pc, EVENT_WGMMA_PASS, 0, before, 0);
  u64 last = 0;
  for (const Wgmma &p : w.products) {
    if (!over(p)) continue;
    finish(w, p.number);
    if (stopped) return true;
    const Program::Touch &registers = program.touches.at(p.i->pc);
    for (const auto *list : {&registers.reads, &registers.writes})
      for (const u32 r : *list) --w.registers[r].users;
    last = p.number + 1;
    if (++products.at(p.number).waited == 4) products.erase(p.number);
  }
  w.products.erase(std::remove_if(w.products.begin(), w.products.end(), over), w.products.end());
  if (w.product_fence == WgmmaFence::SINCE_WAIT) w.product_fence = WgmmaFence::BEFORE_WAIT;
  if (last && launch.sanitize) {
    const u64 actor = products_of(index, w.index / 4);
    take_from(w, std::make_shared<Past>(Past{{actor << 6, u32(last + 1)}}));
  }
  return true;
}

// No thread can go on. Warps that wait for others of their warpgroup go on.
bool Block::release_warpgroups() {
  bool released = false;
  for (Warp &w : warps)
    for (Group &g : w.groups)
      if (g.waiting == FOR_WARPGROUP) {
        g.waiting = RUNNABLE;
        w.alone = released = true;
      }
  return released;
}

// ---- registers that wgmma has ----

static void touching(Warp &w, const Instr &i, u32 m) {
  if (!w.mirrored) w.block->touch_registers(w, i, m);
  w.block->program.touches.at(i.pc).run(w, i, m);
}

void Block::touch_registers(Warp &w, const Instr &i, u32 mask) {
  const Program::Touch &t = program.touches.at(i.pc);
  const auto early = [&](u32 r) { return w.registers[r].users && w.registers[r].result; };
  if (t.copies && std::any_of(t.reads.begin(), t.reads.end(), early)) {  // the compiler's doing: ptxas sees to it
    for (const Wgmma &p : w.products) finish(w, p.number);
  }
  const auto touch = [&](const std::vector<u32> &numbers, Problem problem, bool written) {
    for (const u32 number : numbers) {
      WgmmaRegister &r = w.registers[number];
      if (launch.sanitize && r.users && (written || (r.result && !t.copies)))
        report(problem, i.pc, thread(w, __builtin_ctz(mask)), 0, 0, MANY_THREADS, r.pc);
      r.touched = i.pc;
    }
  };
  touch(t.reads, Problem::WGMMA_REGISTER_READ, false);
  touch(t.writes, Problem::WGMMA_REGISTER_WRITTEN, true);
}

// `entries`: of each instruction.
void Program::find_products(const std::vector<const Entry *> &entries) {
  std::unordered_map<u32, u32> numbers;  // by place in the frame
  const auto is_product = [&](const Instr &i) { return entries[i.pc]->about.effect == Effect::MULTIPLIES_LATER; };
  for (const Instr &i : code) {
    if (!is_product(i)) continue;
    const Operands s(i);
    Touch &t = touches[i.pc];
    for (u32 n = 0; n < s.d_count + s.a_count; ++n)
      (n < s.d_count ? t.writes : t.reads).push_back(numbers.emplace(s.d[n], u32(numbers.size())).first->second);
  }
  product_registers = u32(numbers.size());
  for (Instr &i : code) {
    if (numbers.empty() || is_product(i) || !i.run) continue;
    Touch t{i.run, entries[i.pc]->about.effect == Effect::COPIES, {}, {}};
    const auto note = [&](u32 place, bool read, bool written) {
      const auto found = numbers.find(place);
      if (found == numbers.end()) return;
      if (read) t.reads.push_back(found->second);
      if (written) t.writes.push_back(found->second);
    };
    u32 n = 0;
    for (const char *at = entries[i.pc]->operands; *at && n < i.count;) {
      const char what = *at;
      bool many = false;
      for (; *at && *at != ' '; ++at) many |= *at == '+';
      while (*at == ' ') ++at;
      if (what != 'n') note(i.o[n], what == 's', what == 'd');
      ++n;
      for (; many && n < i.count; ++n) note(i.o[n], what == 's' || *at, what == 'd');  // more may follow: either
    }
    if (t.reads.empty() && t.writes.empty()) continue;
    touches.emplace(i.pc, std::move(t));
    i.run = touching;
  }
}

// ---- at the end ----

void Block::end_products(const Warp &w) {
  if (launch.sanitize) report(Problem::WGMMA_NO_WAIT, w.products.front().i->pc, thread(w, 0), 0, 0);
}

// What warps of a warpgroup must have done together.
void Block::end_warpgroups() {
  if (!launch.sanitize || stopped) return;
  u32 used = 0, last = NO_PC, who = 0;
  for (u32 warp = 0; warp < warps.size(); ++warp) {
    const Warpgroup &group = warpgroups[warp / 4];
    const u32 mine = group.registers[warp % 4];
    used += LANES * (mine ? mine : program.registers);
    if (mine > program.registers) last = group.registers_pc[warp % 4], who = warp * LANES;
  }
  if (program.registers && last != NO_PC && used > program.registers * warps.size() * LANES)
    report(Problem::REGISTERS_EXCEEDED, last, who, used, program.registers * u32(warps.size()) * LANES);
  for (u32 first = 0; first < warps.size(); first += 4) {
    const Warpgroup &group = warpgroups[first / 4];
    for (const auto &[number, product] : group.products)
      if (product.issued < 4) {
        report(Problem::WARPGROUP_INCOMPLETE, product.part[product.first % 4].i->pc, product.first * LANES,
               product.issued, 0);
        break;
      }
    const u32 *pc = group.registers_pc;
    const u32 set = 4 - std::count(group.registers, group.registers + 4, 0u);
    for (u32 warp = 0; warp < 4; ++warp)
      if (group.registers[warp] && set < 4)
        report(Problem::WARPGROUP_INCOMPLETE, pc[warp], (first + warp) * LANES, set, 0);
      else if (group.registers[warp] && pc[warp] != pc[0])
        report(Problem::WARPGROUP_APART, pc[warp], (first + warp) * LANES, 0, 0, first * LANES, pc[0]);
  }
}

// setmaxnreg. o: registers
static void set_registers(Warp &w, const Instr &i, u32) {
  Warpgroup &group = w.block->warpgroup(w);
  group.registers[w.index % 4] = i.o[0];
  group.registers_pc[w.index % 4] = i.pc;
}

// ---- the operands in shared memory ----

// Has what the cell tells of happened before? `fenced`: and a proxy fence after it?
bool Block::happened(const AsyncPast &past, Cell cell, bool fenced) const {
  const auto &times = fenced ? past.fenced : past.time;
  if (cell.is(Cell::BY_MANY_WARPS) && !cell.visited())
    return cell.time() < *std::min_element(times.begin(), times.end());
  if (!cell.visited()) return cell.time() < times[cell.warp()];
  const Visit &v = cluster.visits[cell.visit()];
  if (is_cp_async(v.copy)) return v.time < known(past.others, fenced ? v.copy | PROXY_FENCED : v.copy, NO_WARP);
  if (v.copy) return fenced || v.time < known(past.others, v.copy, NO_WARP);
  if (v.block == index) return v.time < times[v.warp];
  return v.time < known(past.others, fenced ? v.block | PROXY_FENCED : v.block, v.warp);
}

// Does a proxy fence come between what the cell tells of and what the warp does now?
bool Block::proxy_fenced(const Warp &w, Cell cell) const {
  return happened({{}, fenced_times(w), w.knows.others}, cell, true);
}

// One granule, which looks as if something was wrong with it. `parts`: a bit for each warp that reads it.
void Block::check_operand(const Warp &w, const Warpgroup::Product &product, u32 at, u32 parts, u32 swizzled) {
  const Cell written = written_by[at];
  const u32 where = at << program.granule_log2, bytes = std::max(1u << program.granule_log2, 1u), group = w.index / 4;
  const Instr &i = *product.part[product.first % 4].i;
  const auto report_here = [&](Problem problem) { report(problem, i.pc, product.first * LANES, where, bytes); };
  if (!written) return report_here(Problem::SHARED_UNINITIALISED);
  u32 issued = 0;  // when the last warp did
  for (u32 part = 0; part < 4; ++part)
    if (product.part[part].i) issued = std::max(issued, product.part[part].past.time[4 * group + part]);
  if (!written.visited() && !written.is(Cell::BY_MANY_WARPS)) {
    const bool own = written.warp() / 4 == group && product.part[written.warp() % 4].i;
    const u32 since = own ? product.part[written.warp() % 4].past.time[written.warp()] : issued;
    if (written.time() >= since)
      return report(Problem::WGMMA_OPERAND_WRITTEN, written.pc(), written.thread(), where, bytes, product.first * LANES,
                    i.pc);
  }
  if (written.is(Cell::IN_FLIGHT))
    return report(Problem::COPY_IN_FLIGHT, i.pc, product.first * LANES, where, bytes, written.other_than(NO_PC),
                  written.pc());
  if (written.visited()) {
    const Visit &v = cluster.visits[written.visit()];
    if (v.swizzle != NO_SWIZZLE && 16u << v.swizzle != swizzled)
      report(Problem::WGMMA_SWIZZLE, i.pc, product.first * LANES, where, swizzled | v.swizzle << 16,
             v.warp * LANES + v.lane, v.pc, v.block);
  }
  for (Cell last = written; last; last = cluster.before(last))
    for (const bool fenced : {false, true})
      for (u32 part = 0; part < 4; ++part)
        if (parts >> part & 1 && product.part[part].i && !happened(product.part[part].past, last, fenced))
          return report_visit(fenced ? Problem::NO_PROXY_FENCE : Problem::RACE_READ_AFTER_WRITE,
                              warps[4 * group + part], i, 0, where, bytes, *this, last);
}

// Each warp of the product must know that what it reads has been written, its own rows of A and all of B; and a thread
// may overwrite it only if it knows of a wait for the product. Most granules have the state of their neighbours.
void Block::read_operands(const Warp &w, u64 number, const Warpgroup::Product &product) {
  const u32 shift = program.granule_log2, pc = product.part[product.first % 4].i->pc;
  const u64 actor = products_of(index, w.index / 4);
  const Warpgroup::Part &first = product.part[product.first % 4];
  const std::vector<u32> addresses = pieces(product);
  const size_t of_a = addresses.size() - Operands(*first.i).columns * 2;
  u32 limit[32], parts = 0;
  u64 fine = 0, before = ~0ull, after = 0;
  for (size_t n = 0; n < addresses.size(); ++n) {
    const u32 from = addresses[n], readers = n < of_a ? 1u << 4 * n / of_a : 15;
    if (readers != parts) {
      parts = readers, fine = 0;
      std::fill(limit, limit + 32, ~0u);
      for (u32 part = 0; part < 4; ++part)
        for (u32 v = 0; parts >> part & 1 && product.part[part].i && v < warps.size(); ++v)
          limit[v] = std::min({limit[v], product.part[part].past.time[v], product.part[part].past.fenced[v]});
    }
    if (from + 16 > launch.shared_bytes) continue;
    if (shared_tainted && undefined_shared(from, 16))
      report(Problem::UNDEFINED_PRODUCT, pc, product.first * LANES, 0, n < of_a ? OPERAND_A : OPERAND_B);
    for (u32 at = from >> shift; at <= (from + 15) >> shift; ++at) {
      const Cell written = written_by[at];
      if (written.word != fine || !fine) {
        constexpr u64 UNUSUAL = Cell::IN_FLIGHT | Cell::BY_MANY_WARPS;
        if (!written || written.is(UNUSUAL) || written.time() >= limit[written.warp()])
          check_operand(w, product, at, parts, Matrix(n < of_a ? first.a : first.b, false).swizzled);
        fine = written.word;
      }
      Cell &read = read_by[at];
      if (read.word != before) {
        before = read.word;
        const Visit visit{index, product.first, u32(number + 1), WHOLE_WARP, pc, unordered(w, 0, *this, read), actor};
        after = cluster.visits.size() < Cluster::MOST_VISITS
                    ? Cell::by_visit(cluster.remember(visit), 0).word
                    : u64(Cell::BY_MANY_WARPS);
      }
      read.word = after;
    }
  }
}

void register_wgmma(Registry &r) {
  const char *const product = "n n n n n n n n s0 s8? s8 d4+ s4+";
  constexpr About multiplies = About::does(Effect::MULTIPLIES_LATER, "wgmma", Undefined::WARPGROUP);
  constexpr About orders = About::does(Effect::ORDERS, "control", Undefined::NOTHING);
  enter(r, {{"wgmma.f32", issue<float>, product, multiplies},
            {"wgmma.s32", issue<s32>, product, multiplies},
            {"wgmma.fence", fence, "", orders},
            {"wgmma.commit_group", [](Warp &w, const Instr &, u32) { ++w.product_group; }, "", orders},
            {"wgmma.wait_group", nullptr, "n", orders},
            {"setmaxnreg", set_registers, "n", About::does(Effect::STEERS, "control", Undefined::NOTHING)}});
}

}  // namespace vm
