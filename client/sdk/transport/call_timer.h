// CallTimer ends calls whose deadline has passed, by the monotonic clock. gRPC 1.51 ends them, too, but waits by the
// wall clock. After that clock is set back, gRPC ends them later by the same amount.

#ifndef CLIENT_SDK_TRANSPORT_CALL_TIMER_H_
#define CLIENT_SDK_TRANSPORT_CALL_TIMER_H_

#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"

namespace berth::internal {

// Thread-safe. The timer's thread starts with the first alarm, and sleeps until the earliest alarm is due. If the
// thread cannot start, the next alarm tries again; until then only gRPC's own deadline applies.
class CallTimer {
 public:
  // Delay after gRPC's own deadline, because gRPC's error is clearer.
  static constexpr absl::Duration kGrace = absl::Milliseconds(100);

  // Runs `on_late` on the timer's thread kGrace after `deadline`, of SteadyNow(). Never runs it after the alarm's
  // destruction, or for an infinite deadline. `on_late` runs under the timer's lock: it must be short and must not use
  // the timer.
  class Alarm {
   public:
    Alarm(CallTimer* timer, absl::Time deadline, std::function<void()> on_late);
    Alarm(const Alarm&) = delete;
    Alarm& operator=(const Alarm&) = delete;
    ~Alarm();

   private:
    // Null where the alarm never fires.
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
  // Alarms by due time; an empty function has run.
  std::multimap<absl::Time, std::function<void()>> alarms_ ABSL_GUARDED_BY(mu_);
  // Time that the thread sleeps until.
  absl::Time awaited_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_CALL_TIMER_H_
