#include "daemon/core/plan_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/invariant.h"

namespace berth::core {

const Plan& PlanTable::Add(std::shared_ptr<const PlanLayout> layout) {
  const Plan* const row = Insert(Plan{.number = ++last_number_, .layout = std::move(layout)});
  BERTH_INVARIANT(row != nullptr);
  journal_->Touch(RowKind::kCounters);
  Note(row->id());
  return *row;
}

bool PlanTable::Restore(Plan plan) {
  return plan.number != 0 && plan.number <= last_number_ && Insert(std::move(plan)) != nullptr;
}

const Plan* PlanTable::Insert(Plan&& plan) {
  // Most come with the greatest number.
  const size_t before = rows_.size();
  const auto at = rows_.emplace_hint(rows_.end(), plan.number, nullptr);
  const bool fresh = rows_.size() != before;
  if (fresh) at->second = std::make_unique<Plan>(std::move(plan));
  Plan& row = *at->second;
  auto& own = by_session_[row.session()];
  own.insert(own.end(), row.number);
  return by_id_.emplace(row.id(), &row).second && fresh ? &row : nullptr;
}

void PlanTable::Erase(const Plan& plan) {
  // It goes with its row.
  const uint64_t number = plan.number;
  Note(plan.id());
  by_id_.erase(plan.id());
  const auto of_session = by_session_.find(plan.session());
  of_session->second.erase(number);
  if (of_session->second.empty()) by_session_.erase(of_session);
  rows_.erase(number);
}

const Plan* PlanTable::Find(PlanId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Plan& PlanTable::Change(const Plan& plan) {
  Note(plan.id());
  return *by_id_.at(plan.id());
}

std::vector<const Plan*> PlanTable::OfSession(SessionId session) const {
  std::vector<const Plan*> rows;
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return rows;
  for (const uint64_t number : found->second) rows.push_back(rows_.at(number).get());
  return rows;
}

void PlanTable::ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Plan&)> visit) const {
  for (auto it = rows_.upper_bound(number); it != rows_.end() && visit(*it->second); ++it) {
  }
}

absl::Status PlanTable::CheckBooks() const {
  size_t listed = 0;
  for (const auto& [session, numbers] : by_session_) listed += numbers.size();
  if (by_id_.size() != rows_.size() || listed != rows_.size()) {
    return absl::InternalError("a plan's row and its indexes differ");
  }
  for (const auto& [number, row] : rows_) {
    const PlanLayout& layout = *row->layout;
    const auto broken = [&](absl::string_view what) {
      return absl::InternalError(absl::StrCat("plan ", layout.id.value(), ": ", what));
    };
    std::vector<uint64_t> units(layout.devices.size(), 0);
    uint64_t at = 0;
    for (const Tile& tile : layout.tiles) {
      if (tile.device >= units.size()) return broken("a tile is of no device");
      if (tile.begin != at || tile.end <= tile.begin) return broken("its tiles are not one after the other");
      units[tile.device] += tile.units();
      at = tile.end;
    }
    if (at != layout.asked.units) return broken("its tiles do not cover its units");
    for (size_t i = 0; i < units.size(); ++i) {
      if (units[i] != layout.devices[i].units) return broken("a device's share is not its tiles'");
      if ((units[i] == 0) != (layout.devices[i].left != PlanDevice::Left::kNone)) {
        return broken("why a device has no units is not said, or is said of one that has some");
      }
      if (units[i] == 0 && layout.devices[i].permit)
        return broken("it has a permit for a device without units");
    }
  }
  return absl::OkStatus();
}

}  // namespace berth::core
