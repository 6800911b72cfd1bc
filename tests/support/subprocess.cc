#include "tests/support/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/os/os_error.h"
#include "tests/support/environment.h"

extern char** environ;

namespace berth::testing {
namespace {

// SD_LISTEN_FDS_START.
constexpr int kFirstListenFd = 3;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) Fatal(OsError("pipe2", errno), "subprocess");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// The verbs of `berth` that only operators may use, with the sub-verb where that decides.
constexpr std::pair<absl::string_view, absl::string_view> kOperatorVerbs[] = {
    {"budget", "set"},     {"blocks", "clear-torn"}, {"config", ""}, {"device", ""},  {"permits", "revoke"},
    {"permits", "set"},    {"reap", ""},             {"reset", ""},  {"stop", ""},    {"sessions", "end"},
    {"upgrade", ""},
};

// Whether the words start a daemon, or a `berth` command for operators.
bool IsOperators(const std::vector<std::string>& argv) {
  for (const char* const option : {"--admin", "--observer", "--tenant"}) {
    if (std::find(argv.begin(), argv.end(), option) != argv.end()) return true;
  }
  const auto is_daemon = [](const std::string& word) { return absl::EndsWith(word, "/berthd"); };
  if (std::any_of(argv.begin(), argv.end(), is_daemon)) return true;
  auto word = std::find_if(argv.begin(), argv.end(), [](const std::string& each) {
    return absl::EndsWith(each, "/client/cli/berth");
  });
  if (word == argv.end()) return false;
  const auto skip_options = [&] {
    while (++word != argv.end() && absl::StartsWith(*word, "--")) {
    }
  };
  skip_options();
  if (word == argv.end()) return false;
  const std::string verb = *word;
  skip_options();
  return std::any_of(std::begin(kOperatorVerbs), std::end(kOperatorVerbs), [&](const auto& each) {
    return each.first == verb && (each.second.empty() || (word != argv.end() && each.second == *word));
  });
}

void SetPatience() {
  static const int set = ::setenv("BERTH_TEST_PATIENCE", absl::StrCat(GateOrSoak(10, 1)).c_str(), /*overwrite=*/0);
  if (set < 0) Fatal(OsError("setenv", errno), "subprocess");
}

std::vector<std::string> MakeEnvironment(const std::vector<std::string>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, strcspn(*entry, "="));
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const std::string& change) {
      return change == name || absl::StartsWith(change, name + "=");
    });
    if (!changed) result.push_back(*entry);
  }
  for (const std::string& change : changes) {
    if (absl::StrContains(change, '=')) result.push_back(change);
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Everything that the child needs, prepared before it starts: nothing may allocate between clone and exec.
struct ChildPlan {
  char* const* argv;
  char* const* environment;
  bool pid_namespace;
  bool outlives;
  int input;
  int output;
  int inherited_fd;
  const char* errors;
  int error_fd;
  rlim_t fd_limit;
  // The user to become; 0 for the test's own user.
  uid_t user;
  gid_t extra_group;
  int go_ahead;
  int parent;
  // The fds to become 3 and up, and the places in the environment that name the pid that owns them. Null for none.
  const int* listen_fds;
  size_t listen_count;
  char* listen_pid;
};

// Writes `number` and a terminating zero; async-signal-safe. Requires: 11 bytes of space.
void WriteNumber(pid_t number, char* out) {
  char digits[11];
  size_t count = 0;
  for (; number > 0; number /= 10) digits[count++] = static_cast<char>('0' + number % 10);
  while (count > 0) *out++ = digits[--count];
  *out = '\0';
}

// Not glibc's setresuid(), which signals threads that do not exist here.
void BecomeUser(uid_t user, bool outlives) {
  // The current folder may be closed to that user.
  if (::chdir("/") < 0 || ::syscall(SYS_setresgid, user, user, user) < 0 ||
      ::syscall(SYS_setresuid, user, user, user) < 0) {
    ::_exit(126);
  }
  // Set again, because a change of user clears it.
  if (!outlives) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
}

[[noreturn]] void BecomeProgram(const ChildPlan& plan) {
  char byte;
  // Waits for the byte that comes once the namespace's users are mapped. The end of the pipe would not do: a child that
  // another thread starts at the same time has that pipe, too, and may wait for this child.
  if (::read(plan.go_ahead, &byte, 1) != 1) ::_exit(127);
  if (!plan.outlives) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!plan.pid_namespace && ::getppid() != plan.parent) ::_exit(127);
  if (plan.pid_namespace && (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0 ||
                             ::mount("proc", "/proc", "proc", 0, nullptr) < 0)) {
    ::_exit(126);
  }
  ::dup2(plan.input, STDIN_FILENO);
  ::dup2(plan.output, STDOUT_FILENO);
  if (plan.errors[0] != '\0') {
    ::dup2(::open(plan.errors, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), STDERR_FILENO);
  }
  if (plan.error_fd >= 0) ::dup2(plan.error_fd, STDERR_FILENO);
  if (plan.error_fd == kClosedFd) ::close(STDERR_FILENO);
  for (size_t i = 0; i < plan.listen_count; ++i) ::dup2(plan.listen_fds[i], kFirstListenFd + static_cast<int>(i));
  if (plan.listen_pid != nullptr) WriteNumber(::getpid(), plan.listen_pid);
  if (plan.inherited_fd >= 0) ::fcntl(plan.inherited_fd, F_SETFD, 0);
  const rlimit fds = {.rlim_cur = plan.fd_limit, .rlim_max = plan.fd_limit};
  if (plan.fd_limit > 0 && ::setrlimit(RLIMIT_NOFILE, &fds) < 0) ::_exit(126);
  if (plan.extra_group != 0) ::syscall(SYS_setgroups, 1, &plan.extra_group);
  if (plan.user != 0) BecomeUser(plan.user, plan.outlives);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A test may start with some signals ignored, as a shell that runs it in the background does with SIGINT.
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  ::execve(plan.argv[0], plan.argv, plan.environment);
  ::_exit(127);
}

// Starts the program in a child that shares this process's memory until it execs: a copy of a test program's page
// tables costs more than the rest of the start. Returns the child's pid, or -1 with errno.
pid_t StartSharing(const ChildPlan& plan, int* pidfd) {
  const auto become = [](void* of) -> int { BecomeProgram(*static_cast<const ChildPlan*>(of)); };
  constexpr size_t kStack = 64 << 10;
  const std::unique_ptr<std::max_align_t[]> stack(new std::max_align_t[kStack / sizeof(std::max_align_t)]);
  return ::clone(become, reinterpret_cast<char*>(stack.get()) + kStack, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD,
                 const_cast<ChildPlan*>(&plan), pidfd);
}

void WriteFile(const std::string& path, absl::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) < 0) Fatal(OsError(path, errno), "subprocess");
}

void MapRootAlone(pid_t pid) {
  WriteFile(absl::StrCat("/proc/", pid, "/uid_map"), "0 0 1");
  WriteFile(absl::StrCat("/proc/", pid, "/setgroups"), "deny");
  WriteFile(absl::StrCat("/proc/", pid, "/gid_map"), "0 0 1");
}

bool AwaitReadable(int fd, absl::Duration patience) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  const absl::Time deadline = absl::Now() + patience;
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    const int ready = ::poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

}  // namespace

Subprocess Subprocess::Start(const SubprocessOptions& options) {
  std::vector<std::string> argv = options.argv;
  std::vector<std::string> changes = options.environment;
  std::vector<UniqueFd> lifted;
  std::vector<int> listen_fds;
  if (!options.listen_fds.empty()) {
    std::vector<std::string> names;
    // Moves the fd beyond the numbers that the passed fds are to have.
    const int beyond = kFirstListenFd + static_cast<int>(options.listen_fds.size());
    for (const ListenFd& each : options.listen_fds) {
      names.push_back(each.name);
      lifted.emplace_back(::fcntl(each.fd, F_DUPFD_CLOEXEC, beyond));
      if (!lifted.back()) Fatal(OsError("fcntl", errno), each.name);
      listen_fds.push_back(lifted.back().get());
    }
    changes.push_back(absl::StrCat("LISTEN_FDS=", listen_fds.size()));
    changes.push_back(absl::StrCat("LISTEN_FDNAMES=", absl::StrJoin(names, ":")));
    changes.push_back("LISTEN_PID=0000000000");
  }
  const std::optional<uid_t> other = OtherUser();
  const bool of_operator = options.of_operator || IsOperators(argv);
  // Another user may not enter the folders of the test's own user. An execvp() that meets such a folder in PATH fails.
  if (other.has_value() && !of_operator) {
    changes.insert(changes.end(),
                   {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"});
  }
  SetPatience();
  std::vector<std::string> environment = MakeEnvironment(changes);
  char* const listen_pid = listen_fds.empty() ? nullptr : &environment.back()[strlen("LISTEN_PID=")];
  const std::vector<char*> argv_pointers = Pointers(argv);
  const std::vector<char*> environment_pointers = Pointers(environment);
  Pipe input = MakePipe();
  Pipe output = MakePipe();
  Pipe go_ahead = MakePipe();
  int pidfd = -1;
  clone_args args = {};
  args.flags = CLONE_PIDFD;
  if (options.pid_namespace) args.flags |= CLONE_NEWPID | CLONE_NEWNS;
  if (options.user_namespace) args.flags |= CLONE_NEWUSER;
  args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  const ChildPlan plan = {.argv = argv_pointers.data(),
                          .environment = environment_pointers.data(),
                          .pid_namespace = options.pid_namespace,
                          .outlives = options.outlives,
                          .input = input.read.get(),
                          .output = output.write.get(),
                          .inherited_fd = options.inherited_fd,
                          .errors = options.errors.c_str(),
                          .error_fd = options.error_fd,
                          .fd_limit = options.fd_limit,
                          .user = of_operator ? 0 : other.value_or(0),
                          .extra_group = other.has_value() ? kClientsGroup : 0,
                          .go_ahead = go_ahead.read.get(),
                          .parent = ::getpid(),
                          .listen_fds = listen_fds.data(),
                          .listen_count = listen_fds.size(),
                          .listen_pid = listen_pid};
#ifdef BERTH_SANITIZED
  constexpr bool kShares = false;
#else
  constexpr bool kShares = true;
#endif
  const auto go = [&] {
    if (::write(go_ahead.write.get(), "g", 1) < 0) Fatal(OsError("write", errno), options.argv[0]);
  };
  pid_t pid = -1;
  // A change of user would change the rights to the shared memory, too.
  if (kShares && plan.user == 0 && !options.pid_namespace && !options.user_namespace) {
    go();
    pid = StartSharing(plan, &pidfd);
  } else {
    // Not fork(): this process has threads, and fork's handlers are for children that continue without exec.
    pid = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof(args)));
    if (pid == 0) BecomeProgram(plan);
    if (pid > 0 && options.user_namespace) MapRootAlone(pid);
    go();
  }
  if (pid < 0) Fatal(OsError("clone", errno), options.argv[0]);
  return Subprocess(pid, UniqueFd(pidfd), std::move(input.write), std::move(output.read));
}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      pidfd_(std::move(other.pidfd_)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      unread_(std::move(other.unread_)),
      reaped_(other.reaped_),
      code_(other.code_) {}

Subprocess::~Subprocess() {
  if (pid_ == 0 || reaped_) return;
  Kill();
  // A stopped process dies as well.
  Wait();
}

void Subprocess::WriteLine(absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  // SIGPIPE would end the test; the test notices a dead process when it reads the answer.
  sigset_t pipe;
  sigset_t before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, &before);
  if (::write(input_.get(), text.data(), text.size()) < 0 && errno == EPIPE) {
    const timespec now = {};
    ::sigtimedwait(&pipe, nullptr, &now);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

absl::StatusOr<std::string> Subprocess::ReadLine(absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  while (true) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (!AwaitReadable(output_.get(), deadline - absl::Now())) {
      return absl::DeadlineExceededError(
          absl::StrCat("pid ", pid_, " said nothing in ", absl::FormatDuration(patience)));
    }
    char bytes[4096];
    const ssize_t got = ::read(output_.get(), bytes, sizeof(bytes));
    if (got <= 0) return absl::OutOfRangeError(absl::StrCat("pid ", pid_, " says no more"));
    unread_.append(bytes, static_cast<size_t>(got));
  }
}

size_t Subprocess::LinesByNow() {
  char bytes[4096];
  for (ssize_t got; AwaitReadable(output_.get(), absl::ZeroDuration()) &&
                    (got = ::read(output_.get(), bytes, sizeof(bytes))) > 0;) {
    unread_.append(bytes, static_cast<size_t>(got));
  }
  return static_cast<size_t>(std::count(unread_.begin(), unread_.end(), '\n'));
}

std::string Subprocess::ReadAll() {
  char bytes[4096];
  for (ssize_t got; (got = ::read(output_.get(), bytes, sizeof(bytes))) > 0;) {
    unread_.append(bytes, static_cast<size_t>(got));
  }
  return std::exchange(unread_, "");
}

void Subprocess::Signal(int number) const {
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
}

void Subprocess::Kill() const { Signal(SIGKILL); }

bool Subprocess::IsGone() const { return AwaitReadable(pidfd_.get(), absl::ZeroDuration()); }

int Subprocess::Wait(absl::Duration patience) {
  if (reaped_) return code_;
  if (!AwaitReadable(pidfd_.get(), patience)) {
    Fatal(absl::DeadlineExceededError(absl::StrCat("still there after ", absl::FormatDuration(patience))),
          absl::StrCat("pid ", pid_));
  }
  siginfo_t info = {};
  if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd_.get()), &info, WEXITED) < 0) {
    Fatal(OsError("waitid", errno), absl::StrCat("pid ", pid_));
  }
  reaped_ = true;
  code_ = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  return code_;
}

}  // namespace berth::testing
