// SteadyCondVar: a condition variable whose timed waits use the monotonic clock. Abseil's use the wall clock, and last
// longer by as much as that clock is set back.

#ifndef COMMON_STEADY_COND_VAR_H_
#define COMMON_STEADY_COND_VAR_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_clock.h"

namespace berth {

// Thread-safe. A wait may end without a signal, as with any condition variable; the waiter checks its condition again.
class SteadyCondVar {
 public:
  SteadyCondVar() = default;
  SteadyCondVar(const SteadyCondVar&) = delete;
  SteadyCondVar& operator=(const SteadyCondVar&) = delete;

  // Releases `mu` while it waits, until a signal or until `deadline` (a SteadyNow() time). Returns whether the deadline
  // passed.
  bool WaitWithDeadline(Mutex* mu, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu)
      ABSL_NO_THREAD_SAFETY_ANALYSIS {
    // A longer wait returns early, and its caller waits again.
    constexpr absl::Duration kLongest = absl::Hours(1);
    const absl::Duration left = std::min(deadline - SteadyNow(), kLongest);
    if (left <= absl::ZeroDuration()) return true;
    {
      std::unique_lock<std::mutex> gate(gate_);
      mu->Unlock();
      notified_.wait_until(gate, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left));
    }
    mu->Lock();
    return SteadyNow() >= deadline;
  }

  // Wakes a waiter. The caller may or may not hold the waiter's mutex.
  void Signal() {
    // With the gate held, no waiter is between its unlock and its sleep.
    const std::lock_guard<std::mutex> gate(gate_);
    notified_.notify_one();
  }
  void SignalAll() {
    const std::lock_guard<std::mutex> gate(gate_);
    notified_.notify_all();
  }

 private:
  std::mutex gate_;
  std::condition_variable notified_;
};

}  // namespace berth

#endif  // COMMON_STEADY_COND_VAR_H_
