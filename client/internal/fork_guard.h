// ForkGuard owns the fds of a session that a forked child must not keep: the child would hold the session
// alive without anybody meaning it, and its reads would take what was meant for the parent.
//
// The child of a plain fork() closes them at once, before any other code runs in it (pthread_atfork), and can
// use nothing of the SDK: gRPC and the SDK's threads do not exist there. exec() is the way to a child that
// works.

#ifndef CLIENT_INTERNAL_FORK_GUARD_H_
#define CLIENT_INTERNAL_FORK_GUARD_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "common/unique_fd.h"

namespace berth::internal {

// How many forks lie between the first ForkGuard and this process; 0 in the process that made it.
inline std::atomic<uint32_t> fork_depth = 0;

// Thread-safe.
class ForkGuard {
 public:
  // Takes both fds. An empty lifeline is one that belongs to whoever handed it down, and is left alone.
  ForkGuard(UniqueFd lifeline, UniqueFd channel);
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  // Closes what is still owned.
  ~ForkGuard();

  int lifeline() const { return lifeline_.load(std::memory_order_relaxed); }
  int channel() const { return channel_.load(std::memory_order_relaxed); }

  // Leaves the lifeline open in forked children.
  void KeepLifeline() { keep_lifeline_.store(true, std::memory_order_relaxed); }

  // Whether this process is a forked child of the one that made the guard.
  bool forked() const { return fork_depth.load(std::memory_order_relaxed) != made_at_; }

  // OK, or kFailedPrecondition saying what to do in a forked child.
  absl::Status Check() const;

 private:
  friend class ForkRegistry;
  void CloseInChild();

  const uint32_t made_at_;
  std::atomic<int> lifeline_;
  std::atomic<int> channel_;
  std::atomic<bool> keep_lifeline_ = false;
};

// kFailedPrecondition in a process that was forked from one that had used the SDK.
absl::Status CheckNotForked();

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_FORK_GUARD_H_
