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

int RunBroker(const BrokerOptions& options) {
  // Who reads the log may have gone; that must not end the leases.
  ::signal(SIGPIPE, SIG_IGN);
  // A vault that is started from here, and ends before this process.
  ::signal(SIGCHLD, SIG_IGN);
  // Output is for those who start the daemon; the log goes where errors go.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("berthd"));
  // Debian's abseil looks for deadlocks at every lock; what the order of ours is, clang and TSan check.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e berthd broker %l: %v");
  const absl::StatusOr<Settings> settings = CombineSettings(options);
  absl::Status status = settings.status();
  if (status.ok()) {
    status = BrokerProcess::Run(UniqueFd(options.custody_fd), {options.folder, options.state}, options.vault_flags,
                                *settings, [options] { return CombineSettings(options); });
  }
  spdlog::critical("{}", std::string(status.message()));
  return 1;
}

}  // namespace berth
