#include "client/internal/call_pause.h"

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/steady_clock.h"
#include "common/steady_cond_var.h"

namespace berth::internal {

void CallPauses::OnReturn() {
  std::shared_ptr<Cancellation> now;
  {
    MutexLock lock(&mu_);
    // Read under the lock: an attempt that was sent later ends later than this is known.
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
    // What its caller wanted is what it came to, not that a broker was faster to go.
    if (!answered) *status = absl::CancelledError("the call was cancelled");
    return std::nullopt;
  }
  if (answered || !limits.waits || !called_ || !ToBeCalled(*attempts, now)) return CallPause{.end = now + *pause};
  // It is back by the time that its own wait is over, to be told so. The broker that follows may have called before the
  // end of the other was noticed, but not before the other was sent this.
  return CallPause{.end = std::min(now + kLongestAway, limits.deadline - CallLimits::kAnswerSlack),
                   .called_after = std::max(now - CallAttempts::kSuspectFor, attempts->sent())};
}

bool CallPauses::ToBeCalled(const CallAttempts& attempts, absl::Time now) const {
  // A broken connection ends an attempt at once, and is used for no other.
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
  bool told = false;
  // Before the lock, under which they tell.
  const Hooks hooks(this, limits, [&] {
    MutexLock lock(&mu);
    told = true;
    news.Signal();
  });
  for (absl::Duration rest; (rest = Rest(limits, pause, SteadyNow())) > absl::ZeroDuration();) {
    const absl::Time end = SteadyNow() + rest;
    MutexLock lock(&mu);
    bool late = false;
    while (!told && !late) late = news.WaitWithDeadline(&mu, end);
    told = false;
  }
}

}  // namespace berth::internal
