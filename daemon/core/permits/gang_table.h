// GangTable: requests that wait for several permits, and possibly reserved bytes, all or nothing. Each requested pool
// has the gang in its queue; the table holds the complete request.
//
// Each gang is a ledger record, which outlives the broker. Pure and thread-compatible.

#ifndef DAEMON_CORE_PERMITS_GANG_TABLE_H_
#define DAEMON_CORE_PERMITS_GANG_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "daemon/core/devices/placement.h"
#include "daemon/core/memory/byte_wait_queue.h"
#include "daemon/core/permits/gang_byte_index.h"
#include "daemon/core/permits/permit_pool.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/types/gang_types.h"
#include "daemon/core/types/journal.h"

namespace berth::core {

struct Gang {
  // The gang's request to one pool.
  struct Part {
    PermitPool* pool = nullptr;
    PermitPool::GangPart ask;
    // The gang's members in this pool, as indexes into `what.members`.
    std::vector<size_t> members;
    // Passes (Waiter::passes) with which the gang enters the pool's queue: above 0 for a gang that returns to it.
    uint64_t passes = 0;
  };

  // Number of the gang, equal in every queue. It rises with arrival over all pools, so gangs have the same order in
  // each.
  uint64_t number = 0;
  RequestId request;
  Requester requester;
  GangRequest what;
  absl::Time since;
  // Sorted by pool name.
  std::vector<Part> parts;
  // Each permit request with its holder key, in the order of the members. In each pool the keys are the gang's own key,
  // then that key with "#2", "#3" and so on.
  std::vector<AcquireRequest> permits;
  // Bytes to reserve, by device.
  std::vector<ByteRequest> byte_requests;
  // Text form of the whole request. Equal requests get the same verdict.
  std::string shape;
};

// Excludes the parts' pools, and their passes: the waiters have these.
template <typename Archive>
void Fields(Archive& archive, Gang::Part& value) {
  archive(value.ask, value.members);
}

template <typename Archive>
void Fields(Archive& archive, Gang& value) {
  archive(value.number, value.request, value.requester, value.what, value.since, value.parts, value.permits,
          value.byte_requests, value.shape);
}

class GangTable {
 public:
  // `journal` outlives the table.
  explicit GangTable(Journal* journal) : journal_(journal) {}

  // Adds a gang. Requires: its request is not in the table, and its number is unique.
  const Gang& Add(Gang gang);
  // Returns null if the request does not wait here.
  const Gang* Find(const RequestId& request) const;
  const Gang* FindByNumber(uint64_t number) const;
  // Removes and returns the gang. Requires: it waits here.
  Gang Take(const RequestId& request);
  void SetDeadline(const RequestId& request, absl::Time deadline);
  // Returns the first gang whose deadline is not after `now`; null if there is none.
  const Gang* FindExpired(absl::Time now) const;
  // Returns the earliest deadline; InfiniteFuture if no gang waits.
  absl::Time next_deadline() const;

  // Returns the weight of the gang and of its entries in the pools (wait_weight.h).
  static uint64_t WeightOf(const Gang& gang);

  const std::map<RequestId, Gang>& gangs() const { return gangs_; }
  // Gangs that would reserve bytes; CountReserving() returns how many of them belong to the session.
  const std::set<RequestId>& reserving() const { return reserving_; }
  uint64_t CountReserving(SessionId session) const;
  // The bytes of these gangs, by budget. Add() leaves it to the caller to add a gang's bytes; Take() removes them.
  GangByteIndex& bytes() { return bytes_; }

 private:
  void Mark(const Gang& gang) { journal_->Touch(RecordKind::kGang, gang.number); }

  Journal* const journal_;
  std::map<RequestId, Gang> gangs_;
  absl::flat_hash_map<uint64_t, RequestId> by_number_;
  std::set<std::pair<absl::Time, RequestId>> deadlines_;
  std::set<RequestId> reserving_;
  GangByteIndex bytes_;
  absl::flat_hash_map<SessionId, uint64_t> reserving_by_session_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_GANG_TABLE_H_
