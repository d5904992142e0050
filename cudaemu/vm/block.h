// A launch, a block and what the sanitizer knows about its shared memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "cell.h"
#include "heap.h"
#include "tensor_map.h"

namespace vm {

struct Constant {
  u32 offset, width, special;  // width: bytes of a lane, 0 for a predicate; special: see special_value
  u64 value;
};

constexpr u32 NO_GRANULE = 32;

// What an instruction reads and writes: registers, targets first. And what of it is undefined: undefined.cpp.
struct Flow;
using Rule = void (*)(Warp &, const Instr &, const Flow &, u32 mask);
struct Flow {
  u32 targets = 0, sources = 0;
  std::vector<u32> offsets;
  Rule rule = nullptr;
  const About *about = nullptr;
};

struct Program {
  std::vector<u32> words;  // all operands
  std::vector<Instr> code;
  std::vector<Constant> constants;
  std::vector<std::vector<u32>> tables;  // brx.idx
  u32 frame_bytes = 0, local_bytes = 0, static_shared = 0, granule_log2 = 0;
  u32 bounds[6] = {};                    // of the frame: predicates, registers of 2, 4, 8, 16 bytes, end
  u32 entry = 0;                         // pc of the kernel's beginning
  u32 local_static = 0;                  // bytes of local memory that are no stack
  u32 stack = NO_PC;                     // where the frame has the thread's place in its stack, if there is one
  bool fences = false;                   // it has fences, or acquires and releases
  u32 global_granule_log2 = NO_GRANULE;  // of the smallest store to global memory
  u32 global_access_log2 = NO_GRANULE;   // ... and of the smallest access
  std::vector<u32> functions;            // pc of each function of the module that can be called through a pointer

  bool tracked = false;                 // some registers may be undefined
  bool reads_local = false;             // so may local memory, and it is read
  std::unordered_map<u32, Flow> flows;  // of the instructions that touch them
  std::vector<u32> unset;               // those that are read before they are written, perhaps
  void follow(const std::vector<const Entry *> &entries);

  std::unordered_map<u32, const Entry *> anywhere;   // the instructions that are ANYWHERE, by pc
  std::vector<bool> stores;                          // whether an instruction writes memory
  std::unordered_map<u32, std::vector<u32>> rounds;  // of branches: the barriers that they bypass
  std::vector<bool> goes_round;                      // whether an instruction is such a branch
  void find_rounds();

  // wgmma.cpp: registers that wgmma has, and who touches them.
  struct Touch {
    Handler run;
    bool copies;                     // a move: compilers put them anywhere
    std::vector<u32> reads, writes;  // numbers of registers; of a wgmma: its operands, its accumulators
  };
  std::unordered_map<u32, Touch> touches;  // by pc
  u32 product_registers = 0;
  u32 registers = 0;  // of a thread at launch, if setmaxnreg may count on it
  void find_products(const std::vector<const Entry *> &entries);

  std::vector<bool> beyond(u32 pc) const;

  // Behind the frame, of a frame that is made for one instruction only: registers for its operands, by width.
  static constexpr u32 SPARE_OPERANDS = 8, SPARE_BYTES = SPARE_OPERANDS * LANES * 16;
  u32 spare(u32 operand, u32 width) const {
    return frame_bytes + (width ? __builtin_ctz(width) : 0) * SPARE_BYTES + operand * LANES * 16;
  }
  u32 width(u32 offset) const {  // bytes per lane of the register there, 0 for a predicate
    u32 n = 0;
    if (offset >= frame_bytes) return (n = (offset - frame_bytes) / SPARE_BYTES) ? 1u << n : 0;
    while (n < 4 && offset >= bounds[n + 1]) ++n;
    return n ? 1u << n : 0;
  }
};

// The last access of a warp to another block's shared memory.
struct Visitor {
  u32 time, pc, lane;
  u64 arrivals, address;
};

// What one warp does between two ordering events: races.cpp.
struct Epoch {
  u64 block;
  u32 time, warp;
};
class Epochs {
 public:
  u32 enter(Worker &, Epoch);
  const Epoch &of(u32 number) const { return table[number / SIZE].load(std::memory_order_acquire)[number % SIZE]; }
  void begin() { table.reset(new std::atomic<Epoch *>[MOST]()); }
  ~Epochs() {
    for (u64 n = 0; n < chunks; ++n) delete[] table[n].load();
  }

 private:
  static constexpr u32 SIZE = 1 << 14, MOST = 1 << 13;
  std::mutex mutex;
  std::unique_ptr<std::atomic<Epoch *>[]> table;
  u64 chunks = 0;
};

// Who touched the granules of one allocation: three words each, for the last writer and two readers since.
//   epoch | volatile or atomic, within its block only, nothing changed | lane | another lane | pc
constexpr u64 EPOCH_SHIFT = 32, R_STRONG = 1ull << 31, R_BLOCK = 1ull << 30, R_SAME = 1ull << 29;
constexpr u64 R_LANE_SHIFT = 24, R_OTHER_SHIFT = 19, R_PC_MASK = (1ull << R_OTHER_SHIFT) - 1;
constexpr u64 R_LANE_STEP = 1ull << R_LANE_SHIFT | 1ull << R_OTHER_SHIFT;

class Cells {
 public:
  Cells(u64 base, u64 bytes, u32 granule_log2);
  ~Cells();
  Cells(const Cells &) = delete;
  void forget(u64 address, u64 bytes);
  const u64 origin;
  const u32 shift;
  const u64 count;
  u64 *words;
};

constexpr u32 NO_SWIZZLE = ~0u;     // none known
constexpr s64 CERTAIN = 1ll << 40;  // of votes on how a tile is read: no others outweigh it
constexpr u32 WHOLE_WARP = LANES;   // in place of its lane
constexpr u32 NO_WARP = 62;         // of a block in a Past: the time that holds for all of its warps

// An access to a block's shared memory that a word cannot tell of: by another block of its cluster, or by a bulk copy.
struct Visit {
  u64 block;
  u32 warp, time, lane, pc;
  Cell before;               // an earlier access of the same kind that nothing orders with this one
  u64 copy = 0;              // of a bulk copy or a wgmma: stands for the block in a Past; those above say who issued it
  u32 swizzle = NO_SWIZZLE;  // of a box that a bulk copy wrote: log2 of the 16-byte pieces that it exchanges
  u32 shifted = 0;           // ... and where its tile begins, if not with a pattern of the swizzle
};

enum class Answer : u8 { NONE, GRANTED, REFUSED };

// A bulk copy on its way: bulk.cpp. Places in shared memory are addresses of the cluster.
struct BulkCopy {
  TensorMap map{};          // magic 0: none, the copy is of bytes side by side
  s32 corner[5] = {};       // of its box in the tensor
  u64 global = 0;           // without a tensor map: where in global memory
  u64 tile = 0;             // in shared memory
  u64 source = 0;           // ... from which it comes, if not from global memory
  u64 mbarrier = 0;         // on which it completes; 0: in a bulk group of its thread
  u32 bytes = 0, time = 0;  // `time`: of its actor
  u32 reduction = 0, type = 0;
  u64 block = 0;  // who issued it
  u32 thread = 0, pc = 0, group = 0;
  bool given = false;            // st.async and the like: what it brings is no tile, but a value
  Answer answer = Answer::NONE;  // clusterlaunchcontrol.try_cancel: ... which says whether a cluster was cancelled
  alignas(16) u8 value[16] = {};
};

// cp.async.mbarrier.arrive: these lanes arrive when their cp.async up to that number have landed.
struct LateArrival {
  Block *block;
  u32 warp, mask, number, pc;
  u64 mbarrier;
  PastPointer past;  // what the arrival tells: that they have
};

// What the sanitizer knows of an mbarrier.
struct Mbarrier {
  PastPointer gathered, completed;           // what the threads knew that arrived in this phase, and in those before it
  u32 copies = 0;                            // that ever were to complete on it
  u32 expecting = MANY_THREADS, at = NO_PC;  // who called expect_tx last, and where
  u32 brought_by = MANY_THREADS, from = NO_PC;  // whose copy came last, of which block
  u64 brought_block = 0;
  u32 brought = 0;                // bytes of copies in this phase
  const Warp *made_by = nullptr;  // who initialised it, and where
  u32 made_by_thread = MANY_THREADS, made_at = NO_PC;
  Cell made;            // when that was: later accesses hide it in the cells of its granules
  bool fenced = false;  // since then, so that TMA finds it
  // For the report of a deadlock.
  u32 phases = 0;      // that have ended
  bool waited = true;  // some thread for the last of them
  u32 overrun = 0;     // those that ended before any thread had waited for the one before
  u32 overrun_by = MANY_THREADS, overrun_at = NO_PC;
  u64 overrun_block = 0;
  std::vector<std::array<u32, LANES>> passed;  // by warp: `phases` when the lane's last wait was over, plus one
  struct Stale {                               // waits of a thread for the phase for which it had waited before
    u32 thread, count = 0;
  };
  std::map<u32, Stale> stale;  // by pc: of the first thread that did so
};

// The products of four warps together: wgmma.cpp.
struct Warpgroup {
  struct Part {  // 16 rows, of one warp
    const Instr *i = nullptr;
    u64 a, b;  // descriptors
    bool accumulate, done = false;
    std::vector<u32> a_rows;  // if A is in registers: as they were
    AsyncPast past;           // the sanitizer's
  };
  struct Product {
    Part part[4];
    u32 first = 0;               // warp that issued it first
    u32 issued = 0, waited = 0;  // warps that have
    bool read = false;           // its operands
  };
  std::map<u64, Product> products;  // by number
  u32 registers[4] = {};            // of each thread, as setmaxnreg has set them; 0: as launched
  u32 registers_pc[4] = {};
};
// Those who make bulk copies, in the place of a block's number: all that complete on an mbarrier; a thread's groups, as
// they read shared memory and as they write. And the cp.async of a warp for whose end an mbarrier stands, by the thread that
// arrived there first.
constexpr u64 ASYNCHRONOUS = 1ull << 56;
inline u64 copies_on(u64 block, u64 offset) { return ASYNCHRONOUS | block << 16 | 1 << 15 | offset >> 3; }
inline u64 copies_of(u64 block, u32 thread, bool writing) { return ASYNCHRONOUS | block << 16 | thread << 1 | writing; }
inline u64 products_of(u64 block, u32 warpgroup) { return ASYNCHRONOUS | block << 16 | 1 << 14 | warpgroup; }
inline u64 cp_async_of(u64 block, u32 thread) { return ASYNCHRONOUS | block << 16 | 1 << 13 | thread; }
inline bool is_cp_async(u64 actor) { return (actor & ASYNCHRONOUS) && (actor >> 13 & 7) == 1; }
inline u64 block_of(u64 block) { return block & ASYNCHRONOUS ? (block & ~ASYNCHRONOUS) >> 16 : block; }

// What is undefined in global memory, from launch to launch: of each byte a bit for each bit, and the store that brought it
// there. Only the pages where anything ever was.
class UndefinedBytes {
 public:
  bool any() const { return count.load(std::memory_order_acquire); }
  // Null bits: all is defined. `store`: a number of store_at, or 0 for what is no result (parts of an element: padding).
  void put(u64 address, const u8 *bits, u32 bytes, u32 store);
  // False if all is defined.
  bool get(u64 address, u8 *bits, u32 bytes, u32 *pc = nullptr) const;
  void define(u64 address, u64 bytes);
  void copy(u64 to, u64 from, u64 bytes);
  void mark_stores(u64 address, u64 bytes, u8 *seen) const;  // seen[n] = 1: something of store n is there
  u32 store_at(u32 pc);                                      // of this launch
  void begin_launch() { first = u32(stores.size()); }
  void clear();
  std::vector<u32> stores;  // pc of each; the number is one more than its place

 private:
  static constexpr u64 PAGE = 4096;
  struct Page {
    u8 bits[PAGE] = {};
    u16 store[PAGE] = {};
  };
  mutable std::mutex mutex;
  std::unordered_map<u64, std::unique_ptr<Page>> pages;
  std::atomic<u64> count{0};  // of pages
  u32 first = 0;              // stores before this launch
  template <class F>
  void each(u64 address, u64 bytes, bool create, F f);
};

// One of a launch's threads, and what the blocks left that it ran.
struct Worker {
  std::vector<Counters> counters;
  std::map<std::pair<u32, u32>, Finding> findings;
  std::map<u32, s64> by_address;            // of bulk copies, by pc: accesses to their tiles that say so, or do not
  bool busy = false, polling = false;       // it runs a block; one that only polls
  bool brief = false;                       // it runs on the caller's thread, which wants it back soon
  u64 next_epoch = 0, last_epoch = 0;       // numbers for its epochs
  alignas(64) std::atomic<u64> changes{0};  // of global memory; written by this thread only
  void changed() { changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
};

struct Launch {
  const Program *program;
  u32 grid[3], block[3], threads, warps;
  u32 cluster[3], cluster_blocks;  // of a cluster: blocks along each axis, all of them
  u32 clusters[3];                 // of the grid, along each axis
  bool explicit_cluster;           // the launch, or the kernel, says how large clusters are
  u32 dynamic_shared, shared_bytes;
  u32 shared_window;                 // what a block gets: hardware does not see an access beyond shared_bytes
  u32 multiprocessors;               // of the GPU that is modelled
  u64 resident;                      // clusters that it holds at a time
  alignas(8) u32 workspace[2] = {};  // of a co-operative launch: what grid.sync() counts in
  bool cooperative;
  std::vector<u8> params;
  std::vector<Allocation> allocations;  // sorted by base
  UndefinedBytes *undefined = nullptr;
  Heap *heap = nullptr;  // if the module calls malloc
  // Races in global memory, and what its flags pass on.
  std::atomic<bool> races{false};
  std::vector<std::unique_ptr<Cells>> cells;
  Cells *heap_cells = nullptr;
  Epochs epochs;
  std::mutex flag_mutex;
  std::unordered_map<u64, PastPointer> flags;
  std::atomic<u64> flag_count{0};
  std::atomic_flag writing[64] = {};  // by place: held while an atomic or a store is noted and done
  // Programmatic dependent launch: dependent.cpp.
  bool kept = false;                                   // it is looked at when the next launch runs
  const Launch *before = nullptr;                      // kept, and may still run when this one begins
  bool waited = false, waited_first = false;           // some thread for `before`; before its block let the next begin
  std::mutex trigger_mutex;                            // guards these
  std::unordered_map<u64, std::vector<u32>> triggers;  // of a block that let the next begin: what its warp knew then
  u64 touched(u64 *ranges, u64 most) const;            // dependent.cpp
  void keep();
  bool count, sanitize, strict;  // `strict`: what is disputed is looked for, too
  u64 trace_first, trace_end, trace_limit;
  u64 event_first, event_end, event_limit;  // of the blocks whose events are noted; how many events at most
  u64 budget;  // instructions, or what takes as long, that a block's warps may execute together
  u64 blocks;  // the end of those that run
  // Shared by the workers. `mutex` guards all of it but the atomics.
  std::atomic<u64> done{0}, traced{0}, noted{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable finished, changed;
  std::vector<std::unique_ptr<Worker>> workers;
  u32 running = 0, idle = 0;  // workers; those of them that have nothing to do
  // Clusters: the next one to begin of those that the GPU has room for from the start on, and their end; the next one of
  // those that wait for room, which begin when others have ended, or are cancelled.
  u64 started = 0, wave = 0, pending = 0;
  bool more() const { return (started < wave ? started : pending) * cluster_blocks < blocks; }
  u64 not_started() const;  // blocks
  bool cancel(u64 &index);  // the next one that waits for room; false: there is none
  void skip(u64 number);    // a cluster that has ended, or never begins
  std::vector<std::unique_ptr<Cluster>> storage;
  std::vector<Cluster *> free;    // storage of clusters that have ended
  std::deque<Cluster *> waiting;  // for memory that another one changes
  std::deque<Cluster *> polling;  // perhaps too: they do something else each time
  std::deque<Cluster *> paused;   // for no reason of theirs
  bool turn_of_polling = false;
  u64 idle_instructions = 0, idle_version = 0;  // executed by those that poll since memory changed last
  std::map<std::pair<u32, u32>, Finding> findings;
  std::map<u32, s64> by_address;  // as of each worker
  void settle_tiles();
  std::vector<Counters> counters;
  std::vector<TraceRow> trace;
  std::vector<Event> events;
  // What blocks printed, for the host to take in their order: of those before `printed` it is in `ready`.
  std::map<u64, std::string> output;
  std::set<u64> ended;  // clusters from `printed` on
  u64 printed = 0;
  std::string ready, taken;
  std::condition_variable room;  // in `ready`
  void print_ended(const Cluster &);
  void wait_for_room(std::unique_lock<std::mutex> &, const Worker &);
  void print_rest();

  void wait() {  // until all workers are through
    std::unique_lock lock(mutex);
    finished.wait(lock, [&] { return running == 0; });
  }
  u64 version() const {  // of global memory
    u64 sum = 0;
    for (const auto &worker : workers) sum += worker->changes.load(std::memory_order_acquire);
    return sum;
  }
};

struct Barrier {
  struct Arrival { u32 warp, time, thread, pc; };
  u32 arrived = 0, expected = 0;  // threads; expected 0: every thread of the block
  u32 pc = NO_PC;                 // where the first of them arrived
  u32 thread = 0;
  u32 count = 0, all = ~0u, any = 0;  // bar.red
  bool mixed = false;
  Clock knows, fenced[2];               // counted barriers: what those knew that have arrived
  std::vector<Arrival> now, last_time;  // ... and who they are, and who they were when it was last complete
};

// What the addresses of the active lanes look like.
struct Pattern {
  u64 low, high, bits;  // smallest, largest, all or-ed
  bool same, row;       // all equal; all 32 lanes active and side by side in order
};

// How a block's turn ended: it is over; its threads wait for memory that others change; so they do, as far as one knows;
// it could go on, but the worker is to be brief.
enum class Outcome { DONE, WAITING, POLLING, PAUSED };

// Lanes that wait for others of their warp at an instruction.
struct Standing {
  const Instr *i;
  u32 lanes;
};

struct Block {
  Launch &launch;
  const Program &program;
  Cluster &cluster;
  const u32 rank;                // in its cluster
  u32 place[3];                  // likewise, along each axis
  Worker *worker = nullptr;      // that runs it
  Counters *counters = nullptr;  // the worker's
  u64 index = 0;
  u32 ctaid[3] = {};
  u32 tick = 1;
  u32 live = 0;  // threads that have not exited
  u64 budget = 0;
  u64 reported = 0;  // findings
  bool stopped = false;
  bool traced = false;
  std::unique_ptr<u8[]> storage;  // frames, shared memory, local memory
  u8 *shared = nullptr, *local = nullptr;
  u8 *local_undefined = nullptr;   // as local; null if nobody asks
  u8 *shared_undefined = nullptr;  // as shared; null if no register can be undefined
  bool shared_tainted = false;     // something of it is
  std::vector<u32> shared_origin;  // of each word: where something undefined was stored last
  u32 local_stride = 0;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::vector<Cell> written_by, read_by;  // of each granule of shared memory
  Flags flags;                            // in shared memory
  u64 seen[64] = {};                      // a bit for each address of which a strong load or atomic has seen a value
  Barrier barriers[16];
  std::vector<std::pair<u32, u32>> ended;           // barriers that a thread bypassed and then ended: pc, thread
  u64 &changes;                                     // the cluster's
  u64 executed = 0;                                 // instructions, of all warps
  u64 slept = 0;                                    // cycles
  u64 bytes = 0;                                    // of its storage
  u64 parked_version = 0;                           // of global memory, before it had to wait
  u64 passed = 0;                                   // barriers of the cluster that a thread of it has waited for
  bool refused = false;                             // it has seen that there is no cluster left to cancel
  PastPointer farewell;                             // what its threads knew when they ended, of other blocks
  std::map<std::pair<u64, u32>, Visitor> visitors;  // warps of other blocks, by block and warp
  std::vector<TraceRow> trace;
  std::string output;                              // what the block's threads printed, and the host has not been given
  u64 printed = 0;                                 // bytes, in all
  std::chrono::steady_clock::time_point streamed;  // when the host was given some
  const Allocation *last = nullptr;                // the allocation that was hit last
  const Allocation *only = nullptr;                // ... and by all lanes of the last check, or null

  Block(Cluster &, u32 rank);
  void start();
  Outcome run(Worker &);
  bool waits(s32 for_what) const;  // does a group of lanes? See Group::waiting
  bool release_lanes();            // let lanes go on that wait for others of their warp; false: there are none
  void report_deadlock(u64 not_started);
  void stream_output();
  bool poll_changed() const;  // does memory differ from what its threads polled last?
  // Of memory; `near`: of that which only the cluster can change. So who waits for an mbarrier does not look again because
  // another cluster has stored something, and how often it looks does not depend on how fast that one is.
  u64 version(bool near = false) const { return near ? NEAR | changes : launch.version() + changes; }
  static constexpr u64 NEAR = 1ull << 63;
  void changed(Warp &w, Space space) {
    if (space == Space::GLOBAL)
      worker->changed();
    else if (space != Space::LOCAL)
      ++changes;
    else
      ++w.own;
  }

  Warpgroup &warpgroup(const Warp &w) { return warpgroups[w.index / 4]; }
  u32 thread(const Warp &warp, int lane) const { return warp.index * LANES + lane; }
  void report(Problem, u32 pc, u32 thread, u64 address, u32 size, u32 other_thread = MANY_THREADS, u32 other_pc = NO_PC,
              u64 other_block = SAME_BLOCK, u64 other_launch = 0);
  void halt() { stopped = true; }  // this block ends here, and with it the launch

  // Shared memory: shadow.cpp.
  void shadow_read(const Warp &, u32 mask, const u64 *address, u32 bytes, const Instr &, const Pattern &,
                   bool for_warp);
  void shadow_write(const Warp &, u32 mask, const u64 *address, u32 bytes, const Instr &, const u8 (*value)[32],
                    u64 more = 0);
  bool shadow_write_row(const Warp &, u64 address, u32 bytes, const Instr &);
  void shadow_land(const Warp &, int lane, u32 address, u32 bytes, const Instr &, Cell visit);
  void shadow_atomic(const Warp &, int lane, u32 address, u32 bytes, const Instr &, bool reads = true);
  bool ordered(const Warp &, int lane, const Block &there, Cell) const;
  // Global memory: races.cpp.
  void race_read(Warp &, const Instr &, u32 mask, const u64 *address, u32 bytes, const Pattern &);
  void note_seen(u32 mask, const u64 *address);
  void race_write(Warp &, const Instr &, u32 mask, const u64 *address, u32 bytes, const u8 (*value)[32], bool atomic);
  bool race_write_row(Warp &, const Instr &, u64 address, u32 bytes);
  // The launch before, if this one may begin early: dependent.cpp.
  void wait_for_launch(Warp &, u32 mask);
  void let_next_begin(Warp &);
  // mbarriers: mbarrier.cpp; bulk copies: bulk.cpp.
  bool report_mbarrier(const Poll &, u32 thread);
  void report_phases();
  void copy_writes(Warp &, const Instr &, int lane, const BulkCopy &);
  void read_shifted(const Warp &, u32 mask, const u64 *address, const Instr &);
  void store_shifted(const Warp &, const Instr &, int lane, const BulkCopy &);
  const Visit *boxed(u32 at) const;  // the bulk copy of a box with a swizzle that wrote this byte; null: none
  void copy_reads(Warp &, const Instr &, int lane, const BulkCopy &);
  void race_copy(Warp &, const Instr &, int lane, u64 address, u32 bytes, u32 epoch, const BulkCopy &);
  bool writes_the_same(const BulkCopy &) const;
  void finish_groups(Warp &, int lane, u32 before);
  void wait_groups(Warp &, u32 mask, u32 keep, bool reading);
  void leave_copies(Warp &, u32 mask);
  PastPointer reads_over(Warp &);
  void hand_to(Warp &, u32 mask, PastPointer &, bool release);
  void take_from(Warp &, const PastPointer &);
  // wgmma.cpp
  void issue(Warp &, Warpgroup::Part);
  bool wait_for_products(Warp &, const Instr &);
  void finish(Warp &, u64 number);
  void touch_registers(Warp &, const Instr &, u32 mask);
  void end_products(const Warp &);
  void end_warpgroups();
  // Accesses by the async proxy: order.cpp and wgmma.cpp.
  void fence_proxy(Warp &);
  std::vector<u32> fenced_times(const Warp &) const;
  AsyncPast async_past(Warp &);
  // Of a thread block cluster: cluster.cpp.
  u64 cluster_address(Space, u64 address) const;
  void pass_cluster(Warp &, u32 mask);
  void arrive_at_cluster(Warp &, const Instr &, u32 mask, bool relaxed);
  bool visit_allowed(Warp &, const Instr &, u32 mask, const u64 *address, u32 bytes);
  void visit(Warp &, const Instr &, u32 mask, const u64 *address, u32 bytes, bool write, u64 flags,
             const u8 (*value)[32]);
  // What has happened before what: order.cpp.
  void meet_lanes(Warp &, u32 mask);
  void fence(Warp &, bool beyond);
  void release(Warp &, const Instr &, u32 mask, Space, const u64 *address, bool atomic);
  void acquire(Warp &, u32 mask, Space, const u64 *address);
  void settle(Warp &);
  Clock as_clock(const PastPointer &) const;
  // What is undefined: undefined.cpp.
  void follow(Warp &, const Instr &, u32 mask, u32 active);
  void absent(Warp &, const Instr &, u32 target, u32 lanes);
  void look_for_taint(Warp &);
  void start_undefined(Warp &);
  bool holds_undefined(Space) const;
  bool undefined_shared(u32 offset, u32 bytes) const;
  void undefined_copy(u32 tile, u64 global, u32 bytes, const BulkCopy &);
  void undefined_shared_copy(u64 to, const Block &, u64 from, const BulkCopy &);
  void undefined_landing(u32 to, u64 global, u32 copied, u32 size, u32 pc);
  void defined(const Warp &w, int lane, u64 offset, u32 bytes) {  // the machine itself wrote local memory
    if (local_undefined) memset(local_undefined + u64(thread(w, lane)) * local_stride + offset, 0, bytes);
  }

 private:
  enum class Turn { NOTHING, MOVED, POLLED };
  template <bool NOTING>  // events
  Turn run_warp(Warp &, u64 quantum);
  bool schedule(Warp &, size_t &group, u32 &limit);
  bool same_again(Warp &, u32 pc, u32 mask, u64 &now);
  bool back(Warp &, const Instr &, Group &);
  bool meet(Warp &, size_t group, const Instr &, u32 active);
  void meet_apart(Warp &, const Instr &, u32 came);
  bool same_exchange(const Instr &, const Instr &) const;
  void exchange(Warp &, const std::vector<Standing> &, u32 mask);
  void report_absent(Warp &, const Instr &, int lane, u32 named, u32 here);
  void branch(Warp &, Group &, const Instr &, u32 taken);
  void arrive(Warp &, Group &, const Instr &, u32 mask);
  void go_round(Warp &, u32 barrier, u32 lanes);
  void complete_barriers();
  void call(Warp &, size_t group, const Instr &, u32 active);
  void return_from(Warp &, size_t group, const Instr &, u32 active);
  void exit(Warp &, Group &, u32 mask);
  void write_constants(Warp &, bool anew) const;
  void wait_for_cluster(Warp &, Group &, u32 mask);
  void leave_cluster(Warp &, u32 mask);
  bool release_lanes(Warp &);
  u32 advance(Warp &);
  void forget_times();
  void meet_all();
  void bring(Warp &, Barrier &);
  void look_for_turns(const Warp &, const Barrier &, u32 number, u32 thread, u32 pc);
  void take(Warp &, const Barrier &);
  void learn(Warp &, const Clock &);
  u32 lane_time(const Warp &, int lane, int of) const;
  void hand_on(Warp &, u32 mask, PastPointer (&to)[2], bool relaxed);
  void visit(Warp &, const Instr &, int lane, u64 address, u32 bytes, bool write, u64 flags, const u8 *value);
  bool happened(const Warp &, int lane, const Visit &) const;
  bool happened(const AsyncPast &, Cell, bool fenced) const;
  bool proxy_fenced(const Warp &, Cell) const;
  bool release_warpgroups();
  void read_operands(const Warp &, u64 number, const Warpgroup::Product &);
  void check_operand(const Warp &, const Warpgroup::Product &, u32 at, u32 parts, u32 swizzled);
  void report_shifted(const Visit &, Problem, s64 by_address, u32 thread, u32 pc);
  bool readers_known(const Warp &, u32 time) const;
  bool ordered(const Warp &, int lane, Cell) const;
  Cell unordered(const Warp &, int lane, const Block &there, Cell);
  Cell also(const Warp &, const Instr &, int lane, const Block &there, Cell earlier, u64 flags);
  void report_visit(Problem, const Warp &, const Instr &, int lane, u64 address, u32 bytes, const Block &there, Cell);
  bool waited_in_vain(const Warp &, int lane, u64 actor) const;
  u32 waited_elsewhere(const Warp &, int lane) const;
  void look_for_race(Problem, const Warp &, const Instr &, u32 lanes, u32 where, u32 bytes, Cell last, Cell mine);
  Cell after(const Warp &, const Instr &, int lane, Cell earlier, Cell mine);
  void read_granule(const Warp &, const Instr &, u32 lanes, u32 at, u32 bytes, Cell mine);
  bool may_pad(const Instr &, u32 at) const;
  void write_granule(const Warp &, const Instr &, int lane, u32 at, u32 bytes, Cell mine, bool same_value);
  void learn_waited(Warp &);
  bool early(const Warp &w, u32 mask) const {  // may a launch before this one still run, for all that these lanes know?
    const Launch *before = launch.before;
    return before && (mask & ~w.waited || (before->before && !before->waited));
  }
  void check_early(const Warp &, const Instr &, u32 mask, const u64 *address, u32 bytes, bool writes, bool strong);
  u32 epoch(Warp &);
  bool ordered_globally(const Warp &, u64 address, u64 word, u64 mine, bool over = false) const;
  void report_race(Problem, const Warp &, const Instr &, int lane, u64 address, u32 bytes, u64 word, u64 mine);
  void read_cells(Warp &, const Instr &, const Cells &, int lane, u32 lanes, u64 address, u32 bytes, u64 mine);
  void write_cells(Warp &, const Instr &, const Cells &, int lane, u64 address, u32 bytes, u64 mine, const u8 *value,
                   const BulkCopy *copy = nullptr);
  const Cells *cells_of(u64 address, u32 bytes) const;
};

// Blocks that are resident together and may reach each other's shared memory, mostly just one. One worker at a time runs
// all of them, in turns.
//
// An address that may mean any block of the cluster has the block's rank + 1 above its offset; 0 there: one's own.
struct Cluster {
  static constexpr u32 RANK_SHIFT = 24;
  static constexpr u64 MOST_VISITS = 4 << 20;  // that it remembers; what comes after them counts as ordered

  Launch &launch;
  u64 number = 0;   // in the order in which they begin
  u32 id[3] = {};   // its place in the grid of clusters
  u64 changes = 0;  // of its shared memory, and meetings at barriers
  u64 bytes = 0;    // of its storage
  u32 in_vain = 0;  // how often it went on after it had to wait, only to wait again
  std::vector<std::unique_ptr<Block>> blocks;
  // barrier.cluster
  u64 phase = 0;             // how many are complete
  u32 missing = 0;           // threads that have neither arrived at the next one nor exited
  PastPointer gathered[2];   // what those know that have arrived: now, and at their last fence
  PastPointer handed_on[2];  // what those knew that arrived at the one before
  // The sanitizer's.
  std::unordered_map<u64, PastPointer> flags;  // of shared memory, by address with rank
  std::vector<Visit> visits;
  // mbarrier.cpp, bulk.cpp
  std::unordered_map<u64, Mbarrier> mbarriers;  // by address with rank
  std::vector<BulkCopy> copies;                 // on their way to an mbarrier
  bool shifted = false;                         // one of them went to where no pattern of its swizzle begins
  std::vector<LateArrival> late_arrivals;
  bool noting = false;  // events are noted: events.cpp
  std::vector<Event> events;

  explicit Cluster(Launch &);
  void start(u64 index);
  Outcome run(Worker &);
  void complete();
  void land(u64 mbarrier, Warp &by);
  void arrive_late(u64 mbarrier, Warp &by);
  void note(Warp &, u32 pc, EventKind, u32 there, u32 at, u32 number);
  void note_wait(Warp &, u32 pc, EventKind, u32 there, u32 at, u32 number);
  void note_store(Warp &, u32 pc);
  void execute(const BulkCopy &);
  bool release_lanes();
  bool parked_since(u64 version) const;  // is global memory another one than when it had to wait?
  bool poll_changed() const;
  u64 executed() const;
  bool stopped() const;

  bool alone() const { return blocks.size() == 1; }
  static u64 address(const Block &b, u64 offset) { return u64(b.rank + 1) << RANK_SHIFT | offset; }
  static u64 offset(u64 address) { return address & ((1ull << RANK_SHIFT) - 1); }
  Block *block(u64 address) const {  // null: no rank of the cluster
    const u64 rank = (address >> RANK_SHIFT) - 1;
    return rank < blocks.size() ? blocks[rank].get() : nullptr;
  }
  void host_pointers(const u64 *address, u64 *out) const;
  Block &issuer(const BulkCopy &c) const {
    return **std::find_if(blocks.begin(), blocks.end(), [&](auto &block) { return block->index == c.block; });
  }
  u64 remember(const Visit &);
  Cell before(Cell cell) const { return cell.visited() ? visits[cell.visit()].before : Cell(); }
};

const std::string &special_names();
u64 strength(const Instr &);  // Cell::BY_STRONG or BY_VOLATILE, of an access that is meant for others

// While this lives, the warp writes memory: those who wait for that are told at its end.
struct Change {
  Warp &warp;
  const Space space;
  Change(Warp &w, Space space) : warp(w), space(space) {}
  ~Change() { warp.block->changed(warp, space); }
};

// ---- memory. Addresses are per lane; for SHARED they are offsets. ----

void addresses(const Warp &, u32 base, u32 offset, bool wide, u64 *out);
void hand_over_copies(Warp &, u32 m, u64 actor);  // an arrival will tell of the lanes' cp.async so far
void land_copies(Warp &, u32 m, u32 number);      // those of the lanes up to that number
void host_pointers(const Warp &, Space, const u64 *address, u64 *out);
const Allocation *find(const Launch &, u64 address, u32 bytes);
constexpr u64 PART = 1 << 18;  // bytes of an allocation that are filled when they are first touched: memory.py
constexpr u8 SETTLED_PART = 0, NEW_PART = 1, BUSY_PART = 2;
Pattern look(const u64 *address, u32 mask, u32 bytes);

// How an access is counted. COST: sectors of global memory, passes over the banks of shared memory. AS_LOAD: an ordinary
// load, which shared memory may serve with more lanes at once.
enum Counted : u32 { UNCOUNTED = 0, REQUESTS = 1, BYTES = 2, COST = 4, AS_LOAD = 8, IN_FULL = REQUESTS | BYTES | COST };
constexpr u32 UNTRACED = ~0u;
// What the sanitizer is told of it. READ_FOR_WARP: what a lane reads goes to others. IN_FLIGHT: it is written some time
// before its thread has waited for it. IF_IT_MATTERS: read, as a SETTLING predicate will say. BY_CALLER: he tells it.
enum class Noted : u32 { READ, READ_FOR_WARP, WRITTEN, IN_FLIGHT, IF_IT_MATTERS, BY_CALLER };

// Elements that go between memory and registers (~0: not wanted).
struct Elements {
  u32 bytes, width, count;  // of an element, of a register of a lane; how many
  bool sign;
  const u32 *registers;
};

// What lanes of a warp do to memory: `bytes` each, at an address within the space.
struct Access {
  const u32 mask;
  const Space space;
  const u64 *const address;
  const u32 bytes, align, counted, traced;  // `traced`: a TraceKind, or UNTRACED
  const Noted noted;
  const Pattern p;
  u32 element = 0;                  // READ: bytes of which it is enough that some have been written; 0: all have to be
  const u32 *taken = nullptr;       // of each lane: how many of the bytes it takes, if not all lanes take all
  const u64 *past_l1_to = nullptr;  // of a copy past L1: where it goes
  const u8 (*value)[32] = nullptr;  // WRITTEN: what each lane writes, if that is known
  const Elements *elements = nullptr;  // what is undefined goes with them
  Access(u32 mask, Space space, const u64 *address, u32 bytes, u32 align, u32 counted, u32 traced, Noted noted)
      : mask(mask),
        space(space),
        address(address),
        bytes(bytes),
        align(align),
        counted(counted),
        traced(traced),
        noted(noted),
        p(mask ? look(address, mask, bytes) : Pattern{}) {}
};
// Checks it, counts it, traces it, and tells the sanitizer. False (after reporting) when the launch must stop. A copy has
// two sides, one of them at most in global memory.
bool access(Warp &, const Instr &, const Access &);
bool access(Warp &, const Instr &, const Access &from, const Access &to);
// Parts of it, for those who know more than that: stores and atomics, lane by lane; what is done in the background.
void trace_access(Warp &, const Instr &, u32 mask, Space, TraceKind, const u64 *address, u32 bytes);
void note_global(Warp &, const Instr &, u32 mask, const u64 *address, u32 bytes, bool store, const Pattern &,
                 u32 element = 0);
u32 around(const Instr &);  // bytes around what it accesses, of an access that MAY_PAD a structure
// What is undefined goes with the values: see undefined.cpp.
void undefined_load(Warp &, const Instr &, u32 mask, Space, const u64 *address, u32 bytes, bool sign, u32 width,
                    u32 count, const u32 *registers);
void undefined_store(Warp &, const Instr &, u32 mask, Space, const u64 *address, u32 bytes, u32 width, u32 count,
                     const u32 *registers);
void undefined_atomic(Warp &, const Instr &, u32 mask, Space, const u64 *address, u32 bytes, u32 target);
bool undefined_bits(Warp &, int lane, Space, u64 address, u8 *bits, u32 bytes);
void put_undefined(Warp &, const Instr &, int lane, Space, u64 address, const u8 *bits, u32 bytes);
// Lanes with generic addresses may mean different spaces: the space of the lanes of `*left` that come first, which are
// returned and taken off `*left`; their addresses become those within the space.
u32 next_space(const Block &, u32 *left, u64 *address, Space *space);

}  // namespace vm
