#include "daemon/core/wait_queue.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

#include "daemon/core/invariant.h"

namespace berth::core {
namespace {

constexpr int32_t kNoPriority = std::numeric_limits<int32_t>::min();

}  // namespace

WaitQueue::LaneKey WaitQueue::LaneKeyOf(const Waiter& waiter) {
  return {.priority = waiter.what.priority,
          .units = waiter.what.units,
          .client_cap = waiter.what.client_cap,
          .exclusive = waiter.what.exclusive,
          .absent = waiter.absent,
          .device = waiter.what.device,
          .gang = waiter.gang};
}

double WaitQueue::CostOf(const Tenant& tenant, uint64_t units) const {
  const auto weight = options_.weights.find(tenant.uid);
  return static_cast<double>(units) / (weight == options_.weights.end() ? 1 : weight->second);
}

WaitQueue::Rank WaitQueue::RankOf(const Waiter& waiter, Ticket ticket, double clock,
                                  int32_t top_priority) const {
  const bool aged = now_ - waiter.since >= options_.ageing;
  return {.below_top = aged ? 0 : top_priority - waiter.what.priority, .clock = clock, .ticket = ticket};
}

const Waiter& WaitQueue::Push(Waiter waiter) {
  now_ = std::max(now_, waiter.since);
  const Ticket ticket = waiter.number;
  const auto [at, fresh] = entries_.try_emplace(ticket);
  BERTH_INVARIANT(fresh);
  Note(ticket);
  Entry& entry = at->second;
  entry.waiter = std::move(waiter);
  bool first = false;
  std::tie(entry.tenant, first) = tenants_.try_emplace(entry.waiter.asker.tenant);
  if (first) {
    entry.tenant->second.clock = clock_.Enter(entry.tenant->first);
    NoteTenant(entry.tenant->first);
  }
  EnterLane(entry);
  EnterRing(entry);
  entry.deadline = NoteDeadline(entry.waiter.what.deadline, ticket);
  return entry.waiter;
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
  journal_->Erase(RowKind::kWaiter, ticket, pool_);
  // For LeaveRing().
  by_session_.prefetch(entry.waiter.asker.session);
  LeaveLane(entry);
  if (tenant->second.lanes.empty()) {
    if (clock_.Leave(tenant->first, tenant->second.clock)) {
      NoteTenant(tenant->first);
    } else {
      ForgetTenant(tenant->first);
    }
    tenants_.erase(tenant);
  }
  ForgetDeadline(entry.deadline);
  LeaveRing(entry);
  held_.erase(ticket);
}

void WaitQueue::EnterLane(Entry& entry) {
  entry.lane = entry.tenant->second.lanes.try_emplace(LaneKeyOf(entry.waiter)).first;
  Lane& lane = entry.lane->second;
  lane.emplace_hint(lane.end(), entry.waiter.number, &entry);
}

void WaitQueue::LeaveLane(Entry& entry) {
  Lane& lane = entry.lane->second;
  lane.erase(entry.waiter.number);
  if (lane.empty()) entry.tenant->second.lanes.erase(entry.lane);
}

void WaitQueue::EnterRing(Entry& entry) {
  const auto [head, alone] = by_session_.try_emplace(entry.waiter.asker.session, &entry);
  entry.after = head->second;
  entry.before = alone ? &entry : head->second->before;
  entry.before->after = &entry;
  entry.after->before = &entry;
}

void WaitQueue::LeaveRing(Entry& entry) {
  entry.before->after = entry.after;
  entry.after->before = entry.before;
  // The first alone comes after a later one, or after itself.
  if (entry.before->waiter.number < entry.waiter.number) return;
  const auto head = by_session_.find(entry.waiter.asker.session);
  head->second = entry.after;
  if (entry.after == &entry) by_session_.erase(head);
}

void WaitQueue::ForEachOf(SessionId session, absl::FunctionRef<void(const Waiter&)> visit) const {
  const auto head = by_session_.find(session);
  if (head == by_session_.end()) return;
  const Entry* entry = head->second;
  do {
    visit(entry->waiter);
    entry = entry->after;
  } while (entry != head->second);
}

const Waiter* WaitQueue::Find(uint64_t number) const {
  const auto at = entries_.find(number);
  return at == entries_.end() ? nullptr : &at->second.waiter;
}

void WaitQueue::SetDeadline(uint64_t number, absl::Time deadline) {
  Entry& entry = entries_.at(number);
  ForgetDeadline(entry.deadline);
  entry.deadline = NoteDeadline(deadline, number);
  entry.waiter.what.deadline = deadline;
  Note(number);
}

void WaitQueue::Attach(uint64_t number) {
  Entry& entry = entries_.at(number);
  if (!entry.waiter.absent) return;
  // It is judged otherwise from now on.
  LeaveLane(entry);
  entry.waiter.absent = false;
  EnterLane(entry);
}

void WaitQueue::Hold(uint64_t number) {
  held_.insert(number);
  Note(number);
}

std::optional<Waiter> WaitQueue::TakeNext(absl::Time now, Judge judge) {
  const std::optional<Turn> turn = Next(now, judge);
  if (!turn.has_value()) return std::nullopt;
  return Take(*turn);
}

std::optional<WaitQueue::Turn> WaitQueue::Next(absl::Time now, Judge judge) {
  return Search(now, judge, std::nullopt);
}

std::optional<WaitQueue::Turn> WaitQueue::NextIf(absl::Time now, Judge judge, uint64_t number) {
  return Search(now, judge, number);
}

std::optional<WaitQueue::Turn> WaitQueue::Search(absl::Time now, Judge judge, std::optional<Ticket> only) {
  now_ = std::max(now_, now);
  for (const Ticket ticket : held_) {
    if (only == ticket) return Turn{.number = ticket};
    const Verdict verdict = judge(At(ticket));
    if (verdict == Verdict::kFits && !only.has_value()) return Turn{.number = ticket};
    if (verdict != Verdict::kAside) return std::nullopt;
  }
  racers_.clear();
  int32_t top_priority = kNoPriority;
  for (auto& [tenant, lanes] : tenants_) {
    const size_t racing = racers_.size();
    for (auto& [key, lane] : lanes.lanes) {
      Waiter& first = lane.begin()->second->waiter;
      const Verdict verdict = judge(first);
      if (verdict == Verdict::kAside) continue;
      racers_.push_back(
          {.rank = {.clock = lanes.clock, .ticket = first.number}, .verdict = verdict, .waiter = &first});
      top_priority = std::max(top_priority, key.priority);
    }
    if (racers_.size() == racing && lanes.clock < clock_.now()) {
      lanes.clock = clock_.now();
      NoteTenant(tenant);
    }
  }
  const Racer* head = nullptr;
  const Racer* next = nullptr;
  for (Racer& racer : racers_) {
    racer.rank = RankOf(*racer.waiter, racer.rank.ticket, racer.rank.clock, top_priority);
    if (head == nullptr || racer.rank < head->rank) head = &racer;
    if (racer.verdict != Verdict::kFits) continue;
    if (next == nullptr || racer.rank < next->rank) next = &racer;
  }
  if (next == nullptr && !only.has_value()) return std::nullopt;
  const Ticket going = only.has_value() ? *only : next->rank.ticket;
  if (head == nullptr || head->rank.ticket == going) return Turn{.number = going};
  if (head->waiter->passes >= options_.passes_before_hold) {
    newly_held_ = head->rank.ticket;
    Hold(newly_held_);
    return std::nullopt;
  }
  return Turn{.number = going, .passed = head->rank.ticket};
}

Waiter WaitQueue::Take(const Turn& turn) {
  if (turn.passed != 0) {
    ++At(turn.passed).passes;
    Note(turn.passed);
  }
  return Take(turn.number);
}

bool WaitQueue::KeptFrom(uint64_t number, Judge judge) const {
  for (const Ticket ticket : held_) {
    if (ticket == number) return false;
    if (judge(At(ticket)) != Verdict::kAside) return true;
  }
  return false;
}

void WaitQueue::Charge(const Tenant& tenant, uint64_t units) {
  const double cost = CostOf(tenant, units);
  if (const auto found = tenants_.find(tenant); found != tenants_.end()) {
    Advance(found->second.clock);
    found->second.clock += cost;
    NoteTenant(tenant);
    return;
  }
  const double start = clock_.Enter(tenant);
  Advance(start);
  if (clock_.Leave(tenant, start + cost)) {
    NoteTenant(tenant);
  } else {
    // What costs nothing leaves it where the others are.
    ForgetTenant(tenant);
  }
}

void WaitQueue::Advance(double start) {
  for (const Tenant& tenant : clock_.Advance(start)) ForgetTenant(tenant);
}

std::vector<Waiter> WaitQueue::TakeOf(SessionId session, Condition condition) {
  std::vector<Ticket> wanted;
  ForEachOf(session, [&](const Waiter& waiter) {
    if (condition(waiter)) wanted.push_back(waiter.number);
  });
  std::vector<Waiter> taken;
  for (const Ticket ticket : wanted) taken.push_back(Take(ticket));
  return taken;
}

std::vector<uint64_t> WaitQueue::GangsOf(SessionId session) const {
  std::vector<uint64_t> gangs;
  ForEachOf(session, [&](const Waiter& waiter) {
    if (!waiter.gang.empty()) gangs.push_back(waiter.number);
  });
  return gangs;
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
  // All at once, so that a crowd that ends together costs one walk.
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

uint64_t WaitQueue::CountOf(SessionId session) const {
  uint64_t count = 0;
  ForEachOf(session, [&](const Waiter&) { ++count; });
  return count;
}

void WaitQueue::Walk(absl::FunctionRef<bool(const Waiter&)> visit) const {
  for (const Ticket ticket : held_) {
    if (!visit(At(ticket))) return;
  }
  struct Cursor {
    Lane::const_iterator at;
    Lane::const_iterator end;
  };
  struct Course {
    const Tenant* tenant = nullptr;
    double clock = 0;
    std::vector<Cursor> lanes;
  };
  std::vector<Course> courses;
  int32_t top_priority = kNoPriority;
  for (const auto& [tenant, lanes] : tenants_) {
    Course& course = courses.emplace_back(Course{.tenant = &tenant, .clock = lanes.clock, .lanes = {}});
    for (const auto& [key, lane] : lanes.lanes) {
      course.lanes.push_back({lane.begin(), lane.end()});
      top_priority = std::max(top_priority, key.priority);
    }
  }
  // Each tenant stands in the heap with its first; taking that moves this tenant alone.
  struct Turn {
    Rank rank;
    Course* course;
    Cursor* lane;
    bool operator<(const Turn& other) const { return other.rank < rank; }
  };
  std::priority_queue<Turn> turns;
  const auto enter = [&](Course& course) {
    std::optional<Turn> first;
    for (Cursor& lane : course.lanes) {
      while (lane.at != lane.end && held_.contains(lane.at->first)) ++lane.at;
      if (lane.at == lane.end) continue;
      const Rank rank = RankOf(lane.at->second->waiter, lane.at->first, course.clock, top_priority);
      if (!first.has_value() || rank < first->rank) first = Turn{rank, &course, &lane};
    }
    if (first.has_value()) turns.push(*first);
  };
  for (Course& course : courses) enter(course);
  while (!turns.empty()) {
    const Turn turn = turns.top();
    turns.pop();
    const Waiter& waiter = turn.lane->at->second->waiter;
    if (!visit(waiter)) return;
    ++turn.lane->at;
    turn.course->clock += CostOf(*turn.course->tenant, waiter.charge);
    enter(*turn.course);
  }
}

bool WaitQueue::AnyoneIdle(Judge judge) const {
  for (const Ticket ticket : held_) {
    const Verdict verdict = judge(At(ticket));
    if (verdict != Verdict::kAside) return verdict == Verdict::kFits;
  }
  for (const auto& [ticket, entry] : entries_) {
    if (judge(entry.waiter) == Verdict::kFits) return true;
  }
  return false;
}

}  // namespace berth::core
