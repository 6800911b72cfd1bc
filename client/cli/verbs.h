// The verbs of `berth`. Each Add…() describes one to the command line's parser; when it is the one that was
// asked for, it leaves what to do in `chosen`. One file per verb.

#ifndef CLIENT_CLI_VERBS_H_
#define CLIENT_CLI_VERBS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/cli/exit_status.h"
#include "client/inspector.h"
#include "client/session.h"

namespace berth::cli {

// What stands before the verb. Filled by the parser, so verbs look at it when they run.
struct Globals {
  std::string folder;
  bool admin = false;
  bool observer = false;
  bool json = false;
  // From a "--" on, that included: a command of somebody else's, which the parser must not see.
  std::vector<std::string> command;
};

using Verb = std::function<ExitStatus()>;

void AddAcquire(CLI::App& app, const Globals& globals, Verb* chosen);
void AddBlocks(CLI::App& app, const Globals& globals, Verb* chosen);
void AddBudget(CLI::App& app, const Globals& globals, Verb* chosen);
void AddBytes(CLI::App& app, const Globals& globals, Verb* chosen);
void AddConfig(CLI::App& app, const Globals& globals, Verb* chosen);
void AddCtestRun(CLI::App& app, const Globals& globals, Verb* chosen);
void AddCtestSpec(CLI::App& app, const Globals& globals, Verb* chosen);
void AddDevice(CLI::App& app, const Globals& globals, Verb* chosen);
void AddDevices(CLI::App& app, const Globals& globals, Verb* chosen);
void AddExplain(CLI::App& app, const Globals& globals, Verb* chosen);
void AddHealth(CLI::App& app, const Globals& globals, Verb* chosen);
void AddLog(CLI::App& app, const Globals& globals, Verb* chosen);
void AddModules(CLI::App& app, const Globals& globals, Verb* chosen);
void AddPermits(CLI::App& app, const Globals& globals, Verb* chosen);
void AddPlans(CLI::App& app, const Globals& globals, Verb* chosen);
void AddReap(CLI::App& app, const Globals& globals, Verb* chosen);
void AddRelease(CLI::App& app, const Globals& globals, Verb* chosen);
void AddReservations(CLI::App& app, const Globals& globals, Verb* chosen);
void AddReset(CLI::App& app, const Globals& globals, Verb* chosen);
void AddRun(CLI::App& app, const Globals& globals, Verb* chosen);
void AddSessions(CLI::App& app, const Globals& globals, Verb* chosen);
void AddStrays(CLI::App& app, const Globals& globals, Verb* chosen);
void AddStatus(CLI::App& app, const Globals& globals, Verb* chosen);
void AddStreams(CLI::App& app, const Globals& globals, Verb* chosen);
void AddTopology(CLI::App& app, const Globals& globals, Verb* chosen);
void AddUpgrade(CLI::App& app, const Globals& globals, Verb* chosen);

// For the parser's check(): what is wrong with `text` as a number from 1 on; empty if nothing. The parser's own
// conversion takes "-3" for a huge one.
std::string CheckCount(const std::string& text);

// Opens a session for looking (`admin`: on the operator's socket), lets `look` look, and reports how that
// went. It is a session of its own even inside another: looking at a job is no part of it.
ExitStatus Inspect(const Globals& globals, bool admin,
                   absl::FunctionRef<absl::Status(const Inspector&)> look);

// The same for what is wanted most when nothing else goes: with --admin it needs no session, and so neither fds nor
// room that clients could have taken.
ExitStatus LookAtNode(const Globals& globals, absl::FunctionRef<absl::Status(const Inspector&)> look);

// Opens such a session for what a verb does itself.
absl::StatusOr<std::shared_ptr<Session>> OpenFor(const Globals& globals, bool admin);

// Prints `message` as JSON where that is wanted, else what `for_people` makes of it.
absl::Status Show(const Globals& globals, const google::protobuf::Message& message,
                  absl::FunctionRef<std::string()> for_people);

}  // namespace berth::cli

#endif  // CLIENT_CLI_VERBS_H_
