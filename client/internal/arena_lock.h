// ArenaLock: a lock for sections of some ten instructions that hardly ever meet: two atomic operations where
// nobody else wants it, and sleep where somebody has it. Abseil's mutex, built to find deadlocks, takes as
// long as all the rest of an allocation.

#ifndef CLIENT_INTERNAL_ARENA_LOCK_H_
#define CLIENT_INTERNAL_ARENA_LOCK_H_

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"

namespace berth::internal {

// Thread-safe. Not reentrant. Neither fair nor in any order.
class ABSL_LOCKABLE ArenaLock {
 public:
  ArenaLock() = default;
  ArenaLock(const ArenaLock&) = delete;
  ArenaLock& operator=(const ArenaLock&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    uint32_t free = kFree;
    if (!state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire)) [[unlikely]]
      WaitAndLock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      state_.notify_one();
  }

 private:
  enum : uint32_t {
    kFree,
    kHeld,
    // Held, and somebody may be asleep until it is not.
    kAwaited,
  };

  // Whoever has slept takes it as kAwaited, for others that may still sleep.
  void WaitAndLock() {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      state_.wait(kAwaited, std::memory_order_relaxed);
    }
  }

  std::atomic<uint32_t> state_ = kFree;
};

class ABSL_SCOPED_LOCKABLE ArenaLockHolder {
 public:
  explicit ArenaLockHolder(ArenaLock* lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) {
    lock_->Lock();
  }
  ArenaLockHolder(const ArenaLockHolder&) = delete;
  ArenaLockHolder& operator=(const ArenaLockHolder&) = delete;
  ~ArenaLockHolder() ABSL_UNLOCK_FUNCTION() { lock_->Unlock(); }

 private:
  ArenaLock* const lock_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ARENA_LOCK_H_
