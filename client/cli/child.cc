#include "client/cli/child.h"

#include <errno.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

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
                                   const std::vector<std::string>& environment, const sigset_t& mask) {
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, command[0].c_str(), nullptr, &attributes, Pointers(command).data(),
                                   Pointers(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) return child;
  const std::string text = absl::StrCat(command[0], ": ", ::strerror(error));
  return error == ENOENT ? absl::NotFoundError(text) : absl::FailedPreconditionError(text);
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
