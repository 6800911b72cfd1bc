// PauseAlarm continues a call after a pause between its attempts (call_pause.h), without a waiting thread.

#ifndef CLIENT_SDK_TRANSPORT_PAUSE_ALARM_H_
#define CLIENT_SDK_TRANSPORT_PAUSE_ALARM_H_

#include <atomic>
#include <functional>
#include <optional>

#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/call_pause.h"
#include "client/sdk/transport/call_timer.h"
#include "common/mutex.h"
#include "grpcpp/alarm.h"

namespace berth::internal {

// Serves one call, one pause at a time.
class PauseAlarm {
 public:
  // Both must outlive this object.
  PauseAlarm(CallPauses* pauses, CallTimer* timer) : pauses_(*pauses), timer_(*timer) {}
  PauseAlarm(const PauseAlarm&) = delete;
  PauseAlarm& operator=(const PauseAlarm&) = delete;
  // Requires: no pause is under way.
  ~PauseAlarm() = default;

  // Calls `then` once the pause is over, on a thread of gRPC or before this returns. `then` may start the next pause or
  // destroy this object. Objects that `limits` refers to must live until then.
  void Start(const CallLimits& limits, const CallPause& pause, std::function<void()> then);

 private:
  // Calls `then_` if the pause is over, else sets the alarms for the rest of the pause.
  void GoOn();

  CallPauses& pauses_;
  CallTimer& timer_;
  CallLimits limits_;
  CallPause pause_;
  std::function<void()> then_;
  // Each thread stores it when done here, and the next thread loads it. gRPC's own synchronization orders the threads,
  // but ThreadSanitizer does not see that.
  std::atomic<bool> turn_ = false;
  // Held until everything that can end the pause early is set.
  Mutex pausing_;
  std::optional<grpc::Alarm> alarm_;
  std::optional<CallPauses::Hooks> hooks_;
  std::optional<CallTimer::Alarm> overdue_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_PAUSE_ALARM_H_
