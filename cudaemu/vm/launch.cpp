// A launch: its blocks over the processor's cores; and the interface to Python (engine.py).
//
// A worker runs a cluster of blocks (mostly of one) to its end and starts the next one, in order. But a cluster whose
// threads wait for another one is put aside, and the worker goes on with the next: as many may be begun as the GPU would
// hold at a time. One that waits goes on when memory has changed. If none can, and no other is running, that is a deadlock.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "block.h"

namespace vm {

constexpr u32 LONGEST_SPIN = 256;                // instructions of a loop that waits
constexpr u64 MOST_STORAGE = 4ull << 30;         // bytes of clusters that have begun
constexpr u64 IDLE_INSTRUCTIONS = 10'000'000;    // of clusters that only poll while nothing happens: it is a deadlock
constexpr std::chrono::microseconds BRIEF(200);  // on the caller's thread: longer than it takes to wake another
constexpr u64 MOST_READY = 16 << 20;             // bytes that were printed and that the host has not taken
constexpr size_t MUCH_OUTPUT = 64 << 10;  // bytes that a running block has printed, to be given to the host at once
constexpr std::chrono::milliseconds PATIENCE(50);  // ... and those that are fewer
constexpr u32 TRIES = 2;  // of a cluster, to go on at once when what it polled has changed; then new ones come first

constexpr u64 NONE_FRESH = ~0ull;

static u64 resident(const Launch &l) { return l.storage.size() - l.free.size(); }

static Cluster *start_next(Launch &l, u64 &index) {
  if (l.free.empty()) {
    l.storage.push_back(std::make_unique<Cluster>(l));
    l.free.push_back(l.storage.back().get());
    const u64 most = std::max<u64>(MOST_STORAGE / (l.storage.back()->bytes + 1), l.workers.size());
    l.resident = std::min(l.resident, most);
  }
  Cluster *cluster = l.free.back();
  l.free.pop_back();
  index = l.started < l.wave ? l.started++ : l.pending++;
  return cluster;
}

template <class F>
static Cluster *take(std::deque<Cluster *> &from, F f) {
  const auto at = std::find_if(from.begin(), from.end(), f);
  if (at == from.end()) return nullptr;
  Cluster *cluster = *at;
  from.erase(at);
  return cluster;
}

// A deadlock: who waits where?
static void give_up(Launch &l, Worker &w) {
  for (const auto &queue : {&l.waiting, &l.polling})
    for (Cluster *cluster : *queue)
      for (auto &block : cluster->blocks) {
        block->worker = &w;
        if (block->live) block->report_deadlock(l.not_started());
      }
  l.stop = true;
}

// All blocks that have begun wait, or are over. Let lanes go on without others of their warp, if some wait for those.
static void resolve(Launch &l, Worker &w) {
  for (Cluster *cluster : l.waiting) {
    for (auto &block : cluster->blocks) block->worker = &w;
    if (cluster->release_lanes()) return;
  }
  give_up(l, w);
}

// What the worker does next; null if it is no longer needed. `fresh`: the number of a cluster that has yet to begin.
static Cluster *next_cluster(Launch &l, Worker &w, std::unique_lock<std::mutex> &lock, u64 &fresh) {
  while (!l.stop) {
    const u64 version = l.version();
    fresh = NONE_FRESH;
    w.polling = false;
    if (Cluster *c = take(l.paused, [](Cluster *) { return true; })) return c;
    const auto changed = [&](Cluster *c) { return c->parked_since(version); };
    if (Cluster *c = take(l.waiting, [&](Cluster *c) { return changed(c) && c->in_vain < TRIES && c->poll_changed(); }))
      return c;
    const bool more = l.more() && resident(l) < l.resident;
    if (more && (l.polling.empty() || !l.turn_of_polling)) {
      l.turn_of_polling = true;
      return start_next(l, fresh);
    }
    l.turn_of_polling = false;
    if (Cluster *c = take(l.waiting, changed)) return c;
    if (!l.polling.empty()) {
      w.polling = true;
      return take(l.polling, [](Cluster *) { return true; });
    }
    if (l.waiting.empty()) return nullptr;
    if (++l.idle == l.running)
      resolve(l, w);
    else
      l.changed.wait_for(lock, std::chrono::milliseconds(1));
    --l.idle;
  }
  return nullptr;
}

// A cluster has polled in vain. Stop if no cluster does anything else.
static void note_idle(Launch &l, Worker &w, u64 executed) {
  const u64 version = l.version();
  const bool others = std::any_of(l.workers.begin(), l.workers.end(), [](auto &w) { return w->busy && !w->polling; });
  if (version != l.idle_version || others) {
    l.idle_version = version;
    l.idle_instructions = 0;
  }
  l.idle_instructions += executed;
  if (l.idle_instructions >= IDLE_INSTRUCTIONS) give_up(l, w);
}

static void merge(Launch &l, Worker &w) {
  for (size_t pc = 0; pc < w.counters.size(); ++pc) {
    Counters &to = l.counters[pc], &from = w.counters[pc];
    to.warps += from.warps, to.threads += from.threads, to.sectors += from.sectors;
    to.wavefronts += from.wavefronts, to.conflicts += from.conflicts, to.bytes += from.bytes;
    to.requests += from.requests;
    to.cluster_requests += from.cluster_requests, to.cluster_bytes += from.cluster_bytes;
  }
  for (const auto &[pc, votes] : w.by_address) l.by_address[pc] += votes;
  for (const auto &[key, finding] : w.findings) {
    auto [at, fresh] = l.findings.try_emplace(key, finding);
    if (fresh) continue;
    const u64 count = at->second.count + finding.count;
    const auto place = [](const Finding &f) { return std::pair(f.block, f.nth); };  // workers may share a block
    if (place(finding) < place(at->second)) at->second = finding;
    at->second.count = count;
  }
}

static void keep_trace(Launch &l, Block &block) {
  l.trace.insert(l.trace.end(), block.trace.begin(), block.trace.end());
  block.trace.clear();
}

static void keep_events(Launch &l, Cluster &cluster) {
  l.events.insert(l.events.end(), cluster.events.begin(), cluster.events.end());
  cluster.events.clear();
}

u64 Launch::not_started() const {
  const u64 all = blocks / cluster_blocks, first = std::min(wave, all);
  return (first - std::min(started, first) + all - std::min(pending, all)) * cluster_blocks;
}

bool Launch::cancel(u64 &index) {
  std::lock_guard lock(mutex);
  if (pending * cluster_blocks >= blocks) return false;
  index = pending++;
  done.fetch_add(cluster_blocks);
  skip(index);
  return true;
}

// What blocks printed, in their order: a cluster's when all those before it have ended.
void Launch::print_ended(const Cluster &cluster) {
  for (const auto &block : cluster.blocks)
    if (!block->output.empty()) output[block->index].swap(block->output);
  skip(cluster.number);
}

void Launch::skip(u64 number) {
  ended.insert(number);
  for (; !ended.empty() && *ended.begin() == printed; ended.erase(ended.begin())) ++printed;
  if (cluster_blocks > 1) return;  // their blocks are not side by side: at the end
  for (auto at = output.begin(); at != output.end() && at->first < printed; at = output.erase(at)) ready += at->second;
}

// Meanwhile the host takes what is ready.
void Launch::wait_for_room(std::unique_lock<std::mutex> &lock, const Worker &worker) {
  while (ready.size() >= MOST_READY && !stop && !worker.brief) room.wait_for(lock, std::chrono::milliseconds(10));
}

// What a block has printed so far: now and then, if all those before it have ended, so that each one's output is in a piece.
void Block::stream_output() {
  const auto now = std::chrono::steady_clock::now();
  if (output.size() < MUCH_OUTPUT && now - streamed < PATIENCE) return;
  streamed = now;
  std::unique_lock lock(launch.mutex);
  if (!cluster.alone() || cluster.number != launch.printed) return;
  launch.ready += output;
  output.clear();
  launch.wait_for_room(lock, *worker);
}

void Launch::print_rest() {
  for (const auto &[block, text] : output) ready += text;
  output.clear();
}

// False: it was to be brief, and there is more to do.
static bool work(Launch &l, Worker &worker) {
  const auto begin = std::chrono::steady_clock::now();
  if (l.count) worker.counters.resize(l.program->code.size());
  std::unique_lock lock(l.mutex);
  u64 fresh;
  while (Cluster *cluster = next_cluster(l, worker, lock, fresh)) {
    worker.busy = true;
    lock.unlock();
    if (fresh != NONE_FRESH) cluster->start(fresh);
    const u64 before = cluster->executed(), seen = cluster->changes + worker.changes;
    const Outcome outcome = cluster->run(worker);
    lock.lock();
    worker.busy = false;
    if (outcome == Outcome::DONE) {
      keep_events(l, *cluster);
      for (auto &block : cluster->blocks) keep_trace(l, *block);
      l.print_ended(*cluster);
      l.wait_for_room(lock, worker);
      if (cluster->stopped()) l.stop = true;
      l.free.push_back(cluster);
      l.done.fetch_add(l.cluster_blocks);
    } else if (outcome == Outcome::PAUSED) {
      l.paused.push_back(cluster);
    } else if (outcome == Outcome::WAITING) {
      cluster->in_vain = cluster->changes + worker.changes == seen ? cluster->in_vain + 1 : 0;
      l.waiting.push_back(cluster);
    } else {
      l.polling.push_back(cluster);
      worker.polling = true;
      note_idle(l, worker, cluster->executed() - before);
    }
    if (l.idle) l.changed.notify_all();
    if (worker.brief && std::chrono::steady_clock::now() - begin > BRIEF) return false;
  }
  for (Cluster *cluster : l.waiting) {
    for (auto &block : cluster->blocks) keep_trace(l, *block);
    l.print_ended(*cluster);
  }
  for (const auto &queue : {&l.waiting, &l.polling})
    for (Cluster *cluster : *queue) keep_events(l, *cluster);
  merge(l, worker);
  if (--l.running == 0)
    l.finished.notify_all();
  else
    l.changed.notify_all();
  return true;
}

// Threads that wait for work when they are done: starting one costs as much as a small launch.
class Pool {
 public:
  static Pool &get() {
    static Pool *pool = new Pool;                    // its threads may outlive what ends with the process
    if (pool->process != getpid()) pool = new Pool;  // after a fork there are no threads
    return *pool;
  }
  void run(std::function<void()> task) {
    std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    if (tasks.size() <= idle)
      ready.notify_one();
    else
      std::thread([this] { serve(); }).detach();
  }

 private:
  const pid_t process = getpid();
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<std::function<void()>> tasks;
  size_t idle = 0;  // threads

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      ready.wait(lock, [&] { return !tasks.empty(); });
      --idle;
      const auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }
};

}  // namespace vm

// ---- the interface to Python ----

using namespace vm;

struct LaunchSpec {
  u32 grid[3], block[3], cluster[3];
  u32 explicit_cluster;
  u32 dynamic_shared, shared_window, threads;
  u32 count, sanitize;
  u32 param_bytes, allocation_count;
  const u64 *allocations;  // base, size, written and whole (kernel.py) of each
  u64 trace_first, trace_end, trace_limit, event_first, event_end, event_limit, budget;
  u64 resident;
  u32 multiprocessors, cooperative;
  Heap *heap;
  const Launch *before;
  u32 kept, strict;
  UndefinedBytes *undefined;
  u64 first_block, end_block;  // of those that run, in whole clusters
};

// What each is: class Header of lower/core.py.
// clang-format off
#define PROGRAM_HEADER(X) \
  X(instructions) X(frame_bytes) X(local_bytes) X(static_shared) X(granule_log2) X(constants) X(table_words) \
  X(predicates) X(registers_2) X(registers_4) X(registers_8) X(registers_16) X(entry) X(local_static) X(stack) \
  X(fences) X(global_granule_log2) X(global_access_log2) X(registers) X(functions)
// clang-format on
struct ProgramHeader {
#define X(name) u32 name;
  PROGRAM_HEADER(X)
#undef X
};

static const Registry &registry() {
  static const Registry all = [] {
    Registry r;
    register_control(r);
    register_integer(r);
    register_floating(r);
    register_convert(r);
    register_memory(r);
    register_warp(r);
    register_print(r);
    register_tensor(r);
    register_call(r);
    register_video(r);
    register_dependent(r);
    register_cluster(r);
    register_mbarrier(r);
    register_wgmma(r);
    register_bulk(r);
    register_texture(r);
    return r;
  }();
  return all;
}

#pragma GCC visibility push(default)
extern "C" {

// All instructions, one per line, with '|' between: name, operands, category, effect, rule for what is undefined, whether
// that reports; spaces that it reads, that it writes; operands: the address that it reads, that it writes, the first that
// goes to memory (-1: none); whether it goes by elements.
const char *vm_instructions() {
  static const std::string all = [] {
    constexpr const char *effects[] = {
#define X(name) #name,
        EFFECTS(X)
#undef X
    };
    constexpr const char *rules[] = {
#define X(name, rule) #name "|0|",
#define REPORTED(name, rule) #name "|1|",
        UNDEFINED_RULES(X, REPORTED)
#undef X
#undef REPORTED
    };
    const auto spaces = [](u32 set) {
      std::string words;
      for (const auto &[space, word] :
           {std::pair(IN_GLOBAL, "global "), std::pair(IN_SHARED, "shared "), std::pair(IN_LOCAL, "local "),
            std::pair(IN_CLUSTER, "cluster "), std::pair(IN_PARAM, "param ")})
        if (set & space) words += word;
      return words + "|";
    };
    std::string text;
    for (const auto &[name, entry] : registry()) {
      const About &about = entry.about;
      text += name + "|" + entry.operands + "|" + about.category + "|" + effects[u32(about.effect)] + "|" +
              rules[u32(about.undefined)] + spaces(about.reads) + spaces(about.writes);
      for (const u32 operand : {about.from, about.to, about.values}) text += std::to_string(s32(operand)) + "|";
      text += about.elements ? "1\n" : "0\n";
    }
    return text;
  }();
  return all.c_str();
}

// Flags and kinds of instructions: name and number, one per line.
const char *vm_constants() {
  return ""
#define X(name, value) #name " " #value "\n"
      FLAGS(X)
#undef X
          ;
}
const char *vm_kinds() {
  return ""
#define X(name) #name "\n"
      KINDS(X)
#undef X
          ;
}

// Numbers of enumerations, and sizes and offsets of structures: "Space.SHARED 1", "TraceRow 32", "TraceRow.addr 24".
// clang-format off
const char *vm_mirrors() {
  static const std::string all = [] {
    std::string text;
    const auto say = [&](const char *name, size_t number) { text += name + (" " + std::to_string(number)) + "\n"; };
#define X(name) say("TraceKind." #name, name);
    TRACE_KINDS(X)
#undef X
#define X(name) say("EventKind." #name, EVENT_##name);
    EVENT_KINDS(X)
#undef X
#define X(name) say("Element." #name, ELEMENT_##name);
    ELEMENTS(X)
#undef X
#define X(name) say("Space." #name, size_t(Space::name));
    X(GLOBAL) X(SHARED) X(LOCAL) X(CLUSTER)
#undef X
#define X(type) say(#type, sizeof(type));
    X(LaunchSpec) X(ProgramHeader) X(Finding) X(Counters) X(TraceRow) X(Event)
#undef X
#define X(field) say("ProgramHeader." #field, offsetof(ProgramHeader, field));
    PROGRAM_HEADER(X)
#undef X
#define X(type, field) say(#type "." #field, offsetof(type, field));
    X(LaunchSpec, grid) X(LaunchSpec, block) X(LaunchSpec, cluster) X(LaunchSpec, explicit_cluster)
    X(LaunchSpec, dynamic_shared) X(LaunchSpec, shared_window) X(LaunchSpec, threads) X(LaunchSpec, count)
    X(LaunchSpec, sanitize) X(LaunchSpec, param_bytes) X(LaunchSpec, allocation_count)
    X(LaunchSpec, allocations) X(LaunchSpec, trace_first) X(LaunchSpec, trace_end) X(LaunchSpec, trace_limit)
    X(LaunchSpec, event_first) X(LaunchSpec, event_end) X(LaunchSpec, event_limit) X(LaunchSpec, budget)
    X(LaunchSpec, resident) X(LaunchSpec, multiprocessors) X(LaunchSpec, cooperative)
    X(LaunchSpec, heap) X(LaunchSpec, before) X(LaunchSpec, kept) X(LaunchSpec, strict) X(LaunchSpec, undefined)
    X(LaunchSpec, first_block) X(LaunchSpec, end_block)
    X(Finding, problem) X(Finding, pc) X(Finding, count) X(Finding, block) X(Finding, address) X(Finding, thread)
    X(Finding, size) X(Finding, other_thread) X(Finding, other_pc) X(Finding, other_block) X(Finding, other_launch)
    X(Finding, nth)
    X(Counters, warps) X(Counters, threads) X(Counters, sectors) X(Counters, wavefronts) X(Counters, conflicts)
    X(Counters, bytes) X(Counters, requests) X(Counters, cluster_requests) X(Counters, cluster_bytes)
    X(TraceRow, launch) X(TraceRow, space) X(TraceRow, kind) X(TraceRow, block) X(TraceRow, thread) X(TraceRow, seq)
    X(TraceRow, pc) X(TraceRow, size) X(TraceRow, addr)
    X(Event, step) X(Event, launch) X(Event, block) X(Event, warp) X(Event, pc) X(Event, kind) X(Event, there)
    X(Event, at) X(Event, number)
#undef X
    return text;
  }();
  return all.c_str();
}
// clang-format on

// Special registers, in the order of their numbers, from 1 on, one per line.
const char *vm_specials() { return special_names().c_str(); }

// All problems in the order of their numbers, one per line: name, kind, code, with '|' between them.
const char *vm_problems() {
  return ""
#define X(name, kind, code) #name "|" kind "|" #code "\n"
      PROBLEMS(X)
#undef X
          ;
}

// Null if an instruction is none of the machine's. names: one per line. words, for each instruction: name, guard, negate,
// flags, kind, target, count, operands. functions: pc of each, or ~0. constants: offset, width, special, value of each.
// tables: length and entries of each. flows: whether local memory is read; number of registers that may be read before
// they are written, and their places; then for each TRACKED instruction: pc, number of registers that it writes, that it
// reads, and their places.
Program *vm_program(const char *names, const u32 *words, const ProgramHeader *header, const u32 *functions,
                    const u64 *constants, const u32 *tables, const u32 *flows, u32 flow_words) {
  std::vector<const Entry *> named, entries;  // by name, by instruction
  for (const char *at = names; *at;) {
    const char *end = strchr(at, '\n');
    const auto found = registry().find(std::string(at, end));
    if (found == registry().end()) return nullptr;
    named.push_back(&found->second);
    at = end + 1;
  }
  Program *p = new Program;
  const ProgramHeader &h = *header;
  p->frame_bytes = h.frame_bytes, p->local_bytes = h.local_bytes, p->static_shared = h.static_shared;
  p->granule_log2 = h.granule_log2;
  const u32 bounds[] = {h.predicates, h.registers_2, h.registers_4, h.registers_8, h.registers_16, h.frame_bytes};
  std::copy(std::begin(bounds), std::end(bounds), p->bounds);
  p->entry = h.entry, p->local_static = h.local_static, p->stack = h.stack;
  p->fences = h.fences, p->global_granule_log2 = h.global_granule_log2, p->global_access_log2 = h.global_access_log2;
  p->registers = h.registers;
  p->functions.assign(functions, functions + h.functions);
  u64 size = 0;
  for (u32 n = 0; n < h.instructions; ++n) size += 7 + words[size + 6];
  p->words.assign(words, words + size);
  const u32 *at = p->words.data();
  for (u32 n = 0; n < h.instructions; ++n, at += 7 + at[6]) {
    entries.push_back(named[at[0]]);
    Instr i{named[at[0]]->run, at + 7, at[1], at[2], at[3], Kind(at[4]), at[5], n, at[6]};
    p->code.push_back(i);
  }
  if (flow_words) {
    const u32 *at = flows, *const end = flows + flow_words;
    p->tracked = true;
    p->reads_local = *at++;
    p->unset.assign(at + 1, at + 1 + *at);
    for (at += 1 + *at; at < end;) {
      Flow &f = p->flows[at[0]];
      f.targets = at[1], f.sources = at[2];
      f.offsets.assign(at + 3, at + 3 + f.targets + f.sources);
      at += 3 + f.targets + f.sources;
    }
    p->follow(entries);
  }
  std::vector<u32> polls(1, 0);  // before each instruction
  for (const Instr &i : p->code) polls.push_back(polls.back() + (i.kind != Kind::BRANCH && i.flags & STRONG));
  for (Instr &i : p->code)
    if (i.kind == Kind::BRANCH && i.target <= i.pc && polls[i.pc] != polls[i.target]) i.flags |= STRONG;
  std::vector<u32> stores(1, 0);  // likewise
  for (const Entry *entry : entries) stores.push_back(stores.back() + (entry->about.effect == Effect::STORES));
  for (const Instr &i : p->code)
    if (i.kind == Kind::BRANCH && i.target <= i.pc && i.pc - i.target < LONGEST_SPIN &&
        stores[i.pc] == stores[i.target])
      for (u32 pc = i.target; pc < i.pc; ++pc)
        if (p->code[pc].flags & STRONG) p->code[pc].flags |= SPIN;
  for (u32 n = 0; n < h.constants; ++n, constants += 4)
    p->constants.push_back({u32(constants[0]), u32(constants[1]), u32(constants[2]), constants[3]});
  for (u32 n = 0; n < h.table_words;) {
    p->tables.emplace_back(tables + n + 1, tables + n + 1 + tables[n]);
    n += 1 + tables[n];
  }
  for (const Instr &i : p->code)
    if (i.flags & ANYWHERE && i.kind == Kind::TOGETHER) p->anywhere[i.pc] = entries[i.pc];
  for (const Entry *entry : entries) p->stores.push_back(entry->about.effect == Effect::STORES);
  p->find_rounds();
  p->find_products(entries);
  return p;
}

void vm_free_program(Program *p) { delete p; }

// Memory for malloc of device code: where it begins is in *base.
Heap *vm_heap(u64 bytes, u64 *base) {
  Heap *heap = new Heap(bytes);
  *base = heap->base();
  return heap;
}
void vm_clear_heap(Heap *heap) { heap->clear(); }
void vm_free_heap(Heap *heap) { delete heap; }

// What is undefined in global memory, for all launches that are given it: for the host's copies, and what it reads.
UndefinedBytes *vm_undefined() { return new UndefinedBytes; }
void vm_clear_undefined(UndefinedBytes *u) { u->clear(); }
void vm_free_undefined(UndefinedBytes *u) { delete u; }
int vm_any_undefined(const UndefinedBytes *u) { return u->any(); }
void vm_define(UndefinedBytes *u, u64 address, u64 bytes) { u->define(address, bytes); }
void vm_copy_undefined(UndefinedBytes *u, u64 to, u64 from, u64 bytes) { u->copy(to, from, bytes); }
// The stores that brought there what is undefined: seen[number] = 1; 65,536 of them.
void vm_undefined_at(const UndefinedBytes *u, u64 address, u64 bytes, u8 *seen) {
  u->mark_stores(address, bytes, seen);
}
// The number of the store at an instruction of the last launch.
u32 vm_undefined_store(UndefinedBytes *u, u32 pc) { return u->store_at(pc); }

Launch *vm_launch(const Program *program, const LaunchSpec *spec, const u8 *params) {
  Launch *l = new Launch;
  l->program = program;
  l->undefined = spec->undefined;
  l->undefined->begin_launch();
  std::copy(spec->grid, spec->grid + 3, l->grid);
  std::copy(spec->block, spec->block + 3, l->block);
  std::copy(spec->cluster, spec->cluster + 3, l->cluster);
  for (int axis = 0; axis < 3; ++axis) l->clusters[axis] = l->grid[axis] / l->cluster[axis];
  l->cluster_blocks = l->cluster[0] * l->cluster[1] * l->cluster[2];
  l->explicit_cluster = spec->explicit_cluster;
  l->threads = l->block[0] * l->block[1] * l->block[2];
  l->warps = (l->threads + LANES - 1) / LANES;
  l->dynamic_shared = spec->dynamic_shared;
  l->shared_bytes = program->static_shared + spec->dynamic_shared;
  l->shared_window = spec->shared_window;
  l->params.assign(params, params + spec->param_bytes);
  for (u64 n = 0; n < spec->allocation_count; ++n) {
    const u64 *row = spec->allocations + 4 * n;
    u8 *written = reinterpret_cast<u8 *>(row[2]), *whole = reinterpret_cast<u8 *>(row[3]);
    if (written && ((whole && *whole) || !memchr(written, 0, row[1]))) {
      written = nullptr;
      if (whole) *whole = 1;
    }
    l->allocations.push_back({row[0], row[1], written});
    Allocation &made = l->allocations.back();
    const u64 parts = (made.size + PART - 1) / PART;
    if (whole && row[2] && made.size >= PART && memchr(whole - parts, NEW_PART, parts)) made.states = whole - 1;
  }
  if (spec->cooperative) l->allocations.push_back({reinterpret_cast<u64>(l->workspace), sizeof l->workspace, nullptr});
  std::sort(l->allocations.begin(), l->allocations.end(), [](auto &a, auto &b) { return a.base < b.base; });
  l->count = spec->count, l->sanitize = spec->sanitize, l->strict = spec->strict;
  l->trace_first = spec->trace_first, l->trace_end = spec->trace_end, l->trace_limit = spec->trace_limit;
  l->event_first = spec->event_first, l->event_end = spec->event_end, l->event_limit = spec->event_limit;
  l->budget = spec->budget;
  l->blocks = spec->end_block;
  l->started = l->printed = spec->first_block / l->cluster_blocks;
  const u64 blocks = spec->end_block - spec->first_block;
  if (l->count) l->counters.resize(program->code.size());
  l->kept = spec->kept, l->before = spec->before;
  const bool alone = program->global_granule_log2 == NO_GRANULE || blocks * l->threads == 1;  // it has no races
  const u32 granule_log2 = l->kept ? program->global_access_log2 : program->global_granule_log2;
  if (l->sanitize && granule_log2 != NO_GRANULE && (l->kept || !alone)) {
    l->races = true;
    l->epochs.begin();
    const auto watch = [&](u64 base, u64 bytes) {
      l->cells.push_back(std::make_unique<Cells>(base, bytes, granule_log2));
      return l->cells.back()->words ? l->cells.back().get() : nullptr;
    };
    for (Allocation &a : l->allocations) a.cells = watch(a.base, a.size);
    if (spec->heap) l->heap_cells = watch(spec->heap->base(), spec->heap->size());
  }
  l->multiprocessors = spec->multiprocessors, l->cooperative = spec->cooperative, l->heap = spec->heap;
  const u32 workers = std::max<u64>(1, std::min<u64>(spec->threads, blocks / l->cluster_blocks));
  l->resident = std::max<u64>(spec->resident / l->cluster_blocks, 1);
  l->wave = l->pending = l->started + l->resident;
  for (u32 n = 0; n < workers; ++n) l->workers.push_back(std::make_unique<Worker>());
  Worker &first = *l->workers.front();
  first.brief = true;
  l->running = 1;
  if (work(*l, first)) return l;
  first.brief = false;
  l->running = workers;
  for (auto &worker : l->workers) Pool::get().run([l, by = worker.get()] { work(*l, *by); });
  return l;
}

// Wait for at most `seconds`; 1 when the launch is over. `done`: blocks that are.
int vm_wait(Launch *l, double seconds, u64 *done) {
  std::unique_lock lock(l->mutex);
  const bool over = l->finished.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return l->running == 0; });
  *done = l->done;
  return over;
}

void vm_cancel(Launch *l) {
  std::unique_lock lock(l->mutex);
  l->stop = true;
  l->room.notify_all();
}

const Counters *vm_counters(Launch *l) { return l->counters.data(); }

u64 vm_findings(Launch *l, Finding *out, u64 limit) {
  u64 n = 0;
  l->settle_tiles();
  for (const auto &[key, finding] : l->findings)
    if (n < limit) out[n++] = finding;
  return l->findings.size();
}

const TraceRow *vm_trace(Launch *l, u64 *rows) {
  *rows = l->trace.size();
  return l->trace.data();
}

// Rows of one cluster are together, in the order in which they came. `left_out`: how many were beyond the limit.
const Event *vm_events(Launch *l, u64 *rows, u64 *left_out) {
  *rows = l->events.size();
  const u64 noted = l->noted;
  *left_out = noted - std::min(noted, l->event_limit);
  return l->events.data();
}

// What the kernel has printed since the last time, block by block; of a launch that is over, all the rest.
const char *vm_output(Launch *l) {
  std::unique_lock lock(l->mutex);
  if (l->running == 0) l->print_rest();
  l->taken.clear();
  l->taken.swap(l->ready);
  l->room.notify_all();
  return l->taken.c_str();
}

// Of a launch that is over, keep where it touched global memory, for the one after it to be checked against. `alone`: the
// one before it counts as over. 0: so it does.
int vm_keep(Launch *l, u32 alone) {
  l->keep();
  if (alone) l->before = nullptr;
  return l->before != nullptr;
}

// Which global memory a kept launch touched: ranges in ascending order, of three words each. 0 if they are more than `most`.
u64 vm_touched(Launch *l, u64 *ranges, u64 most) { return l->touched(ranges, most); }

void vm_free_launch(Launch *l) {
  l->wait();
  delete l;
}

}  // extern "C"
#pragma GCC visibility pop
