// PermitCache: the one permit that this process keeps between its uses (common/permit_word.h).

#ifndef CLIENT_INTERNAL_PERMIT_CACHE_H_
#define CLIENT_INTERNAL_PERMIT_CACHE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "client/internal/permit_watch.h"
#include "client/internal/spin_lock.h"
#include "common/permit_word.h"

namespace berth::internal {

// Thread-safe.
class PermitCache {
 public:
  // What is kept: whoever has one of these uses the permit.
  struct Use {
    PermitWord* word = nullptr;
    uint64_t permit = 0;
    uint64_t acquisition = 0;
    // The daemon knows the permit by it.
    std::string holder_key;
    // What the daemon says of the permit.
    std::shared_ptr<PermitRecord> record;
  };

  // Whether the calling thread is the one to find this process's word: true once; then it calls Open().
  bool BeginOpen() {
    State expected = State::kNew;
    return state_.compare_exchange_strong(expected, State::kOpening);
  }
  // `word` stays as long as this; null where there is none to be had.
  void Open(PermitWord* word) {
    word_ = word;
    state_.store(word == nullptr ? State::kNone : State::kOpen, std::memory_order_release);
  }
  // Whether a permit may be asked for that is to be kept.
  bool open() const { return state_.load(std::memory_order_acquire) == State::kOpen; }

  // Takes what is kept of `pool`, if it is not in use, nobody waits for it, and it was not taken back.
  std::optional<Use> Take(absl::string_view pool) ABSL_LOCKS_EXCLUDED(mu_) {
    SpinLockHolder lock(&mu_);
    if (pool_ != pool || !use_.word->Take(use_.permit)) return std::nullopt;
    return use_;
  }

  // A permit of `pool` was granted, to be kept; its word is this process's. Requires: open().
  Use Keep(absl::string_view pool, Use use) ABSL_LOCKS_EXCLUDED(mu_) {
    SpinLockHolder lock(&mu_);
    pool_ = std::string(pool);
    use_ = std::move(use);
    use_.word = word_;
    return use_;
  }

 private:
  enum class State { kNew, kOpening, kOpen, kNone };

  std::atomic<State> state_ = State::kNew;
  // Set before kOpen.
  PermitWord* word_ = nullptr;
  SpinLock mu_;
  // Empty while nothing is kept.
  std::string pool_ ABSL_GUARDED_BY(mu_);
  Use use_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_PERMIT_CACHE_H_
