// ByteQueue: byte requests. They are served if every layer has capacity; otherwise refused, or queued for bytes in
// release and, if requested, for bytes that other clients hold.

#ifndef DAEMON_CORE_MEMORY_BYTE_QUEUE_H_
#define DAEMON_CORE_MEMORY_BYTE_QUEUE_H_

#include <cstdint>
#include <vector>

#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/memory/byte_wait_queue.h"
#include "daemon/core/memory/shortage.h"
#include "daemon/core/requests/wait_place.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class ByteQueue final : public WaitPlace {
 public:
  // `core` outlives the manager.
  explicit ByteQueue(Managers& core);

  // ---- For the other managers -------------------------------------------------------------------------------

  // Starts a request that may have to wait: served, refused, or queued when this returns.
  void Enqueue(StepContext& step, Waiting waiting);
  // Serves waiters if capacity has changed.
  void ServeByteQueue(StepContext& step);
  // Returns what the request lacks, if the capacity in `reserved` is reserved for others.
  Shortage Assess(const Waiting& waiting, const ReservedBudgets& reserved);
  void RecordPasses(StepContext& step, const Waiting& waiting, ReservedBudgets* reserved);
  // Returns the budgets whose free bytes are reserved for requests of this queue.
  ReservedBudgets Reserved();
  // Releases warm blocks where that frees capacity for the request.
  void TrimFor(StepContext& step, const Waiting& waiting, const Shortage& shortage);
  absl::Status RefuseOver(const Shortage& shortage);
  // Removes the request, returns its drawn bytes and answers it with `why`. Requires: the request waits.
  void TurnAway(StepContext& step, const RequestId& request, const absl::Status& why);
  // Skips a request whose process is stopped: nothing is reserved for the request until a call waits for it again.
  // Requires: the request waits, and its process retries it after PROCESS_STOPPED (RequestTag::takes_up).
  void SkipStopped(StepContext& step, const RequestId& request);
  // Returns whether bytes are kept for the request, whose process has to call again.
  bool IsInvited(const RequestId& request);
  void ReadByteWaiter(uint64_t number, ArchiveReader& archive);
  absl::Status CheckByteQueue() const;

  const ByteWaitQueue& table() const { return byte_queue_; }
  // The budgets' changes, which the queue processes.
  BudgetChanges* changes() { return byte_queue_.changes(); }
  void RestoreLastNumber(uint64_t number) { byte_queue_.RestoreLastNumber(number); }

  // WaitPlace. Expire() also ends reservations of capacity, and reservations.
  bool SetDeadline(const RequestId& request, const WaitTicket& ticket, absl::Time deadline) override;
  void Leave(StepContext& step, const RequestId& request, const WaitTicket& ticket) override;
  void Expire(StepContext& step) override;
  absl::Time next_deadline() const override;
  void Reattach(StepContext& step, const RequestId& request, const WaitTicket& ticket) override;
  uint64_t Weigh(const RequestId& request, const WaitTicket& ticket) override;
  bool EndsInImport(const RequestId&) const override { return true; }

 private:
  // Checks that the request may wait for the shortage. Errors: LIMIT; DEVICE_REBUILDING.
  absl::Status MayWait(const Waiting& waiting, const Shortage& shortage) const;
  // Serves waiters in queue order, as far as bytes and workers allow.
  void Drain(StepContext& step);
  void Consider(StepContext& step, Waiting& waiting, ReservedBudgets* reserved);
  std::vector<ByteBudget*> BudgetsOf(const Waiting& waiting);
  bool MayServe(const Waiting& waiting) const;
  // Whether a call waits for the request; false for a restored request until its caller returns.
  bool IsAttended(const Waiting& waiting) const;
  // Whether the request is served only once its process has called again: the process may have been stopped since its
  // call arrived, unless the call arrives in this step.
  bool MustCallAgain(const StepContext& step, const Waiting& waiting) const;
  void Serve(StepContext& step, const RequestId& request);
  absl::Status CheckWaiting(const Waiting& waiting, bool first) const;

  Managers& core_;
  ByteWaitQueue byte_queue_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_BYTE_QUEUE_H_
