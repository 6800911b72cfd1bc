// The virtual clocks of a queue's tenants: charges of grants, and charges of untaken grants that are taken back.

#include <optional>
#include <utility>

#include "daemon/core/permits/wait_queue.h"

namespace berth::core {

ClockCharge WaitQueue::Charge(const Account& tenant, uint64_t units) {
  const double cost = CostOf(tenant, units);
  if (const auto found = tenants_.find(tenant); found != tenants_.end()) {
    TenantLines& lines = found->second;
    CatchUp(lines);
    Advance(lines.clock.value());
    lines.clock.Add(cost);
    RecordTenant(tenant);
  } else {
    OwnClock own = clock_.Enter(tenant);
    Advance(own.value());
    own.Add(cost);
    if (clock_.Leave(tenant, std::move(own))) {
      RecordTenant(tenant);
    } else {
      // A grant without cost leaves the tenant at the common clock.
      ForgetTenant(tenant);
    }
  }
  return {.cost = cost, .number = clock_.charges()};
}

void WaitQueue::TakeBack(const Account& tenant, const ClockCharge& charge) {
  if (const auto found = tenants_.find(tenant); found != tenants_.end()) {
    found->second.clock.TakeBack(charge);
    return RecordTenant(tenant);
  }
  // A tenant that is not remembered starts at the common clock in any case.
  const std::optional<bool> remembered = clock_.TakeBack(tenant, charge);
  if (!remembered.has_value()) return;
  if (*remembered) {
    RecordTenant(tenant);
  } else {
    ForgetTenant(tenant);
  }
}

void WaitQueue::RecordUntaken(const Account& tenant) {
  ++untaken_;
  left_untaken_.insert(tenant);
}

void WaitQueue::RecordTaken() {
  untaken_ = 0;
  left_untaken_.clear();
}

void WaitQueue::Advance(double start) {
  for (const Account& tenant : clock_.Advance(start)) ForgetTenant(tenant);
}

}  // namespace berth::core
