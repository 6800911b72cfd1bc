// What the broker is configured to be: the core's Config, from the devices that were found, the flags, the
// configuration file, and the environment.

#ifndef DAEMON_CORE_CONFIG_H_
#define DAEMON_CORE_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "daemon/core/core.h"
#include "daemon/device/device_record.h"
#include "daemon/options.h"
#include "daemon/service/accept_gate.h"
#include "daemon/service/config_source.h"
#include "daemon/service/connection_table.h"

namespace berth {

// What an operator may say, wherever it was said; empty where nothing was.
struct Settings {
  // The environment's word on the cap of gpu-tests comes first, then this, then 2.
  std::vector<core::PoolConfig> pools;
  core::QuotaTable quotas;
  // Of every device; by default min(free, total / 2) of each.
  std::optional<Bytes> device_budget;
  // Of every tenant and session on every device, unless an operator sets another; by default none.
  std::optional<Bytes> tenant_budget;
  std::optional<Bytes> session_budget;
  std::optional<uint32_t> warm_blocks;
  std::optional<Bytes> warm_limit;
  // Whether blocks may be exported as CUDA_IPC, and how long a context worker stays that nobody needs.
  std::optional<bool> cuda_ipc;
  std::optional<absl::Duration> context_idle;
  // For permits that declare bytes: what is never given to anybody, and what a process's context takes.
  std::optional<Bytes> permit_reserve;
  std::optional<Bytes> context;
  // How long a worker may be at one driver call, and for each GiB besides.
  std::optional<absl::Duration> call_deadline;
  std::optional<absl::Duration> call_deadline_per_gib;
  std::optional<uint32_t> connections;
  std::optional<uint32_t> connections_per_uid;
  // Of clients' connections: what may come on each and on all of a user's, and how fast a user's and all may come.
  std::optional<uint32_t> calls_per_second;
  std::optional<uint32_t> calls_per_second_per_uid;
  std::optional<uint32_t> resets_per_second;
  std::optional<uint32_t> resets_per_second_per_uid;
  std::optional<uint32_t> accepts_per_second;
  std::optional<uint32_t> accepts_per_second_per_uid;
  // Past which another broker takes the place of the one that there is.
  std::optional<Bytes> broker_memory;
  std::optional<uint32_t> attach_fds_per_uid;
  std::optional<uint32_t> imports_per_process;
  // Where the log of what happens to memory is appended; by default nowhere.
  std::optional<std::string> log_file;
  // Where the audit log is, by default in the folder of what is kept over restarts; and the bytes of all its files.
  std::optional<std::string> audit_folder;
  std::optional<Bytes> audit_size;
  // Of the history: the bytes of its files together, and the leases in it.
  std::optional<Bytes> history_size;
  std::optional<uint64_t> history_rows;
  // Whether the log of memory has the uses of shared blocks, too.
  std::optional<bool> log_fences;
  std::optional<uint32_t> streams_per_device;
  // Of compiled modules that are kept, and of one tenant's.
  std::optional<Bytes> module_bytes;
  std::optional<Bytes> module_bytes_per_tenant;
  // How long a process may compile before the next one may.
  std::optional<absl::Duration> compile_patience;

  // Where each value came from, by its key; of those that nobody gave there is none.
  struct Origin {
    service::ConfigOrigin origin = service::ConfigOrigin::kDefault;
    std::string where;
  };
  std::map<std::string, Origin> origins;
};

// Reads a TOML file:
//   [pools.gpu-tests]
//   cap = 4
//   tenant_cap = 3
//   device_cap = 2
//   device_caps = {GPU-0f1a = 1}
//   ageing = "10m"
//   hold_warning = "1h"
//   hold_limit = "2h"
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
//   connections = 4096
//   connections_per_uid = 3072
//   calls_per_second = 100000
//   calls_per_second_per_uid = 200000
//   resets_per_second = 200
//   resets_per_second_per_uid = 800
//   accepts_per_second = 4000
//   accepts_per_second_per_uid = 1000
//   broker_memory = "2GiB"
//   attach_fds_per_uid = 12288
//   imports_per_process = 4096
//   streams_per_device = 16
// Errors: kNotFound; kInvalidArgument naming the file, the line or the key, and what was expected. Unknown keys are
// errors.
absl::StatusOr<Settings> ReadSettings(const std::string& path);
// The same of a file's text, which errors and origins call `name`.
absl::StatusOr<Settings> ParseSettings(const std::string& text, const std::string& name);

// The text of the configuration file; empty where there is to be none. Errors: those of the system, naming the file.
absl::StatusOr<std::string> ReadConfigText(const BrokerOptions& options);
// What flags and a file's text say together: a flag's word comes before the file's. The environment's on the cap of
// gpu-tests, which comes before both, is noted. Errors: ParseSettings()'s.
absl::StatusOr<Settings> CombineSettings(const BrokerOptions& options, const std::string& text,
                                         const std::string& name);

// The bounds of clients' connections, by what was said of them.
service::ConnectionLimits MakeConnectionLimits(const Settings& settings);
service::AcceptRates MakeAcceptRates(const Settings& settings);

// Puts the core's configuration together. Reads the environment's concurrency variables.
core::Config MakeCoreConfig(uint64_t node, uint64_t incarnation, const std::vector<DeviceRecord>& devices,
                            const Settings& settings);

}  // namespace berth

#endif  // DAEMON_CORE_CONFIG_H_
