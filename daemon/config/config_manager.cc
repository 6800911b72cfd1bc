#include "daemon/config/config_manager.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "daemon/base/token_bucket.h"
#include "daemon/config/config_table.h"
#include "daemon/core/permits/pool_change.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

using service::ConfigChange;
using service::ConfigOrigin;
using service::ConfigValue;

// The pause after which a client reloads a file again that another process was writing.
constexpr absl::Duration kWriterPause = absl::Milliseconds(200);

const core::PoolConfig* FindPool(const std::vector<core::PoolConfig>& pools, const std::string& name) {
  const auto found = std::find_if(pools.begin(), pools.end(),
                                  [&](const core::PoolConfig& pool) { return pool.name == name; });
  return found == pools.end() ? nullptr : &*found;
}

const ConfigValue* Find(const std::vector<ConfigValue>& table, const std::string& key) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const ConfigValue& entry) { return entry.key == key; });
  return found == table.end() ? nullptr : &*found;
}

// Whether the key is a quota's; quotas come and go while the daemon runs.
bool IsQuota(absl::string_view key) { return absl::StartsWith(key, "tenants."); }

std::string TextOf(absl::Duration duration) {
  return duration == absl::InfiniteDuration() ? "never" : absl::FormatDuration(duration);
}

template <std::unsigned_integral Number>
std::string TextOf(Number number) {
  return absl::StrCat(number);
}
std::string TextOf(bool flag) { return flag ? "true" : "false"; }
std::string TextOf(Bytes bytes) { return FormatBytes(bytes); }
std::string TextOf(const std::string& text) { return text; }
std::string TextOf(const Rate& rate) { return absl::StrCat(std::llround(rate.per_second)); }

template <typename Value>
std::string TextOf(const Value& value, const char* /*unset*/) {
  return TextOf(value);
}
template <typename Value>
std::string TextOf(const std::optional<Value>& value, const char* unset) {
  return value.has_value() ? TextOf(*value) : unset;
}

template <typename Key>
std::string TextOf(const std::map<Key, uint64_t>& caps) {
  return absl::StrCat("{", absl::StrJoin(caps, ", ", absl::PairFormatter(" = ")), "}");
}

// Collects values, and adds the source of each.
class Table {
 public:
  explicit Table(const Settings& settings) : settings_(settings) {}

  void Add(std::string key, std::string value, bool while_running = false) {
    ConfigValue& entry = entries_.emplace_back(
        ConfigValue{.key = std::move(key), .value = std::move(value), .while_running = while_running});
    const auto origin = settings_.origins.find(entry.key);
    if (origin == settings_.origins.end()) return;
    entry.origin = origin->second.origin;
    entry.where = origin->second.where;
  }
  std::vector<ConfigValue> Build() { return std::move(entries_); }

 private:
  const Settings& settings_;
  std::vector<ConfigValue> entries_;
};

void AddPool(const core::PoolConfig& pool, Table* table) {
  const auto add = [&](absl::string_view key, std::string value) {
    table->Add(absl::StrCat("pools.", pool.name, ".", key), std::move(value), /*while_running=*/true);
  };
  add("cap", absl::StrCat(pool.cap));
  add("tenant_cap", pool.tenant_cap == 0 ? "none" : absl::StrCat(pool.tenant_cap));
  add("no_device_cap", pool.no_device_cap == 0 ? "none" : absl::StrCat(pool.no_device_cap));
  add("device_cap", pool.device_cap == 0 ? "none" : absl::StrCat(pool.device_cap));
  add("device_caps", TextOf(pool.device_caps));
  add("ageing", TextOf(pool.ageing));
  add("hold_warning", TextOf(pool.hold_warning));
  add("hold_limit", TextOf(pool.hold_limit));
  add("idle_warning", TextOf(pool.idle_warning));
  add("weights", TextOf(std::map<uint32_t, uint64_t>(pool.weights.begin(), pool.weights.end())));
}

// A missing value is shown as "none" in the entry for all tenants. Other entries omit it, because the entry for all
// tenants applies.
void AddQuota(const std::string& prefix, const core::TenantQuota& quota, bool everybody, Table* table) {
  core::ForEachQuota(quota, [&](absl::string_view key, const std::optional<uint64_t>& quota_value) {
    if (!quota_value.has_value() && !everybody) return;
    table->Add(absl::StrCat(prefix, key), quota_value.has_value() ? absl::StrCat(*quota_value) : "none",
               /*while_running=*/true);
  });
}

}  // namespace

std::vector<ConfigValue> ConfigManager::Describe() {
  MutexLock lock(&mu_);
  std::vector<ConfigValue> table = TableOf(settings_, make_(settings_));
  const std::vector<core::PoolView> pools =
      broker_.Read([](const core::Core& core) -> std::vector<core::PoolView> { return core.ListPools(); });
  for (const core::PoolView& pool : pools) {
    for (const ConfigValue& now : TableOf(settings_, pool.config)) {
      for (ConfigValue& entry : table) {
        if (entry.key != now.key || entry.value == now.value) continue;
        entry.value = now.value;
        entry.origin = ConfigOrigin::kOperator;
        entry.where = "berth permits set";
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
  for (ConfigValue& entry : table) {
    if (const auto waits = pending_.find(entry.key); waits != pending_.end()) entry.pending = waits->second;
  }
  return table;
}

absl::StatusOr<std::vector<ConfigChange>> ConfigManager::ReloadMarked(const std::optional<ConfigMark>& complete) {
  MutexLock lock(&mu_);
  // A reload also removes settings of operators, which then are in the ledger. Each start reads the file.
  BERTH_RETURN_IF_ERROR(broker_.CheckLedger());
  absl::StatusOr<Settings> read = read_(complete);
  if (absl::IsAborted(read.status())) return read.status();
  if (IsBeingWritten(read.status())) {
    return RefuseWithRetry(
        Reason::kInvalidField, kWriterPause, "{field} is unchanged: {value}; expected {limit}",
        {{"field", "the configuration"}, {"value", read.status().message()}, {"limit", "a complete file"}});
  }
  if (!read.ok()) {
    return Refuse(
        Reason::kInvalidField, "{field} is unchanged: {value}; expected {limit}",
        {{"field", "the configuration"},
         {"value", read.status().message()},
         {"limit", "a readable file without a mistake"}});
  }
  const core::Config from = make_(settings_), to = make_(*read);
  const std::vector<ConfigValue> before = TableOf(settings_, from), after = TableOf(*read, to);
  std::vector<ConfigChange> changes;
  pending_.clear();
  for (const ConfigValue& entry : after) {
    const ConfigValue* const was = Find(before, entry.key);
    if (was != nullptr && was->value == entry.value) continue;
    ConfigChange& change = changes.emplace_back(
        ConfigChange{.key = entry.key, .from = was == nullptr ? "" : was->value, .to = entry.value});
    if (entry.while_running && (was != nullptr || IsQuota(entry.key))) continue;
    change.why_not = was == nullptr ? "a new pool needs a new daemon" : "the change needs a new daemon";
    pending_[entry.key] = entry.value;
  }
  for (const ConfigValue& entry : before) {
    if (Find(after, entry.key) != nullptr) continue;
    if (IsQuota(entry.key)) {
      changes.push_back({.key = entry.key, .from = entry.value, .to = "none"});
      continue;
    }
    changes.push_back({.key = entry.key, .from = entry.value, .why_not = "the removal of a pool needs a new daemon"});
    pending_[entry.key] = "gone";
  }
  for (const core::PoolConfig& pool : from.pools) {
    if (const core::PoolConfig* const now = FindPool(to.pools, pool.name)) {
      BERTH_RETURN_IF_ERROR(ChangePool(pool, *now));
    }
  }
  if (settings_.device_budget != read->device_budget) ChangeDeviceBudget(to);
  if (settings_.core.quotas != read->core.quotas) ChangeQuotas(to.quotas);
  // The pools in effect from now on: the existing pools, with the settings that the file gives them.
  std::vector<core::PoolConfig> pools;
  for (const core::PoolConfig& pool : from.pools) {
    const core::PoolConfig* const now = FindPool(read->core.pools, pool.name);
    if (now != nullptr) {
      pools.push_back(*now);
    } else if (const core::PoolConfig* const stays = FindPool(settings_.core.pools, pool.name);
               stays != nullptr && FindPool(to.pools, pool.name) == nullptr) {
      pools.push_back(*stays);
    }
  }
  settings_.core.pools = std::move(pools);
  settings_.device_budget = read->device_budget;
  settings_.core.quotas = read->core.quotas;
  std::erase_if(settings_.origins, [&](const auto& origin) {
    const ConfigValue* const entry = Find(after, origin.first);
    return IsQuota(origin.first) || (entry != nullptr && entry->while_running);
  });
  for (const auto& [key, origin] : read->origins) {
    const ConfigValue* const entry = Find(before, key);
    if (IsQuota(key) || (entry != nullptr && entry->while_running)) settings_.origins[key] = origin;
  }
  return changes;
}

std::vector<ConfigChange> ConfigManager::ChangesSince(const Settings& earlier) {
  MutexLock lock(&mu_);
  const std::vector<ConfigValue> before = TableOf(earlier, make_(earlier)), now = TableOf(settings_, make_(settings_));
  std::vector<ConfigChange> changes;
  for (const ConfigValue& entry : now) {
    const ConfigValue* const was = Find(before, entry.key);
    if (was != nullptr && was->value == entry.value) continue;
    changes.push_back({.key = entry.key, .from = was == nullptr ? "none" : was->value, .to = entry.value});
  }
  for (const ConfigValue& entry : before) {
    if (Find(now, entry.key) == nullptr) changes.push_back({.key = entry.key, .from = entry.value, .to = "none"});
  }
  return changes;
}

absl::Status ConfigManager::ReopenLogs() {
  const absl::Status status = reopen_logs_();
  if (status.ok()) return status;
  const absl::Status refused =
      Refuse(Reason::kInvalidField, "cannot reopen {field}: {value}; {limit}",
             {{"field", "a log"}, {"value", status.message()}, {"limit", "the open file stays in use"}});
  spdlog::error("reload: {}", std::string(refused.message()));
  return refused;
}

absl::Status ConfigManager::ChangePool(const core::PoolConfig& from, const core::PoolConfig& to) {
  core::PoolChange change = core::Difference(from, to);
  change.configured = true;
  absl::Status status;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    status = core.SetPool(now, from.name, change, effects).status();
  });
  return status;
}

void ConfigManager::ChangeQuotas(const core::QuotaTable& to) {
  broker_.Step(
      [&](core::Core& core, absl::Time now, core::Effects* effects) { core.SetQuotas(now, to, effects); });
  set_quotas_(to);
}

void ConfigManager::ChangeDeviceBudget(const core::Config& to) {
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    for (const core::DeviceConfig& device : to.devices) {
      core.ConfigureBudget(now, device.ordinal, device.budget, effects);
    }
  });
}

// ---- config_table.h ------------------------------------------------------------------------------------------

std::vector<ConfigValue> TableOf(const Settings& settings, const core::PoolConfig& pool) {
  Table table(settings);
  AddPool(pool, &table);
  return table.Build();
}

std::vector<ConfigValue> TableOf(const Settings& settings, const core::Config& config) {
  Table table(settings);
  for (const core::PoolConfig& pool : config.pools) AddPool(pool, &table);
  AddQuota("tenants.", config.quotas.all, /*everybody=*/true, &table);
  for (const auto& [uid, quota] : config.quotas.users) {
    AddQuota(absl::StrCat("tenants.", uid, "."), quota, /*everybody=*/false, &table);
  }
  for (const auto& [uid, quota] : config.quotas.containers) {
    AddQuota(absl::StrCat("tenants.", uid, ".containers."), quota, /*everybody=*/false, &table);
  }
  Settings shown = settings;
  for (const Setting& setting : AllSettings(&shown)) {
    std::string text = std::visit([&](const auto* value) { return TextOf(*value, setting.unset); }, setting.value);
    table.Add(setting.key, std::move(text), setting.while_running);
  }
  return table.Build();
}

}  // namespace berth
