// SteadyCondVar: a condition variable whose timed waits go by a clock that nobody sets. Abseil's go by the wall clock:
// where that is set back they are longer by as much.

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

// Thread-safe. As of any condition variable, a wait may end without a signal; who waits looks again.
class SteadyCondVar {
 public:
  SteadyCondVar() = default;
  SteadyCondVar(const SteadyCondVar&) = delete;
  SteadyCondVar& operator=(const SteadyCondVar&) = delete;

  // Gives `mu` up, and has it again when it is told or `deadline`, of SteadyNow(), is over. Returns whether it is over.
  bool WaitWithDeadline(Mutex* mu, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu)
      ABSL_NO_THREAD_SAFETY_ANALYSIS {
    // Longer waits come to look again.
    constexpr absl::Duration kLongest = absl::Hours(1);
    const absl::Duration left = std::min(deadline - SteadyNow(), kLongest);
    if (left <= absl::ZeroDuration()) return true;
    {
      std::unique_lock<std::mutex> gate(gate_);
      mu->Unlock();
      told_.wait_until(gate, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(left));
    }
    mu->Lock();
    return SteadyNow() >= deadline;
  }

  // With or without the mutex of who waits.
  void Signal() {
    // Who waits is on its way to sleep no more.
    const std::lock_guard<std::mutex> gate(gate_);
    told_.notify_one();
  }
  void SignalAll() {
    const std::lock_guard<std::mutex> gate(gate_);
    told_.notify_all();
  }

 private:
  std::mutex gate_;
  std::condition_variable told_;
};

}  // namespace berth

#endif  // COMMON_STEADY_COND_VAR_H_
