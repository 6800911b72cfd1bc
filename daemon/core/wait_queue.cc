#include "daemon/core/wait_queue.h"

#include <algorithm>
#include <limits>
#include <queue>

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

void WaitQueue::Push(Waiter waiter) {
  now_ = std::max(now_, waiter.since);
  const Ticket ticket = waiter.number;
  Note(ticket);
  const auto [tenant, first] = tenants_.try_emplace(waiter.asker.tenant);
  if (first) {
    tenant->second.clock = clock_.Enter(tenant->first);
    NoteTenant(tenant->first);
  }
  Place place = {.tenant = tenant,
                 .lane = tenant->second.lanes.try_emplace(LaneKeyOf(waiter)).first,
                 .waiter = {},
                 .deadline = NoteDeadline(waiter.what.deadline, ticket)};
  by_session_[waiter.asker.session].insert(ticket);
  Lane& lane = place.lane->second;
  place.waiter = lane.emplace_hint(lane.end(), ticket, std::move(waiter));
  const bool fresh = places_.emplace(ticket, place).second;
  BERTH_INVARIANT(fresh);
}

Waiter WaitQueue::Take(Ticket ticket) {
  const auto place = places_.find(ticket);
  BERTH_INVARIANT(place != places_.end());
  return Take(place);
}

Waiter WaitQueue::Take(Places::iterator place) {
  const Ticket ticket = place->first;
  const auto [tenant, lane, at, deadline] = place->second;
  places_.erase(place);
  Note(ticket);
  Waiter waiter = std::move(at->second);
  lane->second.erase(at);
  if (lane->second.empty()) tenant->second.lanes.erase(lane);
  if (tenant->second.lanes.empty()) {
    if (clock_.Leave(tenant->first, tenant->second.clock)) {
      NoteTenant(tenant->first);
    } else {
      ForgetTenant(tenant->first);
    }
    tenants_.erase(tenant);
  }
  ForgetDeadline(deadline);
  const auto of_session = by_session_.find(waiter.asker.session);
  of_session->second.erase(ticket);
  if (of_session->second.empty()) by_session_.erase(of_session);
  held_.erase(ticket);
  return waiter;
}

std::optional<Waiter> WaitQueue::Remove(uint64_t number) {
  const auto place = places_.find(number);
  if (place == places_.end()) return std::nullopt;
  return Take(place);
}

const Waiter* WaitQueue::Find(uint64_t number) const {
  const auto place = places_.find(number);
  return place == places_.end() ? nullptr : &place->second.waiter->second;
}

void WaitQueue::SetDeadline(uint64_t number, absl::Time deadline) {
  Place& place = places_.at(number);
  ForgetDeadline(place.deadline);
  place.deadline = NoteDeadline(deadline, number);
  place.waiter->second.what.deadline = deadline;
  Note(number);
}

void WaitQueue::Attach(uint64_t number) {
  Place& place = places_.at(number);
  if (!std::exchange(place.waiter->second.absent, false)) return;
  // It is judged otherwise now.
  std::map<LaneKey, Lane>& lanes = place.tenant->second.lanes;
  const auto lane = lanes.try_emplace(LaneKeyOf(place.waiter->second)).first;
  lane->second.insert(place.lane->second.extract(place.waiter));
  if (place.lane->second.empty()) lanes.erase(place.lane);
  place.lane = lane;
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
      Waiter& first = lane.begin()->second;
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

const std::set<WaitQueue::Ticket>& WaitQueue::OfSession(SessionId session) const {
  static const auto* const none = new std::set<Ticket>();
  const auto found = by_session_.find(session);
  return found == by_session_.end() ? *none : found->second;
}

std::vector<Waiter> WaitQueue::TakeOf(SessionId session, Condition condition) {
  std::vector<Ticket> wanted;
  for (const Ticket ticket : OfSession(session)) {
    if (condition(At(ticket))) wanted.push_back(ticket);
  }
  std::vector<Waiter> taken;
  for (const Ticket ticket : wanted) taken.push_back(Take(ticket));
  return taken;
}

std::vector<uint64_t> WaitQueue::GangsOf(SessionId session) const {
  std::vector<uint64_t> gangs;
  for (const Ticket ticket : OfSession(session)) {
    if (!At(ticket).gang.empty()) gangs.push_back(ticket);
  }
  return gangs;
}

std::vector<Waiter> WaitQueue::TakeIf(Condition condition) {
  std::vector<Ticket> wanted;
  for (const auto& [ticket, place] : places_) {
    if (condition(place.waiter->second)) wanted.push_back(ticket);
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

uint64_t WaitQueue::CountOf(SessionId session) const { return OfSession(session).size(); }

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
      const Rank rank = RankOf(lane.at->second, lane.at->first, course.clock, top_priority);
      if (!first.has_value() || rank < first->rank) first = Turn{rank, &course, &lane};
    }
    if (first.has_value()) turns.push(*first);
  };
  for (Course& course : courses) enter(course);
  while (!turns.empty()) {
    const Turn turn = turns.top();
    turns.pop();
    const Waiter& waiter = turn.lane->at->second;
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
  for (const auto& [ticket, place] : places_) {
    if (judge(place.waiter->second) == Verdict::kFits) return true;
  }
  return false;
}

}  // namespace berth::core
