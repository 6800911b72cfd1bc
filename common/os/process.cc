#include "common/os/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "common/os/proc_file.h"
#include "common/os/process_start.h"
#include "common/status_macros.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace berth {
namespace {

// Returns whether the socket's peer still holds its end. If so, the process that connected it still has its pid, unless
// it passed the socket on.
bool IsConnected(int socket) {
  pollfd entry = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 0;
}

}  // namespace

absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
    return OsError("getsockopt(SO_PEERCRED)", errno);
  return PeerCredentials{.pid = peer.pid, .uid = peer.uid, .gid = peer.gid};
}

absl::StatusOr<UniqueFd> OpenPeerPidfd(int socket, const PeerCredentials& peer) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return UniqueFd(fd);
  // Linux before 6.15 returns EINVAL for a reaped process.
  if (errno == ESRCH || errno == ENODATA || errno == EINVAL) return absl::NotFoundError("the peer's process has ended");
  if (errno != ENOPROTOOPT) return OsError("getsockopt(SO_PEERPIDFD)", errno);
  if (peer.pid <= 0) return absl::FailedPreconditionError("the peer's process is not visible in this PID namespace");
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  if (!pidfd) return OsError("pidfd_open", errno);
  // If the peer had ended and its pid been reused before pidfd_open, its socket would be closed by now.
  if (!IsConnected(socket)) return absl::NotFoundError("the peer's process has ended");
  return pidfd;
}

int32_t PidOfPidfd(int pidfd) {
  for (absl::string_view line :
       absl::StrSplit(ReadProcFile(absl::StrCat("/proc/self/fdinfo/", pidfd)).value_or(""), '\n')) {
    int32_t pid;
    if (absl::ConsumePrefix(&line, "Pid:") && absl::SimpleAtoi(line, &pid)) return pid;
  }
  return -1;
}

bool IsGone(int pidfd) {
  pollfd entry = {.fd = pidfd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

std::string ProcessName(int32_t pid) {
  if (pid <= 0) return "";
  const std::string text = ReadProcFile(absl::StrCat("/proc/", pid, "/comm")).value_or("");
  return std::string(absl::StripSuffix(text, "\n"));
}

// ---- process_start.h -----------------------------------------------------------------------------------------

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
  constexpr char kPath[] = "/proc/self/ns/pid";
  if (::stat(kPath, &info) < 0) return OsError(absl::StrCat("the daemon needs a mounted /proc: ", kPath), errno);
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
