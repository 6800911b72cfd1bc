// PermitPool: the permits of one pool. It records the holders, their units and the waiters, and chooses the next
// waiter.
//
// A permit is out from its first acquisition to the release of its last one. Acquisitions nest: by the same holder
// (session, key), or by any request of a session whose adoptable permit is out. A waiter that could nest is answered at
// once.
//
// A process may cache its permit between uses (permit_slots.h). While a request waits or a lowered cap drains, the pool
// takes unused cached permits back, without a message to their processes.
//
// The configured pool, its metrics, each permit and each waiter are ledger records that outlive the broker.
//
// Pure and thread-compatible. Answers to waiters are returned as outcomes, in the order of the decisions.

#ifndef DAEMON_CORE_PERMITS_PERMIT_POOL_H_
#define DAEMON_CORE_PERMITS_PERMIT_POOL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/devices/placement.h"
#include "daemon/core/permits/permit_slots.h"
#include "daemon/core/permits/wait_queue.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/sessions/tenant_use.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/response.h"
#include "daemon/core/types/stall.h"

namespace berth::core {

class PermitPool;
struct Gang;

// How a waiter gets its permit at its turn (docs/design/0053).
enum class GrantOffer {
  // The answer is final.
  kFinal,
  // The process takes the grant up by an atomic step.
  kOffered,
  // Nothing is granted: the process must call again first, or take up earlier grants.
  kWithheld,
};

// Decides how waiters get their permits.
class GrantOffers {
 public:
  virtual ~GrantOffers() = default;
  // Called for a waiter at its turn. After kOffered the pool grants the permit.
  virtual GrantOffer Offer(const RequestId& request) = 0;
};

// A grant of one permit, for the case that its process does not take it up. Without an acquisition if it was withheld.
struct GrantedWaiter {
  PermitPool* pool = nullptr;
  AcquisitionId acquisition;
  Waiter waiter;
};

// The result of an acquire: an AcquireResult or a GangResult.
struct AcquireOutcome {
  RequestId request;
  absl::StatusOr<Response> result;
  // Set for a request that has a waiter's number and was granted one permit, or would have been.
  std::optional<GrantedWaiter> granted = {};
  // If kWithheld, `result` has no meaning.
  GrantOffer offer = GrantOffer::kFinal;
  // Set for a grant to a gang.
  std::shared_ptr<const Gang> gang = {};
};
using AcquireOutcomes = std::vector<AcquireOutcome>;

// Gangs wait in several pools at once. Each pool sees only its own part of a gang (Waiter::gang).
class Gangs {
 public:
  virtual ~Gangs() = default;
  // Returns the verdict over all parts: kFits if every pool has the requested units and reserves them for no other
  // waiter.
  virtual WaitQueue::Verdict Judge(const Waiter& waiter) = 0;
  // Like Judge(), but ignores what is reserved for other waiters.
  virtual WaitQueue::Verdict JudgeParts(const Waiter& waiter) = 0;
  // Returns the stalls of all parts and those that only gangs can have; like WaitQueue::Arbiter::WhyNot().
  virtual Stalls WhyNot(const Waiter& waiter, WaitQueue::Verdict goal) = 0;
  virtual uint64_t Read(const Account& tenant, const Gauge& gauge) = 0;
  // Returns the version of kBytes or kReserved (StallBoard::Version).
  virtual uint64_t VersionOf(Gauge::Kind kind) = 0;
  // Called at a fitting gang's turn in one of its pools. If the gang may not pass a waiter of another pool, that pool
  // is held for the waiter from now on. The gang then no longer fits.
  virtual void Grant(const RequestId& request) = 0;
  // Called when one of the gang's pools is held for it: holds its other pools, too.
  virtual void Hold(const RequestId& request) = 0;
  // Called when the gang's session has been granted a permit in one of the gang's pools. Refuses the gang if it could
  // nest in that permit.
  virtual void PermitGranted(const RequestId& request, const PermitView& permit) = 0;
};

// One step of a pool. `outcomes` receives the answers to waiters.
struct PoolStep {
  absl::Time now;
  AcquireOutcomes* outcomes;
  // Null if no gang ever waits.
  Gangs* gangs = nullptr;
  // Null if all grants are final.
  GrantOffers* offers = nullptr;
};

// Last assigned ids. Ids count up over all pools of the node.
struct PermitIds {
  uint64_t last_permit = 0;
  uint64_t last_acquisition = 0;
  uint64_t last_waiter = 0;
};

class PermitPool {
 public:
  struct Options {
    PoolConfig config;
    // Limits of waiters of all users, and of operators.
    uint64_t max_waiters = 0;
    uint64_t max_operator_waiters = 0;
    // A waiter that other waiters have passed this often is not passed again.
    uint64_t passes_before_hold = 0;
    uint64_t epoch = 0;
    // Usage of each tenant over all pools; outlives the pool. Null if tenants have no quotas.
    TenantUse* tenants = nullptr;
    // Receives each permit's grant and end; outlives the pool. Null if no history is written.
    LeaseLog* leases = nullptr;
  };

  // The other arguments outlive the pool. Without `permit_slots` no process caches a permit. Requires: a cap and
  // weights of at least 1.
  PermitPool(Options options, PermitIds* ids, Placement* placement, Journal* journal,
             PermitSlots* permit_slots = nullptr);

  // Returns the pool's number in its ledger records. Equal names have equal numbers in every broker.
  static uint64_t NumberOf(absl::string_view name);
  uint64_t number() const { return number_; }

  // Grants, refuses or queues the request. Grants and refusals, also of other waiters as a consequence, go to the
  // outcomes. Returns the queued waiter, whose address is stable; null if the request was answered. Errors in outcomes:
  // INVALID_FIELD (0 units), NESTED_OVER_HELD, OVER_CAP, NO_PERMIT, WAIT_TIMED_OUT, LIMIT.
  const Waiter* Acquire(const PoolStep& step, const RequestId& request, const Requester& requester,
                        const AcquireRequest& what);
  bool Holds(SessionId session, AcquisitionId acquisition) const;
  // Releases the acquisition. Requires: Holds(session, acquisition).
  ReleaseResult Release(const PoolStep& step, AcquisitionId acquisition, LeaseEnd how = LeaseEnd::kReleased);
  // Releases the acquisition if its process caches it and does not use it. Returns whether it did. Requires: as
  // Release().
  bool ReleaseIfIdle(const PoolStep& step, AcquisitionId acquisition);
  // Ends the process's cached permit. A permit in use becomes an ordinary permit; a permit not in use is released.
  void EndCachingBy(const PoolStep& step, ChannelId channel);
  // Releases every permit of the session.
  void ReturnAll(const PoolStep& step, SessionId session);

  // Refuses waiters that the changed devices can never serve, and grants what is possible.
  void Reconsider(const PoolStep& step);

  // ---- Gangs ----------------------------------------------------------------------------------------------

  // A gang's request to this pool.
  struct GangPart {
    Tenant tenant;
    uint64_t units = 0;
    bool exclusive = false;
    uint64_t client_cap = 0;
    // Units for permits without a device, included in `units`.
    uint64_t without_device = 0;

    template <typename Archive>
    friend void Fields(Archive& archive, GangPart& value) {
      archive(value.tenant, value.units, value.exclusive, value.client_cap);
      archive.Since(3, value.without_device);
    }
  };
  // Returns whether a gang may have its units, regardless of its devices.
  WaitQueue::Verdict JudgeUnits(const GangPart& part) const;
  // Returns why the gang may not have its units; empty if it may.
  Stalls WhyNoUnits(const GangPart& part) const;
  // Checks that `units` without a device can be out at once. Errors: OVER_CAP.
  absl::Status CheckWithoutDevice(uint64_t units) const;
  const DeviceShares& shares() const { return shares_; }
  // Returns the permit in which an acquire by that holder would nest; empty if there is none.
  std::optional<PermitView> FindHeld(const Requester& requester, const AcquireRequest& what) const;
  // Queues a gang's part; the caller then calls Serve(). Errors: LIMIT.
  absl::Status Push(Waiter waiter);
  // Returns whether the gang may pass the waiters ahead of it. If not, the pool is held for the waiter that it may not
  // pass. Requires: a fitting gang that waits here.
  bool MayGo(const PoolStep& step, uint64_t number);
  // Removes the gang from the queue and counts the waiters that it passes. Returns how often it was passed itself.
  // Requires: MayGo().
  uint64_t TakeTurn(const PoolStep& step, uint64_t number);
  // Grants one permit of a gang on that device. `waiter` is the gang's waiter with the request for this permit.
  AcquireResult GrantPart(const PoolStep& step, const Waiter& waiter, std::optional<uint32_t> device);
  void Hold(uint64_t number) { queue_.Hold(number); }
  bool IsHeld(uint64_t number) const { return queue_.IsHeld(number); }
  bool ReservedFrom(uint64_t number, Gangs* gangs) const;
  // Returns the waiter's position in the queue, 1 for the next; WaitQueue::kLastPlace for that position and all behind
  // it.
  uint64_t PositionOf(uint64_t number) const;
  void RecordRefused() {
    ++refused_total_;
    MarkCounters();
  }
  // Return the NO_PERMIT and WAIT_TIMED_OUT errors, with the cause in the pool's current state. `without_device`: as in
  // GangPart; `stopped`: the waiter is detached.
  absl::Status NoPermit(const Requester& requester, const AcquireRequest& what, uint64_t without_device) const;
  absl::Status TimedOut(const Account& tenant, const AcquireRequest& what, uint64_t without_device, uint64_t position,
                        bool stopped) const;

  // ---------------------------------------------------------------------------------------------------------

  // Returns null if the waiter is not in this pool.
  const Waiter* FindWaiter(uint64_t number) const { return queue_.Find(number); }
  // Prefetches the memory that Leave() will access for this waiter.
  void Prefetch(const Waiter* waiter, uint64_t number) const { queue_.Prefetch(waiter, number); }
  // Requires: the waiter is in this pool.
  void SetDeadline(uint64_t number, absl::Time deadline) { queue_.SetDeadline(number, deadline); }
  // Removes a waiter without an answer. The caller calls Serve() once all waiters that leave together have left.
  // Ignores waiters of other pools.
  void Leave(uint64_t number) { queue_.Remove(number); }
  // Detaches the waiter: its process is stopped. The caller calls Serve(): units may have been reserved for the waiter.
  // Requires: the waiter is in this pool.
  void Detach(uint64_t number) { queue_.Detach(number); }
  // Records that a grant to a waiter of this pool was taken up.
  void RecordTaken() { queue_.RecordTaken(); }
  // Returns a waiter whose grant was not taken up to its old place, detached. Returns null if its user may have no
  // further waiter here, or if it can never be granted any more.
  const Waiter* PutBack(Waiter waiter);
  // Returns whether a call waits here.
  bool HasAttached() const { return queue_.size() > queue_.detached(); }
  // Visits the waiters in the order of the queue until `visit` returns false.
  void ForEachWaiter(absl::FunctionRef<bool(const Waiter&)> visit) const { queue_.Walk(visit); }
  // Attaches a call to the detached waiter (Waiter::detached): it nests or waits on. The caller then calls Serve().
  // Requires: the waiter is in this pool.
  void Attach(const PoolStep& step, uint64_t number);
  // Grants all that can be granted.
  void Serve(const PoolStep& step);

  // Times out waiters whose deadline has passed and revokes permits held past the limit. Adds these permits to
  // `revoked`, and permits newly past the warning to `overdue`.
  void Expire(const PoolStep& step, std::vector<PermitView>* revoked, std::vector<PermitView>* overdue);
  absl::Time next_deadline() const;

  // Revokes a permit without asking its holder; its acquisitions become unknown. Returns the revoked permit; empty if
  // it is not out in this pool.
  std::optional<PermitView> Revoke(const PoolStep& step, PermitId permit, LeaseEnd how);

  // Pauses or resumes the pool. A paused pool grants nothing and takes unused cached permits back; a resumed pool
  // grants what fits.
  void SetPaused(const PoolStep& step, bool paused);

  // Changes the pool. Requires: a valid configuration as the result. Refuses waiters that can never fit any more with
  // OVER_CAP.
  void Change(const PoolStep& step, const PoolChange& change);
  const PoolConfig& config() const { return config_; }
  // Returns the operators' changes of the configured pool.
  PoolChange ChangeByHand() const;

  PoolView View() const;
  uint64_t UnitsOf(SessionId session) const;
  const absl::flat_hash_map<Account, uint64_t>& out_by_tenant() const { return out_by_tenant_; }
  uint64_t WaitersOf(SessionId session) const { return queue_.CountOf(session); }
  using Wanted = absl::FunctionRef<bool(SessionId)>;
  // Counts everything that is out or waits, and the part of the sessions that are `wanted`.
  PoolUse CountUse(Wanted wanted) const;
  // Adds the permits with ids above `after` that are `wanted`, in the order of their grants, at most `most`.
  void AddPermits(PermitId after, uint64_t most, Wanted wanted, std::vector<PermitView>* views) const;
  // Adds all permits that are out.
  void AddLeases(std::vector<LeaseRecord>* leases) const;
  // Adds the waiters that are `wanted`, in the order of the queue as of the last step, until there are `most`.
  void AddWaiters(uint64_t most, Wanted wanted, std::vector<WaiterView>* views) const;
  // Returns why the waiter of that number waits, as `viewer` or an operator may see it. Empty if there is no such
  // waiter or the viewer may not see it.
  std::optional<WaitView> Explain(uint64_t number, const Tenant* viewer, Gangs* gangs) const;
  // Returns how many verdicts on waiters the searches for the next waiter have taken.
  uint64_t judged() const { return queue_.judged(); }
  uint64_t gauges_read() const { return queue_.gauges_read(); }
  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants(Gangs* gangs = nullptr) const;

  // ---- permit_pool_records.cc: persistence across broker restarts -------------------------------------------

  void ListRecords(std::vector<RecordKey>* keys) const;
  // Returns whether the record exists.
  bool WriteRecord(const RecordKey& key, ArchiveWriter& archive) const;
  // Restores one record. Requires: records come in the order of kinds and keys. Fails the archive for impossible
  // content.
  void ReadRecord(const RecordKey& key, ArchiveReader& archive);
  // Returns the pool configuration from a kPool record.
  static PoolConfig ReadConfig(ArchiveReader archive);
  // Ends restoring after the last record: cached permits become cached again or are released.
  void FinishRestoring();
  // Returns whether the pool has no persistent state except metrics.
  bool IsIdle() const { return permits_.empty() && queue_.empty(); }
  bool HasPermits() const { return !permits_.empty(); }

 private:
  struct Permit {
    PermitView view;
    Tenant tenant;
    std::set<AcquisitionId> acquisitions;
    // The first acquisition, granted with the permit; nested acquisitions have their own ledger records.
    AcquisitionId first;
    // The nested acquisitions that requested a device, so that their processes share it. Not persisted: they only
    // matter to the spread over a session's devices and to the text that reports a shared device.
    std::set<AcquisitionId> on_device;
    // The nested acquisitions of an earlier broker, any of which may have requested a device.
    std::set<AcquisitionId> restored;
    // The overdue warning has been issued.
    bool warned = false;
    // Start of the current use, as far as the daemon knows.
    absl::Time held_since;
    // Permit slot in which the process reports whether it uses the permit; null if the process does not cache it.
    PermitSlot* permit_slot = nullptr;
    ChannelId cached_by;
    AcquisitionId cached;
    // Number of uses at the last read of the slot.
    uint32_t uses = 0;
    bool was_cached = false;
    // Charge to take back if the permit is not taken up; empty once an acquisition of the permit was in use. A later
    // broker computes it anew.
    std::optional<ClockCharge> untaken;

    // The use of the device by nested acquisitions, to compare with that of another permit: first those that surely
    // use it.
    std::pair<size_t, size_t> device_use() const { return {on_device.size(), restored.size()}; }

    // Excludes nested acquisitions, the slot and the charge.
    template <typename Archive>
    friend void Fields(Archive& archive, Permit& value) {
      PermitView& view = value.view;
      archive(view.units, view.session, view.holder_key, view.label, view.adoptable, view.exclusive, view.priority,
              view.device, view.declared, view.gang, view.granted_at, view.waited, view.process);
      archive(value.tenant, value.first, value.warned, value.held_since, value.was_cached);
      if (value.was_cached) archive(value.cached_by, value.cached, value.uses);
    }
  };
  // The queue's view of the pool.
  class Arbiter final : public WaitQueue::Arbiter {
   public:
    Arbiter(const PermitPool& pool, Gangs* gangs) : pool_(pool), gangs_(gangs) {}
    WaitQueue::Verdict Judge(const Waiter& waiter) override { return pool_.Judge(waiter, gangs_); }
    Stalls WhyNot(const Waiter& waiter, WaitQueue::Verdict goal) override {
      return pool_.WhyNot(waiter, goal, gangs_);
    }
    uint64_t Read(const Account& tenant, const Gauge& gauge) override;
    uint64_t VersionOf(Gauge::Kind kind) override;

   private:
    const PermitPool& pool_;
    Gangs* const gangs_;
  };
  using Holder = std::pair<SessionId, std::string>;
  using HeldSince = std::pair<absl::Time, PermitId>;

  // Returns whether a new request is granted immediately, because it passes no waiter.
  bool GoesAtOnce(const PoolStep& step, const Waiter& waiter);
  const Permit* FindNest(const Requester& requester, const AcquireRequest& what) const;
  // Like FindNest(), for any adoptable permit of the session. Prefers a permit that satisfies the request.
  const Permit* FindAdoptable(SessionId session, const AcquireRequest& what) const;
  absl::StatusOr<AcquireResult> Nest(Permit& permit, const AcquireRequest& what);
  absl::Status WhyNotWait(absl::Time now, const Waiter& waiter) const;
  // Checks that the request may nest in the permit. Errors: NESTED_OVER_HELD, naming what the permit lacks.
  absl::Status CheckNest(const Permit& permit, const AcquireRequest& what) const;
  WaitCause CauseOf(const Waiter& waiter, Gangs* gangs) const;
  PermitView ViewPermit(const Permit& permit) const;
  static LeaseRecord LeaseOf(const Permit& permit);
  WaiterView ViewWaiter(const Waiter& waiter, uint64_t position) const;
  // ---- permit_pool_judge.cc -------------------------------------------------------------------------------

  // Returns the units that the pool's per-tenant cap leaves for the tenant.
  uint64_t CapacityOf(const Account& tenant) const;
  bool TenantMayHave(const Account& tenant, uint64_t units) const { return units <= CapacityOf(tenant); }
  // Checks the tenant's quota over all pools.
  bool QuotaAllows(const Account& tenant, uint64_t units) const {
    return tenants_ == nullptr || tenants_->MayHave(tenant, units);
  }
  // Returns the units still available to permits without a device.
  uint64_t CapacityWithoutDevice() const;
  static GangPart PartOf(const Waiter& waiter);
  WaitQueue::Verdict Judge(const Waiter& waiter, Gangs* gangs) const;
  // Returns whether the pool has the units now; `client_cap` as in AcquireRequest.
  bool MayHaveUnits(uint64_t units, bool exclusive, uint64_t client_cap) const;
  Placement::Ask AskOf(const AcquireRequest& what) const;
  Stalls WhyNot(const Waiter& waiter, WaitQueue::Verdict goal, Gangs* gangs) const;
  // Returns the units that are out; a value above every count while an exclusive permit is out.
  uint64_t Out() const;
  uint64_t Read(const Account& tenant, Gauge::Kind kind) const;
  // Makes the queue judge all waiters again if devices have changed.
  void OpenChanged();

  // ---------------------------------------------------------------------------------------------------------

  static GrantOffer OfferTo(const PoolStep& step, const Waiter& waiter);
  void Grant(const PoolStep& step, Waiter waiter, GrantOffer offer);
  // Creates the permit that `waiter` requests, without an acquisition.
  Permit& Admit(const PoolStep& step, const Waiter& waiter, std::optional<uint32_t> device);
  // Adds the permit to every index and sum.
  Permit& Insert(Permit permit);
  // Grants the waiters that fit, in queue order.
  void GrantFitting(const PoolStep& step);
  // Notifies a gang that the pool is held for it.
  void MarkHeld(const PoolStep& step);
  void NestWaiter(const PoolStep& step, Permit& permit, Waiter waiter);
  void NestWaiters(const PoolStep& step, Permit& permit);
  AcquireResult AddAcquisition(Permit& permit, bool nested);
  void EndAcquisition(Permit& permit, AcquisitionId acquisition);
  void Return(absl::Time now, std::map<PermitId, Permit>::iterator at, LeaseEnd how);
  void Notify(const PoolStep& step, const RequestId& request, absl::StatusOr<AcquireResult> result);
  // Answers a waiter that has left the queue.
  void NotifyWaiter(const PoolStep& step, Waiter waiter, absl::StatusOr<AcquireResult> result, GrantOffer offer);

  // ---- permit_pool_cached.cc ------------------------------------------------------------------------------

  // Returns whether unused cached permits must be taken back. Reasons: a waiter or a lowered cap here, a paused pool,
  // or a waiter of the permit's own tenant in another pool. A detached waiter needs nothing.
  bool NeedsUnits() const { return NeedsUnitsHere() || (tenants_ != nullptr && tenants_->AnyPresses()); }
  bool NeedsUnitsHere() const { return paused_ || HasAttached() || out_ > config_.cap; }
  void Lend(Permit& permit, const Waiter& waiter, AcquisitionId acquisition);
  void EndCaching(Permit& permit, bool taken_back = false);
  // Takes a cached permit back if it is not in use, and returns whether it did. Then `at` may be invalid, and another
  // waiter may be served.
  bool TakeBack(absl::Time now, std::map<PermitId, Permit>::iterator at, LeaseEnd how);
  void SetWanted(absl::Time now, bool wanted);
  void TakeIdleBack(const PoolStep& step);
  // Treats a use that began after the last read of the slot as beginning now. Returns whether there was one. Requires:
  // the permit is cached.
  bool RenewHold(absl::Time now, Permit& permit);
  // Returns whether a cached permit is not held, because its process has put it back since. The pool has then taken it
  // back, or its hold time restarts now.
  bool IsNotHeld(absl::Time now, PermitId id);
  void EndHold(const Permit& permit);
  void ExpireHolds(const PoolStep& step, std::vector<PermitView>* revoked, std::vector<PermitView>* overdue);
  absl::Time next_hold() const;
  absl::Time next_look() const;
  absl::Status CheckCached() const;

  // Returns OK, or why the request can never be granted.
  absl::Status CheckCaps(const Account& tenant, const AcquireRequest& what) const;
  absl::Status CheckUnits(const Account& tenant, uint64_t units) const;
  // Returns why the request is not granted now, in the order of CauseOf(); empty if only units lack. `without_device`:
  // as in GangPart.
  std::string WhyDenied(const Account& tenant, const AcquireRequest& what, uint64_t without_device) const;
  // Returns whether the pool has the units, and no device has the capacity that the request names.
  bool LacksDevice(const AcquireRequest& what) const;
  std::string NameHolders(const Requester& requester) const;

  void Mark(const Permit& permit) { journal_->Touch(RecordKind::kPermit, permit.view.id.value(), number_); }
  void RecordNested(AcquisitionId acquisition) {
    journal_->Touch(RecordKind::kAcquisition, acquisition.value(), number_);
  }
  void MarkCounters() { journal_->Touch(RecordKind::kPoolCounters, number_); }
  void ReadPermit(PermitId id, ArchiveReader& archive);
  void ApplyConfig();

  const uint64_t number_;
  const uint64_t epoch_;
  PermitIds* const ids_;
  Placement* const placement_;
  Journal* const journal_;
  PermitSlots* const permit_slots_;
  TenantUse* const tenants_;
  LeaseLog* const leases_;
  // The pool as configured, and as changed by operators.
  PoolConfig configured_;
  PoolConfig config_;
  DeviceShares shares_;
  bool paused_ = false;
  uint64_t out_ = 0;
  // Units of permits without a device.
  uint64_t out_without_device_ = 0;
  // Units per tenant; no entry for a tenant without any.
  absl::flat_hash_map<Account, uint64_t> out_by_tenant_;
  uint64_t peak_ = 0;
  uint64_t granted_total_ = 0;
  uint64_t refused_total_ = 0;
  uint64_t revoked_total_ = 0;
  absl::Duration mean_hold_;
  // Permits by start of their hold: those before the warning (`fresh_`), and those past it (`overdue_`).
  std::set<HeldSince> fresh_;
  std::set<HeldSince> overdue_;
  // Cached permits by caching process; whether these processes see that a request waits; time of the last read of the
  // slots.
  std::map<ChannelId, PermitId> cached_;
  bool wanted_ = false;
  absl::Time looked_at_;
  // Number of exclusive permits that are out: one, or all that one gang has here.
  uint64_t exclusive_out_ = 0;
  std::map<PermitId, Permit> permits_;
  std::map<Holder, PermitId> by_holder_;
  std::set<std::pair<SessionId, PermitId>> adoptable_;
  absl::flat_hash_map<AcquisitionId, PermitId> acquisitions_;
  WaitQueue queue_;
  // Placement::shape() for which the queue's stalls are valid.
  uint64_t placement_shape_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_PERMIT_POOL_H_
