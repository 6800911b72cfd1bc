// CallTimer ends calls whose time is over, by a clock that nobody sets. gRPC 1.51 ends them, too, but waits for it by
// the wall clock: where that is set back it comes later by as much.

#ifndef CLIENT_INTERNAL_CALL_TIMER_H_
#define CLIENT_INTERNAL_CALL_TIMER_H_

#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"

namespace berth::internal {

// Thread-safe. Its thread starts with the first alarm, and sleeps until the earliest is due.
class CallTimer {
 public:
  // Behind gRPC's own end, whose words are better.
  static constexpr absl::Duration kGrace = absl::Milliseconds(100);

  // Runs `on_late` on the timer's thread kGrace after `deadline`, of SteadyNow(), and never again once destroyed; never
  // for a deadline that is infinite. `on_late` runs under the timer's lock: it must be short and not use the timer.
  class Alarm {
   public:
    Alarm(CallTimer* timer, absl::Time deadline, std::function<void()> on_late);
    Alarm(const Alarm&) = delete;
    Alarm& operator=(const Alarm&) = delete;
    ~Alarm();

   private:
    // Null where it never rings.
    CallTimer* const timer_;
    std::multimap<absl::Time, std::function<void()>>::iterator at_;
  };

  CallTimer() = default;
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;
  // Requires: no alarm is left.
  ~CallTimer();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  SteadyCondVar sooner_;
  // Empty functions have run.
  std::multimap<absl::Time, std::function<void()>> alarms_ ABSL_GUARDED_BY(mu_);
  // What the thread sleeps for.
  absl::Time awaited_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CALL_TIMER_H_
