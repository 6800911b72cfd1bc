#include "client/cli/run_command.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/cgroup.h"
#include "client/cli/child.h"
#include "client/cli/permit_notice.h"
#include "client/cli/permit_wish.h"
#include "client/cli/signal_relay.h"
#include "client/permit.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// What ends with this process anyway is not waited for longer.
constexpr absl::Duration kEndPatience = absl::Seconds(2);

// Says what failed and how `run` ends for it.
ExitStatus Fail(const absl::Status& status, int code) {
  ::fprintf(stderr, "berth: %s\n", std::string(status.message()).c_str());
  return {.code = code};
}

ExitStatus FailedToStart(const absl::Status& status) {
  if (absl::IsNotFound(status)) return Fail(status, kCommandNotFound);
  return Fail(status, absl::IsFailedPrecondition(status) ? kCannotExecute : kRunFailed);
}

ExitStatus InterruptedBy(int signal) { return {.code = 128 + signal, .signal = signal}; }

// Becomes the command, which the daemon knows by its pid already: the permit is out until it has ended, whatever it
// closes, and until everybody has who inherits the session from it.
ExitStatus Become(const RunOptions& options, const std::vector<std::string>& environment,
                  SignalRelay& relay) {
  relay.Stop();
  if (const int signal = relay.interrupted_by(); signal != 0) return InterruptedBy(signal);
  return FailedToStart(ExecCommand(options.command, environment));
}

// Runs the command, and waits for what it leaves in its cgroup, if it has one.
ExitStatus Attend(const RunOptions& options, const std::vector<std::string>& environment,
                  SignalRelay& relay) {
  std::optional<Cgroup> cgroup;
  if (options.cgroup) {
    absl::StatusOr<Cgroup> made = Cgroup::Make();
    if (!made.ok()) return Fail(made.status(), kRunFailed);
    cgroup.emplace(*std::move(made));
  }
  const absl::StatusOr<pid_t> child = SpawnCommand(options.command, EnvironmentWith(environment),
                                                   relay.original_mask(), cgroup ? cgroup->fd() : -1);
  if (!child.ok()) return FailedToStart(child.status());
  relay.PassTo(*child);
  AwaitEnd(*child);
  if (cgroup) {
    relay.PassTo([&](int signal) { cgroup->Signal(signal); });
    cgroup->AwaitEmpty();
  }
  relay.Stop();
  return Reap(*child);
}

}  // namespace

ExitStatus RunCommand(const Globals& globals, const RunOptions& options) {
  const absl::Status sensible = Check(options.wish);
  if (!sensible.ok()) return Fail(sensible, kUsage);
  const absl::StatusOr<std::unique_ptr<SignalRelay>> started = SignalRelay::Start();
  if (!started.ok()) return Fail(started.status(), kRunFailed);
  SignalRelay& relay = **started;

  PermitWish wish = options.wish;
  const std::string label = LabelOf(wish, options.command[0]);
  const absl::StatusOr<std::shared_ptr<Session>> session =
      Session::Open({.folder = globals.folder, .label = label, .admin = globals.admin, .observer = globals.observer});
  if (!session.ok()) return FailedToAcquire(session.status(), options.wish);
  if (options.complete != nullptr) {
    const absl::Status completed = options.complete(*session, &wish);
    if (!completed.ok()) return FailedToAcquire(completed, wish);
  }
  // As if somebody had sent this process the signal.
  wish.on_event = NoticeOfPermit(options.on_revoke, [](int signal) { ::kill(::getpid(), signal); });
  absl::StatusOr<HeldPermits> permits = AcquireWish(*session, wish, label, &relay.cancellation());
  if (const int signal = relay.interrupted_by(); signal != 0) return InterruptedBy(signal);
  if (!permits.ok()) return FailedToAcquire(permits.status(), wish);

  const absl::StatusOr<std::vector<std::string>> environment = EnvironmentOf(**session, *permits);
  if (!environment.ok()) return Fail(environment.status(), kRunFailed);
  if (options.exec) return Become(options, EnvironmentWith(*environment), relay);
  const ExitStatus status = Attend(options, *environment, relay);
  if (options.until == "tree") {
    // The lifeline's last holder ends the session, and with it the permit.
    permits->Leave();
    return status;
  }
  // With the session its permits are back.
  if (!(*session)->joined() && (*session)->End(kEndPatience).ok()) ExitNow(status);
  permits->Release();
  return status;
}

void AddRunOptions(CLI::App* verb, const Globals& globals, RunOptions* options, Verb* chosen, Verb run) {
  verb->footer(absl::StrCat("Ends as the command does: with its code, or by its signal. Else\n",
                            kPermitExitCodes,
                            "  126  the command cannot be executed; 127: it is not there\n"
                            "  125  anything else"));
  AddPermitOptions(verb, &options->wish);
  auto* const until =
      verb->add_option("--until", options->until,
                       "Hold until the command has ended (command, the default), or until its whole tree of "
                       "processes has (tree)")
          ->check(CLI::IsMember({"command", "tree"}));
  auto* const exec =
      verb->add_flag("--exec", options->exec,
                     "Become the command, with no process beside it; holds as --until=tree does, and "
                     "until the command itself has ended");
  verb->add_flag(
          "--cgroup", options->cgroup,
          "Run the command in a control group of its own, and hold and wait until the last process in it has "
          "ended, whatever it closed")
      ->excludes(until)
      ->excludes(exec);
  AddOnRevoke(verb, "the command", &options->on_revoke)->excludes(exec);
  exec->excludes(until);
  // From the first word that is no option of the verb's on, every word is the command's, with and without "--".
  verb->fallthrough(false);
  verb->prefix_command();
  verb->callback([&globals, chosen, options, verb, run = std::move(run)] {
    // A command that stood before the "--" has that as a word of its own.
    options->command = verb->remaining();
    const bool ended = !globals.command.empty() && options->command.empty();
    options->command.insert(options->command.end(), globals.command.begin() + (ended ? 1 : 0),
                            globals.command.end());
    if (!ended && !options->command.empty() && absl::StartsWith(options->command[0], "-")) {
      throw CLI::ExtrasError({options->command[0]});
    }
    if (options->command.empty()) throw CLI::RequiredError("COMMAND");
    *chosen = run;
  });
}

}  // namespace berth::cli
