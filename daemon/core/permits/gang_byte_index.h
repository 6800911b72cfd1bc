// GangByteIndex: the bytes that waiting gangs would reserve, by budget. A gang is parked while a budget has no capacity
// for its bytes, or open. So a changed budget finds the gangs that the change concerns, without a visit to the others.
//
// Gangs and budgets are represented by their numbers. Pure and thread-compatible.

#ifndef DAEMON_CORE_PERMITS_GANG_BYTE_INDEX_H_
#define DAEMON_CORE_PERMITS_GANG_BYTE_INDEX_H_

#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include <berth/bytes.h>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/permits/stall_board.h"
#include "daemon/core/types/stall.h"

namespace berth::core {

class GangByteIndex {
 public:
  // Bytes of one budget.
  struct Ask {
    uint64_t budget = 0;
    Bytes bytes;
    // The device and its budget, if the budget is a device's own. The budget outlives the index.
    std::optional<uint32_t> device = std::nullopt;
    const ByteBudget* account = nullptr;
  };

  // Adds an open gang. Requires: the index does not contain it; each budget occurs once.
  void Add(uint64_t gang, std::vector<Ask> asks);
  // No effect on an unknown gang.
  void Remove(uint64_t gang);
  // Parks the gang, because a budget has no capacity for its bytes. Returns whether it was open and has bytes there.
  // Requires: the budget outlives the gang.
  bool Park(uint64_t gang, const ByteBudget& on);
  // Opens the parked gangs that their devices and the budget in Park() have capacity for now, and adds their devices to
  // `devices`.
  void Unpark(std::set<uint32_t>* devices);
  // Returns the gangs that ask for more than the budget's limit.
  std::vector<uint64_t> FindTooLarge(const ByteBudget& budget) const;
  // Returns the largest open gang that lacks bytes now, but fits once bytes in release and warm blocks return. Returns
  // 0 if there is none.
  uint64_t FindComing(const ByteBudget& device) const;
  uint64_t size() const { return gangs_.size(); }

 private:
  // Ordered by budget, then by bytes.
  using Places = absl::btree_set<std::tuple<uint64_t, Bytes, uint64_t>>;
  struct Entry {
    std::vector<Ask> asks;
    // The stall of a parked gang on `parked_`; empty for an open gang.
    Stalls stalls = {};
  };

  static const Ask* FindAsk(const Entry& entry, uint64_t budget);
  // Adds an open gang to open_, or removes it.
  void Open(uint64_t gang, const Entry& entry);
  void Close(uint64_t gang, const Entry& entry);

  absl::flat_hash_map<uint64_t, Entry> gangs_;
  // All asks, and those of open gangs for bytes of devices.
  Places asks_;
  Places open_;
  // The parked gangs. The gauges are the capacities of budgets.
  StallBoard parked_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_GANG_BYTE_INDEX_H_
