// Leases: the lease records: one at each grant and each end, and the list of open leases.

#ifndef DAEMON_CORE_REQUESTS_LEASES_H_
#define DAEMON_CORE_REQUESTS_LEASES_H_

#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/memory/reservation_table.h"
#include "daemon/core/plans/plan_table.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/log_record.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Leases {
 public:
  // `core` outlives the manager.
  explicit Leases(Managers& core) : core_(core) {}

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  std::vector<LeaseRecord> ListLeases() const;

  // ---- For the other managers -------------------------------------------------------------------------------

  LeaseRecord LeaseOf(const Block& block) const;
  LeaseRecord LeaseOf(const Reservation& reservation) const;
  LeaseRecord LeaseOf(const Plan& plan) const;
  // Records the grant of the lease to the requester. Requires: the request is pending.
  void RecordGrant(StepContext& step, LeaseRecord&& lease, const RequestId& request);
  static LeaseEnd EndFor(LogCause cause);

  // The records of the step, which the pools add to, too.
  LeaseLog* log() { return &leases_; }
  void RecordEnd(absl::Time now, LeaseRecord&& lease, LeaseEnd how) { leases_.RecordEnd(now, std::move(lease), how); }
  // Emits the records of the step.
  void Settle(StepContext& step) {
    leases_.TakeAll([&step](LeaseRecord&& lease) { step.Emit(std::move(lease)); });
  }

 private:
  Managers& core_;
  LeaseLog leases_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_REQUESTS_LEASES_H_
