#include "daemon/service/peer.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "absl/strings/escaping.h"
#include "common/attach_wire.h"
#include "common/error.h"
#include "common/label.h"
#include "common/process.h"
#include "common/status_macros.h"

namespace berth::service {

namespace {

// Names and paths are their owner's to choose, and others read them: what is not printable is escaped.
std::string Printable(const std::string& text) {
  return ValidateLabel("name", text).ok() ? text : absl::CHexEscape(text).substr(0, attach::kMaxLabelBytes);
}

}  // namespace

std::string ListenerAddress(int socket) {
  sockaddr_un address = {};
  socklen_t size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) < 0) return "";
  const size_t family = offsetof(sockaddr_un, sun_path);
  return size > family ? std::string(address.sun_path, size - family) : "";
}

absl::StatusOr<Peer> IdentifyPeer(int socket, Peer::Role role) {
  BERTH_ASSIGN_OR_RETURN(const PeerCredentials credentials, GetPeerCredentials(socket));
  if (credentials.uid == kOverflowUid) {
    return Refuse(Reason::kUnknownPeer, "uid {uid} (pid {pid}) is the overflow uid and identifies nobody",
                  {{"uid", credentials.uid}, {"pid", credentials.pid}});
  }
  const absl::StatusOr<UniqueFd> pidfd = OpenPeerPidfd(socket, credentials);
  Peer peer = {.tenant = {.uid = credentials.uid, .container = Printable(ContainerOf(credentials.pid))},
               .process = {.pid = credentials.pid,
                           .uid = credentials.uid,
                           .gid = credentials.gid,
                           .name = Printable(ProcessName(credentials.pid))},
               .role = role};
  // What was read by the pid is the peer's only if it still lived afterwards: else the number may be another's.
  if (absl::IsNotFound(pidfd.status()) || (pidfd.ok() && IsGone(pidfd->get()))) {
    return Refuse(Reason::kUnknownPeer, "uid {uid} (pid {pid}) ended before it could be identified",
                  {{"uid", credentials.uid}, {"pid", credentials.pid}});
  }
  return peer;
}

}  // namespace berth::service
