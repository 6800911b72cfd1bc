#include "client/sdk/transport/call_pause.h"

#include <algorithm>
#include <utility>

#include <berth/error.h>

#include "common/patience.h"
#include "common/steady_clock.h"
#include "common/steady_cond_var.h"

namespace berth::internal {

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

}  // namespace berth::internal
