// WaitQueue: who waits for units of one pool, and in what order they may have them (docs/fairness.md):
//
//   1. who is held for: the first that others passed `passes_before_hold` times; nobody passes it any more;
//   2. the highest priority, and with it everybody who has waited for `ageing`, whatever their priority;
//   3. among those the tenant that has had least for its weight (VirtualClock);
//   4. of one tenant who came first.
//
// Work-conserving: who fits is taken past those that don't, and the first of these counts that as a pass.
//
// Who waits, and where each tenant stands, are rows that outlive the broker. Whom nobody has come back for yet after
// that is absent: it keeps its place, and the others go on without it.
//
// Cost: of the number of different lanes (tenant, priority, what is asked), not of those who wait.
// Thread-compatible.

#ifndef DAEMON_CORE_WAIT_QUEUE_H_
#define DAEMON_CORE_WAIT_QUEUE_H_

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/archive.h"
#include "common/row.h"
#include "daemon/core/caller.h"
#include "daemon/core/journal.h"
#include "daemon/core/permit_types.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/virtual_clock.h"

namespace berth::core {

// Who asks for permits.
struct Asker {
  SessionId session;
  Tenant tenant;
  ProcessInfo process;
};

template <typename Archive>
void Fields(Archive& archive, Asker& value) {
  archive(value.session, value.tenant, value.process);
}

struct Waiter {
  // Rises with arrival, so it is also the order of those who came. The queue knows it by this alone.
  uint64_t number = 0;
  RequestId request;
  Asker asker;
  AcquireRequest what;
  absl::Time since;
  // Units that its tenant is charged for it.
  uint64_t charge = 1;
  // Of a gang, which waits in several pools with one number: all that it asks, so that the same is judged alike. Empty
  // for one that asks for one permit.
  std::string gang;
  // How often somebody behind it was granted first while it was the first of all.
  uint64_t passes = 0;
  // It waited before the broker was started, and no call waits for it since: nothing is granted to it.
  bool absent = false;
};

template <typename Archive>
void Fields(Archive& archive, Waiter& value) {
  archive(value.request, value.asker, value.what, value.since, value.charge, value.gang, value.passes);
}

class WaitQueue {
 public:
  struct Options {
    uint64_t passes_before_hold = 16;
    absl::Duration ageing = absl::Minutes(10);
    // By uid; 1 where there is none.
    std::map<uint32_t, uint32_t> weights;
  };
  // What may be done with a waiter now. All that ask the same of the same tenant are judged alike.
  enum class Verdict {
    // It may be granted.
    kFits,
    // It waits for units.
    kWaits,
    // It waits for something of its own tenant's doing: others need not wait for it, and its tenant earns
    // nothing by it.
    kAside,
  };
  using Judge = absl::FunctionRef<Verdict(const Waiter&)>;
  using Condition = absl::FunctionRef<bool(const Waiter&)>;

  // Of the pool of that number, whose rows these are. `journal` outlives the queue.
  WaitQueue(Options options, Journal* journal, uint64_t pool = 0)
      : journal_(journal), pool_(pool), options_(std::move(options)) {}

  // For those that wait, too.
  void SetOptions(Options options) { options_ = std::move(options); }
  const Options& options() const { return options_; }

  // Requires: a number above all earlier ones. It stays where it is until it leaves.
  const Waiter& Push(Waiter waiter);
  // Returns whether `number` waited here.
  bool Remove(uint64_t number);
  // Returns null for one that does not wait here.
  const Waiter* Find(uint64_t number) const;
  bool Contains(uint64_t number) const { return entries_.contains(number); }
  // Begins to fetch what Remove() will touch of that one.
  void Prefetch(const Waiter* waiter, uint64_t number) const {
    __builtin_prefetch(waiter);
    entries_.prefetch(number);
  }
  // A retry of its request has another deadline. Requires: it waits here.
  void SetDeadline(uint64_t number, absl::Time deadline);
  // Somebody has come back for it: it is absent no more. Requires: it waits here.
  void Attach(uint64_t number);

  // Whose turn it is.
  struct Turn {
    uint64_t number = 0;
    // Whom it passes; 0 for nobody.
    uint64_t passed = 0;
  };
  // The next that may be granted; nothing if nobody may. Who has been passed too often is held for from now on.
  std::optional<Turn> Next(absl::Time now, Judge judge);
  // The same if `number`, which fits, were alone in being able to go. Requires: it waits here.
  std::optional<Turn> NextIf(absl::Time now, Judge judge, uint64_t number);
  // Takes it out and counts whom it passes. Its tenant is to be charged for it.
  Waiter Take(const Turn& turn);
  // Next() and Take().
  std::optional<Waiter> TakeNext(absl::Time now, Judge judge);
  // Nobody passes `number` any more, which waits here.
  void Hold(uint64_t number);
  // Whom Next() has begun to hold for since this was last asked; 0 for nobody.
  uint64_t TakeNewlyHeld() { return std::exchange(newly_held_, 0); }
  // Whether it is kept for somebody whom `number`, which waits here, may not pass.
  bool KeptFrom(uint64_t number, Judge judge) const;
  // `tenant` was given `units`, out of the queue or past it.
  void Charge(const Tenant& tenant, uint64_t units);

  // Takes all those for which `condition` holds, as they came; of one session, or of everybody.
  std::vector<Waiter> TakeOf(SessionId session, Condition condition);
  std::vector<Waiter> TakeIf(Condition condition);
  // The session's waiters that are gangs, as they came.
  std::vector<uint64_t> GangsOf(SessionId session) const;

  struct Expired {
    Waiter waiter;
    // Its place in the queue, 1 is next; kLastPlace for that and all behind it.
    uint64_t position = 0;
  };
  static constexpr uint64_t kLastPlace = 1'000;
  // Takes all whose deadline is not after `now`, the earliest first.
  std::vector<Expired> TakeExpired(absl::Time now);
  // InfiniteFuture for none.
  absl::Time next_deadline() const;

  uint64_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  uint64_t CountOf(SessionId session) const;
  // Visits them in the order in which they would be taken if everybody fitted, as of the last step, until
  // `visit` returns false.
  void Walk(absl::FunctionRef<bool(const Waiter&)> visit) const;
  bool AnyoneHeldFor() const { return !held_.empty(); }
  // Whether somebody waits whom `judge` would have granted: a mistake of whoever serves.
  bool AnyoneIdle(Judge judge) const;

  // ---- wait_queue_rows.cc: what outlives the broker --------------------------------------------------------

  // The common clock, which is part of the pool's row of figures.
  double clock() const { return clock_.now(); }
  void RestoreClock(double now) { clock_.RestoreNow(now); }
  // Of kWaiter and kPoolTenant.
  void ListRows(std::vector<RowKey>* keys) const;
  // Returns whether there is such a row.
  bool WriteRow(const RowKey& key, ArchiveWriter& archive) const;
  // In the order of kinds and keys. Who waits is absent. Fails the archive for what cannot be.
  void ReadRow(const RowKey& key, ArchiveReader& archive);
  // OK, or what is broken.
  absl::Status CheckBooks() const;

 private:
  // A waiter's number.
  using Ticket = uint64_t;
  // What waiters of one tenant must have in common to be judged alike and served as they come.
  struct LaneKey {
    int32_t priority = 0;
    uint64_t units = 0;
    uint64_t client_cap = 0;
    bool exclusive = false;
    bool absent = false;
    DeviceWish device;
    std::string gang;
    friend auto operator<=>(const LaneKey&, const LaneKey&) = default;
  };
  struct Entry;
  // As they came. Beside each other in memory, so that who leaves does not visit the others.
  using Lane = absl::btree_map<Ticket, Entry*>;
  struct TenantLanes {
    // Where its own clock stands.
    double clock = 0;
    std::map<LaneKey, Lane> lanes;
  };
  using TenantMap = std::map<Tenant, TenantLanes>;
  using Deadlines = std::set<std::pair<absl::Time, Ticket>>;
  // A waiter, and where it is, so that nobody searches for it among thousands. The places first: who leaves needs them
  // together.
  struct Entry {
    TenantMap::iterator tenant;
    std::map<LaneKey, Lane>::iterator lane;
    // The end for who waits for ever.
    Deadlines::iterator deadline;
    // In the ring of its session's, as they came.
    Entry* before = nullptr;
    Entry* after = nullptr;
    Waiter waiter;
  };
  using Entries = absl::node_hash_map<Ticket, Entry>;
  // What decides between two: the lesser goes first.
  struct Rank {
    // How much less its priority is than the highest in the race; 0 for who has waited long enough.
    int32_t below_top = 0;
    double clock = 0;
    Ticket ticket = 0;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  struct Racer {
    Rank rank;
    Verdict verdict;
    Waiter* waiter;
  };

  static LaneKey LaneKeyOf(const Waiter& waiter);
  double CostOf(const Tenant& tenant, uint64_t units) const;
  Rank RankOf(const Waiter& waiter, Ticket ticket, double clock, int32_t top_priority) const;
  Waiter& At(Ticket ticket) { return entries_.at(ticket).waiter; }
  const Waiter& At(Ticket ticket) const { return entries_.at(ticket).waiter; }
  Waiter Take(Ticket ticket);
  // All but the entry itself.
  void Leave(Entry& entry);
  void EnterLane(Entry& entry);
  // Its lane may be gone with it; its tenant stays.
  void LeaveLane(Entry& entry);
  void EnterRing(Entry& entry);
  void LeaveRing(Entry& entry);
  // As they came, for as long as `visit` leaves them alone.
  void ForEachOf(SessionId session, absl::FunctionRef<void(const Waiter&)> visit) const;
  Deadlines::iterator NoteDeadline(absl::Time deadline, Ticket ticket) {
    return deadline == absl::InfiniteFuture() ? deadlines_.end() : deadlines_.emplace(deadline, ticket).first;
  }
  void ForgetDeadline(Deadlines::iterator at) {
    if (at != deadlines_.end()) deadlines_.erase(at);
  }
  std::optional<Turn> Search(absl::Time now, Judge judge, std::optional<Ticket> only);
  void Advance(double start);
  void Note(Ticket ticket) { journal_->Touch(RowKind::kWaiter, ticket, pool_); }
  void NoteTenant(const Tenant& tenant);
  void ForgetTenant(const Tenant& tenant);

  Journal* const journal_;
  const uint64_t pool_;
  Options options_;
  // Of the last step.
  absl::Time now_ = absl::InfinitePast();
  VirtualClock clock_;
  TenantMap tenants_;
  // Those with a row, by its part.
  absl::flat_hash_map<uint64_t, Tenant> tenant_rows_;
  Entries entries_;
  // Whom nobody passes any more.
  std::set<Ticket> held_;
  Ticket newly_held_ = 0;
  Deadlines deadlines_;
  // The first of each ring.
  absl::flat_hash_map<SessionId, Entry*> by_session_;
  // The first of each lane that races, while one is chosen; kept for its memory.
  std::vector<Racer> racers_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_WAIT_QUEUE_H_
