// ChildProcess: one of the daemon's own processes, started from the same binary with another role.

#ifndef DAEMON_SUPERVISOR_PROCESSES_CHILD_PROCESS_H_
#define DAEMON_SUPERVISOR_PROCESSES_CHILD_PROCESS_H_

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Number of the one fd that a parent passes to a role.
inline constexpr int kChildFd = 3;

// Exit code of a role that lacks a process, an fd, memory or space for its ledger. A later start may succeed.
inline constexpr int kExitForWant = 75;
// Exit code of a broker whose configuration has a mistake: every later start ends in the same way.
inline constexpr int kExitForConfiguration = 78;

// How a process ended.
struct ProcessEnd {
  // Exit code; -1 if a signal ended the process or the status is unknown.
  int code = -1;
  int signal = 0;

  // Returns a text for people: "exit code 1", "signal 9".
  std::string ToString() const;
};

// ChildProcess is move-only and watches its process by pidfd; destruction kills a process that still runs.
// Thread-compatible.
class ChildProcess {
 public:
  // Starts this process's own program with `flags` and "--parent=<our pid>". The child gets stdio, `fd` as kChildFd and
  // no other fd, and the default signal handling. The child has its own process group, so that a terminal's Ctrl-C
  // reaches the parent alone. The child also gets those variables of `environment` ("NAME=value") that this process's
  // environment does not set.
  // Errors: those of posix_spawn and pidfd_open.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& flags, int fd,
                                            const std::vector<std::string>& environment = {});

  ChildProcess(ChildProcess&& other) noexcept
      : pidfd_(std::move(other.pidfd_)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { KillAndForget(); }

  // Wraps a process that another process has started, by its pidfd.
  static ChildProcess Adopt(UniqueFd pidfd) { return ChildProcess(std::move(pidfd)); }

  // Readable once the process has ended.
  int pidfd() const { return pidfd_.get(); }

  // Gives up ownership: the process outlives this object.
  void Leave() { pidfd_.reset(); }

  void Kill();

  bool IsGone() const { return WaitUntil(std::chrono::steady_clock::time_point()); }

  // Waits until the process has ended, at most until `deadline`. Returns whether it has ended.
  bool WaitUntil(std::chrono::steady_clock::time_point deadline) const;

  // Returns how the process ended. Only its parent can read the status; for any other caller the status is unknown.
  // Requires: the process has ended.
  ProcessEnd End() const;
  // As End(), and reaps the zombie. The kernel's cleanup of a large process may take 10 ms.
  ProcessEnd Reap();

 private:
  explicit ChildProcess(UniqueFd pidfd) : pidfd_(std::move(pidfd)) {}
  void KillAndForget();

  // Empty when moved from, left or reaped.
  UniqueFd pidfd_;
};

// Names a process that outlives its parent. Call first. A process that serves a socket ends when no process holds the
// other end.
absl::Status NameProcess(const std::string& name);
// As NameProcess(), for a child; also has the kernel kill the child when its parent ends. Call first.
// Errors: kUnavailable if `parent` has already ended.
absl::Status BecomeChild(const std::string& name, int parent);

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_PROCESSES_CHILD_PROCESS_H_
