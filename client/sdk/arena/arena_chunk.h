// ArenaChunk: one leased block of an arena, cut into extents. ArenaExtent: a piece of it, allocated or free.
//
// The memory itself may be a device's and is never touched: an extent's descriptor lies in host memory. Access to the
// fields of an extent:
//   address_and_state          any thread, atomically
//   next, requested            the extent's holder: the bins or the cache that contain it, or its allocator
//   everything else            the heap, under its lock; size, size_class and chunk do not change while the
//                              extent is out of the heap, and its holder may read them

#ifndef CLIENT_SDK_ARENA_ARENA_CHUNK_H_
#define CLIENT_SDK_ARENA_ARENA_CHUNK_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "client/sdk/arena/arena_source.h"

namespace berth::internal {

class ArenaBins;
class ArenaChunk;

struct ArenaExtent {
  // The low bits of `address_and_state`, which addresses leave free.
  enum State : uintptr_t {
    // In the heap.
    kFree = 0,
    // In a thread's cache, or in transit to or from it.
    kCached = 1,
    kLive = 2,
    // Live, and used on further streams.
    kShared = 3,
  };

  uintptr_t address() const;

  // The extent's address and state in one atomic, so that a free with a wrong address or state changes nothing. 0 for a
  // retired extent.
  std::atomic<uintptr_t> address_and_state = 0;
  // Next extent in the cache's list or in the bins.
  ArenaExtent* next = nullptr;
  // Bytes that the caller requested.
  uint64_t requested = 0;

  ArenaChunk* chunk = nullptr;
  // In granules, from the chunk's start.
  uint64_t start = 0;
  uint64_t size = 0;
  uint32_t size_class = 0;

  // Previous extent in the bins.
  ArenaExtent* previous = nullptr;
  // The bins that contain the extent; null while it is out.
  ArenaBins* bins = nullptr;
  // Epoch of the free, while the extent is in a stream's bins (ArenaHeap).
  uint64_t epoch = 0;
  // Neighbours in the chunk; null at its edges.
  ArenaExtent* before = nullptr;
  ArenaExtent* after = nullptr;
};

// Thread-compatible, except StartingAt(), which is thread-safe.
class ArenaChunk {
 public:
  // `whole`: the chunk serves one size and is never cut.
  ArenaChunk(std::unique_ptr<ArenaLease> lease, uint32_t granule_shift, bool whole)
      : lease_(std::move(lease)),
        address_(lease_->address()),
        bytes_(lease_->bytes().count()),
        granule_shift_(granule_shift),
        whole_(whole),
        starts_(static_cast<ArenaExtent**>(std::calloc(whole ? 1 : granules(), sizeof(ArenaExtent*)))) {}
  ArenaChunk(const ArenaChunk&) = delete;
  ArenaChunk& operator=(const ArenaChunk&) = delete;

  uintptr_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t granules() const { return bytes_ >> granule_shift_; }
  uint32_t granule_shift() const { return granule_shift_; }
  bool whole() const { return whole_; }
  const ArenaLease& lease() const { return *lease_; }
  std::unique_ptr<ArenaLease> TakeLease() { return std::move(lease_); }
  bool Holds(uintptr_t address) const { return address - address_ < bytes_; }

  // Returns the extent that was last handed out at `address`, if it still exists; else null.
  // Thread-safe. Requires: Holds(address).
  ArenaExtent* StartingAt(uintptr_t address) const {
    const uint64_t offset = address - address_;
    const uint64_t granule = offset >> granule_shift_;
    if (granule << granule_shift_ != offset || (whole_ && offset != 0)) return nullptr;
    return std::atomic_ref(starts_.get()[granule]).load(std::memory_order_acquire);
  }
  void SetStart(uint64_t granule, ArenaExtent* extent) {
    std::atomic_ref(starts_.get()[granule]).store(extent, std::memory_order_release);
  }

 private:
  struct Freer {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::unique_ptr<ArenaLease> lease_;
  const uintptr_t address_;
  const uint64_t bytes_;
  const uint32_t granule_shift_;
  const bool whole_;
  // For each granule, the extent that starts there. The array is large but mostly untouched: pages that are never
  // written take no memory.
  const std::unique_ptr<ArenaExtent*[], Freer> starts_;
};

inline uintptr_t ArenaExtent::address() const { return chunk->address() + (start << chunk->granule_shift()); }

// The chunks of an arena at one moment, sorted by address. Immutable.
class ArenaChunkTable {
 public:
  ArenaChunkTable() = default;
  // Requires: chunks do not overlap.
  explicit ArenaChunkTable(std::vector<const ArenaChunk*> chunks) : chunks_(std::move(chunks)) {
    std::sort(chunks_.begin(), chunks_.end(),
              [](const ArenaChunk* a, const ArenaChunk* b) { return a->address() < b->address(); });
    for (const ArenaChunk* const chunk : chunks_) addresses_.push_back(chunk->address());
  }

  // Returns null where no chunk holds `address`.
  const ArenaChunk* Find(uintptr_t address) const {
    const auto after = std::upper_bound(addresses_.begin(), addresses_.end(), address);
    if (after == addresses_.begin()) return nullptr;
    const ArenaChunk* const chunk = chunks_[after - addresses_.begin() - 1];
    return chunk->Holds(address) ? chunk : nullptr;
  }

 private:
  std::vector<const ArenaChunk*> chunks_;
  // Addresses in the order of chunks_, contiguous for a fast search.
  std::vector<uintptr_t> addresses_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_ARENA_CHUNK_H_
