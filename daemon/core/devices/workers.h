// Workers: reports from the devices' workers and commands to them, and the context workers' starts and ends.

#ifndef DAEMON_CORE_DEVICES_WORKERS_H_
#define DAEMON_CORE_DEVICES_WORKERS_H_

#include <cstdint>
#include <map>
#include <set>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/wire/ipc_handle.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/devices/device_state.h"
#include "daemon/core/devices/ended_workers.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Workers {
 public:
  // `core` outlives the manager.
  explicit Workers(Managers& core) : core_(core) {}

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  void ContextMeasured(StepContext& step, uint32_t ordinal, Bytes bytes);
  void BlockCreated(StepContext& step, BlockId block, const absl::Status& status, const IpcHandle& handle);
  void BlockReleased(StepContext& step, BlockId block, const absl::Status& status);
  void WorkerAtWork(StepContext& step, uint32_t device, WorkerKind worker_kind);
  void WorkerUp(StepContext& step, uint32_t device, WorkerKind worker_kind);
  void WorkerDown(StepContext& step, uint32_t device, WorkerKind worker_kind, DeviceState state);
  void Reap(StepContext& step, CallId call, const Caller& caller);

  // ---- For the other managers -------------------------------------------------------------------------------

  // Returns the refusal EXPORT_KIND.
  static absl::Status NoSuchKind(ExportKind kind, absl::string_view why);
  // Errors: EXPORT_KIND for a device that has no context worker.
  static absl::Status CheckHasContext(const Device& device);
  // Chooses the export kind of a block for the caller. Errors: EXPORT_KIND.
  absl::StatusOr<ExportKind> ChooseKind(const Device& device, const ExportKinds& kinds) const;
  // Starts the device's context worker if it is idle and a request waits for it.
  void StartContextIfWanted(StepContext& step, Device& device);
  // Updates the context worker's idle deadline after a change of its blocks or its state.
  void MarkContextNeed(StepContext& step, Device& device);
  // Ends context workers that have been unneeded for Config::context_idle.
  void EndIdleContexts(StepContext& step);
  void AskCreate(StepContext& step, Block& block);
  void AskRelease(StepContext& step, Block& block);
  // Checks that the worker may get commands for blocks of the tenant's user. Errors: DRIVER, while the user is held
  // back because workers ended at its commands.
  absl::Status CheckHold(StepContext& step, const Device& device, WorkerKind worker_kind, const Tenant& tenant) const;
  // Releases the blocks of users whose hold is over.
  void EndHolds(StepContext& step);
  // Returns when EndHolds() is due; InfiniteFuture for never.
  absl::Time next_deadline() const { return ended_.next_deadline(); }
  // Refuses the requests that wait for a worker that creates no more blocks.
  void RefuseWaiting(StepContext& step, Device& device, WorkerKind worker_kind);

  // Answers the call that waits for retried releases. Returns whether there is such a call.
  bool CancelReap(StepContext& step, CallId call, const absl::Status& status);
  // Answers all such calls.
  void CancelReaps(StepContext& step, const absl::Status& status);

 private:
  // A call that waits until the releases that it had retried have ended.
  struct Reaping {
    std::set<BlockId> open;
    ReapResult result;
  };

  // Returns the block whose command the worker was executing when it ended; 0 for none.
  BlockId ExecutedLast(uint32_t device, WorkerKind worker_kind) const;
  // The worker ended while it executed the command for `block`: charges the block's user.
  void ChargeEnd(StepContext& step, Block& block);
  // CheckHold() for the block's user; OK for a block of the daemon's own.
  absl::Status CheckHoldOf(StepContext& step, const Block& block) const;
  // Whether no worker gets the release: two ended at it, or its user is held back.
  bool IsHeldBack(StepContext& step, const Block& block) const;
  // Leaves a retired block unreleased, for the reason `why`; it stays charged.
  void Stick(StepContext& step, Block& block, absl::string_view why);
  void Unstick(Block& block);
  void SendRelease(StepContext& step, Block& block);
  void NotMade(StepContext& step, Block& block, const absl::Status& status);
  void RunRetries(StepContext& step, Device& device);
  // A retried release of the block has ended.
  void RecordReaped(StepContext& step, const Block& block, bool back);

  Managers& core_;
  // Number of commands that were sent.
  uint64_t asks_ = 0;
  std::map<CallId, Reaping> reapings_;
  // Not persisted: the next broker begins to count.
  EndedWorkers ended_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICES_WORKERS_H_
