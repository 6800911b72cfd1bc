// Shortage of a request that waits for bytes, and the layer where it occurs.

#ifndef DAEMON_CORE_MEMORY_SHORTAGE_H_
#define DAEMON_CORE_MEMORY_SHORTAGE_H_

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/memory/byte_wait_queue.h"
#include "daemon/core/types/budget_types.h"

namespace berth::core {

// One layer that a request's bytes are charged to.
struct LayerBudget {
  Layer layer;
  ByteBudget* budget;
};

// Budgets with capacity reserved for a waiting request.
using ReservedBudgets = absl::flat_hash_set<ByteBudget*>;

// Shortage of a waiting request, in rising severity: none; its turn, or bytes that are being released; bytes that other
// clients hold; a limit.
struct Shortage {
  enum class Kind { kNone, kComing, kHeld, kTooLarge };
  Kind kind = Kind::kNone;
  // The layers without capacity.
  std::vector<ByteBudget*> lacking;
  // `held`: the outermost of them whose bytes other clients hold. `reserved`: the outermost layer with capacity that is
  // reserved for another request. Null for none.
  ByteBudget* held = nullptr;
  ByteBudget* reserved = nullptr;
  // The innermost layer of `kind` with the bytes requested there, for a refusal.
  LayerBudget worst{Layer::kDevice, nullptr};
  ByteRequest ask;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_SHORTAGE_H_
