#include "common/os/process_start.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/os/os_error.h"
#include "common/os/proc_file.h"
#include "common/os/process.h"
#include "common/status_macros.h"

namespace berth {

absl::StatusOr<std::optional<uint64_t>> StartTicksOf(int32_t pid) {
  BERTH_ASSIGN_OR_RETURN(const std::string line, ReadProcFile(absl::StrCat("/proc/", pid, "/stat")));
  // The command's name, field 2, is in parentheses and may contain spaces and parentheses.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  // Field 3 follows the name and a space.
  constexpr size_t kStartField = 22 - 3;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(line).substr(name_end + 1), absl::ByAnyChar(" \n"), absl::SkipEmpty());
  uint64_t ticks;
  if (fields.size() <= kStartField || !absl::SimpleAtoi(fields[kStartField], &ticks)) return std::nullopt;
  return ticks;
}

absl::StatusOr<uint64_t> ReadPidNamespace() {
  struct stat info;
  if (::stat("/proc/self/ns/pid", &info) < 0) return OsError("stat(/proc/self/ns/pid)", errno);
  return info.st_ino;
}

absl::StatusOr<UniqueFd> OpenProcess(int32_t pid) {
  if (pid <= 0) return absl::NotFoundError(absl::StrCat("pid ", pid, " names no process"));
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd) return pidfd;
  if (errno == ESRCH) return absl::NotFoundError(absl::StrCat("no process has pid ", pid));
  return OsError(absl::StrCat("pidfd_open ", pid), errno);
}

absl::StatusOr<UniqueFd> OpenProcessStartedAt(int32_t pid, uint64_t start_ticks) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd pidfd, OpenProcess(pid));
  BERTH_ASSIGN_OR_RETURN(const std::optional<uint64_t> ticks, StartTicksOf(pid));
  // The pid stays taken until the process is reaped: if the process still lives, /proc showed the same process.
  if (IsGone(pidfd.get())) return absl::NotFoundError(absl::StrCat("process ", pid, " is gone"));
  if (!ticks.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("/proc does not show the start time of process ", pid));
  }
  if (*ticks != start_ticks) {
    return absl::NotFoundError(
        absl::StrCat("pid ", pid, " belongs to another process: started at tick ", *ticks, ", not ", start_ticks));
  }
  return pidfd;
}

}  // namespace berth
