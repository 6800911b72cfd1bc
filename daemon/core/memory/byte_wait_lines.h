// ByteWaitLines: requests that each wait for capacity of one budget, with one line for each budget. A change of a
// budget finds the requests that now fit. A grant of its bytes finds the oldest request of its line once it has been
// passed often enough.
//
// A budget reserves capacity for one request at a time, the oldest that waits for it. When that ends, the pass counts
// of the whole line start again. A request is represented by its number; the queue owns it. Pure and thread-compatible.

#ifndef DAEMON_CORE_MEMORY_BYTE_WAIT_LINES_H_
#define DAEMON_CORE_MEMORY_BYTE_WAIT_LINES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <berth/bytes.h>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/memory/byte_budget.h"

namespace berth::core {

class ByteWaitLines {
 public:
  // The line reserves capacity for a request after this many passes.
  explicit ByteWaitLines(uint64_t passes_before_reserve) : passes_before_reserve_(passes_before_reserve) {}

  // Adds a request that was passed `passes` times and waits for `bytes` of the budget. Requires: it is in no line.
  void Enter(const ByteBudget& budget, uint64_t number, Bytes bytes, uint64_t passes);
  // Removes the request. Returns its passes, counted up to the limit. Requires: it is in the line.
  uint64_t Leave(const ByteBudget& budget, uint64_t number);

  // Records a grant of the budget's bytes. Returns the request for which to reserve capacity from now on, if any.
  std::optional<uint64_t> RecordGrant(const ByteBudget& budget);
  // Starts to reserve capacity for the request, which then leaves the line (Keep), or ends it (EndReserve).
  void Reserve(const ByteBudget& budget, uint64_t number);
  void EndReserve(const ByteBudget& budget);
  // Returns whether capacity of the budget is reserved for a request earlier than `number`.
  bool IsReserved(const ByteBudget& budget, uint64_t number) const;

  // Returns the requests that fit once all bytes in release have returned, without those from which capacity is
  // withheld.
  std::vector<uint64_t> FindFitting(const ByteBudget& budget) const;
  bool Contains(const ByteBudget& budget, uint64_t number, Bytes bytes) const;
  // Returns the number of requests in all lines.
  uint64_t size() const;

 private:
  struct Waiter {
    Bytes bytes;
    // Grant count at which the request would have entered if it had been passed in this line alone.
    uint64_t since = 0;
  };
  struct Line {
    uint64_t grants = 0;
    // Grant count at the end of the last reservation; passes count from there.
    uint64_t reserved_at = 0;
    std::map<uint64_t, Waiter> waiters;
    std::set<std::pair<Bytes, uint64_t>> by_bytes;
    // The request with reserved capacity, and its bytes; 0 for none.
    uint64_t reserver = 0;
    Bytes reserver_bytes;
  };

  const Line* Find(const ByteBudget& budget) const;
  uint64_t PassesOf(const Line& line, const Waiter& waiter) const;
  static bool Reserves(const Line& line, const ByteBudget& budget, uint64_t number);

  const uint64_t passes_before_reserve_;
  // By the budget's number; only budgets with a waiter or a capacity reservation.
  absl::flat_hash_map<uint64_t, Line> lines_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_BYTE_WAIT_LINES_H_
