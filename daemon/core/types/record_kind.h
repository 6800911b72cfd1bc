// Kinds of the core's ledger records (daemon/base/ledger_record.h), and the meaning of the numbers in their keys. A
// record describes one object; counts and indexes that derive from records are not persisted. Values are stored in
// ledgers on disk: never reuse a value.

#ifndef DAEMON_CORE_TYPES_RECORD_KIND_H_
#define DAEMON_CORE_TYPES_RECORD_KIND_H_

#include <cstdint>

#include "daemon/base/ledger_record.h"

namespace berth::core {

// Version of the records' content. Any change of a record's fields or their meaning increments it. A ledger of an
// earlier version is read with that version's meaning and then written again (docs/design/0018). Changes by version:
//   2: times are of the machine's boot clock, formerly wall time; a pending request has its arrival time.
//   3: processes have a start time; sessions have the inode of their session credentials and a detached mark; a tenant
//   has its
//      account, if that differs from the tenant; records of budgets and of a pool's order are by account; a tenant in
//      an order may be idle, and a pool has its clock of the last search; devices have their UUIDs; device constraints
//      and plans name the devices to choose among.
//      plans name the devices to choose among.
inline constexpr uint32_t kRecordSchema = 3;
// The earliest version that can be read.
inline constexpr uint32_t kEarliestRecordSchema = 1;

enum class RecordKind : uint32_t {
  // Counters that continue: the last permit, block generation, import, …; id 0.
  kCounters = 1,

  // ---- Sessions ----
  // id: the session's.
  kSession = 10,
  // A process of a session; id: the channel's.
  kChannel = 11,
  // A channel's request; id: the channel's, part: the request's sequence.
  kRequest = 12,
  // An unacknowledged delivery to a channel; id: the channel's, part: the delivery's number or place.
  kDelivery = 13,

  // ---- Permits ----
  // id: the pool's number.
  kPool = 20,
  // A tenant's position in a pool's order; id: the pool's number, part: the tenant's.
  kPoolTenant = 21,
  // id: the permit's, part: the pool's number.
  kPermit = 22,
  // A waiter in a pool; id: the waiter's number, part: the pool's.
  kWaiter = 23,
  // A waiter for several permits at once; id: the waiter's number.
  kGang = 24,
  // id: the plan's.
  kPlan = 25,
  // An acquisition nested in a permit; id: the acquisition's, part: the pool's number.
  kAcquisition = 26,
  // A pool's counters; id: the pool's number.
  kPoolCounters = 27,

  // ---- Memory ----
  // Counters of the memory records; id 0.
  kMemoryCounters = 40,
  // A device's state beyond the supervisor's reports; id: the ordinal.
  kDevice = 41,
  // A layer's limit on a device, and its charged bytes; id: its number.
  kBudget = 42,
  // id: the block's.
  kBlock = 43,
  // id: the block's, part: the import's.
  kImport = 44,
  // id: the reservation's.
  kReservation = 45,
  // A slot of a process's fence page; id: the channel's, part: the slot.
  kStream = 46,
  // A use begun and not finished; id: its own.
  kUse = 47,
  // Marks of a block that later uses wait for; id: the block's.
  kFence = 48,
  // A waiter for bytes; id: its number.
  kByteWaiter = 49,
};

// Returns whether keys of the kind have a part; other keys have part 0.
constexpr bool HasPart(RecordKind kind) {
  switch (kind) {
    case RecordKind::kRequest:
    case RecordKind::kDelivery:
    case RecordKind::kPoolTenant:
    case RecordKind::kPermit:
    case RecordKind::kWaiter:
    case RecordKind::kAcquisition:
    case RecordKind::kImport:
    case RecordKind::kStream:
      return true;
    default:
      return false;
  }
}

constexpr RecordKey KeyOf(RecordKind kind, uint64_t id = 0, uint64_t part = 0) {
  return RecordKey{.kind = static_cast<uint32_t>(kind), .id = id, .part = part};
}

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_RECORD_KIND_H_
