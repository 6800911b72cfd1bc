#include "client/cli/permit_notice.h"

#include <signal.h>
#include <stdio.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth::cli {
namespace {

// Those that `berth run` passes on, by name.
const std::map<std::string, int>& RevokeSignals() {
  static const auto* const signals =
      new std::map<std::string, int>{{"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT},
                                     {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  return *signals;
}

}  // namespace

CLI::Option* AddOnRevoke(CLI::App* verb, const std::string& whom, std::string* name) {
  return verb
      ->add_option("--on-revoke", *name,
                   absl::StrCat("Send ", whom,
                                " this signal when its permit is taken away: HUP, INT, QUIT, TERM, USR1 or USR2"))
      ->check(CLI::IsMember(RevokeSignals()));
}

std::function<void(PermitEvent)> NoticeOfPermit(const std::string& on_revoke, std::function<void(int)> send) {
  const auto signal = RevokeSignals().find(on_revoke);
  const int number = signal == RevokeSignals().end() ? 0 : signal->second;
  return [number, send = std::move(send)](PermitEvent event) {
    if (event == PermitEvent::kOverdue) {
      ::fprintf(stderr, "berth: the permit is held for longer than its pool expects\n");
      return;
    }
    // First: a terminal may take nothing for as long as it likes.
    if (number != 0) send(number);
    ::fprintf(stderr, "berth: the permit was taken away: its units may be somebody else's\n");
  };
}

}  // namespace berth::cli
