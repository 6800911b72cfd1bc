#include "daemon/core/permits/gang_byte_index.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/core/types/invariant.h"

namespace berth::core {

const GangByteIndex::Ask* GangByteIndex::FindAsk(const Entry& entry, uint64_t budget) {
  const auto found = std::find_if(entry.asks.begin(), entry.asks.end(),
                                  [&](const Ask& ask) { return ask.budget == budget; });
  return found == entry.asks.end() ? nullptr : &*found;
}

void GangByteIndex::Open(uint64_t gang, const Entry& entry) {
  for (const Ask& ask : entry.asks) {
    if (ask.device.has_value()) open_.insert({ask.budget, ask.bytes, gang});
  }
}

void GangByteIndex::Close(uint64_t gang, const Entry& entry) {
  for (const Ask& ask : entry.asks) {
    if (ask.device.has_value()) open_.erase({ask.budget, ask.bytes, gang});
  }
}

void GangByteIndex::Add(uint64_t gang, std::vector<Ask> asks) {
  const auto [at, fresh] = gangs_.try_emplace(gang, Entry{.asks = std::move(asks)});
  BERTH_INVARIANT(fresh);
  for (const Ask& ask : at->second.asks) asks_.insert({ask.budget, ask.bytes, gang});
  Open(gang, at->second);
}

void GangByteIndex::Remove(uint64_t gang) {
  const auto found = gangs_.find(gang);
  if (found == gangs_.end()) return;
  const Entry& entry = found->second;
  for (const Ask& ask : entry.asks) asks_.erase({ask.budget, ask.bytes, gang});
  if (entry.parked_on == 0) {
    Close(gang, entry);
  } else {
    parked_.erase({entry.parked_on, FindAsk(entry, entry.parked_on)->bytes, gang});
  }
  gangs_.erase(found);
}

bool GangByteIndex::Park(uint64_t gang, const ByteBudget& on) {
  const auto found = gangs_.find(gang);
  if (found == gangs_.end() || found->second.parked_on != 0) return false;
  Entry& entry = found->second;
  const Ask* const ask = FindAsk(entry, on.number());
  if (ask == nullptr) return false;
  Close(gang, entry);
  entry.parked_on = on.number();
  parked_.insert({on.number(), ask->bytes, gang});
  return true;
}

void GangByteIndex::Unpark(const ByteBudget& budget, std::set<uint32_t>* devices) {
  const Bytes capacity = budget.capacity();
  const auto first = parked_.lower_bound({budget.number(), Bytes(), 0});
  auto last = first;
  for (; last != parked_.end() && std::get<0>(*last) == budget.number() && std::get<1>(*last) <= capacity; ++last) {
    const uint64_t gang = std::get<2>(*last);
    Entry& entry = gangs_.at(gang);
    entry.parked_on = 0;
    Open(gang, entry);
    for (const Ask& ask : entry.asks) {
      if (ask.device.has_value()) devices->insert(*ask.device);
    }
  }
  parked_.erase(first, last);
}

std::vector<uint64_t> GangByteIndex::FindTooLarge(const ByteBudget& budget) const {
  std::vector<uint64_t> gangs;
  if (!budget.limit().has_value()) return gangs;
  for (auto ask = asks_.upper_bound({budget.number(), *budget.limit(), UINT64_MAX});
       ask != asks_.end() && std::get<0>(*ask) == budget.number(); ++ask) {
    gangs.push_back(std::get<2>(*ask));
  }
  return gangs;
}

uint64_t GangByteIndex::FindComing(const ByteBudget& device) const {
  const auto after = open_.upper_bound({device.number(), device.capacity(), UINT64_MAX});
  if (after == open_.begin()) return 0;
  const auto& [budget, bytes, gang] = *std::prev(after);
  return budget == device.number() && bytes > device.remaining() ? gang : 0;
}

}  // namespace berth::core
