#include "client/cli/run/run_command.h"

#include <stdio.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/permit.h>

#include "absl/strings/str_cat.h"
#include "client/cli/run/cgroup.h"
#include "client/cli/run/child.h"
#include "client/cli/run/permit_notice.h"
#include "client/cli/run/permit_request.h"
#include "client/cli/run/signal_relay.h"
#include "client/sdk/transport/session_core.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Prints the error, and returns how `run` ends for it.
ExitStatus Fail(const absl::Status& status, int code = kRunFailed, absl::string_view reason = "failed") {
  Complain(status.message());
  return {.code = code, .not_run = reason};
}

ExitStatus FailedToStart(const absl::Status& status) {
  if (absl::IsNotFound(status)) return Fail(status, kCommandNotFound, "not-found");
  if (absl::IsFailedPrecondition(status)) return Fail(status, kCannotExecute, "not-executable");
  return Fail(status);
}

ExitStatus InterruptedBy(int signal) {
  return {.code = 128 + signal, .signal = signal, .not_run = "interrupted"};
}

// Replaces this process by the command; the daemon already knows its pid. The permit stays in use until the command has
// ended, whatever fds it closes, and until every process that inherits the session from it has ended.
ExitStatus Become(const RunOptions& options, const std::vector<std::string>& environment,
                  SignalRelay& relay, RunReport& report) {
  relay.Stop();
  if (const int signal = relay.interrupted_by(); signal != 0) return InterruptedBy(signal);
  report.Becomes();
  return FailedToStart(ExecCommand(options.command, environment));
}

// Runs the command, and waits for the processes it leaves in its cgroup, if it has one.
ExitStatus Attend(const RunOptions& options, const std::vector<std::string>& environment,
                  SignalRelay& relay, RunReport& report, PermitNotice& notice) {
  std::optional<Cgroup> cgroup;
  if (options.cgroup) {
    absl::StatusOr<Cgroup> made = Cgroup::Make();
    if (!made.ok()) return Fail(made.status());
    cgroup.emplace(*std::move(made));
  }
  const absl::StatusOr<pid_t> child =
      relay.StartCommand(options.command, EnvironmentWith(environment), cgroup ? cgroup->fd() : -1);
  if (const int signal = relay.interrupted_by(); signal != 0) return InterruptedBy(signal);
  if (!child.ok()) return FailedToStart(child.status());
  report.Started();
  AwaitEnd(*child, [&relay](int signal) { relay.StopAs(signal); });
  std::optional<ExitStatus> ran;
  if (cgroup) {
    // From here on no signal is sent to the command's pid.
    relay.PassTo([&](int signal, bool to_group) { cgroup->Signal(signal, to_group); });
    ran = Reap(*child);
    cgroup->AwaitEmpty();
  }
  notice.StopSending();
  relay.Stop();
  return ran.has_value() ? *ran : Reap(*child);
}

// Reports on stderr that the permit ended before its release. The command ended with `status`.
void SayPermitEnded(const ExitStatus& status, const std::optional<EndNotice>& ended, PermitNotice& notice) {
  if (!ended.has_value()) return;
  // In case the SDK's thread has not delivered the event yet.
  notice.Take({.what = PermitEvent::kEnded, .end = *ended});
  Complain(
      absl::StrCat("exit code ", kPermitEnded, ": the permit ended before its release; the command ended with ",
                   status.signal == 0 ? absl::StrCat("code ", status.code) : absl::StrCat("signal ", status.signal)));
}

// Implements RunCommand() except for the report of a command that did not run.
ExitStatus RunHolding(const Globals& globals, const RunOptions& options, RunReport& report) {
  const absl::Status sensible = Check(options.request);
  if (!sensible.ok()) return Fail(sensible, kUsage, "usage");
  const absl::StatusOr<std::unique_ptr<SignalRelay>> started = SignalRelay::Start();
  if (!started.ok()) return Fail(started.status());
  SignalRelay& relay = **started;

  PermitRequest request = options.request;
  const std::string label = LabelOf(request, options.command[0]);
  const absl::StatusOr<std::shared_ptr<Session>> session =
      Session::Open({.folder = globals.folder,
                     .label = label,
                     .admin = globals.admin,
                     .observer = globals.observer,
                     .on_silence = options.request.quiet ? nullptr : &ComplainOfSilence});
  if (!session.ok()) return FailedToAcquire(session.status(), options.request);
  if (options.complete != nullptr) {
    const absl::Status completed = options.complete(*session, &request);
    if (!completed.ok()) return FailedToAcquire(completed, request);
  }
  // A waiter that stops by the terminal leaves the queue first, and returns to its place.
  const std::weak_ptr<Session> waiting = *session;
  relay.AroundStop(
      [waiting] {
        if (const std::shared_ptr<Session> stops = waiting.lock()) stops->core()->PauseWaits();
      },
      [waiting] {
        if (const std::shared_ptr<Session> continues = waiting.lock()) continues->core()->ContinueWaits();
      });
  const auto notice =
      std::make_shared<PermitNotice>(options.on_revoke, [&relay](int signal) { relay.Send(signal); });
  request.on_event = [notice](const PermitEvent& event) { notice->Take(event); };
  absl::StatusOr<HeldPermits> permits = AcquirePermits(*session, request, label, &relay.cancellation());
  if (const int signal = relay.interrupted_by(); signal != 0) return InterruptedBy(signal);
  if (!permits.ok()) return FailedToAcquire(permits.status(), request);

  const absl::StatusOr<std::vector<std::string>> environment = EnvironmentOf(**session, *permits, request);
  if (!environment.ok()) return Fail(environment.status());
  if (options.exec) return Become(options, EnvironmentWith(*environment), relay, report);
  const ExitStatus ran = Attend(options, *environment, relay, report, *notice);
  // The end of this process brings about all that no daemon answers now.
  (*session)->core()->BeginLastReturns();
  if (!ran.not_run.empty()) return ran;
  if (options.until == "tree") {
    const std::optional<EndNotice> ended = permits->AwaitEnd();
    SayPermitEnded(ran, ended, *notice);
    // The last process that holds the lifeline ends the session, and with it the permit.
    permits->Leave();
    return report.Ran(ran, ended.has_value());
  }
  std::optional<EndNotice> ended = permits->end();
  // While the daemon restarts, only the release learns whether the next daemon ended the permits.
  const bool away = (*session)->core()->channel().away();
  std::optional<EndNotice> answered = away ? permits->Release() : std::nullopt;
  // Ending the session returns its permits. The daemon sends the notice of an earlier end before it answers.
  const bool over = !(*session)->joined() && (*session)->End().ok();
  if (!away) answered = over ? permits->end() : permits->Release();
  if (!ended.has_value()) ended = answered;
  SayPermitEnded(ran, ended, *notice);
  const ExitStatus end = report.Ran(ran, ended.has_value());
  if (over) ExitNow(end);
  return end;
}

}  // namespace

ExitStatus DidNotRun(const RunOptions& options, const ExitStatus& end) {
  RunReport report(options.report);
  if (const absl::Status opened = report.Open(); !opened.ok()) Complain(opened.message());
  return report.NotRun(end);
}

ExitStatus RunCommand(const Globals& globals, const RunOptions& options) {
  RunReport report(options.report);
  if (const absl::Status opened = report.Open(); !opened.ok()) return report.NotRun(Fail(opened));
  const ExitStatus end = RunHolding(globals, options, report);
  return end.not_run.empty() ? end : report.NotRun(end);
}

void AddRunOptions(Command verb, const Globals& globals, RunOptions* options, Verb run) {
  verb.SetFooter(absl::StrCat("Ends with the command's exit code, or by its signal. Else with\n", kPermitExitCodes,
                              "  79   the permit ended before the command: revoked, held too long, or lost\n"
                              "  126  the command cannot be executed; 127: the command was not found\n"
                              "  125  any other failure"));
  AddPermitOptions(verb, &options->request);
  const Option until =
      verb.AddOption(
              "--until", &options->until,
              "command (default): hold the permit until the command ends; tree: until its whole process tree has "
              "ended")
          .OneOf({"command", "tree"});
  const Option exec = verb.AddFlag("--exec", &options->exec,
                                   "Replace this process by the command; hold the permit until the command and its "
                                   "process tree have ended");
  verb.AddFlag("--cgroup", &options->cgroup,
               "Run the command in a control group of its own, and hold the permit until the group is empty")
      .Excludes(until)
      .Excludes(exec);
  AddOnRevoke(verb, "the command", &options->on_revoke).Excludes(exec);
  AddRunReportOptions(verb, &options->report);
  exec.Excludes(until);
  verb.RunsProgram(globals.command, &options->command, std::move(run));
}

}  // namespace berth::cli
