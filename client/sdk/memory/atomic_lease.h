// AtomicLease states whether this process may still use a block. One atomic per block: the channel's reader sets it,
// GpuRef::Access() reads it without a lock.

#ifndef CLIENT_SDK_MEMORY_ATOMIC_LEASE_H_
#define CLIENT_SDK_MEMORY_ATOMIC_LEASE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <berth/block_event.h>

namespace berth::internal {

enum class Lease : uint64_t {
  kLive = 0,
  // The owner freed the block.
  kFreed = 1,
  // The session is over for this process.
  kEnded = 2,
  // The daemon lost the block's memory.
  kLost = 3,
};

using AtomicLease = std::atomic<Lease>;
static_assert(AtomicLease::is_always_lock_free);

// An import's listener to the end of its block; owned by the import.
struct BlockListener {
  std::function<void(const BlockEvent&)> on_event;
};

// The channel's state of a block, shared by all its imports in this process.
struct LeaseRecord {
  AtomicLease state = Lease::kLive;
  // Whether the return of the block was requested; this process may continue to use it.
  std::atomic<bool> asked_back = false;
  // The block's first event, and the listeners until then. The channel's BlockWatch guards both.
  std::optional<BlockEvent> event;
  std::vector<std::weak_ptr<BlockListener>> listeners;
};

// Moves `state` away from kLive; the first reason remains.
inline void EndLease(AtomicLease& state, Lease why) {
  Lease live = Lease::kLive;
  state.compare_exchange_strong(live, why, std::memory_order_release, std::memory_order_relaxed);
}

}  // namespace berth::internal

#endif  // CLIENT_SDK_MEMORY_ATOMIC_LEASE_H_
