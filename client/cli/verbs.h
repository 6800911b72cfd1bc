// The verbs of `berth`. Each Add…() function describes one verb to the command-line parser (command.h), with the
// action that the verb runs. One file per verb.

#ifndef CLIENT_CLI_VERBS_H_
#define CLIENT_CLI_VERBS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <berth/session.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "client/sdk/admin/inspector.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

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

void AddAcquire(Command app, const Globals& globals);
void AddBlocks(Command app, const Globals& globals);
void AddBudget(Command app, const Globals& globals);
void AddBytes(Command app, const Globals& globals);
void AddConfig(Command app, const Globals& globals);
void AddCtestRun(Command app, const Globals& globals);
void AddCtestSpec(Command app, const Globals& globals);
void AddDevice(Command app, const Globals& globals);
void AddDevices(Command app, const Globals& globals);
void AddExplain(Command app, const Globals& globals);
void AddHealth(Command app, const Globals& globals);
void AddLog(Command app, const Globals& globals);
void AddModules(Command app, const Globals& globals);
void AddPermits(Command app, const Globals& globals);
void AddPlans(Command app, const Globals& globals);
void AddReap(Command app, const Globals& globals);
void AddRelease(Command app, const Globals& globals);
void AddReservations(Command app, const Globals& globals);
void AddReset(Command app, const Globals& globals);
void AddRun(Command app, const Globals& globals);
void AddSessions(Command app, const Globals& globals);
void AddStrays(Command app, const Globals& globals);
void AddStatus(Command app, const Globals& globals);
void AddStop(Command app, const Globals& globals);
void AddStreams(Command app, const Globals& globals);
void AddTopology(Command app, const Globals& globals);
void AddUpgrade(Command app, const Globals& globals);

// Validator for the parser's check(): returns the error in `text` as a number from 1 on; empty if valid. The parser's
// own conversion reads "-3" as a huge number.
std::string CheckCount(const std::string& text);

// Checks an id for Option::Check(). The error names the command that lists the ids, e.g. "sessions".
std::function<std::string(const std::string&)> CheckIdIn(const char* list);

// The leases that a read-only verb shows.
enum class Sight {
  // Only those of the caller's tenant.
  kOwn,
  // The leases of every tenant.
  kAll,
};

// Opens a session for reading if needed. Without --admin and --observer: an observer's session if this user may use
// observer.sock (root, the daemon's user, the observers' group), otherwise one of the caller's tenant.
struct View {
  std::shared_ptr<Session> session;
  Sight sight;
};
absl::StatusOr<View> OpenView(const Globals& globals);

// Opens a view, calls `look`, and reports the result. Reports on stderr if the daemon cannot read its ledger.
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

// Reports on stderr that the daemon cannot save the operators' settings, after a verb has changed one of them.
void ComplainOfUnsavedSettings(const Inspector& inspector);

// Opens a session as Inspect() does, for a verb that uses it directly.
absl::StatusOr<std::shared_ptr<Session>> OpenFor(const Globals& globals, bool admin);

// Prints `message` as JSON with --json, otherwise the text that `for_people` returns.
absl::Status Show(const Globals& globals, const google::protobuf::Message& message,
                  absl::FunctionRef<std::string()> for_people);

}  // namespace berth::cli

#endif  // CLIENT_CLI_VERBS_H_
