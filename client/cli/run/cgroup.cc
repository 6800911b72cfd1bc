#include "client/cli/run/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/run/group_witness.h"
#include "common/os/os_error.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Returns where cgroup v2 is mounted, alone or next to v1.
absl::StatusOr<std::string> MountPoint() {
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw": the file system type follows the dash.
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (absl::StrContains(line, " - cgroup2 ") && words.size() > 4) return words[4];
  }
  return absl::FailedPreconditionError("no cgroup v2 is mounted on this system");
}

// Returns the control group of this process, relative to the mount point: "/user.slice/…".
absl::StatusOr<std::string> OwnGroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "0::")) return std::string(absl::StripSuffix(rest, "/"));
  }
  return absl::FailedPreconditionError("this process is in no cgroup v2");
}

std::string ReadFrom(int fd) {
  std::string text;
  char bytes[4096];
  for (ssize_t got; (got = ::pread(fd, bytes, sizeof(bytes), static_cast<off_t>(text.size()))) > 0;) {
    text.append(bytes, static_cast<size_t>(got));
  }
  return text;
}

// Adds the group and the groups below it, each before those below it. Skips groups that are removed meanwhile.
void AddGroups(const std::string& group, std::vector<std::string>* groups) {
  groups->push_back(group);
  std::error_code unreadable;
  std::filesystem::directory_iterator at(group, unreadable);
  while (!unreadable && at != std::filesystem::directory_iterator()) {
    std::error_code removed;
    if (at->is_directory(removed) && !at->is_symlink(removed)) AddGroups(at->path().string(), groups);
    at.increment(unreadable);
  }
}

constexpr size_t kStackBytes = 16 << 10;
// kLookMs: interval in ms between checks whether a silent witness is stopped. kMostLooks: maximum number of checks by a
// process that cannot perform them.
constexpr int kLookMs = 200;
constexpr int kMostLooks = 10;

// A system call that leaves errno unchanged: the witness shares the thread-local storage of the thread that started it.
__attribute__((no_sanitize("address", "thread"))) long Call(long number, long a = 0, long b = 0, long c = 0,
                                                            long d = 0) {
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = d;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  return x0;
#else
#error "a system call of this processor"
#endif
}

long Address(const void* at) { return reinterpret_cast<long>(at); }

}  // namespace

absl::StatusOr<Cgroup> Cgroup::Make() {
  BERTH_ASSIGN_OR_RETURN(const std::string mount, MountPoint());
  BERTH_ASSIGN_OR_RETURN(const std::string own, OwnGroup());
  const std::string path = absl::StrCat(mount, own, "/berth-run-", ::getpid(), "-", absl::Hex(RandomId()));
  if (::mkdir(path.c_str(), 0755) < 0) return OsError(absl::StrCat("cannot create a cgroup: ", path), errno);
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UniqueFd events(::open(absl::StrCat(path, "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
  const int error = errno;
  if (!folder || !events) {
    ::rmdir(path.c_str());
    return OsError(path, error);
  }
  return Cgroup(path, std::move(folder), std::move(events));
}

Cgroup::~Cgroup() {
  if (!folder_) return;
  // A group is removed only once it has no group below it.
  const std::vector<std::string> groups = Groups();
  for (auto group = groups.rbegin(); group != groups.rend(); ++group) ::rmdir(group->c_str());
}

std::vector<std::string> Cgroup::Groups() const {
  std::vector<std::string> groups;
  AddGroups(path_, &groups);
  return groups;
}

void Cgroup::AwaitEmpty() const {
  // Read before poll(): poll() reports changes since the last read.
  while (absl::StrContains(ReadFrom(events_.get()), "populated 1")) {
    pollfd changed = {.fd = events_.get(), .events = POLLPRI};
    ::poll(&changed, 1, -1);
  }
}

std::set<pid_t> Cgroup::Processes() const {
  std::set<pid_t> pids;
  for (const std::string& group : Groups()) {
    const UniqueFd processes(::open(absl::StrCat(group, "/cgroup.procs").c_str(), O_RDONLY | O_CLOEXEC));
    if (!processes) continue;
    const std::string text = ReadFrom(processes.get());
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      pid_t pid = 0;
      // 0 is a process that this PID namespace does not show.
      if (absl::SimpleAtoi(line, &pid) && pid > 0) pids.insert(pid);
    }
  }
  return pids;
}

void Cgroup::Signal(int number, bool of_other_groups) const {
  if (number == SIGKILL && !of_other_groups) {
    // Linux 5.14: kills all processes at once, including those forked meanwhile.
    const UniqueFd kill(::openat(folder_.get(), "cgroup.kill", O_WRONLY | O_CLOEXEC));
    if (kill && ::write(kill.get(), "1", 1) == 1) return;
  }
  std::vector<std::pair<pid_t, UniqueFd>> pidfds;
  for (const pid_t pid : Processes()) {
    UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (pidfd) pidfds.emplace_back(pid, std::move(pidfd));
  }
  // A pid may belong to another process by the time its pidfd is opened: that process is not in the group.
  const std::set<pid_t> members = Processes();
  for (const auto& [pid, pidfd] : pidfds) {
    if (of_other_groups && ::getpgid(pid) == ::getpgrp()) continue;
    if (members.contains(pid)) ::syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0);
  }
}

// ---- group_witness.h -----------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<GroupWitness>> GroupWitness::Start() {
  UniqueFd ask(::eventfd(0, EFD_CLOEXEC));
  if (!ask) return OsError("eventfd", errno);
  UniqueFd answer(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!answer) return OsError("eventfd", errno);
  void* const stack =
      ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return OsError("mmap", errno);
  std::unique_ptr<GroupWitness> witness(new GroupWitness(std::move(ask), std::move(answer), stack));
  // No signal at the witness's end: a waiter for children is not notified of it.
  witness->pid_ = ::clone(&GroupWitness::Run, static_cast<char*>(stack) + kStackBytes,
                          CLONE_VM | CLONE_FILES | CLONE_FS, witness.get());
  if (witness->pid_ < 0) return OsError("cannot start a process that checks signals", errno);
  return witness;
}

GroupWitness::GroupWitness(UniqueFd ask, UniqueFd answer, void* stack)
    : ask_(std::move(ask)), answer_(std::move(answer)), stack_(stack), parent_(::getpid()) {}

GroupWitness::~GroupWitness() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, __WALL) < 0 && errno == EINTR) {
    }
  }
  ::munmap(stack_, kStackBytes);
}

__attribute__((no_sanitize("address", "thread"))) int GroupWitness::Run(void* argument) {
  GroupWitness& self = *static_cast<GroupWitness*>(argument);
  Call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
  Call(SYS_prctl, PR_SET_NAME, Address("signal-witness"));
  // A parent that ended before the prctl() above sends no signal.
  if (Call(SYS_getppid) != self.parent_) Call(SYS_exit_group, 0);
  uint64_t number = 0;
  while (Call(SYS_read, self.ask_.get(), Address(&number), sizeof(number)) == sizeof(number)) {
    const uint64_t all = ~uint64_t{0};
    const timespec now = {};
    siginfo_t info;
    for (long signal; (signal = Call(SYS_rt_sigtimedwait, Address(&all), Address(&info), Address(&now),
                                     sizeof(all))) > 0;) {
      const bool continued = signal == SIGCONT && info.si_code == SI_USER && info.si_pid == self.parent_;
      if (!continued) ++self.counts_[static_cast<size_t>(signal)];
    }
    number = 1;
    Call(SYS_write, self.answer_.get(), Address(&number), sizeof(number));
  }
  Call(SYS_exit_group, 0);
  return 0;
}

const SignalCounts& GroupWitness::Take() {
  AwaitKill();
  uint64_t number = 0;
  // Discards an answer that came too late for the last call.
  [[maybe_unused]] ssize_t moved = ::read(answer_.get(), &number, sizeof(number));
  counts_ = {};
  number = 1;
  moved = ::write(ask_.get(), &number, sizeof(number));
  pollfd answered = {.fd = answer_.get(), .events = POLLIN};
  // A stopped witness has seen nothing; a witness that a busy node delays has. If a delayed witness were taken for a
  // stopped one, a group SIGCONT would be sent to the command a second time, and late: the command may have stopped
  // again.
  for (int looks = 0; ::poll(&answered, 1, kLookMs) <= 0 && looks < kMostLooks;) {
    siginfo_t info = {};
    const int options = WEXITED | WSTOPPED | WNOHANG | WNOWAIT | __WALL;
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, options) != 0) {
      ++looks;
    } else if (info.si_pid != 0) {
      break;
    }
  }
  moved = ::read(answer_.get(), &number, sizeof(number));
  AwaitKill();
  return counts_;
}

void GroupWitness::Continue() const {
  AwaitKill();
  ::kill(pid_, SIGCONT);
}

void GroupWitness::AwaitKill() { ::setpgid(0, ::getpgrp()); }

}  // namespace berth::cli
