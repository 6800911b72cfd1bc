// UpgradeWatch: the broker's watch over an upgrade, in which the supervisor executes another program. A program that
// does not take over in time is ended, and a supervisor of the earlier program continues.

#ifndef DAEMON_SERVER_UPGRADE_WATCH_H_
#define DAEMON_SERVER_UPGRADE_WATCH_H_

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/wire/state_page.h"
#include "daemon/broker/event_loop.h"

namespace berth {

// Thread-safe, except where a method names its thread.
class UpgradeWatch {
 public:
  // `page` is the node's. Calls `end_executed` on the loop's thread when the supervisor's process has ended or must end
  // (SupervisorFdStore::EndExecuted()).
  UpgradeWatch(EventLoop* loop, const StatePageLayout* page, std::function<void()> end_executed);
  UpgradeWatch(const UpgradeWatch&) = delete;
  UpgradeWatch& operator=(const UpgradeWatch&) = delete;

  // An operator is about to request an upgrade: forgets why the last one failed.
  void Forget() ABSL_LOCKS_EXCLUDED(mu_);
  // The supervisor is requested to upgrade.
  void OnRequest() ABSL_LOCKS_EXCLUDED(mu_);
  // The supervisor is about to execute another program in `process`, a pidfd. Without one, watches only the limit. On
  // the loop's thread.
  void OnExecAnnounced(UniqueFd process) ABSL_LOCKS_EXCLUDED(mu_);
  // The supervisor could not execute it. On the loop's thread.
  void OnExecFailed(const std::string& why) ABSL_LOCKS_EXCLUDED(mu_);
  // A supervisor of this program has replaced one that ended.
  void OnSupervisorReplaced() ABSL_LOCKS_EXCLUDED(mu_);

  // Why the last upgrade failed; empty if none did since Forget().
  std::string fault() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void OnProcessEnd();
  void OnLimit() ABSL_LOCKS_EXCLUDED(mu_);
  // Each begins a watch. Errors: those of the system.
  absl::Status WatchProcess();
  absl::Status WatchLimit();
  // Ends both watches.
  void Unwatch();
  // Records that the requested upgrade has failed.
  void FailLocked(absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  EventLoop* const loop_;
  const StatePageLayout* const page_;
  const std::function<void()> end_executed_;
  const absl::Duration limit_;

  // Used on the loop's thread only. The supervisor's process, and the timer of the limit; empty for none.
  UniqueFd process_;
  UniqueFd timer_;
  EventLoop::WatchId process_watch_ = 0;
  EventLoop::WatchId timer_watch_ = 0;

  mutable Mutex mu_;
  // An upgrade was requested and has not failed. It succeeds with the end of this broker.
  bool requested_ ABSL_GUARDED_BY(mu_) = false;
  // Why the next supervisor replaces the current one.
  std::string why_ ABSL_GUARDED_BY(mu_);
  std::string fault_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_SERVER_UPGRADE_WATCH_H_
