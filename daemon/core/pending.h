// Pending: a request that was taken in and has not been answered, and where it waits.

#ifndef DAEMON_CORE_PENDING_H_
#define DAEMON_CORE_PENDING_H_

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "daemon/core/log_record.h"
#include "daemon/core/plan_run.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/wait_queue.h"

namespace berth::core {

class FenceTable;
class GangTable;
class PermitPool;
class RoomQueue;
struct Session;

struct InPool {
  // `waiter` is where its queue keeps it; null for one that was told at once.
  InPool(PermitPool* pool, const Waiter* waiter)
      : pool(pool), waiter(waiter), number(waiter == nullptr ? 0 : waiter->number) {}

  PermitPool* pool;
  const Waiter* waiter;
  // The waiter's, known without a look at it.
  uint64_t number;
};

// An import that waits until the process that tracks the block alone has handed it over.
struct WaitingImport {
  BlockId block;
  bool read_only = false;
  absl::Time deadline;
};

// Where a pending request waits: nowhere yet, in a pool, for bytes, for its block to be made, for others' uses to be
// finished, for a block to be handed over, or for a module.
using Place = std::variant<std::monostate, InPool, GangTable*, RoomQueue*, BlockId, FenceTable*,
                           WaitingImport, ModuleId>;

struct Pending {
  // Of its channel, and whose that is: both outlive it.
  RequestMemory* memory = nullptr;
  const Session* session = nullptr;
  // 0 if nobody waits for the answer.
  CallId call;
  Place place;
  // It is counted as one of its tenant's that wait, and as one that waits for units.
  bool counted = false;
  bool for_units = false;
  // When it came; InfiniteFuture where an earlier broker has not said so.
  absl::Time since = absl::InfiniteFuture();
  // What is logged with the answer.
  std::vector<LogRecord> notes;
  // What the answer is to be made into; null for itself.
  std::unique_ptr<PlanDraft> plan;
};

// Each stays where it is until it is erased.
using PendingRequests = absl::node_hash_map<RequestId, Pending>;
using PendingRequest = PendingRequests::value_type;

}  // namespace berth::core

#endif  // DAEMON_CORE_PENDING_H_
