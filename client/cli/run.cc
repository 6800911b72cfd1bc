#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/child.h"
#include "client/cli/format.h"
#include "client/cli/signal_relay.h"
#include "client/cli/verbs.h"
#include "client/cli/wait_notice.h"
#include "client/permit.h"
#include "common/error.h"
#include "common/label.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// What ends with this process anyway is not waited for longer.
constexpr absl::Duration kEndPatience = absl::Seconds(2);

struct Options {
  std::string pool;
  uint64_t units = 1;
  std::string timeout;
  bool no_wait = false;
  std::string until = "command";
  std::string label;
  bool independent = false;
  bool quiet = false;
  std::vector<std::string> command;
};

// Says what failed and how `run` ends for it.
ExitStatus Fail(const absl::Status& status, int code) {
  ::fprintf(stderr, "berth: %s\n", std::string(status.message()).c_str());
  return {.code = code};
}

ExitStatus FailedToOpen(const absl::Status& status) {
  const ExitStatus end = Report(status);
  return end.code == kFailed ? ExitStatus{.code = kRunFailed} : end;
}

ExitStatus FailedToAcquire(const absl::Status& status, const Options& options, const SignalRelay& relay) {
  if (const int signal = relay.interrupted_by(); signal != 0) return {.code = 128 + signal, .signal = signal};
  // A wait of no time at all ends with the one or the other refusal; the code says which option asked for it.
  if (IsRefusal(status, Reason::kNoPermit) || IsRefusal(status, Reason::kWaitTimedOut)) {
    return Fail(status, options.no_wait ? kNotGranted : kTimedOut);
  }
  return FailedToOpen(status);
}

ExitStatus FailedToSpawn(const absl::Status& status) {
  if (absl::IsNotFound(status)) return Fail(status, kCommandNotFound);
  return Fail(status, absl::IsFailedPrecondition(status) ? kCannotExecute : kRunFailed);
}

// The label where none was given: the command's name, as far as it can be one.
std::string LabelOf(const Options& options) {
  if (!options.label.empty()) return options.label;
  const std::string& program = options.command[0];
  return ToLabel(absl::string_view(program).substr(program.rfind('/') + 1));
}

absl::StatusOr<Permit> Acquire(const std::shared_ptr<Session>& session, const Options& options,
                               absl::Duration max_wait, SignalRelay& relay) {
  std::optional<WaitNotice> notice;
  if (!options.quiet && max_wait > WaitNotice::kPatience) notice.emplace(session, options.pool);
  return Permit::Acquire(session, {.pool = options.pool,
                                   .units = options.units,
                                   .label = LabelOf(options),
                                   .max_wait = max_wait,
                                   .holder_key = absl::StrCat("run-", ::getpid(), "-", absl::Hex(RandomId())),
                                   .independent = options.independent,
                                   // Beside an adoptable permit another one would make it a matter of luck
                                   // which is adopted.
                                   .adoptable = !(options.independent && session->joined()),
                                   .cancellation = &relay.cancellation()});
}

absl::StatusOr<pid_t> Spawn(Session& session, const Options& options, const SignalRelay& relay) {
  BERTH_ASSIGN_OR_RETURN(std::string inherited, session.Inherit());
  const std::vector<std::string> environment =
      EnvironmentWith({std::move(inherited), absl::StrCat("BERTH_FOLDER=", session.folder())});
  return SpawnCommand(options.command, environment, relay.original_mask());
}

ExitStatus Run(const Globals& globals, const Options& options) {
  absl::Duration max_wait = absl::InfiniteDuration();
  if (options.no_wait) {
    max_wait = absl::ZeroDuration();
  } else if (!options.timeout.empty()) {
    const absl::StatusOr<absl::Duration> timeout = ParseWait(options.timeout);
    if (!timeout.ok()) return Fail(timeout.status(), kUsage);
    max_wait = *timeout;
  }
  const absl::StatusOr<std::unique_ptr<SignalRelay>> started = SignalRelay::Start();
  if (!started.ok()) return Fail(started.status(), kRunFailed);
  SignalRelay& relay = **started;

  const absl::StatusOr<std::shared_ptr<Session>> session =
      Session::Open({.folder = globals.folder, .label = LabelOf(options), .admin = globals.admin});
  if (!session.ok()) return FailedToOpen(session.status());
  absl::StatusOr<Permit> permit = Acquire(*session, options, max_wait, relay);
  if (!permit.ok()) return FailedToAcquire(permit.status(), options, relay);
  if (const int signal = relay.interrupted_by(); signal != 0) return {.code = 128 + signal, .signal = signal};

  const absl::StatusOr<pid_t> child = Spawn(**session, options, relay);
  if (!child.ok()) return FailedToSpawn(child.status());
  relay.PassTo(*child);
  AwaitEnd(*child);
  relay.Stop();
  const ExitStatus status = Reap(*child);

  if (options.until == "tree") {
    // The lifeline's last holder ends the session, and with it the permit.
    permit->Leave();
    return status;
  }
  // What fails here the end of this process makes good.
  permit->Release().IgnoreError();
  if (!(*session)->joined()) (*session)->End(kEndPatience).IgnoreError();
  return status;
}

}  // namespace

void AddRun(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand(
      "run", "Run a command while holding permits: berth run [OPTIONS] -- COMMAND [ARGUMENTS]...");
  verb->footer(
      "Ends as the command does: with its code, or by its signal. Else\n"
      "  124  no permit in time (--timeout)\n"
      "  75   no permit free (--no-wait)\n"
      "  69   no daemon answers\n"
      "  77   not allowed\n"
      "  64   a wrong command line\n"
      "  126  the command cannot be executed; 127: it is not there\n"
      "  125  anything else");
  const auto options = std::make_shared<Options>();
  verb->add_option("--pool", options->pool, "The pool (default: gpu-tests)");
  verb->add_option("--permits", options->units, "Units to take (default: 1)")->check(CheckCount);
  auto* const timeout = verb->add_option("--timeout", options->timeout,
                                         "Wait at most so long, e.g. 90, 5m (default: for ever)");
  verb->add_flag("--no-wait", options->no_wait, "Do not wait at all")->excludes(timeout);
  verb->add_option("--until", options->until,
                   "Hold until the command has ended (command, the default), or until its whole tree of "
                   "processes has (tree)")
      ->check(CLI::IsMember({"command", "tree"}));
  verb->add_option("--label", options->label, "What others see (default: the command's name)");
  verb->add_flag("--independent", options->independent,
                 "Inside another `berth run`: take permits besides its own");
  verb->add_flag("--quiet", options->quiet, "Do not say who holds what is waited for");
  // From the first word that is no option of run's on, every word is the command's, with and without "--".
  verb->fallthrough(false);
  verb->prefix_command();
  verb->callback([&globals, chosen, options, verb] {
    // A command that stood before the "--" has that as a word of its own.
    options->command = verb->remaining();
    const bool ended = !globals.command.empty() && options->command.empty();
    options->command.insert(options->command.end(), globals.command.begin() + (ended ? 1 : 0),
                            globals.command.end());
    if (!ended && !options->command.empty() && absl::StartsWith(options->command[0], "-")) {
      throw CLI::ExtrasError({options->command[0]});
    }
    if (options->command.empty()) throw CLI::RequiredError("COMMAND");
    *chosen = [&globals, options] { return Run(globals, *options); };
  });
}

}  // namespace berth::cli
