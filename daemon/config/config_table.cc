#include "daemon/config/config_table.h"

#include <cmath>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "daemon/service/limits/token_bucket.h"

namespace berth {
namespace {

using service::ConfigValue;

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
std::string TextOf(const service::Rate& rate) { return absl::StrCat(std::llround(rate.per_second)); }

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
