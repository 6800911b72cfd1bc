// ConnectionTable: the peer behind each gRPC connection. gRPC 1.51 does not identify callers. For a connection passed
// to it as an fd, it reports the fd's number, so the number is the key.

#ifndef DAEMON_SERVICE_TRANSPORT_CONNECTION_TABLE_H_
#define DAEMON_SERVICE_TRANSPORT_CONNECTION_TABLE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "daemon/base/token_bucket.h"
#include "daemon/core/types/tenant_quota.h"
#include "daemon/service/transport/frame_meter.h"
#include "daemon/service/transport/peer.h"

namespace berth::service {

// Limits for gRPC connections.
struct ConnectionLimits {
  // Connections of all users; each user has a share (daemon/core/types/user_share.h), capped by `per_uid`.
  uint32_t total = 6144;
  uint32_t per_uid = 3072;
  // Operators' connections; they count neither for their users nor for the total.
  uint32_t operators = 64;
  // Rates for the bytes read on one connection, and on all of a user's (FrameCost). The burst of resets covers all
  // requests that one process may have in flight, plus a margin.
  Rate calls = {.per_second = 100'000, .burst = 150'000};
  Rate calls_per_uid = {.per_second = 200'000, .burst = 300'000};
  Rate resets = {.per_second = 200, .burst = 1'200};
  Rate resets_per_uid = {.per_second = 800, .burst = 2'400};
};

// A connection that was ended because it cost too much.
struct EndedConnection {
  std::shared_ptr<const Peer> peer;
  // Exceeded limit: "calls" or "resets"; `of_uid` if it is the limit for all of the user's connections.
  const char* what = "";
  bool of_uid = false;
  Rate limit;
};

// Thread-safe.
class ConnectionTable {
 public:
  explicit ConnectionTable(ConnectionLimits limits)
      : limits_(limits), calls_of_uid_(limits.calls_per_uid), resets_of_uid_(limits.resets_per_uid) {}

  // Adds a connection of `peer` under the fd number by which gRPC will name it. Call before gRPC gets the fd. `socket`
  // is the daemon's own fd of the connection, which stays open until Remove(); -1 for none.
  // Errors: LIMIT (total, of the uid, of the tenant, or of operators), nothing changed; kAlreadyExists if the number is
  // still in use.
  absl::Status Add(int fd, Peer peer, int socket = -1) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(int fd) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets each tenant's limit, within its user's limit; open connections stay.
  void SetQuotas(const core::QuotaTable& quotas) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether `fd` names a connection.
  bool Contains(int fd) const ABSL_LOCKS_EXCLUDED(mu_);

  // Finds the peer by gRPC's name for the connection ("fd:123").
  // Errors: kUnavailable if the connection has ended.
  absl::StatusOr<std::shared_ptr<const Peer>> Find(absl::string_view grpc_peer) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a pidfd of the process that connected. Errors: kUnavailable if the connection has ended, those of
  // OpenPeerPidfd().
  absl::StatusOr<UniqueFd> OpenPidfd(absl::string_view grpc_peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // Charges a connection for the bytes read from it. Operators' connections are not charged. Returns: the connection,
  // if it exceeds a limit for the first time; the caller must end it.
  std::optional<EndedConnection> Charge(int fd, const FrameCost& cost, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of connections ended by Charge().
  uint64_t ended_total() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection {
    std::shared_ptr<const Peer> peer;
    int socket = -1;
    TokenBucket calls;
    TokenBucket resets;
    bool ended = false;
  };
  // Outcome of a charge to one of a connection's buckets.
  enum class Verdict { kFine, kTooMuch, kTooMuchOfUid };
  static Verdict Take(TokenBucket& own, double burst, TokenBucket& of_uid, double tokens, absl::Time now);

  const ConnectionLimits limits_;

  mutable Mutex mu_;
  absl::flat_hash_map<int, Connection> connections_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, uint32_t> per_uid_ ABSL_GUARDED_BY(mu_);
  uint32_t operators_ ABSL_GUARDED_BY(mu_) = 0;
  // Connections on berthd.sock.
  absl::flat_hash_map<core::Account, uint64_t> per_tenant_ ABSL_GUARDED_BY(mu_);
  core::QuotaTable quotas_ ABSL_GUARDED_BY(mu_);
  UidBuckets calls_of_uid_ ABSL_GUARDED_BY(mu_);
  UidBuckets resets_of_uid_ ABSL_GUARDED_BY(mu_);
  uint64_t ended_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_CONNECTION_TABLE_H_
