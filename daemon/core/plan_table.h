// PlanTable: the plans that sessions hold. Rows and indexes; what a plan has besides, permits and reserved bytes, is
// the core's business. Each is a row that outlives the broker. Thread-compatible.

#ifndef DAEMON_CORE_PLAN_TABLE_H_
#define DAEMON_CORE_PLAN_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "daemon/core/journal.h"
#include "daemon/core/plan_types.h"

namespace berth::core {

struct Plan {
  // Rises with every plan: the order of the list.
  uint64_t number = 0;
  std::shared_ptr<const PlanLayout> layout;
  PlanStale stale = PlanStale::kCurrent;
  uint32_t stale_device = 0;
  absl::Time stale_since;

  PlanId id() const { return layout->id; }
  SessionId session() const { return layout->session; }
};

template <typename Archive>
void Fields(Archive& archive, Plan& value) {
  archive(value.number, value.layout, value.stale, value.stale_device, value.stale_since);
}

class PlanTable {
 public:
  // `journal` outlives the table.
  explicit PlanTable(Journal* journal) : journal_(journal) {}

  // Rows stay where they are until erased. Requires: an id that is not in use.
  const Plan& Add(std::shared_ptr<const PlanLayout> layout);
  void Erase(const Plan& plan);
  // Returns null for an unknown id.
  const Plan* Find(PlanId id) const;
  // To be changed.
  Plan& Change(const Plan& plan);
  std::vector<const Plan*> OfSession(SessionId session) const;
  uint64_t CountOf(SessionId session) const {
    const auto found = by_session_.find(session);
    return found == by_session_.end() ? 0 : found->second.size();
  }
  // Those with a greater number, oldest first, until `visit` returns false.
  void ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Plan&)> visit) const;
  uint64_t size() const { return rows_.size(); }
  // OK, or what is broken: that each plan's tiles cover its units, one after the other, and nobody has others than
  // its share.
  absl::Status CheckBooks() const;

  // ---- What outlives the broker ---------------------------------------------------------------------------

  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  // With its own number. Returns whether there was none of that id or number, and the number is one that was given.
  bool Restore(Plan plan);

 private:
  // Returns null where there was one of that id or number.
  const Plan* Insert(Plan&& plan);
  void Note(PlanId id) { journal_->Touch(RowKind::kPlan, id.value()); }

  Journal* const journal_;
  uint64_t last_number_ = 0;
  absl::btree_map<uint64_t, std::unique_ptr<Plan>> rows_;
  absl::flat_hash_map<PlanId, Plan*> by_id_;
  absl::flat_hash_map<SessionId, absl::btree_set<uint64_t>> by_session_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PLAN_TABLE_H_
