// SignalRelay takes the signals that are meant for a command as long as its wrapper stands for it: before the
// command runs they end the wait, afterwards they are passed on.
//
// The command shares the wrapper's terminal and process group. What the terminal sends (^C, ^Z, a hang-up)
// reaches both by itself and is not passed on a second time.

#ifndef CLIENT_CLI_SIGNAL_RELAY_H_
#define CLIENT_CLI_SIGNAL_RELAY_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "client/cancellation.h"
#include "common/mutex.h"
#include "common/unique_fd.h"

namespace berth::cli {

// Make it before any other thread, so that every thread inherits the blocked signals. Thread-safe.
class SignalRelay {
 public:
  // Blocks SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT and SIGTSTP in the calling thread.
  // Stops ignoring SIGCHLD.
  static absl::StatusOr<std::unique_ptr<SignalRelay>> Start();
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  // Cancelled by the first signal that ends a wait.
  Cancellation& cancellation() { return cancellation_; }

  // The signal that ended the wait, or 0.
  int interrupted_by() const ABSL_LOCKS_EXCLUDED(mu_);

  // From now on signals go to `child`; one that came since the wait ended goes there at once.
  void PassTo(pid_t child) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on `take` gets them, those of the terminal too: for what is left when the child has ended. It is called
  // on a thread of the relay's, under its lock, until Stop().
  void PassTo(std::function<void(int)> take) ABSL_LOCKS_EXCLUDED(mu_);

  // From now on signals do what they did before Start(). Those that came until now and went to nobody are
  // interrupted_by()'s. Call it when the child has ended and before its pid is given up (client/cli/child.h); call
  // it, and the destructor, on the thread that called Start().
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // The signals blocked before, for the command to start with.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  SignalRelay(UniqueFd signals, UniqueFd wake, const sigset_t& original_mask);
  void Run();
  void Take(int signal, bool from_terminal) ABSL_LOCKS_EXCLUDED(mu_);

  const UniqueFd signals_;
  const UniqueFd wake_;
  const sigset_t original_mask_;
  Cancellation cancellation_;

  mutable Mutex mu_;
  int interrupted_by_ ABSL_GUARDED_BY(mu_) = 0;
  pid_t child_ ABSL_GUARDED_BY(mu_) = 0;
  std::function<void(int)> take_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_SIGNAL_RELAY_H_
