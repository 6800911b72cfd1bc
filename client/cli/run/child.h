// Starts a command and waits for it, with the semantics of execvp() in every mode. Does not use fork(): this process
// has gRPC threads, whose state a fork() would break.

#ifndef CLIENT_CLI_RUN_CHILD_H_
#define CLIENT_CLI_RUN_CHILD_H_

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/exit_status.h"
#include "common/os/unique_fd.h"

namespace berth::cli {

// Returns the environment of this process, with `entries` ("NAME=value") replacing entries of the same names.
std::vector<std::string> EnvironmentWith(const std::vector<std::string>& entries);

// The signals that a process blocks and ignores; an executed program inherits both sets.
struct SignalSettings {
  sigset_t blocked;
  sigset_t ignored;
};

// Reads the blocked signals of this thread and the ignored signals of this process. After HoldSignals(), the blocked
// signals are those from before it.
SignalSettings ReadSignalSettings();
// Applies `settings`. Every signal that is not ignored gets its default action.
void SetSignalSettings(const SignalSettings& settings);

// Blocks every signal, from the beginning of main() on: a signal that comes before the program knows its effect is
// handled as a later one. For the only thread.
void HoldSignals();
// Restores the blocked signals from before HoldSignals(): pending signals have their effect. SIGHUP, SIGINT and SIGTERM
// end this process also where it is the first process of a PID namespace.
void ReleaseSignals();

// The stop signals that a process can block.
inline constexpr int kTerminalStops[] = {SIGTSTP, SIGTTIN, SIGTTOU};

// Returns the stop signals that are neither blocked nor ignored.
sigset_t ActingStops(const SignalSettings& settings);

// Gives `signal`, which is blocked in this thread, its default action if it is pending. A SIGCONT discards a pending
// stop signal.
void ActOnPending(int signal);

// Holds back the signals by which a terminal stops this process, so that the process first prepares for the stop. Not
// held back: a signal that was blocked or ignored before. For the only thread.
class TerminalStops {
 public:
  static absl::StatusOr<std::unique_ptr<TerminalStops>> Hold();
  TerminalStops(const TerminalStops&) = delete;
  TerminalStops& operator=(const TerminalStops&) = delete;
  // A signal that is pending takes effect.
  ~TerminalStops();

  // The blocked signals from before Hold().
  const sigset_t& blocked_before() const { return blocked_before_; }
  // Readable while a signal is held back.
  int fd() const { return signals_.get(); }
  // Returns a signal that is held back; 0 for none.
  int Pending() const;

 private:
  TerminalStops() = default;

  sigset_t held_ = {};
  sigset_t blocked_before_ = {};
  UniqueFd signals_;
};

struct SpawnOptions {
  SignalSettings signals;
  // An open fd of the folder of the command's control group; negative: this process's own group.
  int cgroup = -1;
  // Runs in the new process before the command, with every signal blocked. Must not allocate: the new process shares
  // this process's memory, and the calling thread is suspended meanwhile. Null: nothing runs.
  void (*before)(void*) = nullptr;
  void* argument = nullptr;
};

// Starts `command`, found along PATH, in this process's process group and on its terminal. Errors: kNotFound if the
// command does not exist; kFailedPrecondition if it cannot be executed, or not in that control group.
absl::StatusOr<pid_t> SpawnCommand(const std::vector<std::string>& command,
                                   const std::vector<std::string>& environment, const SpawnOptions& options);

// Replaces this process by `command`, found along PATH. Returns only on failure, with SpawnCommand()'s errors.
absl::Status ExecCommand(const std::vector<std::string>& command,
                         const std::vector<std::string>& environment);

// Waits until the child has ended, and leaves it a zombie. Until Reap() no other process gets its pid, so a signal that
// is still forwarded to the pid has no effect. While a signal has stopped the child, calls `stopped` with it again and
// again, unless `stopped` consumes the stop by waitid().
void AwaitEnd(pid_t child, const std::function<void(int)>& stopped = nullptr);

// Reaps the child. Returns its exit code, or the signal that killed it.
ExitStatus Reap(pid_t child);

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_CHILD_H_
