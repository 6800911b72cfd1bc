#include <berth/gang.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.grpc.pb.h"
#include "client/sdk/devices/device_constraint.h"
#include "client/sdk/permits/held_permit.h"
#include "client/sdk/permits/session_permits.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/duration.h"
#include "client/sdk/transport/session_core.h"
#include "common/concurrency_limit.h"
#include "common/label.h"
#include "common/status_macros.h"

namespace berth {
namespace {

using internal::CallLimits;
using internal::OpenRequest;
using internal::SessionCore;

absl::StatusOr<v1::AcquireGangRequest> MakeRequest(const GangOptions& options) {
  BERTH_RETURN_IF_ERROR(internal::CheckNotNegative("max_wait", options.max_wait));
  BERTH_RETURN_IF_ERROR(internal::CheckNotNegative("reserve_ttl", options.reserve_ttl));
  BERTH_RETURN_IF_ERROR(ValidateLabel("holder_key", options.holder_key));
  v1::AcquireGangRequest request;
  for (const GangMember& member : options.members) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("pool", member.pool));
    v1::AcquireGangRequest::Member* const to = request.add_members();
    to->set_pool(member.pool.empty() ? std::string(kDefaultPool) : member.pool);
    to->set_units(member.units);
    if (to->pool() == kDefaultPool) to->set_client_cap(ConcurrencyFromEnvironment().value_or(0));
    BERTH_RETURN_IF_ERROR(internal::HasConstraint(member.device, member, member.declared).status());
    internal::FillPermitConstraint(member, to);
  }
  for (const ReservationItem& item : options.reserve) {
    v1::AcquireGangRequest::Bytes* const to = request.add_reserve();
    to->set_bytes(item.bytes.count());
    to->set_device(item.device);
    to->set_device_uuid(item.device_uuid);
  }
  if (options.reserve_ttl != absl::InfiniteDuration()) {
    internal::ToProto(options.reserve_ttl, request.mutable_reserve_ttl());
  }
  request.set_holder_key(options.holder_key.empty() ? internal::ThreadHolderKey() : options.holder_key);
  request.set_label(ToLabel(options.label));
  if (options.max_wait != absl::InfiniteDuration()) {
    internal::ToProto(options.max_wait, request.mutable_max_wait());
  }
  request.set_adoptable(options.adoptable);
  request.set_independent(options.independent);
  request.set_priority(options.priority);
  request.set_exclusive(options.exclusive);
  return request;
}

}  // namespace

absl::StatusOr<Gang> Gang::Acquire(const std::shared_ptr<Session>& session, const GangOptions& options) {
  const std::shared_ptr<SessionCore>& core = session->core();
  BERTH_ASSIGN_OR_RETURN(v1::AcquireGangRequest request, MakeRequest(options));
  // The daemon knows a permit that this thread caches between uses by a key of its own. Send that key, so that the
  // daemon can name the conflicting permit.
  std::vector<Permit> outer;
  for (const v1::AcquireGangRequest::Member& member : request.members()) {
    internal::HeldPermit* const held = internal::HeldPermit::Nest(
        {.session = core.get(), .pool = member.pool(), .holder_key = options.holder_key}, /*units=*/0);
    if (held == nullptr) continue;
    outer.push_back(Permit(held));
    request.set_holder_key(outer.back().Share());
  }
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  v1::AcquireGangResponse response;
  CallLimits limits = CallLimits::Waiting(options.max_wait, options.cancellation);
  core->FillToTakeUp(open, request.mutable_request(), &limits);
  const absl::Status status = core->Call(limits, [&](grpc::ClientContext* context) {
    return core->stubs().Of<v1::PermitService>().AcquireGang(context, request, &response);
  });
  open.Resolve(status);
  BERTH_RETURN_IF_ERROR(status);
  Gang gang;
  absl::flat_hash_map<std::string, int> seen;
  for (int i = 0; i < response.permits_size() && i < request.members_size(); ++i) {
    const v1::AcquireGangRequest::Member& member = request.members(i);
    const int nth = ++seen[member.pool()];
    // The first permit of a pool uses the holder's key; the others have keys of their own.
    const std::string key = nth == 1 ? options.holder_key : absl::StrCat(request.holder_key(), "#", nth);
    gang.permits_.push_back(
        Permit::Make(core, {.key = {.session = core.get(), .pool = member.pool(), .holder_key = key},
                            .known_as = nth == 1 ? request.holder_key() : "",
                            .units = member.units(),
                            .response = response.permits(i),
                            .on_event = options.on_event}));
  }
  if (response.has_reservation()) {
    gang.reservation_.emplace(Reservation(core, ReservationId(response.reservation().id())));
  }
  for (const auto& [name, value] : response.environment()) {
    gang.environment_.push_back(absl::StrCat(name, "=", value));
  }
  return gang;
}

absl::StatusOr<Gang> Gang::TryAcquire(const std::shared_ptr<Session>& session, GangOptions options) {
  options.max_wait = absl::ZeroDuration();
  return Acquire(session, options);
}

absl::Status Gang::Release() {
  absl::Status status;
  if (reservation_.has_value()) status.Update(reservation_->Release());
  reservation_.reset();
  for (Permit& permit : permits_) status.Update(permit.Release());
  permits_.clear();
  return status;
}

void Gang::Leave() {
  reservation_.reset();
  for (Permit& permit : permits_) permit.Leave();
  permits_.clear();
}

}  // namespace berth
