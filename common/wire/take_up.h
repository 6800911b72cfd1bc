// TakeUpWords: decide, without a message, whether a process has taken up a grant or the daemon has withdrawn it
// (docs/design/0053-a-grant-is-taken-up.md). The words lie in the process's page (common/wire/fence_page.h). Each word
// holds the sequence of a request and a state:
//
//   NONE → GRANTED         the daemon, before it answers the request
//   GRANTED → TAKEN        the process, before it uses the grant
//   GRANTED → WITHDRAWN    the daemon, which then has the units again
//   WITHDRAWN → NONE       the process, which then retries the request
//   GRANTED → NONE         a broker, for a grant that the broker before it neither persisted nor answered
//
// Each change of GRANTED is a compare-and-swap, so exactly one side wins. A process that is stopped at any point
// has either taken the grant up, or will find it withdrawn.
//
// The daemon reuses a word that is NONE or TAKEN. The daemon reuses a WITHDRAWN word only once the process has settled
// the request: until then the process may still read the withdrawn answer.

#ifndef COMMON_WIRE_TAKE_UP_H_
#define COMMON_WIRE_TAKE_UP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace berth {

// Thread-safe, except that a process takes up each request on one thread. All zeroes is NONE.
class TakeUpWords {
 public:
  // Limit of grants of one process that are not taken up.
  static constexpr size_t kWords = 12;

  // ---- The process's steps --------------------------------------------------------------------------------

  enum class Taking {
    // The daemon offered no grant under that sequence: its answer is final.
    kNotOffered,
    kTaken,
    // The daemon has withdrawn the units: retry the request.
    kWithdrawn,
  };
  Taking Take(uint64_t sequence) {
    for (std::atomic<uint64_t>& word : words_) {
      uint64_t seen = word.load(std::memory_order_seq_cst);
      if (SequenceOf(seen) != sequence) continue;
      if (StateOf(seen) == kGranted &&
          word.compare_exchange_strong(seen, Make(sequence, kTaken), std::memory_order_seq_cst)) {
        return Taking::kTaken;
      }
      if (StateOf(seen) == kTaken) return Taking::kTaken;
      word.store(0, std::memory_order_seq_cst);
      return Taking::kWithdrawn;
    }
    return Taking::kNotOffered;
  }

  // ---- The daemon's steps ---------------------------------------------------------------------------------

  // Writes GRANTED. `may_reuse(sequence)` returns whether the process has settled that withdrawn request. Returns
  // whether a word was free.
  template <typename MayReuse>
  bool Offer(uint64_t sequence, const MayReuse& may_reuse) {
    std::atomic<uint64_t>* free = nullptr;
    for (std::atomic<uint64_t>& word : words_) {
      const uint64_t seen = word.load(std::memory_order_seq_cst);
      if (seen != 0 && SequenceOf(seen) == sequence) {
        free = &word;
        break;
      }
      const bool reusable = seen == 0 || StateOf(seen) == kTaken || may_reuse(SequenceOf(seen));
      if (free == nullptr && reusable) free = &word;
    }
    if (free == nullptr) return false;
    free->store(Make(sequence, kGranted), std::memory_order_seq_cst);
    return true;
  }
  // GRANTED → WITHDRAWN. Returns whether the daemon has the units again; also if an earlier broker withdrew them.
  bool Withdraw(uint64_t sequence) {
    for (std::atomic<uint64_t>& word : words_) {
      uint64_t seen = word.load(std::memory_order_seq_cst);
      if (SequenceOf(seen) != sequence) continue;
      return StateOf(seen) == kWithdrawn ||
             (StateOf(seen) == kGranted &&
              word.compare_exchange_strong(seen, Make(sequence, kWithdrawn), std::memory_order_seq_cst));
    }
    return false;
  }
  // Whether a grant under that sequence is neither taken up nor withdrawn.
  bool IsGranted(uint64_t sequence) const { return Has(Make(sequence, kGranted)); }
  bool IsWithdrawn(uint64_t sequence) const { return Has(Make(sequence, kWithdrawn)); }
  // GRANTED → NONE, for a grant that was never answered.
  void Retract(uint64_t sequence) {
    for (std::atomic<uint64_t>& word : words_) {
      uint64_t granted = Make(sequence, kGranted);
      word.compare_exchange_strong(granted, 0, std::memory_order_seq_cst);
    }
  }
  // Visits the sequences of the grants that are not taken up, withdrawn ones too.
  template <typename Visit>
  void ForEachUntaken(const Visit& visit) const {
    for (const std::atomic<uint64_t>& word : words_) {
      const uint64_t seen = word.load(std::memory_order_seq_cst);
      if (StateOf(seen) == kGranted || StateOf(seen) == kWithdrawn) visit(SequenceOf(seen));
    }
  }

 private:
  enum State : uint64_t { kNone = 0, kGranted = 1, kTaken = 2, kWithdrawn = 3 };
  static constexpr int kStateBits = 2;
  static uint64_t Make(uint64_t sequence, State state) { return sequence << kStateBits | state; }
  static uint64_t SequenceOf(uint64_t word) { return word >> kStateBits; }
  static State StateOf(uint64_t word) { return static_cast<State>(word & ((1u << kStateBits) - 1)); }
  bool Has(uint64_t wanted) const {
    for (const std::atomic<uint64_t>& word : words_) {
      if (word.load(std::memory_order_seq_cst) == wanted) return true;
    }
    return false;
  }

  std::atomic<uint64_t> words_[kWords];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(TakeUpWords) == TakeUpWords::kWords * sizeof(uint64_t));

}  // namespace berth

#endif  // COMMON_WIRE_TAKE_UP_H_
