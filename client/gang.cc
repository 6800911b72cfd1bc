#include "client/gang.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "client/internal/call_limits.h"
#include "client/internal/device_wish.h"
#include "client/internal/duration.h"
#include "client/internal/either_cancellation.h"
#include "client/internal/holding.h"
#include "client/internal/session_core.h"
#include "client/internal/session_permits.h"
#include "common/concurrency_limit.h"
#include "common/status_macros.h"

namespace berth {
namespace {

using internal::CallLimits;
using internal::OpenRequest;
using internal::SessionCore;

absl::StatusOr<v1::AcquireGangRequest> MakeRequest(const GangOptions& options) {
  if (options.max_wait < absl::ZeroDuration()) return absl::InvalidArgumentError("max_wait is negative");
  if (options.reserve_ttl < absl::ZeroDuration())
    return absl::InvalidArgumentError("reserve_ttl is negative");
  v1::AcquireGangRequest request;
  for (const GangMember& member : options.members) {
    v1::AcquireGangRequest::Member* const to = request.add_members();
    to->set_pool(member.pool.empty() ? std::string(kDefaultPool) : member.pool);
    to->set_units(member.units);
    if (to->pool() == kDefaultPool) to->set_client_cap(ConcurrencyFromEnvironment().value_or(0));
    BERTH_ASSIGN_OR_RETURN(const bool wishes, internal::Wishes(member.device, member, member.declared));
    if (wishes) {
      internal::FillWish(member.device, member, to->mutable_device());
      to->mutable_device()->set_declared_bytes(member.declared.count());
    }
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
  request.set_label(options.label);
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
  // One that this thread keeps between uses the daemon knows by a key of its own: by that it is told what stands in the
  // way.
  std::vector<Permit> outer;
  for (const v1::AcquireGangRequest::Member& member : request.members()) {
    internal::Holding* const held = internal::Holding::Nest(
        {.session = core.get(), .pool = member.pool(), .holder_key = options.holder_key}, /*units=*/0);
    if (held == nullptr) continue;
    outer.push_back(Permit(held));
    request.set_holder_key(outer.back().Share());
  }
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  open.Fill(request.mutable_request());
  v1::AcquireGangResponse response;
  internal::EitherCancellation either(options.cancellation, options.stop);
  const CallLimits limits = CallLimits::Waiting(options.max_wait, either.get());
  const absl::Status status = core->Call(limits, [&](grpc::ClientContext* context) {
    return core->stubs().permit->AcquireGang(context, request, &response);
  });
  open.Resolve(status);
  BERTH_RETURN_IF_ERROR(status);
  Gang gang;
  absl::flat_hash_map<std::string, int> seen;
  for (int i = 0; i < response.permits_size() && i < request.members_size(); ++i) {
    const v1::AcquireGangRequest::Member& member = request.members(i);
    const int nth = ++seen[member.pool()];
    // The first of a pool is its holder's; the others have keys of their own.
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
