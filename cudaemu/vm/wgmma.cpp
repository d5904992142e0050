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

// What the warp reads of A and B, and how much of that it reads for itself alone.
struct Pieces {
  std::vector<u32> addresses;
  u32 own = 0;
};
static Pieces pieces(const Warp &w, const Wgmma &mine) {
  const Operands s(*mine.i);
  Pieces p;
  if (!s.a_count) list_pieces(Matrix(mine.a, s.flags & TRANSPOSE_A), w.index % 4 * 2, 2, s.depth, p.addresses);
  p.own = u32(p.addresses.size());
  list_pieces(Matrix(mine.b, s.flags & TRANSPOSE_B), 0, s.columns / 8, s.depth, p.addresses);
  return p;
}

// ---- issue ----

static void trace_pieces(Warp &w, const Wgmma &mine) {
  const Pieces p = pieces(w, mine);
  const auto row = [&](u32 first, u32 end) {
    for (; first < end; first += LANES) {
      u64 address[LANES] = {};
      const u32 count = std::min(end - first, u32(LANES));
      std::copy_n(p.addresses.begin() + first, count, address);
      trace_access(w, *mine.i, count == LANES ? ALL : (1u << count) - 1, Space::SHARED, WGMMA, address, 16);
      --w.seq;
    }
  };
  const u32 quarter = u32(p.addresses.size() - p.own) / 4, first = p.own + w.index % 4 * quarter;
  row(0, p.own);
  row(first, first + quarter);
  ++w.seq;
}

void Block::issue(Warp &w, Wgmma mine) {
  const Instr &i = *mine.i;
  const Operands s(i);
  const u32 who = thread(w, 0);
  const Program::Touch &registers = program.touches.at(i.pc);
  Warpgroup::Product &product = warpgroup(w).products[mine.number];
  if (!product.i) product.i = &i, product.descriptor_a = mine.a, product.descriptor_b = mine.b, product.thread = who;
  ++product.issued;
  if (launch.count) {
    ++counters[i.pc].requests;
    counters[i.pc].bytes += (s.a_count ? 0 : 16 * 32) + s.columns * 32 / 4;
  }
  if (traced) trace_pieces(w, mine);
  if (launch.sanitize) {
    mine.past = async_past(w);
    if (product.i != &i || product.descriptor_a != mine.a || product.descriptor_b != mine.b)
      report(Problem::WARPGROUP_APART, i.pc, who, 0, 0, product.thread, product.i->pc);
    for (const bool is_a : {true, false}) {
      const Matrix m(is_a ? mine.a : mine.b, false);
      const u32 phase = ((m.start >> 7) - m.base) & (m.swizzled / 16 - 1);
      if ((!is_a || !s.a_count) && phase)
        report(Problem::WGMMA_PATTERN, i.pc, who, m.start, m.swizzled | u32(is_a) << 16);
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
  w.products.push_back(std::move(mine));
}

template <class T>
static void issue(Warp &w, const Instr &i, u32 m) {
  const int lane = __builtin_ctz(m);
  const Operands s(i);
  Wgmma mine{
      &i, w.products_issued++, w.product_group, 0, w.reg<u64>(i.o[10])[lane], bool(w.pred(i.o[8]) >> lane & 1), {}, {}};
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

template <class T>
static void multiply(Warp &w, const Wgmma &mine) {
  Block &b = *w.block;
  const Operands s(*mine.i);
  alignas(64) T a[16][MOST_K], tile[16][8];
  if (s.a_count)
    for (u32 row = 0; row < 16; ++row) memcpy(a[row], &mine.a_rows[row * s.depth], s.depth * sizeof(T));
  else
    read_rows(b, Matrix(mine.a, s.flags & TRANSPOSE_A), w.index % 4 * 16, s, a);
  if (s.flags & NEGATE)
    for (auto &row : a)
      for (u32 k = 0; k < s.depth; ++k) row[k] = -row[k];
  Warpgroup &group = b.warpgroup(w);
  Warpgroup::Product &product = group.products[mine.number];
  std::unique_ptr<u32[]> own;
  std::unique_ptr<u32[]> &converted = product.i == mine.i && product.descriptor_b == mine.b ? product.b : own;
  if (!converted) {
    converted.reset(new u32[s.columns * s.depth]);
    read_columns(b, Matrix(mine.b, s.flags & TRANSPOSE_B), s, reinterpret_cast<T(*)[8]>(converted.get()));
  }
  const auto columns = reinterpret_cast<const T(*)[8]>(converted.get());
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

void Block::finish(Warp &w, const Wgmma &mine) {
  const std::vector<u32> addresses = pieces(w, mine).addresses;
  const u32 last = *std::max_element(addresses.begin(), addresses.end());
  if (last + 16 > launch.shared_bytes) {  // hardware notices if it is not the block's at all
    const bool fatal = last + 16 > launch.shared_window;
    report(fatal ? Problem::WGMMA_BOUNDS : Problem::SHARED_PAST_END, mine.i->pc, thread(w, 0), last, 16);
    if (fatal) return halt();
  }
  if (launch.sanitize) async_read(w, *mine.i, mine.past, addresses, 16);
  const Program::Touch &registers = program.touches.at(mine.i->pc);
  for (const auto *list : {&registers.reads, &registers.writes})
    for (const u32 r : *list) --w.registers[r].users;
  mine.i->run == ::vm::issue<float> ? multiply<float>(w, mine) : multiply<s32>(w, mine);
}

// Do all products but those of the last `keep` groups.
static void wait(Warp &w, const Instr &i, u32) {
  const auto over = [&](const Wgmma &p) { return p.group + i.o[0] < w.product_group; };
  for (const Wgmma &p : w.products)
    if (over(p)) w.block->finish(w, p);
  w.products.erase(std::remove_if(w.products.begin(), w.products.end(), over), w.products.end());
  if (w.product_fence == WgmmaFence::SINCE_WAIT) w.product_fence = WgmmaFence::BEFORE_WAIT;
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
    for (const Wgmma &p : w.products) finish(w, p);
    w.products.clear();
  }
  const auto touch = [&](const std::vector<u32> &numbers, Problem problem, bool written) {
    for (const u32 number : numbers) {
      WgmmaRegister &r = w.registers[number];
      if (launch.sanitize && r.users && (written || r.result))
        report(problem, i.pc, thread(w, __builtin_ctz(mask)), 0, 0, MANY_THREADS, r.pc);
      r.touched = i.pc;
    }
  };
  touch(t.reads, Problem::WGMMA_REGISTER_READ, false);
  touch(t.writes, Problem::WGMMA_REGISTER_WRITTEN, true);
}

// `names`, `operands`: of the handler of each instruction.
void Program::find_products(const std::vector<std::string> &names, const std::vector<const char *> &operands) {
  std::unordered_map<u32, u32> numbers;  // by place in the frame
  const auto is_product = [&](const Instr &i) {
    return names[i.o[-7]] == "wgmma.f32" || names[i.o[-7]] == "wgmma.s32";
  };
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
    Touch t{i.run, !names[i.o[-7]].compare(0, 4, "mov."), {}, {}};
    const auto note = [&](u32 place, bool read, bool written) {
      const auto found = numbers.find(place);
      if (found == numbers.end()) return;
      if (read) t.reads.push_back(found->second);
      if (written) t.writes.push_back(found->second);
    };
    u32 n = 0;
    for (const char *at = operands[i.o[-7]]; *at && n < i.count;) {
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
        report(Problem::WARPGROUP_INCOMPLETE, product.i->pc, product.thread, product.issued, 0);
        break;
      }
    const u32 *pc = group.registers_pc;
    const u32 set = 4 - std::count(group.registers, group.registers + 4, 0u);
    for (u32 warp = 0; warp < 4 && set; ++warp)
      if (group.registers[warp] && set < 4)
        report(Problem::WARPGROUP_INCOMPLETE, pc[warp], (first + warp) * LANES, set, 0);
      else if (pc[warp] != pc[0])
        report(Problem::WARPGROUP_APART, pc[warp], (first + warp) * LANES, 0, 0, first * LANES, pc[0]);
  }
}

// setmaxnreg. o: registers
static void set_registers(Warp &w, const Instr &i, u32) {
  Warpgroup &group = w.block->warpgroup(w);
  group.registers[w.index % 4] = i.o[0];
  group.registers_pc[w.index % 4] = i.pc;
}

// ---- reads by the async proxy ----

// Has what the cell tells of happened before? `fenced`: and a proxy fence after it?
bool Block::happened(const AsyncPast &past, Cell cell, bool fenced) const {
  const auto &times = fenced ? past.fenced : past.time;
  if (!cell.visited())
    return cell.time() <
           (cell.is(Cell::BY_MANY_WARPS) ? *std::min_element(times.begin(), times.end()) : times[cell.warp()]);
  const Visit &v = cluster.visits[cell.visit()];
  if (v.copy) return fenced || v.time < known(past.others, v.copy, NO_WARP);
  if (v.block == index) return v.time < times[v.warp];
  return v.time < known(past.others, fenced ? v.block | PROXY_FENCED : v.block, v.warp);
}

// Does a proxy fence come between what the cell tells of and what the warp does now?
bool Block::proxy_fenced(const Warp &w, Cell cell) const {
  return happened({{}, fenced_times(w), w.knows.others}, cell, true);
}

// One granule. What was written after the read began, too.
void Block::check_async_read(const Warp &w, const Instr &i, const AsyncPast &past, u32 at, u32 bytes) {
  const Cell written = written_by[at];
  const u32 where = at << program.granule_log2, who = thread(w, 0);
  if (!written) return report(Problem::SHARED_UNINITIALISED, i.pc, who, where, bytes);
  if (!written.visited() && written.time() >= past.time[w.index])  // since it was issued
    return report(Problem::WGMMA_OPERAND_WRITTEN, written.pc(), written.thread(), where, bytes, who, i.pc);
  if (written.is(Cell::IN_FLIGHT))
    return report(Problem::COPY_IN_FLIGHT, i.pc, who, where, bytes, written.other_than(NO_PC), written.pc());
  if (written.is(Cell::UNDEFINED)) report_visit(Problem::SHARED_UNDEFINED, w, i, 0, where, bytes, *this, written);
  for (Cell last = written; last; last = cluster.before(last))
    for (const bool fenced : {false, true})
      if (!happened(past, last, fenced))
        return report_visit(fenced ? Problem::NO_PROXY_FENCE : Problem::RACE_READ_AFTER_WRITE, w, i, 0, where, bytes,
                            *this, last);
}

// Pieces of shared memory that have been read in the background since `past`, and are no longer from now on. Most of them
// tell what their neighbours tell.
void Block::async_read(const Warp &w, const Instr &i, const AsyncPast &past, const std::vector<u32> &address,
                       u32 bytes) {
  u32 limit[32];
  for (u32 v = 0; v < warps.size(); ++v) limit[v] = std::min(past.time[v], past.fenced[v]);
  const u32 shift = program.granule_log2;
  u64 fine = 0, before = ~0ull, after = 0;
  for (const u32 from : address)
    for (u32 at = from >> shift; at <= (from + bytes - 1) >> shift; ++at) {
      const Cell written = written_by[at];
      if (written.word != fine || !fine) {
        constexpr u64 UNUSUAL = Cell::IN_FLIGHT | Cell::BY_MANY_WARPS | Cell::UNDEFINED;
        if (!written || written.is(UNUSUAL) || written.time() >= limit[written.warp()])
          check_async_read(w, i, past, at, bytes);
        fine = written.word;
      }
      if (Cell &read = read_by[at]; read.word != before) {
        before = read.word;
        const Cell others = unordered(w, 0, *this, read);
        const bool room = cluster.visits.size() < Cluster::MOST_VISITS;
        after = room ? Cell::by_visit(cluster.remember({index, w.index, w.time, WHOLE_WARP, i.pc, others}), 0).word
                     : u64(Cell::BY_MANY_WARPS);
      }
      read_by[at].word = after;
    }
}

void register_wgmma(Registry &r) {
  const char *const product = "n n n n n n n n s0 s8? s8 d4+ s4+";
  enter(r, {{"wgmma.f32", issue<float>, product},
            {"wgmma.s32", issue<s32>, product},
            {"wgmma.fence", fence, ""},
            {"wgmma.commit_group", [](Warp &w, const Instr &, u32) { ++w.product_group; }, ""},
            {"wgmma.wait_group", wait, "n"},
            {"setmaxnreg", set_registers, "n"}});
}

}  // namespace vm
