// Lists the operators' settings for the settings file, which outlives a boot.

#include <utility>

#include "daemon/core/managers.h"
#include "daemon/core/permits/pool_change.h"

namespace berth::core {

OperatorSettings Managers::ListOperatorSettings() const {
  OperatorSettings settings;
  for (const auto& [name, pool] : permits.pools()) {
    PoolChange change = pool.ChangeByHand();
    if (!IsEmpty(change)) settings.pools.emplace(name, std::move(change));
  }
  for (const auto& [ordinal, device] : devices.all()) {
    OperatorSettings::Device set = {.uuid = device.config.uuid, .drain_reason = device.drain_reason};
    if (device.account.limit_by_hand()) set.budget = device.account.limit();
    if (!set.drain_reason.empty() || set.budget.has_value()) settings.devices.push_back(std::move(set));
  }
  for (const auto& [account, holdings] : budgets.tenants()) {
    for (const auto& [ordinal, budget] : holdings.budgets) {
      if (!budget.limit_by_hand()) continue;
      settings.tenant_budgets.push_back(
          {.uuid = devices.At(ordinal).config.uuid, .account = account, .limit = *budget.limit()});
    }
  }
  return settings;
}

}  // namespace berth::core
