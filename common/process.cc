#include "common/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os_error.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace berth {
namespace {

// Reads a small file of /proc; empty if it cannot be read.
std::string ReadSmallFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return "";
  char buffer[4096];
  const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
  return got > 0 ? std::string(buffer, static_cast<size_t>(got)) : "";
}

// Whether the socket's peer still holds its end: then the process that connected it cannot have given up its pid,
// unless it handed the socket on.
bool IsConnected(int socket) {
  pollfd entry = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 0;
}

std::optional<ino_t> PidNamespace(const std::string& pid) {
  struct stat info;
  if (::stat(absl::StrCat("/proc/", pid, "/ns/pid").c_str(), &info) < 0) return std::nullopt;
  return info.st_ino;
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
  if (errno == ESRCH || errno == ENODATA) return absl::NotFoundError("the peer's process is gone");
  if (errno != ENOPROTOOPT) return OsError("getsockopt(SO_PEERPIDFD)", errno);
  if (peer.pid <= 0) return absl::FailedPreconditionError("the peer's process is not visible here");
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  if (!pidfd) return OsError("pidfd_open", errno);
  // Had the peer ended and its number gone to another before pidfd_open, its socket would be closed by now.
  if (!IsConnected(socket)) return absl::NotFoundError("the peer's process is gone");
  return pidfd;
}

int32_t PidOfPidfd(int pidfd) {
  for (absl::string_view line :
       absl::StrSplit(ReadSmallFile(absl::StrCat("/proc/self/fdinfo/", pidfd)), '\n')) {
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
  return std::string(absl::StripSuffix(ReadSmallFile(absl::StrCat("/proc/", pid, "/comm")), "\n"));
}

std::string ContainerOf(int32_t pid) {
  if (pid <= 0) return "unknown";
  // A process stays in its own.
  static const std::optional<ino_t> here = PidNamespace("self");
  const std::optional<ino_t> there = PidNamespace(absl::StrCat(pid));
  if (here.has_value() && here == there) return "";
  for (absl::string_view line : absl::StrSplit(ReadSmallFile(absl::StrCat("/proc/", pid, "/cgroup")), '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) return std::string(line);
  }
  return "unknown";
}

}  // namespace berth
