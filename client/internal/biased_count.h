// BiasedCount counts guards, cheaply on the thread that made it: that thread, its owner, counts with plain loads
// and stores, where locked instructions would be needed otherwise. The first other thread that drops a guard ends that:
// by a barrier on every core that the process runs on (membarrier(2)) it is sure that the owner sees it from its next
// step on, it takes over what the owner has counted, and then everybody counts in one atomic word.
//
// Where the kernel has no such barrier, everybody does from the start.

#ifndef CLIENT_INTERNAL_BIASED_COUNT_H_
#define CLIENT_INTERNAL_BIASED_COUNT_H_

#include <atomic>
#include <cstdint>

namespace berth::internal {

// Starts at one. Thread-safe, but for what is the owner's alone.
class BiasedCount {
 public:
  // The calling thread is its owner, or nobody.
  explicit BiasedCount(bool owned);
  BiasedCount(const BiasedCount&) = delete;
  BiasedCount& operator=(const BiasedCount&) = delete;

  // Adds one, unless there is none left; returns whether it did. The owner's alone.
  bool AddToSome() {
    if (BeginOwn()) {
      const uint32_t own = own_.load(std::memory_order_relaxed);
      if (own > 0) own_.store(own + 1, std::memory_order_relaxed);
      EndOwn();
      return own > 0;
    }
    Share();
    // One too many, which only the owner adds, is nobody's to see: at none nothing is dropped.
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

  // From now on nobody owns it. The owner calls it before it ends.
  void Share() {
    if (mode_.load(std::memory_order_acquire) != Mode::kShared) TakeOver();
  }

  // For those who look: not less than what there is.
  uint32_t value() const {
    return shared_.load(std::memory_order_relaxed) + own_.load(std::memory_order_relaxed);
  }

 private:
  enum class Mode : uint8_t { kOwned, kTakenOver, kShared };

  // Whether the owner may count by itself until EndOwn(). On the owner's thread, or where nobody owns it.
  bool BeginOwn() {
    owner_counts_.store(true, std::memory_order_relaxed);
    // Who takes over has every core's stores before its own look: the compiler alone must keep the order.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (mode_.load(std::memory_order_relaxed) == Mode::kOwned) return true;
    EndOwn();
    return false;
  }
  void EndOwn() { owner_counts_.store(false, std::memory_order_release); }
  void TakeOver();
  // Whether this process is not the one that made it: its owner, and who was taking over, may not be in it.
  bool Forked() const;

  // Its address is each thread's own.
  static inline constinit thread_local char thread_mark = 0;

  const uint32_t made_at_;
  std::atomic<Mode> mode_;
  std::atomic<bool> owner_counts_ = false;
  // Null where nobody owned it. While the mode is kOwned this thread lives.
  const char* const owner_;
  // Guards that the owner has counted, and all others.
  std::atomic<uint32_t> own_;
  std::atomic<uint32_t> shared_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_BIASED_COUNT_H_
