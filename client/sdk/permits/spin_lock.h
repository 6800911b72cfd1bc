// SpinLock: a lock for sections of some ten instructions that rarely contend, where every nanosecond counts. Lock()
// takes one atomic operation, Unlock() a plain store. Unlock() cannot notify a waiter, so waiters poll, and sleep
// between polls when the wait takes long.

#ifndef CLIENT_SDK_PERMITS_SPIN_LOCK_H_
#define CLIENT_SDK_PERMITS_SPIN_LOCK_H_

#include <time.h>

#include <algorithm>
#include <atomic>

#include "absl/base/thread_annotations.h"

namespace berth::internal {

// Exponential backoff for polling loops whose waits usually last some microseconds. Spins kLooks times, then sleeps: 50
// us at first, doubling up to 1 ms.
class Backoff {
 public:
  void Wait() {
    if (++looks_ < kLooks) return;
    ::nanosleep(&nap_, nullptr);
    nap_.tv_nsec = std::min(nap_.tv_nsec * 2, kLongestNap);
  }

 private:
  // Number of polls before the first sleep. These polls take some microseconds: longer than a short section of a
  // running thread.
  static constexpr int kLooks = 1000;
  static constexpr long kLongestNap = 1'000'000;

  int looks_ = 0;
  timespec nap_ = {.tv_sec = 0, .tv_nsec = 50'000};
};

// Thread-safe. Not reentrant. Not fair.
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

#endif  // CLIENT_SDK_PERMITS_SPIN_LOCK_H_
