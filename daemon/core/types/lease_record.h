// LeaseRecord: reports that a lease (a permit, a block, a reservation, a plan) was granted or has ended. The core emits
// one record for each of the two events, among its effects and in the order of events, for history writers. The second
// record repeats all that the core still knows of the lease, so a reader that missed the first record loses little.

#ifndef DAEMON_CORE_TYPES_LEASE_RECORD_H_
#define DAEMON_CORE_TYPES_LEASE_RECORD_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "daemon/core/types/caller.h"

namespace berth::core {

// The values are stored in histories on disk: never reuse a value.
enum class LeaseKind {
  kPermit = 1,
  kBlock = 2,
  kReservation = 3,
  kPlan = 4,
};

// How a lease ended. The values are stored in histories on disk: never reuse a value.
enum class LeaseEnd {
  // The lease has not ended.
  kNone = 0,
  // The owner released the lease.
  kReleased = 1,
  // The session ended.
  kSessionEnd = 2,
  // The request that created the lease was forgotten.
  kForgotten = 3,
  // The tenant or an operator freed the lease by its id.
  kById = 4,
  // An operator revoked the lease.
  kRevoked = 5,
  // The time was over: a pool's hold limit, or a reservation's own duration.
  kExpired = 6,
  // A cached permit, not in use, which another client needed.
  kTakenBack = 7,
  // The memory is lost to every client.
  kLost = 8,
  // Only in a history: the broker that saw the lease end died before it recorded how.
  kUnseen = 9,
  // Only in a history: the daemon ended before the lease did.
  kDaemonEnd = 10,
  // The process did not take the grant up in time.
  kNotTakenUp = 11,
};

struct LeaseRecord {
  LeaseKind kind = LeaseKind::kPermit;
  // Unique among leases of the same kind within an incarnation.
  uint64_t id = 0;
  // Owner session; 0 for a published block, which belongs to its tenant.
  SessionId session;
  Tenant tenant;
  // Requesting process. In the end record of a lease other than a permit, pid is 0: the core no longer knows it.
  ProcessInfo process;
  std::string label;
  // Set for a permit, and for a plan that takes permits.
  std::string pool;
  // Set for a permit and for a plan.
  uint64_t units = 0;
  // A block's bytes; a reservation's bytes over all its devices as granted; the bytes declared for a permit.
  Bytes bytes;
  // Comma-separated UUIDs.
  std::string devices;
  absl::Time granted_at;
  // Time from the request to the grant.
  absl::Duration waited;
  LeaseEnd end = LeaseEnd::kNone;
  // Set once the lease has ended.
  absl::Time ended_at;
  absl::Duration held;
};

// Collects the records of a step. Thread-compatible.
class LeaseLog {
 public:
  void RecordGrant(LeaseRecord&& lease) { records_.push_back(std::move(lease)); }
  void RecordEnd(absl::Time now, LeaseRecord&& lease, LeaseEnd how);
  // Passes the records since the last call to `take`, in order.
  void TakeAll(absl::FunctionRef<void(LeaseRecord&&)> take) {
    for (LeaseRecord& record : records_) take(std::move(record));
    records_.clear();
  }

 private:
  std::vector<LeaseRecord> records_;
};

inline void LeaseLog::RecordEnd(absl::Time now, LeaseRecord&& lease, LeaseEnd how) {
  lease.end = how;
  lease.ended_at = now;
  lease.held = std::max(now - lease.granted_at, absl::ZeroDuration());
  records_.push_back(std::move(lease));
}

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_LEASE_RECORD_H_
