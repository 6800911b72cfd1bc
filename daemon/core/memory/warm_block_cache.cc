#include "daemon/core/memory/warm_block_cache.h"

#include <algorithm>

namespace berth::core {

std::vector<BlockId> WarmBlockCache::RecordAsked(Bytes bytes) {
  if (const auto found = std::find(sizes_.begin(), sizes_.end(), bytes); found != sizes_.end()) {
    sizes_.erase(found);
  }
  sizes_.push_front(bytes);
  if (sizes_.size() <= max_sizes_) return {};
  const Bytes dropped = sizes_.back();
  sizes_.pop_back();
  return OfSize(dropped);
}

void WarmBlockCache::Put(Bytes bytes, uint64_t age, BlockId block, bool made) {
  places_.emplace(bytes.count(), !made, age, block);
}

void WarmBlockCache::MarkMade(Bytes bytes, uint64_t age, BlockId block) {
  places_.erase({bytes.count(), true, age, block});
  places_.emplace(bytes.count(), false, age, block);
}

void WarmBlockCache::Remove(Bytes bytes, uint64_t age, BlockId block) {
  places_.erase({bytes.count(), true, age, block});
  places_.erase({bytes.count(), false, age, block});
}

std::optional<BlockId> WarmBlockCache::Find(Bytes bytes) const {
  const auto found = places_.lower_bound({bytes.count(), false, 0, BlockId()});
  if (found == places_.end() || std::get<0>(*found) != bytes.count()) return std::nullopt;
  return std::get<BlockId>(*found);
}

std::vector<BlockId> WarmBlockCache::OfSize(Bytes bytes) const {
  std::vector<BlockId> blocks;
  for (auto it = places_.lower_bound({bytes.count(), false, 0, BlockId()});
       it != places_.end() && std::get<0>(*it) == bytes.count(); ++it) {
    blocks.push_back(std::get<BlockId>(*it));
  }
  return blocks;
}

uint64_t WarmBlockCache::Count(Bytes bytes) const { return OfSize(bytes).size(); }

std::vector<BlockId> WarmBlockCache::All() const {
  std::vector<BlockId> blocks;
  // Blocks of sizes that are no longer cached come first.
  for (const Place& place : places_) {
    const Bytes bytes(std::get<0>(place));
    const bool stays = std::find(sizes_.begin(), sizes_.end(), bytes) != sizes_.end();
    if (!stays) blocks.push_back(std::get<BlockId>(place));
  }
  for (auto size = sizes_.rbegin(); size != sizes_.rend(); ++size) {
    for (const BlockId block : OfSize(*size)) blocks.push_back(block);
  }
  return blocks;
}

}  // namespace berth::core
