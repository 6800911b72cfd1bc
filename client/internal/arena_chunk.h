// ArenaChunk: one leased block of an arena, cut into extents. ArenaExtent: a piece of it, allocated or free.
//
// The memory itself may be a device's and is never touched: an extent lies in host memory beside it. Who may
// touch what of an extent:
//   word                       anyone, atomically
//   next, requested            who has the extent: the bins it is in, the cache it is in, or its allocator
//   everything else            the heap, under its lock; size, size_class and chunk do not change while the
//                              extent is out of the heap, and may be read by who has it

#ifndef CLIENT_INTERNAL_ARENA_CHUNK_H_
#define CLIENT_INTERNAL_ARENA_CHUNK_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "client/internal/arena_source.h"

namespace berth::internal {

class ArenaBins;
class ArenaChunk;

struct ArenaExtent {
  // The low bits of `word`, which addresses leave free.
  enum State : uintptr_t {
    // In the heap.
    kFree = 0,
    // In a thread's cache, or on the way there or back.
    kCached = 1,
    kLive = 2,
    // Live, and used on more streams than its own.
    kShared = 3,
  };

  uintptr_t address() const;

  // The extent's address and state in one: a free that is mistaken about either changes nothing. 0 for an
  // extent that is no more.
  std::atomic<uintptr_t> word = 0;
  // In a cache or in bins.
  ArenaExtent* next = nullptr;
  // Bytes asked for.
  uint64_t requested = 0;

  ArenaChunk* chunk = nullptr;
  // In granules, from the chunk's start.
  uint64_t start = 0;
  uint64_t size = 0;
  uint32_t size_class = 0;

  // In bins.
  ArenaExtent* previous = nullptr;
  // The bins it is in; null while it is out.
  ArenaBins* bins = nullptr;
  // Of the stream whose bins it is in (ArenaHeap).
  uint64_t epoch = 0;
  // Neighbours in the chunk.
  ArenaExtent* before = nullptr;
  ArenaExtent* after = nullptr;
};

// Thread-compatible, but for StartingAt().
class ArenaChunk {
 public:
  // `whole`: serves one size and is never cut.
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

  // The extent that was handed out at `address` last and is still one; null where there is none.
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
  // For each granule the extent that starts there. Large and mostly never looked at: pages that nobody writes
  // cost nothing.
  const std::unique_ptr<ArenaExtent*[], Freer> starts_;
};

inline uintptr_t ArenaExtent::address() const { return chunk->address() + (start << chunk->granule_shift()); }

// The chunks of an arena at one moment, by address. A value that does not change.
class ArenaChunkTable {
 public:
  ArenaChunkTable() = default;
  // Requires: chunks do not overlap.
  explicit ArenaChunkTable(std::vector<const ArenaChunk*> chunks) : chunks_(std::move(chunks)) {
    std::sort(chunks_.begin(), chunks_.end(),
              [](const ArenaChunk* a, const ArenaChunk* b) { return a->address() < b->address(); });
    for (const ArenaChunk* const chunk : chunks_) addresses_.push_back(chunk->address());
  }

  // Null where `address` is in none.
  const ArenaChunk* Find(uintptr_t address) const {
    const auto after = std::upper_bound(addresses_.begin(), addresses_.end(), address);
    if (after == addresses_.begin()) return nullptr;
    const ArenaChunk* const chunk = chunks_[after - addresses_.begin() - 1];
    return chunk->Holds(address) ? chunk : nullptr;
  }

 private:
  std::vector<const ArenaChunk*> chunks_;
  // The same in the same order: what a search reads lies together.
  std::vector<uintptr_t> addresses_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ARENA_CHUNK_H_
