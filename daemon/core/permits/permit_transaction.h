// PermitTransaction: one step of the core over its permit pools. The pools do not know of each other; the transaction
// answers their questions about gangs, which concern several pools at once.
//
//   PermitTransaction transaction(core, &step);
//   pool.Release(transaction.step(), acquisition);
//   transaction.Answer();

#ifndef DAEMON_CORE_PERMITS_PERMIT_TRANSACTION_H_
#define DAEMON_CORE_PERMITS_PERMIT_TRANSACTION_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/devices/placement.h"
#include "daemon/core/memory/byte_budget.h"
#include "daemon/core/memory/byte_wait_queue.h"
#include "daemon/core/memory/shortage.h"
#include "daemon/core/permits/gang_table.h"
#include "daemon/core/permits/permit_pool.h"
#include "daemon/core/types/stall.h"

namespace berth::core {

struct Managers;
class StepContext;

class PermitTransaction final : public Gangs, public GrantOffers {
 public:
  // `step` is null if the transaction only judges.
  PermitTransaction(Managers& core, StepContext* step) : core_(core), step_(step) {}

  PoolStep step();
  // Answers all requests that have an outcome.
  void Answer();

  WaitQueue::Verdict Judge(const Waiter& waiter) override;
  WaitQueue::Verdict JudgeParts(const Waiter& waiter) override;
  Stalls WhyNot(const Waiter& waiter, WaitQueue::Verdict goal) override;
  uint64_t Read(const Account& tenant, const Gauge& gauge) override;
  uint64_t VersionOf(Gauge::Kind kind) override;
  void Grant(const RequestId& request) override;
  void Hold(const RequestId& request) override;
  void PermitGranted(const RequestId& request, const PermitView& permit) override;
  GrantOffer Offer(const RequestId& request) override;

  // Queues a gang in its pools. On return it is granted, refused, or waiting.
  void Enqueue(Gang made);
  // Returns a gang that did not take up its grant to its place, detached. Returns false if its user may not have one
  // more waiter in each pool, or if it can never be granted any more.
  bool PutBack(const Gang& gang);
  // Releases an acquisition of the session if its process caches it and does not use it.
  ReleaseResult ReleaseIfIdle(SessionId session, AcquisitionId acquisition);
  // Removes a gang from every queue and answers it with that status.
  void Refuse(const RequestId& request, const absl::Status& status);
  // Times out gangs whose deadline has passed, and refuses gangs that can never be granted any more.
  void Expire();
  void Reconsider();
  // Refuses the gang if it can never be granted any more.
  void Reconsider(const Gang& gang);
  // Returns OK, or why the gang can never be granted: the message names what would have to change.
  absl::Status Check(const Gang& gang);
  // Return the refusal for a gang that does not wait (NoPermit), or has waited too long (TimedOut).
  absl::Status NoPermit(const Gang& gang);
  absl::Status TimedOut(const Gang& gang);
  // Returns what the gang waits for if every pool has its units.
  WaitCause CauseOf(const Gang& gang);
  // Describes what each device lacks for a member that fits on none, or else for a member that names none.
  std::string LackingOf(const Gang& gang) const;
  // Returns whether the devices that serve could hold the gang if nothing were out.
  bool DevicesServe(const Gang& gang) const;
  // Returns the gang's reservation as a stand-alone byte request.
  static Waiting WaitingOf(const Gang& gang);

 private:
  // Adds the gang to its pools. Errors: LIMIT; the gang is then in some of them.
  absl::Status Push(Gang made, bool detached);
  // Skips a gang, or refuses one that does not wait: its process must call again first, or take up earlier grants.
  void Withhold(const RequestId& request);
  const Gang& GangOf(const RequestId& request);
  PermitPool* FindPoolOf(const Gang& gang) const;
  // Returns the asks of the members with a device constraint, in member order.
  std::vector<Placement::Ask> AsksOf(const Gang& gang) const;
  static Placement::BytesByDevice BesidesOf(const Gang& gang);
  Shortage CapacityFor(const Gang& gang);
  // Returns the capacity reserved for stand-alone byte requests.
  ReservedBudgets ReservedCapacity();
  Stalls WhyNoCapacity(const Gang& gang);
  Stalls WhyNoDevices(const Gang& gang, Placement::Verdict goal) const;
  // Returns the first pool that lacks the gang's units or reserves them for another waiter; null if there is none.
  const Gang::Part* FindLacking(const Gang& gang);
  // Returns the index of the first permit that fits on no device now; empty if each of them fits on one alone.
  std::optional<size_t> FindWithoutDevice(const Gang& gang) const;

  Managers& core_;
  StepContext* const step_;
  AcquireOutcomes outcomes_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_PERMIT_TRANSACTION_H_
