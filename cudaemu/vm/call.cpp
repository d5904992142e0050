// Real calls: of functions that are entered through a pointer, or that call themselves. Each thread has a stack
// in its local memory. A frame begins where its caller's ends: where to return to, the caller's frame, results, parameters,
// local variables, and the registers that the function must not lose when it is entered again.
#include <algorithm>

#include "block.h"

namespace vm {

static u8 *local_memory(const Block &b, const Warp &w, int lane, u64 offset) {
  return b.local + u64(b.thread(w, lane)) * b.local_stride + offset;
}

// Of one lane: push a frame.
struct FrameHeader { u64 return_pc, caller; };

static bool fits(Block &b, const Warp &w, const Instr &i, int lane, u64 offset, u64 bytes) {
  if (within(offset, bytes, 0, b.program.local_bytes)) return true;
  b.report(Problem::STACK_OVERFLOW, i.pc, b.thread(w, lane), b.program.local_bytes - b.program.local_static, 0);
  b.halt();
  return false;
}

// o: base, offset, base, offset, bytes
static void copy_local(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const u64 from = w.reg<u64>(i.o[0])[lane] + i.o[1], to = w.reg<u64>(i.o[2])[lane] + i.o[3];
    if (!fits(b, w, i, lane, std::max(from, to), i.o[4])) return;
    memmove(local_memory(b, w, lane, to), local_memory(b, w, lane, from), i.o[4]);
    if (u8 *bits = b.local_undefined) {
      bits += u64(b.thread(w, lane)) * b.local_stride;
      memmove(bits + to, bits + from, i.o[4]);
    }
  }
}

// A lane's part of a register to memory, or from there.
template <bool SAVE>
static void move(u8 *memory, u8 *slot, int lane, u32 width) {
  if (width) {
    SAVE ? memcpy(memory, slot + lane * width, width) : memcpy(slot + lane * width, memory, width);
    return;
  }
  u32 predicate = bits_of<u32>(slot);
  if (SAVE)
    *memory = predicate >> lane & 1;
  else
    predicate = (predicate & ~(1u << lane)) | u32(*memory & 1) << lane;
  memcpy(slot, &predicate, sizeof predicate);
}

// o: stack, offset, registers. 16 bytes for each.
template <bool SAVE>
static void move_registers(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  for (u32 n = 2; n < i.count; ++n) {
    const u32 width = b.program.width(i.o[n]);
    for (u32 rest = m; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      const u64 at = w.reg<u64>(i.o[0])[lane] + i.o[1] + 16 * (n - 2);
      if (!fits(b, w, i, lane, at, 16)) return;
      move<SAVE>(local_memory(b, w, lane, at), w.frame + i.o[n], lane, width);
      if (!b.local_undefined) continue;
      w.tainted |= !SAVE;  // perhaps; it will be looked for
      move<SAVE>(b.local_undefined + u64(b.thread(w, lane)) * b.local_stride + at, w.undefined + i.o[n], lane, width);
    }
  }
}

// CALL: o: stack, stack, bytes of the caller's frame; i.target: pc. CALL_POINTER: besides, the pointer.
void Block::call(Warp &w, size_t chosen, const Instr &i, u32 active) {
  u64 *stack = w.reg<u64>(i.o[0]);
  w.groups[chosen].mask &= ~active;
  w.groups[chosen].pc = i.pc + 1;
  for (u32 rest = active, same; rest; rest &= ~same) {
    const int first = __builtin_ctz(rest);
    u32 target = i.target;
    same = rest;
    if (i.kind == Kind::CALL_POINTER) {
      const u64 *pointers = w.reg<u64>(i.o[3]), pointer = pointers[first];
      const u64 number = (pointer & ~WINDOW_MASK) / 16;
      same &= ballot([pointer](u64 p) { return p == pointer; }, pointers);
      target = (pointer & WINDOW_MASK) == FUNCTION_WINDOW && number < program.functions.size()
                   ? program.functions[number]
                   : NO_PC;
      if (target == NO_PC) {
        report(Problem::WILD_CALL, i.pc, thread(w, first), pointer, 8);
        return halt();
      }
    }
    for (u32 lanes = same; lanes; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      const FrameHeader header{i.pc + 1, stack[lane]};
      stack[lane] += i.o[2];
      if (!fits(*this, w, i, lane, stack[lane], sizeof header)) return;
      memcpy(local_memory(*this, w, lane, stack[lane]), &header, sizeof header);
    }
    w.groups.push_back({target, same, RUNNABLE});
  }
  if (!w.groups[chosen].mask) w.groups.erase(w.groups.begin() + chosen);
}

void Block::return_from(Warp &w, size_t chosen, const Instr &i, u32 active) {
  u64 *stack = w.reg<u64>(program.stack);
  w.groups[chosen].mask &= ~active;
  w.groups[chosen].pc = i.pc + 1;
  for (u32 rest = active; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    FrameHeader header;
    memcpy(&header, local_memory(*this, w, lane, stack[lane]), sizeof header);
    if (header.return_pc >= program.code.size() || header.caller > stack[lane]) {  // somebody wrote over it
      report(Problem::WILD_CALL, i.pc, thread(w, lane), header.return_pc, 0);
      return halt();
    }
    stack[lane] = header.caller;
    const u32 pc = u32(header.return_pc);
    auto back = std::find_if(w.groups.begin(), w.groups.end(), [=](const Group &g) {
      return g.pc == pc && g.waiting == RUNNABLE && g.mask;
    });
    if (back != w.groups.end() && back - w.groups.begin() != long(chosen))
      back->mask |= 1u << lane;
    else
      w.groups.push_back({pc, 1u << lane, RUNNABLE});
  }
  if (!w.groups[chosen].mask) w.groups.erase(w.groups.begin() + chosen);
}

// ---- device malloc ----

// o: base, where the size is, where the address goes
static void allocate(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    u8 *local = local_memory(b, w, lane, w.reg<u64>(i.o[0])[lane]);
    const u64 bytes = bits_of<u64>(local + i.o[1]), address = b.launch.heap ? b.launch.heap->allocate(bytes) : 0;
    if (address && b.launch.heap_cells) b.launch.heap_cells->forget(address, bytes);  // whoever had it, freed it
    memcpy(local + i.o[2], &address, sizeof address);
    b.defined(w, lane, w.reg<u64>(i.o[0])[lane] + i.o[2], sizeof address);
  }
}

static void release(Warp &w, const Instr &i, u32 m) {
  Block &b = *w.block;
  for (u32 rest = m; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    const u64 address = bits_of<u64>(local_memory(b, w, lane, w.reg<u64>(i.o[0])[lane]) + i.o[1]);
    if (!address || (b.launch.heap && b.launch.heap->release(address))) continue;
    b.report(Problem::BAD_FREE, i.pc, b.thread(w, lane), address, 1);
    return b.halt();
  }
}

void register_call(Registry &r) {
  constexpr About serves = About::does(Effect::SERVES, "other", Undefined::NOTHING);
  enter(r, {{"copy.local", copy_local, "s8 n s8 n n", About::saves(IN_LOCAL, IN_LOCAL, Undefined::ITS_OWN)},
            {"save", move_registers<true>, "s8 n s*+", About::saves(0, IN_LOCAL, Undefined::ITS_OWN)},
            {"restore", move_registers<false>, "s8 n d*+", About::saves(IN_LOCAL, 0, Undefined::ITS_OWN)},
            {"malloc", allocate, "s8 n n", serves},
            {"free", release, "s8 n", serves}});
}

}  // namespace vm
