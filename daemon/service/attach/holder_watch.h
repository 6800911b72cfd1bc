// HolderWatch waits for the last holder of a session whose lifeline's socket is lost: the daemon was stopped or killed
// with it, and the processes that held it still live. HolderWatch finds them by the session credentials that they
// inherited with the lifeline (daemon/base/credentials_holders.h), and watches them by pidfd. When all known holders
// have ended, other processes may have inherited the credentials meanwhile. HolderWatch then searches again, until two
// searches in a row find no holder.
//
// If the kernel does not show the holders of a file, the session lives until an operator ends it.

#ifndef DAEMON_SERVICE_ATTACH_HOLDER_WATCH_H_
#define DAEMON_SERVICE_ATTACH_HOLDER_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"
#include "daemon/base/credentials_holders.h"
#include "daemon/broker/event_loop.h"

namespace berth::service {

// Thread-safe. A thread of its own searches.
class HolderWatch {
 public:
  // Called on the HolderWatch thread, once for each Watch() that was not cancelled.
  using OnGone = std::function<void(SessionId)>;
  // As FindCredentialsHolders(). Called on the HolderWatch thread.
  using Find = std::function<absl::StatusOr<std::map<uint64_t, std::vector<CredentialsHolder>>>(
      const absl::flat_hash_set<uint64_t>&)>;

  // `loop` must outlive the watch.
  HolderWatch(EventLoop* loop, OnGone on_gone, Find find = FindCredentialsHolders);
  HolderWatch(const HolderWatch&) = delete;
  HolderWatch& operator=(const HolderWatch&) = delete;
  ~HolderWatch();
  // Ends the thread, and waits for a running call of OnGone. The destructor does so, too.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until no process holds the credentials file of that inode. For a session that is already watched, restarts
  // the search: a holder may have closed the file and still live.
  void Watch(SessionId session, uint64_t session_credentials) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels a watch. A running call of OnGone ends later.
  void Cancel(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Holder {
    UniqueFd pidfd;
    EventLoop::WatchId watch = 0;
  };
  struct Watched {
    uint64_t session_credentials = 0;
    // Living holders, by a number of this class.
    std::map<uint64_t, Holder> holders;
    // Number of consecutive searches that found no holder.
    int empty = 0;
    // The running search covers the session: it began after Watch().
    bool searched = false;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Stores a search's result. Returns the sessions without holders.
  std::vector<SessionId> Take(std::map<uint64_t, std::vector<CredentialsHolder>> found) ABSL_LOCKS_EXCLUDED(mu_);
  void OnHolderGone(SessionId session, uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  EventLoop& loop_;
  const OnGone on_gone_;
  const Find find_;

  Mutex mu_;
  SteadyCondVar news_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // True if a watched session has no known living holder.
  bool search_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<SessionId, std::unique_ptr<Watched>> watched_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ATTACH_HOLDER_WATCH_H_
