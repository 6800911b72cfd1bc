// ArenaCache: recently freed extents, by stream and size, for fast reuse. An arena has several caches, so that threads
// seldom contend for one.
//
// The cache has two bounds, and returns extents to the heap when it exceeds one; the heap merges them. A list over its
// bound returns half of its extents. A cache over its bound returns everything.

#ifndef CLIENT_SDK_ARENA_ARENA_CACHE_H_
#define CLIENT_SDK_ARENA_ARENA_CACHE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <berth/arena_options.h>
#include <berth/arena_stream.h>

#include "client/sdk/arena/arena_chunk.h"
#include "client/sdk/arena/arena_size_classes.h"

namespace berth::internal {

// An extent that is being returned to the heap.
struct FreedExtent {
  ArenaExtent* extent;
  ArenaStream stream;
};

// Thread-compatible; ArenaCore guards each cache with a mutex. Refers to extents, all of them kCached.
class ArenaCache {
 public:
  // Caches the classes from 0 to `last_class`. The size of `last_class` is also the bound of the whole cache.
  ArenaCache(ArenaSizeClasses classes, uint32_t granule_shift, uint32_t last_class)
      : classes_(classes),
        granule_shift_(granule_shift),
        last_class_(last_class),
        limit_(classes.Granules(last_class)) {}

  // Returns an extent of `size_class` that was freed on `stream`; null where the cache has none.
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

  // Adds an extent that was freed on `stream`. Appends the extents that exceed the bounds to `overflow`.
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

  // Empties the cache.
  void TakeAll(std::vector<FreedExtent>* taken);

  // Removes the extents that `stream` freed, and its counts.
  void Forget(ArenaStream stream, std::vector<FreedExtent>* taken);

  // Counters of allocations and frees through this cache. The counters of live memory may be negative: only their sum
  // over all caches is meaningful.
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
  // Limit of streams with lists of their own. Further streams bypass the cache until TakeAll() frees entries.
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

  // Null when the limit of streams is reached.
  Stream* StreamOf(ArenaStream id) {
    if (last_ != nullptr && last_->id == id) [[likely]]
      return last_;
    return FindOrAdd(id);
  }
  Stream* FindOrAdd(ArenaStream id);

  // Limit of a list of extents of `size`. Two extents of any size may be cached.
  uint64_t MaxLength(uint64_t size) const {
    return std::clamp(kMaxListBytes / (size << granule_shift_), uint64_t{2}, kMaxLength);
  }

  // Restores the bounds after an extent was added to `list`.
  void Relieve(List& list, ArenaStream stream, std::vector<FreedExtent>* overflow);
  void Shorten(List& list, uint64_t length, ArenaStream stream, std::vector<FreedExtent>* taken);

  const ArenaSizeClasses classes_;
  const uint32_t granule_shift_;
  const uint32_t last_class_;
  // In granules.
  const uint64_t limit_;
  uint64_t size_ = 0;

  std::vector<std::unique_ptr<Stream>> streams_;
  // The stream that was used last.
  Stream* last_ = nullptr;

  uint64_t allocations_ = 0;
  uint64_t frees_ = 0;
  uint64_t misses_ = 0;
  // Sums modulo 2^64.
  uint64_t live_ = 0;
  uint64_t requested_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_ARENA_CACHE_H_
