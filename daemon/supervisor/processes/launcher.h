// Launcher: the launcher, a process beside the broker that holds the right to start another supervisor. The broker
// gives up that right when it is confined. The launcher starts supervisors and does nothing else, with flags that it
// got before the broker received any message. The launcher ends with the broker.

#ifndef DAEMON_SUPERVISOR_PROCESSES_LAUNCHER_H_
#define DAEMON_SUPERVISOR_PROCESSES_LAUNCHER_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Move-only. Thread-compatible.
class Launcher {
 public:
  // Forks this process. Requires: no other threads. The child has no fds but stdin, stdout, stderr and its socket.
  // Errors: kResourceExhausted if no process can be created for some seconds.
  static absl::StatusOr<Launcher> Fork(std::vector<std::string> supervisor_flags);

  Launcher(Launcher&& other) noexcept : pid_(std::exchange(other.pid_, 0)), socket_(std::move(other.socket_)) {}
  Launcher& operator=(Launcher&&) = delete;
  // Waits until the child has ended, which takes no time.
  ~Launcher() { End(); }
  void End();

  // Runs LaunchSupervisor() (launch_supervisor.h) in the child. Errors: those of LaunchSupervisor(); kUnavailable if
  // the child has ended or does not answer.
  absl::StatusOr<UniqueFd> StartSupervisor() const;

  pid_t pid() const { return pid_; }
  // Hangs up when the child has ended.
  int fd() const { return socket_.get(); }

 private:
  Launcher(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}

  pid_t pid_;
  UniqueFd socket_;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_PROCESSES_LAUNCHER_H_
