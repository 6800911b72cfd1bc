// PeerProcess: a process of its own that connects sockets of the test's. The kernel names the one that
// connected as the peer, so a test can have clients that end, each by itself, while it speaks for all of
// them.

#ifndef TESTS_SUPPORT_PEER_PROCESS_H_
#define TESTS_SUPPORT_PEER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>

#include "common/unique_fd.h"

namespace berth::testing {

// Move-only. Destroying it kills the process and waits for its end; the sockets stay the test's.
class PeerProcess {
 public:
  // A process that shares this one's table of file descriptors. `uid` other than 0 is the user that it
  // becomes.
  static PeerProcess Start(uid_t uid = 0);

  PeerProcess(PeerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, 0)),
        pidfd_(std::move(other.pidfd_)),
        talk_(std::move(other.talk_)),
        their_talk_(std::move(other.their_talk_)) {}
  PeerProcess& operator=(PeerProcess&&) = delete;
  ~PeerProcess() { Kill(); }

  // Connects a new socket of `type` to `path`; fatal where that fails.
  UniqueFd Connect(const std::string& path, int type);

  pid_t pid() const { return pid_; }
  // SIGKILL, and waits until it is gone. Idempotent.
  void Kill();

 private:
  PeerProcess(pid_t pid, UniqueFd pidfd, UniqueFd talk, UniqueFd their_talk)
      : pid_(pid), pidfd_(std::move(pidfd)), talk_(std::move(talk)), their_talk_(std::move(their_talk)) {}

  pid_t pid_;
  UniqueFd pidfd_;
  UniqueFd talk_;
  // The process's own end: the table of fds is one, so it is open as long as it is open here.
  UniqueFd their_talk_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_PEER_PROCESS_H_
