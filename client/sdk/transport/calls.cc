// Calls across the daemon's restarts and this process's stops: attempts, pauses and timers.

#include <algorithm>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/sdk/transport/call_attempts.h"
#include "client/sdk/transport/call_pause.h"
#include "client/sdk/transport/call_timer.h"
#include "client/sdk/transport/pause_alarm.h"
#include "client/sdk/transport/sdk_thread.h"
#include "common/patience.h"
#include "common/steady_clock.h"
#include "common/steady_cond_var.h"

namespace berth::internal {

// ---- call_attempts.h -----------------------------------------------------------------------------------------

std::optional<absl::Duration> CallAttempts::Failed(absl::Time now, absl::Status* status) {
  if (!absl::IsUnavailable(*status)) return std::nullopt;
  if (const std::optional<ErrorDetails> details = GetErrorDetails(*status); details.has_value()) {
    // The wait continues in the same place, however often the process is stopped.
    if (details->reason == Reason::kProcessStopped) return absl::ZeroDuration();
    // The use that blocked this call may still be open: the caller decides whether to wait longer.
    if (details->reason == Reason::kBlockInUse || ++refusals_ == kMaxRefusals) return std::nullopt;
    return std::max(kPause * refusals_, details->retry_after.value_or(absl::ZeroDuration()));
  }
  ++ends_;
  cleared_ = cleared_ || now - sent_ >= kSuspectFor;
  if (cleared_) return absl::ZeroDuration();
  if (++suspect_ends_ == kMaxEpochs) {
    *status = absl::UnavailableError(
        absl::StrCat("the daemon ended ", kMaxEpochs,
                     " times right after it received this call, which is not retried again: ", status->message()));
    return std::nullopt;
  }
  return kPause * (suspect_ends_ - 1);
}

// ---- call_pause.h --------------------------------------------------------------------------------------------

void CallPauses::OnReturn() {
  std::shared_ptr<Cancellation> now;
  {
    MutexLock lock(&mu_);
    // Read the time under the lock, so that an attempt sent after this time ends only after the time is known.
    returned_at_ = SteadyNow();
    now = std::exchange(return_, std::make_shared<Cancellation>());
  }
  now->Cancel();
}

std::shared_ptr<Cancellation> CallPauses::NextReturn() const {
  MutexLock lock(&mu_);
  return return_;
}

std::optional<CallPause> CallPauses::Before(const CallLimits& limits, absl::Time now, CallAttempts* attempts,
                                            absl::Status* status) {
  const bool answered = status->ok() || GetErrorDetails(*status).has_value();
  if (answered) {
    MutexLock lock(&mu_);
    answered_ = std::max(answered_, attempts->sent());
  }
  const std::optional<absl::Duration> pause = attempts->Failed(now, status);
  if (!pause.has_value() || now + *pause >= limits.deadline) return std::nullopt;
  if (limits.cancellation != nullptr && limits.cancellation->cancelled()) {
    // The caller cancelled, so report the cancellation, even where the broker ended the attempt first.
    if (!answered) *status = absl::CancelledError("the call was cancelled");
    return std::nullopt;
  }
  if (answered || !limits.waits || !called_ || !ToBeCalled(*attempts, now)) return CallPause{.end = now + *pause};
  // The call returns before its own wait is over, so that the daemon can report the expiry. The next broker may have
  // called back before this process noticed the end of the earlier one, but not before this attempt was sent.
  return CallPause{.end = std::min(now + kLongestAway, limits.deadline - Patient(CallLimits::kAnswerSlack)),
                   .called_after = std::max(now - CallAttempts::kSuspectFor, attempts->sent())};
}

bool CallPauses::ToBeCalled(const CallAttempts& attempts, absl::Time now) const {
  // A broken connection ends an attempt at once, and no later attempt uses it.
  if (attempts.ends() > 1 || now - attempts.sent() >= CallAttempts::kSuspectFor) return true;
  MutexLock lock(&mu_);
  return answered_ >= returned_at_;
}

absl::Duration CallPauses::Rest(const CallLimits& limits, const CallPause& pause, absl::Time now) const {
  if (limits.cancellation != nullptr && limits.cancellation->cancelled()) return absl::ZeroDuration();
  if (over_.cancelled()) return absl::ZeroDuration();
  MutexLock lock(&mu_);
  if (pause.called_after.has_value() && returned_at_ > *pause.called_after) return absl::ZeroDuration();
  return std::max(pause.end - now, absl::ZeroDuration());
}

void CallPauses::AwaitEnd(const CallLimits& limits, const CallPause& pause) {
  Mutex mu;
  SteadyCondVar news;
  bool notified = false;
  // Constructed before the lock is taken: the hooks call `wake`, which takes the lock.
  const Hooks hooks(this, limits, [&] {
    MutexLock lock(&mu);
    notified = true;
    news.Signal();
  });
  for (absl::Duration rest; (rest = Rest(limits, pause, SteadyNow())) > absl::ZeroDuration();) {
    const absl::Time end = SteadyNow() + rest;
    MutexLock lock(&mu);
    bool late = false;
    while (!notified && !late) late = news.WaitWithDeadline(&mu, end);
    notified = false;
  }
}

// ---- call_timer.h --------------------------------------------------------------------------------------------

CallTimer::Alarm::Alarm(CallTimer* timer, absl::Time deadline, std::function<void()> on_late)
    : timer_(deadline == absl::InfiniteFuture() ? nullptr : timer) {
  if (timer_ == nullptr) return;
  MutexLock lock(&timer_->mu_);
  at_ = timer_->alarms_.emplace(deadline + kGrace, std::move(on_late));
  if (!timer_->thread_.joinable()) {
    timer_->thread_ = Thread::Start("the ends of calls", [timer] { timer->Run(); }).value_or(Thread());
  }
  if (at_->first < timer_->awaited_) timer_->sooner_.Signal();
}

CallTimer::Alarm::~Alarm() {
  if (timer_ == nullptr) return;
  MutexLock lock(&timer_->mu_);
  timer_->alarms_.erase(at_);
}

CallTimer::~CallTimer() {
  Thread thread;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    sooner_.Signal();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void CallTimer::Run() {
  const SdkThread mark;
  MutexLock lock(&mu_);
  while (!stop_) {
    const absl::Time now = SteadyNow();
    awaited_ = absl::InfiniteFuture();
    for (auto& [when, on_late] : alarms_) {
      if (when > now) {
        awaited_ = when;
        break;
      }
      if (on_late != nullptr) std::exchange(on_late, nullptr)();
    }
    sooner_.WaitWithDeadline(&mu_, awaited_);
  }
}

// ---- pause_alarm.h -------------------------------------------------------------------------------------------

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
