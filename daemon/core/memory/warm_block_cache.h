// WarmBlockCache: one device's cache of blocks created ahead of demand, by size, and the sizes that it caches: the most
// recently requested ones. Its blocks have no owner and were never delivered. Thread-compatible.

#ifndef DAEMON_CORE_MEMORY_WARM_BLOCK_CACHE_H_
#define DAEMON_CORE_MEMORY_WARM_BLOCK_CACHE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

namespace berth::core {

class WarmBlockCache {
 public:
  explicit WarmBlockCache(uint32_t max_sizes) : max_sizes_(max_sizes) {}

  // Records a request for a block of `bytes`. Returns the blocks of the size that is no longer cached; they are still
  // in the cache.
  std::vector<BlockId> RecordAsked(Bytes bytes);

  // Adds a block. `age` orders blocks: the older is taken first. `made`: it exists; otherwise it is being created.
  void Put(Bytes bytes, uint64_t age, BlockId block, bool made);
  void MarkMade(Bytes bytes, uint64_t age, BlockId block);
  // Ignored if the block is not in the cache.
  void Remove(Bytes bytes, uint64_t age, BlockId block);
  // Returns the block for a request of exactly `bytes`: an existing block if possible, else one being created.
  std::optional<BlockId> Find(Bytes bytes) const;
  uint64_t Count(Bytes bytes) const;
  // Returns the cached sizes, most recently requested first.
  std::vector<Bytes> sizes() const { return {sizes_.begin(), sizes_.end()}; }
  // Returns the blocks of every size, least recently requested first.
  std::vector<BlockId> All() const;

 private:
  // Size, whether the block is still being created, age.
  using Place = std::tuple<uint64_t, bool, uint64_t, BlockId>;
  std::vector<BlockId> OfSize(Bytes bytes) const;

  const uint32_t max_sizes_;
  // Most recently requested first.
  std::deque<Bytes> sizes_;
  std::set<Place> places_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_WARM_BLOCK_CACHE_H_
