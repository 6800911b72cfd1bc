// ReservationTable: bytes that sessions have set aside for blocks to come. Rows and indexes; what they cost the layers
// is the core's business. Thread-compatible.

#ifndef DAEMON_CORE_RESERVATION_TABLE_H_
#define DAEMON_CORE_RESERVATION_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/caller.h"
#include "daemon/core/journal.h"

namespace berth::core {

struct Reservation {
  // Bytes on one device: as granted, and what is left to draw.
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
  // By device.
  std::map<uint32_t, Claim> claims;
};

template <typename Archive>
void Fields(Archive& archive, Reservation::Claim& value) {
  archive(value.bytes, value.left);
}
// All but its id.
template <typename Archive>
void Fields(Archive& archive, Reservation& value) {
  archive(value.number, value.session, value.tenant, value.label, value.since, value.expires, value.claims);
}

class ReservationTable {
 public:
  // Notes reservations, when they are handed out to be changed, and counters.
  explicit ReservationTable(Journal* journal) : journal_(*journal) {}

  // Rows stay where they are until erased. Requires: an id that is not in use.
  Reservation& Add(Reservation reservation);
  void Erase(const Reservation& reservation);
  // Returns null for an unknown id.
  Reservation* Find(ReservationId id);
  const Reservation* Find(ReservationId id) const;
  std::vector<Reservation*> OfSession(SessionId session);
  uint64_t CountOf(SessionId session) const;
  // One whose time is over, or null.
  Reservation* FindExpired(absl::Time now);
  // InfiniteFuture for never.
  absl::Time next_deadline() const {
    return by_expiry_.empty() ? absl::InfiniteFuture() : by_expiry_.begin()->first;
  }
  // Oldest first.
  void ForEach(absl::FunctionRef<void(const Reservation&)> visit) const;
  // Those with a greater number, until `visit` returns false.
  void ForEachAfter(uint64_t number, absl::FunctionRef<bool(const Reservation&)> visit) const;

  // Takes in what an earlier table had: its last number, and rows. Returns null for a row that does not fit.
  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  const Reservation* Restore(Reservation reservation);

 private:
  Reservation& Insert(Reservation reservation);
  void Note(const Reservation& reservation) { journal_.Touch(RowKind::kReservation, reservation.id.value()); }

  Journal& journal_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, Reservation> rows_;
  std::map<ReservationId, Reservation*> by_id_;
  std::set<std::pair<SessionId, uint64_t>> by_session_;
  // Those that expire.
  std::set<std::pair<absl::Time, uint64_t>> by_expiry_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_RESERVATION_TABLE_H_
