#include "daemon/core_config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/concurrency_limit.h"
#include "common/device_score.h"
#include "common/label.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/toml.h"
#include "common/unique_fd.h"
#include "daemon/ledger/history_store.h"
#include "daemon/options.h"

namespace berth {
namespace {

// One file's tables, read with errors that say where.
class SettingsReader {
 public:
  SettingsReader(const std::string& path, const toml::table& root) : path_(path), root_(root) {}

  absl::StatusOr<Settings> Read() {
    Settings settings;
    BERTH_RETURN_IF_ERROR(
        CheckKeys(root_, "", {"pools", "tenants", "memory", "workers", "log", "history", "modules", "limits"}));
    BERTH_RETURN_IF_ERROR(ReadPools(&settings));
    BERTH_RETURN_IF_ERROR(ReadTenants(&settings.quotas));
    BERTH_ASSIGN_OR_RETURN(const toml::table* const memory, Table("memory"));
    if (memory != nullptr) {
      BERTH_RETURN_IF_ERROR(CheckKeys(*memory, "memory.",
                                      {"device_budget", "tenant_budget", "session_budget", "warm_blocks",
                                       "warm_limit", "cuda_ipc", "permit_reserve", "context"}));
      BERTH_RETURN_IF_ERROR(ReadBytes(*memory, "memory.", "permit_reserve", &settings.permit_reserve));
      BERTH_RETURN_IF_ERROR(ReadBytes(*memory, "memory.", "context", &settings.context));
      BERTH_RETURN_IF_ERROR(ReadBytes(*memory, "memory.", "device_budget", &settings.device_budget));
      BERTH_RETURN_IF_ERROR(ReadBytes(*memory, "memory.", "tenant_budget", &settings.tenant_budget));
      BERTH_RETURN_IF_ERROR(ReadBytes(*memory, "memory.", "session_budget", &settings.session_budget));
      BERTH_RETURN_IF_ERROR(ReadNumber(*memory, "memory.", "warm_blocks", 0, &settings.warm_blocks));
      BERTH_RETURN_IF_ERROR(ReadBytes(*memory, "memory.", "warm_limit", &settings.warm_limit));
      BERTH_RETURN_IF_ERROR(ReadFlag(*memory, "memory.", "cuda_ipc", &settings.cuda_ipc));
    }
    BERTH_ASSIGN_OR_RETURN(const toml::table* const workers, Table("workers"));
    if (workers != nullptr) {
      BERTH_RETURN_IF_ERROR(
          CheckKeys(*workers, "workers.", {"call_deadline", "call_deadline_per_gib", "context_idle"}));
      BERTH_RETURN_IF_ERROR(
          ReadDuration(*workers, "workers.", "call_deadline", kLeastCallDeadline, &settings.call_deadline));
      BERTH_RETURN_IF_ERROR(ReadDuration(*workers, "workers.", "call_deadline_per_gib", absl::ZeroDuration(),
                                         &settings.call_deadline_per_gib));
      BERTH_RETURN_IF_ERROR(
          ReadDuration(*workers, "workers.", "context_idle", absl::ZeroDuration(), &settings.context_idle));
    }
    BERTH_ASSIGN_OR_RETURN(const toml::table* const log, Table("log"));
    if (log != nullptr) {
      BERTH_RETURN_IF_ERROR(CheckKeys(*log, "log.", {"file", "fences", "audit_folder", "audit_size"}));
      BERTH_RETURN_IF_ERROR(ReadPath(*log, "log.", "file", &settings.log_file));
      BERTH_RETURN_IF_ERROR(ReadFlag(*log, "log.", "fences", &settings.log_fences));
      BERTH_RETURN_IF_ERROR(ReadPath(*log, "log.", "audit_folder", &settings.audit_folder));
      BERTH_RETURN_IF_ERROR(ReadBytes(*log, "log.", "audit_size", &settings.audit_size));
    }
    BERTH_RETURN_IF_ERROR(ReadHistory(&settings));
    BERTH_ASSIGN_OR_RETURN(const toml::table* const modules, Table("modules"));
    if (modules != nullptr) {
      BERTH_RETURN_IF_ERROR(CheckKeys(*modules, "modules.", {"total", "tenant", "compile_patience"}));
      BERTH_RETURN_IF_ERROR(ReadBytes(*modules, "modules.", "total", &settings.module_bytes));
      BERTH_RETURN_IF_ERROR(ReadBytes(*modules, "modules.", "tenant", &settings.module_bytes_per_tenant));
      BERTH_RETURN_IF_ERROR(ReadDuration(*modules, "modules.", "compile_patience", absl::Seconds(1),
                                         &settings.compile_patience));
    }
    BERTH_ASSIGN_OR_RETURN(const toml::table* const limits, Table("limits"));
    if (limits != nullptr) {
      BERTH_RETURN_IF_ERROR(CheckKeys(*limits, "limits.",
                                      {"connections", "connections_per_uid", "calls_per_second",
                                       "calls_per_second_per_uid", "resets_per_second",
                                       "resets_per_second_per_uid", "accepts_per_second",
                                       "accepts_per_second_per_uid", "broker_memory", "attach_fds_per_uid",
                                       "imports_per_process", "streams_per_device"}));
      for (const auto& [key, rate] : {std::pair("calls_per_second", &settings.calls_per_second),
                                      std::pair("calls_per_second_per_uid", &settings.calls_per_second_per_uid),
                                      std::pair("resets_per_second", &settings.resets_per_second),
                                      std::pair("resets_per_second_per_uid", &settings.resets_per_second_per_uid),
                                      std::pair("accepts_per_second", &settings.accepts_per_second),
                                      std::pair("accepts_per_second_per_uid", &settings.accepts_per_second_per_uid)}) {
        BERTH_RETURN_IF_ERROR(ReadNumber(*limits, "limits.", key, 1, rate));
      }
      BERTH_RETURN_IF_ERROR(ReadBytes(*limits, "limits.", "broker_memory", &settings.broker_memory));
      BERTH_RETURN_IF_ERROR(ReadNumber(*limits, "limits.", "connections", 1, &settings.connections));
      BERTH_RETURN_IF_ERROR(
          ReadNumber(*limits, "limits.", "connections_per_uid", 1, &settings.connections_per_uid));
      BERTH_RETURN_IF_ERROR(
          ReadNumber(*limits, "limits.", "attach_fds_per_uid", 1, &settings.attach_fds_per_uid));
      BERTH_RETURN_IF_ERROR(
          ReadNumber(*limits, "limits.", "imports_per_process", 1, &settings.imports_per_process));
      BERTH_RETURN_IF_ERROR(
          ReadNumber(*limits, "limits.", "streams_per_device", 1, &settings.streams_per_device));
    }
    settings.origins = std::move(origins_);
    return settings;
  }

 private:
  // What is wrong with `node`, or is missing from it.
  absl::Status Bad(const toml::node& node, const std::string& key, absl::string_view expected) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", node.source().begin.line, ": ", key, ": expected ", expected));
  }

  absl::Status CheckKeys(const toml::table& table, const std::string& prefix,
                         const std::set<std::string>& known) {
    for (const auto& [key, value] : table) {
      origins_[prefix + std::string(key.str())] = {
          .origin = service::ConfigOrigin::kFile,
          .where = absl::StrCat(path_, ":", value.source().begin.line)};
      if (!known.contains(std::string(key.str())))
        return Bad(value, prefix + std::string(key.str()), "no such key");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const toml::table*> Table(const std::string& name) const {
    const toml::node* const node = root_.get(name);
    if (node != nullptr && !node->is_table()) return Bad(*node, name, "a table");
    return node == nullptr ? nullptr : node->as_table();
  }

  template <typename Number>
  absl::Status ReadNumber(const toml::table& table, const std::string& prefix, const std::string& key,
                          int64_t least, std::optional<Number>* out) const {
    const toml::node* const node = table.get(key);
    if (node == nullptr) return absl::OkStatus();
    const std::optional<int64_t> value = node->is_integer() ? node->value<int64_t>() : std::nullopt;
    const int64_t most = std::min<uint64_t>(std::numeric_limits<Number>::max(), INT64_MAX);
    if (!value.has_value() || *value < least || *value > most) {
      return Bad(*node, prefix + key, absl::StrCat("a whole number from ", least, " to ", most));
    }
    *out = static_cast<Number>(*value);
    return absl::OkStatus();
  }

  absl::Status ReadBytes(const toml::table& table, const std::string& prefix, const std::string& key,
                         std::optional<Bytes>* out) const {
    const toml::node* const node = table.get(key);
    if (node == nullptr) return absl::OkStatus();
    const absl::StatusOr<Bytes> bytes = ParseBytes(node->value_or<std::string>(""));
    if (!bytes.ok()) return Bad(*node, prefix + key, "an amount such as \"100GiB\"");
    *out = *bytes;
    return absl::OkStatus();
  }

  absl::Status ReadFlag(const toml::table& table, const std::string& prefix, const std::string& key,
                        std::optional<bool>* out) const {
    const toml::node* const node = table.get(key);
    if (node == nullptr) return absl::OkStatus();
    *out = node->value_exact<bool>();
    return out->has_value() ? absl::OkStatus() : Bad(*node, prefix + key, "true or false");
  }

  absl::Status ReadDuration(const toml::table& table, const std::string& prefix, const std::string& key,
                            absl::Duration least, std::optional<absl::Duration>* out) const {
    const toml::node* const node = table.get(key);
    if (node == nullptr) return absl::OkStatus();
    absl::Duration duration;
    if (!absl::ParseDuration(node->value_or<std::string>(""), &duration) || duration < least ||
        duration == absl::InfiniteDuration()) {
      return Bad(*node, prefix + key,
                 absl::StrCat("a time of at least ", absl::FormatDuration(least), ", such as \"10s\""));
    }
    *out = duration;
    return absl::OkStatus();
  }

  absl::Status ReadPath(const toml::table& table, const std::string& prefix, const std::string& key,
                        std::optional<std::string>* out) const {
    const toml::node* const node = table.get(key);
    if (node == nullptr) return absl::OkStatus();
    std::string text = node->value_or<std::string>("");
    if (text.empty() || text[0] != '/') return Bad(*node, prefix + key, "an absolute path");
    *out = std::move(text);
    return absl::OkStatus();
  }

  absl::Status ReadHistory(Settings* settings) {
    BERTH_ASSIGN_OR_RETURN(const toml::table* const history, Table("history"));
    if (history == nullptr) return absl::OkStatus();
    BERTH_RETURN_IF_ERROR(CheckKeys(*history, "history.", {"size", "rows"}));
    BERTH_RETURN_IF_ERROR(ReadBytes(*history, "history.", "size", &settings->history_size));
    const Bytes size = settings->history_size.value_or(HistoryStore::kLeastSize);
    if (size != Bytes(0) && size < HistoryStore::kLeastSize) {
      return Bad(*history->get("size"), "history.size",
                 absl::StrCat("\"0B\", or at least ", FormatBytes(HistoryStore::kLeastSize)));
    }
    return ReadNumber(*history, "history.", "rows", HistoryStore::kLeastRows, &settings->history_rows);
  }

  absl::Status ReadPools(Settings* settings) {
    BERTH_ASSIGN_OR_RETURN(const toml::table* const pools, Table("pools"));
    if (pools == nullptr) return absl::OkStatus();
    for (const auto& [name, node] : *pools) {
      const std::string prefix = absl::StrCat("pools.", std::string(name.str()));
      if (!node.is_table()) return Bad(node, prefix, "a table");
      if (!ValidateLabel("pool", std::string(name.str())).ok())
        return Bad(node, prefix, "a printable name of at most 128 bytes");
      BERTH_ASSIGN_OR_RETURN(core::PoolConfig pool, ReadPool(*node.as_table(), prefix + "."));
      pool.name = std::string(name.str());
      settings->pools.push_back(std::move(pool));
    }
    return absl::OkStatus();
  }

  // The figures of one row of quotas. `inner` are tables of other rows in it.
  absl::Status ReadQuota(const toml::table& table, const std::string& prefix, std::set<std::string> inner,
                         core::TenantQuota* quota) {
    absl::Status status;
    core::ForEachFigure(*quota, [&](const char* key, std::optional<uint64_t>& figure) {
      inner.insert(key);
      if (status.ok()) status = ReadNumber(table, prefix, key, 1, &figure);
    });
    BERTH_RETURN_IF_ERROR(status);
    return CheckKeys(table, prefix, inner);
  }

  // [tenants], and in it a table for each uid, and in that one for the user's containers.
  absl::Status ReadTenants(core::QuotaTable* quotas) {
    BERTH_ASSIGN_OR_RETURN(const toml::table* const tenants, Table("tenants"));
    if (tenants == nullptr) return absl::OkStatus();
    std::set<std::string> users;
    for (const auto& [key_text, node] : *tenants) {
      const std::string key(key_text.str());
      uint32_t uid = 0;
      if (!node.is_table()) continue;
      if (!absl::SimpleAtoi(key, &uid) || absl::StrCat(uid) != key) {
        return Bad(node, "tenants." + key, "a uid as the key");
      }
      users.insert(key);
      const toml::table& user = *node.as_table();
      const std::string prefix = absl::StrCat("tenants.", key, ".");
      BERTH_RETURN_IF_ERROR(ReadQuota(user, prefix, {"containers"}, &quotas->users[uid]));
      const toml::node* const containers = user.get("containers");
      if (containers == nullptr) continue;
      if (!containers->is_table()) return Bad(*containers, prefix + "containers", "a table");
      BERTH_RETURN_IF_ERROR(
          ReadQuota(*containers->as_table(), prefix + "containers.", {}, &quotas->containers[uid]));
    }
    return ReadQuota(*tenants, "tenants.", std::move(users), &quotas->all);
  }

  absl::StatusOr<core::PoolConfig> ReadPool(const toml::table& table, const std::string& prefix) {
    core::PoolConfig pool;
    BERTH_RETURN_IF_ERROR(CheckKeys(table, prefix,
                                    {"cap", "tenant_cap", "device_cap", "device_caps", "ageing",
                                     "hold_warning", "hold_limit", "idle_warning", "weights"}));
    std::optional<uint64_t> cap, tenant_cap, device_cap;
    std::optional<absl::Duration> ageing, hold_warning, hold_limit, idle_warning;
    BERTH_RETURN_IF_ERROR(ReadNumber(table, prefix, "cap", 1, &cap));
    if (!cap.has_value()) return Bad(table, prefix + "cap", "a whole number");
    BERTH_RETURN_IF_ERROR(ReadNumber(table, prefix, "tenant_cap", 1, &tenant_cap));
    BERTH_RETURN_IF_ERROR(ReadNumber(table, prefix, "device_cap", 1, &device_cap));
    BERTH_RETURN_IF_ERROR(ReadDeviceCaps(table, prefix, &pool));
    BERTH_RETURN_IF_ERROR(ReadDuration(table, prefix, "ageing", absl::ZeroDuration(), &ageing));
    BERTH_RETURN_IF_ERROR(ReadDuration(table, prefix, "hold_warning", core::kLeastHold, &hold_warning));
    BERTH_RETURN_IF_ERROR(ReadDuration(table, prefix, "hold_limit", core::kLeastHold, &hold_limit));
    BERTH_RETURN_IF_ERROR(ReadDuration(table, prefix, "idle_warning", core::kLeastHold, &idle_warning));
    pool.idle_warning = idle_warning.value_or(pool.idle_warning);
    pool.cap = *cap;
    pool.tenant_cap = tenant_cap.value_or(pool.tenant_cap);
    pool.device_cap = device_cap.value_or(pool.device_cap);
    pool.ageing = ageing.value_or(pool.ageing);
    pool.hold_warning = hold_warning.value_or(pool.hold_warning);
    pool.hold_limit = hold_limit.value_or(pool.hold_limit);
    const toml::node* const weights = table.get("weights");
    if (weights == nullptr) return pool;
    if (!weights->is_table()) return Bad(*weights, prefix + "weights", "a table of weights by uid");
    for (const auto& [uid_text, node] : *weights->as_table()) {
      const std::string key = absl::StrCat(prefix, "weights.", std::string(uid_text.str()));
      uint32_t uid = 0;
      if (!absl::SimpleAtoi(std::string(uid_text.str()), &uid)) return Bad(node, key, "a uid as the key");
      const std::optional<int64_t> weight = node.is_integer() ? node.value<int64_t>() : std::nullopt;
      if (!weight.has_value() || *weight < 1 || *weight > core::kMostWeight) {
        return Bad(node, key, absl::StrCat("a whole number from 1 to ", core::kMostWeight));
      }
      pool.weights[uid] = static_cast<uint32_t>(*weight);
    }
    return pool;
  }

  // {UUID = units}.
  absl::Status ReadDeviceCaps(const toml::table& table, const std::string& prefix,
                              core::PoolConfig* pool) const {
    const toml::node* const caps = table.get("device_caps");
    if (caps == nullptr) return absl::OkStatus();
    if (!caps->is_table()) return Bad(*caps, prefix + "device_caps", "a table of caps by device UUID");
    for (const auto& [uuid_text, node] : *caps->as_table()) {
      const std::string uuid(uuid_text.str());
      const std::optional<int64_t> cap = node.is_integer() ? node.value<int64_t>() : std::nullopt;
      if (!cap.has_value() || *cap < 0 || uuid.empty() || !ValidateLabel("uuid", uuid).ok()) {
        return Bad(node, absl::StrCat(prefix, "device_caps.", uuid),
                   "a whole number from 0 on, by a device's UUID");
      }
      pool->device_caps[uuid] = static_cast<uint64_t>(*cap);
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  const toml::table& root_;
  std::map<std::string, Settings::Origin> origins_;
};

// Where nobody measured one: more than any that was seen on a card (518 to 582 MiB).
constexpr Bytes kCudaContext = MiB(600);

// What a process's context takes of the device, as long as no context worker tells better.
Bytes ContextOn(const DeviceRecord& record) {
  if (record.backend != BackendKind::kCudaVmm) return Bytes();
  return record.context_mib > 0 ? MiB(record.context_mib) : kCudaContext;
}

std::string TextOf(const char* text, size_t size) { return std::string(text, strnlen(text, size)); }

// `rate`, or the one that was asked for, with a burst that is larger by as much.
service::Rate Scaled(service::Rate rate, std::optional<uint32_t> per_second) {
  if (!per_second.has_value()) return rate;
  return {.per_second = static_cast<double>(*per_second), .burst = rate.burst / rate.per_second * *per_second};
}

core::DeviceConfig MakeDevice(const DeviceRecord& record, const Settings& settings) {
  const Bytes half = DeviceBudget(Bytes(record.free_bytes), Bytes(record.total_bytes));
  return {
      .ordinal = record.ordinal,
      .uuid = TextOf(record.uuid, sizeof(record.uuid)),
      .name = TextOf(record.name, sizeof(record.name)),
      .kind = record.backend == BackendKind::kCudaVmm ? core::MemoryKind::kCudaVmm : core::MemoryKind::kHost,
      .generation = 1,
      .cuda_ipc = settings.cuda_ipc.value_or(true),
      .why_no_cuda_ipc = "the daemon's configuration does not allow it",
      .total = Bytes(record.total_bytes),
      .budget = settings.device_budget.value_or(half),
      .granularity = Bytes(record.granularity),
      .permit_reserve = settings.permit_reserve.value_or(Bytes()),
      .context = settings.context.value_or(ContextOn(record)),
      .measure_context = !settings.context.has_value() && record.backend == BackendKind::kCudaVmm,
      .others = SaturatingSub(Bytes(record.total_bytes), Bytes(record.free_bytes)),
      .clears = {.outcome = static_cast<core::ClearsCheck::Outcome>(record.clears.outcome),
                 .detail = TextOf(record.clears.detail, sizeof(record.clears.detail))},
      .facts = {.sm_count = record.multiprocessors,
                .cc_major = record.compute_capability / 10,
                .cc_minor = record.compute_capability % 10,
                .nvlink_peers = record.nvlink_peers}};
}

}  // namespace

absl::StatusOr<Settings> ReadSettings(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const toml::table root, ReadToml(path));
  return SettingsReader(path, root).Read();
}

absl::StatusOr<Settings> ParseSettings(const std::string& text, const std::string& name) {
  BERTH_ASSIGN_OR_RETURN(const toml::table root, ParseToml(text, name));
  return SettingsReader(name, root).Read();
}

absl::StatusOr<std::string> ReadConfigText(const BrokerOptions& options) {
  if (options.config.empty()) return "";
  const UniqueFd file(::open(options.config.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char part[4096];
  ssize_t size = file ? 1 : -1;
  while (size > 0) {
    size = ::read(file.get(), part, sizeof(part));
    if (size > 0) text.append(part, static_cast<size_t>(size));
  }
  if (size < 0) return OsError(absl::StrCat("reading ", options.config), errno);
  return text;
}

absl::StatusOr<Settings> CombineSettings(const BrokerOptions& options, const std::string& text,
                                         const std::string& name) {
  absl::StatusOr<Settings> settings = ParseSettings(text, name);
  if (!settings.ok()) return settings;
  const auto take = [&](const auto& flag, const char* name, const char* key, auto* to) {
    if (!flag.has_value()) return;
    *to = flag;
    settings->origins[key] = {.origin = service::ConfigOrigin::kFlag, .where = name};
  };
  for (const auto& [name, cap] : options.pools) {
    auto pool = settings->pools.begin();
    while (pool != settings->pools.end() && pool->name != name) ++pool;
    if (pool == settings->pools.end()) pool = settings->pools.insert(pool, {.name = name});
    pool->cap = cap;
    settings->origins[absl::StrCat("pools.", name, ".cap")] = {.origin = service::ConfigOrigin::kFlag,
                                                               .where = "--pool"};
  }
  take(options.device_budget, "--device-budget", "memory.device_budget", &settings->device_budget);
  take(options.warm_blocks, "--warm-blocks", "memory.warm_blocks", &settings->warm_blocks);
  take(options.streams_per_device, "--streams-per-device", "limits.streams_per_device",
       &settings->streams_per_device);
  take(options.call_deadline, "--call-deadline", "workers.call_deadline", &settings->call_deadline);
  take(options.context_idle, "--context-idle", "workers.context_idle", &settings->context_idle);
  take(options.max_connections, "--max-connections", "limits.connections", &settings->connections);
  for (const char* const name : {kConcurrencyVariable, kConcurrencyAlias}) {
    const char* const text = getenv(name);
    if (text == nullptr) continue;
    settings->origins[absl::StrCat("pools.", kDefaultPool, ".cap")] = {
        .origin = service::ConfigOrigin::kEnvironment, .where = absl::StrCat(name, "=", ToLabel(text))};
    break;
  }
  return settings;
}

service::ConnectionLimits MakeConnectionLimits(const Settings& settings) {
  service::ConnectionLimits limits;
  limits.total = settings.connections.value_or(limits.total);
  // One user must leave room for others, whatever the total is.
  limits.per_uid =
      std::max(1u, std::min(settings.connections_per_uid.value_or(limits.per_uid), limits.total / 4 * 3));
  limits.calls = Scaled(limits.calls, settings.calls_per_second);
  limits.calls_per_uid = Scaled(limits.calls_per_uid, settings.calls_per_second_per_uid);
  limits.resets = Scaled(limits.resets, settings.resets_per_second);
  limits.resets_per_uid = Scaled(limits.resets_per_uid, settings.resets_per_second_per_uid);
  return limits;
}

service::AcceptRates MakeAcceptRates(const Settings& settings) {
  service::AcceptRates rates;
  rates.per_uid = Scaled(rates.per_uid, settings.accepts_per_second_per_uid);
  rates.total = Scaled(rates.total, settings.accepts_per_second);
  return rates;
}

core::Config MakeCoreConfig(uint64_t node, uint64_t incarnation, const std::vector<DeviceRecord>& devices,
                            const Settings& settings) {
  core::Config config = {.node = node, .incarnation = incarnation, .pools = settings.pools};
  auto gpu_tests = std::find_if(config.pools.begin(), config.pools.end(),
                                [](const core::PoolConfig& pool) { return pool.name == kDefaultPool; });
  if (gpu_tests == config.pools.end()) {
    gpu_tests = config.pools.insert(config.pools.begin(), {.name = kDefaultPool, .cap = kDefaultConcurrency});
  }
  if (const std::optional<uint64_t> cap = ConcurrencyFromEnvironment()) gpu_tests->cap = *cap;
  for (const DeviceRecord& record : devices) config.devices.push_back(MakeDevice(record, settings));
  config.quotas = settings.quotas;
  config.tenant_budget = settings.tenant_budget;
  config.session_budget = settings.session_budget;
  if (settings.warm_blocks.has_value()) config.warm_blocks_per_size = *settings.warm_blocks;
  if (settings.warm_limit.has_value()) config.warm_limit = *settings.warm_limit;
  if (settings.imports_per_process.has_value())
    config.limits.imports_per_channel = *settings.imports_per_process;
  if (settings.context_idle.has_value()) config.context_idle = *settings.context_idle;
  config.log_fences = settings.log_fences.value_or(false);
  if (settings.streams_per_device.has_value())
    config.limits.fences.streams_per_device = *settings.streams_per_device;
  if (settings.module_bytes.has_value()) config.limits.modules.total = *settings.module_bytes;
  if (settings.module_bytes_per_tenant.has_value())
    config.limits.modules.tenant = *settings.module_bytes_per_tenant;
  if (settings.compile_patience.has_value())
    config.limits.modules.compile_patience = *settings.compile_patience;
  if (settings.call_deadline.has_value()) config.calls.base = *settings.call_deadline;
  if (settings.call_deadline_per_gib.has_value()) config.calls.per_gib = *settings.call_deadline_per_gib;
  return config;
}

}  // namespace berth
