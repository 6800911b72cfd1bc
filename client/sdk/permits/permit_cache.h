// PermitCache: the one permit that this process caches between its uses (common/wire/permit_slot.h).

#ifndef CLIENT_SDK_PERMITS_PERMIT_CACHE_H_
#define CLIENT_SDK_PERMITS_PERMIT_CACHE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "client/sdk/permits/permit_watch.h"
#include "client/sdk/permits/spin_lock.h"
#include "common/wire/permit_slot.h"

namespace berth::internal {

// Thread-safe.
class PermitCache {
 public:
  // The cached permit. The owner of a Use uses the permit.
  struct Use {
    PermitSlot* permit_slot = nullptr;
    uint64_t permit = 0;
    uint64_t acquisition = 0;
    // Holder key under which the daemon knows the permit.
    std::string holder_key;
    // Record of the daemon's notices about the permit.
    std::shared_ptr<PermitRecord> record;
  };

  // Whether the calling thread must obtain this process's permit slot: true for exactly one call. The thread of that
  // call then calls Open().
  bool BeginOpen() {
    State expected = State::kNew;
    return state_.compare_exchange_strong(expected, State::kOpening);
  }
  // `permit_slot` must outlive the cache; null where no permit slot is available. Ignored after Close(): the slot may
  // be an earlier daemon's.
  void Open(PermitSlot* permit_slot) {
    permit_slot_ = permit_slot;
    State expected = State::kOpening;
    state_.compare_exchange_strong(expected, permit_slot == nullptr ? State::kNone : State::kOpen,
                                   std::memory_order_acq_rel);
  }
  // Whether the process may request a permit to cache.
  bool open() const { return state_.load(std::memory_order_acquire) == State::kOpen; }

  // Takes the cached permit of `pool`, if it is not in use, no waiter needs it, and the daemon has not taken it back.
  std::optional<Use> Take(absl::string_view pool) ABSL_LOCKS_EXCLUDED(mu_) {
    SpinLockHolder lock(&mu_);
    if (pool_ != pool || !use_.permit_slot->Take(use_.permit)) return std::nullopt;
    return use_;
  }

  // Stops caching. Returns the cached permit if it is not in use; the caller must give it back. The release has no
  // effect where the daemon has already taken the permit back. A permit in use is released like any other.
  std::optional<Use> Close() ABSL_LOCKS_EXCLUDED(mu_) {
    state_.store(State::kNone, std::memory_order_release);
    SpinLockHolder lock(&mu_);
    const bool cached = !std::exchange(pool_, std::string()).empty();
    if (!cached || use_.permit_slot->Leave(use_.permit)) return std::nullopt;
    return use_;
  }

  // Caches a granted permit of `pool`, and sets its permit slot to this process's. Returns nullopt after Close(): the
  // answer is an earlier daemon's, and the permit is like any other. Requires: the cache was open at the request for
  // the permit.
  std::optional<Use> Cache(absl::string_view pool, Use use) ABSL_LOCKS_EXCLUDED(mu_) {
    SpinLockHolder lock(&mu_);
    if (!open()) return std::nullopt;
    pool_ = std::string(pool);
    use_ = std::move(use);
    use_.permit_slot = permit_slot_;
    return use_;
  }

 private:
  enum class State { kNew, kOpening, kOpen, kNone };

  std::atomic<State> state_ = State::kNew;
  // Set before kOpen.
  PermitSlot* permit_slot_ = nullptr;
  SpinLock mu_;
  // Empty while no permit is cached.
  std::string pool_ ABSL_GUARDED_BY(mu_);
  Use use_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_PERMITS_PERMIT_CACHE_H_
