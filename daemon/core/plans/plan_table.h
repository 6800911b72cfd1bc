// PlanTable: the plans that sessions hold. Records and indexes only; the core manages a plan's permits and reserved
// bytes. Each plan is a ledger record, which outlives the broker. Thread-compatible.

#ifndef DAEMON_CORE_PLANS_PLAN_TABLE_H_
#define DAEMON_CORE_PLANS_PLAN_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include <berth/ids.h>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/plan_types.h"
#include "daemon/core/types/shared_count.h"

namespace berth::core {

struct Plan {
  // Rises with every plan: the order of the list.
  uint64_t number = 0;
  std::shared_ptr<const PlanLayout> layout;
  PlanStale stale = PlanStale::kCurrent;
  uint32_t stale_device = 0;
  absl::Time stale_since;
  // Claimant of the plan's session. Not persisted.
  Claimant claimant;

  PlanId id() const { return layout->id; }
  SessionId session() const { return layout->session; }
};

template <typename Archive>
void Fields(Archive& archive, Plan& value) {
  archive(value.number, value.layout, value.stale, value.stale_device, value.stale_since);
}

class PlanTable {
 public:
  // `journal` outlives the table. All users together may have `limit` plans, and operators `reserve` more.
  explicit PlanTable(Journal* journal, uint64_t limit = SharedCount::kUnlimited,
                     uint64_t reserve = SharedCount::kUnlimited)
      : journal_(journal), places_("plans", limit, reserve) {}

  // Adds a plan. Its address is stable until it is erased. Requires: an id that is not in use.
  const Plan& Add(std::shared_ptr<const PlanLayout> layout, const Claimant& claimant);
  void Erase(const Plan& plan);
  // Returns null for an unknown id.
  const Plan* Find(PlanId id) const;
  // Returns the plan for modification.
  Plan& Change(const Plan& plan);
  std::vector<const Plan*> OfSession(SessionId session) const;
  uint64_t CountOf(SessionId session) const {
    const auto found = by_session_.find(session);
    return found == by_session_.end() ? 0 : found->second.size();
  }
  // Visits the plans with a number above `number`, oldest first, until `visit` returns false.
  void ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Plan&)> visit) const;
  uint64_t size() const { return entries_.size(); }
  const SharedCount& places() const { return places_; }
  // Returns OK, or the violated invariant: each plan's tiles cover its units without gaps, and each device has exactly
  // its units.
  absl::Status CheckInvariants() const;

  // ---- Persistence across broker restarts ------------------------------------------------------------------

  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  // Restores a plan with its own number. Returns whether its id and number were unused, and the number was assigned
  // before.
  bool Restore(Plan plan);

 private:
  // Returns null if the id or number was in use.
  const Plan* Insert(Plan&& plan);
  void Mark(PlanId id) { journal_->Touch(RecordKind::kPlan, id.value()); }

  Journal* const journal_;
  SharedCount places_;
  uint64_t last_number_ = 0;
  absl::btree_map<uint64_t, std::unique_ptr<Plan>> entries_;
  absl::flat_hash_map<PlanId, Plan*> by_id_;
  absl::flat_hash_map<SessionId, absl::btree_set<uint64_t>> by_session_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PLANS_PLAN_TABLE_H_
