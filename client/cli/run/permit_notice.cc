#include "client/cli/run/permit_notice.h"

#include <signal.h>

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_status.h"

namespace berth::cli {
namespace {

// The signals that `berth run` forwards, by name.
const std::map<std::string, int>& RevokeSignals() {
  static const auto* const signals =
      new std::map<std::string, int>{{"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT},
                                     {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  return *signals;
}

// Returns 0 for the empty name.
int SignalOf(const std::string& name) {
  const auto found = RevokeSignals().find(name);
  return found == RevokeSignals().end() ? 0 : found->second;
}

}  // namespace

Option AddOnRevoke(Command verb, const std::string& whom, std::string* name) {
  std::vector<std::string> signals;
  for (const auto& [signal, number] : RevokeSignals()) signals.push_back(signal);
  return verb
      .AddOption("--on-revoke", name,
                 absl::StrCat("Send ", whom,
                              " this signal when its permit ends before its release: HUP, INT, QUIT, TERM, USR1 or "
                              "USR2"))
      .OneOf(std::move(signals));
}

PermitNotice::PermitNotice(const std::string& on_revoke, std::function<void(int)> send)
    : signal_(SignalOf(on_revoke)), send_(std::move(send)) {}

void PermitNotice::Take(const PermitEvent& event) {
  MutexLock lock(&mu_);
  if (event.what == PermitEvent::kOverdue) {
    Complain("the permit is overdue: held longer than its pool's hold_warning");
    return;
  }
  if (std::exchange(ended_, true)) return;
  // The signal does not depend on the text: it goes first, and Complain() does not wait.
  if (signal_ != 0 && send_) send_(signal_);
  Complain(absl::StrCat("the permit has ended: ", Describe(event.end), "; ",
                        FreesUnits(event.end.reason) ? "other jobs may use its units now"
                                                     : "its units return when the job's processes have ended"));
}

void PermitNotice::StopSending() {
  MutexLock lock(&mu_);
  send_ = nullptr;
}

}  // namespace berth::cli
