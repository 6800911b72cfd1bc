// ArenaCache: extents that were freed a moment ago and will be asked for again, for each stream and size. An
// arena has several, so that threads seldom meet at one.
//
// It has two bounds, past which it gives extents up to the heap, where they grow together again: of a list,
// half; of the whole cache, everything.

#ifndef CLIENT_INTERNAL_ARENA_CACHE_H_
#define CLIENT_INTERNAL_ARENA_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "client/arena_options.h"
#include "client/arena_stream.h"
#include "client/internal/arena_chunk.h"
#include "client/internal/arena_size_classes.h"

namespace berth::internal {

// An extent on its way to the heap.
struct FreedExtent {
  ArenaExtent* extent;
  ArenaStream stream;
};

// Thread-compatible; ArenaCore guards each with a mutex. Refers to extents, all of them kCached.
class ArenaCache {
 public:
  // Caches the classes from 0 to `last_class`, the size of which is also the bound of all together.
  ArenaCache(ArenaSizeClasses classes, uint32_t granule_shift, uint32_t last_class)
      : classes_(classes),
        granule_shift_(granule_shift),
        last_class_(last_class),
        limit_(classes.Granules(last_class)) {}

  // An extent of `size_class` that was freed on `stream`; null where there is none.
  ArenaExtent* Pop(ArenaStream stream, uint32_t size_class) {
    if (size_class > last_class_) return nullptr;
    Stream* const known = StreamOf(stream);
    if (known == nullptr) [[unlikely]]
      return nullptr;
    List& list = known->lists[size_class];
    ArenaExtent* const extent = list.head;
    if (extent == nullptr) [[unlikely]]
      return nullptr;
    list.head = extent->next;
    --list.length;
    size_ -= extent->size;
    return extent;
  }

  // Adds an extent that was freed on `stream`. What there is no room for is appended to `overflow`.
  void Push(ArenaExtent* extent, ArenaStream stream, std::vector<FreedExtent>* overflow) {
    Stream* const known = extent->size_class <= last_class_ ? StreamOf(stream) : nullptr;
    if (known == nullptr) [[unlikely]] {
      overflow->push_back({extent, stream});
      return;
    }
    List& list = known->lists[extent->size_class];
    extent->next = list.head;
    list.head = extent;
    ++list.length;
    size_ += extent->size;
    if (size_ > limit_ || list.length > MaxLength(extent->size)) [[unlikely]] {
      Relieve(list, stream, overflow);
    }
  }

  // Makes the cache empty.
  void TakeAll(std::vector<FreedExtent>* taken);

  // Takes what `stream` freed, and its figures.
  void Forget(ArenaStream stream, std::vector<FreedExtent>* taken);

  // The figures of what threads allocated and freed through this cache; live ones may be negative, and only
  // the sum over all caches says something.
  void CountAllocation(ArenaStream stream, const ArenaExtent& extent, uint64_t requested, bool hit) {
    if (Stream* const known = StreamOf(stream)) ++known->allocations;
    ++allocations_;
    misses_ += hit ? 0 : 1;
    live_ += extent.size;
    requested_ += requested;
  }
  void CountFree(ArenaStream stream, const ArenaExtent& extent) {
    if (Stream* const known = StreamOf(stream)) ++known->frees;
    ++frees_;
    live_ -= extent.size;
    requested_ -= extent.requested;
  }

  void AddTo(ArenaStats* stats) const;

 private:
  // Streams with lists of their own. One more passes the cache by, until TakeAll() makes room.
  static constexpr size_t kMaxStreams = 64;
  static constexpr uint64_t kMaxLength = 64;
  static constexpr uint64_t kMaxListBytes = 8 << 20;

  struct List {
    ArenaExtent* head = nullptr;
    uint64_t length = 0;
  };
  struct Stream {
    Stream(ArenaStream id, size_t classes) : id(id), lists(classes) {}
    const ArenaStream id;
    std::vector<List> lists;
    uint64_t allocations = 0;
    uint64_t frees = 0;
  };

  // Null where there is no room for one more.
  Stream* StreamOf(ArenaStream id) {
    if (last_ != nullptr && last_->id == id) [[likely]]
      return last_;
    return FindOrAdd(id);
  }
  Stream* FindOrAdd(ArenaStream id);

  // Of a list of extents of `size`: two of whatever size can go to and fro.
  uint64_t MaxLength(uint64_t size) const {
    return std::clamp(kMaxListBytes / (size << granule_shift_), uint64_t{2}, kMaxLength);
  }

  // Keeps the bounds, after an extent was added to `list`.
  void Relieve(List& list, ArenaStream stream, std::vector<FreedExtent>* overflow);
  void Shorten(List& list, uint64_t length, ArenaStream stream, std::vector<FreedExtent>* taken);

  const ArenaSizeClasses classes_;
  const uint32_t granule_shift_;
  const uint32_t last_class_;
  // Granules.
  const uint64_t limit_;
  uint64_t size_ = 0;

  std::vector<std::unique_ptr<Stream>> streams_;
  // The one that was used last.
  Stream* last_ = nullptr;

  uint64_t allocations_ = 0;
  uint64_t frees_ = 0;
  uint64_t misses_ = 0;
  // Sums modulo 2^64.
  uint64_t live_ = 0;
  uint64_t requested_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ARENA_CACHE_H_
