#include "daemon/core/reservation_table.h"

#include "daemon/core/invariant.h"

namespace berth::core {

Reservation& ReservationTable::Add(Reservation reservation) {
  reservation.number = ++last_number_;
  Reservation& row = rows_.emplace(reservation.number, std::move(reservation)).first->second;
  const bool fresh = by_id_.emplace(row.id, &row).second;
  BERTH_INVARIANT(fresh);
  by_session_.emplace(row.session, row.number);
  if (row.expires != absl::InfiniteFuture()) by_expiry_.emplace(row.expires, row.number);
  return row;
}

void ReservationTable::Erase(const Reservation& reservation) {
  by_id_.erase(reservation.id);
  by_session_.erase({reservation.session, reservation.number});
  by_expiry_.erase({reservation.expires, reservation.number});
  rows_.erase(reservation.number);
}

Reservation* ReservationTable::Find(ReservationId id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

std::vector<Reservation*> ReservationTable::OfSession(SessionId session) {
  std::vector<Reservation*> rows;
  for (auto it = by_session_.lower_bound({session, 0}); it != by_session_.end() && it->first == session;
       ++it) {
    rows.push_back(&rows_.at(it->second));
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
  return next_deadline() <= now && !by_expiry_.empty() ? &rows_.at(by_expiry_.begin()->second) : nullptr;
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
