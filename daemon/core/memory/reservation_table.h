// ReservationTable: bytes that sessions have reserved for future blocks. Records and indexes only; the core charges the
// budget layers. Thread-compatible.

#ifndef DAEMON_CORE_MEMORY_RESERVATION_TABLE_H_
#define DAEMON_CORE_MEMORY_RESERVATION_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/shared_count.h"

namespace berth::core {

struct Reservation {
  // Bytes on one device: as granted, and the remainder for allocations.
  struct Claim {
    Bytes bytes;
    Bytes left;
  };
  ReservationId id;
  // Rises with every reservation: the order of the list.
  uint64_t number = 0;
  SessionId session;
  Tenant tenant;
  std::string label;
  absl::Time since;
  absl::Time expires = absl::InfiniteFuture();
  // By device ordinal.
  std::map<uint32_t, Claim> claims;
  // The reservation belongs to an operator's session. Not persisted.
  bool of_operator = false;

  Claimant claimant() const { return {.user = UserOf(tenant), .of_operator = of_operator}; }
};

template <typename Archive>
void Fields(Archive& archive, Reservation::Claim& value) {
  archive(value.bytes, value.left);
}
// Excludes the id and of_operator.
template <typename Archive>
void Fields(Archive& archive, Reservation& value) {
  archive(value.number, value.session, value.tenant, value.label, value.since, value.expires, value.claims);
}

class ReservationTable {
 public:
  // Records counters in the journal, and reservations when it returns them for modification. All users together may
  // have `limit` reservations, and operators `reserve` more.
  explicit ReservationTable(Journal* journal, uint64_t limit = SharedCount::kUnlimited,
                            uint64_t reserve = SharedCount::kUnlimited)
      : journal_(*journal), places_("reservations", limit, reserve) {}

  // Adds a reservation. Its address is stable until it is erased. Requires: an id that is not in use.
  Reservation& Add(Reservation reservation);
  void Erase(const Reservation& reservation);
  // Returns null for an unknown id.
  Reservation* Find(ReservationId id);
  const Reservation* Find(ReservationId id) const;
  std::vector<Reservation*> OfSession(SessionId session);
  uint64_t CountOf(SessionId session) const;
  const SharedCount& places() const { return places_; }
  // Returns an expired reservation, or null.
  Reservation* FindExpired(absl::Time now);
  // Returns the earliest expiry; InfiniteFuture if there is none.
  absl::Time next_deadline() const {
    return by_expiry_.empty() ? absl::InfiniteFuture() : by_expiry_.begin()->first;
  }
  // Visits all reservations, oldest first.
  void ForEach(absl::FunctionRef<void(const Reservation&)> visit) const;
  // Visits the reservations with a number above `number`, until `visit` returns false.
  void ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Reservation&)> visit) const;

  // Restores an earlier table's state: its last number and its records. Restore() returns null for an inconsistent
  // record.
  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  const Reservation* Restore(Reservation reservation);

 private:
  Reservation& Insert(Reservation reservation);
  void Mark(const Reservation& reservation) { journal_.Touch(RecordKind::kReservation, reservation.id.value()); }

  Journal& journal_;
  SharedCount places_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Reservation> entries_;
  std::map<ReservationId, Reservation*> by_id_;
  std::set<std::pair<SessionId, uint64_t>> by_session_;
  // The reservations that expire.
  std::set<std::pair<absl::Time, uint64_t>> by_expiry_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_RESERVATION_TABLE_H_
