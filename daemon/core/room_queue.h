// RoomQueue: requests for bytes that wait: for a worker, for freed bytes to be back, or, where they asked for that, for
// room that others hold. In the order in which they came.
//
// Who waits for room that others hold is passed by those behind it whose bytes fit. Passed often enough, what it lacks
// is kept for it, but only so long: neither a large request nor those behind it starve for ever. Who may go is the
// core's business; the queue keeps the order, the deadlines and the count. Pure and thread-compatible.

#ifndef DAEMON_CORE_ROOM_QUEUE_H_
#define DAEMON_CORE_ROOM_QUEUE_H_

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/block_types.h"
#include "daemon/core/caller.h"
#include "daemon/core/journal.h"
#include "daemon/core/request_memory.h"

namespace berth::core {

struct RoomAsk {
  uint32_t device = 0;
  Bytes bytes;
};

template <typename Archive>
void Fields(Archive& archive, RoomAsk& value) {
  archive(value.device, value.bytes);
}

struct Waiting {
  // Rises with each that comes to wait.
  uint64_t number = 0;
  RequestId request;
  SessionId session;
  Tenant tenant;
  // By device, each once. An allocation has one.
  std::vector<RoomAsk> asks;
  std::string label;
  // Of the block that is wanted.
  ExportKind kind = ExportKind::kFd;
  // An allocation out of a reservation, whose bytes it has taken over already.
  ReservationId drawn_from;
  // Set: a reservation is wanted, not a block.
  std::optional<absl::Duration> reserve_for;
  // It waits for room that others hold until `deadline`.
  bool patient = false;
  absl::Time deadline = absl::InfiniteFuture();
  // How often others passed it, and since when room is kept for it.
  uint64_t passes = 0;
  std::optional<absl::Time> kept_since;
};
// All but its number.
template <typename Archive>
void Fields(Archive& archive, Waiting& value) {
  archive(value.request, value.session, value.tenant, value.asks, value.label, value.kind, value.drawn_from,
          value.reserve_for, value.patient, value.deadline, value.passes, value.kept_since);
}

class RoomQueue {
 public:
  // After so many passes room is kept for a waiter, for so long at most. Notes entries and counters.
  RoomQueue(Journal* journal, uint64_t passes_before_keep, absl::Duration keep)
      : journal_(*journal), passes_before_keep_(passes_before_keep), keep_(keep) {}

  // Entries stay where they are until taken. Requires: a request that does not wait yet.
  Waiting& Push(Waiting waiting);
  // Requires: it waits.
  Waiting Take(const RequestId& request);
  // Returns null if it does not wait.
  Waiting* Find(const RequestId& request);
  const std::list<Waiting>& entries() const { return entries_; }
  std::list<Waiting>& entries() { return entries_; }

  // Gives a patient waiter another deadline; others are left alone.
  void SetDeadline(const RequestId& request, absl::Time deadline);
  // Takes those whose deadline has come, first come first.
  std::vector<Waiting> TakeExpired(absl::Time now);

  // Somebody behind `waiting` got bytes of a layer that it lacks.
  void NotePassed(Waiting& waiting, absl::Time now);
  bool Keeps(const Waiting& waiting) const { return waiting.kept_since.has_value(); }
  // Keeps room no longer for those for whom it was kept long enough. Returns whether there were such.
  bool EndKeeps(absl::Time now);

  // When TakeExpired() or EndKeeps() is due next; InfiniteFuture for never.
  absl::Time next_deadline() const;
  // Of those that ask for bytes of the device.
  uint64_t CountOf(uint32_t device) const;
  // Of those, the tenant's that wait for room that others hold.
  uint64_t CountPatientOf(uint32_t device, const Tenant& tenant) const;
  // Those of the tenant's that want a block.
  uint64_t CountBlocksFor(const Tenant& tenant) const;
  uint64_t size() const { return entries_.size(); }

  // Returns null for an unknown number.
  const Waiting* FindNumber(uint64_t number) const;
  // Takes in what an earlier queue had: its last number, and entries in their order. Returns whether the entry fits.
  uint64_t last_number() const { return last_number_; }
  void RestoreLastNumber(uint64_t number) { last_number_ = number; }
  bool Restore(Waiting waiting);

 private:
  std::list<Waiting>::iterator At(const RequestId& request);
  void Note(const Waiting& waiting) { journal_.Touch(RowKind::kRoomWaiter, waiting.number); }
  // Takes the entry out.
  Waiting Remove(std::list<Waiting>::iterator at);

  Journal& journal_;
  const uint64_t passes_before_keep_;
  const absl::Duration keep_;
  uint64_t last_number_ = 0;
  std::list<Waiting> entries_;
  std::map<uint64_t, const Waiting*> by_number_;
  // Of the entries; nothing when it has to be found anew.
  mutable std::optional<absl::Time> next_deadline_ = absl::InfiniteFuture();
};

}  // namespace berth::core

#endif  // DAEMON_CORE_ROOM_QUEUE_H_
