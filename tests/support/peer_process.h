// PeerProcess: a separate process that connects sockets for the test. The kernel reports the connecting process as the
// peer. So a test can have clients that end separately while it speaks for all of them.

#ifndef TESTS_SUPPORT_PEER_PROCESS_H_
#define TESTS_SUPPORT_PEER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth::testing {

// A process's user, namespaces and cgroup. All but `uid` requires root.
struct PeerOptions {
  // The user that the process becomes; 0 for the default user of clients.
  uid_t uid = 0;
  // Runs as the test's user, whatever user clients have.
  bool of_operator = false;
  // Creates a user namespace as that user, with the user as root in it.
  bool user_namespace = false;
  // A second uid that the process becomes, by a map of that user namespace that root writes; 0 for none.
  uid_t subordinate_uid = 0;
  // A PID namespace: created in the user namespace where there is one, otherwise by root.
  bool pid_namespace = false;
  // The directory of the unified cgroup hierarchy that the process joins; empty for none.
  std::string cgroup = {};
};

// Move-only. Destroying it kills the process and waits for its end; the sockets stay the test's.
class PeerProcess {
 public:
  // Starts a process that shares this process's table of file descriptors. `uid` other than 0 is the user that it
  // becomes; 0 is the default user of clients.
  static PeerProcess Start(uid_t uid = 0) { return Start(PeerOptions{.uid = uid}); }
  // As above; fatal where the start fails.
  static PeerProcess Start(const PeerOptions& options);
  // As above. Errors: what the kernel does not allow.
  static absl::StatusOr<PeerProcess> TryStart(const PeerOptions& options);

  PeerProcess(PeerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)),
        pidfd_(std::move(other.pidfd_)),
        talk_(std::move(other.talk_)),
        their_talk_(std::move(other.their_talk_)) {}
  PeerProcess& operator=(PeerProcess&&) = delete;
  ~PeerProcess() { Kill(); }

  // Connects a new socket of `type` to `path`; fatal where that fails.
  UniqueFd Connect(const std::string& path, int type);

  // With a user namespace and a PID namespace: the pid of the intermediate process that created these and waits.
  pid_t pid() const { return pid_; }
  // Sends SIGKILL and waits until the process has ended. Idempotent.
  void Kill();

 private:
  PeerProcess(pid_t pid, UniqueFd pidfd, UniqueFd talk, UniqueFd their_talk)
      : pid_(pid), pidfd_(std::move(pidfd)), talk_(std::move(talk)), their_talk_(std::move(their_talk)) {}

  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd talk_;
  // The process's own end: both processes share one fd table, so it stays open as long as it is open here.
  UniqueFd their_talk_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_PEER_PROCESS_H_
