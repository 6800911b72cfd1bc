// What the core's rows are (common/row.h): the kinds, with what their keys' numbers mean. A row is what one thing is; a
// count or an index that follows from rows is none. The numbers are in ledgers on disk: a kind's is never another's.

#ifndef DAEMON_CORE_ROW_KIND_H_
#define DAEMON_CORE_ROW_KIND_H_

#include <cstdint>

#include "common/row.h"

namespace berth::core {

// Of the rows' content. A change of any row's fields or their meaning moves it; a ledger of an earlier one is read by
// what it was then, and written anew (docs/design/0018). What each has changed:
//   2: times are those of the machine's boot clock, and were wall time; of a pending request there is when it came.
inline constexpr uint32_t kRowSchema = 2;
// The earliest that is read.
inline constexpr uint32_t kEarliestRowSchema = 1;

enum class RowKind : uint32_t {
  // Counters that go on: the last permit, block generation, import, …; id 0.
  kCounters = 1,

  // ---- Sessions ----
  // id: the session's.
  kSession = 10,
  // A process of a session; id: the channel's.
  kChannel = 11,
  // What a channel asked; id: the channel's, part: the request's sequence.
  kRequest = 12,
  // What a channel is told and has not acknowledged; id: the channel's, part: the delivery's number or place.
  kDelivery = 13,

  // ---- Permits ----
  // id: the pool's number.
  kPool = 20,
  // Where a tenant stands in a pool's order; id: the pool's number, part: the tenant's.
  kPoolTenant = 21,
  // id: the permit's, part: the pool's number.
  kPermit = 22,
  // Who waits in a pool; id: the waiter's number, part: the pool's.
  kWaiter = 23,
  // Who waits for several permits at once; id: the waiter's number.
  kGang = 24,
  // id: the plan's.
  kPlan = 25,
  // What nests in a permit; id: the acquisition's, part: the pool's number.
  kAcquisition = 26,
  // What a pool counts; id: the pool's number.
  kPoolFigures = 27,

  // ---- Memory ----
  // Its counters; id 0.
  kMemoryCounters = 40,
  // What the core keeps of a device beside what the vault says; id: the ordinal.
  kDevice = 41,
  // A layer's limit on a device, and what was charged there; id: its number.
  kBudget = 42,
  // id: the block's.
  kBlock = 43,
  // id: the block's, part: the import's.
  kImport = 44,
  // id: the reservation's.
  kReservation = 45,
  // A slot of a process's fence page; id: the channel's, part: the slot.
  kStream = 46,
  // A use that was begun and not finished; id: its own.
  kUse = 47,
  // What uses of a block are to be waited for; id: the block's.
  kFence = 48,
  // Who waits for bytes; id: its number.
  kRoomWaiter = 49,
};

// Whether keys of the kind have a part; it is 0 in those of the others.
constexpr bool HasPart(RowKind kind) {
  switch (kind) {
    case RowKind::kRequest:
    case RowKind::kDelivery:
    case RowKind::kPoolTenant:
    case RowKind::kPermit:
    case RowKind::kWaiter:
    case RowKind::kAcquisition:
    case RowKind::kImport:
    case RowKind::kStream:
      return true;
    default:
      return false;
  }
}

constexpr RowKey KeyOf(RowKind kind, uint64_t id = 0, uint64_t part = 0) {
  return RowKey{.kind = static_cast<uint32_t>(kind), .id = id, .part = part};
}

}  // namespace berth::core

#endif  // DAEMON_CORE_ROW_KIND_H_
