// The virtual machine's core: registers, instructions, warps and blocks. Every other file here builds on this one.
//
// A warp executes one instruction for its 32 lanes at once. Its registers lie in a frame, each register as an array
// over the lanes (u16[32], u32[32] or u64[32]; a predicate is one u32 with a bit per lane), so that a handler is a
// loop over arrays which the compiler turns into vector instructions. Operands are byte offsets into the frame;
// immediates and special registers lie in the frame too, written once before the first instruction.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace vm {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
__extension__ typedef unsigned __int128 u128;
__extension__ typedef __int128 s128;

constexpr int LANES = 32;
constexpr u32 ALL = ~0u;

// Generic addresses: global memory has its host addresses; these windows are beyond any host address.
constexpr u64 SHARED_WINDOW = 1ull << 56;
constexpr u64 LOCAL_WINDOW = 2ull << 56;
constexpr u64 PARAM_WINDOW = 3ull << 56;
constexpr u64 FUNCTION_WINDOW = 4ull << 56;  // + 16 · (number of a function in its module)
constexpr u64 WINDOW_MASK = ~0ull << 56;

// Instruction flags. Python has the same ones, and compares them when it loads the machine: see lower/core.py.
// clang-format off
#define FLAGS(X) \
  X(FTZ, 1) X(SAT, 2) X(RELU, 16) X(NOT_PRED, 64) \
  X(ONE_MASK, 128)     /* TOGETHER: all lanes name the same members */ \
  X(ANYWHERE, 256)     /* TOGETHER: its lanes may stand at several such, which the mask and the qualifiers tell apart */ \
  X(STRONG, 512)       /* memory that other threads are meant to see; BRANCH: around a load of such */ \
  X(ACQUIRE, 1024) X(RELEASE, 2048) \
  X(SPIN, 4096)        /* relaxed, acquire, release; or a STRONG load in a loop that stores nothing: somebody waits */ \
  X(SIGNAL, 8192)      /* a store or an atomic that is made for others to wait for */ \
  X(PAST_L1, 16384)    /* a load that sees what other multiprocessors wrote */ \
  X(OF_BLOCK, 32768)   /* an atomic for the threads of one block */ \
  X(TENTATIVE, 131072) /* a plain load, before an atomic of the same thread on the same place */ \
  X(DEPENDENT, 262144) /* a SIGNAL whose value comes of loads */ \
  X(SPECULATED, 524288) /* a load whose value matters only if something SETTLING says so */ \
  X(MAY_PAD, 1048576)  /* a load or a store of a part of a structure, perhaps a gap that nobody writes */ \
  X(READ_ONLY, 2097152) /* a load of memory that no thread may write during the launch */ \
  X(OF_TILE, 4194304)  /* of a tile, of which several threads may hold the same element: a store to shared memory, or \
                          a SPECULATED load, of which each element matters by itself */ \
  X(TRACKED, 65536)    /* it touches registers that may be undefined: undefined.cpp */
// clang-format on
enum Flag : u32 {
#define X(name, value) name = value,
  FLAGS(X)
#undef X
      ROUND_SHIFT = 2,
  ROUND_MASK = 3u << 2,
};

// What the scheduler has to do with an instruction.
//   PLAIN: nothing, lanes do not meet and pc moves on      CLOCK: likewise, but it asks for the time
//   TOGETHER: the lanes that the member mask names must be here
//   CALL, CALL_POINTER, RETURN: of functions that are not expanded where they are called
#define KINDS(X) \
  X(PLAIN)       \
  X(BRANCH)      \
  X(TABLE)       \
  X(EXIT)        \
  X(BARRIER) X(UNKNOWN) X(TRAP) X(CLOCK) X(CALL) X(CALL_POINTER) X(RETURN) X(TOGETHER) X(CLUSTER_WAIT) X(WGMMA_WAIT)
enum class Kind : u32 {
#define X(name) name,
  KINDS(X)
#undef X
};

struct Warp;
struct Instr;
using Handler = void (*)(Warp &, const Instr &, u32 mask);

struct Instr {
  Handler run;
  const u32 *o;  // operands: frame offsets, or plain numbers where the handler says so
  u32 guard;     // frame offset of the guard predicate
  u32 negate;    // ~0 for @!%p
  u32 flags;
  Kind kind;
  u32 target;  // BRANCH, CALL: pc; TOGETHER: frame offset of the member mask
  u32 pc;
  u32 count;  // operands
};

// What a kernel must not do: name, kind (what reports call it), and the cudaError_t with which the launch ends there, or 0
// if it goes on. findings.py has the sentences. Reports keep this order, causes before effects: what a missing barrier
// lets a thread read too early is a race, and often also a value that is not yet written.
#define PROBLEMS(X)                                            \
  X(GLOBAL_BOUNDS, "out of bounds global", 700)                \
  X(SHARED_BOUNDS, "out of bounds shared", 700)                \
  X(LOCAL_BOUNDS, "out of bounds local", 700)                  \
  X(WGMMA_BOUNDS, "out of bounds shared", 700)                 \
  X(NULL_POINTER, "null pointer", 700)                         \
  X(NO_TEXTURE, "no texture", 700)                             \
  X(SURFACE_BOUNDS, "out of bounds surface", 719)              \
  X(MISALIGNED, "misaligned", 716)                             \
  X(BAD_FREE, "bad free", 719)                                 \
  X(STACK_OVERFLOW, "stack overflow", 700)                     \
  X(WILD_CALL, "call of no function", 700)                     \
  X(ASSERTION, "assertion failed", 710)                        \
  X(TRAP, "trap", 719)                                         \
  X(BARRIER_DEADLOCK, "barrier divergence", 719)               \
  X(CLUSTER_DEADLOCK, "barrier divergence", 719)               \
  X(BLOCK_GONE, "block of the cluster not there", 719)         \
  X(MBARRIER_COUNT, "mbarrier", 719)                           \
  X(MBARRIER_NOT_THERE, "mbarrier", 719)                       \
  X(MBARRIER_FULL, "mbarrier", 719)                            \
  X(MBARRIER_AT_ONCE, "mbarrier", 719)                         \
  X(MBARRIER_BYTES, "mbarrier", 719)                           \
  X(BULK_SIZE, "misaligned", 716)                              \
  X(BULK_PLACE, "misaligned", 716)                             \
  X(BULK_CORNER, "misaligned", 715)                            \
  X(BULK_NEGATIVE, "out of bounds global", 715)                \
  X(TENSOR_MAP, "tensor map", 719)                             \
  X(DEADLOCK_MEMORY, "deadlock", 702)                          \
  X(DEADLOCK_BARRIER, "deadlock", 702)                         \
  X(ENDLESS, "endless loop", 702)                              \
  X(WATCHDOG, "endless loop", 702)                             \
  X(UNKNOWN_INSTRUCTION, "unknown instruction", 719)           \
  X(SHARED_PAST_END, "out of bounds shared", 0)                \
  X(WGMMA_PATTERN, "misaligned", 0)                            \
  X(BARRIER_DIVERGENCE, "barrier divergence", 0)               \
  X(BARRIER_SKIPPED, "barrier divergence", 0)                  \
  X(BARRIER_TURNS, "barrier divergence", 0)                    \
  X(CLUSTER_TWICE, "barrier divergence", 0)                    \
  X(CLUSTER_NOT_ARRIVED, "barrier divergence", 0)              \
  X(WARP_DIVERGENCE, "warp divergence", 0)                     \
  X(WARP_MET_APART, "warp divergence", 0)                      \
  X(OUTSIDE_MASK, "lane outside its mask", 0)                  \
  X(BLOCK_NOT_STARTED, "block of the cluster not there", 0)    \
  X(BLOCK_MAY_END, "block of the cluster not there", 0)        \
  X(BULK_UNEXPECTED, "mbarrier", 0)                            \
  X(SWIZZLE_OFFSET, "misaligned", 0)                           \
  X(MBARRIER_GONE, "block of the cluster not there", 0)        \
  X(WARPGROUP_INCOMPLETE, "warp divergence", 0)                \
  X(WARPGROUP_APART, "warp divergence", 0)                     \
  X(REGISTERS_EXCEEDED, "registers", 0)                        \
  X(WGMMA_REGISTER_READ, "wgmma in flight", 0)                 \
  X(WGMMA_REGISTER_WRITTEN, "wgmma in flight", 0)              \
  X(WGMMA_OPERAND_WRITTEN, "wgmma in flight", 0)               \
  X(WGMMA_NO_WAIT, "wgmma in flight", 0)                       \
  X(WGMMA_SWIZZLE, "other swizzle", 0)                         \
  X(WGMMA_NO_FENCE, "missing wgmma.fence", 0)                  \
  X(NO_PROXY_FENCE, "missing proxy fence", 0)                  \
  X(REFILL_NOT_FENCED, "missing proxy fence", 0)               \
  X(COPY_IN_FLIGHT, "copy in flight", 0)                       \
  X(BULK_IN_FLIGHT, "copy in flight", 0)                       \
  X(BULK_OTHER_PHASE, "copy in flight", 0)                     \
  X(BULK_WAITED_ELSEWHERE, "copy in flight", 0)                \
  X(BULK_STILL_READS, "copy in flight", 0)                     \
  X(BULK_STILL_WRITES, "copy in flight", 0)                    \
  X(BULK_AT_EXIT, "copy in flight", 0)                         \
  X(BULK_AFTER_EXIT, "copy in flight", 0)                      \
  X(MBARRIER_EARLY, "mbarrier", 0)                             \
  X(MBARRIER_ELSEWHERE, "mbarrier", 0)                         \
  X(MBARRIER_INIT_RACE, "mbarrier", 0)                         \
  X(CANCEL_AGAIN, "cancelled launch", 0)                       \
  X(RACE_READ_AFTER_WRITE, "shared race", 0)                   \
  X(RACE_WRITE_AFTER_READ, "shared race", 0)                   \
  X(RACE_WRITE_AFTER_WRITE, "shared race", 0)                  \
  X(DEADLOCK_OVERRUN, "deadlock", 702)                         \
  X(DEADLOCK_STALE, "deadlock", 702)                           \
  X(DEADLOCK_BYTES, "deadlock", 702)                           \
  X(DEADLOCK_EXCESS, "deadlock", 702)                          \
  X(DEADLOCK_MBARRIER, "deadlock", 702)                        \
  X(DEADLOCK_BROUGHT, "deadlock", 702)                         \
  X(GLOBAL_READ_AFTER_WRITE, "global race", 0)                 \
  X(GLOBAL_WRITE_AFTER_READ, "global race", 0)                 \
  X(GLOBAL_WRITE_AFTER_WRITE, "global race", 0)                \
  X(READ_ONLY_WRITTEN, "read-only load", 0)                    \
  X(READ_ONLY_EARLIER, "read-only load", 0)                    \
  X(EARLY_READ_AFTER_WRITE, "race with the kernel before", 0)  \
  X(EARLY_WRITE_AFTER_READ, "race with the kernel before", 0)  \
  X(EARLY_WRITE_AFTER_WRITE, "race with the kernel before", 0) \
  X(GLOBAL_UNINITIALISED, "uninitialised global read", 0)      \
  X(SHARED_UNINITIALISED, "uninitialised shared read", 0)      \
  X(UNDEFINED_PRODUCT, "undefined value", 0)                   \
  X(UNDEFINED_ADDRESS, "undefined value", 0)                   \
  X(UNDEFINED_BRANCH, "undefined value", 0)                    \
  X(UNDEFINED_ATOMIC, "undefined value", 0)                    \
  X(UNDEFINED_PRINT, "undefined value", 0)                     \
  X(UNDEFINED_STORE, "undefined value", 0)                     \
  X(SWIZZLE_UNCLEAR, "tile within a pattern", 0)               \
  X(MBARRIER_NOT_FENCED, "mbarrier without a fence", 0)        \
  X(SAME_VALUE, "same value written", 0)                       \
  X(REPLICAS_DIFFER, "replicas differ", 0)
enum class Problem : u32 {
#define X(name, kind, code) name,
  PROBLEMS(X)
#undef X
};

// One finding. `other_*` is the earlier access of a race, or the other place of a divergence; `other_launch`: how many
// launches before this one.
struct Finding {
  u32 problem, pc;
  u64 count, block, address;
  u32 thread, size, other_thread, other_pc;
  u64 other_block, other_launch;
  u64 nth;  // of what its block reports
};
constexpr u32 MANY_THREADS = ~0u, NO_PC = ~0u;
constexpr u64 SAME_BLOCK = ~0ull;

// What an instruction did, summed over the launch.
struct Counters {
  u64 warps;                            // times a warp executed it
  u64 threads;                          // active threads, summed over those
  u64 sectors;                          // global memory: 32-byte sectors
  u64 wavefronts;                       // shared memory: passes over the banks
  u64 conflicts;                        // shared memory: passes beyond the conflict-free minimum
  u64 bytes;                            // bytes that the threads asked for
  u64 requests;                         // times that it accessed memory, for one thread at least
  u64 cluster_requests, cluster_bytes;  // likewise, of the shared memory of other blocks: in no other number
};

struct TraceRow {
  u16 launch;
  u8 space, kind;
  u32 block, thread, seq, pc;
  u32 size;
  u64 addr;
};
// Python has these, Space and the layouts as well, and compares them when it loads the machine: vm_mirrors in launch.cpp.
// BULK_...: of a copy, whole; MBARRIER_WAIT: one that passes.
#define TRACE_KINDS(X) \
  X(LOAD)              \
  X(STORE)             \
  X(ATOMIC)            \
  X(CP_ASYNC) X(LDMATRIX) X(WMMA) X(BULK_LOAD) X(BULK_STORE) X(MBARRIER_ARRIVE) X(MBARRIER_WAIT) X(WGMMA) X(STMATRIX)
enum TraceKind : u8 {
#define X(name) name,
  TRACE_KINDS(X)
#undef X
};

// What orders the warps of a block, and what runs in the background, for a timeline (timeline.py). `at` and `number` of
// each; `there`: of an mbarrier the block that has it, of a bulk store the lane, of a cluster's barrier its first block.
// ..._DONE, WGMMA_PASS: all groups before `at`. LANDED: the copies on an mbarrier, in their order.
// clang-format off
#define EVENT_KINDS(X) \
  X(BARRIER_ARRIVE)    /* at: the barrier's number; number: whether the warp waits */ \
  X(BARRIER_PASS)      /* at: the same */ \
  X(CLUSTER_ARRIVE) X(CLUSTER_WAIT) X(CLUSTER_PASS) /* at: how many of the cluster's barriers came before, plus one */ \
  X(MBARRIER_INIT)     /* at: its offset; number: of arrivals that a phase takes */ \
  X(MBARRIER_ARRIVE) X(MBARRIER_EXPECT) /* number: of arrivals; of bytes */ \
  X(MBARRIER_END)      /* a phase is over */ \
  X(MBARRIER_WAIT)     /* the first look at a phase that is not over */ \
  X(MBARRIER_PASS) \
  X(COPY) X(LANDED)    /* at: the mbarrier's offset; number: bytes */ \
  X(BULK_STORE) X(BULK_DONE) X(CP_ASYNC) X(CP_ASYNC_DONE) /* at: the group; number: bytes */ \
  X(WGMMA) X(WGMMA_WAIT) X(WGMMA_PASS) /* at: the group; number: columns */ \
  X(STORE)             /* number: how many in a row; at: steps from the first to the last */ \
  X(EXIT)              /* of the whole warp */
// clang-format on
enum EventKind : u32 {
#define X(name) EVENT_##name,
  EVENT_KINDS(X)
#undef X
};
struct Event {
  u64 step;  // instructions that its warp had executed, this one included
  u32 launch, block, warp, pc;
  u32 kind, there, at, number;
};

// Of a product of matrices.
enum Operand : u32 { OPERAND_A, OPERAND_B, OPERAND_C };

// Types of the elements that tensor instructions multiply. E2M1_IN_8: in the middle bits of a byte.
#define ELEMENTS(X) \
  X(F16) X(BF16) X(TF32) X(S8) X(U8) X(E4M3) X(E5M2) X(S4) X(U4) X(B1) X(F64) X(E2M3) X(E3M2) X(E2M1) X(E2M1_IN_8)
enum Element : u32 {
#define X(name) ELEMENT_##name,
  ELEMENTS(X)
#undef X
};

// ---- what has happened before what: see order.cpp for how it is known, shadow.cpp and races.cpp for its use ----

// Of another block: what its warp did before a time of that block has happened before. `key`: block << 6 | warp + 1,
// or block << 6 for all of its warps.
struct Known {
  u64 key;
  u32 time;
};
constexpr u64 WITHIN_BLOCK = 1ull << 57;  // in its block number: only the block itself may know
constexpr u64 PROXY_FENCED = 1ull << 55;  // ... what a proxy fence has come after
constexpr u64 READS_OVER = 1ull << 54;    // ... only its reads
using Past = std::vector<Known>;          // sorted by key
using PastPointer = std::shared_ptr<const Past>;

// What a warp knows, or what it has made known: of its own block, time[v] for each warp v; and of other blocks.
struct Clock {
  std::vector<u32> time;
  PastPointer others;
};

void join(Clock &to, const Clock &from);
PastPointer join(const PastPointer &a, const PastPointer &b);
u32 known(const PastPointer &past, u64 block, u32 warp);

// What had happened before something that the hardware does in the background, when it was issued: of the block's warps,
// up to which time they had done what they did, and up to which a proxy fence came after it; of others.
struct AsyncPast {
  std::vector<u32> time, fenced;
  PastPointer others;
};

enum Reach { WITHIN, BEYOND };  // of a fence: the block, or more

// Times that lanes of one warp know of each other, where these differ: [knows][of].
struct LaneTimes { u32 of[LANES][LANES]; };

// What memory locations pass on: a thread that reads the flag knows what its writer knew.
using Flags = std::unordered_map<u64, Clock>;

// ---- memory, lanes and warps ----

class Cells;
struct Allocation {
  u64 base, size;
  u8 *written;             // one byte per byte, 0 = never; null = all of it has been
  Cells *cells = nullptr;  // races.cpp; null = not looked after
  u8 *states = nullptr;    // of its parts, backwards, if some may be new (memory.py); null = none is
};

// Whether so many bytes lie within the `size` bytes from `base` on. The last addresses that there are do not wrap.
constexpr bool within(u64 address, u64 bytes, u64 base, u64 size) {
  return address >= base && address - base <= size && bytes <= size - (address - base);
}

struct BulkCopy;
struct Program;
struct Launch;
struct Block;
struct Cluster;
struct Worker;

enum class Space : u32 { GLOBAL, SHARED, LOCAL, GENERIC, CLUSTER };  // CLUSTER: another block's shared memory

// Lanes of one warp that stand at the same pc.
struct Group {
  u32 pc, mask;
  s32 waiting;      // RUNNABLE, FOR_LANES, FOR_MEMORY, FOR_CLUSTER, FOR_WARPGROUP, or the number of a barrier
  u32 passed = 0;   // how often others went before it in this turn, because it was polling
  u64 version = 0;  // FOR_MEMORY: the memory that it has seen; it can only go on with another one
};
constexpr s32 RUNNABLE = -1, FOR_LANES = 1000, FOR_MEMORY = 1001, FOR_CLUSTER = 1002, FOR_WARPGROUP = 1003;

// What a warp polled last: an atomic, or a load that other threads' writes may reach.
struct Poll {
  u32 pc, mask = 0, bytes;
  u64 address[LANES], value[LANES];
};

// Registers of a group of lanes at a branch backwards. If they come back to it with the same ones, and with the same
// memory, they will come back for ever.
struct Watch {
  u32 pc, mask;
  u64 version, changes, own;  // of memory, of that of the cluster alone, of what no other warp sees
  u64 reads, near_reads;      // so far
  u32 visits = 0, next = 2;
  std::vector<u8> frame;
};

// A cp.async of a warp: per lane where from, where to, how many bytes of it (the rest becomes zeros), and its group.
struct Copy {
  u32 mask, size, pc;
  u32 number = 0;  // of the warp's, from 1 on
  u64 actor = 0;   // if an arrival at an mbarrier tells that it has landed: in the place of a block in a Past
  u32 destination[LANES], copied[LANES], group[LANES];
  u64 source[LANES];
};

// A load, or an element of one, whose sanitizing waits for what says whether its value matters.
struct Speculated {
  u32 pc, mask, bytes, element;  // element: a bit for each of the load's
  u64 address[LANES];
};

// A wgmma that a warp has not waited for.
struct Wgmma {
  u64 number;  // of the warpgroup's
  u32 group;   // that is committed together
  const Instr *i;
};

enum class WgmmaFence { NEVER, BEFORE_WAIT, SINCE_WAIT };  // the last wgmma.fence, and the last wgmma.wait_group

// What a register that wgmma has as accumulator or as operand has been through.
struct WgmmaRegister {
  u32 users = 0;        // wgmma under way that have it
  u32 pc = NO_PC;       // the last of them
  bool result = false;  // its accumulator
  u32 touched = NO_PC;  // who else has read or written it since the last wgmma.fence
};

// Lanes of one mask have met at two places.
struct MetApart { u32 mask, pc, other_pc; };

// Where lanes last read a tile that begins within a pattern of its swizzle: bulk.cpp.
struct Walk {
  u32 pc, mask = 0;  // of the copy that brought it; lanes
  u32 at[LANES];
};

struct Warp {
  u8 *frame;
  u8 *undefined = nullptr;  // undefined.cpp: a frame of what is undefined in the other; null if nothing can be
  bool tainted = false;     // something is
  bool mirrored = false;    // the two frames are exchanged
  u32 origin = 0;           // pc of the shuffle or the store that gave it something undefined last; or NO_PC
  Block *block;
  u32 index;
  u32 live = 0;                     // lanes that have not exited
  u32 seq = 0;                      // memory instructions so far (trace)
  u64 step = 0;                     // instructions so far, where events are noted
  u64 storing = 0;                  // the number, plus one, of its last event, if that is STORED
  u32 waits_at = NO_PC;             // where it has noted that it waits for an mbarrier, or for wgmma
  bool force = false;               // the next TOGETHER instruction runs with the lanes that are here
  std::vector<MetApart> met_apart;  // by mask, the last time
  std::vector<Group> groups;
  // Does it make progress? See Block::same_again.
  u64 reads = 0;              // loads and atomics so far
  u64 near_reads = 0;         // of these, of what only the cluster can change: tests of mbarriers
  u64 own = 0;                // changes of what only this warp sees: local memory, the clock
  u32 polls = 0;              // since another group, or another warp, had a turn
  u32 long_turns = 0;         // turns that ended because the quantum did
  u64 turns = 0;              // all
  bool watching = false;      // branches backwards are watched
  u64 now = 0;                // the clock, for an instruction that asks
  Poll poll, poll_of_others;  // `poll_of_others`: the last one, at an mbarrier, of lanes that `poll` is not of
  std::vector<Watch> watches;
  // What has happened before what this warp does now: order.cpp.
  u32 time = 1;                          // stamps its accesses
  Clock knows, fenced[2];                // now; at its last fence, of either reach
  u32 oldest = 1, newest = 1;            // of what it knows: of all, and of all others
  std::unique_ptr<LaneTimes> lanes;      // where its lanes know different things of each other
  mutable u32 read = 0;                  // `time` when it last read shared memory
  mutable u64 landed = 0;                // the cells of a bulk copy of which it knows that it is over: shadow.cpp
  u32 epoch = 0, epoch_time = 0;         // races.cpp
  u32 waited = 0;                        // lanes that know the launch before to be over: dependent.cpp
  std::vector<Speculated> speculated;    // memory.cpp
  mutable std::vector<Walk> walks;       // bulk.cpp
  std::vector<Copy> copies;              // in flight
  u32 copy_group[LANES] = {};            // number of the group that each lane is filling
  u32 copies_issued = 0;                 // so far
  PastPointer copies_arriving;           // what its cp.async.mbarrier.arrive so far tell
  std::vector<Wgmma> products;           // under way
  std::vector<WgmmaRegister> registers;  // by their number in the program
  WgmmaFence product_fence = WgmmaFence::NEVER;
  bool alone = false;                      // it no longer waits for the others of its warpgroup: they cannot come
  u32 product_group = 0;                   // number of the group that it is filling
  u64 products_issued = 0;                 // so far
  std::vector<BulkCopy> bulk;              // in flight from shared memory, in bulk groups
  u32 bulk_group[LANES] = {};              // as copy_group
  u32 arrived = 0, through = 0;            // lanes that wait for the cluster's barrier, or may: it is complete
  u64 arrivals = 0;                        // of the cluster's barriers, the last one to which a lane came
  std::vector<std::pair<u32, u32>> round;  // barriers that lanes have bypassed: pc, lanes

  template <class T>
  T *reg(u32 offset) const {
    return reinterpret_cast<T *>(frame + offset);
  }
  u32 &pred(u32 offset) const { return *reinterpret_cast<u32 *>(frame + offset); }
};

// A function that many handlers use where a call costs nothing beside it: one copy, not one in each of them.
#define SHARED_CODE __attribute__((noinline))

// Write `from` to `to` in the lanes of `mask`. PER elements belong to a lane.
template <int PER, class T>
SHARED_CODE inline void blend(T *to, const T *from, u32 mask) {
  for (int lane = 0; lane < LANES; ++lane)
    if (mask >> lane & 1)
      for (int e = 0; e < PER; ++e) to[lane * PER + e] = from[lane * PER + e];
}

// Before a loop whose iterations touch different memory. Clang has no such pragma that is a hint only: it looks itself.
#if defined(__clang__)
#define INDEPENDENT
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

// d[l] = f(s[l]...) in the lanes of `mask`. Sources and destination are the same register or disjoint.
template <int PER = 1, class D, class F, class... S>
inline void lanes(u32 mask, D *d, F f, const S *...s) {
  alignas(64) D spare[LANES * PER];
  D *out = mask == ALL ? d : spare;
  INDEPENDENT
  for (int lane = 0; lane < LANES * PER; ++lane) out[lane] = f(s[lane]...);
  if (mask != ALL) blend<PER>(d, spare, mask);
}

// The lanes whose predicate f is true.
template <class F, class... S>
inline u32 ballot(F f, const S *...s) {
  u32 bits = 0;
  for (int lane = 0; lane < LANES; ++lane) bits |= u32(bool(f(s[lane]...))) << lane;
  return bits;
}

template <class T>
inline T bits_of(const void *p) {
  T value;
  memcpy(&value, p, sizeof value);
  return value;
}
template <class T, class S>
inline T as(S value) {
  static_assert(sizeof(T) == sizeof(S), "a reinterpretation keeps the size");
  T out;
  memcpy(&out, &value, sizeof out);
  return out;
}

// What an instruction does, as far as anybody but its handler has to know: lowering, the sanitizer, counters, reports.
// clang-format off
#define EFFECTS(X) \
  X(NOTHING) \
  X(COMPUTES)        /* results of its sources alone, which matter only if they are used */ \
  X(COPIES)          /* likewise: its result is its source */ \
  X(OBSERVES)        /* the clock, or which lanes are here */ \
  X(EXCHANGES)       /* between the lanes of a warp */ \
  X(MULTIPLIES)      /* by tensor cores */ \
  X(MULTIPLIES_LATER) /* likewise, until a wait: its registers are in use as long */ \
  X(LOADS) X(STORES) /* between registers and memory */ \
  X(UPDATES)         /* an atomic: it reads and writes */ \
  X(OVERWRITES)      /* an atomic that needs nothing of what was there but for its result */ \
  X(UPDATES_MANY)    /* neighbours, each by itself an atomic */ \
  X(TRANSFERS)       /* from memory to memory, or to it in the background */ \
  X(SAVES)           /* registers and parameters, in the thread's stack */ \
  X(ORDERS)          /* what comes before and after it: barriers, mbarriers, fences, waits */ \
  X(STEERS)          /* how a warp goes on */ \
  X(SERVES)          /* as CUDA's device runtime */
// How what is undefined passes from sources to results: name, and the rule in undefined.cpp. REPORTED: it says so itself
// if a source is undefined, and its result counts as defined.
#define UNDEFINED_RULES(X, REPORTED) \
  X(ALL_OF_IT, all_of_it)          /* all results, if one bit of a source is */ \
  X(ALL_LANES, for_all_lanes)      /* ... in all lanes */ \
  X(NOTHING, nothing) \
  X(AS_BITS_MOVE, as_the_bits_move) /* the instruction moves bits */ \
  X(MOVED_BY_2, moved_by_2) X(MOVED_BY_3, moved_by_3) X(MOVED_BY_2_3, moved_by_2_3) X(MOVED_BY_3_4, moved_by_3_4) \
  X(BIT_BY_BIT, bit_by_bit) X(HALF_BY_HALF, half_by_half) \
  X(PAIR_OF_TWO, in_pairs<2>) X(PAIR_OF_HALVES, in_pairs<1>) \
  X(SMALL_PAIR_OF_TWO, (in_small_pairs<2, 3>)) X(SMALL_PAIR_OF_HALVES, (in_small_pairs<1, 2>)) \
  X(AND, logic<Undefined::AND>) X(OR, logic<Undefined::OR>) X(XOR, logic<Undefined::XOR>) \
  X(LOP3, lop3) X(CONVERTED, converted) \
  X(SHUFFLED, shuffled)            /* what comes of lanes that take no part is undefined in any case */ \
  X(ANSWERED, all_of_it)           /* the place that a request gave which was refused is undefined in any case */ \
  X(ITS_OWN, nullptr)              /* its handler does it */ \
  REPORTED(BRANCH, to_a_barrier)   /* where a warp goes on */ \
  REPORTED(ADDRESS, address) REPORTED(ATOMIC, atomic) \
  REPORTED(PRODUCT, product) REPORTED(EXTENDED, extended_product) \
  REPORTED(FRAGMENTS, fragments_product) REPORTED(WARPGROUP, warpgroup_product)
// clang-format on
enum class Effect : u32 {
#define X(name) name,
  EFFECTS(X)
#undef X
};
enum class Undefined : u32 {
#define X(name, rule) name,
  UNDEFINED_RULES(X, X)
#undef X
};

// Spaces as a set.
constexpr u32 in(Space space) { return 1u << u32(space); }
constexpr u32 IN_GLOBAL = in(Space::GLOBAL), IN_SHARED = in(Space::SHARED), IN_LOCAL = in(Space::LOCAL);
constexpr u32 IN_CLUSTER = in(Space::CLUSTER), IN_PARAM = 1u << 5;  // parameters of the kernel
constexpr u32 IN_ALL = IN_GLOBAL | IN_SHARED | IN_LOCAL;            // a generic address; atomics are for the first two
constexpr u32 NO_OPERAND = ~0u;

// The description of an instruction: there is none without, and no part of it has a default. So one that is left out does
// not compile, and who reads descriptions need not guess by names.
class About {
 public:
  const char *category;  // under which it is counted (kernel.py); lowering names another where the operands say so
  Effect effect;
  Undefined undefined;
  u32 reads, writes;  // spaces of memory
  u32 from, to;       // operands: the address that it reads, that it writes
  u32 values;         // operand: the first of those that go to memory
  bool elements;      // operands: address, offset, shape, and a register for each element (memory.cpp)

  // Without memory.
  static constexpr About computes(const char *category, Undefined undefined) {
    return does(Effect::COMPUTES, category, undefined);
  }
  static constexpr About does(Effect effect, const char *category, Undefined undefined) {
    return {category, effect, undefined, 0, 0, NO_OPERAND, NO_OPERAND, NO_OPERAND, false};
  }
  // With memory. `space`: where it may be; `address`, `values`: operands.
  static constexpr About loads(const char *category, u32 space, u32 address, Undefined undefined) {
    return {category, Effect::LOADS, undefined, space, 0, address, NO_OPERAND, NO_OPERAND, false};
  }
  static constexpr About stores(const char *category, u32 space, u32 address, u32 values, Undefined undefined) {
    return {category, Effect::STORES, undefined, 0, space, NO_OPERAND, address, values, false};
  }
  static constexpr About updates(Effect effect, u32 address, u32 values) {
    constexpr u32 space = IN_GLOBAL | IN_SHARED;
    return {"atomic", effect, Undefined::ATOMIC, space, space, address, address, values, false};
  }
  // `from`, `to`: spaces, and the operands that say where; none: see the handler.
  static constexpr About transfers(const char *category, u32 reads, u32 from, u32 writes, u32 to, Undefined undefined) {
    return {category, Effect::TRANSFERS, undefined, reads, writes, from, to, NO_OPERAND, false};
  }
  static constexpr About saves(u32 reads, u32 writes, Undefined undefined) {
    return {"move", Effect::SAVES, undefined, reads, writes, NO_OPERAND, NO_OPERAND, NO_OPERAND, false};
  }
  // An mbarrier, at the address that this operand has.
  static constexpr About mbarrier(u32 address, Undefined undefined) {
    constexpr u32 space = IN_SHARED | IN_CLUSTER;
    return {"mbarrier", Effect::ORDERS, undefined, space, space, address, address, NO_OPERAND, false};
  }
  constexpr About by_elements() const {
    About other = *this;
    other.elements = true;
    return other;
  }

 private:
  constexpr About(const char *category, Effect effect, Undefined undefined, u32 reads, u32 writes, u32 from, u32 to,
                  u32 values, bool elements)
      : category(category),
        effect(effect),
        undefined(undefined),
        reads(reads),
        writes(writes),
        from(from),
        to(to),
        values(values),
        elements(elements) {}
};

// A handler (none: the scheduler executes it), the operands that it takes, one word each, and its description. `d4`, `s4`:
// a destination, a source of 4 bytes per lane (0: a predicate, *: whatever); `n`: a plain number. `?`: it may be absent
// (~0); `+`: any number of them. Lowering is held to it, and what is undefined is followed by it.
struct Entry {
  const char *name;
  Handler run;
  const char *operands;  // no std::string: tables of some hundred would be compiled to as many destructors
  About about;
};
using Registry = std::map<std::string, Entry>;
inline void enter(Registry &registry, std::initializer_list<Entry> entries) {
  for (const Entry &entry : entries) registry.insert_or_assign(entry.name, entry);
}
// "d4 s4 s4" for destinations and sources of these types.
template <class D, class... S>
const char *widths() {
  static constexpr char sizes[] = {char('0' + sizeof(D)), char('0' + sizeof(S))...};
  static constexpr auto text = [] {
    std::array<char, 3 * sizeof sizes> out{};
    for (size_t n = 0; n < sizeof sizes; ++n)
      out[3 * n] = n ? 's' : 'd', out[3 * n + 1] = sizes[n], out[3 * n + 2] = ' ';
    out.back() = 0;
    return out;
  }();
  return text.data();
}
void register_control(Registry &);
void register_integer(Registry &);
void register_floating(Registry &);
void register_convert(Registry &);
void register_memory(Registry &);
void register_warp(Registry &);
void register_print(Registry &);
void register_tensor(Registry &);
void register_call(Registry &);
void register_video(Registry &);
void register_dependent(Registry &);
void register_cluster(Registry &);
void register_mbarrier(Registry &);
void register_wgmma(Registry &);
void register_bulk(Registry &);
void register_texture(Registry &);

}  // namespace vm
