#include "daemon/config_table.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "daemon/broker/history_keeper.h"
#include "daemon/memory_watch.h"
#include "daemon/service/attach_front.h"
#include "daemon/service/audit_log.h"
#include "daemon/service/connection_table.h"

namespace berth {
namespace {

using service::ConfigValue;

std::string TextOf(absl::Duration duration) {
  return duration == absl::InfiniteDuration() ? "never" : absl::FormatDuration(duration);
}

std::string TextOf(const std::optional<Bytes>& bytes, absl::string_view without) {
  return bytes.has_value() ? FormatBytes(*bytes) : std::string(without);
}

std::string TextOf(const service::Rate& rate) { return absl::StrCat(std::llround(rate.per_second)); }

template <typename Key>
std::string TextOf(const std::map<Key, uint64_t>& caps) {
  return absl::StrCat("{", absl::StrJoin(caps, ", ", absl::PairFormatter(" = ")), "}");
}

// Takes rows, and adds where each came from.
class Table {
 public:
  explicit Table(const Settings& settings) : settings_(settings) {}

  void Add(std::string key, std::string value, bool while_running = false) {
    ConfigValue& row = rows_.emplace_back(
        ConfigValue{.key = std::move(key), .value = std::move(value), .while_running = while_running});
    const auto origin = settings_.origins.find(row.key);
    if (origin == settings_.origins.end()) return;
    row.origin = origin->second.origin;
    row.where = origin->second.where;
  }
  std::vector<ConfigValue> Build() { return std::move(rows_); }

 private:
  const Settings& settings_;
  std::vector<ConfigValue> rows_;
};

void AddPool(const core::PoolConfig& pool, Table* table) {
  const auto add = [&](absl::string_view key, std::string value) {
    table->Add(absl::StrCat("pools.", pool.name, ".", key), std::move(value), /*while_running=*/true);
  };
  add("cap", absl::StrCat(pool.cap));
  add("tenant_cap", pool.tenant_cap == 0 ? "none" : absl::StrCat(pool.tenant_cap));
  add("device_cap", pool.device_cap == 0 ? "none" : absl::StrCat(pool.device_cap));
  add("device_caps", TextOf(pool.device_caps));
  add("ageing", TextOf(pool.ageing));
  add("hold_warning", TextOf(pool.hold_warning));
  add("hold_limit", TextOf(pool.hold_limit));
  add("idle_warning", TextOf(pool.idle_warning));
  add("weights", TextOf(std::map<uint32_t, uint64_t>(pool.weights.begin(), pool.weights.end())));
}

// What everybody's row leaves out is shown as bound by nothing; what another's leaves out is everybody's.
void AddQuota(const std::string& prefix, const core::TenantQuota& quota, bool everybody, Table* table) {
  core::ForEachFigure(quota, [&](absl::string_view key, const std::optional<uint64_t>& figure) {
    if (!figure.has_value() && !everybody) return;
    table->Add(absl::StrCat(prefix, key), figure.has_value() ? absl::StrCat(*figure) : "none", /*while_running=*/true);
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
  const service::ConnectionLimits connections = MakeConnectionLimits(settings);
  const service::AcceptRates accepts = MakeAcceptRates(settings);
  const service::AttachLimits attach;
  table.Add("memory.device_budget", TextOf(settings.device_budget, "min(free, total / 2)"),
            /*while_running=*/true);
  table.Add("memory.tenant_budget", TextOf(settings.tenant_budget, "none"));
  table.Add("memory.session_budget", TextOf(settings.session_budget, "none"));
  table.Add("memory.warm_blocks", absl::StrCat(config.warm_blocks_per_size));
  table.Add("memory.warm_limit", FormatBytes(config.warm_limit));
  table.Add("memory.cuda_ipc", settings.cuda_ipc.value_or(true) ? "true" : "false");
  table.Add("memory.permit_reserve", FormatBytes(settings.permit_reserve.value_or(Bytes())));
  table.Add("memory.context", TextOf(settings.context, "as measured on CUDA, 600MiB until then; nothing on the host"));
  table.Add("workers.call_deadline", TextOf(config.calls.base));
  table.Add("workers.call_deadline_per_gib", TextOf(config.calls.per_gib));
  table.Add("workers.context_idle", TextOf(config.context_idle));
  table.Add("log.file", settings.log_file.value_or("none"));
  table.Add("log.fences", config.log_fences ? "true" : "false");
  table.Add("log.audit_folder", settings.audit_folder.value_or("the folder of --state"));
  table.Add("log.audit_size", FormatBytes(settings.audit_size.value_or(service::kAuditSize)));
  table.Add("history.size", FormatBytes(settings.history_size.value_or(HistoryKeeper::kSize)));
  table.Add("history.rows", absl::StrCat(settings.history_rows.value_or(HistoryKeeper::kRows)));
  table.Add("modules.total", FormatBytes(config.limits.modules.total));
  table.Add("modules.tenant", FormatBytes(config.limits.modules.tenant));
  table.Add("modules.compile_patience", TextOf(config.limits.modules.compile_patience));
  table.Add("limits.connections", absl::StrCat(connections.total));
  table.Add("limits.connections_per_uid", absl::StrCat(connections.per_uid));
  table.Add("limits.calls_per_second", TextOf(connections.calls));
  table.Add("limits.calls_per_second_per_uid", TextOf(connections.calls_per_uid));
  table.Add("limits.resets_per_second", TextOf(connections.resets));
  table.Add("limits.resets_per_second_per_uid", TextOf(connections.resets_per_uid));
  table.Add("limits.accepts_per_second", TextOf(accepts.total));
  table.Add("limits.accepts_per_second_per_uid", TextOf(accepts.per_uid));
  table.Add("limits.broker_memory", FormatBytes(settings.broker_memory.value_or(kBrokerMemory)));
  table.Add("limits.attach_fds_per_uid",
            absl::StrCat(settings.attach_fds_per_uid.value_or(attach.fds_per_uid)));
  table.Add("limits.imports_per_process", absl::StrCat(config.limits.imports_per_channel));
  table.Add("limits.streams_per_device", absl::StrCat(config.limits.fences.streams_per_device));
  return table.Build();
}

}  // namespace berth
