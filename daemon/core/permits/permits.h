// Permits: the permit pools, the gangs that wait in several of them, and the processes that cache a permit. A
// PermitTransaction is one step over the pools.

#ifndef DAEMON_CORE_PERMITS_PERMITS_H_
#define DAEMON_CORE_PERMITS_PERMITS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <berth/end_notice.h>
#include <berth/ids.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/permits/gang_table.h"
#include "daemon/core/permits/permit_pool.h"
#include "daemon/core/permits/permit_slots.h"
#include "daemon/core/requests/admitted.h"
#include "daemon/core/requests/wait_place.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/gang_types.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/step_context.h"
#include "daemon/core/types/tenant_quota.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Permits final : public WaitPlace {
 public:
  // `core` outlives the manager.
  Permits(Managers& core, FindPermitSlot find, FindTakeUpWords find_take_up);

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  Page<PoolView> ListPools(const PageRequest& page) const;
  Page<PermitView> ListPermits(const Caller& caller, absl::string_view pool, const PageRequest& page) const;
  std::vector<WaiterView> ListWaiters(const Caller& caller, absl::string_view pool, uint64_t most) const;
  PermitCounts CountPermits(const Caller& caller, absl::string_view pool) const;
  void Acquire(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
               const AcquireRequest& request);
  void Release(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag, AcquisitionId acquisition);
  void ReleaseIfIdle(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                     const ReleaseIfIdleRequest& request);
  absl::StatusOr<ReleaseResult> GiveBack(StepContext& step, ChannelId channel, AcquisitionId acquisition, bool if_idle);
  void KeepPermits(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                   const KeepPermitsRequest& request);
  absl::StatusOr<PoolView> SetPool(StepContext& step, absl::string_view pool, const PoolChange& change);
  absl::StatusOr<PermitView> RevokePermit(StepContext& step, PermitId permit, uint32_t by_uid);
  void SetQuotas(StepContext& step, const QuotaTable& quotas);
  absl::StatusOr<WaitView> ExplainWait(const Caller& caller, uint64_t waiter);
  std::optional<uint64_t> FindWaiter(const Caller& caller, uint64_t sequence) const;
  uint64_t CountJudged() const;
  uint64_t CountGaugesRead() const;
  absl::StatusOr<PoolView> GetPool(absl::string_view pool);
  void AcquireGang(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                   const GangRequest& request);

  // ---- For the other managers -------------------------------------------------------------------------------

  PermitPool* FindPool(absl::string_view name);
  static absl::Status AlreadyHeld(const PermitView& permit);
  // Starts the gang of a pending request: granted, refused, or waiting when this returns.
  void StartGang(StepContext& step, const Admitted& admitted, const GangRequest& request);
  // Returns a number for a waiter of a pool or a gang.
  uint64_t NextWaiter();
  // Releases warm blocks where that frees capacity for the gang's reservation. Returns whether other requests hold its
  // bytes; it is then parked on their budget.
  bool TrimForGang(StepContext& step, const Gang& gang);
  // Serves waiting gangs whose reservation may fit now, and refuses those whose reservation never can.
  void ServeGangBytes(StepContext& step);
  bool HasPermit(SessionId session) const;
  // Re-evaluates waiters after permits of other pools, blocks or devices came or went.
  void ServePlaced(StepContext& step);
  // The process caches no permit any more, and takes up no grant.
  void EndCachingBy(StepContext& step, ChannelId channel);

  // ---- take_up.cc: grants that processes have not taken up (common/wire/take_up.h) -------------------------------

  // Has the request's process take its grant up, if it can. Withholds the grant from a process that leaves grants
  // untaken until all its words are in use, and from one that has not proved that it runs.
  GrantOffer Offer(const StepContext& step, const RequestId& request);
  // Settles the offers that the process has taken up. May change which accounts are late in a pool's queue.
  void SettleTaken(ChannelId channel);
  // Records the offer of a grant that is about to be answered.
  void RecordOffer(StepContext& step, AcquireOutcome& outcome);
  // Returns a waiter whose grant was withheld to its place.
  void PutBack(StepContext& step, GrantedWaiter withheld);
  // Sets the waiting requests of stopped processes aside, and withdraws the grants that they have not taken up.
  void SkipStopped(StepContext& step, const std::vector<ChannelId>& channels);
  // The process has ended: withdraws the grants that it has not taken up. Its session would hold them unused.
  void TakeBackAllOf(StepContext& step, ChannelId channel);
  // A request began to wait: sends its process a page, and looks at waiting processes from now on.
  void BeginWait(StepContext& step, const RequestId& request);
  // Has the process, a request of which waits, looked at from now on.
  void Watch(const StepContext& step, ChannelId channel);
  absl::StatusOr<ReleaseResult> ReleaseAcquisition(StepContext& step, SessionId session, AcquisitionId acquisition,
                                                   LeaseEnd how = LeaseEnd::kReleased);
  void ListPermitRecords(std::vector<RecordKey>* keys) const;
  bool WritePermitRecord(const RecordKey& key, ArchiveWriter& archive) const;
  void ReadPermitRecord(const RecordKey& key, ArchiveReader& archive);
  void AddPool(const PoolConfig& config);
  // Called after the last record.
  void FinishRestoringPermits();
  void ResumePermits(StepContext& step);
  absl::Status CheckPermits() const;

  // By name.
  using Pools = std::map<std::string, PermitPool, std::less<>>;
  const Pools& pools() const { return pools_; }
  const GangTable& gangs() const { return gangs_; }
  // Last numbers of permits, acquisitions and waiters.
  const PermitIds& ids() const { return permit_ids_; }
  void RestoreIds(const PermitIds& ids) { permit_ids_ = ids; }
  void BeginStep() { permit_slots_.BeginStep(); }
  // Serves the waiters of all pools.
  void ServeAll(StepContext& step);
  // Returns all permits of a session that is over.
  void ReturnAll(StepContext& step, SessionId session);
  // Stops the grants of all pools, or resumes them.
  void SetPaused(StepContext& step, bool paused);

  // WaitPlace: single permits, whose ticket has a pool, and gangs.
  bool SetDeadline(const RequestId& request, const WaitTicket& ticket, absl::Time deadline) override;
  void Leave(StepContext& step, const RequestId& request, const WaitTicket& ticket) override;
  void Expire(StepContext& step) override;
  absl::Time next_deadline() const override;
  void Reattach(StepContext& step, const RequestId& request, const WaitTicket& ticket) override;
  uint64_t Weigh(const RequestId& request, const WaitTicket& ticket) override;
  bool ForUnits() const override { return true; }

 private:
  friend class PermitTransaction;

  // Returns whether the caller may see the session's permits and waiters. Requires: the session exists.
  bool MaySee(const Caller& caller, SessionId session) const;

  struct OfferedGrant {
    SessionId session;
    absl::Time since;
    // A single permit; null for a gang or a plan.
    PermitPool* pool = nullptr;
    AcquisitionId acquisition;
    // The place to return to. Neither is set for a plan, nor for a grant by an earlier broker.
    std::optional<Waiter> waiter = {};
    std::shared_ptr<const Gang> gang = {};
  };

  // ---- take_up.cc -------------------------------------------------------------------------------------------------

  void AddOffer(const RequestId& request, OfferedGrant offer);
  OfferedGrant RemoveOffer(const RequestId& request);
  // The process has taken the grant up: the offer is over.
  void SettleOffer(const RequestId& request);
  static void RecordTaken(const OfferedGrant& offer);
  // Withdraws the grant, unless its process has taken it up. Either way the offer is over.
  void ResolveOffer(StepContext& step, const RequestId& request);
  // Releases a withdrawn grant, and returns its request to the queue.
  void TakeBack(StepContext& step, const RequestId& request, OfferedGrant offer);
  void TakeBackGang(StepContext& step, const RequestId& request, const Gang* gang);
  void ResolveOverdueOffers(StepContext& step);
  // Has the next look come at the shorter interval.
  void LookSoon(const StepContext& step);
  // Has the next processes looked at: those that have not taken a grant up, the first waiters of each pool, and others
  // in turn.
  void LookAtWaiters(StepContext& step);
  // Adds the first waiters of each pool.
  void AddHeads(std::set<ChannelId>* channels) const;
  // Adds watched processes after those of the last look, up to the limit. Forgets those that wait no longer.
  void AddOthers(std::set<ChannelId>* channels);
  // Whether a request of the process would be skipped if the process were stopped.
  bool MayBeSkipped(ChannelId channel) const;
  // Skips a waiting request. Requires: its process retries it after PROCESS_STOPPED (RequestTag::takes_up).
  void SkipRequest(StepContext& step, const RequestId& request);
  // The daemon cannot read the state of this process: the daemon's PID namespace does not show it.
  bool IsUnseen(ChannelId channel) const;
  // Returns when an unseen process was last granted or promised what it has left untaken for kDoubtAfter;
  // InfinitePast if none has.
  absl::Time DoubtedSince(absl::Time now) const;
  // While an unseen process leaves a grant untaken, skips the requests of unseen processes that have been silent since:
  // a process that runs calls again at once. Returns whether it has reached its limit of processes.
  bool SkipSilent(StepContext& step);
  void ForgetOffersOf(ChannelId channel);
  // Finds the grants of an earlier broker that are not taken up.
  void RestoreOffers(StepContext& step);
  bool AnyoneWaits() const;
  absl::Time next_offer() const;

  // Errors: INVALID_FIELD; NOT_FOUND (pool); the errors of a reservation.
  absl::StatusOr<Gang> MakeGang(const Admitted& admitted, const GangRequest& request, absl::Time now);
  // Errors: ALREADY_HELD.
  absl::Status CheckNotHeld(const Gang& gang) const;
  // Notifies every process of the permit's session; each knows which of its acquisitions nest in the permit.
  void NotifyOverdue(StepContext& step, const PermitView& permit);
  void NotifyRevoked(StepContext& step, const PermitView& permit, const EndNotice& end);
  void ReadGang(uint64_t number, ArchiveReader& archive);
  // Adds the bytes that the gang would reserve to the table's index.
  void AddGangBytes(const Gang& gang);

  Managers& core_;
  PermitIds permit_ids_;
  PermitSlots permit_slots_;
  const FindTakeUpWords find_take_up_;
  // Grants that may not be taken up yet; by time, and by acquisition.
  std::map<RequestId, OfferedGrant> offers_;
  std::set<std::pair<absl::Time, RequestId>> offers_by_time_;
  absl::flat_hash_map<AcquisitionId, RequestId> offered_;
  // Time of the last look at waiting processes, and of the next one; InfiniteFuture while no request waits.
  absl::Time looked_at_ = absl::InfinitePast();
  absl::Time look_at_ = absl::InfiniteFuture();
  // Processes with requests that wait, and some whose requests no longer do. The last one that was looked at in turn.
  std::set<ChannelId> watched_;
  ChannelId last_looked_;
  Pools pools_;
  absl::flat_hash_map<uint64_t, PermitPool*> pools_by_number_;
  GangTable gangs_;
  // Number of times that a gang's bytes were compared with the budgets after a change.
  uint64_t assessed_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_PERMITS_H_
