// LeaseRecord: that a lease (a permit, a block, a reservation, a plan) was granted, or has ended. The core emits one at
// each of the two, among its effects and in the order in which things happened, for whoever keeps a history. The
// second says again all that the core still knows of the lease, so that who has missed the first misses little.

#ifndef DAEMON_CORE_LEASE_RECORD_H_
#define DAEMON_CORE_LEASE_RECORD_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/caller.h"

namespace berth::core {

// The numbers are in histories on disk: none is ever another's.
enum class LeaseKind {
  kPermit = 1,
  kBlock = 2,
  kReservation = 3,
  kPlan = 4,
};

// How a lease ended. The numbers are in histories on disk, too.
enum class LeaseEnd {
  // It has not.
  kNone = 0,
  // Whoever had it gave it back.
  kReleased = 1,
  // Its session ended.
  kSessionEnd = 2,
  // The request that made it was forgotten.
  kForgotten = 3,
  // Its tenant or an operator freed it by its id.
  kById = 4,
  // An operator took it away.
  kRevoked = 5,
  // Its time was over: a pool's hold limit, a reservation's own.
  kExpired = 6,
  // Of a permit that its process kept: it was not used, and somebody else wanted it.
  kTakenBack = 7,
  // Nobody has its memory any more.
  kLost = 8,
  // Only in a history: the broker that saw it end died before it wrote that down.
  kUnseen = 9,
  // Only in a history: the daemon ended before it did.
  kDaemonEnd = 10,
};

struct LeaseRecord {
  LeaseKind kind = LeaseKind::kPermit;
  // Of that kind, within an incarnation.
  uint64_t id = 0;
  // Whose it is; 0 for a published block, which is its tenant's.
  SessionId session;
  Tenant tenant;
  // Who asked for it; pid 0 at the end of what is no permit, which does not know any more.
  ProcessInfo process;
  std::string label;
  // Of a permit, and of a plan that takes some.
  std::string pool;
  // Of a permit, and of a plan.
  uint64_t units = 0;
  // Of a block, of a reservation over all its devices as it was granted, and declared for a permit.
  Bytes bytes;
  // UUIDs with commas between.
  std::string devices;
  absl::Time granted_at;
  // From its asking to its grant.
  absl::Duration waited;
  LeaseEnd end = LeaseEnd::kNone;
  // Of one that has ended.
  absl::Time ended_at;
  absl::Duration held;
};

// Collects the records of a step. Thread-compatible.
class LeaseLog {
 public:
  void NoteGrant(LeaseRecord&& lease) { records_.push_back(std::move(lease)); }
  void NoteEnd(absl::Time now, LeaseRecord&& lease, LeaseEnd how);
  // Hands `take` those since the last call, in their order.
  void TakeAll(absl::FunctionRef<void(LeaseRecord&&)> take) {
    for (LeaseRecord& record : records_) take(std::move(record));
    records_.clear();
  }

 private:
  std::vector<LeaseRecord> records_;
};

inline void LeaseLog::NoteEnd(absl::Time now, LeaseRecord&& lease, LeaseEnd how) {
  lease.end = how;
  lease.ended_at = now;
  lease.held = std::max(now - lease.granted_at, absl::ZeroDuration());
  records_.push_back(std::move(lease));
}

}  // namespace berth::core

#endif  // DAEMON_CORE_LEASE_RECORD_H_
