// Runs a command behind a wall: wall EMPTY-FOLDER STEP... -- COMMAND...
//
//     ro SOURCE PLACE     what is at SOURCE is seen at PLACE, read-only, with its mounts
//     link TARGET PLACE   a symbolic link
//     room PLACE BYTES    a file system in memory, the only one that can be written; /tmp and /dev/shm are in it (first)
//     copy FROM NAME      the room begins with this path of the folder FROM
//
// Inside there is nothing else but a few devices and a /proc of its own, read-only; no network; no other process. As
// root the command runs as a user that nobody is, otherwise as its user; it has no capabilities and gets none, and a filter
// refuses the system calls that make sockets, namespaces and mounts, or look into other processes. The exit status is
// the command's; 125: the wall cannot be built, and a line says why.
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

// <sys/mount.h> and <linux/mount.h> exclude each other in some releases of glibc.
extern "C" int mount(const char *, const char *, const char *, unsigned long, const void *) noexcept;
extern "C" int umount2(const char *, int) noexcept;

namespace fs = std::filesystem;

namespace {

constexpr int CANNOT = 125;
constexpr uid_t FIRST_USER = 1'000'000'000;  // of users that nobody is: each wall has its own, and its own limits
constexpr unsigned long RDONLY = 1, NOSUID = 2, NODEV = 4, NOEXEC = 8, BIND = 4096, REC = 16384, PRIVATE = 1 << 18;
constexpr int DETACH = 2;
constexpr rlim_t PROCESSES = 128;  // and threads, beside two for each processor

uid_t owner;
gid_t owners_group;

[[noreturn]] void fail(const std::string &what) {
  fprintf(stderr, "the wall cannot be built: %s: %s\n", what.c_str(), strerror(errno));
  _exit(CANNOT);
}

void must(bool done, const std::string &what) {
  if (!done) fail(what);
}

void write_file(const char *path, const std::string &text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  must(file >= 0 && write(file, text.data(), text.size()) == ssize_t(text.size()), path);
  close(file);
}

// A place to mount something at: a folder, or a file for one.
void make_place(const fs::path &place, bool folder) {
  std::error_code error;
  fs::create_directories(folder ? place : place.parent_path(), error);
  if (folder || fs::exists(place)) return;
  const int file = open(place.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
  must(file >= 0, place);
  close(file);
}

void set_flags(const std::string &place, std::uint64_t flags, bool mounts_in_it) {
  mount_attr change{};
  change.attr_set = flags;
  must(!syscall(SYS_mount_setattr, AT_FDCWD, place.c_str(), mounts_in_it ? AT_RECURSIVE : 0, &change, sizeof change),
       "make " + place + " read-only (needs Linux 5.12)");
}

void show(const std::string &source, const std::string &place, std::uint64_t flags) {
  make_place(place, fs::is_directory(source));
  must(!mount(source.c_str(), place.c_str(), nullptr, BIND | REC, nullptr), "mount " + source);
  set_flags(place, flags, true);
}

int give_away(const char *path, const struct stat *, int, FTW *) { return lchown(path, owner, owners_group); }

void copy(const std::string &from, const std::string &name, const std::string &room) {
  const pid_t child = fork();
  must(child >= 0, "fork");
  if (!child) {
    if (chdir(from.c_str())) _exit(1);
    execlp("cp", "cp", "-a", "--parents", name.c_str(), room.c_str(), nullptr);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  must(!status, "copy " + name);
}

void no_capabilities() {
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  must(!syscall(SYS_capset, &head, none), "give up capabilities");
  must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "give up new privileges");
}

#if defined __x86_64__
constexpr std::uint32_t MACHINE = AUDIT_ARCH_X86_64;
#elif defined __aarch64__
constexpr std::uint32_t MACHINE = AUDIT_ARCH_AARCH64;
#else
#error "the system calls of this machine are not known here"
#endif
constexpr std::uint32_t OTHER_NUMBERS = 0x40000000;  // from here on, x86's of 32-bit pointers
constexpr std::uint32_t NAMESPACES =
    CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

void filter_calls() {
  std::vector<sock_filter> code;
  auto say = [&](std::uint16_t op, std::uint32_t k, std::uint8_t yes = 0, std::uint8_t no = 0) {
    code.push_back({op, yes, no, k});
  };
  auto load = [&](std::size_t at) { say(BPF_LD | BPF_W | BPF_ABS, std::uint32_t(at)); };
  auto answer = [&](std::uint32_t what) { say(BPF_RET | BPF_K, what); };
  auto refuse = [&](long number, int error) {
    say(BPF_JMP | BPF_JEQ | BPF_K, std::uint32_t(number), 0, 1);
    answer(SECCOMP_RET_ERRNO | std::uint32_t(error));
  };
  load(offsetof(seccomp_data, arch));
  say(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 1, 0);
  answer(SECCOMP_RET_KILL_PROCESS);
  load(offsetof(seccomp_data, nr));
  say(BPF_JMP | BPF_JGE | BPF_K, OTHER_NUMBERS, 0, 1);
  answer(SECCOMP_RET_ERRNO | ENOSYS);
  refuse(SYS_socket, EAFNOSUPPORT);
  refuse(SYS_clone3, ENOSYS);  // its flags are in memory: clone is used instead
  for (long each :
       {SYS_connect,
        SYS_bind,
        SYS_ptrace,
        SYS_process_vm_readv,
        SYS_process_vm_writev,
        SYS_unshare,
        SYS_setns,
        SYS_mount,
        SYS_umount2,
        SYS_pivot_root,
        SYS_chroot,
        SYS_move_mount,
        SYS_open_tree,
        SYS_fsopen,
        SYS_fsmount,
        SYS_fspick,
        SYS_mount_setattr,
        SYS_bpf,
        SYS_perf_event_open,
        SYS_keyctl,
        SYS_add_key,
        SYS_request_key,
        SYS_userfaultfd,
        SYS_io_uring_setup,
        SYS_open_by_handle_at,
        SYS_name_to_handle_at,
        SYS_kexec_load,
        SYS_init_module,
        SYS_finit_module,
        SYS_delete_module,
        SYS_reboot,
        SYS_swapon,
        SYS_swapoff,
        SYS_syslog,
        SYS_acct,
        SYS_quotactl,
        SYS_pidfd_getfd})
    refuse(each, EPERM);
  say(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3);
  load(offsetof(seccomp_data, args));  // the low half: both machines have it first
  say(BPF_JMP | BPF_JSET | BPF_K, NAMESPACES, 0, 1);
  answer(SECCOMP_RET_ERRNO | EPERM);
  answer(SECCOMP_RET_ALLOW);
  sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  must(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), "filter system calls");
}

void build(const std::vector<std::string> &steps, const std::string &base) {
  must(!mount("none", "/", nullptr, REC | PRIVATE, nullptr), "keep mounts private");
  must(!mount("tmpfs", base.c_str(), "tmpfs", NOSUID | NODEV, "mode=755,size=16m"), "mount a root");
  umask(022);
  for (const char *name : {"null", "zero", "full", "random", "urandom"})
    show(std::string("/dev/") + name, base + "/dev/" + name, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
  const std::pair<const char *, const char *> links[] = {
      {"/proc/self/fd", "/dev/fd"},
      {"/proc/self/fd/0", "/dev/stdin"},
      {"/proc/self/fd/1", "/dev/stdout"},
      {"/proc/self/fd/2", "/dev/stderr"}};
  for (auto [target, place] : links) must(!symlink(target, (base + place).c_str()), place);
  std::string room;
  for (std::size_t at = 0; at + 2 < steps.size(); at += 3) {
    const std::string &what = steps[at], &first = steps[at + 1], &second = steps[at + 2];
    if (what == "ro") {
      show(first, base + second, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    } else if (what == "link") {
      make_place(fs::path(base + second).parent_path(), true);
      must(!symlink(first.c_str(), (base + second).c_str()), second);
    } else if (what == "room") {
      room = base + first;
      const std::string made = base + "/dev/room";
      make_place(made, true);
      must(!mount("tmpfs", made.c_str(), "tmpfs", NOSUID | NODEV, ("mode=700,size=" + second).c_str()), first);
      make_place(made + "/tmp", true);
      const std::pair<std::string, std::string> places[] = {
          {made + "/tmp", base + "/tmp"}, {made + "/tmp", base + "/dev/shm"}, {made, room}};  // it may be in /tmp
      for (const auto &[source, place] : places) {
        make_place(place, true);
        must(!mount(source.c_str(), place.c_str(), nullptr, BIND, nullptr), place);
      }
      must(!umount2(made.c_str(), DETACH) && !rmdir(made.c_str()), made);
    } else if (what == "copy") {
      copy(first, second, room);
    }
  }
  if (!room.empty()) must(!nftw(room.c_str(), give_away, 16, FTW_PHYS), "own the room");
  make_place(base + "/proc", true);
  must(!mount("proc", (base + "/proc").c_str(), "proc", RDONLY | NOSUID | NODEV | NOEXEC, nullptr), "mount /proc");
  must(!chdir(base.c_str()) && !syscall(SYS_pivot_root, ".", ".") && !umount2(".", DETACH) && !chdir("/"),
       "leave the root");
  set_flags("/", MOUNT_ATTR_RDONLY, false);
}

}  // namespace

int main(int count, char **words) {
  int at = 1;
  while (at < count && strcmp(words[at], "--")) ++at;
  if (at + 1 >= count || at < 2) return CANNOT;
  const std::string base = words[1];  // an empty folder
  const std::vector<std::string> steps(words + 2, words + at);
  const bool as_root = geteuid() == 0;
  const uid_t user = geteuid();
  const gid_t users_group = getegid();
  owner = as_root ? FIRST_USER + uid_t(getpid()) : user;
  owners_group = as_root ? owner : users_group;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  must(!unshare(int(NAMESPACES & ~(as_root ? CLONE_NEWUSER : 0))), "make namespaces");
  if (!as_root) {
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", std::to_string(user) + " " + std::to_string(user) + " 1");
    write_file("/proc/self/gid_map", std::to_string(users_group) + " " + std::to_string(users_group) + " 1");
  }
  const pid_t child = fork();  // the first process of the new namespace: all others end with it
  must(child >= 0, "fork");
  if (child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setsid();  // a signal to its group reaches nobody outside
  build(steps, base);
  for (int each = 0; !prctl(PR_CAPBSET_DROP, each, 0, 0, 0); ++each) {
  }
  if (as_root)
    must(!setgroups(0, nullptr) && !setresgid(owners_group, owners_group, owners_group) &&
             !setresuid(owner, owner, owner),
         "setuid");
  const rlim_t most = PROCESSES + 2 * rlim_t(sysconf(_SC_NPROCESSORS_ONLN));
  const rlimit processes{most, most};
  setrlimit(RLIMIT_NPROC, &processes);
  no_capabilities();
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // forgotten when the user changes
  filter_calls();
  execvp(words[at + 1], words + at + 1);
  fail(words[at + 1]);
}
