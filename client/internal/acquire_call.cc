#include "client/internal/acquire_call.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "client/cancellation.h"
#include "client/internal/call_attempts.h"
#include "common/mutex.h"
#include "common/steady_clock.h"
#include "grpcpp/alarm.h"

namespace berth::internal {
namespace {

// One call from its start to its end, over its attempts. Owns itself: gone when it is done.
class Running {
 public:
  Running(AcquireCall call, OpenRequest open)
      : call_(std::move(call)),
        open_(std::move(open)),
        stopped_(std::in_place, call_.stop, [this] { stop_.Cancel(); }),
        cancelled_(std::in_place, call_.limits.cancellation, [this] { stop_.Cancel(); }) {
    open_.Fill(call_.request.mutable_request());
  }

  void Start() {
    if (const absl::Status status = call_.core->EnterCall(); !status.ok()) return Finish(status);
    attempts_.Sent(SteadyNow());
    attempt_.emplace();
    call_.core->PrepareCall(limits(), &attempt_->context);
    attempt_->hooks.emplace(call_.core.get(), limits(), &attempt_->context);
    turn_.store(true, std::memory_order_release);
    call_.core->stubs().permit->async()->AcquirePermit(&attempt_->context, &call_.request, &response_,
                                                       [this](grpc::Status status) { OnAnswer(status); });
  }

 private:
  struct Attempt {
    grpc::ClientContext context;
    std::optional<SessionCore::CallHooks> hooks;
  };

  CallLimits limits() { return {.deadline = call_.limits.deadline, .cancellation = &stop_}; }

  void OnAnswer(const grpc::Status& answer) {
    turn_.load(std::memory_order_acquire);
    attempt_.reset();
    call_.core->LeaveCall();
    absl::Status status = call_.core->JudgeCall(limits(), answer);
    pause_ = call_.core->PauseBeforeRetry(limits(), &attempts_, &status);
    if (!pause_.has_value()) return Finish(status);
    PauseOn();
  }

  // Starts the next attempt once the pause is over.
  void PauseOn() {
    const absl::Duration rest = call_.core->Rest(limits(), *pause_);
    if (rest == absl::ZeroDuration()) return Start();
    const auto stop = [this] { again_->Cancel(); };
    turn_.store(true, std::memory_order_release);
    MutexLock lock(&pausing_);
    again_.emplace().Set(absl::ToChronoTime(absl::Now() + rest), [this](bool) {
      turn_.load(std::memory_order_acquire);
      { MutexLock all_set(&pausing_); }
      pause_hooks_.reset();
      overdue_.reset();
      PauseOn();
    });
    pause_hooks_.emplace(call_.core.get(), limits(), stop);
    // gRPC's alarms, too, come late where the wall clock is set back.
    overdue_.emplace(&call_.core->timer(), SteadyNow() + rest, stop);
  }

  void Finish(const absl::Status& status) {
    open_.Resolve(status);
    const std::unique_ptr<Running> self(this);
    // Who is told may let go at once of what cancels.
    stopped_.reset();
    cancelled_.reset();
    call_.done(status, call_.request, response_);
  }

  // Stored by each thread that is done here, loaded by the next: what orders them is gRPC's own, which ThreadSanitizer
  // does not see.
  std::atomic<bool> turn_ = false;
  AcquireCall call_;
  OpenRequest open_;
  Cancellation stop_;
  std::optional<std::stop_callback<std::function<void()>>> stopped_;
  std::optional<Cancellation::Hook> cancelled_;
  v1::AcquirePermitResponse response_;
  CallAttempts attempts_;
  std::optional<Attempt> attempt_;
  std::optional<SessionCore::Pause> pause_;
  // Held until what ends the pause sooner is set.
  Mutex pausing_;
  std::optional<grpc::Alarm> again_;
  std::optional<SessionCore::PauseHooks> pause_hooks_;
  std::optional<CallTimer::Alarm> overdue_;
};

}  // namespace

void StartAcquire(AcquireCall call) {
  absl::StatusOr<OpenRequest> open = call.core->Begin();
  if (!open.ok()) return call.done(open.status(), call.request, v1::AcquirePermitResponse());
  // Deletes itself.
  (new Running(std::move(call), *std::move(open)))->Start();
}

}  // namespace berth::internal
