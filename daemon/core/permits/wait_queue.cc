#include "daemon/core/permits/wait_queue.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

constexpr int32_t kNoPriority = std::numeric_limits<int32_t>::min();

}  // namespace

WaitQueue::LineKey WaitQueue::LineKeyOf(const Waiter& waiter) {
  return {.priority = waiter.what.priority,
          .units = waiter.what.units,
          .client_cap = waiter.what.client_cap,
          .exclusive = waiter.what.exclusive,
          .detached = waiter.detached,
          .device = waiter.what.device,
          .gang = waiter.gang};
}

double WaitQueue::CostOf(const Account& tenant, uint64_t units) const {
  const auto weight = options_.weights.find(tenant.uid);
  return static_cast<double>(units) / (weight == options_.weights.end() ? 1 : weight->second);
}

WaitQueue::Rank WaitQueue::RankOf(const Waiter& waiter, double clock, int32_t top_priority) const {
  const bool aged = now_ - waiter.since >= options_.ageing;
  return {.below_top = aged ? 0 : top_priority - waiter.what.priority,
          .late = IsLate(waiter.requester.tenant),
          .clock = clock,
          .ticket = waiter.number};
}

const Waiter& WaitQueue::Push(Waiter waiter) {
  now_ = std::max(now_, waiter.since);
  const Ticket ticket = waiter.number;
  const auto [at, fresh] = entries_.try_emplace(ticket);
  BERTH_INVARIANT(fresh);
  Mark(ticket);
  Entry& entry = at->second;
  entry.waiter = std::move(waiter);
  places_.Take(entry.waiter.requester.claimant());
  detached_ += entry.waiter.detached ? 1 : 0;
  const Account account = entry.waiter.requester.tenant;
  entry.tenant = tenants_.find(account);
  if (entry.tenant == tenants_.end()) entry.tenant = EnterTenant(account, clock_.Enter(account), /*idle=*/false);
  EnterLine(entry);
  const SessionId session = entry.waiter.requester.session;
  ++by_session_[session];
  EnterRing(by_holder_, Holder(session, entry.waiter.what.holder_key), entry, &Entry::by_holder);
  if (!entry.waiter.what.independent) EnterRing(nesting_, session, entry, &Entry::nesting);
  entry.deadline = MarkDeadline(entry.waiter.what.deadline, ticket);
  return entry.waiter;
}

WaitQueue::TenantMap::iterator WaitQueue::EnterTenant(const Account& tenant, OwnClock clock, bool idle) {
  const auto at = tenants_.try_emplace(tenant, ++last_tenant_, std::move(clock), idle).first;
  by_number_.emplace(at->second.number, at);
  if (!idle) racing_.insert(at->second.number);
  RecordTenant(tenant);
  return at;
}

Waiter WaitQueue::Take(Ticket ticket) {
  const auto at = entries_.find(ticket);
  BERTH_INVARIANT(at != entries_.end());
  Leave(at->second);
  Waiter waiter = std::move(at->second.waiter);
  entries_.erase(at);
  return waiter;
}

bool WaitQueue::Remove(uint64_t number) {
  const auto at = entries_.find(number);
  if (at == entries_.end()) return false;
  Leave(at->second);
  entries_.erase(at);
  return true;
}

void WaitQueue::Leave(Entry& entry) {
  const Ticket ticket = entry.waiter.number;
  const auto tenant = entry.tenant;
  journal_->Erase(RecordKind::kWaiter, ticket, pool_);
  places_.Give(entry.waiter.requester.claimant());
  detached_ -= entry.waiter.detached ? 1 : 0;
  const SessionId session = entry.waiter.requester.session;
  if (held_.contains(ticket)) LeaveHeld(ticket);
  // Prefetches for the access after the line.
  by_session_.prefetch(session);
  LeaveLine(entry);
  if (tenant->second.lines.empty()) {
    CatchUp(tenant->second);
    if (clock_.Leave(tenant->first, std::move(tenant->second.clock))) {
      RecordTenant(tenant->first);
    } else {
      ForgetTenant(tenant->first);
    }
    by_number_.erase(tenant->second.number);
    racing_.erase(tenant->second.number);
    tenants_.erase(tenant);
  }
  ForgetDeadline(entry.deadline);
  LeaveRing(by_holder_, Holder(session, entry.waiter.what.holder_key), entry, &Entry::by_holder);
  if (!entry.waiter.what.independent) LeaveRing(nesting_, session, entry, &Entry::nesting);
  const auto of_session = by_session_.find(session);
  if (--of_session->second == 0) by_session_.erase(of_session);
}

void WaitQueue::EnterLine(Entry& entry) {
  TenantLines& tenant = entry.tenant->second;
  const Ticket ticket = entry.waiter.number;
  entry.line = tenant.lines.try_emplace(LineKeyOf(entry.waiter)).first;
  WaitLine& line = entry.line->second;
  line.row.emplace_hint(line.row.end(), ticket, &entry);
  Row& row = tenant.rows[entry.waiter.what.priority];
  row.emplace_hint(row.end(), ticket, &entry);
  if (line.row.begin()->first != ticket) return;
  if (line.first != 0) Unseat(line);
  Seat(tenant, line);
}

void WaitQueue::LeaveLine(Entry& entry) {
  TenantLines& tenant = entry.tenant->second;
  const Ticket ticket = entry.waiter.number;
  const auto row = tenant.rows.find(entry.waiter.what.priority);
  row->second.erase(ticket);
  if (row->second.empty()) tenant.rows.erase(row);
  WaitLine& line = entry.line->second;
  line.row.erase(ticket);
  if (line.first != ticket) return;
  Unseat(line);
  if (line.row.empty()) {
    tenant.lines.erase(entry.line);
  } else {
    Seat(tenant, line);
  }
}

void WaitQueue::Seat(TenantLines& tenant, WaitLine& line) {
  const Waiter& first = line.row.begin()->second->waiter;
  line.first = first.number;
  line.of = {.tenant = tenant.number,
             .priority = first.what.priority,
             .aged = now_ - first.since >= options_.ageing};
  if (!line.of.aged) young_.emplace(first.since, line.first);
  for (const Goal goal : {kGoing, kRacing}) boards_[goal].Enter(line.of, line.first, line.stalls[goal]);
}

void WaitQueue::Unseat(WaitLine& line) {
  for (const Goal goal : {kGoing, kRacing}) boards_[goal].Leave(line.of, line.first, line.stalls[goal]);
  if (!line.of.aged) young_.erase({At(line.first).since, line.first});
  line.first = 0;
}

void WaitQueue::Reopen(TenantLines& tenant, WaitLine& line) {
  Unseat(line);
  line.stalls = {};
  Seat(tenant, line);
}

void WaitQueue::Reopen() {
  for (auto& [tenant, lines] : tenants_) {
    for (auto& [key, line] : lines.lines) Reopen(lines, line);
  }
  for (const auto& [ticket, stalls] : held_) ReopenHeld(ticket);
}

void WaitQueue::SetOptions(Options options) {
  options_ = std::move(options);
  Reopen();
}

void WaitQueue::SeatAged() {
  while (!young_.empty() && now_ - young_.begin()->first >= options_.ageing) {
    const Entry& entry = entries_.at(young_.begin()->second);
    Unseat(entry.line->second);
    Seat(entry.tenant->second, entry.line->second);
  }
}

template <typename Key>
void WaitQueue::EnterRing(Rings<Key>& rings, Key key, Entry& entry, Link Entry::*link) {
  const auto [head, alone] = rings.try_emplace(std::move(key), &entry);
  Link& own = entry.*link;
  own.after = head->second;
  own.before = alone ? &entry : (head->second->*link).before;
  // A waiter that returns to its place precedes later ones.
  while (!alone && own.before->waiter.number > entry.waiter.number) {
    own.after = own.before;
    own.before = (own.after->*link).before;
    if (own.after != head->second) continue;
    head->second = &entry;
    break;
  }
  (own.before->*link).after = &entry;
  (own.after->*link).before = &entry;
}

template <typename Key>
void WaitQueue::LeaveRing(Rings<Key>& rings, const Key& key, Entry& entry, Link Entry::*link) {
  const Link& own = entry.*link;
  (own.before->*link).after = own.after;
  (own.after->*link).before = own.before;
  // Only the first entry follows a later entry, or itself.
  if (own.before->waiter.number < entry.waiter.number) return;
  const auto head = rings.find(key);
  head->second = own.after;
  if (own.after == &entry) rings.erase(head);
}

template <typename Key>
void WaitQueue::ForEachIn(const Rings<Key>& rings, const Key& key, Link Entry::*link,
                          absl::FunctionRef<void(const Waiter&)> visit) {
  const auto head = rings.find(key);
  if (head == rings.end()) return;
  const Entry* entry = head->second;
  do {
    visit(entry->waiter);
    entry = (entry->*link).after;
  } while (entry != head->second);
}

const Waiter* WaitQueue::Find(uint64_t number) const {
  const auto at = entries_.find(number);
  return at == entries_.end() ? nullptr : &at->second.waiter;
}

void WaitQueue::SetDeadline(uint64_t number, absl::Time deadline) {
  Entry& entry = entries_.at(number);
  ForgetDeadline(entry.deadline);
  entry.deadline = MarkDeadline(deadline, number);
  entry.waiter.what.deadline = deadline;
  Mark(number);
}

void WaitQueue::Attach(uint64_t number) { SetDetached(number, false); }

void WaitQueue::Detach(uint64_t number) { SetDetached(number, true); }

void WaitQueue::SetDetached(uint64_t number, bool detached) {
  Entry& entry = entries_.at(number);
  if (entry.waiter.detached == detached) return;
  LeaveLine(entry);
  entry.waiter.detached = detached;
  detached_ = detached ? detached_ + 1 : detached_ - 1;
  EnterLine(entry);
  if (held_.contains(number)) ReopenHeld(number);
}

std::optional<Waiter> WaitQueue::TakeNext(absl::Time now, Arbiter& arbiter) {
  const std::optional<Turn> turn = Next(now, arbiter);
  if (!turn.has_value()) return std::nullopt;
  return Take(*turn);
}

std::optional<WaitQueue::Turn> WaitQueue::Next(absl::Time now, Arbiter& arbiter) {
  return Search(now, arbiter, std::nullopt);
}

std::optional<WaitQueue::Turn> WaitQueue::NextIf(absl::Time now, Arbiter& arbiter, uint64_t number) {
  return Search(now, arbiter, number);
}

WaitQueue::Verdict WaitQueue::JudgeLine(WaitLine& line, Arbiter& arbiter) {
  if (line.search == searches_) return line.verdict;
  ++judged_;
  line.search = searches_;
  line.verdict = arbiter.Judge(At(line.first));
  return line.verdict;
}

const Waiter* WaitQueue::FindFirst(Goal goal, Class of, Arbiter& arbiter) {
  StallBoard& board = boards_[goal];
  // A line with an insufficient verdict gets current stalls, or is not visited again in this search.
  for (Ticket first = board.First(of, 0); first != 0; first = board.First(of, first)) {
    const Entry& entry = entries_.at(first);
    if (JudgeLine(entry.line->second, arbiter) <= kWanted[goal]) return &entry.waiter;
    Stalls& stalls = entry.line->second.stalls[goal];
    board.Leave(of, first, stalls);
    stalls = arbiter.WhyNot(entry.waiter, kWanted[goal]);
    board.Enter(of, first, stalls);
  }
  return nullptr;
}

const Waiter* WaitQueue::FindFirstOf(Goal goal, const std::vector<Class>& classes, int32_t top_priority,
                                     Arbiter& arbiter) {
  const Waiter* best = nullptr;
  Rank best_rank;
  for (const Class& of : classes) {
    const Waiter* const first = FindFirst(goal, of, arbiter);
    if (first == nullptr) continue;
    const double clock = ClockOf(by_number_.at(of.tenant)->second);
    const Rank rank = RankOf(*first, clock, top_priority);
    if (best != nullptr && best_rank < rank) continue;
    best = first;
    best_rank = rank;
  }
  return best;
}

int32_t WaitQueue::FindRacing(const std::vector<Class>& classes, Arbiter& arbiter) {
  int32_t top_priority = kNoPriority;
  std::set<uint64_t> racing;
  // Descending: a tenant's highest priority comes first.
  for (auto of = classes.rbegin(); of != classes.rend(); ++of) {
    if (racing.contains(of->tenant) || FindFirst(kRacing, *of, arbiter) == nullptr) continue;
    racing.insert(of->tenant);
    top_priority = std::max(top_priority, of->priority);
  }
  for (const uint64_t number : racing_) {
    if (!racing.contains(number)) SetIdle(number, /*idle=*/true);
  }
  for (const uint64_t number : racing) {
    if (!racing_.contains(number)) SetIdle(number, /*idle=*/false);
  }
  racing_ = std::move(racing);
  if (searched_clock_ != clock_.now()) {
    searched_clock_ = clock_.now();
    journal_->Touch(RecordKind::kPoolCounters, pool_);
  }
  return top_priority;
}

void WaitQueue::SetIdle(uint64_t number, bool idle) {
  const auto at = by_number_.at(number);
  CatchUp(at->second);
  at->second.idle = idle;
  RecordTenant(at->first);
}

void WaitQueue::CatchUp(TenantLines& tenant) {
  if (tenant.idle) tenant.clock.Start(searched_clock_, clock_.charges());
}

uint64_t WaitQueue::Read(Arbiter& arbiter, uint64_t tenant, const Gauge& gauge) const {
  if (tenant == 0) return arbiter.Read(Account(), gauge);
  return arbiter.Read(by_number_.at(tenant)->first, gauge);
}

std::optional<WaitQueue::Turn> WaitQueue::Search(absl::Time now, Arbiter& arbiter, std::optional<Ticket> only) {
  now_ = std::max(now_, now);
  ++searches_;
  const bool only_held = only.has_value() && IsHeld(*only);
  RefreshHeld(arbiter);
  for (Ticket ticket = NextHeld(0); ticket != 0 && (!only_held || ticket < *only); ticket = NextHeld(ticket)) {
    ++judged_;
    const Verdict verdict = arbiter.Judge(At(ticket));
    if (verdict == Verdict::kFits && !only.has_value()) return Turn{.number = ticket};
    if (verdict != Verdict::kSkipped) return std::nullopt;
    const Stalls stalls = arbiter.WhyNot(At(ticket), kWanted[kRacing]);
    LeaveHeld(ticket);
    EnterHeld(ticket, stalls);
  }
  if (only_held) return Turn{.number = *only};
  ReadGauges(arbiter);
  std::vector<Class> classes = boards_[kRacing].Live();
  const int32_t top_priority = FindRacing(classes, arbiter);
  Ticket going = only.value_or(0);
  if (!only.has_value()) {
    const Waiter* const next = FindFirstOf(kGoing, boards_[kGoing].Live(), top_priority, arbiter);
    if (next == nullptr) return std::nullopt;
    going = next->number;
  }
  // A waiter of the highest priority races, so the head cannot be a waiter of a lower priority that has not aged.
  std::erase_if(classes, [&](const Class& of) { return !of.aged && of.priority != top_priority; });
  const Waiter* const head = FindFirstOf(kRacing, classes, top_priority, arbiter);
  if (head == nullptr || head->number == going) return Turn{.number = going};
  if (head->passes >= options_.passes_before_hold) {
    newly_held_ = head->number;
    Hold(newly_held_);
    return std::nullopt;
  }
  return Turn{.number = going, .passed = head->number};
}

void WaitQueue::ReadGauges(Arbiter& arbiter) {
  SeatAged();
  const auto read = [&](uint64_t tenant, const Gauge& gauge) { return Read(arbiter, tenant, gauge); };
  const auto version = [&](Gauge::Kind kind) { return arbiter.VersionOf(kind); };
  for (StallBoard& board : boards_) board.Refresh(read, version);
}

bool WaitQueue::LetsPass(absl::Time now, const Account& tenant, Arbiter& arbiter) {
  // The state is usually unchanged since the last search.
  if (!held_.empty() || !racing_.empty() || tenants_.contains(tenant)) return false;
  now_ = std::max(now_, now);
  ++searches_;
  ReadGauges(arbiter);
  FindRacing(boards_[kRacing].Live(), arbiter);
  return racing_.empty();
}

Waiter WaitQueue::Take(const Turn& turn) {
  if (turn.passed != 0) {
    ++At(turn.passed).passes;
    Mark(turn.passed);
  }
  return Take(turn.number);
}

std::vector<Waiter> WaitQueue::TakeNesting(SessionId session, const std::string& holder_key, bool adoptable) {
  std::set<Ticket> nests;
  const auto visit = [&](const Waiter& waiter) {
    if (waiter.gang.empty() && !waiter.detached) nests.insert(waiter.number);
  };
  ForEachIn(by_holder_, Holder(session, holder_key), &Entry::by_holder, visit);
  if (adoptable) ForEachIn(nesting_, session, &Entry::nesting, visit);
  std::vector<Waiter> taken;
  for (const Ticket ticket : nests) taken.push_back(Take(ticket));
  return taken;
}

std::vector<uint64_t> WaitQueue::GangsNesting(SessionId session, const std::string& holder_key,
                                              bool adoptable) const {
  std::set<Ticket> gangs;
  const auto visit = [&](const Waiter& waiter) {
    if (!waiter.gang.empty()) gangs.insert(waiter.number);
  };
  ForEachIn(by_holder_, Holder(session, holder_key), &Entry::by_holder, visit);
  // A gang's second permit in a pool has the key "key#2", and so on.
  const size_t nth = holder_key.rfind('#');
  if (nth != std::string::npos) {
    ForEachIn(by_holder_, Holder(session, holder_key.substr(0, nth)), &Entry::by_holder, visit);
  }
  if (adoptable) ForEachIn(nesting_, session, &Entry::nesting, visit);
  return {gangs.begin(), gangs.end()};
}

std::vector<Waiter> WaitQueue::TakeIf(Condition condition) {
  std::vector<Ticket> wanted;
  for (const auto& [ticket, entry] : entries_) {
    if (condition(entry.waiter)) wanted.push_back(ticket);
  }
  std::sort(wanted.begin(), wanted.end());
  std::vector<Waiter> taken;
  for (const Ticket ticket : wanted) taken.push_back(Take(ticket));
  return taken;
}

std::vector<WaitQueue::Expired> WaitQueue::TakeExpired(absl::Time now) {
  std::vector<Expired> expired;
  if (next_deadline() > now) return expired;
  now_ = std::max(now_, now);
  // Computes all positions in one walk, so that many waiters with one deadline stay cheap.
  absl::flat_hash_map<Ticket, uint64_t> positions;
  uint64_t due = 0;
  for (auto it = deadlines_.begin(); it != deadlines_.end() && it->first <= now; ++it) ++due;
  uint64_t position = 0;
  Walk([&](const Waiter& waiter) {
    ++position;
    if (waiter.what.deadline <= now) positions.emplace(waiter.number, position);
    return positions.size() < due && position < kLastPlace;
  });
  while (next_deadline() <= now) {
    const Ticket ticket = deadlines_.begin()->second;
    const auto found = positions.find(ticket);
    expired.push_back({Take(ticket), found == positions.end() ? kLastPlace : found->second});
  }
  return expired;
}

absl::Time WaitQueue::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

uint64_t WaitQueue::CountIf(absl::FunctionRef<bool(SessionId)> wanted) const {
  uint64_t waiters = 0;
  for (const auto& [session, count] : by_session_) waiters += wanted(session) ? count : 0;
  return waiters;
}

void WaitQueue::Walk(absl::FunctionRef<bool(const Waiter&)> visit) const {
  for (const auto& [ticket, stalls] : held_) {
    if (!visit(At(ticket))) return;
  }
  struct Cursor {
    Row::const_iterator at;
    Row::const_iterator end;
  };
  struct Course {
    const Account* tenant = nullptr;
    double clock = 0;
    std::vector<Cursor> rows;
  };
  std::vector<Course> courses;
  int32_t top_priority = kNoPriority;
  for (const auto& [tenant, lines] : tenants_) {
    Course& course = courses.emplace_back(Course{.tenant = &tenant, .clock = ClockOf(lines), .rows = {}});
    for (const auto& [priority, row] : lines.rows) {
      course.rows.push_back({row.begin(), row.end()});
      top_priority = std::max(top_priority, priority);
    }
  }
  // The heap holds each tenant's first waiter; taking it moves only this tenant.
  struct Turn {
    Rank rank;
    Course* course;
    Cursor* row;
    bool operator<(const Turn& other) const { return other.rank < rank; }
  };
  std::priority_queue<Turn> turns;
  const auto enter = [&](Course& course) {
    std::optional<Turn> first;
    for (Cursor& row : course.rows) {
      while (row.at != row.end && held_.contains(row.at->first)) ++row.at;
      if (row.at == row.end) continue;
      const Rank rank = RankOf(row.at->second->waiter, course.clock, top_priority);
      if (!first.has_value() || rank < first->rank) first = Turn{rank, &course, &row};
    }
    if (first.has_value()) turns.push(*first);
  };
  for (Course& course : courses) enter(course);
  while (!turns.empty()) {
    const Turn turn = turns.top();
    turns.pop();
    const Waiter& waiter = turn.row->at->second->waiter;
    if (!visit(waiter)) return;
    ++turn.row->at;
    turn.course->clock += CostOf(*turn.course->tenant, waiter.charge);
    enter(*turn.course);
  }
}

bool WaitQueue::AnyoneIdle(Judge judge) const {
  for (const auto& [ticket, stalls] : held_) {
    const Verdict verdict = judge(At(ticket));
    if (verdict != Verdict::kSkipped) return verdict == Verdict::kFits;
  }
  for (const auto& [ticket, entry] : entries_) {
    if (judge(entry.waiter) == Verdict::kFits) return true;
  }
  return false;
}

}  // namespace berth::core
