#include "daemon/core/reservation_table.h"

#include "daemon/core/invariant.h"

namespace berth::core {

Reservation& ReservationTable::Add(Reservation reservation) {
  BERTH_INVARIANT(!by_id_.contains(reservation.id));
  reservation.number = ++last_number_;
  journal_.Touch(RowKind::kMemoryCounters);
  Note(reservation);
  return Insert(std::move(reservation));
}

const Reservation* ReservationTable::Restore(Reservation reservation) {
  const bool fits = reservation.number <= last_number_ && !rows_.contains(reservation.number) &&
                    !by_id_.contains(reservation.id);
  return fits ? &Insert(std::move(reservation)) : nullptr;
}

Reservation& ReservationTable::Insert(Reservation reservation) {
  Reservation& row = rows_.emplace(reservation.number, std::move(reservation)).first->second;
  by_id_.emplace(row.id, &row);
  by_session_.emplace(row.session, row.number);
  if (row.expires != absl::InfiniteFuture()) by_expiry_.emplace(row.expires, row.number);
  return row;
}

void ReservationTable::Erase(const Reservation& reservation) {
  Note(reservation);
  by_id_.erase(reservation.id);
  by_session_.erase({reservation.session, reservation.number});
  by_expiry_.erase({reservation.expires, reservation.number});
  rows_.erase(reservation.number);
}

const Reservation* ReservationTable::Find(ReservationId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Reservation* ReservationTable::Find(ReservationId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  Note(*found->second);
  return found->second;
}

std::vector<Reservation*> ReservationTable::OfSession(SessionId session) {
  std::vector<Reservation*> rows;
  for (auto it = by_session_.lower_bound({session, 0}); it != by_session_.end() && it->first == session;
       ++it) {
    rows.push_back(&rows_.at(it->second));
    Note(*rows.back());
  }
  return rows;
}

uint64_t ReservationTable::CountOf(SessionId session) const {
  uint64_t count = 0;
  for (auto it = by_session_.lower_bound({session, 0}); it != by_session_.end() && it->first == session;
       ++it) {
    ++count;
  }
  return count;
}

Reservation* ReservationTable::FindExpired(absl::Time now) {
  if (by_expiry_.empty() || next_deadline() > now) return nullptr;
  Reservation& expired = rows_.at(by_expiry_.begin()->second);
  Note(expired);
  return &expired;
}

void ReservationTable::ForEach(absl::FunctionRef<void(const Reservation&)> visit) const {
  for (const auto& [number, row] : rows_) visit(row);
}

void ReservationTable::ForEachAfter(uint64_t number,
                                    absl::FunctionRef<bool(const Reservation&)> visit) const {
  for (auto it = rows_.upper_bound(number); it != rows_.end() && visit(it->second); ++it) {
  }
}

}  // namespace berth::core
