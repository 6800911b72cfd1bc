#include "daemon/core/permits/gang_byte_index.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

// The gangs of the index are in one class.
constexpr StallBoard::Class kGangs = {.tenant = 1};

}  // namespace

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
  if (entry.stalls.empty()) {
    Close(gang, entry);
  } else {
    parked_.Leave(kGangs, gang, entry.stalls);
  }
  gangs_.erase(found);
}

bool GangByteIndex::Park(uint64_t gang, const ByteBudget& on) {
  const auto found = gangs_.find(gang);
  if (found == gangs_.end() || !found->second.stalls.empty()) return false;
  Entry& entry = found->second;
  const Ask* const lacking = FindAsk(entry, on.number());
  if (lacking == nullptr) return false;
  Close(gang, entry);
  std::vector<Threshold> needs;
  const auto need = [&](const ByteBudget& budget, Bytes bytes) {
    needs.push_back({.gauge = {.kind = Gauge::Kind::kBytes, .of = &budget}, .threshold = bytes.count()});
  };
  for (const Ask& ask : entry.asks) {
    if (ask.device.has_value()) need(*ask.account, ask.bytes);
  }
  if (!lacking->device.has_value()) need(on, lacking->bytes);
  entry.stalls = {StallOfAll(std::move(needs))};
  parked_.Enter(kGangs, gang, entry.stalls);
  return true;
}

void GangByteIndex::Unpark(std::set<uint32_t>* devices) {
  parked_.Refresh(
      [](uint64_t, const Gauge& gauge) { return static_cast<const ByteBudget*>(gauge.of)->capacity().count(); },
      [](Gauge::Kind) { return StallBoard::kUnknown; });
  for (uint64_t gang = parked_.First(kGangs, 0); gang != 0; gang = parked_.First(kGangs, gang)) {
    Entry& entry = gangs_.at(gang);
    parked_.Leave(kGangs, gang, entry.stalls);
    entry.stalls.clear();
    Open(gang, entry);
    for (const Ask& ask : entry.asks) {
      if (ask.device.has_value()) devices->insert(*ask.device);
    }
  }
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
