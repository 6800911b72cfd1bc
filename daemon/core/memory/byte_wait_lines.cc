#include "daemon/core/memory/byte_wait_lines.h"

#include <algorithm>

#include "daemon/core/types/invariant.h"

namespace berth::core {

void ByteWaitLines::Enter(const ByteBudget& budget, uint64_t number, Bytes bytes, uint64_t passes) {
  // The grant count of a new line starts at the pass limit, so it is never below a request's passes.
  const auto [found, fresh] = lines_.try_emplace(budget.number(), Line{.grants = passes_before_reserve_});
  Line& line = found->second;
  const uint64_t since = line.grants - std::min(passes, passes_before_reserve_);
  const bool entered = line.waiters.emplace(number, Waiter{.bytes = bytes, .since = since}).second;
  BERTH_INVARIANT(entered);
  line.by_bytes.emplace(bytes, number);
}

uint64_t ByteWaitLines::Leave(const ByteBudget& budget, uint64_t number) {
  const auto found = lines_.find(budget.number());
  BERTH_INVARIANT(found != lines_.end());
  Line& line = found->second;
  const auto waiter = line.waiters.find(number);
  BERTH_INVARIANT(waiter != line.waiters.end());
  const uint64_t passes = PassesOf(line, waiter->second);
  line.by_bytes.erase({waiter->second.bytes, number});
  line.waiters.erase(waiter);
  if (line.waiters.empty() && line.reserver == 0) lines_.erase(found);
  return passes;
}

std::optional<uint64_t> ByteWaitLines::RecordGrant(const ByteBudget& budget) {
  const auto found = lines_.find(budget.number());
  if (found == lines_.end()) return std::nullopt;
  Line& line = found->second;
  ++line.grants;
  if (line.reserver != 0 || line.waiters.empty()) return std::nullopt;
  const auto& [number, waiter] = *line.waiters.begin();
  return PassesOf(line, waiter) < passes_before_reserve_ ? std::nullopt : std::optional(number);
}

void ByteWaitLines::Reserve(const ByteBudget& budget, uint64_t number) {
  Line& line = lines_.at(budget.number());
  line.reserver = number;
  line.reserver_bytes = line.waiters.at(number).bytes;
}

void ByteWaitLines::EndReserve(const ByteBudget& budget) {
  const auto found = lines_.find(budget.number());
  BERTH_INVARIANT(found != lines_.end() && found->second.reserver != 0);
  Line& line = found->second;
  line.reserver = 0;
  line.reserved_at = line.grants;
  if (line.waiters.empty()) lines_.erase(found);
}

bool ByteWaitLines::IsReserved(const ByteBudget& budget, uint64_t number) const {
  const Line* const line = Find(budget);
  return line != nullptr && Reserves(*line, budget, number);
}

std::vector<uint64_t> ByteWaitLines::FindFitting(const ByteBudget& budget) const {
  std::vector<uint64_t> fitting;
  const Line* const line = Find(budget);
  if (line == nullptr) return fitting;
  const Bytes capacity = budget.capacity();
  if (Reserves(*line, budget, UINT64_MAX)) {
    // Few requests precede the one with reserved capacity.
    for (const auto& [number, waiter] : line->waiters) {
      if (number > line->reserver) break;
      if (waiter.bytes <= capacity) fitting.push_back(number);
    }
    return fitting;
  }
  for (const auto& [bytes, number] : line->by_bytes) {
    if (bytes > capacity) break;
    fitting.push_back(number);
  }
  return fitting;
}

bool ByteWaitLines::Contains(const ByteBudget& budget, uint64_t number, Bytes bytes) const {
  const Line* const line = Find(budget);
  if (line == nullptr) return false;
  const auto waiter = line->waiters.find(number);
  return waiter != line->waiters.end() && waiter->second.bytes == bytes && line->by_bytes.contains({bytes, number});
}

uint64_t ByteWaitLines::size() const {
  uint64_t size = 0;
  for (const auto& [budget, line] : lines_) {
    BERTH_INVARIANT(line.by_bytes.size() == line.waiters.size() && (line.reserver != 0 || !line.waiters.empty()));
    size += line.waiters.size();
  }
  return size;
}

const ByteWaitLines::Line* ByteWaitLines::Find(const ByteBudget& budget) const {
  const auto found = lines_.find(budget.number());
  return found == lines_.end() ? nullptr : &found->second;
}

uint64_t ByteWaitLines::PassesOf(const Line& line, const Waiter& waiter) const {
  return std::min(passes_before_reserve_, line.grants - std::max(waiter.since, line.reserved_at));
}

bool ByteWaitLines::Reserves(const Line& line, const ByteBudget& budget, uint64_t number) {
  return line.reserver != 0 && line.reserver < number && budget.Judge(line.reserver_bytes) != ByteBudget::Verdict::kNow;
}

}  // namespace berth::core
