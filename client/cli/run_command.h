// What `run` and `ctest-run` have in common: a command that runs while permits are held for it.

#ifndef CLIENT_CLI_RUN_COMMAND_H_
#define CLIENT_CLI_RUN_COMMAND_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/exit_status.h"
#include "client/cli/permit_wish.h"
#include "client/cli/verbs.h"
#include "client/session.h"

namespace berth::cli {

struct RunOptions {
  PermitWish wish;
  // Empty is "command".
  std::string until;
  bool exec = false;
  bool cgroup = false;
  // What the command is sent when its permit is taken away; empty for nothing.
  std::string on_revoke;
  std::vector<std::string> command;
  // Says more of the wish once there is a daemon to ask; may be empty.
  std::function<absl::Status(const std::shared_ptr<Session>&, PermitWish*)> complete;
};

// Adds the options, and what stands after them: the command. `options` lives as long as `verb`; `run` is what the verb
// does.
void AddRunOptions(CLI::App* verb, const Globals& globals, RunOptions* options, Verb* chosen, Verb run);

// Waits for the permits, runs the command, gives them back.
ExitStatus RunCommand(const Globals& globals, const RunOptions& options);

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_COMMAND_H_
