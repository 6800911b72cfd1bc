// SpinLock: a lock for sections of some ten instructions that hardly ever meet, where every nanosecond counts: one
// atomic operation, and a plain store to let go. Who lets go cannot know of anybody who waits, so who waits looks again
// and again, and sleeps in between where that takes long.

#ifndef CLIENT_INTERNAL_SPIN_LOCK_H_
#define CLIENT_INTERNAL_SPIN_LOCK_H_

#include <time.h>

#include <algorithm>
#include <atomic>

#include "absl/base/thread_annotations.h"

namespace berth::internal {

// What who waits for something that takes some microseconds as a rule does between two looks: nothing at first, then
// it sleeps, longer and longer.
class Backoff {
 public:
  void Wait() {
    if (++looks_ < kLooks) return;
    ::nanosleep(&nap_, nullptr);
    nap_.tv_nsec = std::min(nap_.tv_nsec * 2, kLongestNap);
  }

 private:
  // Some microseconds: longer than a short section takes whose thread has not been taken off its core.
  static constexpr int kLooks = 1000;
  static constexpr long kLongestNap = 1'000'000;

  int looks_ = 0;
  timespec nap_ = {.tv_sec = 0, .tv_nsec = 50'000};
};

// Thread-safe. Not reentrant. Neither fair nor in any order.
class ABSL_LOCKABLE SpinLock {
 public:
  SpinLock() = default;
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    while (held_.exchange(true, std::memory_order_acquire)) [[unlikely]] Await();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { held_.store(false, std::memory_order_release); }

 private:
  void Await() const {
    for (Backoff backoff; held_.load(std::memory_order_relaxed);) backoff.Wait();
  }

  std::atomic<bool> held_ = false;
};

class ABSL_SCOPED_LOCKABLE SpinLockHolder {
 public:
  explicit SpinLockHolder(SpinLock* lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) { lock_->Lock(); }
  SpinLockHolder(const SpinLockHolder&) = delete;
  SpinLockHolder& operator=(const SpinLockHolder&) = delete;
  ~SpinLockHolder() ABSL_UNLOCK_FUNCTION() { lock_->Unlock(); }

 private:
  SpinLock* const lock_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_SPIN_LOCK_H_
