// GangTable: who waits for several permits, and perhaps reserved bytes, all or nothing. Each pool that is asked for
// something has the gang in its queue; the table has what it asks in all.
//
// Each is a row that outlives the broker. Pure and thread-compatible.

#ifndef DAEMON_CORE_GANG_TABLE_H_
#define DAEMON_CORE_GANG_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "daemon/core/journal.h"
#include "daemon/core/gang_types.h"
#include "daemon/core/permit_pool.h"
#include "daemon/core/placement.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/room_queue.h"

namespace berth::core {

struct Gang {
  // What it asks of one pool.
  struct Part {
    PermitPool* pool = nullptr;
    PermitPool::GangPart ask;
    // Its members there, by their place in `what`.
    std::vector<size_t> members;
  };

  // The same in every queue: it rises with arrival over all pools, so who came first is first in each of them.
  uint64_t number = 0;
  RequestId request;
  Asker asker;
  GangRequest what;
  absl::Time since;
  // By the pools' names.
  std::vector<Part> parts;
  // Each permit as it is asked for, by the members' places, with the keys that they are held under: in each pool the
  // gang's own, and then that with "#2", "#3" and so on.
  std::vector<AcquireRequest> permits;
  // Bytes to be reserved, by device.
  std::vector<RoomAsk> room;
  // All of it as text: who asks the same is judged alike.
  std::string shape;
};

// But for the parts' pools.
template <typename Archive>
void Fields(Archive& archive, Gang::Part& value) {
  archive(value.ask, value.members);
}

template <typename Archive>
void Fields(Archive& archive, Gang& value) {
  archive(value.number, value.request, value.asker, value.what, value.since, value.parts, value.permits, value.room,
          value.shape);
}

class GangTable {
 public:
  // `journal` outlives the table.
  explicit GangTable(Journal* journal) : journal_(journal) {}

  // Requires: a request that does not wait here, and a number that no other has.
  const Gang& Add(Gang gang);
  // Null for one that does not wait here.
  const Gang* Find(const RequestId& request) const;
  const Gang* FindByNumber(uint64_t number) const;
  // Requires: it waits here.
  Gang Take(const RequestId& request);
  void SetDeadline(const RequestId& request, absl::Time deadline);
  // The first whose deadline is not after `now`; null for none.
  const Gang* FindExpired(absl::Time now) const;
  // InfiniteFuture for none.
  absl::Time next_deadline() const;

  const std::map<RequestId, Gang>& gangs() const { return gangs_; }
  // Those of the session that would reserve bytes.
  uint64_t CountReserving(SessionId session) const;

 private:
  void Note(const Gang& gang) { journal_->Touch(RowKind::kGang, gang.number); }

  Journal* const journal_;
  std::map<RequestId, Gang> gangs_;
  absl::flat_hash_map<uint64_t, RequestId> by_number_;
  std::set<std::pair<absl::Time, RequestId>> deadlines_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_GANG_TABLE_H_
