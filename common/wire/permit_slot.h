// PermitSlot: lets a process cache a permit between two uses and reacquire it without the daemon, and lets the daemon
// reclaim it without a message. Two values in the process's page (common/wire/fence_page.h):
//
//   slot      NONE; or USED or IDLE, with the permit and its use count; or ENDED, with the permit
//   waiting   a waiter exists: do not cache a permit that comes back
//
//   process: slot USED → IDLE, then reads `waiting`; if set, it notifies the daemon to read the slot
//   daemon:  sets `waiting`, then slot IDLE → NONE; on success the unit goes to the next waiter
//
// Each side changes the slot by one compare-and-swap, and all steps on both values are sequentially consistent. So a
// unit is in use or reclaimed, never both. At least one side sees the other's step: the daemon finds IDLE, or the
// process finds `waiting`. Neither side waits for an answer: a process stopped right after its step holds nothing back.
// tests/model proves this for three processes and two units.
//
// The daemon trusts IDLE alone. A process that writes anything else only keeps the one permit that it was granted. A
// process that writes IDLE and continues to use the GPU equals one that released and continues. No slot concerns
// another process's permit.
//
// The page outlives the broker. If a broker dies before it persists what it did to a slot, the slot is the record.

#ifndef COMMON_WIRE_PERMIT_SLOT_H_
#define COMMON_WIRE_PERMIT_SLOT_H_

#include <atomic>
#include <cstdint>

namespace berth {

// Thread-safe. All zeroes is NONE.
class PermitSlot {
 public:
  enum class State : uint64_t { kNone = 0, kIdle = 1, kUsed = 2, kEnded = 3 };

  // ---- The process's steps --------------------------------------------------------------------------------

  // IDLE → USED, unless a waiter exists. Returns whether the permit may be used.
  bool Take(uint64_t permit) {
    uint64_t seen = permit_slot_.load(std::memory_order_relaxed);
    if (!Is(seen, permit, State::kIdle)) return false;
    // The waiter has priority: the process must queue.
    if (waiting_.load(std::memory_order_seq_cst) != 0) return false;
    return permit_slot_.compare_exchange_strong(seen, Make(permit, UsesOf(seen) + 1, State::kUsed),
                                                std::memory_order_seq_cst);
  }

  enum class PutBack {
    // The permit stays cached.
    kCached,
    // The permit stays cached, but a waiter exists: notify the daemon to read the slot.
    kWanted,
    // The slot no longer concerns this permit: release it like any other.
    kNotOurs,
  };
  // USED → IDLE.
  PutBack Put(uint64_t permit) {
    uint64_t seen = permit_slot_.load(std::memory_order_relaxed);
    if (!Is(seen, permit, State::kUsed) ||
        !permit_slot_.compare_exchange_strong(seen, Make(permit, UsesOf(seen), State::kIdle),
                                              std::memory_order_seq_cst)) {
      return PutBack::kNotOurs;
    }
    return waiting_.load(std::memory_order_seq_cst) == 0 ? PutBack::kCached : PutBack::kWanted;
  }

  // IDLE → NONE, USED → ENDED: the process stops caching the permit, because a later daemon cannot see the slot.
  // Returns whether a use may continue; the caller releases the permit at the end of the use. Otherwise the caller must
  // release it now, even if the slot says that a daemon reclaimed it: that daemon may have died before it persisted the
  // reclaim.
  bool Leave(uint64_t permit) {
    uint64_t seen = permit_slot_.load(std::memory_order_seq_cst);
    while (true) {
      const bool used = Is(seen, permit, State::kUsed);
      if (!used && !Is(seen, permit, State::kIdle)) return seen == Make(permit, 0, State::kEnded);
      const uint64_t left = used ? Make(permit, 0, State::kEnded) : 0;
      if (permit_slot_.compare_exchange_weak(seen, left, std::memory_order_seq_cst)) return used;
    }
  }

  // ---- The daemon's steps ---------------------------------------------------------------------------------

  // NONE → USED: grants `permit` to the process, which may cache it.
  void Lend(uint64_t permit) { permit_slot_.store(Make(permit, 0, State::kUsed), std::memory_order_seq_cst); }
  void SetWaiting(bool waiting) { waiting_.store(waiting ? 1 : 0, std::memory_order_seq_cst); }
  // IDLE → NONE. Returns whether the daemon has the unit again.
  bool TakeBack(uint64_t permit) {
    uint64_t seen = permit_slot_.load(std::memory_order_seq_cst);
    while (Is(seen, permit, State::kIdle)) {
      if (permit_slot_.compare_exchange_weak(seen, 0, std::memory_order_seq_cst)) return true;
    }
    return false;
  }
  // Any state → ENDED: the process may no longer cache the permit.
  void End(uint64_t permit) { permit_slot_.store(Make(permit, 0, State::kEnded), std::memory_order_seq_cst); }

  enum class Lent {
    // USED or IDLE.
    kYes,
    // ENDED: the process may still use the permit.
    kEnded,
    // Any other state: a broker reclaimed the permit.
    kTakenBack,
  };
  // Returns the state of `permit`, which an earlier broker lent.
  Lent StateOf(uint64_t permit) const {
    const uint64_t seen = permit_slot_.load(std::memory_order_seq_cst);
    if (Is(seen, permit, State::kUsed) || Is(seen, permit, State::kIdle)) return Lent::kYes;
    return seen == Make(permit, 0, State::kEnded) ? Lent::kEnded : Lent::kTakenBack;
  }

  struct View {
    bool idle = false;
    // Number of times that the process took the permit again; wraps.
    uint32_t uses = 0;
  };
  // Returns the process's view of `permit`.
  View Look(uint64_t permit) const {
    const uint64_t seen = permit_slot_.load(std::memory_order_seq_cst);
    return {.idle = Is(seen, permit, State::kIdle), .uses = UsesOf(seen)};
  }

 private:
  static constexpr int kStateBits = 2;
  static constexpr int kUseBits = 22;
  // The permit's id is truncated to the remaining 40 bits, which do not repeat while any party remembers the id.
  static uint64_t Make(uint64_t permit, uint32_t uses, State state) {
    return permit << (kUseBits + kStateBits) |
           (uint64_t{uses} & ((uint64_t{1} << kUseBits) - 1)) << kStateBits | static_cast<uint64_t>(state);
  }
  static uint32_t UsesOf(uint64_t permit_slot) {
    return static_cast<uint32_t>(permit_slot >> kStateBits) & ((1u << kUseBits) - 1);
  }
  static bool Is(uint64_t permit_slot, uint64_t permit, State state) {
    return permit_slot == Make(permit, UsesOf(permit_slot), state);
  }

  std::atomic<uint64_t> permit_slot_;
  std::atomic<uint64_t> waiting_;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(PermitSlot) == 16);

}  // namespace berth

#endif  // COMMON_WIRE_PERMIT_SLOT_H_
