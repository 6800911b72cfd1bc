// ArenaBins: free extents by size, so that one that is large enough is found at once: a list for each size
// class and a bit for each list that is not empty.

#ifndef CLIENT_INTERNAL_ARENA_BINS_H_
#define CLIENT_INTERNAL_ARENA_BINS_H_

#include <array>
#include <bit>
#include <cstdint>

#include "client/internal/arena_chunk.h"
#include "client/internal/arena_size_classes.h"

namespace berth::internal {

// Thread-compatible. Refers to extents, which are the heap's.
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

  // An extent of the first class from `first` to `last` that has one; null where none has.
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

  // Calls `visit` for each extent, which may remove that one.
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

#endif  // CLIENT_INTERNAL_ARENA_BINS_H_
