// Plans: the plans and the requests for them. A PlanTransaction is one step over the plans.

#ifndef DAEMON_CORE_PLANS_PLANS_H_
#define DAEMON_CORE_PLANS_PLANS_H_

#include <cstdint>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/plans/plan_table.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/plan_types.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Plans {
 public:
  // `core` outlives the manager.
  explicit Plans(Managers& core);

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  void MakePlan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                const PlanRequest& request);
  void Replan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
              const ReplanRequest& request);
  void ReleasePlan(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag, PlanId plan);
  Page<PlanView> ListPlans(const Caller& caller, const PageRequest& page) const;
  absl::StatusOr<PlanView> GetPlan(const Caller& caller, PlanId plan) const;

  const PlanTable& table() const { return plans_; }
  void RestoreLastNumber(uint64_t number) { plans_.RestoreLastNumber(number); }
  // Ends the plans of a session that is over. Their permits and bytes end with the session.
  void EndAllOf(StepContext& step, SessionId session);
  // Returns whether the record exists.
  bool WriteRecord(const RecordKey& key, ArchiveWriter& archive) const;
  void ReadRecord(const RecordKey& key, ArchiveReader& archive);
  // Called after the last record.
  void FinishRestoring() { restored_ = true; }

 private:
  friend class PlanTransaction;

  Managers& core_;
  PlanTable plans_;
  // The plans were restored and have not been compared with the present devices yet.
  bool restored_ = false;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PLANS_PLANS_H_
