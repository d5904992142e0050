// Faults of the host code, with the line and the CUDA call where they happened: a part of runtime.cpp, which includes it.

namespace {

thread_local sigjmp_buf *volatile escape = nullptr;  // where a fault of the runtime's own copy goes

void protect_managed(bool busy, bool anew = false) {
  if (served_here || (busy == managed_busy && !anew)) return;
  managed_busy = busy;
  for (const auto &[address, memory] : mapped())
    if (memory.kind == MANAGED)
      mprotect(reinterpret_cast<void *>(address), page_up(memory.bytes), busy ? PROT_NONE : PROT_READ | PROT_WRITE);
}

// Where the host code is: offsets into this object, innermost first.
Packet where(void *context) {
  Packet packet;
  if (place_here) return packet.add(uint32_t(1)).add(place_here());
  Dl_info object;
  dladdr(static_cast<void *>(&device), &object);
  void *frames[48];
  const int count = backtrace(frames, 48);
  std::vector<uint64_t> offsets;
  uint64_t fault = 0;
#if defined(__x86_64__)
  if (context) fault = static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  if (context) fault = static_cast<ucontext_t *>(context)->uc_mcontext.pc;
#endif
  const auto enter = [&](uint64_t at) {
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(at), &info) && info.dli_fbase == object.dli_fbase)
      offsets.push_back(at - reinterpret_cast<uint64_t>(object.dli_fbase));
  };
  if (fault) enter(fault);
  for (int i = 0; i < count; ++i)
    if (uint64_t(frames[i]) != fault) enter(uint64_t(frames[i]) - 1);  // a return address: the call is before it
  packet.add(uint32_t(offsets.size()));
  for (uint64_t offset : offsets) packet.add(offset);
  return packet;
}

uint64_t stack_pointer(void *context) {
#if defined(__x86_64__)
  return static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
  return static_cast<ucontext_t *>(context)->uc_mcontext.sp;
#else
  return 0;
#endif
}

void on_fault(int number, siginfo_t *info, void *context) {
  const uint64_t address = number == SIGSEGV || number == SIGBUS ? reinterpret_cast<uint64_t>(info->si_addr) : 0;
  if (escape && (number == SIGSEGV || number == SIGBUS)) siglongjmp(*escape, 1);  // the address may be null
  bool early = false;
  if (number == SIGSEGV && managed_busy && in_arena(address))
    for (const auto &[base, memory] : mapped())
      early |= memory.kind == MANAGED && address - base < page_up(memory.bytes);
  if (number == SIGSEGV && in_arena(address) && touched_too_early(address, context)) return;
  const Packet place = where(context);
  Packet packet;
  packet.add(int32_t(number))
      .add(address)
      .add(uint32_t(early))
      .add(stack_pointer(context))
      .bytes(place.data().data(), place.data().size());
  ask(Request::FAULT, packet);
  if (early) return protect_managed(false);  // the report is made: go on as the hardware might
  signal(number, SIG_DFL);
  if (info->si_code <= 0) raise(number);  // sent, not caused by an instruction that will run again
}

void catch_faults() {
  void *warm_up[1];
  backtrace(warm_up, 1);        // loads what a handler must not load
  static char stack[64 << 10];  // endless recursion leaves no other
  const stack_t own_stack{stack, 0, sizeof stack};
  sigaltstack(&own_stack, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(number, &action, nullptr);
}

// memcpy or memset, one side of which may be an invalid address from host code.
template <class F>
bool survives(F touch) {
  sigjmp_buf here;
  sigjmp_buf *const outer = escape;
  if (sigsetjmp(here, 1)) return escape = outer, false;
  escape = &here;
  touch();
  escape = outer;
  return true;
}

}  // namespace
