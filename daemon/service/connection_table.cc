#include "daemon/service/connection_table.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/error.h"

namespace berth::service {

absl::Status ConnectionTable::Add(int fd, Peer peer) {
  MutexLock lock(&mu_);
  if (peers_.contains(fd))
    return absl::AlreadyExistsError(absl::StrCat("fd ", fd, " names another connection"));
  // Who looks after the node gets in when the clients' places are taken; these sockets are for few.
  const bool client = peer.role == Peer::Role::kTenant;
  if (client && peers_.size() >= limits_.total) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", "connections"}, {"current", peers_.size()}, {"limit", limits_.total}});
  }
  const auto uid = per_uid_.find(peer.tenant.uid);
  const uint32_t of_uid = uid == per_uid_.end() ? 0 : uid->second;
  if (of_uid >= limits_.per_uid) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", absl::StrCat("connections of uid ", peer.tenant.uid)},
                   {"current", of_uid},
                   {"limit", limits_.per_uid}});
  }
  const auto tenant = per_tenant_.find(peer.tenant);
  const uint64_t of_tenant = tenant == per_tenant_.end() ? 0 : tenant->second;
  const std::optional<uint64_t> quota = quotas_.Of(peer.tenant).connections;
  if (client && quota.has_value() && of_tenant >= *quota) {
    return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                  {{"what", absl::StrCat("connections of a tenant of uid ", peer.tenant.uid)},
                   {"current", of_tenant},
                   {"limit", *quota}});
  }
  ++per_uid_[peer.tenant.uid];
  if (client) ++per_tenant_[peer.tenant];
  peers_[fd] = std::make_shared<const Peer>(std::move(peer));
  return absl::OkStatus();
}

void ConnectionTable::Remove(int fd) {
  MutexLock lock(&mu_);
  const auto it = peers_.find(fd);
  if (it == peers_.end()) return;
  const auto of_uid = per_uid_.find(it->second->tenant.uid);
  if (--of_uid->second == 0) per_uid_.erase(of_uid);
  if (it->second->role == Peer::Role::kTenant) {
    const auto of_tenant = per_tenant_.find(it->second->tenant);
    if (--of_tenant->second == 0) per_tenant_.erase(of_tenant);
  }
  peers_.erase(it);
}

void ConnectionTable::SetQuotas(const core::QuotaTable& quotas) {
  MutexLock lock(&mu_);
  quotas_ = quotas;
}

bool ConnectionTable::Contains(int fd) const {
  MutexLock lock(&mu_);
  return peers_.contains(fd);
}

absl::StatusOr<std::shared_ptr<const Peer>> ConnectionTable::Find(absl::string_view grpc_peer) const {
  int fd;
  if (!absl::ConsumePrefix(&grpc_peer, "fd:") || !absl::SimpleAtoi(grpc_peer, &fd)) {
    return absl::InternalError(absl::StrCat("gRPC names a connection \"", grpc_peer, "\""));
  }
  MutexLock lock(&mu_);
  const auto it = peers_.find(fd);
  if (it == peers_.end()) return absl::UnavailableError("the connection has ended");
  return it->second;
}

}  // namespace berth::service
