// Starter: a process beside the broker that keeps what the broker gives up when it is confined: the right to start
// another vault. It does that and nothing else, with the flags that it was given before the broker heard anybody, and
// ends with the broker.

#ifndef DAEMON_VAULT_STARTER_H_
#define DAEMON_VAULT_STARTER_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace berth {

// Move-only. Thread-compatible.
class Starter {
 public:
  // Forks this process. Requires: no other threads. The child keeps no fds but stdin, stdout and stderr.
  // Errors: kResourceExhausted where no process is to be had for some seconds.
  static absl::StatusOr<Starter> Fork(std::vector<std::string> vault_flags);

  Starter(Starter&& other) noexcept : pid_(std::exchange(other.pid_, 0)), socket_(std::move(other.socket_)) {}
  Starter& operator=(Starter&&) = delete;
  // Waits until the child is gone, which it is at once.
  ~Starter() { End(); }
  void End();

  // As StartSuccessor() (successor.h), done there. Errors: its own; kUnavailable if the child is gone or does not
  // answer.
  absl::StatusOr<UniqueFd> StartVault() const;

  pid_t pid() const { return pid_; }
  // Hangs up when the child is gone.
  int fd() const { return socket_.get(); }

 private:
  Starter(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}

  pid_t pid_;
  UniqueFd socket_;
};

}  // namespace berth

#endif  // DAEMON_VAULT_STARTER_H_
