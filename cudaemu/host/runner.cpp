// The process that runs the host code of a .cu file: it opens the shared object and leaves the rest to the stand-in
// runtime that is linked into it (runtime.cpp). Usage: runner KERNEL.SO NAME [ARGS...]
#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>

int main(int argc, char **argv) {
  if (argc < 3) return 127;
  prctl(PR_SET_PDEATHSIG, SIGKILL);     // this process must not outlive the other
  setvbuf(stdout, nullptr, _IOLBF, 0);  // what the program has printed before it crashes is seen
  void *object = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (!object) {
    fprintf(stderr, "%s\n", dlerror());
    return 127;
  }
  using Start = int (*)(int, char **, void *);
  const Start start = reinterpret_cast<Start>(dlsym(object, "emulator_start"));
  return start(argc - 2, argv + 2, dlsym(object, "main"));
}
