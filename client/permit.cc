#include "client/permit.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "client/internal/device_wish.h"
#include "client/internal/holding.h"
#include "client/internal/session_core.h"
#include "common/concurrency_limit.h"
#include "common/status_macros.h"

namespace berth {
namespace {

using internal::Attempt;
using internal::CallLimits;
using internal::Holding;
using internal::HoldingKey;
using internal::OpenRequest;
using internal::SessionCore;

// Gives one acquisition back to the daemon.
class AcquisitionReleaser final : public Holding::Releaser {
 public:
  AcquisitionReleaser(std::shared_ptr<SessionCore> core, uint64_t acquisition)
      : core_(std::move(core)), acquisition_(acquisition) {}

  absl::Status Release() override {
    const absl::Status status = core_->GiveBack([this](const OpenRequest& open) -> Attempt {
      v1::ReleasePermitRequest request;
      open.Fill(request.mutable_request());
      request.set_acquisition(acquisition_);
      return [core = core_.get(), request](grpc::ClientContext* context) {
        v1::ReleasePermitResponse response;
        return core->stubs().permit->ReleasePermit(context, request, &response);
      };
    });
    // What the daemon does not know is back already.
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

 private:
  const std::shared_ptr<SessionCore> core_;
  const uint64_t acquisition_;
};

v1::AcquirePermitRequest MakeRequest(const PermitOptions& options, const HoldingKey& key) {
  v1::AcquirePermitRequest request;
  request.set_pool(std::string(key.pool));
  request.set_units(options.units);
  request.set_holder_key(options.holder_key.empty() ? internal::ThreadHolderKey() : options.holder_key);
  request.set_label(options.label);
  if (options.max_wait != absl::InfiniteDuration()) {
    absl::Duration rest;
    request.mutable_max_wait()->set_seconds(absl::IDivDuration(options.max_wait, absl::Seconds(1), &rest));
    request.mutable_max_wait()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  }
  if (key.pool == kDefaultPool) request.set_client_cap(ConcurrencyFromEnvironment().value_or(0));
  request.set_adoptable(options.adoptable);
  request.set_independent(options.independent);
  request.set_priority(options.priority);
  request.set_exclusive(options.exclusive);
  if (!options.device.empty()) {
    internal::FillWish(options.device, options.min_free, options.declared, request.mutable_device());
  }
  return request;
}

CallLimits LimitsOf(const PermitOptions& options) {
  const absl::Time deadline = options.max_wait == absl::InfiniteDuration()
                                  ? absl::InfiniteFuture()
                                  : absl::Now() + options.max_wait + SessionCore::kAnswerSlack;
  return {.deadline = deadline, .cancellation = options.cancellation};
}

}  // namespace

absl::StatusOr<Permit> Permit::Acquire(const std::shared_ptr<Session>& session,
                                       const PermitOptions& options) {
  const std::shared_ptr<SessionCore>& core = session->core();
  const HoldingKey key = {
      .session = core.get(),
      .pool = options.pool.empty() ? absl::string_view(kDefaultPool) : absl::string_view(options.pool),
      .holder_key = options.holder_key};
  // What an independent, an adoptable, an exclusive one or one for a device may nest in the daemon knows.
  if (!options.independent && !options.adoptable && !options.exclusive && options.device.empty() &&
      !core->over()) {
    if (Holding* const nested = Holding::Nest(key, options.units)) return Permit(nested);
  }
  if (options.max_wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("max_wait is negative");
  }
  BERTH_RETURN_IF_ERROR(internal::Wishes(options.device, options.min_free, options.declared).status());
  v1::AcquirePermitRequest request = MakeRequest(options, key);
  v1::AcquirePermitResponse response;
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  open.Fill(request.mutable_request());
  const absl::Status status = core->Call(LimitsOf(options), [&](grpc::ClientContext* context) {
    return core->stubs().permit->AcquirePermit(context, request, &response);
  });
  open.Resolve(status);
  BERTH_RETURN_IF_ERROR(status);
  return Make(core, key.pool, options.holder_key, options.units, response, options.on_event);
}

Permit Permit::Make(const std::shared_ptr<SessionCore>& core, absl::string_view pool,
                    absl::string_view holder_key, uint64_t units, const v1::AcquirePermitResponse& granted,
                    std::function<void(PermitEvent)> on_event) {
  const HoldingKey key = {.session = core.get(), .pool = pool, .holder_key = holder_key};
  Permit permit(
      Holding::Make(key, units, std::make_unique<AcquisitionReleaser>(core, granted.acquisition()),
                               core->channel().permits().Watch(granted.permit(), std::move(on_event))));
  if (granted.has_device()) {
    Permit::Placed placed = {.uuid = granted.device().uuid(), .environment = {}};
    for (const auto& [name, value] : granted.environment()) {
      placed.environment.push_back(absl::StrCat(name, "=", value));
    }
    permit.placed_ = std::make_unique<const Permit::Placed>(std::move(placed));
  }
  return permit;
}

absl::StatusOr<Permit> Permit::TryAcquire(const std::shared_ptr<Session>& session, PermitOptions options) {
  options.max_wait = absl::ZeroDuration();
  return Acquire(session, options);
}

absl::Status Permit::Release() {
  Holding* const holding = std::exchange(holding_, nullptr);
  return holding == nullptr ? absl::OkStatus() : holding->Drop();
}

void Permit::Leave() {
  if (Holding* const holding = std::exchange(holding_, nullptr)) holding->Leave();
}

void Permit::Reset() { Release().IgnoreError(); }

bool Permit::revoked() const { return holding_ != nullptr && holding_->revoked(); }

bool Permit::overdue() const { return holding_ != nullptr && holding_->overdue(); }

const std::string& Permit::Share() const { return holding_->holder_key(); }

}  // namespace berth
