// ForkGuard owns the fds of a session that a forked child must not hold. A child that held them would unintentionally
// extend the session's life, and its reads would take messages meant for the parent. After a restart of the daemon, the
// session credentials also extend the session's life (docs/design/0029).
//
// The child of a plain fork() closes the fds at once, before any other code runs in it (pthread_atfork). The child
// cannot use the SDK: gRPC and the SDK's threads do not exist there. A child that needs the SDK must exec() first.

#ifndef CLIENT_SDK_TRANSPORT_FORK_GUARD_H_
#define CLIENT_SDK_TRANSPORT_FORK_GUARD_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "common/os/unique_fd.h"

namespace berth::internal {

// Number of forks between the process that made the first ForkGuard and this process; 0 in the former.
inline std::atomic<uint32_t> fork_depth = 0;

// Thread-safe.
class ForkGuard {
 public:
  // Takes ownership of the fds. Without lifeline and session credentials, the process has joined the session: the party
  // that handed them down owns them, and the guard leaves them open.
  ForkGuard(UniqueFd lifeline, UniqueFd channel, UniqueFd session_credentials = UniqueFd());
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  // Closes the fds that are still owned: the session credentials first, because the end of the sockets may make the
  // daemon search for holders of the credentials.
  ~ForkGuard();

  int lifeline() const { return lifeline_.load(std::memory_order_relaxed); }
  int channel() const { return channel_.load(std::memory_order_relaxed); }
  int session_credentials() const { return session_credentials_.load(std::memory_order_relaxed); }

  // Leaves the lifeline and the session credentials open in forked children.
  void KeepLifeline() { keep_lifeline_.store(true, std::memory_order_relaxed); }

  // Whether this process is a forked child of the process that made the guard.
  bool forked() const { return fork_depth.load(std::memory_order_relaxed) != made_at_; }

  // Returns OK, or in a forked child kFailedPrecondition with the remedy.
  absl::Status Check() const;

 private:
  friend class ForkRegistry;
  void CloseInChild();

  const uint32_t made_at_;
  std::atomic<int> lifeline_;
  std::atomic<int> channel_;
  std::atomic<int> session_credentials_;
  std::atomic<bool> keep_lifeline_ = false;
};

// Returns kFailedPrecondition in a child forked from a process that had used the SDK.
absl::Status CheckNotForked();

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_FORK_GUARD_H_
