// BiasedCount counts guards, cheaply on the thread that made it. That thread, the owner, counts with plain loads and
// stores instead of locked instructions. The first other thread that drops a guard ends this mode. That thread issues a
// barrier on every core that runs the process (membarrier(2)), so that the owner sees the change from its next step on.
// The thread then takes over the owner's count, and from then on all threads share one atomic counter.
//
// Where the kernel has no such barrier, all threads share the atomic counter from the start.

#ifndef CLIENT_SDK_PERMITS_BIASED_COUNT_H_
#define CLIENT_SDK_PERMITS_BIASED_COUNT_H_

#include <atomic>
#include <cstdint>

namespace berth::internal {

// Starts at one. Thread-safe, except the methods that only the owner may call.
class BiasedCount {
 public:
  // `owned`: the calling thread is the owner; otherwise the count has no owner.
  explicit BiasedCount(bool owned);
  BiasedCount(const BiasedCount&) = delete;
  BiasedCount& operator=(const BiasedCount&) = delete;

  // Adds one unless the count is zero; returns whether it did. Only for the owner.
  bool AddToSome() {
    if (BeginOwn()) {
      const uint32_t own = own_.load(std::memory_order_relaxed);
      if (own > 0) own_.store(own + 1, std::memory_order_relaxed);
      EndOwn();
      return own > 0;
    }
    Share();
    // A surplus of one is harmless: only the owner adds, and at zero no thread drops.
    if (shared_.fetch_add(1, std::memory_order_acquire) > 0) return true;
    shared_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }

  // Drops one; returns whether it was the last.
  bool Drop() {
    if (owner_ == &thread_mark && BeginOwn()) {
      const uint32_t left = own_.load(std::memory_order_relaxed) - 1;
      own_.store(left, std::memory_order_release);
      EndOwn();
      return left == 0;
    }
    Share();
    return shared_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

  // Ends the ownership. The owner calls it before its thread ends.
  void Share() {
    if (mode_.load(std::memory_order_acquire) != Mode::kShared) TakeOver();
  }

  // For inspection: never less than the true count.
  uint32_t value() const {
    return shared_.load(std::memory_order_relaxed) + own_.load(std::memory_order_relaxed);
  }

 private:
  enum class Mode : uint8_t { kOwned, kTakenOver, kShared };

  // Whether the owner may count with plain stores until EndOwn(). Requires: called on the owner's thread, or on a count
  // without an owner.
  bool BeginOwn() {
    owner_counts_.store(true, std::memory_order_relaxed);
    // A thread that takes over has seen every core's stores before it reads, so only the compiler must preserve the
    // order.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (mode_.load(std::memory_order_relaxed) == Mode::kOwned) return true;
    EndOwn();
    return false;
  }
  void EndOwn() { owner_counts_.store(false, std::memory_order_release); }
  void TakeOver();
  // Whether this process is a fork of the process that made the count. The owner and a thread that was taking over may
  // not exist in a fork.
  bool Forked() const;

  // The address of the mark identifies the thread.
  static inline constinit thread_local char thread_mark = 0;

  const uint32_t made_at_;
  std::atomic<Mode> mode_;
  std::atomic<bool> owner_counts_ = false;
  // Null for a count without an owner. The owner lives while the mode is kOwned.
  const char* const owner_;
  // Guards counted by the owner, and by all other threads.
  std::atomic<uint32_t> own_;
  std::atomic<uint32_t> shared_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_PERMITS_BIASED_COUNT_H_
