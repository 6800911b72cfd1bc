#include "client/internal/acquire_call.h"

#include <atomic>
#include <optional>
#include <utility>

#include "client/cancellation.h"
#include "client/internal/call_attempts.h"
#include "client/internal/call_pause.h"
#include "client/internal/pause_alarm.h"
#include "common/steady_clock.h"

namespace berth::internal {
namespace {

// One call from its start to its end, over its attempts. Owns itself: gone when it is done.
class Running {
 public:
  Running(AcquireCall call, OpenRequest open)
      : call_(std::move(call)),
        open_(std::move(open)),
        stopped_(std::in_place, call_.stop, [this] { stop_.Cancel(); }),
        cancelled_(std::in_place, call_.limits.cancellation, [this] { stop_.Cancel(); }),
        again_(&call_.core->pauses(), &call_.core->timer()) {
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

  // Both ways to cancel are one to the attempts.
  CallLimits limits() {
    CallLimits limits = call_.limits;
    limits.cancellation = &stop_;
    return limits;
  }

  void OnAnswer(const grpc::Status& answer) {
    turn_.load(std::memory_order_acquire);
    attempt_.reset();
    call_.core->LeaveCall();
    absl::Status status = call_.core->JudgeCall(limits(), answer);
    const std::optional<CallPause> pause = call_.core->PauseBeforeRetry(limits(), &attempts_, &status);
    if (!pause.has_value()) return Finish(status);
    again_.Start(limits(), *pause, [this] { Start(); });
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
  PauseAlarm again_;
};

}  // namespace

void StartAcquire(AcquireCall call) {
  absl::StatusOr<OpenRequest> open = call.core->Begin();
  if (!open.ok()) return call.done(open.status(), call.request, v1::AcquirePermitResponse());
  // Deletes itself.
  (new Running(std::move(call), *std::move(open)))->Start();
}

}  // namespace berth::internal
