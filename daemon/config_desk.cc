#include "daemon/config_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/config_table.h"
#include "daemon/core/pool_change.h"

namespace berth {
namespace {

using service::ConfigChange;
using service::ConfigOrigin;
using service::ConfigValue;

const core::PoolConfig* FindPool(const std::vector<core::PoolConfig>& pools, const std::string& name) {
  const auto found = std::find_if(pools.begin(), pools.end(),
                                  [&](const core::PoolConfig& pool) { return pool.name == name; });
  return found == pools.end() ? nullptr : &*found;
}

const ConfigValue* Find(const std::vector<ConfigValue>& table, const std::string& key) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const ConfigValue& row) { return row.key == key; });
  return found == table.end() ? nullptr : &*found;
}

// Its rows come and go while the daemon runs.
bool IsQuota(absl::string_view key) { return absl::StartsWith(key, "tenants."); }

}  // namespace

std::vector<ConfigValue> ConfigDesk::Describe() {
  MutexLock lock(&mu_);
  std::vector<ConfigValue> table = TableOf(settings_, make_(settings_));
  const std::vector<core::PoolView> pools =
      broker_.Read([](const core::Core& core) -> std::vector<core::PoolView> { return core.ListPools(); });
  for (const core::PoolView& pool : pools) {
    for (const ConfigValue& now : TableOf(settings_, pool.config)) {
      for (ConfigValue& row : table) {
        if (row.key != now.key || row.value == now.value) continue;
        row.value = now.value;
        row.origin = ConfigOrigin::kOperator;
        row.where = "berth permits set";
      }
    }
  }
  const core::Config config = make_(settings_);
  const std::vector<core::DeviceView> devices = broker_.Read(
      [](const core::Core& core) -> std::vector<core::DeviceView> { return core.ListDevices(); });
  for (const core::DeviceView& device : devices) {
    for (const core::DeviceConfig& configured : config.devices) {
      if (configured.ordinal != device.ordinal || configured.budget == device.budget) continue;
      table.push_back({.key = absl::StrCat("memory.device_budget (device ", device.ordinal, ")"),
                       .value = FormatBytes(device.budget),
                       .origin = ConfigOrigin::kOperator,
                       .where = "berth budget set",
                       .while_running = true});
    }
  }
  for (ConfigValue& row : table) {
    if (const auto waits = pending_.find(row.key); waits != pending_.end()) row.pending = waits->second;
  }
  return table;
}

absl::StatusOr<std::vector<ConfigChange>> ConfigDesk::Reload() {
  MutexLock lock(&mu_);
  absl::StatusOr<Settings> read = read_();
  if (!read.ok()) {
    return Refuse(Reason::kInvalidField, "{field} stays as it is: {value}; expected {limit}",
                  {{"field", "the configuration"},
                   {"value", read.status().message()},
                   {"limit", "a file without a mistake"}});
  }
  const core::Config from = make_(settings_), to = make_(*read);
  const std::vector<ConfigValue> before = TableOf(settings_, from), after = TableOf(*read, to);
  std::vector<ConfigChange> changes;
  pending_.clear();
  for (const ConfigValue& row : after) {
    const ConfigValue* const was = Find(before, row.key);
    if (was != nullptr && was->value == row.value) continue;
    ConfigChange& change = changes.emplace_back(
        ConfigChange{.key = row.key, .from = was == nullptr ? "" : was->value, .to = row.value});
    if (row.while_running && (was != nullptr || IsQuota(row.key))) continue;
    change.why_not = was == nullptr ? "a pool comes with a new daemon" : "it is changed by a new daemon";
    pending_[row.key] = row.value;
  }
  for (const ConfigValue& row : before) {
    if (Find(after, row.key) != nullptr) continue;
    if (IsQuota(row.key)) {
      changes.push_back({.key = row.key, .from = row.value, .to = "none"});
      continue;
    }
    changes.push_back({.key = row.key, .from = row.value, .why_not = "a pool goes with the daemon"});
    pending_[row.key] = "gone";
  }
  for (const core::PoolConfig& pool : from.pools) {
    if (const core::PoolConfig* const now = FindPool(to.pools, pool.name)) {
      BERTH_RETURN_IF_ERROR(ChangePool(pool, *now));
    }
  }
  if (settings_.device_budget != read->device_budget) ChangeDeviceBudget(to);
  if (settings_.quotas != read->quotas) ChangeQuotas(to.quotas);
  // What runs from now on: the pools that there are, as the file has them, and what else can change.
  std::vector<core::PoolConfig> pools;
  for (const core::PoolConfig& pool : from.pools) {
    const core::PoolConfig* const now = FindPool(read->pools, pool.name);
    if (now != nullptr) {
      pools.push_back(*now);
    } else if (const core::PoolConfig* const stays = FindPool(settings_.pools, pool.name);
               stays != nullptr && FindPool(to.pools, pool.name) == nullptr) {
      pools.push_back(*stays);
    }
  }
  settings_.pools = std::move(pools);
  settings_.device_budget = read->device_budget;
  settings_.quotas = read->quotas;
  std::erase_if(settings_.origins, [&](const auto& origin) {
    const ConfigValue* const row = Find(after, origin.first);
    return IsQuota(origin.first) || (row != nullptr && row->while_running);
  });
  for (const auto& [key, origin] : read->origins) {
    const ConfigValue* const row = Find(before, key);
    if (IsQuota(key) || (row != nullptr && row->while_running)) settings_.origins[key] = origin;
  }
  return changes;
}

absl::Status ConfigDesk::ChangePool(const core::PoolConfig& from, const core::PoolConfig& to) {
  core::PoolChange change = core::Difference(from, to);
  change.configured = true;
  absl::Status status;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    status = core.SetPool(now, from.name, change, effects).status();
  });
  return status;
}

void ConfigDesk::ChangeQuotas(const core::QuotaTable& to) {
  broker_.Step(
      [&](core::Core& core, absl::Time now, core::Effects* effects) { core.SetQuotas(now, to, effects); });
  set_quotas_(to);
}

void ConfigDesk::ChangeDeviceBudget(const core::Config& to) {
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    for (const core::DeviceConfig& device : to.devices) {
      core.ConfigureBudget(now, device.ordinal, device.budget, effects);
    }
  });
}

}  // namespace berth
