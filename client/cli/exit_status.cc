#include "client/cli/exit_status.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "common/os_error.h"

namespace berth::cli {

ExitStatus Report(const absl::Status& status) {
  if (status.ok()) return {};
  ::fprintf(stderr, "berth: %s\n", std::string(status.message()).c_str());
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return {.code = kUnreachable};
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return {.code = kDenied};
    default:
      return {.code = kFailed};
  }
}

int Exit(const ExitStatus& status) {
  if (status.signal == 0) {
    // What was to be shown and could not be is no success.
    const bool shown = ::fflush(stdout) == 0 && ::ferror(stdout) == 0;
    return shown || status.code != kOk ? status.code : Report(OsError("standard output", errno)).code;
  }
  // The command has left a core where one was wanted; this process has nothing to add to it.
  const rlimit none = {0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::signal(status.signal, SIG_DFL);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, status.signal);
  ::raise(status.signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return 128 + status.signal;
}

void ExitNow(const ExitStatus& status) { ::_exit(Exit(status)); }

}  // namespace berth::cli
