#include "daemon/supervisor/fd_store/service_manager.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/os/os_error.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

// SD_LISTEN_FDS_START.
constexpr int kFirstHandedOver = 3;

std::string Variable(const char* name) {
  const char* const set = ::getenv(name);
  return set == nullptr ? "" : set;
}

}  // namespace

bool HasServiceManager() { return !Variable("NOTIFY_SOCKET").empty(); }

absl::Status SendToServiceManager(const std::string& state, int fd) {
  std::string path = Variable("NOTIFY_SOCKET");
  if (path.empty()) return absl::FailedPreconditionError("no service manager: NOTIFY_SOCKET is not set");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return absl::InvalidArgumentError("$NOTIFY_SOCKET is too long");
  // A leading @ stands for the zero byte of an abstract name.
  if (path[0] == '@') path[0] = '\0';
  memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return OsError("socket", errno);

  iovec bytes = {.iov_base = const_cast<char*>(state.data()), .iov_len = state.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_name = &address;
  message.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof(fd));
  }
  return ::sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0 ? OsError("sendmsg(service manager)", errno)
                                                             : absl::OkStatus();
}

void NotifyServiceManager(const std::string& state) {
  const absl::Status sent = SendToServiceManager(state);
  if (sent.ok() || absl::IsFailedPrecondition(sent)) return;
  Log("cannot notify the service manager of %s: %s", state.c_str(), std::string(sent.message()).c_str());
}

std::vector<NamedFd> TakeHandedOver() {
  std::vector<NamedFd> taken;
  int pid = 0;
  int count = 0;
  if (!absl::SimpleAtoi(Variable("LISTEN_PID"), &pid) || pid != ::getpid()) return taken;
  const std::string names = Variable("LISTEN_FDNAMES");
  const std::vector<std::string> named = absl::StrSplit(names, ':');
  if (!absl::SimpleAtoi(Variable("LISTEN_FDS"), &count)) count = 0;
  for (int i = 0; i < count; ++i) {
    // A number that is not open was not handed over.
    if (::fcntl(kFirstHandedOver + i, F_SETFD, FD_CLOEXEC) < 0) break;
    const auto at = static_cast<size_t>(i);
    taken.push_back({.name = at < named.size() ? named[at] : "", .fd = UniqueFd(kFirstHandedOver + i)});
  }
  for (const char* const name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(name);
  return taken;
}

}  // namespace berth
