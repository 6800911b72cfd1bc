#include "tests/bench/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"

namespace berth::bench {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentOf(const ChildOptions& options) {
  std::vector<std::string> environment = options.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    if (!absl::StartsWith(text, "BERTH_") && !absl::StartsWith(text, "REALIZAR_")) {
      environment.push_back(std::string(text));
    }
  }
  return environment;
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildOptions& options) {
  std::vector<std::string> command = options.command;
  std::vector<std::string> environment = EnvironmentOf(options);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // The pipe comes last: 3 may be the number of one of the other fds in this process.
  if (options.input >= 0) posix_spawn_file_actions_adddup2(&actions, options.input, STDIN_FILENO);
  if (options.output >= 0) posix_spawn_file_actions_adddup2(&actions, options.output, STDOUT_FILENO);
  if (options.error >= 0) posix_spawn_file_actions_adddup2(&actions, options.error, STDERR_FILENO);
  if (options.pipe >= 0) posix_spawn_file_actions_adddup2(&actions, options.pipe, kChildPipeFd);
  int pid = 0;
  const int error = posix_spawn(&pid, command[0].c_str(), &actions, nullptr, Pointers(command).data(),
                                Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return OsError(absl::StrCat("posix_spawn ", command[0]), error);
  ChildProcess child(pid, UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))));
  if (!child.pidfd_) return OsError("pidfd_open", errno);
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    KillAndReap();
    pid_ = std::exchange(other.pid_, 0);
    pidfd_ = std::move(other.pidfd_);
  }
  return *this;
}

void ChildProcess::Signal(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

int ChildProcess::Wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ChildProcess::KillAndReap() {
  if (pid_ <= 0) return;
  Signal(SIGKILL);
  Wait();
}

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return OsError("pipe2", errno);
  return Pipe{.read = UniqueFd(fds[0]), .write = UniqueFd(fds[1])};
}

absl::Status AwaitReadable(int fd, absl::Duration patience) {
  pollfd poll_fd = {.fd = fd, .events = POLLIN, .revents = 0};
  const absl::Time deadline = absl::Now() + patience;
  while (true) {
    const int64_t left = std::max<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()), 0);
    const int ready = ::poll(&poll_fd, 1, static_cast<int>(left));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return OsError("poll", errno);
    if (ready == 0)
      return absl::DeadlineExceededError(
          absl::StrCat("nothing came within ", absl::FormatDuration(patience)));
  }
}

}  // namespace berth::bench
