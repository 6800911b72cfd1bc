#include "common/os/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "common/os/proc_file.h"

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

}  // namespace berth
