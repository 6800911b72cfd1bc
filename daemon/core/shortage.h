// What a request that waits for bytes lacks, and in which layer.

#ifndef DAEMON_CORE_SHORTAGE_H_
#define DAEMON_CORE_SHORTAGE_H_

#include <vector>

#include "daemon/core/budget_types.h"
#include "daemon/core/byte_budget.h"
#include "daemon/core/room_queue.h"

namespace berth::core {

// One layer that a request's bytes are charged to.
struct LayerBudget {
  Layer layer;
  ByteBudget* budget;
};

// What a waiting request lacks, in rising order of trouble: nothing; its turn, or bytes that are on their way back;
// bytes that others hold; a limit.
struct Shortage {
  enum class Kind { kNone, kComing, kHeld, kTooLarge };
  Kind kind = Kind::kNone;
  // The layers without room.
  std::vector<ByteBudget*> lacking;
  // The innermost layer of `kind` with the bytes asked there, for a refusal.
  LayerBudget worst{Layer::kDevice, nullptr};
  RoomAsk ask;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SHORTAGE_H_
