// SignalRelay receives the signals that are meant for a command, on behalf of its wrapper process.
//
// Before the command runs, each signal has its normal effect on the wrapper: it ends the wait, stops the process or is
// ignored. While the command runs, each signal sent only to the wrapper is forwarded to the command. A signal for the
// whole process group (the terminal's ^C, `kill 0`) reaches the command directly, and is not forwarded
// (client/cli/run/group_witness.h).

#ifndef CLIENT_CLI_RUN_SIGNAL_RELAY_H_
#define CLIENT_CLI_RUN_SIGNAL_RELAY_H_

#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <berth/cancellation.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "client/cli/run/child.h"
#include "client/cli/run/group_witness.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/thread.h"

namespace berth::cli {

// Construct it before any other thread, so that every thread inherits the blocked signals. Thread-safe.
class SignalRelay {
 public:
  // Blocks every signal in the calling thread. Resets SIGCHLD from ignored to its default. From now on this process
  // starts no child by other means than StartCommand(): the relay reaps all others.
  static absl::StatusOr<std::unique_ptr<SignalRelay>> Start();
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  // Cancelled by the first signal that ends a wait.
  Cancellation& cancellation() { return cancellation_; }

  // The signal that ended the wait, or 0.
  int interrupted_by() const ABSL_LOCKS_EXCLUDED(mu_);

  // Before the command runs, `before` is called before a signal stops this process, and `after` once the process
  // continues. Both run on the relay's thread, under the relay's lock.
  void AroundStop(std::function<void()> before, std::function<void()> after) ABSL_LOCKS_EXCLUDED(mu_);

  // Starts a command with the signal settings from before Start(), and forwards signals to it from then on. A signal
  // either reaches the command or interrupts the wait, never both.
  // Errors: SpawnCommand()'s; kCancelled if a signal interrupted the wait; then nothing was started.
  absl::StatusOr<pid_t> StartCommand(const std::vector<std::string>& command,
                                     const std::vector<std::string>& environment, int cgroup = -1)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Receives a signal. `to_group`: it was sent to the whole process group.
  using Taker = std::function<void(int signal, bool to_group)>;
  // From now on `take` receives the signals, for the work after the command's end. It runs on the relay's thread, under
  // the relay's lock, until Stop().
  void PassTo(Taker take) ABSL_LOCKS_EXCLUDED(mu_);

  // Handles a signal from Berth itself as if it had been sent only to this process.
  void Send(int signal) ABSL_LOCKS_EXCLUDED(mu_);

  // Stops this process by the signal that has stopped the command, so that a shell sees its job stopped. Does nothing
  // if the command or this process has continued meanwhile. Consumes the command's stop if this process cannot be
  // stopped. Call it on the thread that called Start(), while the command is stopped.
  void StopAs(int signal) ABSL_LOCKS_EXCLUDED(mu_);

  // Restores the effect of signals from before Start(). An earlier signal that was not forwarded is reported by
  // interrupted_by(). Call Stop() after the child has ended and before its pid is released (client/cli/run/child.h).
  // Call Stop() and the destructor on the thread that called Start().
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Launch;
  struct Received {
    signalfd_siginfo info;
    bool to_group;
  };

  SignalRelay(UniqueFd signals, UniqueFd stops, UniqueFd wake, const SignalSettings& original);
  void Run();
  // From now on TakeRead() takes `all` except `stops`, and TakeStops() takes `stops`.
  void Divide(const sigset_t& all, const sigset_t& stops) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads the signals for this process, and separates the group signals from the others.
  void TakeRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Stops this process by each stop signal that is pending and no command receives. Such a signal is never read: the
  // kernel discards it at a SIGCONT, at any moment before the stop. A signal that was read could only be sent again,
  // which would discard a SIGCONT that had arrived since.
  void TakeStops() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DiscardStops() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<signalfd_siginfo> Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reaps children that have ended, other than the command. The kernel gives processes whose parent has ended to the
  // first process of their PID namespace, or to a subreaper: this process may be either.
  void ReapAdopted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds `signals` to `all`, except those that the witness has counted as one with an earlier signal for the group.
  // Requires a witness.
  void Classify(const std::vector<signalfd_siginfo>& signals, std::vector<Received>* all)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether this process stands for the leader of its group, and the command has left the group, as timeout(1) and
  // interactive shells do. Without wrappers the command would lead the group, could not leave it, and would receive the
  // group's signals. False for a command in a session of its own (setsid), which is out of the job's reach by choice.
  bool IsApart() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `apart`: the signal is for the group, and IsApart().
  void Take(const signalfd_siginfo& info, bool to_group, bool apart) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeWaiting(int signal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends a signal to `target`, the command or its group, as kill(2) names it; a stop signal only if no SIGCONT has
  // arrived since. `info` has the value of a signal that carries one.
  void Forward(int signal, pid_t target, const signalfd_siginfo* info = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Records signals that reached the group before this process reads them.
  void RecordGroup(const SignalCounts& counts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns whether a signal read here was sent to the group; if so, decrements its count.
  bool TakeOfGroup(const signalfd_siginfo& info) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Resets the counts of signals that are not pending: the kernel has discarded them unread, or merged them.
  void DropStaleCounts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes every stop signal pending on the thread that called Start(), where no other thread reads it. The next SIGCONT
  // discards them all, so that this thread stops by one only if no SIGCONT has arrived since. A stop signal that is
  // sent only then would discard that SIGCONT instead.
  void Prime() const;
  static void InCommand(void* launch);

  const UniqueFd signals_;
  // Only polled, except by DiscardStops().
  const UniqueFd stops_;
  const UniqueFd wake_;
  const SignalSettings original_;
  const pthread_t main_thread_;
  Cancellation cancellation_;

  mutable Mutex mu_;
  int interrupted_by_ ABSL_GUARDED_BY(mu_) = 0;
  // The signals of stops_.
  sigset_t pending_stops_ ABSL_GUARDED_BY(mu_) = {};
  pid_t child_ ABSL_GUARDED_BY(mu_) = 0;
  std::function<void()> before_stop_ ABSL_GUARDED_BY(mu_);
  std::function<void()> after_stop_ ABSL_GUARDED_BY(mu_);
  Taker take_ ABSL_GUARDED_BY(mu_);
  // Null before the command starts, and if the witness cannot be started.
  std::unique_ptr<GroupWitness> witness_ ABSL_GUARDED_BY(mu_);
  // Signals that the witness has received and this process has not yet read.
  SignalCounts of_group_ ABSL_GUARDED_BY(mu_) = {};
  // Signals that were pending here after the witness's last answer, where that answer counted an equal one. The kernel
  // merges equal signals in the witness, which had not received the first one yet, but not here, where it was read.
  sigset_t merged_ ABSL_GUARDED_BY(mu_) = {};
  // The last stop signal or SIGCONT that was forwarded may have reached the command after a later one of the opposite
  // effect for the group. The later one is forwarded, too.
  bool overtook_ ABSL_GUARDED_BY(mu_) = false;
  // Whether the command runs, so that a SIGCONT makes Prime() due.
  bool primed_ ABSL_GUARDED_BY(mu_) = false;

  Thread thread_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_SIGNAL_RELAY_H_
