// The verbs of `berth`. Each Add…() function describes one verb to the command-line parser. If the user selected that
// verb, its callback stores the action in `chosen`. One file per verb.

#ifndef CLIENT_CLI_VERBS_H_
#define CLIENT_CLI_VERBS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <berth/session.h>

#include "CLI/CLI.hpp"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/cli/exit_status.h"
#include "client/sdk/admin/inspector.h"

namespace berth::cli {

// Global options, and the arguments after "--". The parser fills them, so verbs read them only when they run.
struct Globals {
  std::string folder;
  bool admin = false;
  bool observer = false;
  bool json = false;
  // The arguments from "--" on, including it: another program's command line, which the parser must not parse.
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
void AddStop(CLI::App& app, const Globals& globals, Verb* chosen);
void AddStreams(CLI::App& app, const Globals& globals, Verb* chosen);
void AddTopology(CLI::App& app, const Globals& globals, Verb* chosen);
void AddUpgrade(CLI::App& app, const Globals& globals, Verb* chosen);

// Validator for the parser's check(): returns the error in `text` as a number from 1 on; empty if valid. The parser's
// own conversion reads "-3" as a huge number.
std::string CheckCount(const std::string& text);

// The leases that a read-only verb shows.
enum class Sight {
  // Only those of the caller's tenant.
  kOwn,
  // Those of every tenant.
  kAll,
};

// Opens a session for reading if needed. Without --admin and --observer: an observer's session if this user may use
// observer.sock (root, the daemon's user, the observers' group), otherwise one of the caller's tenant.
struct View {
  std::shared_ptr<Session> session;
  Sight sight;
};
absl::StatusOr<View> OpenView(const Globals& globals);

// Opens a view, calls `look`, and reports the result.
ExitStatus Look(const Globals& globals, absl::FunctionRef<absl::Status(const Inspector&, Sight)> look);

// For an empty list: "no blocks", or "no blocks of yours" with a hint how to see those of others; `where` follows
// "blocks" in both cases.
std::string NoneOf(absl::string_view what, Sight sight, absl::string_view where = "");
// Returns the line below a list that may lack other tenants' entries; empty if the list is complete.
std::string LacksOthers(Sight sight);

// Opens a session (`admin`: on the operator's socket), calls `look`, and reports the result. Always opens a new
// session, even inside another session: inspecting a job is not part of the job.
ExitStatus Inspect(const Globals& globals, bool admin,
                   absl::FunctionRef<absl::Status(const Inspector&)> look);

// As Inspect(), for actions that users may perform on their own leases and operators on all leases: uses the operator's
// socket if this user has access to it.
ExitStatus Act(const Globals& globals, absl::FunctionRef<absl::Status(const Inspector&)> act);

// As Inspect(), for verbs that must work on an overloaded node: with --admin it opens no session, and so needs no fds
// and no capacity that clients could have exhausted.
ExitStatus LookAtNode(const Globals& globals, absl::FunctionRef<absl::Status(const Inspector&)> look);

// Calls `follow`, a view that waits for news, with an inspector of the same session. The view also ends when stdout has
// no reader any more (client/cli/reader_watch.h).
absl::Status Follow(const Inspector& inspector, absl::FunctionRef<absl::Status(const Inspector&)> follow);

// Opens a session as Inspect() does, for a verb that uses it directly.
absl::StatusOr<std::shared_ptr<Session>> OpenFor(const Globals& globals, bool admin);

// Prints `message` as JSON with --json, otherwise the text that `for_people` returns.
absl::Status Show(const Globals& globals, const google::protobuf::Message& message,
                  absl::FunctionRef<std::string()> for_people);

}  // namespace berth::cli

#endif  // CLIENT_CLI_VERBS_H_
