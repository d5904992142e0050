// printf of device code: the call to vprintf(format, arguments), with the arguments packed as the calling code packs them.
#include <algorithm>
#include <cstdio>

#include "block.h"

namespace vm {

constexpr size_t MOST_OUTPUT = 1 << 20;  // bytes per block; a kernel that prints in every thread prints a lot
constexpr u64 PRINT_COST = 8;            // in instructions, for each thread

// `bytes` at a generic address as a thread sees it; null if that is nowhere.
static const u8 *resolve(const Block &b, u32 thread, u64 address, u64 bytes) {
  const u64 offset = address & ~WINDOW_MASK;
  switch (address & WINDOW_MASK) {
    case SHARED_WINDOW:
      return within(offset, bytes, 0, b.launch.shared_bytes) ? b.shared + offset : nullptr;
    case LOCAL_WINDOW:
      return within(offset, bytes, 0, b.program.local_bytes) ? b.local + u64(thread) * b.local_stride + offset : nullptr;
    default:
      for (const Allocation &a : b.launch.allocations)
        if (within(address, bytes, a.base, a.size)) return reinterpret_cast<const u8 *>(address);
      return nullptr;
  }
}

static std::string read_string(const Block &b, u32 thread, u64 address) {
  std::string text;
  for (const u8 *at; (at = resolve(b, thread, address + text.size(), 1)) && *at;) text += char(*at);
  return text;
}

// `taken`: how many arguments the text has asked for; `unset`: the first of them that nobody has set, from 1; 0: none.
static std::string format(const Block &b, u32 thread, const std::string &text, u64 arguments, u32 *taken, u32 *unset) {
  std::string out;
  u64 offset = 0;
  const auto take = [&](u64 bytes) {
    offset = (offset + bytes - 1) / bytes * bytes;
    const u8 *at = resolve(b, thread, arguments + offset, bytes);
    ++*taken;
    if (const u64 from = (arguments & ~WINDOW_MASK) + offset;
        at && b.local_undefined && (arguments & WINDOW_MASK) == LOCAL_WINDOW) {
      u8 *bits = b.local_undefined + u64(thread) * b.local_stride + from;
      if (!*unset && std::any_of(bits, bits + bytes, [](u8 x) { return x; })) *unset = *taken;
      memset(bits, 0xff, bytes);  // the next call has its own arguments, in the same place
    }
    offset += bytes;
    u64 value = 0;
    if (at) memcpy(&value, at, bytes);
    return value;
  };
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%' || at + 1 == text.size()) {
      out += text[at];
      continue;
    }
    std::string spec = "%";
    bool wide = false;
    for (++at; at < text.size() && strchr("0123456789.+-# *hlLjzt", text[at]); ++at) {
      if (strchr("lLjzt", text[at]))
        wide = true;
      else if (text[at] == '*')
        spec += std::to_string(s32(take(4)));
      else if (text[at] != 'h')
        spec += text[at];
    }
    if (at == text.size()) break;
    char piece[512];
    const char kind = text[at];
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (strchr("di", kind)) {
      const u64 value = take(wide ? 8 : 4);
      snprintf(piece, sizeof piece, (spec + "lld").c_str(), wide ? (long long)value : (long long)s32(value));
    } else if (strchr("uxXoc", kind))
      snprintf(piece, sizeof piece, (spec + (kind == 'c' ? "" : "ll") + kind).c_str(), take(wide ? 8 : 4));
    else if (strchr("eEfFgGaA", kind))
      snprintf(piece, sizeof piece, (spec + kind).c_str(), as<double>(take(8)));
    else if (kind == 'p')
      snprintf(piece, sizeof piece, (spec + 'p').c_str(), reinterpret_cast<void *>(take(8)));
    else if (kind == 's') {
      const std::string word = read_string(b, thread, take(8));
      std::string padded(snprintf(nullptr, 0, (spec + 's').c_str(), word.c_str()), ' ');
      snprintf(padded.data(), padded.size() + 1, (spec + 's').c_str(), word.c_str());
      out += padded;
      continue;
    } else {
      out += spec + kind;
      continue;
    }
    out += piece;
  }
  return out;
}

// o: base, then where in local memory the parameters are: format, arguments, and the result
static void print(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  u32 bad = 0, which = 0;  // lanes that print what nobody has set, and which argument it is in the first
  for (u32 rest = m; rest; rest &= rest - 1) {
    const u32 lane = __builtin_ctz(rest), thread = b.thread(w, lane);
    u8 *local = b.local + u64(thread) * b.local_stride + w.reg<u64>(i.o[0])[lane];
    u32 result = 0, unset = 0;
    if (b.printed < MOST_OUTPUT) {
      const std::string text = read_string(b, thread, bits_of<u64>(local + i.o[1]));
      const std::string said = format(b, thread, text, bits_of<u64>(local + i.o[2]), &result, &unset);
      b.output += said;
      b.printed += said.size();
      b.budget -= std::min(b.budget, PRINT_COST);
      if (b.printed >= MOST_OUTPUT) b.output += "\n(the block has printed a megabyte: the rest is left out)\n";
      if (unset && !bad) which = unset;
      bad |= u32(unset != 0) << lane;
    }
    memcpy(local + i.o[3], &result, sizeof result);
    b.defined(w, lane, w.reg<u64>(i.o[0])[lane] + i.o[3], sizeof result);
  }
  if (bad) b.report(Problem::UNDEFINED_PRINT, i.pc, b.thread(w, __builtin_ctz(bad)), __builtin_popcount(bad), which);
}

// __assertfail. o: base, then where the parameters are: assertion, file, line, function, bytes of a character
static void assert_fail(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  const u32 lane = __builtin_ctz(m), thread = b.thread(w, lane);
  const u8 *local = b.local + u64(thread) * b.local_stride + w.reg<u64>(i.o[0])[lane];
  const auto text = [&](u32 n) { return read_string(b, thread, bits_of<u64>(local + i.o[n])); };
  const u32 *size = b.launch.block;
  const std::string place = text(2) + ":" + std::to_string(bits_of<u32>(local + i.o[3])) + ": " + text(4);
  const auto three = [](u32 x, u32 y, u32 z) {
    return "[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + "]";
  };
  b.output += place + ": block: " + three(b.ctaid[0], b.ctaid[1], b.ctaid[2]) +
              ", thread: " + three(thread % size[0], thread / size[0] % size[1], thread / size[0] / size[1]) +
              " Assertion `" + text(1) + "` failed.\n";
  b.report(Problem::ASSERTION, i.pc, thread, 0, 0);
  b.halt();
}

void register_print(Registry &r) {
  constexpr About serves = About::does(Effect::SERVES, "other", Undefined::NOTHING);
  enter(r, {{"vprintf", print, "s8 n n n", serves}, {"assertfail", assert_fail, "s8 n n n n n", serves}});
}

}  // namespace vm
