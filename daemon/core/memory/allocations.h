// Allocations: requests for a block: admitted against the budgets, served from the warm cache or made by the worker.

#ifndef DAEMON_CORE_MEMORY_ALLOCATIONS_H_
#define DAEMON_CORE_MEMORY_ALLOCATIONS_H_

#include <cstdint>
#include <optional>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/devices/device_state.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/memory/byte_wait_queue.h"
#include "daemon/core/sessions/session_table.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Allocations {
 public:
  // `core` outlives the manager.
  explicit Allocations(Managers& core) : core_(core) {}

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  void Allocate(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                const AllocateRequest& request);

  // ---- For the other managers -------------------------------------------------------------------------------

  // Finds a warm block, made or in the making, that fits the request.
  std::optional<BlockId> FindWarm(const Waiting& waiting, const ByteRequest& ask) const;
  // Checks that the tenant, which has `own` blocks, may have one more. Errors: LIMIT.
  absl::Status CheckBlockQuota(const Account& tenant, uint64_t own) const;
  // Gives the request a warm block, or has a block made.
  void TakeOrMake(StepContext& step, const Waiting& waiting);
  // The block is made: answers its request, with the fd delivered before the answer.
  void FinishMaking(StepContext& step, Block& block);
  // Releases warm blocks until `bytes` fit, counting bytes whose release is under way.
  void Trim(StepContext& step, Device& device, Bytes bytes);
  void RefillDue(StepContext& step);

 private:
  // Picks by the request's constraint, preferably a device with capacity in the caller's budgets. Errors: those of
  // Placement::CheckConstraint(); NO_DEVICE; FindServing()'s for bytes.
  absl::StatusOr<Device*> PickDevice(StepContext& step, const AllocateRequest& request, const Session& session);
  // Errors: LIMIT.
  absl::Status MayQueue(const Channel& channel, const Session& session) const;
  // Checks that the device's worker may be given one more block to make for the session. A request that waits has its
  // place already, and its block is made without another check. Errors: LIMIT.
  absl::Status CheckCreates(const Session& session, uint32_t device, WorkerKind worker_kind) const;
  // Assigns the block to the request.
  void Assign(StepContext& step, Block& block, const Waiting& waiting);
  // A block of that size was taken: schedules a refill of the warm cache, now or after a delay.
  void PlanRefill(StepContext& step, Device& device, Bytes bytes);
  // Makes blocks of a size ahead of demand, where there is capacity that no request waits for.
  void Refill(StepContext& step, Device& device, Bytes bytes);

  Managers& core_;
  // Least refill_at of the devices.
  absl::Time next_refill_ = absl::InfiniteFuture();
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_ALLOCATIONS_H_
