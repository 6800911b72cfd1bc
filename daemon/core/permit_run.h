// PermitRun: one step of the core's through its permit pools. The pools know nothing of each other; what concerns
// several of them at once, gangs, they ask of the run.
//
//   PermitRun run(impl, &step);
//   pool.Release(run.step(), acquisition);
//   run.Answer();

#ifndef DAEMON_CORE_PERMIT_RUN_H_
#define DAEMON_CORE_PERMIT_RUN_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "daemon/core/gang_table.h"
#include "daemon/core/permit_pool.h"
#include "daemon/core/placement.h"
#include "daemon/core/room_queue.h"

namespace berth::core {

class Step;
struct Shortage;

class PermitRun final : public Gangs {
 public:
  // Where nothing is to be done but to judge, `step` is null.
  PermitRun(Core::Impl* core, const Step* step) : core_(core), step_(step) {}

  PoolStep step();
  // Answers all who are to be told something.
  void Answer();

  WaitQueue::Verdict Judge(const Waiter& waiter) override;
  WaitQueue::Verdict JudgeParts(const Waiter& waiter) override;
  void Grant(const RequestId& request) override;
  void Hold(const RequestId& request) override;
  void PermitGranted(const RequestId& request, const PermitView& permit) override;

  // Puts a gang into its pools' queues; it is granted, refused, or waits when this returns.
  void Enqueue(Gang made);
  // Releases an acquisition of the session's if its process keeps it and does not use it.
  ReleaseResult ReleaseIfIdle(SessionId session, AcquisitionId acquisition);
  // Takes a gang out of every queue and answers it with that.
  void Refuse(const RequestId& request, const absl::Status& status);
  // Lets those time out that have waited too long, and refuses those that can never be granted any more.
  void Expire();
  void Reconsider();
  // OK, or why it can never be granted: what would have to change is said.
  absl::Status Check(const Gang& gang);
  // Why it is not granted now, to one who will not wait; and to one who has waited for too long.
  absl::Status NoPermit(const Gang& gang);
  absl::Status TimedOut(const Gang& gang);
  // What it waits for where every pool has its units.
  WaitCause CauseOf(const Gang& gang);
  // Its reservation as one that is asked for alone.
  static Waiting WaitingOf(const Gang& gang);

 private:
  const Gang& GangOf(const RequestId& request);
  PermitPool* FindPoolOf(const Gang& gang) const;
  // Of the members that wish for a device, in their order.
  std::vector<Placement::Ask> AsksOf(const Gang& gang) const;
  static Placement::BytesByDevice BesidesOf(const Gang& gang);
  Shortage RoomFor(const Gang& gang);
  // The first pool that has not what the gang asks there, or keeps it for another; null for none.
  const Gang::Part* FindLacking(const Gang& gang);

  Core::Impl* const core_;
  const Step* const step_;
  AcquireOutcomes outcomes_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMIT_RUN_H_
