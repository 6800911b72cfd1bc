// WarmShelf: one device's blocks that are made ahead of demand, by size, and which sizes deserve it: those
// asked for most recently. Blocks here are nobody's and were never delivered. Thread-compatible.

#ifndef DAEMON_CORE_WARM_SHELF_H_
#define DAEMON_CORE_WARM_SHELF_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "common/bytes.h"
#include "common/ids.h"

namespace berth::core {

class WarmShelf {
 public:
  explicit WarmShelf(uint32_t max_sizes) : max_sizes_(max_sizes) {}

  // Somebody asked for a block of `bytes`. Returns the blocks of a size that is kept no longer, still on the
  // shelf.
  std::vector<BlockId> NoteAsked(Bytes bytes);

  // `age` orders blocks: the older is taken first. `made`: it is there, rather than being made.
  void Put(Bytes bytes, uint64_t age, BlockId block, bool made);
  void MarkMade(Bytes bytes, uint64_t age, BlockId block);
  // Ignored if it is not on the shelf.
  void Remove(Bytes bytes, uint64_t age, BlockId block);
  // The block to take for a request of exactly `bytes`: one that is there, else one being made.
  std::optional<BlockId> Find(Bytes bytes) const;
  uint64_t Count(Bytes bytes) const;
  // That are kept, most recently asked first.
  std::vector<Bytes> sizes() const { return {sizes_.begin(), sizes_.end()}; }
  // Of every size, least recently asked first.
  std::vector<BlockId> All() const;

 private:
  // Size, whether it is still being made, age.
  using Place = std::tuple<uint64_t, bool, uint64_t, BlockId>;
  std::vector<BlockId> OfSize(Bytes bytes) const;

  const uint32_t max_sizes_;
  // Most recently asked first.
  std::deque<Bytes> sizes_;
  std::set<Place> places_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_WARM_SHELF_H_
