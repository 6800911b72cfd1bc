// WaitQueue: the waiters for units of one pool, and their order (docs/concepts/fairness.md):
//
//   1. held waiters: the first waiter once it was passed `passes_before_hold` times; no waiter passes it any more;
//   2. the highest priority, together with every waiter that has waited for `ageing`, whatever its priority;
//   3. among these the tenant with the least use for its weight (VirtualClock), where a tenant is an account; a tenant
//      that is late comes after the others;
//   4. within a tenant the earliest waiter.
//
// Work-conserving: a waiter that fits is taken past waiters that do not, and the first of these counts that as a pass.
//
// Waiters and the tenants' positions are ledger records that outlive the broker. After a restart, a waiter without a
// call is detached: it retains its position, and other waiters are served meanwhile.
//
// Cost: a search judges waiters in order until it finds a suitable one. It judges only waiters with a gauge (stall.h)
// that has reached its threshold since their last verdict. Blocked waiters cost it nothing, however different they are,
// held waiters included, nor do their tenants. A gauge that many of them share is read once, and only if it may have
// changed.
// Thread-compatible.

#ifndef DAEMON_CORE_PERMITS_WAIT_QUEUE_H_
#define DAEMON_CORE_PERMITS_WAIT_QUEUE_H_

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/permits/stall_board.h"
#include "daemon/core/permits/virtual_clock.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/shared_count.h"
#include "daemon/core/types/stall.h"

namespace berth::core {

// Requester of permits.
struct Requester {
  SessionId session;
  Tenant tenant;
  ProcessInfo process;
  // The call came on admin.sock. Not persisted: a later broker treats the waiter as the user's.
  bool of_operator = false;

  Claimant claimant() const { return {.user = UserOf(tenant), .of_operator = of_operator}; }
};

template <typename Archive>
void Fields(Archive& archive, Requester& value) {
  archive(value.session, value.tenant, value.process);
}

struct Waiter {
  // Rises with arrival, so it is the order of arrival, too. The queue identifies the waiter by it.
  uint64_t number = 0;
  RequestId request;
  Requester requester;
  AcquireRequest what;
  absl::Time since;
  // Units charged to the tenant for this waiter.
  uint64_t charge = 1;
  // For a gang, which waits in several pools under one number: text form of its whole request, so that equal requests
  // get the same verdict. Empty for a request for one permit.
  std::string gang;
  // Number of later waiters granted while this waiter was the first of all.
  uint64_t passes = 0;
  // No call waits for it: it is older than the broker, or its process is stopped. It is granted nothing.
  bool detached = false;
};

template <typename Archive>
void Fields(Archive& archive, Waiter& value) {
  archive(value.request, value.requester, value.what, value.since, value.charge, value.gang, value.passes);
}

class WaitQueue {
 public:
  struct Options {
    uint64_t passes_before_hold = 16;
    absl::Duration ageing = absl::Minutes(10);
    // By uid; 1 if there is no entry.
    std::map<uint32_t, uint32_t> weights;
  };
  // Verdict on a waiter. Equal requests of one tenant get the same verdict.
  enum class Verdict {
    // The waiter may be granted.
    kFits,
    // The waiter waits for units.
    kWaits,
    // The waiter waits for something under its own tenant's control, so it is skipped. Other waiters need not wait for
    // it, and its tenant earns nothing by waiting.
    kSkipped,
  };
  using Judge = absl::FunctionRef<Verdict(const Waiter&)>;
  using Condition = absl::FunctionRef<bool(const Waiter&)>;
  // Decides on waiters.
  class Arbiter {
   public:
    virtual ~Arbiter() = default;
    virtual Verdict Judge(const Waiter& waiter) = 0;
    // Returns why the verdict is worse than `goal`; valid for all waiters with the same verdict.
    virtual Stalls WhyNot(const Waiter& waiter, Verdict goal) = 0;
    // Returns the gauge's value for that tenant.
    virtual uint64_t Read(const Account& tenant, const Gauge& gauge) = 0;
    // As StallBoard::Version.
    virtual uint64_t VersionOf(Gauge::Kind kind) = 0;
  };

  // `pool` is the pool's number in the ledger records. `journal` outlives the queue. `places` counts the waiters; the
  // owner of the queue checks it before, or directly after, it pushes a waiter.
  explicit WaitQueue(Options options, Journal* journal, uint64_t pool = 0,
                     SharedCount places = SharedCount("waiters", SharedCount::kUnlimited, SharedCount::kUnlimited))
      : journal_(journal), pool_(pool), options_(std::move(options)), places_(std::move(places)) {}

  // Applies to present waiters, too.
  void SetOptions(Options options);
  const Options& options() const { return options_; }

  // Adds a waiter. Its address is stable until it leaves. A waiter that was here before returns to its place. Requires:
  // no waiter has its number.
  const Waiter& Push(Waiter waiter);
  // Returns whether `number` waited here.
  bool Remove(uint64_t number);
  // Returns null if the waiter is not in the queue.
  const Waiter* Find(uint64_t number) const;
  bool Contains(uint64_t number) const { return entries_.contains(number); }
  // Prefetches the memory that Remove() will access for this waiter.
  void Prefetch(const Waiter* waiter, uint64_t number) const {
    __builtin_prefetch(waiter);
    entries_.prefetch(number);
  }
  // Sets the deadline that a retry of the request brings. Requires: the waiter is in the queue.
  void SetDeadline(uint64_t number, absl::Time deadline);
  // Marks the waiter as attached, because a call waits for it again. Requires: the waiter is in the queue.
  void Attach(uint64_t number);
  // Marks the waiter as detached. Requires: the waiter is in the queue.
  void Detach(uint64_t number);

  // The next waiter to grant.
  struct Turn {
    uint64_t number = 0;
    // The waiter that it passes; 0 for none.
    uint64_t passed = 0;
  };
  // Returns the next waiter that may be granted; empty if there is none. Holds the queue for a waiter passed too often.
  std::optional<Turn> Next(absl::Time now, Arbiter& arbiter);
  // Like Next(), as if only `number`, which fits, could be granted. Requires: the waiter is in the queue.
  std::optional<Turn> NextIf(absl::Time now, Arbiter& arbiter, uint64_t number);
  // Returns whether a fitting waiter of that tenant would be granted at once and pass no waiter. Condition: no waiter
  // races, and the tenant has no waiter here. Such a waiter need not be pushed.
  bool LetsPass(absl::Time now, const Account& tenant, Arbiter& arbiter);
  // Removes the waiter and counts the pass. The caller then charges its tenant.
  Waiter Take(const Turn& turn);
  // Next() and Take().
  std::optional<Waiter> TakeNext(absl::Time now, Arbiter& arbiter);
  // Forbids to pass `number`, which is in the queue.
  void Hold(uint64_t number);
  bool IsHeld(uint64_t number) const { return held_.contains(number); }
  // Discards all stalls: every waiter is judged again.
  void Reopen();
  // Returns the number of verdicts taken for searches.
  uint64_t judged() const { return judged_; }
  // Returns the number of gauges that searches have read.
  uint64_t gauges_read() const {
    return boards_[kGoing].gauges_read() + boards_[kRacing].gauges_read() + held_board_.gauges_read();
  }
  // Returns the waiter that Next() has begun to hold for since the last call; 0 for none.
  uint64_t TakeNewlyHeld() { return std::exchange(newly_held_, 0); }
  // Returns whether units are reserved for a waiter that `number` may not pass. Judges all held waiters before it.
  bool ReservedFrom(uint64_t number, Judge judge) const;
  // As above, but judges only held waiters that the last search did not find blocked, or whose gauges have risen.
  // Requires: the arbiter would judge as at the last search, apart from its gauges.
  bool ReservedFrom(uint64_t number, Judge judge, Arbiter& arbiter) const;
  // Charges `tenant` for `units` that it was granted, through the queue or past it.
  ClockCharge Charge(const Account& tenant, uint64_t units);
  // Returns the charge that an earlier broker made for a permit, by the present weights.
  ClockCharge RestoredCharge(const Account& tenant, uint64_t units) const {
    return {.cost = CostOf(tenant, units), .number = ClockCharge::kRestored};
  }
  // Takes a charge back: the tenant's clock is where it would be without the charge. The common clock stays.
  void TakeBack(const Account& tenant, const ClockCharge& charge);
  // Records that the tenant left a grant untaken, and that a grant was taken up. After `passes_before_hold` untaken
  // grants in a row, the tenants that left them are late until a grant is taken up. Otherwise a tenant that takes
  // nothing up, and so is never charged, would always be next. Not persisted.
  void RecordUntaken(const Account& tenant);
  void RecordTaken();

  // Removes and returns all waiters that satisfy `condition`, in order of arrival.
  std::vector<Waiter> TakeIf(Condition condition);
  // Removes and returns the session's waiters that nest in a permit of that holder key, except gangs and detached
  // waiters. In an adoptable permit all waiters nest that are not independent. In order of arrival.
  std::vector<Waiter> TakeNesting(SessionId session, const std::string& holder_key, bool adoptable);
  // Returns the session's gangs that such a permit may concern, in order of arrival.
  std::vector<uint64_t> GangsNesting(SessionId session, const std::string& holder_key, bool adoptable) const;

  struct Expired {
    Waiter waiter;
    // Position in the queue, 1 for the next; kLastPlace for that position and all behind it.
    uint64_t position = 0;
  };
  static constexpr uint64_t kLastPlace = 1'000;
  // Removes and returns all waiters whose deadline is not after `now`, earliest deadline first.
  std::vector<Expired> TakeExpired(absl::Time now);
  // Returns the earliest deadline; InfiniteFuture if there is none.
  absl::Time next_deadline() const;

  const SharedCount& places() const { return places_; }
  uint64_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  uint64_t detached() const { return detached_; }
  uint64_t CountOf(SessionId session) const {
    const auto found = by_session_.find(session);
    return found == by_session_.end() ? 0 : found->second;
  }
  // Returns the number of waiters of the sessions that are `wanted`.
  uint64_t CountIf(absl::FunctionRef<bool(SessionId)> wanted) const;
  // Visits the waiters in the order in which they would be taken if all fitted, as of the last step, until `visit`
  // returns false.
  void Walk(absl::FunctionRef<bool(const Waiter&)> visit) const;
  bool AnyoneHeldFor() const { return !held_.empty(); }
  // Returns whether a waiter remains that `judge` would grant: an error of the caller that serves the queue.
  bool AnyoneIdle(Judge judge) const;

  // ---- wait_queue_records.cc: persistence across broker restarts --------------------------------------------

  // The common clock now and at the last search; part of the pool's metrics record.
  struct Clocks {
    double now = 0;
    double searched = 0;
  };
  Clocks clocks() const { return {.now = clock_.now(), .searched = searched_clock_}; }
  void RestoreClocks(const Clocks& clocks) {
    clock_.RestoreNow(clocks.now);
    searched_clock_ = clocks.searched;
  }
  // Lists the records of kinds kWaiter and kPoolTenant.
  void ListRecords(std::vector<RecordKey>* keys) const;
  // Returns whether the record exists.
  bool WriteRecord(const RecordKey& key, ArchiveWriter& archive) const;
  // Restores one record; restored waiters are detached. Requires: records come in the order of kinds and keys. Fails
  // the archive for impossible content.
  void ReadRecord(const RecordKey& key, ArchiveReader& archive);
  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants() const;
  // Returns OK if no waiter's verdict is better than its stalls imply.
  absl::Status CheckStalls(Arbiter& arbiter) const;

 private:
  // A waiter's number.
  using Ticket = uint64_t;
  // Properties that waiters of one tenant share if they get the same verdict and are served in order of arrival.
  struct LineKey {
    int32_t priority = 0;
    uint64_t units = 0;
    uint64_t client_cap = 0;
    bool exclusive = false;
    bool detached = false;
    DeviceConstraint device;
    std::string gang;
    friend auto operator<=>(const LineKey&, const LineKey&) = default;
  };
  struct Entry;
  // Waiters in order of arrival. Contiguous in memory, so that removing a waiter does not visit the others.
  using Row = absl::btree_map<Ticket, Entry*>;
  // Goals of a search: a waiter that fits (kGoing), and a waiter that others must wait for (kRacing).
  enum Goal : size_t { kGoing, kRacing, kGoals };
  static constexpr std::array<Verdict, kGoals> kWanted = {Verdict::kFits, Verdict::kWaits};
  using Class = StallBoard::Class;
  struct WaitLine {
    Row row;
    // Position on the boards: the first waiter, its class, and the stalls that block the line from each goal.
    Ticket first = 0;
    Class of;
    std::array<Stalls, kGoals> stalls;
    // The last search that judged the line, and its verdict.
    uint64_t search = 0;
    Verdict verdict = Verdict::kSkipped;
  };
  struct TenantLines {
    TenantLines(uint64_t number, OwnClock clock, bool idle) : number(number), clock(std::move(clock)), idle(idle) {}

    // Number on the boards; rises with each tenant that starts to wait.
    uint64_t number = 0;
    // The tenant's own clock; while the tenant is idle, it counts as at least the common clock of the last search.
    OwnClock clock;
    // None of its waiters raced in the last search.
    bool idle = false;
    std::map<LineKey, WaitLine> lines;
    // All waiters by priority, in order of arrival.
    std::map<int32_t, Row> rows;
  };
  using TenantMap = std::map<Account, TenantLines>;
  using Deadlines = std::set<std::pair<absl::Time, Ticket>>;
  // Changes Waiter::detached, and with it the verdict and the line.
  void SetDetached(uint64_t number, bool detached);
  // Links of an entry in a ring of entries, in order of arrival.
  struct Link {
    Entry* before = nullptr;
    Entry* after = nullptr;
  };
  // A waiter and its positions, so that removal needs no search among thousands. The positions come first in memory:
  // removal needs them together.
  struct Entry {
    TenantMap::iterator tenant;
    std::map<LineKey, WaitLine>::iterator line;
    // The end iterator for a waiter without a deadline.
    Deadlines::iterator deadline;
    // Rings of the waiters with the same holder key, and of the session's waiters that are not independent.
    Link by_holder;
    Link nesting;
    Waiter waiter;
  };
  using Entries = absl::node_hash_map<Ticket, Entry>;
  using Holder = std::pair<SessionId, std::string>;
  // The first entry of each ring.
  template <typename Key>
  using Rings = absl::flat_hash_map<Key, Entry*>;
  // The rank of a waiter: the lesser goes first.
  struct Rank {
    // Difference between the highest racing priority and the waiter's priority; 0 for an aged waiter.
    int32_t below_top = 0;
    bool late = false;
    double clock = 0;
    Ticket ticket = 0;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };

  static LineKey LineKeyOf(const Waiter& waiter);
  TenantMap::iterator EnterTenant(const Account& tenant, OwnClock clock, bool idle);
  double ClockOf(const TenantLines& tenant) const {
    return tenant.idle ? std::max(tenant.clock.value(), searched_clock_) : tenant.clock.value();
  }
  // Moves an idle tenant's own clock to ClockOf().
  void CatchUp(TenantLines& tenant);
  bool IsLate(const Account& tenant) const {
    return untaken_ >= options_.passes_before_hold && left_untaken_.contains(tenant);
  }
  double CostOf(const Account& tenant, uint64_t units) const;
  Rank RankOf(const Waiter& waiter, double clock, int32_t top_priority) const;
  Waiter& At(Ticket ticket) { return entries_.at(ticket).waiter; }
  const Waiter& At(Ticket ticket) const { return entries_.at(ticket).waiter; }
  Waiter Take(Ticket ticket);
  // Removes the waiter from all indexes, except the entry itself.
  void Leave(Entry& entry);
  void EnterLine(Entry& entry);
  // May remove the line; the tenant stays.
  void LeaveLine(Entry& entry);
  // Adds a line to the boards according to its first waiter (Seat), or removes it (Unseat).
  void Seat(TenantLines& tenant, WaitLine& line);
  void Unseat(WaitLine& line);
  // Discards the line's stalls.
  void Reopen(TenantLines& tenant, WaitLine& line);
  void SeatAged();
  template <typename Key>
  static void EnterRing(Rings<Key>& rings, Key key, Entry& entry, Link Entry::*link);
  template <typename Key>
  static void LeaveRing(Rings<Key>& rings, const Key& key, Entry& entry, Link Entry::*link);
  template <typename Key>
  static void ForEachIn(const Rings<Key>& rings, const Key& key, Link Entry::*link,
                        absl::FunctionRef<void(const Waiter&)> visit);
  Deadlines::iterator MarkDeadline(absl::Time deadline, Ticket ticket) {
    return deadline == absl::InfiniteFuture() ? deadlines_.end() : deadlines_.emplace(deadline, ticket).first;
  }
  void ForgetDeadline(Deadlines::iterator at) {
    if (at != deadlines_.end()) deadlines_.erase(at);
  }
  std::optional<Turn> Search(absl::Time now, Arbiter& arbiter, std::optional<Ticket> only);
  // Adds a held waiter to its board with those stalls (EnterHeld), or removes it (LeaveHeld).
  void EnterHeld(Ticket ticket, const Stalls& stalls);
  void LeaveHeld(Ticket ticket);
  // Discards the stalls of a held waiter.
  void ReopenHeld(Ticket ticket);
  Class HeldClassOf(Ticket ticket) const { return {.tenant = entries_.at(ticket).tenant->second.number}; }
  // Returns the least held ticket after `after` that nothing blocks; 0 if there is none. Requires: the board was
  // refreshed.
  Ticket NextHeld(Ticket after) const;
  void RefreshHeld(Arbiter& arbiter) const;
  // First part of a search: seats aged waiters and reads the gauges.
  void ReadGauges(Arbiter& arbiter);
  // Returns the arbiter's verdict, computed once a search.
  Verdict JudgeLine(WaitLine& line, Arbiter& arbiter);
  // Returns the first waiter of that class that reaches the goal; null if none does. Requires: the board was refreshed.
  const Waiter* FindFirst(Goal goal, Class of, Arbiter& arbiter);
  // Returns the first waiter of these classes that reaches the goal; null if none does.
  const Waiter* FindFirstOf(Goal goal, const std::vector<Class>& classes, int32_t top_priority, Arbiter& arbiter);
  // Finds the tenants that race among these classes, which are ascending, and advances the clocks of the others.
  // Returns the highest racing priority.
  int32_t FindRacing(const std::vector<Class>& classes, Arbiter& arbiter);
  void SetIdle(uint64_t number, bool idle);
  uint64_t Read(Arbiter& arbiter, uint64_t tenant, const Gauge& gauge) const;
  void Advance(double start);
  void Mark(Ticket ticket) { journal_->Touch(RecordKind::kWaiter, ticket, pool_); }
  void RecordTenant(const Account& tenant);
  void ForgetTenant(const Account& tenant);

  Journal* const journal_;
  const uint64_t pool_;
  Options options_;
  // Time of the last step.
  absl::Time now_ = absl::InfinitePast();
  VirtualClock clock_;
  // The common clock at the last search.
  double searched_clock_ = 0;
  // Grants since the last one that was taken up, and the tenants that left them untaken.
  uint64_t untaken_ = 0;
  absl::flat_hash_set<Account> left_untaken_;
  TenantMap tenants_;
  uint64_t last_tenant_ = 0;
  absl::flat_hash_map<uint64_t, TenantMap::iterator> by_number_;
  // Numbers of the tenants that are not idle.
  std::set<uint64_t> racing_;
  std::array<StallBoard, kGoals> boards_;
  // Accounts with a record, by its part.
  absl::flat_hash_map<uint64_t, Account> tenant_rows_;
  Entries entries_;
  SharedCount places_;
  uint64_t detached_ = 0;
  // Waiters that no other waiter may pass, with the stalls that block them from kRacing, as on `held_board_`.
  std::map<Ticket, Stalls> held_;
  // Queries refresh it, too: the readings are a cache.
  mutable StallBoard held_board_;
  Ticket newly_held_ = 0;
  Deadlines deadlines_;
  Rings<Holder> by_holder_;
  Rings<SessionId> nesting_;
  absl::flat_hash_map<SessionId, uint64_t> by_session_;
  // For each line that has not aged: the arrival of its first waiter.
  std::set<std::pair<absl::Time, Ticket>> young_;
  uint64_t searches_ = 0;
  uint64_t judged_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_WAIT_QUEUE_H_
