#include "daemon/service/transport/peer.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/label.h"
#include "common/os/process.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "common/wire/attach_wire.h"
#include "daemon/base/namespaces.h"

namespace berth::service {

namespace {

// Returns a process's name with unprintable text escaped: its owner chooses it and others read it.
std::string Printable(const std::string& text) {
  return ValidateLabel("name", text).ok() ? text : absl::CHexEscape(text).substr(0, attach::kMaxLabelBytes);
}

// Returns a label for a container. A name that is not a valid label gets the digest of the whole name as its end, so
// that two names never become one.
std::string ContainerLabel(const std::string& container) {
  if (ValidateLabel("container", container).ok()) return container;
  const std::string digest = absl::StrCat("#", ToHex(Sha256Of(container)).substr(0, 32));
  return absl::StrCat(ToLabel(container.substr(0, attach::kMaxLabelBytes - digest.size())), digest);
}

// Errors: UNKNOWN_PEER; kResourceExhausted, for want of fds or memory.
absl::StatusOr<core::Tenant> IdentifyTenant(int pidfd, const PeerCredentials& peer, Peer::Role role) {
  const auto refuse = [&](const absl::Status& why, absl::string_view way_out) {
    return Refuse(Reason::kUnknownPeer, "the process of uid {uid} (pid {pid}) is unknown: {why}{way_out}",
                  {{"uid", peer.uid}, {"pid", peer.pid}, {"why", why.message()}, {"way_out", way_out}});
  };
  absl::StatusOr<std::string> container = ContainerOf(pidfd, peer.pid);
  // Operators and observers see all tenants, and their sockets are closed to others.
  if (absl::IsUnimplemented(container.status()) && role != Peer::Role::kTenant) container = "unknown";
  if (absl::IsResourceExhausted(container.status())) return container.status();
  if (!container.ok()) {
    return refuse(container.status(), absl::IsNotFound(container.status())
                                          ? ""
                                          : "; give the daemon the host's PID namespace, or Linux 6.11 or later");
  }
  const absl::StatusOr<uint32_t> user = UserBehind(pidfd, peer.pid, peer.uid);
  if (absl::IsResourceExhausted(user.status())) return user.status();
  if (!user.ok()) {
    return refuse(user.status(), absl::IsNotFound(user.status()) ? "" : "; give the daemon CAP_SYS_PTRACE");
  }
  core::Tenant tenant = {.uid = peer.uid, .container = ContainerLabel(*container)};
  core::Account account = {.uid = *user};
  if (!container->empty()) {
    BERTH_ASSIGN_OR_RETURN(account.container, RootMadeContainerOf(pidfd, peer.pid));
  }
  if (account != tenant.account()) tenant.charged_account = account;
  return tenant;
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
    return Refuse(Reason::kUnknownPeer, "uid {uid} (pid {pid}) is the overflow uid, which identifies no user",
                  {{"uid", credentials.uid}, {"pid", credentials.pid}});
  }
  // After any error, data read by the pid may be another process's.
  const absl::StatusOr<UniqueFd> pidfd = OpenPeerPidfd(socket, credentials);
  if (absl::IsResourceExhausted(pidfd.status())) return pidfd.status();
  if (!pidfd.ok()) {
    return Refuse(Reason::kUnknownPeer, "the process of uid {uid} (pid {pid}) cannot be identified: {why}",
                  {{"uid", credentials.uid}, {"pid", credentials.pid}, {"why", pidfd.status().message()}});
  }
  BERTH_ASSIGN_OR_RETURN(core::Tenant tenant, IdentifyTenant(pidfd->get(), credentials, role));
  Peer peer = {.tenant = std::move(tenant),
               .process = {.pid = credentials.pid,
                           .uid = credentials.uid,
                           .gid = credentials.gid,
                           .name = Printable(ProcessName(credentials.pid))},
               .role = role};
  if (IsGone(pidfd->get())) {
    return Refuse(Reason::kUnknownPeer, "the process of uid {uid} (pid {pid}) ended before it was identified",
                  {{"uid", credentials.uid}, {"pid", credentials.pid}});
  }
  return peer;
}

}  // namespace berth::service
