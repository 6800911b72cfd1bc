// PermitPool: one pool's permits. It says who holds how many units, who waits, and who is next.
//
// A permit is out from its first acquisition to the release of its last. Acquisitions nest: by the same
// holder (session, key), or by anybody of a session whose adoptable permit is out. A waiter that could nest
// never waits on.
//
// A permit may be kept by its process between uses (permit_words.h). While somebody waits, or a lowered cap drains,
// what is kept and not in use is taken back, without a word to its process.
//
// The pool as it is configured, its figures, each permit and each waiter are rows that outlive the broker.
//
// Pure and thread-compatible. What waiters are told comes out as outcomes, in the order of the decisions.

#ifndef DAEMON_CORE_PERMIT_POOL_H_
#define DAEMON_CORE_PERMIT_POOL_H_

#include <cstdint>
#include <map>
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
#include "common/archive.h"
#include "common/row.h"
#include "daemon/core/caller.h"
#include "daemon/core/journal.h"
#include "daemon/core/lease_record.h"
#include "daemon/core/permit_types.h"
#include "daemon/core/permit_words.h"
#include "daemon/core/placement.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/tenant_use.h"
#include "daemon/core/response.h"
#include "daemon/core/wait_queue.h"

namespace berth::core {

// What became of an acquire: an AcquireResult, or a GangResult.
struct AcquireOutcome {
  RequestId request;
  absl::StatusOr<Response> result;
};
using AcquireOutcomes = std::vector<AcquireOutcome>;

// Those who wait in several pools at once, of which each pool sees its own part (Waiter::gang).
class Gangs {
 public:
  virtual ~Gangs() = default;
  // Of all its parts: kFits where every pool has what it asks and nothing is kept there for another.
  virtual WaitQueue::Verdict Judge(const Waiter& waiter) = 0;
  // The same, but for what is kept for others.
  virtual WaitQueue::Verdict JudgeParts(const Waiter& waiter) = 0;
  // It is a fitting gang's turn in one of its pools. Where it may not pass whom it would pass in another, that one is
  // held for from now on, and the gang no longer fits.
  virtual void Grant(const RequestId& request) = 0;
  // One of its pools is held for it: so are the others.
  virtual void Hold(const RequestId& request) = 0;
  // Its session has just been granted a permit in one of its pools. Where it could nest in that, it is refused.
  virtual void PermitGranted(const RequestId& request, const PermitView& permit) = 0;
};

// One step of a pool: what waiters are told comes out in `outcomes`.
struct PoolStep {
  absl::Time now;
  AcquireOutcomes* outcomes;
  // Null where no gang ever waits.
  Gangs* gangs = nullptr;
};

// Ids count up over all pools of the node.
struct PermitIds {
  uint64_t last_permit = 0;
  uint64_t last_acquisition = 0;
  uint64_t last_waiter = 0;
};

class PermitPool {
 public:
  struct Options {
    PoolConfig config;
    uint64_t max_waiters = 0;
    // A waiter that others passed this often is passed no more.
    uint64_t passes_before_hold = 0;
    uint64_t epoch = 0;
    // What tenants have over all pools; outlives the pool. Null where they have no quotas.
    TenantUse* tenants = nullptr;
    // Is told of each permit's grant and end; outlives the pool. Null where nobody wants to know.
    LeaseLog* leases = nullptr;
  };

  // The others outlive the pool. Without `words` nobody keeps anything. Requires: a cap and weights of at least 1.
  PermitPool(Options options, PermitIds* ids, Placement* placement, Journal* journal, PermitWords* words = nullptr);

  // Of its rows: the same for the same name, in every broker.
  static uint64_t NumberOf(absl::string_view name);
  uint64_t number() const { return number_; }

  // Grants, refuses (both told in `outcomes`, beside what that means for waiters) or queues the request. Returns it as
  // it waits, which stays where it is; null where it was told.
  // Errors in outcomes: INVALID_FIELD (0 units), NESTED_OVER_HELD, OVER_CAP, NO_PERMIT, WAIT_TIMED_OUT,
  // LIMIT.
  const Waiter* Acquire(const PoolStep& step, const RequestId& request, const Asker& asker, const AcquireRequest& what);
  bool Holds(SessionId session, AcquisitionId acquisition) const;
  // Requires: Holds(session, acquisition).
  ReleaseResult Release(const PoolStep& step, AcquisitionId acquisition, LeaseEnd how = LeaseEnd::kReleased);
  // Releases it if its process keeps it and does not use it. Returns whether it did. Requires: as Release().
  bool ReleaseIfIdle(const PoolStep& step, AcquisitionId acquisition);
  // The process keeps nothing any more: what it uses is as any other permit, what it does not is back.
  void EndKeepingBy(const PoolStep& step, ChannelId channel);
  // Gives back every permit of the session.
  void ReturnAll(const PoolStep& step, SessionId session);

  // Refuses those who wait and can never be granted any more, as devices have changed, and grants what can be.
  void Reconsider(const PoolStep& step);

  // ---- Gangs ----------------------------------------------------------------------------------------------

  // What one gang asks of this pool.
  struct GangPart {
    Tenant tenant;
    uint64_t units = 0;
    bool exclusive = false;
    uint64_t client_cap = 0;

    template <typename Archive>
    friend void Fields(Archive& archive, GangPart& value) {
      archive(value.tenant, value.units, value.exclusive, value.client_cap);
    }
  };
  // Whether a gang may have its units, whatever its devices.
  WaitQueue::Verdict JudgeUnits(const GangPart& part) const;
  const DeviceShares& shares() const { return shares_; }
  // A permit that an acquire by that holder would nest in; nothing for none.
  std::optional<PermitView> FindHeld(const Asker& asker, const AcquireRequest& what) const;
  // A gang's part waits from now on; then Serve(). Errors: LIMIT.
  absl::Status Push(Waiter waiter);
  // Requires: a fitting gang that waits here. Whether it may pass whom it would pass; if not, that one is held for.
  bool MayGo(const PoolStep& step, uint64_t number);
  // Requires: MayGo(). Takes it out of the queue, and counts whom it passes.
  void TakeTurn(const PoolStep& step, uint64_t number);
  // Grants one permit of a gang, which is `waiter` with what that permit is asked with, on that device.
  AcquireResult GrantPart(const PoolStep& step, const Waiter& waiter, std::optional<uint32_t> device);
  void Hold(uint64_t number) { queue_.Hold(number); }
  bool KeptFrom(uint64_t number, Gangs* gangs) const;
  // Its place in the queue, 1 is next.
  uint64_t PositionOf(uint64_t number) const;
  void NoteRefused() {
    ++refused_total_;
    NoteFigures();
  }
  // NO_PERMIT and WAIT_TIMED_OUT, as the pool is now.
  absl::Status NoPermit(const Asker& asker, const AcquireRequest& what) const;
  absl::Status TimedOut(const AcquireRequest& what, uint64_t position) const;

  // ---------------------------------------------------------------------------------------------------------

  // Null for one that does not wait here.
  const Waiter* FindWaiter(uint64_t number) const { return queue_.Find(number); }
  // Begins to fetch what Leave() will touch of that one.
  void Prefetch(const Waiter* waiter, uint64_t number) const { queue_.Prefetch(waiter, number); }
  // Requires: it waits here.
  void SetDeadline(uint64_t number, absl::Time deadline) { queue_.SetDeadline(number, deadline); }
  // Takes waiters away without a word; then Serve(), once all that leave together have left. Ignores those of
  // other pools.
  void Leave(uint64_t number) { queue_.Remove(number); }
  // A call waits for it again (Waiter::absent): it nests, or goes on waiting; then Serve(). Requires: it waits here.
  void Attach(const PoolStep& step, uint64_t number);
  // Grants what can be granted.
  void Serve(const PoolStep& step);

  // Lets those whose deadline has passed time out, and revokes permits held past the limit; adds them to `revoked`, and
  // to `overdue` those that have come past the warning.
  void Expire(const PoolStep& step, std::vector<PermitView>* revoked, std::vector<PermitView>* overdue);
  absl::Time next_deadline() const;

  // Takes a permit from its holder, who is not asked; what is acquired in it is known no more.
  // Returns: what it was; nothing if it is not out here.
  std::optional<PermitView> Revoke(const PoolStep& step, PermitId permit, LeaseEnd how);

  // Requires: nothing that could not be configured. Waiters that can never fit any more are refused with OVER_CAP.
  void Change(const PoolStep& step, const PoolChange& change);
  const PoolConfig& config() const { return config_; }

  PoolView View() const;
  uint64_t UnitsOf(SessionId session) const;
  const absl::flat_hash_map<Tenant, uint64_t>& out_by_tenant() const { return out_by_tenant_; }
  uint64_t WaitersOf(SessionId session) const { return queue_.CountOf(session); }
  using Wanted = absl::FunctionRef<bool(SessionId)>;
  // Adds the permits granted after `after` that are `wanted`, in the order of their grants, at most `most`.
  void AddPermits(PermitId after, uint64_t most, Wanted wanted, std::vector<PermitView>* views) const;
  // Adds all that are out.
  void AddLeases(std::vector<LeaseRecord>* leases) const;
  // Adds the waiters that are `wanted`, in the order of the queue as of the last step, until there are `most`.
  void AddWaiters(uint64_t most, Wanted wanted, std::vector<WaiterView>* views) const;
  // Why the waiter of that number waits, for the eyes of `viewer` or of an operator; nothing if there is none,
  // or it is not for these eyes.
  std::optional<WaitView> Explain(uint64_t number, const Tenant* viewer, Gangs* gangs) const;
  // OK, or what is broken.
  absl::Status CheckBooks(Gangs* gangs = nullptr) const;

  // ---- permit_pool_rows.cc: what outlives the broker -------------------------------------------------------

  void ListRows(std::vector<RowKey>* keys) const;
  // Returns whether there is such a row.
  bool WriteRow(const RowKey& key, ArchiveWriter& archive) const;
  // In the order of kinds and keys. Fails the archive for what cannot be.
  void ReadRow(const RowKey& key, ArchiveReader& archive);
  // Of a row of kPool: the pool as it was.
  static PoolConfig ReadConfig(ArchiveReader archive);
  // After the last row: what was kept is kept again, or back.
  void FinishRestoring();
  // Whether it has nothing that outlives the broker but figures.
  bool IsIdle() const { return permits_.empty() && queue_.empty(); }

 private:
  struct Permit {
    PermitView view;
    Tenant tenant;
    std::set<AcquisitionId> acquisitions;
    // The one that it was granted with; the others nest, and are rows of their own.
    AcquisitionId first;
    // It has been told that it is overdue.
    bool warned = false;
    // Since when it is in use, as far as the daemon knows.
    absl::Time held_since;
    // Where its process says whether it uses it; null if it does not keep it.
    PermitWord* word = nullptr;
    ChannelId keeper;
    AcquisitionId kept;
    // How often it had been taken again at the last look.
    uint32_t uses = 0;
    bool was_kept = false;

    // But for what nests in it, and the word.
    template <typename Archive>
    friend void Fields(Archive& archive, Permit& value) {
      PermitView& view = value.view;
      archive(view.units, view.session, view.holder_key, view.label, view.adoptable, view.exclusive, view.priority,
              view.device, view.declared, view.gang, view.granted_at, view.waited, view.process);
      archive(value.tenant, value.first, value.warned, value.held_since, value.was_kept);
      if (value.was_kept) archive(value.keeper, value.kept, value.uses);
    }
  };
  using Holder = std::pair<SessionId, std::string>;
  using HeldSince = std::pair<absl::Time, PermitId>;

  const Permit* FindNest(const Asker& asker, const AcquireRequest& what) const;
  // The same for any of the session's permits that others may nest in; one that has what is asked before others.
  const Permit* FindAdoptable(SessionId session, const AcquireRequest& what) const;
  absl::StatusOr<AcquireResult> Nest(Permit& permit, const AcquireRequest& what);
  absl::Status WhyNotWait(absl::Time now, const Asker& asker, const AcquireRequest& what) const;
  WaitQueue::Verdict Judge(const Waiter& waiter, Gangs* gangs) const;
  // Whether the pool has the units now; `client_cap` as in AcquireRequest.
  bool MayHaveUnits(uint64_t units, bool exclusive, uint64_t client_cap) const;
  Placement::Ask AskOf(const AcquireRequest& what) const;
  // Errors: NESTED_OVER_HELD, naming what the permit does not have.
  absl::Status CheckNest(const Permit& permit, const AcquireRequest& what) const;
  WaitCause CauseOf(const Waiter& waiter, Gangs* gangs) const;
  PermitView ViewPermit(const Permit& permit) const;
  static LeaseRecord LeaseOf(const Permit& permit);
  WaiterView ViewWaiter(const Waiter& waiter, uint64_t position) const;
  bool TenantMayHave(const Tenant& tenant, uint64_t units) const;
  // The same over all pools.
  bool QuotaAllows(const Tenant& tenant, uint64_t units) const {
    return tenants_ == nullptr || tenants_->MayHave(tenant, units);
  }
  void Grant(const PoolStep& step, const Waiter& waiter);
  // Makes the permit that `waiter` asks for, without an acquisition.
  Permit& Admit(const PoolStep& step, const Waiter& waiter, std::optional<uint32_t> device);
  // Puts it into every index and sum.
  Permit& Insert(Permit permit);
  // Grants what fits, in its order.
  void GrantFitting(const PoolStep& step);
  // Tells a gang that the pool is held for it.
  void NoteHeld(const PoolStep& step);
  absl::Status FullQueue(uint64_t waiting) const;
  void NestWaiters(const PoolStep& step, Permit& permit);
  AcquireResult AddAcquisition(Permit& permit, bool nested);
  void EndAcquisition(Permit& permit, AcquisitionId acquisition);
  void Return(absl::Time now, std::map<PermitId, Permit>::iterator at, LeaseEnd how);
  void Tell(const PoolStep& step, const RequestId& request, absl::StatusOr<AcquireResult> result);

  // ---- permit_pool_kept.cc --------------------------------------------------------------------------------

  // Whether what is kept is wanted by somebody, or by nobody any more: here, or by its own tenant in another pool.
  bool NeedsUnits() const { return NeedsUnitsHere() || (tenants_ != nullptr && tenants_->AnyPresses()); }
  bool NeedsUnitsHere() const { return !queue_.empty() || out_ > config_.cap; }
  void Lend(Permit& permit, const Waiter& waiter, AcquisitionId acquisition);
  void EndKeeping(Permit& permit, bool taken_back = false);
  // Returns whether it was kept and not in use: then `at` may be gone, and somebody else may be served.
  bool TakeBack(absl::Time now, std::map<PermitId, Permit>::iterator at, LeaseEnd how);
  void SetWanted(absl::Time now, bool wanted);
  void TakeIdleBack(const PoolStep& step);
  // A use that began after the last look is taken to begin now. Returns whether it did. Requires: it is kept.
  bool RenewHold(absl::Time now, Permit& permit);
  // Whether it is kept, and its process has put it back since it was held: then it is back, or held from now on.
  bool IsNotHeld(absl::Time now, PermitId id);
  void EndHold(const Permit& permit);
  void ExpireHolds(const PoolStep& step, std::vector<PermitView>* revoked, std::vector<PermitView>* overdue);
  absl::Time next_hold() const;
  absl::Time next_look() const;
  absl::Status CheckKept() const;

  // OK, or why it can never be granted.
  absl::Status CheckCaps(const Tenant& tenant, const AcquireRequest& what) const;
  absl::Status CheckUnits(const Tenant& tenant, uint64_t units) const;
  std::string NameHolders(const Asker& asker) const;

  void Note(const Permit& permit) { journal_->Touch(RowKind::kPermit, permit.view.id.value(), number_); }
  void NoteNested(AcquisitionId acquisition) {
    journal_->Touch(RowKind::kAcquisition, acquisition.value(), number_);
  }
  void NoteFigures() { journal_->Touch(RowKind::kPoolFigures, number_); }
  void ReadPermit(PermitId id, ArchiveReader& archive);
  void ApplyConfig();

  const uint64_t number_;
  const uint64_t max_waiters_;
  const uint64_t epoch_;
  PermitIds* const ids_;
  Placement* const placement_;
  Journal* const journal_;
  PermitWords* const words_;
  TenantUse* const tenants_;
  LeaseLog* const leases_;
  // As the daemon's configuration has it, and as it is now.
  PoolConfig configured_;
  PoolConfig config_;
  DeviceShares shares_;
  uint64_t out_ = 0;
  // Of each tenant that has any.
  absl::flat_hash_map<Tenant, uint64_t> out_by_tenant_;
  uint64_t peak_ = 0;
  uint64_t granted_total_ = 0;
  uint64_t refused_total_ = 0;
  uint64_t revoked_total_ = 0;
  absl::Duration mean_hold_;
  // Permits by the time since which they are held: those not past the warning, and the others.
  std::set<HeldSince> fresh_;
  std::set<HeldSince> overdue_;
  // Permits that are kept, by who keeps them; whether these know that somebody waits; when their words were looked at.
  std::map<ChannelId, PermitId> kept_;
  bool wanted_ = false;
  absl::Time looked_at_;
  // Exclusive permits that are out: one, or all that a gang has here.
  uint64_t exclusive_out_ = 0;
  std::map<PermitId, Permit> permits_;
  std::map<Holder, PermitId> by_holder_;
  std::set<std::pair<SessionId, PermitId>> adoptable_;
  absl::flat_hash_map<AcquisitionId, PermitId> acquisitions_;
  WaitQueue queue_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMIT_POOL_H_
