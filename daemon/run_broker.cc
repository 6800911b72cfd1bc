#include "daemon/run_broker.h"

#include <signal.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/unique_fd.h"
#include "daemon/broker_process.h"
#include "daemon/core_config.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// The flags' word comes before the file's.
absl::StatusOr<Settings> CombineSettings(const BrokerOptions& options) {
  absl::StatusOr<Settings> settings = Settings{};
  if (!options.config.empty()) settings = ReadSettings(options.config);
  if (!settings.ok()) return settings;
  if (options.device_budget.has_value()) settings->device_budget = options.device_budget;
  if (options.warm_blocks.has_value()) settings->warm_blocks = options.warm_blocks;
  if (options.streams_per_device.has_value()) settings->streams_per_device = options.streams_per_device;
  if (options.call_deadline.has_value()) settings->call_deadline = options.call_deadline;
  if (options.context_idle.has_value()) settings->context_idle = options.context_idle;
  if (options.max_connections.has_value()) settings->connections = options.max_connections;
  return settings;
}

}  // namespace

int RunBroker(const BrokerOptions& options) {
  // Who reads the log may have gone; that must not end the leases.
  ::signal(SIGPIPE, SIG_IGN);
  // Output is for those who start the daemon; the log goes where errors go.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("berthd"));
  // Debian's abseil looks for deadlocks at every lock; what the order of ours is, clang and TSan check.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e berthd broker %l: %v");
  const absl::StatusOr<Settings> settings = CombineSettings(options);
  absl::Status status = settings.status();
  if (status.ok()) status = BrokerProcess::Run(UniqueFd(options.custody_fd), options.folder, *settings);
  spdlog::critical("{}", std::string(status.message()));
  return 1;
}

}  // namespace berth
