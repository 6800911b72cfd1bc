// Notifies people and programs about a permit that they hold through `berth`: that it is overdue, or that it has ended,
// with the reason and the actor.

#ifndef CLIENT_CLI_RUN_PERMIT_NOTICE_H_
#define CLIENT_CLI_RUN_PERMIT_NOTICE_H_

#include <functional>
#include <string>

#include <berth/permit.h>

#include "absl/base/thread_annotations.h"
#include "client/cli/command.h"
#include "common/mutex.h"

namespace berth::cli {

// Adds --on-revoke to a verb: the name of the signal that `whom` receives when the permit ends before its release.
// `name` must live as long as `verb`.
Option AddOnRevoke(Command verb, const std::string& whom, std::string* name);

// Reports on stderr the events of a verb's permits, and sends the configured signal. If several permits end, only the
// first is reported. Thread-safe.
class PermitNotice {
 public:
  // `on_revoke` names the signal that `send` sends; empty: no signal.
  PermitNotice(const std::string& on_revoke, std::function<void(int)> send);

  void Take(const PermitEvent& event) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends no further signal: the receiver has ended.
  void StopSending() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int signal_;
  Mutex mu_;
  std::function<void(int)> send_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_PERMIT_NOTICE_H_
