// PermitWord: how a process keeps a permit between two uses and takes it again without the daemon, and how the daemon
// takes it back without asking. Two words that lie in the process's page (common/fence_page.h):
//
//   word      NONE; or USED or IDLE, of which permit, and how often it has been taken; or ENDED, of which permit
//   waiting   somebody waits: what comes back is not to be kept
//
//   process: word USED → IDLE, then reads `waiting`; where that is set, it tells the daemon to look at the word
//   daemon:  sets `waiting`, then word IDLE → NONE; where that works, the unit is the next one's
//
// Either side moves the word from what it saw to what it wants in one step, and all steps on both words are in one
// order that every side sees (sequentially consistent). So a unit is in use or taken back, never both; and one side
// sees the other: the daemon finds IDLE, or the process finds `waiting`. No answer is awaited: a process that is
// stopped right after its step keeps nothing. tests/model proves it for three processes and two units.
//
// The daemon believes IDLE alone: a process that writes anything else keeps the one permit that it was given, and one
// that writes IDLE while it goes on is one that released and goes on. No word speaks of another process's permit.
//
// The page outlives the broker, and a broker may die before it has written down what it did to a word: then the word
// says it.

#ifndef COMMON_PERMIT_WORD_H_
#define COMMON_PERMIT_WORD_H_

#include <atomic>
#include <cstdint>

namespace berth {

// Thread-safe. All zeroes is NONE.
class PermitWord {
 public:
  enum class State : uint64_t { kNone = 0, kIdle = 1, kUsed = 2, kEnded = 3 };

  // ---- The process's steps --------------------------------------------------------------------------------

  // IDLE → USED, unless somebody waits. Returns whether the permit may be used.
  bool Take(uint64_t permit) {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    if (!Is(seen, permit, State::kIdle)) return false;
    // Who waits has it: the process gets in line.
    if (waiting_.load(std::memory_order_seq_cst) != 0) return false;
    return word_.compare_exchange_strong(seen, Make(permit, UsesOf(seen) + 1, State::kUsed),
                                         std::memory_order_seq_cst);
  }

  enum class PutBack {
    // It is kept.
    kKept,
    // The same, but somebody waits: the daemon is to look at the word.
    kWanted,
    // The word is of this permit no more: release it as any other.
    kNotOurs,
  };
  // USED → IDLE.
  PutBack Put(uint64_t permit) {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    if (!Is(seen, permit, State::kUsed) ||
        !word_.compare_exchange_strong(seen, Make(permit, UsesOf(seen), State::kIdle),
                                       std::memory_order_seq_cst)) {
      return PutBack::kNotOurs;
    }
    return waiting_.load(std::memory_order_seq_cst) == 0 ? PutBack::kKept : PutBack::kWanted;
  }

  // ---- The daemon's steps ---------------------------------------------------------------------------------

  // NONE → USED: the process is granted `permit` and may keep it.
  void Lend(uint64_t permit) { word_.store(Make(permit, 0, State::kUsed), std::memory_order_seq_cst); }
  void SetWaiting(bool waiting) { waiting_.store(waiting ? 1 : 0, std::memory_order_seq_cst); }
  // IDLE → NONE. Returns whether the unit is the daemon's again.
  bool TakeBack(uint64_t permit) {
    uint64_t seen = word_.load(std::memory_order_seq_cst);
    while (Is(seen, permit, State::kIdle)) {
      if (word_.compare_exchange_weak(seen, 0, std::memory_order_seq_cst)) return true;
    }
    return false;
  }
  // → ENDED: whatever the process has of it, it keeps it no longer.
  void End(uint64_t permit) { word_.store(Make(permit, 0, State::kEnded), std::memory_order_seq_cst); }

  enum class Lent {
    // USED or IDLE.
    kYes,
    // ENDED: the process may still use it.
    kEnded,
    // Anything else: it was taken back.
    kTakenBack,
  };
  // What an earlier broker, which lent `permit`, has come to.
  Lent StateOf(uint64_t permit) const {
    const uint64_t seen = word_.load(std::memory_order_seq_cst);
    if (Is(seen, permit, State::kUsed) || Is(seen, permit, State::kIdle)) return Lent::kYes;
    return seen == Make(permit, 0, State::kEnded) ? Lent::kEnded : Lent::kTakenBack;
  }

  struct View {
    bool idle = false;
    // How often it was taken again; wraps.
    uint32_t uses = 0;
  };
  // What the process says of `permit`.
  View Look(uint64_t permit) const {
    const uint64_t seen = word_.load(std::memory_order_seq_cst);
    return {.idle = Is(seen, permit, State::kIdle), .uses = UsesOf(seen)};
  }

 private:
  static constexpr int kStateBits = 2;
  static constexpr int kUseBits = 22;
  // The permit's id is cut to the rest, 40 bits: enough for it not to come again while anybody remembers it.
  static uint64_t Make(uint64_t permit, uint32_t uses, State state) {
    return permit << (kUseBits + kStateBits) |
           (uint64_t{uses} & ((uint64_t{1} << kUseBits) - 1)) << kStateBits | static_cast<uint64_t>(state);
  }
  static uint32_t UsesOf(uint64_t word) {
    return static_cast<uint32_t>(word >> kStateBits) & ((1u << kUseBits) - 1);
  }
  static bool Is(uint64_t word, uint64_t permit, State state) {
    return word == Make(permit, UsesOf(word), state);
  }

  std::atomic<uint64_t> word_;
  std::atomic<uint64_t> waiting_;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(PermitWord) == 16);

}  // namespace berth

#endif  // COMMON_PERMIT_WORD_H_
