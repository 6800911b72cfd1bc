// The broker's configuration: builds the core's Config from the found devices, the flags, the configuration file and
// the environment.

#ifndef DAEMON_CONFIG_SETTINGS_H_
#define DAEMON_CONFIG_SETTINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/token_bucket.h"
#include "daemon/broker/history_writer.h"
#include "daemon/config/options.h"
#include "daemon/core/core.h"
#include "daemon/device/monitor/device_record.h"
#include "daemon/server/memory_watch.h"
#include "daemon/service/attach/attach_limits.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/rpc/config_source.h"
#include "daemon/service/transport/connection_table.h"

namespace berth {

// The settings that an operator may give, from any source. A value that no source gives is the default of the struct
// that uses it.
struct Settings {
  // The core's part, without the node's facts (BuildConfig()). The cap of gpu-tests comes from the environment, else
  // from here, else it is the number of devices, at least 2. With that default cap, permits without a device have a cap
  // of 2.
  core::Config core;
  // Budget of every device; by default min(free, total / 2) of each.
  std::optional<Bytes> device_budget;
  // Whether blocks may be exported as CUDA_IPC.
  bool cuda_ipc = true;
  // For permits that declare bytes: the bytes that are never granted, and the size of a process's context; by default
  // the measured size.
  Bytes permit_reserve;
  std::optional<Bytes> context;
  service::ConnectionLimits connections;
  service::AttachLimits attach;
  // The memory above which another broker replaces the current one.
  Bytes broker_memory = kBrokerMemory;
  // The file to which the log of memory events is appended; by default none.
  std::optional<std::string> log_file;
  // Folder of the audit log, by default the state folder; and the bytes of all its files.
  std::optional<std::string> audit_folder;
  Bytes audit_size = service::kAuditSize;
  // The bytes of all files of the history together, and the number of leases in it.
  Bytes history_size = HistoryWriter::kSize;
  uint64_t history_rows = HistoryWriter::kRows;

  // The source of each value, by key; absent for default values.
  struct Origin {
    service::ConfigOrigin origin = service::ConfigOrigin::kDefault;
    std::string where;
  };
  std::map<std::string, Origin> origins;
};

// A key of the configuration file, and its value.
struct Setting {
  using Value =
      std::variant<uint32_t*, uint64_t*, bool*, Bytes*, absl::Duration*, Rate*, std::optional<uint64_t>*,
                   std::optional<Bytes>*, std::optional<std::string>*>;

  // Such as "memory.warm_blocks".
  std::string key;
  Value value;
  // The least number or time that the file may give, and the greatest number.
  int64_t least = 0;
  absl::Duration least_time = absl::ZeroDuration();
  uint64_t most = UINT64_MAX;
  // Whether a time may be "never".
  bool may_be_never = false;
  // Display of an unset value.
  const char* unset = "none";
  // True if a reload applies the value; otherwise it requires a new daemon.
  bool while_running = false;
};
// Returns the settings outside pools and tenants, in the order of display.
std::vector<Setting> AllSettings(Settings* settings);

// Reads a TOML file:
//   [pools.gpu-tests]
//   cap = 4
//   tenant_cap = 3
//   device_cap = 2
//   no_device_cap = 2
//   device_caps = {0 = 1}
//   ageing = "10m"
//   hold_warning = "1h"
//   hold_limit = "2h"
//   idle_warning = "10m"
//   weights = {1000 = 3, 1001 = 1}
//   [tenants]
//   permits = 8
//   [tenants.1000]
//   permits = 16
//   [tenants.1000.containers]
//   permits = 2
//   [memory]
//   device_budget = "100GiB"
//   tenant_budget = "50GiB"
//   session_budget = "20GiB"
//   warm_blocks = 2
//   warm_limit = "1GiB"
//   cuda_ipc = true
//   permit_reserve = "1GiB"
//   context = "600MiB"
//   [workers]
//   call_deadline = "10s"
//   call_deadline_per_gib = "100ms"
//   context_idle = "30s"
//   [log]
//   file = "/var/log/berth/memory.jsonl"
//   fences = false
//   audit_folder = "/var/log/berth"
//   audit_size = "32MiB"
//   [history]
//   size = "64MiB"
//   rows = 100000
//   [modules]
//   total = "256MiB"
//   tenant = "64MiB"
//   compile_patience = "2m"
//   [limits]
//   connections = 6144
//   connections_per_uid = 3072
//   calls_per_second = 100000
//   calls_per_second_per_uid = 200000
//   resets_per_second = 200
//   resets_per_second_per_uid = 800
//   accepts_per_second = 8000
//   accepts_per_second_per_uid = 2000
//   broker_memory = "2GiB"
//   attach_fds_per_uid = 12288
//   imports_per_process = 4096
//   streams_per_device = 16
// Errors: kNotFound; kInvalidArgument naming the file, the line or the key, and what was expected. Unknown keys are
// errors.
absl::StatusOr<Settings> ReadSettings(const std::string& path);
// Parses the text of a configuration file; errors and origins call it `name`.
absl::StatusOr<Settings> ParseSettings(const std::string& text, const std::string& name);

// Tells one content of the configuration file from a later one. Default: there is no file.
struct ConfigMark {
  uint64_t inode = 0;
  uint64_t size = 0;
  absl::Time written;

  friend bool operator==(const ConfigMark&, const ConfigMark&) = default;
};
ConfigMark MarkConfig(const Options& options);
// Returns whether a process has the configuration file open for writing, as far as the kernel reports it.
bool IsConfigBeingWritten(const Options& options);

// Marks an error as that of a file that another process still writes: a later read may succeed.
absl::Status AsBeingWritten(absl::Status error);
bool IsBeingWritten(const absl::Status& error);

// The content of the configuration file; empty if none is configured.
struct ConfigText {
  std::string text;
  ConfigMark mark;
  // A process had the file open for writing at the end of the read.
  bool being_written = false;
};

// Reads the configuration file. Reads again what has changed meanwhile. Errors: those of the system, naming the file;
// kInvalidArgument, marked by AsBeingWritten(), for a file that changes during each read; kAborted if the file has
// another mark than `complete`.
absl::StatusOr<ConfigText> ReadConfigText(const Options& options,
                                          const std::optional<ConfigMark>& complete = std::nullopt);
// Combines flags and a file's text; a flag overrides the file. Limits a user's connections to a part of the total.
// Notes the environment's cap of gpu-tests, which overrides both, in `origins`. Errors: ParseSettings()'s.
absl::StatusOr<Settings> CombineSettings(const Options& options, const std::string& text, const std::string& name);

// Checks the devices that the pools' `device_caps` name. Appends a text for each name of a device that is absent for
// now. Errors: kInvalidArgument naming file, line and key, as ResolvedDeviceCaps::mistake.
absl::Status CheckDeviceCaps(const Settings& settings, const std::vector<DeviceRecord>& devices,
                             std::vector<std::string>* absent);

// Builds the core's configuration, with device caps by UUID (ResolvedDeviceCaps::caps). Reads the environment's
// concurrency variables.
core::Config BuildConfig(uint64_t node, uint64_t incarnation, const std::vector<DeviceRecord>& devices,
                         const Settings& settings);

}  // namespace berth

#endif  // DAEMON_CONFIG_SETTINGS_H_
