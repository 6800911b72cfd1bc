// ConnectionTable: who is behind each gRPC connection. gRPC 1.51 does not say who calls; it names a connection that was
// handed to it as an fd by that fd's number, so the number is the key.

#ifndef DAEMON_SERVICE_CONNECTION_TABLE_H_
#define DAEMON_SERVICE_CONNECTION_TABLE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/core/tenant_quota.h"
#include "daemon/service/frame_meter.h"
#include "daemon/service/peer.h"
#include "daemon/service/token_bucket.h"

namespace berth::service {

// The bounds on gRPC connections.
struct ConnectionLimits {
  uint32_t total = 4096;
  uint32_t per_uid = 3072;
  // Operators', which are none of their users' and not among the total.
  uint32_t operators = 64;
  // What may be read on one connection, and on all of a user's (FrameCost). As many resets at once as one process may
  // have requests under way, and some.
  Rate calls = {.per_second = 100'000, .burst = 150'000};
  Rate calls_per_uid = {.per_second = 200'000, .burst = 300'000};
  Rate resets = {.per_second = 200, .burst = 1'200};
  Rate resets_per_uid = {.per_second = 800, .burst = 2'400};
};

// A connection that cost too much.
struct EndedConnection {
  std::shared_ptr<const Peer> peer;
  // Of what: "calls" or "resets", of its user's connections together or of it alone.
  const char* what = "";
  bool of_uid = false;
  Rate limit;
};

// Thread-safe.
class ConnectionTable {
 public:
  explicit ConnectionTable(ConnectionLimits limits)
      : limits_(limits), calls_of_uid_(limits.calls_per_uid), resets_of_uid_(limits.resets_per_uid) {}

  // Counts a connection of `peer` in, under the fd number that gRPC will name it by; before gRPC gets the fd. `socket`
  // is the daemon's own fd of the connection, which stays open until Remove(); -1 for none.
  // Errors: LIMIT (total, of the uid, of the tenant, or of operators), nothing changed; kAlreadyExists if the number is
  // still in use.
  absl::Status Add(int fd, Peer peer, int socket = -1) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(int fd) ABSL_LOCKS_EXCLUDED(mu_);
  // What each tenant may have from now on, within its user's limit; connections that are open stay.
  void SetQuotas(const core::QuotaTable& quotas) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether `fd` names a connection.
  bool Contains(int fd) const ABSL_LOCKS_EXCLUDED(mu_);

  // Finds who called, by gRPC's name for the connection ("fd:123").
  // Errors: kUnavailable if the connection is gone.
  absl::StatusOr<std::shared_ptr<const Peer>> Find(absl::string_view grpc_peer) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // A pidfd of the process that connected. Errors: kUnavailable if the connection is gone, those of OpenPeerPidfd().
  absl::StatusOr<UniqueFd> OpenPidfd(absl::string_view grpc_peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Charges a connection with what was read of it. Operators' are not charged. Returns: the connection, where that was
  // too much for the first time: it is to be ended.
  std::optional<EndedConnection> Charge(int fd, const FrameCost& cost, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Connections that were ended so.
  uint64_t ended_total() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection {
    std::shared_ptr<const Peer> peer;
    int socket = -1;
    TokenBucket calls;
    TokenBucket resets;
    bool ended = false;
  };
  // What came of a charge to one of a connection's buckets.
  enum class Verdict { kFine, kTooMuch, kTooMuchOfUid };
  static Verdict Take(TokenBucket& own, double burst, TokenBucket& of_uid, double tokens, absl::Time now);

  const ConnectionLimits limits_;

  mutable Mutex mu_;
  absl::flat_hash_map<int, Connection> connections_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, uint32_t> per_uid_ ABSL_GUARDED_BY(mu_);
  uint32_t operators_ ABSL_GUARDED_BY(mu_) = 0;
  // Of those on berthd.sock.
  absl::flat_hash_map<core::Tenant, uint64_t> per_tenant_ ABSL_GUARDED_BY(mu_);
  core::QuotaTable quotas_ ABSL_GUARDED_BY(mu_);
  UidBuckets calls_of_uid_ ABSL_GUARDED_BY(mu_);
  UidBuckets resets_of_uid_ ABSL_GUARDED_BY(mu_);
  uint64_t ended_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONNECTION_TABLE_H_
