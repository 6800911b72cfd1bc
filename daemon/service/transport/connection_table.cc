#include "daemon/service/transport/connection_table.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/label.h"
#include "common/os/process.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "common/wire/attach_wire.h"
#include "daemon/base/namespaces.h"
#include "daemon/core/types/user_share.h"
#include "daemon/service/transport/peer.h"

namespace berth::service {
namespace {

// Returns the fd number in gRPC's name for a connection.
std::optional<int> NumberIn(absl::string_view grpc_peer) {
  int fd;
  if (!absl::ConsumePrefix(&grpc_peer, "fd:") || !absl::SimpleAtoi(grpc_peer, &fd)) return std::nullopt;
  return fd;
}

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

absl::Status ConnectionTable::Add(int fd, Peer peer, int socket) {
  MutexLock lock(&mu_);
  if (connections_.contains(fd))
    return absl::AlreadyExistsError(absl::StrCat("fd ", fd, " already names another connection"));
  // The total does not limit observers, and operators have a limit of their own: few users may open those sockets.
  const bool client = peer.role == Peer::Role::kTenant;
  const bool of_operator = peer.role == Peer::Role::kAdmin;
  if (of_operator && operators_ >= limits_.operators) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", "operators' connections"}, {"current", operators_}, {"limit", limits_.operators}});
  }
  if (client && connections_.size() - operators_ >= limits_.total) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", "connections"}, {"current", connections_.size() - operators_}, {"limit", limits_.total}});
  }
  const auto uid = per_uid_.find(UserOf(peer));
  const uint32_t of_uid = uid == per_uid_.end() ? 0 : uid->second;
  const uint64_t others = connections_.size() - operators_ - of_uid;
  const uint64_t share = std::min<uint64_t>(limits_.per_uid, core::UserShare(limits_.total, others));
  if (const uint64_t limit = client ? share : limits_.per_uid; !of_operator && of_uid >= limit) {
    return Refuse(
        Reason::kLimit, "{what}: {current} are open, limit {limit}",
        {{"what", absl::StrCat("connections of uid ", UserOf(peer))}, {"current", of_uid}, {"limit", limit}});
  }
  const auto tenant = per_tenant_.find(peer.tenant);
  const uint64_t of_tenant = tenant == per_tenant_.end() ? 0 : tenant->second;
  const std::optional<uint64_t> quota = quotas_.Of(peer.tenant).connections;
  if (client && quota.has_value() && of_tenant >= *quota) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", absl::StrCat("connections of a tenant of uid ", UserOf(peer))},
                   {"current", of_tenant},
                   {"limit", *quota}});
  }
  if (of_operator) {
    ++operators_;
  } else {
    ++per_uid_[UserOf(peer)];
  }
  if (client) ++per_tenant_[peer.tenant];
  connections_.emplace(fd, Connection{.peer = std::make_shared<const Peer>(std::move(peer)),
                                      .socket = socket,
                                      .calls = TokenBucket(limits_.calls),
                                      .resets = TokenBucket(limits_.resets)});
  return absl::OkStatus();
}

void ConnectionTable::Remove(int fd) {
  MutexLock lock(&mu_);
  const auto it = connections_.find(fd);
  if (it == connections_.end()) return;
  const Peer& peer = *it->second.peer;
  if (peer.role == Peer::Role::kAdmin) {
    --operators_;
  } else {
    const auto of_uid = per_uid_.find(UserOf(peer));
    if (--of_uid->second == 0) per_uid_.erase(of_uid);
  }
  if (peer.role == Peer::Role::kTenant) {
    const auto of_tenant = per_tenant_.find(peer.tenant);
    if (--of_tenant->second == 0) per_tenant_.erase(of_tenant);
  }
  connections_.erase(it);
}

void ConnectionTable::SetQuotas(const core::QuotaTable& quotas) {
  MutexLock lock(&mu_);
  quotas_ = quotas;
}

bool ConnectionTable::Contains(int fd) const {
  MutexLock lock(&mu_);
  return connections_.contains(fd);
}

absl::StatusOr<std::shared_ptr<const Peer>> ConnectionTable::Find(absl::string_view grpc_peer) const {
  const std::optional<int> fd = NumberIn(grpc_peer);
  if (!fd.has_value())
    return absl::InternalError(absl::StrCat("unexpected connection name from gRPC: \"", grpc_peer, "\""));
  MutexLock lock(&mu_);
  const auto it = connections_.find(*fd);
  if (it == connections_.end()) return absl::UnavailableError("the connection has ended");
  return it->second.peer;
}

absl::StatusOr<UniqueFd> ConnectionTable::OpenPidfd(absl::string_view grpc_peer) const {
  const std::optional<int> fd = NumberIn(grpc_peer);
  MutexLock lock(&mu_);
  const auto it = fd.has_value() ? connections_.find(*fd) : connections_.end();
  if (it == connections_.end()) return absl::UnavailableError("the connection has ended");
  const core::ProcessInfo& process = it->second.peer->process;
  return OpenPeerPidfd(it->second.socket, {.pid = process.pid, .uid = process.uid, .gid = process.gid});
}

ConnectionTable::Verdict ConnectionTable::Take(TokenBucket& own, double burst, TokenBucket& of_uid, double tokens,
                                               absl::Time now) {
  if (!own.Take(now, tokens)) return Verdict::kTooMuch;
  // A user's rate ends only a connection that used some tokens recently, not an idle one that happens to call next.
  const bool had_some = own.left() < burst - burst / 16;
  return of_uid.Take(now, tokens) || !had_some ? Verdict::kFine : Verdict::kTooMuchOfUid;
}

std::optional<EndedConnection> ConnectionTable::Charge(int fd, const FrameCost& cost, absl::Time now) {
  MutexLock lock(&mu_);
  const auto it = connections_.find(fd);
  if (it == connections_.end() || it->second.ended || it->second.peer->role == Peer::Role::kAdmin) return std::nullopt;
  Connection& connection = it->second;
  const uint32_t uid = UserOf(*connection.peer);
  EndedConnection result = {.peer = connection.peer, .what = "calls"};
  Verdict verdict = Take(connection.calls, limits_.calls.burst, calls_of_uid_.Of(now, uid),
                         static_cast<double>(cost.load) / FrameCost::kCall, now);
  result.limit = verdict == Verdict::kTooMuchOfUid ? limits_.calls_per_uid : limits_.calls;
  if (verdict == Verdict::kFine && cost.resets > 0) {
    result.what = "resets";
    verdict = Take(connection.resets, limits_.resets.burst, resets_of_uid_.Of(now, uid),
                   static_cast<double>(cost.resets), now);
    result.limit = verdict == Verdict::kTooMuchOfUid ? limits_.resets_per_uid : limits_.resets;
  }
  if (verdict == Verdict::kFine) return std::nullopt;
  connection.ended = true;
  ++ended_;
  result.of_uid = verdict == Verdict::kTooMuchOfUid;
  return result;
}

uint64_t ConnectionTable::ended_total() const {
  MutexLock lock(&mu_);
  return ended_;
}

// ---- peer.h --------------------------------------------------------------------------------------------------

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

absl::Status AdmitPeer(AcceptGate* gate, absl::Time now, int socket, Peer* peer) {
  BERTH_ASSIGN_OR_RETURN(const PeerCredentials credentials, GetPeerCredentials(socket));
  const bool counts = peer->role != Peer::Role::kAdmin;
  peer->process = {.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
  peer->tenant = {.uid = credentials.uid,
                  .charged_account = core::Account{.uid = gate->UserBehind(credentials.uid, now)}};
  if (counts) BERTH_RETURN_IF_ERROR(gate->Admit(credentials.uid, now));
  absl::StatusOr<Peer> identified = IdentifyPeer(socket, peer->role);
  if (!identified.ok()) {
    if (counts) gate->Withdraw();
    return identified.status();
  }
  *peer = *std::move(identified);
  return counts ? gate->Attribute(credentials.uid, UserOf(*peer), now) : absl::OkStatus();
}

}  // namespace berth::service
