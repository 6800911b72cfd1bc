#include "daemon/core/memory/reservations.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <berth/error.h>

#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {
namespace {

// Limit of the items of a reservation, so that sums cannot overflow and lists stay small.
constexpr uint64_t kMaxItems = kMaxDeviceOrdinals;

absl::Status NoReservation(ReservationId id) {
  return Refuse(Reason::kNotFound,
                "no {kind} {id} in this session: it was released, or its time has expired; reserve the bytes again",
                {{"kind", "reservation"}, {"id", id.value()}});
}

}  // namespace

Reservations::Reservations(Managers& core)
    : core_(core),
      reservations_(&core.journal, core.config.limits.reservations, core.config.limits.operator_reservations) {}

void Reservations::Reserve(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                           const ReserveRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  LogRecord& log_record = core_.memory_log.AddLogRecord(*admitted, LogAction::kReserve);
  log_record.label = request.label;
  absl::StatusOr<std::vector<ByteRequest>> asks = MeasureAll(request);
  if (!asks.ok()) return core_.requests.Answer(step, admitted->request, asks.status());
  for (const ByteRequest& ask : *asks)
    log_record.bytes = CheckedAdd(log_record.bytes, ask.bytes).value_or(log_record.bytes);
  log_record.device = asks->front().device;
  const absl::Status limits = MayReserve(admitted->session.id);
  if (!limits.ok()) return core_.requests.Answer(step, admitted->request, limits);
  core_.byte_queue.Enqueue(step, Waiting{.request = admitted->request,
                                         .session = admitted->session.id,
                                         .tenant = admitted->session.tenant,
                                         .asks = *std::move(asks),
                                         .label = request.label,
                                         .reserve_for = request.ttl,
                                         .of_operator = admitted->session.of_operator});
}

void Reservations::ReleaseReservation(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                                      ReservationId reservation) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(reservation));
  if (!admitted.has_value()) return;
  Reservation* const found = reservations_.Find(reservation);
  if (found == nullptr || found->session != admitted->session.id) {
    return core_.requests.Answer(step, admitted->request, NoReservation(reservation));
  }
  DropReservation(step, *found, LogCause::kNone);
  core_.requests.Answer(step, admitted->request, Response(ReleaseReservationResult()));
}

absl::StatusOr<std::vector<ByteRequest>> Reservations::MeasureAll(const ReserveRequest& request) {
  if (request.items.empty() || request.items.size() > kMaxItems) {
    return Refuse(Reason::kInvalidField, "{field}: {value} items; a request reserves 1 to {limit}",
                  {{"field", "items"}, {"value", request.items.size()}, {"limit", kMaxItems}});
  }
  std::map<uint32_t, Bytes> sums;
  for (const ReserveItem& item : request.items) {
    BERTH_ASSIGN_OR_RETURN(const Device* const device, core_.devices.FindServing(item.device, item.device_uuid));
    BERTH_ASSIGN_OR_RETURN(const Bytes bytes, core_.devices.Measure(*device, item.bytes));
    Bytes& sum = sums[device->config.ordinal];
    const std::optional<Bytes> added = CheckedAdd(sum, bytes);
    if (!added.has_value()) {
      return Refuse(Reason::kOutOfRange, "{field} is {value} and more, the most is {limit}",
                    {{"field", "bytes"}, {"value", sum.count()}, {"limit", std::numeric_limits<uint64_t>::max()}});
    }
    sum = *added;
  }
  std::vector<ByteRequest> asks;
  for (const auto& [device, bytes] : sums) asks.push_back({.device = device, .bytes = bytes});
  return asks;
}

absl::Status Reservations::MayReserve(SessionId session) const {
  BERTH_RETURN_IF_ERROR(reservations_.places().Check(core_.sessions.table().Find(session)->claimant()));
  const uint64_t current = reservations_.CountOf(session) + core_.byte_queue.table().CountReservationsFor(session) +
                           core_.permits.gangs().CountReserving(session);
  const uint64_t limit = core_.config.limits.reservations_per_session;
  if (current < limit) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", "reservations_per_session"}, {"current", current}, {"limit", limit}});
}

void Reservations::MakeReservation(StepContext& step, const Waiting& waiting) {
  const Reservation& reservation = AddReservation(step, waiting);
  core_.requests.Answer(step, waiting.request, Response(ReserveResult{.reservation = ViewReservation(reservation)}));
}

Reservation& Reservations::AddReservation(StepContext& step, const Waiting& waiting) {
  Reservation& reservation = reservations_.Add({.id = core_.NewId<ReservationId>(),
                                                .session = waiting.session,
                                                .tenant = waiting.tenant,
                                                .label = waiting.label,
                                                .since = step.now,
                                                .expires = step.now + *waiting.reserve_for,
                                                .of_operator = waiting.of_operator});
  for (const ByteRequest& ask : waiting.asks) {
    reservation.claims[ask.device] = {.bytes = ask.bytes, .left = ask.bytes};
    Claim(reservation, ask.device, ask.bytes);
  }
  core_.leases.RecordGrant(step, core_.leases.LeaseOf(reservation), waiting.request);
  return reservation;
}

ReservationView Reservations::ReserveForGang(StepContext& step, const Waiting& waiting) {
  ReservedBudgets reserved;
  core_.byte_queue.RecordPasses(step, waiting, &reserved);
  const ReservationView view = ViewReservation(AddReservation(step, waiting));
  LogRecord record{.action = LogAction::kReserve,
                   .session = view.session,
                   .tenant = view.tenant,
                   .request = waiting.request,
                   .device = waiting.asks.front().device,
                   .reservation = view.id,
                   .label = view.label};
  for (const ByteRequest& ask : waiting.asks) {
    record.bytes = CheckedAdd(record.bytes, ask.bytes).value_or(record.bytes);
  }
  core_.memory_log.Log(step, std::move(record));
  // Requests that wait for bytes in release may wait for no more than these bytes.
  step.MarkCapacityChanged();
  return view;
}

void Reservations::Claim(const Reservation& reservation, uint32_t device, Bytes bytes) {
  for (const LayerBudget& layer : core_.budgets.LayersOf(device, reservation.session, reservation.tenant)) {
    layer.budget->Claim(bytes);
  }
}

void Reservations::Unclaim(StepContext& step, SessionId session, const Account& account, uint32_t device, Bytes bytes) {
  step.MarkCapacityChanged();
  for (const LayerBudget& layer : core_.budgets.LayersOf(device, session, account)) layer.budget->Unclaim(bytes);
}

void Reservations::DropReservation(StepContext& step, Reservation& reservation, LogCause cause) {
  LogRecord record{.action = LogAction::kReservationEnd,
                   .cause = cause,
                   .session = reservation.session,
                   .tenant = reservation.tenant,
                   .reservation = reservation.id,
                   .label = reservation.label};
  for (const auto& [device, claim] : reservation.claims) {
    Unclaim(step, reservation.session, reservation.tenant, device, claim.left);
    record.bytes = CheckedAdd(record.bytes, claim.left).value_or(record.bytes);
  }
  core_.memory_log.Log(step, std::move(record));
  core_.leases.RecordEnd(step.now, core_.leases.LeaseOf(reservation), Leases::EndFor(cause));
  reservations_.Erase(reservation);
}

absl::Status Reservations::Draw(SessionId session, ReservationId id, uint32_t device, Bytes bytes) {
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

void Reservations::ReturnToReservation(const Block& block) {
  Reservation* const reservation = reservations_.Find(block.drawn_from);
  if (reservation == nullptr) return;
  Bytes& left = reservation->claims.at(block.device).left;
  left = Bytes(left.count() + block.bytes.count());
  Claim(*reservation, block.device, block.bytes);
}

Bytes Reservations::HeldIn(const Reservation& reservation, uint32_t device) {
  const auto claim = reservation.claims.find(device);
  if (claim == reservation.claims.end()) return Bytes();
  uint64_t held = claim->second.left.count();
  for (const Block* const block : core_.blocks.OwnedBy(reservation.session)) {
    if (block->device == device && block->drawn_from == reservation.id) held += block->bytes.count();
  }
  return Bytes(held);
}

ReservationView Reservations::ViewReservation(const Reservation& reservation) const {
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

Page<ReservationView> Reservations::ListReservations(const Caller& caller, const PageRequest& page) const {
  PageBuilder<ReservationView> builder(page);
  reservations_.ForEachAfter(page.after, [&](const Reservation& reservation) {
    if (!caller.sees_all() && reservation.tenant != caller.tenant) return true;
    if (builder.Full()) return false;
    builder.Add(reservation.number, reservation.claims.size(), ViewReservation(reservation));
    return true;
  });
  return builder.Build();
}

void Reservations::ReadReservation(ReservationId id, ArchiveReader& archive) {
  Reservation read;
  archive(read);
  read.id = id;
  const bool known = std::all_of(read.claims.begin(), read.claims.end(),
                                 [this](const auto& claim) { return core_.devices.Has(claim.first); });
  if (archive.failed() || !known || core_.sessions.table().Find(read.session) == nullptr) return archive.Fail();
  const Reservation* const reservation = reservations_.Restore(std::move(read));
  if (reservation == nullptr) return archive.Fail();
  for (const auto& [device, claim] : reservation->claims) Claim(*reservation, device, claim.left);
}

void Reservations::DropAllOf(StepContext& step, SessionId session) {
  for (Reservation* const reservation : reservations_.OfSession(session)) {
    DropReservation(step, *reservation, LogCause::kSessionEnd);
  }
}

void Reservations::DropExpired(StepContext& step) {
  while (Reservation* const expired = reservations_.FindExpired(step.now))
    DropReservation(step, *expired, LogCause::kExpired);
}

void Reservations::ReturnDrawn(StepContext& step, const Waiting& waiting) {
  if (!waiting.drawn_from) return;
  const ByteRequest& ask = waiting.asks.front();
  if (Reservation* const reservation = reservations_.Find(waiting.drawn_from)) {
    Bytes& left = reservation->claims.at(ask.device).left;
    left = Bytes(left.count() + ask.bytes.count());
  } else {
    Unclaim(step, waiting.session, waiting.tenant, ask.device, ask.bytes);
  }
}

bool Undo(const UndoStep& undo, const ReserveResult& result) {
  Reservation* const reservation = undo.core.reservations.Find(result.reservation.id);
  if (reservation == nullptr) return false;
  undo.core.reservations.DropReservation(undo.step, *reservation, LogCause::kForgotten);
  return true;
}

}  // namespace berth::core
