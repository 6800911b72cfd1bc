#include "daemon/core/memory/reservation_table.h"

#include "daemon/core/types/invariant.h"

namespace berth::core {

Reservation& ReservationTable::Add(Reservation reservation) {
  BERTH_INVARIANT(!by_id_.contains(reservation.id));
  reservation.number = ++last_number_;
  journal_.Touch(RecordKind::kMemoryCounters);
  Mark(reservation);
  return Insert(std::move(reservation));
}

const Reservation* ReservationTable::Restore(Reservation reservation) {
  const bool fits = reservation.number <= last_number_ && !entries_.contains(reservation.number) &&
                    !by_id_.contains(reservation.id);
  return fits ? &Insert(std::move(reservation)) : nullptr;
}

Reservation& ReservationTable::Insert(Reservation reservation) {
  Reservation& entry = entries_.emplace(reservation.number, std::move(reservation)).first->second;
  places_.Take(entry.claimant());
  by_id_.emplace(entry.id, &entry);
  by_session_.emplace(entry.session, entry.number);
  if (entry.expires != absl::InfiniteFuture()) by_expiry_.emplace(entry.expires, entry.number);
  return entry;
}

void ReservationTable::Erase(const Reservation& reservation) {
  Mark(reservation);
  places_.Give(reservation.claimant());
  by_id_.erase(reservation.id);
  by_session_.erase({reservation.session, reservation.number});
  by_expiry_.erase({reservation.expires, reservation.number});
  entries_.erase(reservation.number);
}

const Reservation* ReservationTable::Find(ReservationId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Reservation* ReservationTable::Find(ReservationId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  Mark(*found->second);
  return found->second;
}

std::vector<Reservation*> ReservationTable::OfSession(SessionId session) {
  std::vector<Reservation*> rows;
  for (auto it = by_session_.lower_bound({session, 0}); it != by_session_.end() && it->first == session;
       ++it) {
    rows.push_back(&entries_.at(it->second));
    Mark(*rows.back());
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
  Reservation& expired = entries_.at(by_expiry_.begin()->second);
  Mark(expired);
  return &expired;
}

void ReservationTable::ForEach(absl::FunctionRef<void(const Reservation&)> visit) const {
  for (const auto& [number, entry] : entries_) visit(entry);
}

void ReservationTable::ForEachAfter(uint64_t number,
                                    absl::FunctionRef<bool(const Reservation&)> visit) const {
  for (auto it = entries_.upper_bound(number); it != entries_.end() && visit(it->second); ++it) {
  }
}

}  // namespace berth::core
