#include "daemon/run_broker.h"

#include <signal.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "daemon/broker_process.h"
#include "daemon/confinement.h"
#include "daemon/vault/broker_environment.h"
#include "daemon/vault/child_process.h"
#include "daemon/vault/starter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace berth {

namespace {

// Serves until the process ends, as the vault wants it to. Returns: whatever keeps it from that.
absl::Status Serve(const BrokerOptions& options) {
  // While there is one thread, and everything is allowed.
  LeaveBrokerEnvironment();
  BERTH_ASSIGN_OR_RETURN(Starter starter, Starter::Fork(options.vault_flags));
  BERTH_RETURN_IF_ERROR(NameProcess("berth-broker"));
  BERTH_RETURN_IF_ERROR(ConfineBroker());
  return BrokerProcess::Run(UniqueFd(options.custody_fd), {options.folder, options.state}, std::move(starter), options);
}

}  // namespace

int RunBroker(const BrokerOptions& options) {
  // Who reads the log may have gone; that must not end the leases.
  ::signal(SIGPIPE, SIG_IGN);
  // A vault that is started from here, and ends before this process.
  ::signal(SIGCHLD, SIG_IGN);
  // Output is for those who start the daemon; the log goes where errors go.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("berthd"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e berthd broker %l: %v");
  const absl::Status why = Serve(options);
  spdlog::critical("{}", std::string(why.message()));
  return absl::IsResourceExhausted(why) ? kExitForWant : 1;
}

}  // namespace berth
