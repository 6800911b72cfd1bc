#include "daemon/server/run_broker.h"

#include <signal.h>
#include <stdlib.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "daemon/base/stderr_log.h"
#include "daemon/config/last_good_config.h"
#include "daemon/server/broker_process.h"
#include "daemon/server/confinement.h"
#include "daemon/supervisor/processes/broker_environment.h"
#include "daemon/supervisor/processes/child_process.h"
#include "daemon/supervisor/processes/launcher.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace berth {

namespace {

// The base class's lock protects the formatter.
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    LogLine(absl::StripSuffix({line.data(), line.size()}, "\n"));
  }
  void flush_() override { StderrLog().Flush(); }
};

// Serves until the supervisor ends the process. Returns only the error that keeps the broker from serving.
absl::Status Serve(const Options& options) {
  // These steps require a single thread and full privileges.
  LeaveBrokerEnvironment();
  std::vector<std::string> supervisor_flags = FlagsForChildren(options);
  // The file of this program may have another path by now.
  if (!options.program.empty()) supervisor_flags.push_back(absl::StrCat("--program=", options.program));
  BERTH_ASSIGN_OR_RETURN(Launcher launcher, Launcher::Fork(std::move(supervisor_flags)));
  BERTH_RETURN_IF_ERROR(NameProcess("berth-broker"));
  BERTH_RETURN_IF_ERROR(ConfineBroker());
  return BrokerProcess::Run(UniqueFd(kChildFd), std::move(launcher), options);
}

}  // namespace

int RunBroker(const Options& options) {
  // The reader of the log may be dead; that must not end the leases.
  ::signal(SIGPIPE, SIG_IGN);
  // Reap a supervisor that is started from here and ends before this process.
  ::signal(SIGCHLD, SIG_IGN);
  // gRPC aborts for an engine that it does not know, or that does not poll.
  ::unsetenv("GRPC_POLL_STRATEGY");
  // stdout is for the user who starts the daemon; the log goes to stderr.
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("berthd", std::make_shared<StderrSink>()));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e%z berthd broker %l: %v");
  const absl::Status why = Serve(options);
  spdlog::critical("cannot serve: {}; exiting", std::string(why.message()));
  if (absl::IsResourceExhausted(why)) return kExitForWant;
  return IsConfigurationMistake(why) ? kExitForConfiguration : 1;
}

}  // namespace berth
