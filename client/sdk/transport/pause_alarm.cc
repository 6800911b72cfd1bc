#include "client/sdk/transport/pause_alarm.h"

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/steady_clock.h"

namespace berth::internal {

void PauseAlarm::Start(const CallLimits& limits, const CallPause& pause, std::function<void()> then) {
  limits_ = limits;
  pause_ = pause;
  then_ = std::move(then);
  GoOn();
}

void PauseAlarm::GoOn() {
  const absl::Duration rest = pauses_.Rest(limits_, pause_, SteadyNow());
  // No member is used after the call, because `then_` may destroy this object.
  if (rest == absl::ZeroDuration()) return std::exchange(then_, nullptr)();
  const auto stop = [this] { alarm_->Cancel(); };
  turn_.store(true, std::memory_order_release);
  MutexLock lock(&pausing_);
  // Lives until the next alarm exists. The end of gRPC's last object shuts gRPC down, which waits for gRPC's threads,
  // and the next object waits for that: this may be one of those threads.
  const std::optional<grpc::Alarm> last = std::exchange(alarm_, std::nullopt);
  alarm_.emplace().Set(absl::ToChronoTime(absl::Now() + rest), [this](bool) {
    turn_.load(std::memory_order_acquire);
    { MutexLock all_set(&pausing_); }
    hooks_.reset();
    overdue_.reset();
    GoOn();
  });
  hooks_.emplace(&pauses_, limits_, stop);
  // gRPC's alarms, too, fire late where the wall clock is set back.
  overdue_.emplace(&timer_, SteadyNow() + rest, stop);
  // Events before the hooks were set have called nothing, so check once more.
  if (pauses_.Rest(limits_, pause_, SteadyNow()) == absl::ZeroDuration()) stop();
}

}  // namespace berth::internal
