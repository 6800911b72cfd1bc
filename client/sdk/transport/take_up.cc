// SessionCore: the take-up of grants, and calls that pause while this process is stopped.

#include <utility>

#include <berth/error.h>

#include "berth/v1/resources.pb.h"
#include "client/sdk/transport/session_core.h"
#include "client/sdk/transport/side_channel.h"
#include "common/wire/take_up.h"

namespace berth::internal {
namespace {

// Longest wait for the daemon before this process stops. A daemon that does not answer finds the process stopped.
constexpr absl::Duration kPausePatience = absl::Milliseconds(500);
constexpr absl::Duration kLate = absl::Seconds(1);

}  // namespace

void SessionCore::FillToTakeUp(const OpenRequest& open, v1::RequestTag* tag, CallLimits* limits) {
  open.Fill(tag);
  if (live_->fences.pages.misses_own()) return;
  tag->set_takes_up(true);
  limits->takes_up = open.sequence();
}

absl::Status SessionCore::TakeUp(const CallLimits& limits) {
  if (limits.takes_up == 0) return absl::OkStatus();
  FencePages& pages = live_->fences.pages;
  if (pages.misses_own()) {
    return absl::ResourceExhaustedError(
        "cannot take up the granted permit: this process had no file descriptor or memory for its page");
  }
  if (pages.TakeUp(limits.takes_up) != TakeUpWords::Taking::kWithdrawn) return absl::OkStatus();
  return Refuse(Reason::kProcessStopped, "the grant of request {sequence} was withdrawn while this process was stopped",
                {{"sequence", limits.takes_up}});
}

absl::Status SessionCore::JudgeLate(const CallLimits& limits, absl::Status status) {
  const bool unanswered = absl::IsDeadlineExceeded(status) && !GetErrorDetails(status).has_value();
  const bool skipped = IsRefusal(status, Reason::kProcessStopped);
  // A process that runs notices its deadline in time.
  const bool stopped = SteadyNow() >= limits.deadline + (skipped ? absl::ZeroDuration() : kLate);
  if (!limits.waits || !stopped || !(unanswered || skipped)) return status;
  return Refuse(Reason::kWaitTimedOut, "the limit of the wait passed while this process was stopped");
}

void SessionCore::PauseWaits() {
  // An observer waits for nothing.
  if (live_->channel == nullptr) return;
  {
    MutexLock lock(&pause_mu_);
    waits_paused_ = true;
  }
  const attach::Ask ask = {.method = attach::Method::kSkip,
                           .session = credentials_.session.value(),
                           .secret = credentials_.secret};
  const absl::Time deadline = return_patience_.Bound(SteadyNow() + kPausePatience);
  channel().Ask(ask, deadline, /*cancellation=*/nullptr).status().IgnoreError();
}

void SessionCore::ContinueWaits() {
  MutexLock lock(&pause_mu_);
  waits_paused_ = false;
  continued_.SignalAll();
}

void SessionCore::AwaitContinue() {
  MutexLock lock(&pause_mu_);
  while (waits_paused_) continued_.WaitWithDeadline(&pause_mu_, absl::InfiniteFuture());
}

}  // namespace berth::internal
