// Tenants' quotas in a simulation.

#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {

void Simulation::ChangeQuotas() {
  TenantQuota& of_one = config_.quotas.users[1001];
  of_one.permits = 1 + Draw(6);
  config_.quotas.all.permits = 1 + Draw(8);
  if (Chance(30)) of_one.permits.reset();
  config_.quotas.all.waiters = 1 + Draw(8);
  config_.quotas.all.sessions = 2 + Draw(8);
  config_.quotas.all.blocks = 2 + Draw(8);
  config_.quotas.all.names = 1 + Draw(3);
  ++counts_.quotas;
  quotas_since_.push_back(config_.quotas);
  core_->SetQuotas(now_, config_.quotas, &effects_);
}

void Simulation::CheckQuotas() {
  // Between two checks too much may have changed.
  if (config_.quotas == QuotaTable() || options_.check_every > 8) return;
  enum Which { kPermits, kWaiters, kSessions, kBlocks, kNames };
  std::map<Tenant, std::array<uint64_t, 5>> has;
  for (const PermitView& permit : core_->ListPermits(Admin(), "")) {
    has[clients_.at(permit.session).tenant][kPermits] += permit.units;
  }
  // A gang waits in several pools under one number.
  std::set<uint64_t> numbers;
  for (const WaiterView& waiter : core_->ListWaiters(Admin(), "")) {
    if (numbers.insert(waiter.number).second) ++has[clients_.at(waiter.session).tenant][kWaiters];
  }
  for (const SessionView& session : core_->ListSessions(Admin())) ++has[session.tenant][kSessions];
  for (const BlockView& block : core_->ListBlocks(Admin())) {
    // Blocks that the daemon makes for itself have no owner.
    if (block.tenant == Tenant()) continue;
    ++has[block.tenant][kBlocks];
    if (!block.name.empty()) ++has[block.tenant][kNames];
  }
  for (const auto& [tenant, named_values] : has) {
    std::array<uint64_t, 5> most = {};
    for (const QuotaTable& table : quotas_since_) {
      const TenantQuota quota = table.Of(tenant);
      const std::array limits = {quota.permits, quota.waiters, quota.sessions, quota.blocks, quota.names};
      for (size_t i = 0; i < limits.size(); ++i) most[i] = std::max(most[i], limits[i].value_or(UINT64_MAX));
    }
    for (size_t i = 0; i < named_values.size(); ++i) {
      if (named_values[i] > most[i] && named_values[i] > had_before_[tenant][i] && !settling_) {
        Fail(absl::StrCat("tenant ", tenant.uid, " has ", named_values[i], " of named value ", i, ", quota ", most[i]));
      }
    }
  }
  had_before_ = std::move(has);
  quotas_since_ = {config_.quotas};
}

}  // namespace berth::core
