#include "client/sdk/permits/session_permits.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.grpc.pb.h"
#include "client/sdk/permits/acquire_call.h"
#include "client/sdk/transport/call_attempts.h"
#include "client/sdk/transport/call_pause.h"
#include "client/sdk/transport/pause_alarm.h"
#include "client/sdk/transport/sdk_thread.h"
#include "client/sdk/transport/side_channel.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "common/wire/permit_slot.h"

namespace berth::internal {
namespace {

absl::Status GiveBackToDaemon(SessionCore& core, uint64_t acquisition, bool if_idle) {
  BERTH_RETURN_IF_ERROR(core.Check());
  absl::Time deadline = core.ReturnDeadline();
  if (core.GiveBack(AcquisitionId(acquisition), if_idle, deadline).ok()) return absl::OkStatus();
  // The next daemon may have ended the permit. Its notice comes on the side channel, and an RPC may overtake it. An SDK
  // thread may be the one that connects the channel again.
  if (!SdkThread::IsCurrent()) {
    const SideChannel::Return returned =
        core.channel().AwaitReturn(std::max(absl::ZeroDuration(), deadline - SteadyNow()));
    if (returned == SideChannel::Return::kPresent &&
        core.GiveBack(AcquisitionId(acquisition), if_idle, deadline).ok()) {
      return absl::OkStatus();
    }
    // The session has waited. Its other permits do not wait again.
    if (returned == SideChannel::Return::kAbsent) deadline = SteadyNow();
  }
  // An RPC is retried until the daemon answers.
  const auto make_attempt = [&](const OpenRequest& open) -> Attempt {
    v1::ReleasePermitRequest request;
    open.Fill(request.mutable_request());
    request.set_acquisition(acquisition);
    request.set_if_idle(if_idle);
    return [&core, request](grpc::ClientContext* context) {
      v1::ReleasePermitResponse response;
      return core.stubs().Of<v1::PermitService>().ReleasePermit(context, request, &response);
    };
  };
  const absl::Status status = core.GiveBack(make_attempt, deadline);
  core.channel().TakeIn();
  // An acquisition that the daemon does not know is already released.
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

class AcquisitionReleaser final : public HeldPermit::Releaser {
 public:
  AcquisitionReleaser(std::shared_ptr<SessionCore> core, uint64_t acquisition)
      : core_(std::move(core)), acquisition_(acquisition) {}

  absl::Status Release() override { return GiveBackToDaemon(*core_, acquisition_, /*if_idle=*/false); }

 private:
  const std::shared_ptr<SessionCore> core_;
  const uint64_t acquisition_;
};

// Returns the permit to the cache instead of releasing it.
class CacheReleaser final : public HeldPermit::Releaser {
 public:
  CacheReleaser(std::shared_ptr<SessionCore> core, const PermitCache::Use& use)
      : core_(std::move(core)), permit_slot_(use.permit_slot), permit_(use.permit), acquisition_(use.acquisition) {}

  absl::Status Release() override {
    // The permit slot belongs to the parent.
    if (core_->forked()) return core_->Check();
    if (shared_.load(std::memory_order_acquire))
      return GiveBackToDaemon(*core_, acquisition_, /*if_idle=*/false);
    switch (permit_slot_->Put(permit_)) {
      case PermitSlot::PutBack::kCached:
        return absl::OkStatus();
      case PermitSlot::PutBack::kWanted:
        return GiveBackToDaemon(*core_, acquisition_, /*if_idle=*/true);
      case PermitSlot::PutBack::kNotOurs:
        break;
    }
    return GiveBackToDaemon(*core_, acquisition_, /*if_idle=*/false);
  }

  // Other processes may nest under the permit's holder key, so the cache must not reuse the permit.
  void Share() override { shared_.store(true, std::memory_order_release); }

 private:
  const std::shared_ptr<SessionCore> core_;
  PermitSlot* const permit_slot_;
  const uint64_t permit_;
  const uint64_t acquisition_;
  std::atomic<bool> shared_ = false;
};

absl::StatusOr<PermitSlot*> FindPermitSlot(SessionCore& core) {
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core.Begin());
  v1::KeepPermitsRequest request;
  open.Fill(request.mutable_request());
  const CallLimits limits = core.DefaultLimits();
  core.channel().Expect(open.sequence());
  const absl::Status status = core.Call(limits, [&](grpc::ClientContext* context) {
    v1::KeepPermitsResponse response;
    return core.stubs().Of<v1::PermitService>().KeepPermits(context, request, &response);
  });
  open.Resolve(status);
  if (!status.ok()) {
    core.channel().Abandon(open.sequence());
    return status;
  }
  BERTH_ASSIGN_OR_RETURN(Arrival arrival, core.Await(open.sequence(), limits.deadline));
  BERTH_RETURN_IF_ERROR(core.fences().pages.SetOwn(std::move(arrival.fd)));
  return &core.fences().pages.own()->page().permit_slot();
}

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
    const SdkThread mark;
    turn_.load(std::memory_order_acquire);
    const bool unconnected = attempt_->hooks->unconnected();
    attempt_.reset();
    call_.core->LeaveCall();
    absl::Status status = call_.core->JudgeCall(call_.limits, answer, unconnected);
    if (status.ok()) status = call_.core->TakeUp(call_.limits);
    const std::optional<CallPause> pause = call_.core->PauseBeforeRetry(call_.limits, &attempts_, &status);
    if (!pause.has_value()) return Finish(status);
    again_.Start(call_.limits, *pause, [this] {
      const SdkThread mark_again;
      Start();
    });
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

void OpenPermitCache(SessionCore& core) {
  PermitCache& cache = core.permit_cache();
  if (!cache.BeginOpen()) return;
  // Without a page the process acquires permits without the cache.
  const absl::StatusOr<PermitSlot*> permit_slot = FindPermitSlot(core);
  cache.Open(permit_slot.ok() ? *permit_slot : nullptr);
}

HeldPermit* HoldCached(const std::shared_ptr<SessionCore>& core, const HeldPermitKey& key, PermitCache::Use use) {
  auto cache_releaser = std::make_unique<CacheReleaser>(core, use);
  // Reset the warning of the previous use.
  use.record->overdue.store(false, std::memory_order_relaxed);
  return HeldPermit::Make(key, /*units=*/1, std::move(cache_releaser), std::move(use.record),
                          std::move(use.holder_key));
}

HeldPermit* HoldGranted(const std::shared_ptr<SessionCore>& core, Granted granted) {
  const v1::AcquirePermitResponse& response = granted.response;
  std::shared_ptr<PermitRecord> record =
      core->channel().permits().Watch(response.permit(), std::move(granted.on_event));
  if (response.kept()) {
    std::optional<PermitCache::Use> cached =
        core->permit_cache().Cache(granted.key.pool, {.permit = response.permit(),
                                                      .acquisition = response.acquisition(),
                                                      .holder_key = granted.known_as,
                                                      .record = record});
    if (cached.has_value()) return HoldCached(core, granted.key, *std::move(cached));
  }
  auto releaser = std::make_unique<AcquisitionReleaser>(core, response.acquisition());
  if (!granted.remembered) {
    return HeldPermit::MakeForNoThread(granted.key, granted.units, std::move(releaser), std::move(record));
  }
  return HeldPermit::Make(granted.key, granted.units, std::move(releaser), std::move(record),
                          std::move(granted.known_as));
}

std::string FreshHolderKey() {
  const uint64_t id = RandomId();
  // Short, so that a copy allocates no memory.
  return absl::StrCat("k",
                      absl::WebSafeBase64Escape(absl::string_view(reinterpret_cast<const char*>(&id), 8)));
}

// ---- acquire_call.h ------------------------------------------------------------------------------------------

void StartAcquire(AcquireCall call) {
  absl::StatusOr<OpenRequest> open = call.core->Begin();
  if (!open.ok()) return call.done(open.status(), call.request, v1::AcquirePermitResponse());
  // The object deletes itself.
  (new Running(std::move(call), *std::move(open)))->Start();
}

}  // namespace berth::internal
