// ArenaBins: free extents by size, for fast lookup of a large enough extent. Holds a list for each size class, and a
// bit for each list that is not empty.

#ifndef CLIENT_SDK_ARENA_ARENA_BINS_H_
#define CLIENT_SDK_ARENA_ARENA_BINS_H_

#include <array>
#include <bit>
#include <cstdint>

#include "client/sdk/arena/arena_chunk.h"
#include "client/sdk/arena/arena_size_classes.h"

namespace berth::internal {

// Thread-compatible. Refers to extents, which the heap owns.
class ArenaBins {
 public:
  ArenaBins() = default;
  ArenaBins(const ArenaBins&) = delete;
  ArenaBins& operator=(const ArenaBins&) = delete;

  // In granules.
  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Requires: `extent` is in no bins; `bin` is the largest class that fits into it.
  void Insert(ArenaExtent* extent, uint32_t bin) {
    extent->size_class = bin;
    extent->bins = this;
    extent->previous = nullptr;
    extent->next = heads_[bin];
    if (extent->next != nullptr) extent->next->previous = extent;
    heads_[bin] = extent;
    words_[bin / 64] |= uint64_t{1} << bin % 64;
    size_ += extent->size;
  }

  // Requires: `extent` is in these bins.
  void Remove(ArenaExtent* extent) {
    const uint32_t bin = extent->size_class;
    if (extent->previous != nullptr) extent->previous->next = extent->next;
    if (extent->next != nullptr) extent->next->previous = extent->previous;
    if (heads_[bin] == extent) heads_[bin] = extent->next;
    if (heads_[bin] == nullptr) words_[bin / 64] &= ~(uint64_t{1} << bin % 64);
    extent->bins = nullptr;
    extent->previous = nullptr;
    extent->next = nullptr;
    size_ -= extent->size;
  }

  // Returns an extent of the first nonempty class from `first` to `last`; null where all are empty.
  ArenaExtent* First(uint32_t first, uint32_t last) const {
    uint32_t word = first / 64;
    uint64_t bits = words_[word] & ~uint64_t{0} << first % 64;
    while (bits == 0) {
      if (++word == words_.size()) return nullptr;
      bits = words_[word];
    }
    const uint32_t bin = word * 64 + std::countr_zero(bits);
    return bin <= last ? heads_[bin] : nullptr;
  }

  // Calls `visit` for each extent. `visit` may remove the extent it is called with.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (ArenaExtent* const head : heads_) {
      for (ArenaExtent *extent = head, *next; extent != nullptr; extent = next) {
        next = extent->next;
        visit(extent);
      }
    }
  }

 private:
  std::array<ArenaExtent*, ArenaSizeClasses::kCount> heads_ = {};
  std::array<uint64_t, (ArenaSizeClasses::kCount + 63) / 64> words_ = {};
  uint64_t size_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_ARENA_BINS_H_
