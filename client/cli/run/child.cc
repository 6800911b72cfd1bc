#include "client/cli/run/child.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/process_capacity.h"

namespace berth::cli {
namespace {

// The blocked signals from before HoldSignals().
std::optional<sigset_t> blocked_before;

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Returns "NAME=" for "NAME=value".
absl::string_view NameOf(absl::string_view entry) { return entry.substr(0, entry.find('=') + 1); }

absl::Status NotExecuted(const std::string& program, int error) {
  const std::string text = absl::StrCat(program.empty() ? "the empty command name" : program, ": ", ::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
}

// Data for the new process, prepared before its start.
struct ChildPlan {
  char* const* argv;
  char* const* environment;
  const SpawnOptions* options;
  // Whether this process is a subreaper: an exec keeps that role, a new process starts without it.
  int is_subreaper = 0;
  // The errno of a failed start; 0 if the command runs. Written by the new process, which shares the memory.
  int error = 0;
  bool in_cgroup = true;
};

int BecomeCommand(void* argument) {
  ChildPlan& plan = *static_cast<ChildPlan*>(argument);
  const SpawnOptions& options = *plan.options;
  if (options.cgroup >= 0) {
    // The process joins by itself, before the command: a process moved later may already have children in the old
    // group.
    const int processes = ::openat(options.cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    plan.in_cgroup = processes >= 0 && ::write(processes, "0", 1) == 1;
  }
  if (plan.is_subreaper != 0) ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (plan.in_cgroup) {
    if (options.before != nullptr) options.before(options.argument);
    SetSignalSettings(options.signals);
    ::execvpe(plan.argv[0], plan.argv, plan.environment);
  }
  plan.error = errno;
  ::_exit(kCannotExecute);
}

// The stack of the new process until it executes the command. execvpe() stores a path on it, and a second copy of the
// argument pointers for a script without "#!".
class Stack {
 public:
  explicit Stack(size_t words)
      : bytes_((kBytes + words * sizeof(char*) + kPage - 1) / kPage * kPage),
        start_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0)) {}
  ~Stack() {
    if (ok()) ::munmap(start_, bytes_);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  bool ok() const { return start_ != MAP_FAILED; }
  void* top() const { return static_cast<char*>(start_) + bytes_; }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kBytes = 64 << 10;

  const size_t bytes_;
  void* const start_;
};

}  // namespace

std::vector<std::string> EnvironmentWith(const std::vector<std::string>& entries) {
  std::vector<std::string> environment;
  for (char** at = environ; *at != nullptr; ++at) {
    const bool replaced = std::any_of(entries.begin(), entries.end(), [&](const std::string& entry) {
      return absl::StartsWith(*at, NameOf(entry));
    });
    if (!replaced) environment.emplace_back(*at);
  }
  environment.insert(environment.end(), entries.begin(), entries.end());
  return environment;
}

SignalSettings ReadSignalSettings() {
  SignalSettings settings;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &settings.blocked);
  if (blocked_before.has_value()) settings.blocked = *blocked_before;
  ::sigemptyset(&settings.ignored);
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action;
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN)
      ::sigaddset(&settings.ignored, signal);
  }
  return settings;
}

void SetSignalSettings(const SignalSettings& settings) {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action;
    // Fails for the signals that the C library reserves.
    if (::sigaction(signal, nullptr, &action) != 0) continue;
    auto* const wanted = ::sigismember(&settings.ignored, signal) == 1 ? SIG_IGN : SIG_DFL;
    if (action.sa_handler == wanted) continue;
    struct sigaction change = {};
    change.sa_handler = wanted;
    ::sigaction(signal, &change, nullptr);
  }
  ::pthread_sigmask(SIG_SETMASK, &settings.blocked, nullptr);
}

void HoldSignals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &blocked_before.emplace());
}

void ReleaseSignals() {
  if (!blocked_before.has_value()) return;
  // The kernel discards a signal to the first process of a PID namespace that has no handler for the signal.
  if (::getpid() == 1) {
    for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
      struct sigaction action;
      if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
      ::signal(signal, [](int number) { ::_exit(128 + number); });
    }
  }
  const sigset_t before = *blocked_before;
  blocked_before.reset();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

sigset_t ActingStops(const SignalSettings& settings) {
  sigset_t stops;
  ::sigemptyset(&stops);
  for (const int signal : kTerminalStops) {
    const bool acts = ::sigismember(&settings.blocked, signal) == 0 && ::sigismember(&settings.ignored, signal) == 0;
    if (acts) ::sigaddset(&stops, signal);
  }
  return stops;
}

void ActOnPending(int signal) {
  // The signal may be ignored here, but not by a command.
  struct sigaction by_default = {};
  struct sigaction before = {};
  by_default.sa_handler = SIG_DFL;
  ::sigaction(signal, &by_default, &before);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::sigaction(signal, &before, nullptr);
}

absl::StatusOr<std::unique_ptr<TerminalStops>> TerminalStops::Hold() {
  std::unique_ptr<TerminalStops> stops(new TerminalStops);
  const SignalSettings before = ReadSignalSettings();
  stops->blocked_before_ = before.blocked;
  stops->held_ = ActingStops(before);
  stops->signals_.reset(::signalfd(-1, &stops->held_, SFD_CLOEXEC));
  if (!stops->signals_) return OsError("signalfd", errno);
  ::pthread_sigmask(SIG_BLOCK, &stops->held_, nullptr);
  return stops;
}

TerminalStops::~TerminalStops() {
  if (signals_) ::pthread_sigmask(SIG_UNBLOCK, &held_, nullptr);
}

int TerminalStops::Pending() const {
  sigset_t pending;
  ::sigpending(&pending);
  for (const int signal : kTerminalStops) {
    if (::sigismember(&held_, signal) == 1 && ::sigismember(&pending, signal) == 1) return signal;
  }
  return 0;
}

absl::StatusOr<pid_t> SpawnCommand(const std::vector<std::string>& command,
                                   const std::vector<std::string>& environment, const SpawnOptions& options) {
  const std::vector<char*> argv = Pointers(command);
  const std::vector<char*> entries = Pointers(environment);
  ChildPlan plan = {.argv = argv.data(), .environment = entries.data(), .options = &options};
  ::prctl(PR_GET_CHILD_SUBREAPER, &plan.is_subreaper);
  const Stack stack(argv.size());
  if (!stack.ok()) return OsError("mmap", errno);
  // Signal handlers of this process must not run in the new process.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  // As posix_spawn(), which supports neither a control group nor a script without "#!".
  const pid_t child = ::clone(&BecomeCommand, stack.top(), CLONE_VM | CLONE_VFORK | SIGCHLD, &plan);
  const int error = child < 0 ? errno : plan.error;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (child < 0) return NotStarted(absl::StrCat("a process for ", command[0]), error);
  if (error == 0) return child;
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!plan.in_cgroup) return OsError("cannot move the command into its cgroup", error);
  return NotExecuted(command[0], error);
}

absl::Status ExecCommand(const std::vector<std::string>& command,
                         const std::vector<std::string>& environment) {
  ::execvpe(command[0].c_str(), Pointers(command).data(), Pointers(environment).data());
  return NotExecuted(command[0], errno);
}

void AwaitEnd(pid_t child, const std::function<void(int)>& stopped) {
  const int stops = stopped == nullptr ? 0 : WSTOPPED;
  while (true) {
    siginfo_t info = {};
    const int result = ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | stops | WNOWAIT);
    if (result < 0 && errno == EINTR) continue;
    if (result < 0 || info.si_code != CLD_STOPPED) return;
    stopped(info.si_status);
  }
}

ExitStatus Reap(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return {.code = kRunFailed};
  }
  if (WIFSIGNALED(status)) return {.code = 128 + WTERMSIG(status), .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status)};
}

}  // namespace berth::cli
