#include "daemon/core/plans/plan_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {

const Plan& PlanTable::Add(std::shared_ptr<const PlanLayout> layout, const Claimant& claimant) {
  const Plan* const entry =
      Insert(Plan{.number = ++last_number_, .layout = std::move(layout), .claimant = claimant});
  BERTH_INVARIANT(entry != nullptr);
  journal_->Touch(RecordKind::kCounters);
  Mark(entry->id());
  return *entry;
}

bool PlanTable::Restore(Plan plan) {
  return plan.number != 0 && plan.number <= last_number_ && Insert(std::move(plan)) != nullptr;
}

const Plan* PlanTable::Insert(Plan&& plan) {
  // Most plans have the greatest number.
  const size_t before = entries_.size();
  const auto at = entries_.emplace_hint(entries_.end(), plan.number, nullptr);
  const bool fresh = entries_.size() != before;
  if (!fresh) return nullptr;
  at->second = std::make_unique<Plan>(std::move(plan));
  Plan& entry = *at->second;
  places_.Take(entry.claimant);
  auto& own = by_session_[entry.session()];
  own.insert(own.end(), entry.number);
  return by_id_.emplace(entry.id(), &entry).second ? &entry : nullptr;
}

void PlanTable::Erase(const Plan& plan) {
  // The number lives in the record that is erased.
  const uint64_t number = plan.number;
  Mark(plan.id());
  places_.Give(plan.claimant);
  by_id_.erase(plan.id());
  const auto of_session = by_session_.find(plan.session());
  of_session->second.erase(number);
  if (of_session->second.empty()) by_session_.erase(of_session);
  entries_.erase(number);
}

const Plan* PlanTable::Find(PlanId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Plan& PlanTable::Change(const Plan& plan) {
  Mark(plan.id());
  return *by_id_.at(plan.id());
}

std::vector<const Plan*> PlanTable::OfSession(SessionId session) const {
  std::vector<const Plan*> rows;
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return rows;
  for (const uint64_t number : found->second) rows.push_back(entries_.at(number).get());
  return rows;
}

void PlanTable::ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Plan&)> visit) const {
  for (auto it = entries_.upper_bound(number); it != entries_.end() && visit(*it->second); ++it) {
  }
}

absl::Status PlanTable::CheckInvariants() const {
  SharedCount places("plans", SharedCount::kUnlimited, SharedCount::kUnlimited);
  for (const auto& [number, entry] : entries_) places.Take(entry->claimant);
  if (!(places == places_)) return absl::InternalError("the plans of a user are miscounted");
  size_t listed = 0;
  for (const auto& [session, numbers] : by_session_) listed += numbers.size();
  if (by_id_.size() != entries_.size() || listed != entries_.size()) {
    return absl::InternalError("a plan and its indexes differ");
  }
  for (const auto& [number, entry] : entries_) {
    const PlanLayout& layout = *entry->layout;
    const auto broken = [&](absl::string_view what) {
      return absl::InternalError(absl::StrCat("plan ", layout.id.value(), ": ", what));
    };
    std::vector<uint64_t> units(layout.devices.size(), 0);
    uint64_t at = 0;
    for (const Tile& tile : layout.tiles) {
      if (tile.device >= units.size()) return broken("a tile has no device");
      if (tile.begin != at || tile.end <= tile.begin) return broken("its tiles are not contiguous");
      units[tile.device] += tile.units();
      at = tile.end;
    }
    if (at != layout.asked.units) return broken("its tiles do not cover its units");
    for (size_t i = 0; i < units.size(); ++i) {
      if (units[i] != layout.devices[i].units) return broken("a device's share differs from its tiles");
      if ((units[i] == 0) != (layout.devices[i].left != PlanDevice::Left::kNone)) {
        return broken("a device without units has no reason, or a device with units has one");
      }
      if (units[i] == 0 && layout.devices[i].permit)
        return broken("it has a permit for a device without units");
    }
  }
  return absl::OkStatus();
}

}  // namespace berth::core
