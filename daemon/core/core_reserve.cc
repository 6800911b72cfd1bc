// Reservations: bytes set aside all or nothing, drawn down exactly, and given back at their release, their expiry, or
// their session's end.

#include <limits>
#include <map>

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"

namespace berth::core {
namespace {

// Of a reservation, so that what is added up cannot overflow and what is listed stays small.
constexpr uint64_t kMaxItems = kMaxDeviceOrdinals;

absl::Status NoReservation(ReservationId id) {
  return Refuse(Reason::kNotFound, "no {kind} {id} in this session",
                {{"kind", "reservation"}, {"id", id.value()}});
}

}  // namespace

void Core::Reserve(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const ReserveRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& note = impl_->Note(*admitted, LogAction::kReserve);
  note.label = request.label;
  absl::StatusOr<std::vector<RoomAsk>> asks = impl_->MeasureAll(request);
  if (!asks.ok()) return impl_->Answer(step, admitted->request, asks.status());
  for (const RoomAsk& ask : *asks) note.bytes = CheckedAdd(note.bytes, ask.bytes).value_or(note.bytes);
  note.device = asks->front().device;
  const absl::Status limits = impl_->MayReserve(admitted->session.id);
  if (!limits.ok()) return impl_->Answer(step, admitted->request, limits);
  impl_->Enqueue(step, Waiting{.request = admitted->request,
                               .session = admitted->session.id,
                               .tenant = admitted->session.tenant,
                               .asks = *std::move(asks),
                               .label = request.label,
                               .reserve_for = request.ttl});
}

void Core::ReleaseReservation(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                              ReservationId reservation, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(reservation));
  if (!admitted.has_value()) return;
  Reservation* const found = impl_->reservations_.Find(reservation);
  if (found == nullptr || found->session != admitted->session.id) {
    return impl_->Answer(step, admitted->request, NoReservation(reservation));
  }
  impl_->DropReservation(step, *found, LogCause::kNone);
  impl_->Answer(step, admitted->request, Response(ReleaseReservationResult()));
}

absl::StatusOr<std::vector<RoomAsk>> Core::Impl::MeasureAll(const ReserveRequest& request) {
  if (request.items.empty() || request.items.size() > kMaxItems) {
    return Refuse(Reason::kInvalidField, "{field}: {value} items; 1 to {limit} can be reserved at once",
                  {{"field", "items"}, {"value", request.items.size()}, {"limit", kMaxItems}});
  }
  std::map<uint32_t, Bytes> sums;
  for (const ReserveItem& item : request.items) {
    BERTH_ASSIGN_OR_RETURN(const Device* const device, FindServing(item.device, item.device_uuid));
    BERTH_ASSIGN_OR_RETURN(const Bytes bytes, Measure(*device, item.bytes));
    Bytes& sum = sums[device->config.ordinal];
    const std::optional<Bytes> added = CheckedAdd(sum, bytes);
    if (!added.has_value()) {
      return Refuse(
          Reason::kOutOfRange, "{field} is {value} and more, the most is {limit}",
          {{"field", "bytes"}, {"value", sum.count()}, {"limit", std::numeric_limits<uint64_t>::max()}});
    }
    sum = *added;
  }
  std::vector<RoomAsk> asks;
  for (const auto& [device, bytes] : sums) asks.push_back({.device = device, .bytes = bytes});
  return asks;
}

absl::Status Core::Impl::MayReserve(SessionId session) const {
  uint64_t waiting = 0;
  for (const Waiting& entry : room_.entries()) {
    waiting += entry.session == session && entry.reserve_for.has_value() ? 1 : 0;
  }
  const uint64_t current = reservations_.CountOf(session) + waiting + gangs_.CountReserving(session);
  const uint64_t limit = config_.limits.reservations_per_session;
  if (current < limit) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", "reservations_per_session"}, {"current", current}, {"limit", limit}});
}

void Core::Impl::MakeReservation(const Step& step, const Waiting& waiting) {
  const Reservation& reservation = AddReservation(step, waiting);
  Answer(step, waiting.request, Response(ReserveResult{.reservation = ViewReservation(reservation)}));
}

Reservation& Core::Impl::AddReservation(const Step& step, const Waiting& waiting) {
  Reservation& reservation = reservations_.Add({.id = NewId<ReservationId>(),
                                                .session = waiting.session,
                                                .tenant = waiting.tenant,
                                                .label = waiting.label,
                                                .since = step.now,
                                                .expires = step.now + *waiting.reserve_for});
  for (const RoomAsk& ask : waiting.asks) {
    reservation.claims[ask.device] = {.bytes = ask.bytes, .left = ask.bytes};
    Claim(reservation, ask.device, ask.bytes);
  }
  NoteGrant(step, LeaseOf(reservation), waiting.request);
  return reservation;
}

ReservationView Core::Impl::ReserveForGang(const Step& step, const Waiting& waiting) {
  for (Waiting& entry : room_.entries()) {
    if (entry.patient && Takes(waiting, Assess(entry, {}).lacking)) room_.NotePassed(entry, step.now);
  }
  const ReservationView view = ViewReservation(AddReservation(step, waiting));
  LogRecord record{.action = LogAction::kReserve,
                   .session = view.session,
                   .tenant = view.tenant,
                   .request = waiting.request,
                   .device = waiting.asks.front().device,
                   .reservation = view.id,
                   .label = view.label};
  for (const RoomAsk& ask : waiting.asks) {
    record.bytes = CheckedAdd(record.bytes, ask.bytes).value_or(record.bytes);
  }
  Log(step, std::move(record));
  // What others wait for to come back may be no more than this.
  NoteRoom();
  return view;
}

void Core::Impl::TrimForGang(const Step& step, const Gang& gang) {
  if (gang.room.empty()) return;
  const Waiting waiting = PermitRun::WaitingOf(gang);
  const Shortage shortage = Assess(waiting, {});
  if (shortage.kind == Shortage::Kind::kComing) TrimFor(step, waiting, shortage);
}

void Core::Impl::ServeGangRoom(const Step& step) {
  if (!std::exchange(gang_room_changed_, false) || gangs_.gangs().empty()) return;
  PermitRun run(this, &step);
  run.Reconsider();
  run.Answer();
  for (const auto& [request, gang] : gangs_.gangs()) {
    TrimForGang(step, gang);
    serve_pools_ = serve_pools_ || !gang.room.empty();
  }
}

void Core::Impl::Claim(const Reservation& reservation, uint32_t device, Bytes bytes) {
  for (const LayerBudget& layer : LayersOf(device, reservation.session, reservation.tenant)) {
    layer.budget->Claim(bytes);
  }
}

void Core::Impl::Unclaim(SessionId session, const Tenant& tenant, uint32_t device, Bytes bytes) {
  NoteRoom();
  for (const LayerBudget& layer : LayersOf(device, session, tenant)) layer.budget->Unclaim(bytes);
}

void Core::Impl::DropReservation(const Step& step, Reservation& reservation, LogCause cause) {
  LogRecord record{.action = LogAction::kReservationEnd,
                   .cause = cause,
                   .session = reservation.session,
                   .tenant = reservation.tenant,
                   .reservation = reservation.id,
                   .label = reservation.label};
  for (const auto& [device, claim] : reservation.claims) {
    Unclaim(reservation.session, reservation.tenant, device, claim.left);
    record.bytes = CheckedAdd(record.bytes, claim.left).value_or(record.bytes);
  }
  Log(step, std::move(record));
  leases_.NoteEnd(step.now, LeaseOf(reservation), EndFor(cause));
  reservations_.Erase(reservation);
}

absl::Status Core::Impl::Draw(SessionId session, ReservationId id, uint32_t device, Bytes bytes) {
  Reservation* const reservation = reservations_.Find(id);
  if (reservation == nullptr || reservation->session != session) return NoReservation(id);
  const auto claim = reservation->claims.find(device);
  const Bytes left = claim == reservation->claims.end() ? Bytes(0) : claim->second.left;
  const Bytes limit = claim == reservation->claims.end() ? Bytes(0) : claim->second.bytes;
  if (bytes > left) {
    return Refuse(Reason::kOverBudget,
                  "{layer} {id} on device {device}: requested {requested} bytes, current {current}, "
                  "remaining {remaining}, limit {limit}",
                  {{"layer", "reservation"},
                   {"id", id.value()},
                   {"device", device},
                   {"requested", bytes.count()},
                   {"current", SaturatingSub(limit, left).count()},
                   {"remaining", left.count()},
                   {"limit", limit.count()}});
  }
  claim->second.left = SaturatingSub(left, bytes);
  return absl::OkStatus();
}

void Core::Impl::Restore(const Block& block) {
  Reservation* const reservation = reservations_.Find(block.drawn_from);
  if (reservation == nullptr) return;
  Bytes& left = reservation->claims.at(block.device).left;
  left = Bytes(left.count() + block.bytes.count());
  Claim(*reservation, block.device, block.bytes);
}

Bytes Core::Impl::HeldIn(const Reservation& reservation, uint32_t device) {
  const auto claim = reservation.claims.find(device);
  if (claim == reservation.claims.end()) return Bytes();
  uint64_t held = claim->second.left.count();
  for (const Block* const block : blocks_.OwnedBy(reservation.session)) {
    if (block->device == device && block->drawn_from == reservation.id) held += block->bytes.count();
  }
  return Bytes(held);
}

ReservationView Core::Impl::ViewReservation(const Reservation& reservation) const {
  ReservationView view{.id = reservation.id,
                       .session = reservation.session,
                       .tenant = reservation.tenant,
                       .label = reservation.label,
                       .since = reservation.since,
                       .expires = reservation.expires};
  for (const auto& [device, claim] : reservation.claims) {
    view.claims.push_back({.device = device, .bytes = claim.bytes, .left = claim.left});
  }
  return view;
}

}  // namespace berth::core
