#include "client/sdk/permits/acquire_call.h"

#include <atomic>
#include <optional>
#include <utility>

#include "berth/v1/permit.grpc.pb.h"
#include "client/sdk/transport/call_attempts.h"
#include "client/sdk/transport/call_pause.h"
#include "client/sdk/transport/pause_alarm.h"
#include "common/steady_clock.h"

namespace berth::internal {
namespace {

// One call over all its attempts. The object owns itself: it deletes itself when the call is done.
class Running {
 public:
  Running(AcquireCall call, OpenRequest open)
      : call_(std::move(call)),
        open_(std::move(open)),
        again_(&call_.core->pauses(), &call_.core->timer()) {
    call_.core->FillToTakeUp(open_, call_.request.mutable_request(), &call_.limits);
  }

  void Start() {
    if (const absl::Status status = call_.core->EnterCall(); !status.ok()) return Finish(status);
    attempts_.Sent(SteadyNow());
    attempt_.emplace();
    call_.core->PrepareCall(call_.limits, &attempt_->context);
    attempt_->hooks.emplace(call_.core.get(), call_.limits, &attempt_->context);
    turn_.store(true, std::memory_order_release);
    call_.core->stubs().Of<v1::PermitService>().async()->AcquirePermit(
        &attempt_->context, &call_.request, &response_, [this](grpc::Status status) { OnAnswer(status); });
  }

 private:
  struct Attempt {
    grpc::ClientContext context;
    std::optional<SessionCore::CallHooks> hooks;
  };

  void OnAnswer(const grpc::Status& answer) {
    turn_.load(std::memory_order_acquire);
    const bool unconnected = attempt_->hooks->unconnected();
    attempt_.reset();
    call_.core->LeaveCall();
    absl::Status status = call_.core->JudgeCall(call_.limits, answer, unconnected);
    if (status.ok()) status = call_.core->TakeUp(call_.limits);
    const std::optional<CallPause> pause = call_.core->PauseBeforeRetry(call_.limits, &attempts_, &status);
    if (!pause.has_value()) return Finish(status);
    again_.Start(call_.limits, *pause, [this] { Start(); });
  }

  // Requires: no attempt or pause is under way, because `done` may destroy the caller's Cancellation.
  void Finish(const absl::Status& status) {
    open_.Resolve(status);
    const std::unique_ptr<Running> self(this);
    call_.done(status, call_.request, response_);
  }

  // Each thread stores it when done here, and the next thread loads it. gRPC's own synchronization orders the threads,
  // but ThreadSanitizer does not see that.
  std::atomic<bool> turn_ = false;
  AcquireCall call_;
  OpenRequest open_;
  v1::AcquirePermitResponse response_;
  CallAttempts attempts_;
  std::optional<Attempt> attempt_;
  PauseAlarm again_;
};

}  // namespace

void StartAcquire(AcquireCall call) {
  absl::StatusOr<OpenRequest> open = call.core->Begin();
  if (!open.ok()) return call.done(open.status(), call.request, v1::AcquirePermitResponse());
  // The object deletes itself.
  (new Running(std::move(call), *std::move(open)))->Start();
}

}  // namespace berth::internal
