#include "client/cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <spawn.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os_error.h"
#include "common/unique_fd.h"

namespace berth::cli {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// "NAME=" of "NAME=value".
absl::string_view NameOf(absl::string_view entry) { return entry.substr(0, entry.find('=') + 1); }

absl::Status NotExecuted(const std::string& program, int error) {
  const std::string text = absl::StrCat(program, ": ", ::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
}

// posix_spawn() cannot choose a control group before glibc 2.39, and who moves there afterwards may have had children
// before. Between clone and exec nothing may allocate.
absl::StatusOr<pid_t> SpawnInto(int cgroup, const std::vector<std::string>& command,
                                const std::vector<std::string>& environment, const sigset_t& mask) {
  const std::vector<char*> argv = Pointers(command);
  const std::vector<char*> entries = Pointers(environment);
  // Tells the error of an exec that failed; closed by one that did not.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return OsError("pipe2", errno);
  UniqueFd read(ends[0]);
  UniqueFd write(ends[1]);
  clone_args arguments = {};
  arguments.flags = CLONE_INTO_CGROUP;
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<uint64_t>(cgroup);
  const pid_t child = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof(arguments)));
  if (child < 0) return OsError("clone3 into the cgroup", errno);
  if (child == 0) {
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    ::execvpe(argv[0], argv.data(), entries.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t told = ::write(write.get(), &error, sizeof(error));
    ::_exit(kCannotExecute);
  }
  write.reset();
  int error = 0;
  ssize_t got;
  while ((got = ::read(read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (got != sizeof(error)) return child;
  ::waitpid(child, nullptr, 0);
  return NotExecuted(command[0], error);
}

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

absl::StatusOr<pid_t> SpawnCommand(const std::vector<std::string>& command,
                                   const std::vector<std::string>& environment, const sigset_t& mask,
                                   int cgroup) {
  if (cgroup >= 0) return SpawnInto(cgroup, command, environment, mask);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, command[0].c_str(), nullptr, &attributes, Pointers(command).data(),
                                   Pointers(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) return child;
  return NotExecuted(command[0], error);
}

absl::Status ExecCommand(const std::vector<std::string>& command,
                         const std::vector<std::string>& environment) {
  ::execvpe(command[0].c_str(), Pointers(command).data(), Pointers(environment).data());
  return NotExecuted(command[0], errno);
}

void AwaitEnd(pid_t child) {
  siginfo_t info;
  while (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
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
