#include <berth/permit.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "berth/v1/permit.grpc.pb.h"
#include "client/sdk/devices/device_constraint.h"
#include "client/sdk/permits/acquire_call.h"
#include "client/sdk/permits/held_permit.h"
#include "client/sdk/permits/session_permits.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/duration.h"
#include "client/sdk/transport/session_core.h"
#include "common/concurrency_limit.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "common/wire/attach_wire.h"

namespace berth {
namespace {

using internal::CallLimits;
using internal::HeldPermit;
using internal::HeldPermitKey;
using internal::OpenRequest;
using internal::PermitCache;
using internal::SessionCore;

// Whether the permit is indistinguishable from a default one, so that it can be cached for the next use.
bool MayCache(const PermitOptions& options) {
  return options.units == 1 && options.label.empty() && options.priority == 0 && options.holder_key.empty() &&
         !options.exclusive && options.device.empty() && !options.independent && !options.adoptable &&
         !options.on_event;
}

v1::AcquirePermitRequest MakeRequest(const PermitOptions& options, const HeldPermitKey& key) {
  v1::AcquirePermitRequest request;
  request.set_pool(std::string(key.pool));
  request.set_units(options.units);
  request.set_label(ToLabel(options.label));
  if (options.max_wait != absl::InfiniteDuration()) internal::ToProto(options.max_wait, request.mutable_max_wait());
  if (key.pool == kDefaultPool) request.set_client_cap(ConcurrencyFromEnvironment().value_or(0));
  request.set_adoptable(options.adoptable);
  request.set_independent(options.independent);
  request.set_priority(options.priority);
  request.set_exclusive(options.exclusive);
  internal::FillPermitConstraint(options, &request);
  return request;
}

absl::Status CheckOptions(const PermitOptions& options) {
  BERTH_RETURN_IF_ERROR(internal::CheckNotNegative("max_wait", options.max_wait));
  BERTH_RETURN_IF_ERROR(ValidateLabel("pool", options.pool));
  BERTH_RETURN_IF_ERROR(ValidateLabel("holder_key", options.holder_key));
  return internal::HasConstraint(options.device, options, options.declared).status();
}

}  // namespace

const PermitOptions& DefaultPermitOptions() {
  static const auto* const options = new PermitOptions();
  return *options;
}

absl::StatusOr<Permit> Permit::Acquire(const std::shared_ptr<Session>& session,
                                       const PermitOptions& options) {
  const std::shared_ptr<SessionCore>& core = session->core();
  const HeldPermitKey key = {
      .session = core.get(),
      .pool = options.pool.empty() ? absl::string_view(kDefaultPool) : absl::string_view(options.pool),
      .holder_key = options.holder_key};
  // Only the daemon knows what an independent, adoptable, exclusive or device permit may nest in.
  const bool usable = !core->over() && !core->forked();
  const bool plain = !options.independent && !options.adoptable && !options.exclusive && options.device.empty();
  if (plain && options.units > 0 && usable) {
    if (HeldPermit* const nested = HeldPermit::Nest(key, options.units)) return Permit(nested);
  }
  return AcquireAnew(core, key, options);
}

absl::StatusOr<Permit> Permit::AcquireAnew(const std::shared_ptr<SessionCore>& core, const HeldPermitKey& key,
                                           const PermitOptions& options) {
  const bool usable = !core->over() && !core->forked();
  const bool cache = core->caches_permits() && MayCache(options);
  if (cache && usable) {
    if (std::optional<PermitCache::Use> use = core->permit_cache().Take(key.pool)) {
      return Permit(internal::HoldCached(core, key, *std::move(use)));
    }
  }
  BERTH_RETURN_IF_ERROR(CheckOptions(options));
  v1::AcquirePermitRequest request = MakeRequest(options, key);
  if (cache && request.client_cap() == 0) {
    internal::OpenPermitCache(*core);
    request.set_keep(core->permit_cache().open());
  }
  // A permit of this thread that cannot be nested in locally is nested in by the daemon.
  Permit outer(usable ? HeldPermit::Nest(key, /*units=*/0) : nullptr);
  request.set_holder_key(outer                        ? outer.Share()
                         : request.keep()             ? internal::FreshHolderKey()
                         : options.holder_key.empty() ? internal::ThreadHolderKey()
                                                      : options.holder_key);
  v1::AcquirePermitResponse response;
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  CallLimits limits = CallLimits::Waiting(options.max_wait, options.cancellation);
  core->FillToTakeUp(open, request.mutable_request(), &limits);
  const absl::Status status =
      core->Call(limits, attach::Method::kAcquirePermit, request, &response, [&](grpc::ClientContext* context) {
        return core->stubs().Of<v1::PermitService>().AcquirePermit(context, request, &response);
      });
  open.Resolve(status);
  BERTH_RETURN_IF_ERROR(status);
  return Make(core, {.key = key,
                     .known_as = request.holder_key(),
                     .units = options.units,
                     .response = response,
                     .on_event = options.on_event});
}

Permit Permit::Make(const std::shared_ptr<SessionCore>& core, internal::Granted granted) {
  const v1::AcquirePermitResponse& response = granted.response;
  Permit permit(internal::HoldGranted(core, std::move(granted)));
  if (response.has_device()) {
    Placed placed = {.ordinal = response.device().ordinal(),
                     .uuid = response.device().uuid(),
                     .environment = {},
                     .sharers = {}};
    if (response.nested()) placed.sharers = response.device_sharers();
    for (const auto& [name, value] : response.environment()) {
      placed.environment.push_back(absl::StrCat(name, "=", value));
    }
    permit.placed_ = std::make_unique<const Placed>(std::move(placed));
  }
  return permit;
}

void Permit::AcquireAsync(const std::shared_ptr<Session>& session, const PermitOptions& options,
                          std::function<void(absl::StatusOr<Permit>)> done) {
  if (const absl::Status wrong = CheckOptions(options); !wrong.ok()) return done(wrong);
  const HeldPermitKey key = {.pool = options.pool.empty() ? absl::string_view(kDefaultPool)
                                                          : absl::string_view(options.pool)};
  internal::AcquireCall call = {.core = session->core(),
                                .request = MakeRequest(options, key),
                                .limits = CallLimits::Waiting(options.max_wait, options.cancellation)};
  // `options` may be destroyed by then, except for its cancellation.
  call.done = [core = session->core(), on_event = options.on_event, done = std::move(done)](
                  const absl::Status& status, const v1::AcquirePermitRequest& request,
                  const v1::AcquirePermitResponse& response) {
    if (!status.ok()) return done(status);
    done(Make(core,
              {.key = {.session = core.get(), .pool = request.pool(), .holder_key = request.holder_key()},
               .units = request.units(),
               .response = response,
               .on_event = on_event,
               .remembered = false}));
  };
  call.request.set_holder_key(options.holder_key.empty() ? internal::FreshHolderKey() : options.holder_key);
  internal::StartAcquire(std::move(call));
}

absl::StatusOr<Permit> Permit::TryAcquire(const std::shared_ptr<Session>& session, PermitOptions options) {
  options.max_wait = absl::ZeroDuration();
  return Acquire(session, options);
}

absl::Status Permit::Release() {
  HeldPermit* const held_permit = std::exchange(held_permit_, nullptr);
  return held_permit == nullptr ? absl::OkStatus() : held_permit->Drop();
}

void Permit::Leave() {
  if (HeldPermit* const held_permit = std::exchange(held_permit_, nullptr)) held_permit->Leave();
}

void Permit::Reset() { Release().IgnoreError(); }

std::optional<EndNotice> Permit::end() const { return held_permit_ == nullptr ? std::nullopt : held_permit_->end(); }

bool Permit::overdue() const { return held_permit_ != nullptr && held_permit_->overdue(); }

const std::string& Permit::Share() const { return held_permit_->Share(); }

}  // namespace berth
