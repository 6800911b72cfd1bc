// The common part of `run` and `ctest-run`: runs a command while holding permits for it.

#ifndef CLIENT_CLI_RUN_RUN_COMMAND_H_
#define CLIENT_CLI_RUN_RUN_COMMAND_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <berth/session.h>

#include "absl/status/status.h"
#include "client/cli/exit_status.h"
#include "client/cli/run/permit_request.h"
#include "client/cli/run/run_report.h"
#include "client/cli/verbs.h"

namespace berth::cli {

struct RunOptions {
  PermitRequest request;
  // "command" or "tree"; empty is "command".
  std::string until;
  bool exec = false;
  bool cgroup = false;
  // Name of the signal that the command receives when its permit is revoked; empty: no signal.
  std::string on_revoke;
  RunReportOptions report;
  std::vector<std::string> command;
  // Completes the PermitRequest once a session with the daemon is open; may be empty.
  std::function<absl::Status(const std::shared_ptr<Session>&, PermitRequest*)> complete;
};

// Adds the options, and the command as the remaining arguments. `options` must live as long as `verb`. `run` implements
// the verb.
void AddRunOptions(Command verb, const Globals& globals, RunOptions* options, Verb run);

// Waits for the permits, runs the command, returns the permits.
ExitStatus RunCommand(const Globals& globals, const RunOptions& options);

// Ends a verb that found before RunCommand() that no command will run. Requires: `end.not_run` has the reason.
ExitStatus DidNotRun(const RunOptions& options, const ExitStatus& end);

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_RUN_COMMAND_H_
