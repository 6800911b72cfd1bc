// ChildProcess: one of the daemon's own processes, started from the same binary with another role.

#ifndef DAEMON_VAULT_CHILD_PROCESS_H_
#define DAEMON_VAULT_CHILD_PROCESS_H_

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace berth {

// Where a role finds the one fd that its parent hands it.
inline constexpr int kChildFd = 3;

// What a role ends with that gets no process, fd, memory or room for its ledger: another may, later.
inline constexpr int kExitForWant = 75;

// How a process ended.
struct ProcessEnd {
  // Its exit code; -1 if a signal ended it, or nobody knows.
  int code = -1;
  int signal = 0;

  // For people: "exit code 1", "signal 9".
  std::string ToString() const;
};

// ChildProcess is move-only and watches by pidfd; destroying it kills what still runs. Thread-compatible.
class ChildProcess {
 public:
  // Starts this process's own program with `flags` and "--parent=<our pid>". The child gets stdio, `fd` as
  // kChildFd and no other, the default signal handling, and a process group of its own, so that a terminal's
  // Ctrl-C reaches the parent alone. Of `environment` ("NAME=value") it gets what our own does not name.
  // Errors: those of posix_spawn and pidfd_open.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& flags, int fd,
                                            const std::vector<std::string>& environment = {});

  ChildProcess(ChildProcess&& other) noexcept
      : pidfd_(std::move(other.pidfd_)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess() { KillAndForget(); }

  // One that somebody else has started, by its pidfd.
  static ChildProcess Adopt(UniqueFd pidfd) { return ChildProcess(std::move(pidfd)); }

  // Readable once the process is gone.
  int pidfd() const { return pidfd_.get(); }

  // Leaves the process to itself: it outlives this.
  void Leave() { pidfd_.reset(); }

  void Kill();

  bool IsGone() const { return WaitUntil(std::chrono::steady_clock::time_point()); }

  // Waits until the process is gone, at most until `deadline`. Returns whether it is.
  bool WaitUntil(std::chrono::steady_clock::time_point deadline) const;

  // How it ended, which of one that is no child of ours only its parent learns. Requires: the process is gone.
  ProcessEnd End() const;
  // The same, and takes the zombie away: what the kernel kept of a large process may take it 10 ms.
  ProcessEnd Reap();

 private:
  explicit ChildProcess(UniqueFd pidfd) : pidfd_(std::move(pidfd)) {}
  void KillAndForget();

  // Empty when moved from, left or reaped.
  UniqueFd pidfd_;
};

// In a process that outlives its parent, first: names it. Who serves a socket ends when nobody has the other end.
absl::Status NameProcess(const std::string& name);
// In a child, first: the same, and has the kernel kill it when its parent ends.
// Errors: kUnavailable if `parent` has ended already.
absl::Status BecomeChild(const std::string& name, int parent);

}  // namespace berth

#endif  // DAEMON_VAULT_CHILD_PROCESS_H_
