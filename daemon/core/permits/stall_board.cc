#include "daemon/core/permits/stall_board.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/core/types/invariant.h"

namespace berth::core {

size_t ThresholdList::ChunkOf(uint64_t ticket) const {
  const auto after = std::upper_bound(
      chunks_.begin(), chunks_.end(), ticket,
      [](uint64_t searched, const Chunk& chunk) { return searched < chunk.items.front().ticket; });
  return after == chunks_.begin() ? 0 : after - chunks_.begin() - 1;
}

void ThresholdList::Recount(Chunk& chunk) {
  chunk.least = std::numeric_limits<uint64_t>::max();
  for (const Item& item : chunk.items) chunk.least = std::min(chunk.least, item.threshold);
}

void ThresholdList::Insert(uint64_t ticket, uint64_t threshold) {
  if (chunks_.empty()) {
    chunks_.push_back({.least = threshold, .items = {{ticket, threshold}}});
    return;
  }
  const size_t at = ChunkOf(ticket);
  std::vector<Item>& items = chunks_[at].items;
  const auto before = [](const Item& item, uint64_t searched) { return item.ticket < searched; };
  items.insert(std::lower_bound(items.begin(), items.end(), ticket, before), {ticket, threshold});
  chunks_[at].least = std::min(chunks_[at].least, threshold);
  if (items.size() <= kMost) return;
  // New tickets usually come last, so a full chunk stays full.
  const size_t keeps = items.back().ticket == ticket ? items.size() - 1 : items.size() / 2;
  Chunk rest;
  rest.items.assign(items.begin() + keeps, items.end());
  items.resize(keeps);
  Recount(rest);
  Recount(chunks_[at]);
  chunks_.insert(chunks_.begin() + at + 1, std::move(rest));
}

void ThresholdList::Erase(uint64_t ticket) {
  BERTH_INVARIANT(!chunks_.empty());
  const size_t at = ChunkOf(ticket);
  std::vector<Item>& items = chunks_[at].items;
  const auto before = [](const Item& item, uint64_t searched) { return item.ticket < searched; };
  const auto item = std::lower_bound(items.begin(), items.end(), ticket, before);
  BERTH_INVARIANT(item != items.end() && item->ticket == ticket);
  items.erase(item);
  if (items.empty()) {
    chunks_.erase(chunks_.begin() + at);
    return;
  }
  // Merges two chunks that together are at most a quarter full, to bound the number of chunks.
  if (at + 1 < chunks_.size() && items.size() + chunks_[at + 1].items.size() <= kMost / 4) {
    items.insert(items.end(), chunks_[at + 1].items.begin(), chunks_[at + 1].items.end());
    chunks_.erase(chunks_.begin() + at + 1);
  }
  Recount(chunks_[at]);
}

uint64_t ThresholdList::Least() const {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const Chunk& chunk : chunks_) least = std::min(least, chunk.least);
  return least;
}

uint64_t ThresholdList::First(uint64_t after, uint64_t value) const {
  for (size_t at = ChunkOf(after); at < chunks_.size(); ++at) {
    if (chunks_[at].least > value) continue;
    for (const Item& item : chunks_[at].items) {
      if (item.ticket > after && item.threshold <= value) return item.ticket;
    }
  }
  return 0;
}

void StallBoard::Enter(Class of, uint64_t ticket, const Stalls& stalls) {
  if (stalls.empty()) open_[of].insert(ticket);
  for (const Stall& stall : stalls) {
    if (!stall.also.empty()) {
      EnterBundle(of, ticket, stall);
      continue;
    }
    Rack& rack = RackOf(stall.gauge);
    const Place place = PlaceOf(stall.gauge, of);
    const auto [dial, fresh] = rack.dials.try_emplace(place);
    if (fresh || stall.threshold < dial->second.least) {
      dial->second.least = stall.threshold;
      rack.hot.insert(place);
    }
    dial->second.lists[of].Insert(ticket, stall.threshold);
  }
}

void StallBoard::Leave(Class of, uint64_t ticket, const Stalls& stalls) {
  for (const Stall& stall : stalls) {
    if (!stall.also.empty()) {
      LeaveBundle(of, ticket, stall);
      continue;
    }
    Rack& rack = RackOf(stall.gauge);
    const auto dial = rack.dials.find(PlaceOf(stall.gauge, of));
    const auto list = dial->second.lists.find(of);
    list->second.Erase(ticket);
    if (list->second.empty()) dial->second.lists.erase(list);
    if (!dial->second.lists.empty()) continue;
    rack.hot.erase(dial->first);
    rack.dials.erase(dial);
  }
  if (!stalls.empty()) return;
  const auto open = open_.find(of);
  open->second.erase(ticket);
  if (open->second.empty()) open_.erase(open);
}

bool StallBoard::Look(const Place& place, Dial& dial, Read read) {
  ++gauges_read_;
  const uint64_t value = read(place.second, place.first);
  if (value < dial.least) return false;
  // The cached least threshold may belong to a line that has left.
  dial.least = std::numeric_limits<uint64_t>::max();
  for (const auto& [of, list] : dial.lists) {
    const uint64_t least = list.Least();
    dial.least = std::min(dial.least, least);
    if (least <= value) reached_.push_back({of, place.first, value});
  }
  return dial.least <= value;
}

void StallBoard::Refresh(Read read, Version version) {
  reached_.clear();
  for (size_t kind = 0; kind < racks_.size(); ++kind) {
    Rack& rack = racks_[kind];
    if (rack.dials.empty()) continue;
    const uint64_t now = version(static_cast<Gauge::Kind>(kind));
    if (std::exchange(rack.version, now) != now || now == kUnknown) {
      rack.hot.clear();
      for (auto& [place, dial] : rack.dials) {
        if (Look(place, dial, read) && now != kUnknown) rack.hot.insert(place);
      }
    } else {
      for (auto it = rack.hot.begin(); it != rack.hot.end();) {
        it = Look(*it, rack.dials.at(*it), read) ? std::next(it) : rack.hot.erase(it);
      }
    }
  }
  std::sort(reached_.begin(), reached_.end());
  RefreshBundles(read, version);
}

std::vector<StallBoard::Class> StallBoard::Live() const {
  std::vector<Class> live;
  for (const auto& [of, tickets] : open_) live.push_back(of);
  for (const Reached& reached : reached_) live.push_back(reached.of);
  for (const ReachedBundle& reached : reached_bundles_) live.push_back(reached.of);
  std::sort(live.begin(), live.end());
  live.erase(std::unique(live.begin(), live.end()), live.end());
  return live;
}

uint64_t StallBoard::First(Class of, uint64_t after) const {
  uint64_t first = std::numeric_limits<uint64_t>::max();
  if (const auto open = open_.find(of); open != open_.end()) {
    const auto next = open->second.upper_bound(after);
    if (next != open->second.end()) first = *next;
  }
  const auto [begin, end] = std::equal_range(reached_.begin(), reached_.end(), Reached{.of = of, .gauge = {}});
  for (auto reached = begin; reached != end; ++reached) {
    const Rack& rack = RackOf(reached->gauge);
    const auto dial = rack.dials.find(PlaceOf(reached->gauge, of));
    if (dial == rack.dials.end()) continue;
    const auto list = dial->second.lists.find(of);
    if (list == dial->second.lists.end()) continue;
    const uint64_t ticket = list->second.First(after, reached->value);
    if (ticket != 0) first = std::min(first, ticket);
  }
  if (const uint64_t ticket = FirstBundled(of, after); ticket != 0) first = std::min(first, ticket);
  return first == std::numeric_limits<uint64_t>::max() ? 0 : first;
}

bool StallBoard::IsCurrent(Read read, Version version) const {
  for (size_t kind = 0; kind < racks_.size(); ++kind) {
    const Rack& rack = racks_[kind];
    if (rack.dials.empty()) continue;
    const uint64_t now = version(static_cast<Gauge::Kind>(kind));
    if (now == kUnknown || rack.version != now) continue;
    for (const auto& [place, dial] : rack.dials) {
      if (!rack.hot.contains(place) && read(place.second, place.first) >= dial.least) return false;
    }
  }
  return BundlesAreCurrent(read, version);
}

}  // namespace berth::core
