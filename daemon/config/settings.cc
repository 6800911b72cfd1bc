#include "daemon/config/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/concurrency_limit.h"
#include "common/device_score.h"
#include "common/label.h"
#include "common/os/file_io.h"
#include "common/os/file_writers.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "common/time_span.h"
#include "daemon/base/toml.h"
#include "daemon/config/device_caps.h"
#include "daemon/config/options.h"
#include "daemon/ledger/history_store.h"

namespace berth {
namespace {

// Many times the size of a file with every setting and a thousand pools.
constexpr Bytes kMaxConfig = MiB(4);
// A reload compares every key of the pools with every key from before, under a lock.
constexpr size_t kMaxPools = 1'000;
// As in `berth permits set`.
constexpr absl::string_view kNever = "never";

// Reads the tables of one file, with errors that name the location.
class SettingsReader {
 public:
  SettingsReader(const std::string& path, const toml::table& root) : path_(path), root_(root) {}

  absl::StatusOr<Settings> Read() {
    Settings settings;
    const std::vector<Setting> all = AllSettings(&settings);
    std::map<std::string, std::set<std::string>> keys_of = {{"pools", {}}, {"tenants", {}}};
    std::set<std::string> names = {"pools", "tenants"};
    for (const Setting& setting : all) {
      const std::pair<std::string, std::string> name = absl::StrSplit(setting.key, '.');
      keys_of[name.first].insert(name.second);
      names.insert(name.first);
    }
    BERTH_RETURN_IF_ERROR(CheckKeys(root_, "", names));
    BERTH_RETURN_IF_ERROR(ReadPools(&settings.core.pools));
    BERTH_RETURN_IF_ERROR(ReadTenants(&settings.core.quotas));
    for (const auto& [name, keys] : keys_of) {
      BERTH_ASSIGN_OR_RETURN(const toml::table* const table, Table(name));
      if (table != nullptr && !keys.empty()) BERTH_RETURN_IF_ERROR(CheckKeys(*table, name + ".", keys));
    }
    for (const Setting& setting : all) {
      const std::string name(setting.key, 0, setting.key.find('.'));
      if (const toml::node* const table = root_.get(name)) BERTH_RETURN_IF_ERROR(Read(*table->as_table(), setting));
    }
    if (settings.history_size != Bytes(0) && settings.history_size < HistoryStore::kLeastSize) {
      return Bad(*root_.get("history")->as_table()->get("size"), "history.size",
                 absl::StrCat("\"0B\", or at least ", FormatBytes(HistoryStore::kLeastSize)));
    }
    settings.origins = std::move(origins_);
    return settings;
  }

 private:
  // Returns the error for a wrong `node`, or for a missing value in it.
  absl::Status Bad(const toml::node& node, const std::string& key, absl::string_view expected) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", node.source().begin.line, ": ", key, ": expected ", expected, NotValue(node)));
  }
  // The same for the key of `node`.
  absl::Status BadKey(const toml::node& node, const std::string& key) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", node.source().begin.line, ": ", key, ": expected a uid as the key"));
  }
  static std::string NotValue(const toml::node& node) {
    if (!node.is_value()) return "";
    constexpr size_t kMostShown = 64;
    if (const std::optional<std::string> text = node.value_exact<std::string>()) {
      return absl::StrCat(", not \"", ToMessage(*text, kMostShown), "\"");
    }
    std::ostringstream value;
    node.visit([&value](const auto& each) { value << each; });
    return absl::StrCat(", not ", value.str());
  }

  absl::Status CheckKeys(const toml::table& table, const std::string& prefix,
                         const std::set<std::string>& known) {
    for (const auto& [key, value] : table) {
      origins_[prefix + std::string(key.str())] = {
          .origin = service::ConfigOrigin::kFile,
          .where = absl::StrCat(path_, ":", value.source().begin.line)};
      if (!known.contains(std::string(key.str()))) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ":", value.source().begin.line, ": ", prefix, std::string(key.str()),
                         ": unknown key; expected one of ", absl::StrJoin(known, ", ")));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const toml::table*> Table(const std::string& name) const {
    const toml::node* const node = root_.get(name);
    if (node != nullptr && !node->is_table()) return Bad(*node, name, "a table");
    return node == nullptr ? nullptr : node->as_table();
  }

  // Reads the value of a setting in its own table; a value that the table lacks stays.
  absl::Status Read(const toml::table& table, const Setting& setting) const {
    const toml::node* const node = table.get(setting.key.substr(setting.key.rfind('.') + 1));
    if (node == nullptr) return absl::OkStatus();
    return std::visit([&](auto* value) { return ReadValue(*node, setting, value); }, setting.value);
  }

  template <typename Number>
  absl::Status ReadValue(const toml::node& node, const Setting& setting, Number* out) const {
    const std::optional<int64_t> value = node.is_integer() ? node.value<int64_t>() : std::nullopt;
    const int64_t most = std::min<uint64_t>({setting.most, std::numeric_limits<Number>::max(), INT64_MAX});
    if (!value.has_value() || *value < setting.least || *value > most) {
      return Bad(node, setting.key, absl::StrCat("a whole number from ", setting.least, " to ", most));
    }
    *out = static_cast<Number>(*value);
    return absl::OkStatus();
  }

  template <typename Value>
  absl::Status ReadValue(const toml::node& node, const Setting& setting, std::optional<Value>* out) const {
    return ReadValue(node, setting, &out->emplace());
  }

  absl::Status ReadValue(const toml::node& node, const Setting& setting, Bytes* out) const {
    const absl::StatusOr<Bytes> bytes = ParseBytes(node.value_or<std::string>(""));
    if (!bytes.ok()) {
      return Bad(node, setting.key,
                 "an amount such as \"4096\", \"64KiB\", \"1.5GiB\", \"20G\" (GiB) or \"10GB\" (10^9 each)");
    }
    *out = *bytes;
    return absl::OkStatus();
  }

  absl::Status ReadValue(const toml::node& node, const Setting& setting, bool* out) const {
    const std::optional<bool> flag = node.value_exact<bool>();
    *out = flag.value_or(*out);
    return flag.has_value() ? absl::OkStatus() : Bad(node, setting.key, "true or false");
  }

  absl::Status ReadValue(const toml::node& node, const Setting& setting, absl::Duration* out) const {
    const std::string text = node.value_or<std::string>("");
    const absl::StatusOr<absl::Duration> time =
        setting.may_be_never && text == kNever ? absl::InfiniteDuration() : ParseTimeSpan(text);
    if (!time.ok() || *time < setting.least_time) {
      return Bad(node, setting.key,
                 absl::StrCat("a time of at least ", absl::FormatDuration(setting.least_time),
                              ", such as \"90\" (seconds), \"10m\", \"1h30m\" or \"2d\"",
                              setting.may_be_never ? ", or \"never\"" : ""));
    }
    *out = *time;
    return absl::OkStatus();
  }

  // Scales the burst by the same factor.
  absl::Status ReadValue(const toml::node& node, const Setting& setting, Rate* out) const {
    uint32_t per_second;
    BERTH_RETURN_IF_ERROR(ReadValue(node, setting, &per_second));
    *out = {.per_second = static_cast<double>(per_second), .burst = out->burst / out->per_second * per_second};
    return absl::OkStatus();
  }

  absl::Status ReadValue(const toml::node& node, const Setting& setting, std::string* out) const {
    *out = node.value_or<std::string>("");
    return out->starts_with('/') ? absl::OkStatus() : Bad(node, setting.key, "an absolute path");
  }

  absl::Status ReadPools(std::vector<core::PoolConfig>* out) {
    BERTH_ASSIGN_OR_RETURN(const toml::table* const pools, Table("pools"));
    if (pools == nullptr) return absl::OkStatus();
    if (pools->size() > kMaxPools) {
      return Bad(*pools, "pools", absl::StrCat("at most ", kMaxPools, " pools, not ", pools->size()));
    }
    for (const auto& [name, node] : *pools) {
      const std::string prefix = absl::StrCat("pools.", std::string(name.str()));
      if (!node.is_table()) return Bad(node, prefix, "a table");
      if (name.str().empty() || !ValidateLabel("pool", std::string(name.str())).ok())
        return Bad(node, prefix, "a printable name of 1 to 128 bytes");
      BERTH_ASSIGN_OR_RETURN(core::PoolConfig pool, ReadPool(*node.as_table(), prefix + "."));
      pool.name = std::string(name.str());
      out->push_back(std::move(pool));
    }
    return absl::OkStatus();
  }

  // Reads the values of one quota. `inner` names the tables of other quotas inside it.
  absl::Status ReadQuota(const toml::table& table, const std::string& prefix, std::set<std::string> inner,
                         core::TenantQuota* quota) {
    absl::Status status;
    core::ForEachQuota(*quota, [&](const char* key, std::optional<uint64_t>& quota_value) {
      inner.insert(key);
      if (status.ok()) status = Read(table, {.key = prefix + key, .value = &quota_value, .least = 1});
    });
    BERTH_RETURN_IF_ERROR(status);
    return CheckKeys(table, prefix, inner);
  }

  // Reads [tenants], the table for each uid in it, and that user's table for containers.
  absl::Status ReadTenants(core::QuotaTable* quotas) {
    BERTH_ASSIGN_OR_RETURN(const toml::table* const tenants, Table("tenants"));
    if (tenants == nullptr) return absl::OkStatus();
    std::set<std::string> users;
    for (const auto& [key_text, node] : *tenants) {
      const std::string key(key_text.str());
      uint32_t uid = 0;
      if (!node.is_table()) continue;
      if (!absl::SimpleAtoi(key, &uid) || absl::StrCat(uid) != key) {
        return BadKey(node, "tenants." + key);
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
                                    {"cap", "tenant_cap", "device_cap", "device_caps", "no_device_cap", "ageing",
                                     "hold_warning", "hold_limit", "idle_warning", "weights"}));
    // The default pool has a default cap (BuildConfig()).
    const bool needs_cap = prefix != absl::StrCat("pools.", kDefaultPool, ".");
    if (needs_cap && table.get("cap") == nullptr) return Bad(table, prefix + "cap", "a whole number");
    pool.cap = 0;
    for (const Setting& setting :
         {Setting{.key = "cap", .value = &pool.cap, .least = 1},
          Setting{.key = "tenant_cap", .value = &pool.tenant_cap, .least = 1},
          Setting{.key = "device_cap", .value = &pool.device_cap, .least = 1},
          Setting{.key = "no_device_cap", .value = &pool.no_device_cap, .least = 1},
          Setting{.key = "ageing", .value = &pool.ageing},
          Setting{.key = "hold_warning", .value = &pool.hold_warning, .least_time = core::kLeastHold},
          Setting{.key = "hold_limit", .value = &pool.hold_limit, .least_time = core::kLeastHold},
          Setting{.key = "idle_warning", .value = &pool.idle_warning, .least_time = core::kLeastHold}}) {
      Setting in_pool = setting;
      in_pool.key = prefix + setting.key;
      in_pool.may_be_never = setting.least_time == core::kLeastHold;
      BERTH_RETURN_IF_ERROR(Read(table, in_pool));
    }
    BERTH_RETURN_IF_ERROR(ReadDeviceCaps(table, prefix, &pool));
    const toml::node* const weights = table.get("weights");
    if (weights == nullptr) return pool;
    if (!weights->is_table()) return Bad(*weights, prefix + "weights", "a table of weights by uid");
    for (const auto& [uid_text, node] : *weights->as_table()) {
      const std::string key = absl::StrCat(prefix, "weights.", std::string(uid_text.str()));
      uint32_t uid = 0;
      if (!absl::SimpleAtoi(std::string(uid_text.str()), &uid)) return BadKey(node, key);
      const std::optional<int64_t> weight = node.is_integer() ? node.value<int64_t>() : std::nullopt;
      if (!weight.has_value() || *weight < 1 || *weight > core::kMostWeight) {
        return Bad(node, key, absl::StrCat("a whole number from 1 to ", core::kMostWeight));
      }
      pool.weights[uid] = static_cast<uint32_t>(*weight);
    }
    return pool;
  }

  // Reads {DEVICE = units}. CheckDeviceCaps() checks the devices.
  absl::Status ReadDeviceCaps(const toml::table& table, const std::string& prefix,
                              core::PoolConfig* pool) const {
    const toml::node* const caps = table.get("device_caps");
    if (caps == nullptr) return absl::OkStatus();
    if (!caps->is_table()) return Bad(*caps, prefix + "device_caps", "a table of caps by device");
    for (const auto& [device_text, node] : *caps->as_table()) {
      const std::string device(device_text.str());
      const std::optional<int64_t> cap = node.is_integer() ? node.value<int64_t>() : std::nullopt;
      if (!cap.has_value() || *cap < 0 || device.empty() || !ValidateLabel("device", device).ok()) {
        return Bad(node, absl::StrCat(prefix, "device_caps.", device),
                   "a whole number from 0, by a device's ordinal, UUID or unique prefix");
      }
      pool->device_caps[device] = static_cast<uint64_t>(*cap);
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  const toml::table& root_;
  std::map<std::string, Settings::Origin> origins_;
};

// The context size without a measurement: more than any observed on a card (518 to 582 MiB).
constexpr Bytes kCudaContext = MiB(600);

// Returns the size of a process's context on the device, until a context worker measures it.
Bytes ContextOn(const DeviceRecord& record) {
  if (record.backend != BackendKind::kCudaVmm) return Bytes();
  return record.context_mib > 0 ? MiB(record.context_mib) : kCudaContext;
}

std::string TextOf(const char* text, size_t size) { return std::string(text, strnlen(text, size)); }

core::DeviceConfig MakeDevice(const DeviceRecord& record, const Settings& settings) {
  const Bytes half = DeviceBudget(Bytes(record.free_bytes), Bytes(record.total_bytes));
  return {.ordinal = record.ordinal,
          .uuid = TextOf(record.uuid, sizeof(record.uuid)),
          .name = TextOf(record.name, sizeof(record.name)),
          .kind = record.backend == BackendKind::kCudaVmm ? core::MemoryKind::kCudaVmm : core::MemoryKind::kHost,
          .generation = 1,
          .cuda_ipc = settings.cuda_ipc,
          .why_no_cuda_ipc = "memory.cuda_ipc is false in the daemon's configuration",
          .total = Bytes(record.total_bytes),
          .budget = settings.device_budget.value_or(half),
          .granularity = Bytes(record.granularity),
          .permit_reserve = settings.permit_reserve,
          .context = settings.context.value_or(ContextOn(record)),
          .measure_context = !settings.context.has_value() && record.backend == BackendKind::kCudaVmm,
          .others = SaturatingSub(Bytes(record.total_bytes), Bytes(record.free_bytes)),
          .scrub = {.outcome = static_cast<core::MemoryScrubCheck::Outcome>(record.scrub.outcome),
                    .detail = TextOf(record.scrub.detail, sizeof(record.scrub.detail))},
          .facts = {.sm_count = record.multiprocessors,
                    .cc_major = record.compute_capability / 10,
                    .cc_minor = record.compute_capability % 10,
                    .nvlink_peers = record.nvlink_peers}};
}

// The payload of a marked error.
constexpr char kBeingWritten[] = "berth/configuration being written";

// Number of reads after which a file that changes during each is refused.
constexpr int kMaxReads = 3;

ConfigMark MarkOf(const struct stat& status) {
  return {.inode = status.st_ino,
          .size = static_cast<uint64_t>(status.st_size),
          .written = absl::TimeFromTimespec(status.st_mtim)};
}

UniqueFd OpenConfig(const Options& options) {
  return UniqueFd(::open(options.config.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

// A file's content with its mark before the read, and its mark after the read.
struct MarkedText {
  ConfigText read;
  ConfigMark after;
};

absl::Status TooLong(const Options& options, size_t bytes) {
  return absl::InvalidArgumentError(absl::StrCat(options.config, " has at least ", bytes, " bytes; the limit is ",
                                                 FormatBytes(kMaxConfig)));
}

absl::StatusOr<MarkedText> ReadMarked(const Options& options) {
  const UniqueFd file = OpenConfig(options);
  // A socket, or a device that is not there.
  const bool is_no_file = !file && errno == ENXIO;
  if (!file && !is_no_file) return OsError(absl::StrCat("open ", options.config), errno);
  struct stat status;
  if (file && ::fstat(file.get(), &status) < 0) return OsError(absl::StrCat("fstat ", options.config), errno);
  if (is_no_file || !S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.config, " is not a regular file: the daemon reads its configuration again later"));
  }
  const size_t size = static_cast<size_t>(status.st_size);
  if (size > kMaxConfig.count()) return TooLong(options, size);
  // A file of /proc reports no size, and may be endless. Another process may append to the file faster than it is read.
  BERTH_ASSIGN_OR_RETURN(std::string text, ReadToEnd(file.get(), options.config, kMaxConfig.count() + 1));
  if (text.size() > kMaxConfig.count()) return TooLong(options, text.size());
  const ConfigMark before = MarkOf(status);
  // A writer that comes after this look, and truncates the file at its start, is found by the mark after it.
  const bool being_written = FindWriters(file.get()) == FileWriters::kSome;
  if (::fstat(file.get(), &status) < 0) return OsError(absl::StrCat("fstat ", options.config), errno);
  return MarkedText{.read = {.text = std::move(text), .mark = before, .being_written = being_written},
                    .after = MarkOf(status)};
}

}  // namespace

std::vector<Setting> AllSettings(Settings* settings) {
  core::Config& core = settings->core;
  service::ConnectionLimits& connections = settings->connections;
  service::AcceptRates& accepts = settings->attach.accepts;
  return {
      {.key = "memory.device_budget",
       .value = &settings->device_budget,
       .unset = "min(free, total / 2)",
       .while_running = true},
      {.key = "memory.tenant_budget", .value = &core.tenant_budget},
      {.key = "memory.session_budget", .value = &core.session_budget},
      {.key = "memory.warm_blocks", .value = &core.warm_blocks_per_size},
      {.key = "memory.warm_limit", .value = &core.warm_limit},
      {.key = "memory.cuda_ipc", .value = &settings->cuda_ipc},
      {.key = "memory.permit_reserve", .value = &settings->permit_reserve},
      {.key = "memory.context",
       .value = &settings->context,
       .unset = "as measured on CUDA, 600MiB until then; nothing on the host"},
      {.key = "workers.call_deadline", .value = &core.calls.base, .least_time = kLeastCallDeadline},
      {.key = "workers.call_deadline_per_gib", .value = &core.calls.per_gib},
      {.key = "workers.context_idle", .value = &core.context_idle},
      {.key = "log.file", .value = &settings->log_file},
      {.key = "log.fences", .value = &core.log_fences},
      {.key = "log.audit_folder", .value = &settings->audit_folder, .unset = "the folder of --state"},
      {.key = "log.audit_size", .value = &settings->audit_size},
      {.key = "history.size", .value = &settings->history_size},
      {.key = "history.rows", .value = &settings->history_rows, .least = HistoryStore::kLeastRows},
      {.key = "modules.total", .value = &core.limits.modules.total},
      {.key = "modules.tenant", .value = &core.limits.modules.tenant},
      {.key = "modules.compile_patience",
       .value = &core.limits.modules.compile_patience,
       .least_time = absl::Seconds(1)},
      {.key = "limits.connections", .value = &connections.total, .least = 1},
      {.key = "limits.connections_per_uid", .value = &connections.per_uid, .least = 1},
      {.key = "limits.calls_per_second", .value = &connections.calls, .least = 1},
      {.key = "limits.calls_per_second_per_uid", .value = &connections.calls_per_uid, .least = 1},
      {.key = "limits.resets_per_second", .value = &connections.resets, .least = 1},
      {.key = "limits.resets_per_second_per_uid", .value = &connections.resets_per_uid, .least = 1},
      {.key = "limits.accepts_per_second", .value = &accepts.total, .least = 1},
      {.key = "limits.accepts_per_second_per_uid", .value = &accepts.per_uid, .least = 1},
      {.key = "limits.broker_memory", .value = &settings->broker_memory},
      {.key = "limits.attach_fds_per_uid", .value = &settings->attach.fds_per_uid, .least = 1},
      {.key = "limits.imports_per_process",
       .value = &core.limits.imports_per_channel,
       .least = 1,
       .most = UINT32_MAX},
      {.key = "limits.streams_per_device", .value = &core.limits.fences.streams_per_device, .least = 1},
  };
}

absl::StatusOr<Settings> ReadSettings(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const toml::table root, ReadToml(path));
  return SettingsReader(path, root).Read();
}

absl::StatusOr<Settings> ParseSettings(const std::string& text, const std::string& name) {
  BERTH_ASSIGN_OR_RETURN(const toml::table root, ParseToml(text, name));
  return SettingsReader(name, root).Read();
}

ConfigMark MarkConfig(const Options& options) {
  struct stat status;
  return ::stat(options.config.c_str(), &status) < 0 ? ConfigMark() : MarkOf(status);
}

absl::Status AsBeingWritten(absl::Status error) {
  error.SetPayload(kBeingWritten, absl::Cord());
  return error;
}

bool IsBeingWritten(const absl::Status& error) { return error.GetPayload(kBeingWritten).has_value(); }

bool IsConfigBeingWritten(const Options& options) {
  struct stat status;
  // A FIFO or a device is not opened: that may have an effect.
  if (::stat(options.config.c_str(), &status) < 0 || !S_ISREG(status.st_mode)) return false;
  const UniqueFd file = OpenConfig(options);
  return file && FindWriters(file.get()) == FileWriters::kSome;
}

absl::StatusOr<ConfigText> ReadConfigText(const Options& options, const std::optional<ConfigMark>& complete) {
  if (options.config.empty()) return ConfigText();
  for (int reads = 0; reads < kMaxReads; ++reads) {
    BERTH_ASSIGN_OR_RETURN(MarkedText marked, ReadMarked(options));
    if (complete.has_value() && (marked.read.mark != *complete || marked.after != *complete)) {
      return absl::AbortedError(absl::StrCat(options.config, " has changed since it was complete"));
    }
    if (marked.read.mark == marked.after) return std::move(marked.read);
  }
  return AsBeingWritten(absl::InvalidArgumentError(absl::StrCat(options.config, " changed during each of ", kMaxReads,
                                                                " reads: reload it once it is written")));
}

absl::StatusOr<Settings> CombineSettings(const Options& options, const std::string& text, const std::string& name) {
  absl::StatusOr<Settings> settings = ParseSettings(text, name);
  if (!settings.ok()) return settings;
  const auto take = [&](const auto& flag, const char* name, const char* key, auto* to) {
    if (!flag.has_value()) return;
    *to = *flag;
    settings->origins[key] = {.origin = service::ConfigOrigin::kFlag, .where = name};
  };
  for (const auto& [name, cap] : options.pools) {
    std::vector<core::PoolConfig>& pools = settings->core.pools;
    auto pool = pools.begin();
    while (pool != pools.end() && pool->name != name) ++pool;
    if (pool == pools.end()) pool = pools.insert(pool, {.name = name});
    pool->cap = cap;
    settings->origins[absl::StrCat("pools.", name, ".cap")] = {.origin = service::ConfigOrigin::kFlag,
                                                               .where = "--pool"};
  }
  take(options.device_budget, "--device-budget", "memory.device_budget", &settings->device_budget);
  take(options.warm_blocks, "--warm-blocks", "memory.warm_blocks", &settings->core.warm_blocks_per_size);
  take(options.streams_per_device, "--streams-per-device", "limits.streams_per_device",
       &settings->core.limits.fences.streams_per_device);
  take(options.call_deadline, "--call-deadline", "workers.call_deadline", &settings->core.calls.base);
  take(options.context_idle, "--context-idle", "workers.context_idle", &settings->core.context_idle);
  take(options.max_connections, "--max-connections", "limits.connections", &settings->connections.total);
  // One user must leave connections for others, whatever the total is.
  uint32_t& per_uid = settings->connections.per_uid;
  per_uid = std::max(1u, std::min(per_uid, settings->connections.total / 4 * 3));
  for (const char* const name : {kConcurrencyVariable, kConcurrencyAlias}) {
    const char* const text = getenv(name);
    if (text == nullptr) continue;
    settings->origins[absl::StrCat("pools.", kDefaultPool, ".cap")] = {
        .origin = service::ConfigOrigin::kEnvironment, .where = absl::StrCat(name, "=", ToLabel(text))};
    break;
  }
  return settings;
}

absl::Status CheckDeviceCaps(const Settings& settings, const std::vector<DeviceRecord>& devices,
                             std::vector<std::string>* absent) {
  for (const core::PoolConfig& pool : settings.core.pools) {
    const std::string key = absl::StrCat("pools.", pool.name, ".device_caps");
    const auto origin = settings.origins.find(key);
    const std::string where = origin == settings.origins.end() ? key : absl::StrCat(origin->second.where, ": ", key);
    const ResolvedDeviceCaps resolved = ResolveDeviceCaps(pool.device_caps, devices);
    for (const std::string& text : resolved.absent) absent->push_back(absl::StrCat(where, ": ", text));
    if (resolved.mistake.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", resolved.mistake.message()));
  }
  return absl::OkStatus();
}

core::Config BuildConfig(uint64_t node, uint64_t incarnation, const std::vector<DeviceRecord>& devices,
                         const Settings& settings) {
  core::Config config = settings.core;
  config.node = node;
  config.incarnation = incarnation;
  auto gpu_tests = std::find_if(config.pools.begin(), config.pools.end(),
                                [](const core::PoolConfig& pool) { return pool.name == kDefaultPool; });
  const std::optional<uint64_t> of_environment = ConcurrencyFromEnvironment();
  if (gpu_tests == config.pools.end()) {
    gpu_tests = config.pools.insert(config.pools.begin(), {.name = kDefaultPool, .cap = 0});
  }
  if (of_environment.has_value()) {
    gpu_tests->cap = *of_environment;
  } else if (gpu_tests->cap == 0) {
    gpu_tests->cap = std::max<uint64_t>(kDefaultConcurrency, devices.size());
    gpu_tests->cap_by_devices = true;
    // Processes without a device of their own may all use the first device.
    const bool more = gpu_tests->cap > kDefaultConcurrency && gpu_tests->no_device_cap == 0;
    if (more) gpu_tests->no_device_cap = kDefaultConcurrency;
  }
  for (core::PoolConfig& pool : config.pools) {
    pool.device_caps = ResolveDeviceCaps(pool.device_caps, devices).caps;
  }
  for (const DeviceRecord& record : devices) config.devices.push_back(MakeDevice(record, settings));
  return config;
}

}  // namespace berth
