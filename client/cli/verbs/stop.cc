#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/cli/format.h"
#include "client/cli/outstanding.h"
#include "client/cli/verbs.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "common/time_span.h"

namespace berth::cli {
namespace {

// A stop takes the daemon at most a second, but the machine may be busy.
constexpr absl::Duration kEndPatience = absl::Seconds(10);
constexpr absl::Duration kPause = absl::Milliseconds(10);

struct Options {
  bool drain = false;
  std::string timeout;
  bool end_leases = false;
  bool yes = false;
};

constexpr char kUnreadableEffect[] =
    "The stop leaves the ledger as it is: the next daemon that can read it resumes its permits and waiting requests. "
    "Blocks are lost.\n";

// Returns how long to wait until no lease is left.
absl::Duration DrainTime(const Options& options) {
  if (!options.drain) return absl::ZeroDuration();
  return options.timeout.empty() ? absl::InfiniteDuration() : *ParseTimeSpan(options.timeout);
}

std::string Effect(const Options& options) {
  if (options.drain) {
    // Only a drain with a timeout leaves leases.
    const std::string left = options.end_leases
                                 ? "Leases that are out then end, and their processes continue.\n"
                                 : "Permits that are out then survive the stop. Blocks are lost.\n";
    return absl::StrCat("While this command runs, the daemon grants nothing. It stops when every lease has ended",
                        options.timeout.empty()
                            ? ".\n"
                            : absl::StrCat(", or after ", absl::FormatDuration(DrainTime(options)), ".\n", left),
                        "If the command is interrupted, the daemon grants again.\n");
  }
  if (options.end_leases) return "The stop ends every lease and notifies the holders; their processes continue.\n";
  return "Permits and waiting requests survive the stop: the next daemon resumes them. Blocks are lost.\n";
}

// Returns whether a process accepts connections on the socket.
bool Accepts(const std::string& path) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) return false;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN;
}

absl::Status AwaitEnd(const std::string& folder) {
  const absl::Time deadline = SteadyNow() + kEndPatience;
  while (Accepts(folder + "/admin.sock")) {
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the daemon in ", folder, " still serves after ",
                                                      absl::FormatDuration(kEndPatience), ": see the daemon's log"));
    }
    absl::SleepFor(kPause);
  }
  return absl::OkStatus();
}

absl::Status Stop(const Globals& globals, const Options& options, absl::Duration drain, const Session& session,
                  const Inspector& inspector) {
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  if (!node.ledger_unreadable()) {
    BERTH_ASSIGN_OR_RETURN(const Outstanding out, LookAtOutstanding(inspector));
    if (!out.empty()) {
      BERTH_RETURN_IF_ERROR(
          Confirm(absl::StrCat(Describe(out, absl::Now()), Effect(options)), "Stop the daemon?", options.yes));
    }
  } else if (!options.drain && !options.end_leases) {
    BERTH_RETURN_IF_ERROR(
        Confirm(absl::StrCat(node.ledger_fault(), "\n", kUnreadableEffect), "Stop the daemon?", options.yes));
  }
  BERTH_ASSIGN_OR_RETURN(const v1::StopNodeResponse answer, inspector.StopNode(drain, options.end_leases));
  BERTH_RETURN_IF_ERROR(AwaitEnd(session.folder()));
  return Show(globals, answer, [&] {
    if (node.ledger_unreadable()) return std::string("stopped; the ledger stays as it is\n");
    return absl::StrCat("stopped with ", CountOf(answer.units(), "unit"), " and ", CountOf(answer.blocks(), "block"),
                        options.end_leases ? " taken from " : " held by ", CountOf(answer.sessions(), "session"), "\n");
  });
}

}  // namespace

void AddStop(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("stop", "Stop the daemon (operator); lists the leases in use, and asks first");
  verb.SetFooter(
      "Permits survive a stop: jobs continue, and the next daemon resumes their leases. Blocks are lost.\n"
      "Ends with 1 if leases are in use, no terminal can answer, and --yes is not given.");
  const auto options = std::make_shared<Options>();
  const Option drain =
      verb.AddFlag("--drain", &options->drain, "First grant no more permits, and wait until no lease is in use");
  verb.AddOption("--timeout", &options->timeout,
                 "The longest wait of --drain, after which the daemon stops in any case, e.g. 90 (seconds) or 5m "
                 "(default: no limit)")
      .Parses(&ParseTimeSpan)
      .Needs(drain);
  verb.AddFlag("--end-leases", &options->end_leases, "End every lease, and notify the holders");
  verb.AddFlag("--yes", &options->yes, "Do not ask");
  verb.Runs([&globals, options]() -> ExitStatus {
    const absl::StatusOr<std::shared_ptr<Session>> session = OpenFor(globals, /*admin=*/true);
    if (IsRefusal(session.status(), Reason::kLedgerFull)) {
      return Report(absl::FailedPreconditionError(absl::StrCat(
          session.status().message(), "; SIGTERM stops the daemon without a session, as `systemctl stop` sends it")));
    }
    if (!session.ok()) return Report(session.status());
    return Report(Stop(globals, *options, DrainTime(*options), **session, Inspector(*session)));
  });
}

}  // namespace berth::cli
