// ConnectionTable: who is behind each gRPC connection. gRPC 1.51 does not say who calls; it names a connection that was
// handed to it as an fd by that fd's number, so the number is the key.

#ifndef DAEMON_SERVICE_CONNECTION_TABLE_H_
#define DAEMON_SERVICE_CONNECTION_TABLE_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "daemon/core/tenant_quota.h"
#include "daemon/service/peer.h"

namespace berth::service {

// The bounds on gRPC connections.
struct ConnectionLimits {
  uint32_t total = 4096;
  uint32_t per_uid = 3072;
};

// Thread-safe.
class ConnectionTable {
 public:
  explicit ConnectionTable(ConnectionLimits limits) : limits_(limits) {}

  // Counts a connection of `peer` in, under the fd number that gRPC will name it by; before gRPC gets the fd.
  // Errors: LIMIT (total, of the uid, or of the tenant), nothing changed; kAlreadyExists if the number is still in use.
  absl::Status Add(int fd, Peer peer) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(int fd) ABSL_LOCKS_EXCLUDED(mu_);
  // What each tenant may have from now on, within its user's limit; connections that are open stay.
  void SetQuotas(const core::QuotaTable& quotas) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `fd` names a connection.
  bool Contains(int fd) const ABSL_LOCKS_EXCLUDED(mu_);

  // Finds who called, by gRPC's name for the connection ("fd:123").
  // Errors: kUnavailable if the connection is gone.
  absl::StatusOr<std::shared_ptr<const Peer>> Find(absl::string_view grpc_peer) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const ConnectionLimits limits_;

  mutable Mutex mu_;
  absl::flat_hash_map<int, std::shared_ptr<const Peer>> peers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, uint32_t> per_uid_ ABSL_GUARDED_BY(mu_);
  // Of those on berthd.sock.
  absl::flat_hash_map<core::Tenant, uint64_t> per_tenant_ ABSL_GUARDED_BY(mu_);
  core::QuotaTable quotas_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONNECTION_TABLE_H_
