// LeaseWord says whether this process may still use a block: one atomic per block, set by the channel's
// reader, read by GpuRef::Access() without a lock.

#ifndef CLIENT_INTERNAL_LEASE_WORD_H_
#define CLIENT_INTERNAL_LEASE_WORD_H_

#include <atomic>
#include <cstdint>

namespace berth::internal {

enum class Lease : uint64_t {
  kLive = 0,
  // The owner freed the block.
  kFreed = 1,
  // The session is over for this process.
  kEnded = 2,
};

using LeaseWord = std::atomic<Lease>;
static_assert(LeaseWord::is_always_lock_free);

// What the channel says of a block to all its imports in this process.
struct LeaseRecord {
  LeaseWord word = Lease::kLive;
  // Somebody asked for it back; it may be used on.
  std::atomic<bool> asked_back = false;
};

// Moves `word` away from kLive; the first reason stays.
inline void EndLease(LeaseWord& word, Lease why) {
  Lease live = Lease::kLive;
  word.compare_exchange_strong(live, why, std::memory_order_release, std::memory_order_relaxed);
}

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_LEASE_WORD_H_
