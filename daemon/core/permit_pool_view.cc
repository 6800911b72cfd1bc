// What a pool shows, and the check of its books.

#include "absl/strings/str_cat.h"
#include "daemon/core/permit_pool.h"

namespace berth::core {

PoolView PermitPool::View() const {
  return PoolView{.name = config_.name,
                  .cap = config_.cap,
                  .ageing = config_.ageing,
                  .tenant_cap = config_.tenant_cap,
                  .out = out_,
                  .holders = permits_.size(),
                  .waiters = queue_.size(),
                  .peak = peak_,
                  .granted_total = granted_total_,
                  .refused_total = refused_total_};
}

uint64_t PermitPool::UnitsOf(SessionId session) const {
  uint64_t units = 0;
  for (auto it = by_holder_.lower_bound({session, ""}); it != by_holder_.end() && it->first.first == session;
       ++it) {
    units += permits_.at(it->second).view.units;
  }
  return units;
}

void PermitPool::AddPermits(PermitId after, uint64_t most, Wanted wanted,
                            std::vector<PermitView>* views) const {
  uint64_t added = 0;
  for (auto it = permits_.upper_bound(after); it != permits_.end() && added < most; ++it) {
    const Permit& permit = it->second;
    if (!wanted(permit.view.session)) continue;
    views->push_back(permit.view);
    views->back().depth = permit.acquisitions.size();
    ++added;
  }
}

void PermitPool::AddWaiters(uint64_t most, Wanted wanted, std::vector<WaiterView>* views) const {
  uint64_t position = 0;
  queue_.Walk([&](const Waiter& waiter) {
    ++position;
    if (views->size() >= most) return false;
    if (!wanted(waiter.asker.session)) return true;
    views->push_back(WaiterView{.pool = config_.name,
                                .units = waiter.what.units,
                                .position = position,
                                .session = waiter.asker.session,
                                .holder_key = waiter.what.holder_key,
                                .label = waiter.what.label,
                                .priority = waiter.what.priority,
                                .since = waiter.since,
                                .process = waiter.asker.process});
    return true;
  });
}

absl::Status PermitPool::CheckBooks() const {
  const auto broken = [this](absl::string_view what) {
    return absl::InternalError(absl::StrCat("pool ", config_.name, ": ", what));
  };
  uint64_t units = 0;
  uint64_t depth = 0;
  uint64_t adoptable = 0;
  absl::flat_hash_map<Tenant, uint64_t> by_tenant;
  for (const auto& [id, permit] : permits_) {
    units += permit.view.units;
    by_tenant[permit.tenant] += permit.view.units;
    depth += permit.acquisitions.size();
    adoptable += permit.view.adoptable ? 1 : 0;
    if (permit.acquisitions.empty()) return broken("a permit is out without an acquisition");
    for (const AcquisitionId acquisition : permit.acquisitions) {
      const auto found = acquisitions_.find(acquisition);
      if (found == acquisitions_.end() || found->second != id)
        return broken("an acquisition is of another permit");
    }
    const auto holder = by_holder_.find({permit.view.session, permit.view.holder_key});
    if (holder == by_holder_.end() || holder->second != id) return broken("a permit is not its holder's");
    if (permit.view.adoptable && !adoptable_.contains({permit.view.session, id}))
      return broken("an adoption is lost");
  }
  if (units != out_) return broken(absl::StrCat(out_, " out, but the permits sum to ", units));
  if (by_tenant != out_by_tenant_) return broken("what tenants have out is miscounted");
  if (depth != acquisitions_.size() || permits_.size() != by_holder_.size() ||
      adoptable != adoptable_.size()) {
    return broken("an index holds more than the permits");
  }
  if (queue_.AnyoneIdle([this](const Waiter& waiter) { return Judge(waiter); })) {
    return broken("a waiter waits that could be granted");
  }
  absl::Status waiting = absl::OkStatus();
  uint64_t waiters = 0;
  queue_.Walk([&](const Waiter& waiter) {
    ++waiters;
    const SessionId session = waiter.asker.session;
    if (by_holder_.contains({session, waiter.what.holder_key}))
      waiting = broken("a waiter waits that could nest");
    if (!CheckCaps(waiter.what).ok()) waiting = broken("a waiter waits that can never be granted");
    return true;
  });
  return waiters == queue_.size() ? waiting : broken("the order of the queue misses somebody");
}

}  // namespace berth::core
