// PauseAlarm goes on with a call after a pause between its attempts (call_pause.h), without a thread that waits.

#ifndef CLIENT_INTERNAL_PAUSE_ALARM_H_
#define CLIENT_INTERNAL_PAUSE_ALARM_H_

#include <atomic>
#include <functional>
#include <optional>

#include "client/internal/call_limits.h"
#include "client/internal/call_pause.h"
#include "client/internal/call_timer.h"
#include "common/mutex.h"
#include "grpcpp/alarm.h"

namespace berth::internal {

// Of one call: one pause at a time.
class PauseAlarm {
 public:
  // Both outlive this.
  PauseAlarm(CallPauses* pauses, CallTimer* timer) : pauses_(*pauses), timer_(*timer) {}
  PauseAlarm(const PauseAlarm&) = delete;
  PauseAlarm& operator=(const PauseAlarm&) = delete;
  // Requires: no pause is under way.
  ~PauseAlarm() = default;

  // Calls `then`, which may start the next pause or destroy this, once the pause is over: from a thread of gRPC's, or
  // before this returns. What `limits` names lives until then.
  void Start(const CallLimits& limits, const CallPause& pause, std::function<void()> then);

 private:
  // Sleeps, if the pause lasts still.
  void GoOn();

  CallPauses& pauses_;
  CallTimer& timer_;
  CallLimits limits_;
  CallPause pause_;
  std::function<void()> then_;
  // Stored by each thread that is done here, loaded by the next: what orders them is gRPC's own, which ThreadSanitizer
  // does not see.
  std::atomic<bool> turn_ = false;
  // Held until what ends the pause sooner is set.
  Mutex pausing_;
  std::optional<grpc::Alarm> alarm_;
  std::optional<CallPauses::Hooks> hooks_;
  std::optional<CallTimer::Alarm> overdue_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_PAUSE_ALARM_H_
