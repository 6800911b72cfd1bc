#include "daemon/supervisor/processes/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/process_capacity.h"
#include "common/status_macros.h"
#include "daemon/base/control_signals.h"

namespace berth {
namespace {

// P_PIDFD, which some versions of the C library's headers lack.
constexpr auto kByPidfd = static_cast<idtype_t>(3);
// posix_spawn requires a source number that is not one of its target numbers.
constexpr int kAboveTargets = kChildFd + 1;

// Returns a pointer for posix_spawn, which does not modify the text.
char* Pointer(const std::string& text) { return const_cast<char*>(text.c_str()); }

// Returns this process's environment, and the entries of `more` whose names it does not set.
std::vector<char*> EnvironmentWith(const std::vector<std::string>& more) {
  std::vector<char*> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.push_back(*entry);
  for (const std::string& entry : more) {
    if (::getenv(entry.substr(0, entry.find('=')).c_str()) == nullptr) all.push_back(Pointer(entry));
  }
  all.push_back(nullptr);
  return all;
}

absl::StatusOr<int> Spawn(const std::vector<std::string>& arguments, int fd,
                          const std::vector<std::string>& environment) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(Pointer(argument));
  argv.push_back(nullptr);
  const std::vector<char*> envp = EnvironmentWith(environment);

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  const absl::Cleanup destroy = [&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  };
  posix_spawn_file_actions_adddup2(&actions, fd, kChildFd);
  // Blocked from the start on, until the process has a use for them.
  sigset_t signals = ControlSignals();
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv.data(), envp.data());
  if (error != 0) return NotStarted("posix_spawn", error);
  return pid;
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& flags, int fd,
                                                 const std::vector<std::string>& environment) {
  const UniqueFd lifted(::fcntl(fd, F_DUPFD_CLOEXEC, kAboveTargets));
  if (!lifted) return OsError("fcntl(F_DUPFD_CLOEXEC)", errno);
  std::vector<std::string> arguments = {"berthd"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.push_back(absl::StrCat("--parent=", ::getpid()));
  BERTH_ASSIGN_OR_RETURN(const int pid, Spawn(arguments, lifted.get(), environment));
  // The kernel cannot reuse the pid: the process is not reaped before Reap().
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd) return ChildProcess(std::move(pidfd));
  const int error = errno;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return OsError("pidfd_open", error);
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  KillAndForget();
  pidfd_ = std::move(other.pidfd_);
  return *this;
}

void ChildProcess::Kill() {
  if (pidfd_) ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

bool ChildProcess::WaitUntil(std::chrono::steady_clock::time_point deadline) const {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry = {.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return false;
  }
}

std::string ProcessEnd::ToString() const {
  if (code >= 0) return absl::StrCat("exit code ", code);
  return signal > 0 ? absl::StrCat("signal ", signal) : "unknown status";
}

ProcessEnd ChildProcess::End() const {
  siginfo_t info = {};
  if (::waitid(kByPidfd, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOWAIT) < 0) return {};
  if (info.si_code == CLD_EXITED) return {.code = info.si_status};
  return {.signal = info.si_status};
}

ProcessEnd ChildProcess::Reap() {
  const ProcessEnd end = End();
  KillAndForget();
  return end;
}

void ChildProcess::KillAndForget() {
  if (!pidfd_) return;
  Kill();
  // Must not wait: a process that is stuck in the driver is left to the process that inherits it.
  siginfo_t info;
  ::waitid(kByPidfd, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG);
  pidfd_.reset();
}

absl::Status NameProcess(const std::string& name) {
  if (::prctl(PR_SET_NAME, name.c_str()) < 0) return OsError("prctl(PR_SET_NAME)", errno);
  return absl::OkStatus();
}

absl::Status BecomeChild(const std::string& name, int parent) {
  BERTH_RETURN_IF_ERROR(NameProcess(name));
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) return OsError("prctl(PR_SET_PDEATHSIG)", errno);
  // A parent that ended before the prctl() above sends no signal any more.
  if (parent != 0 && ::getppid() != parent) return absl::UnavailableError("the supervisor has ended");
  return absl::OkStatus();
}

}  // namespace berth
