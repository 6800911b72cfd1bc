#include "daemon/core/room_queue.h"

#include <algorithm>
#include <utility>

#include "daemon/core/invariant.h"

namespace berth::core {
namespace {

bool AsksOf(const Waiting& waiting, uint32_t device) {
  return std::any_of(waiting.asks.begin(), waiting.asks.end(),
                     [&](const RoomAsk& ask) { return ask.device == device; });
}

}  // namespace

Waiting& RoomQueue::Push(Waiting waiting) {
  BERTH_INVARIANT(Find(waiting.request) == nullptr);
  next_deadline_.reset();
  waiting.number = ++last_number_;
  journal_.Touch(RowKind::kMemoryCounters);
  Note(waiting);
  Waiting& entry = entries_.emplace_back(std::move(waiting));
  by_number_.emplace(entry.number, &entry);
  return entry;
}

bool RoomQueue::Restore(Waiting waiting) {
  if (waiting.number > last_number_ || waiting.asks.empty() || Find(waiting.request) != nullptr) return false;
  next_deadline_.reset();
  const Waiting& entry = entries_.emplace_back(std::move(waiting));
  by_number_.emplace(entry.number, &entry);
  return true;
}

const Waiting* RoomQueue::FindNumber(uint64_t number) const {
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

Waiting RoomQueue::Remove(std::list<Waiting>::iterator at) {
  Note(*at);
  next_deadline_.reset();
  by_number_.erase(at->number);
  Waiting taken = std::move(*at);
  entries_.erase(at);
  return taken;
}

std::list<Waiting>::iterator RoomQueue::At(const RequestId& request) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const Waiting& waiting) { return waiting.request == request; });
}

Waiting RoomQueue::Take(const RequestId& request) {
  const auto at = At(request);
  BERTH_INVARIANT(at != entries_.end());
  return Remove(at);
}

Waiting* RoomQueue::Find(const RequestId& request) {
  const auto at = At(request);
  return at == entries_.end() ? nullptr : &*at;
}

void RoomQueue::SetDeadline(const RequestId& request, absl::Time deadline) {
  Waiting* const waiting = Find(request);
  if (waiting == nullptr || !waiting->patient) return;
  waiting->deadline = deadline;
  Note(*waiting);
  next_deadline_.reset();
}

std::vector<Waiting> RoomQueue::TakeExpired(absl::Time now) {
  std::vector<Waiting> expired;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto at = it++;
    if (!at->patient || at->deadline > now) continue;
    expired.push_back(Remove(at));
  }
  return expired;
}

void RoomQueue::NotePassed(Waiting& waiting, absl::Time now) {
  if (waiting.kept_since.has_value()) return;
  Note(waiting);
  if (++waiting.passes < passes_before_keep_) return;
  waiting.kept_since = now;
  next_deadline_.reset();
}

bool RoomQueue::EndKeeps(absl::Time now) {
  bool ended = false;
  for (Waiting& waiting : entries_) {
    if (!waiting.kept_since.has_value() || *waiting.kept_since + keep_ > now) continue;
    Note(waiting);
    waiting.kept_since.reset();
    waiting.passes = 0;
    next_deadline_.reset();
    ended = true;
  }
  return ended;
}

absl::Time RoomQueue::next_deadline() const {
  if (!next_deadline_.has_value()) {
    absl::Time next = absl::InfiniteFuture();
    for (const Waiting& waiting : entries_) {
      if (waiting.patient) next = std::min(next, waiting.deadline);
      if (waiting.kept_since.has_value()) next = std::min(next, *waiting.kept_since + keep_);
    }
    next_deadline_ = next;
  }
  return *next_deadline_;
}

uint64_t RoomQueue::CountOf(uint32_t device) const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [&](const Waiting& waiting) { return AsksOf(waiting, device); });
}

uint64_t RoomQueue::CountPatientOf(uint32_t device, const Tenant& tenant) const {
  return std::count_if(entries_.begin(), entries_.end(), [&](const Waiting& waiting) {
    return waiting.patient && waiting.tenant == tenant && AsksOf(waiting, device);
  });
}

uint64_t RoomQueue::CountBlocksFor(const Tenant& tenant) const {
  return std::count_if(entries_.begin(), entries_.end(), [&](const Waiting& waiting) {
    return waiting.tenant == tenant && !waiting.reserve_for.has_value();
  });
}

}  // namespace berth::core
