// ByteBudget: the bytes of one layer (a device, or one tenant's or session's share of it) by block phase, against the
// layer's limit. Arithmetic only. Thread-compatible.

#ifndef DAEMON_CORE_MEMORY_BYTE_BUDGET_H_
#define DAEMON_CORE_MEMORY_BYTE_BUDGET_H_

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "daemon/core/types/block_phase.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/journal.h"

namespace berth::core {

class ByteBudget;

// Budgets that have changed since the last Take(). Thread-compatible.
class BudgetChanges {
 public:
  void Mark(ByteBudget* budget) {
    for (std::vector<ByteBudget*>* const budgets : {&budgets_, &for_gangs_}) {
      if (budgets->empty() || budgets->back() != budget) budgets->push_back(budget);
    }
  }
  // Removes a budget that ends.
  void Forget(const ByteBudget* budget) {
    std::erase(budgets_, budget);
    std::erase(for_gangs_, budget);
  }
  // Return the changed budgets and clear the list: for requests that wait for bytes, and for gangs that would reserve
  // bytes. A budget may occur several times.
  std::vector<ByteBudget*> Take() { return std::exchange(budgets_, {}); }
  std::vector<ByteBudget*> TakeForGangs() { return std::exchange(for_gangs_, {}); }

 private:
  std::vector<ByteBudget*> budgets_;
  std::vector<ByteBudget*> for_gangs_;
};

class ByteBudget {
 public:
  // Without a limit every request fits.
  explicit ByteBudget(std::optional<Bytes> limit = std::nullopt) : limit_(limit) {}

  const std::optional<Bytes>& limit() const { return limit_; }
  // `by_hand`: the limit outlives the broker, rather than follow the configuration.
  void set_limit(std::optional<Bytes> limit, bool by_hand);
  bool limit_by_hand() const { return persisted_.by_hand; }

  // Adds a block of `bytes` in `phase`, or moves it between phases; kGone removes it from the layer.
  void Add(BlockPhase phase, Bytes bytes);
  void Move(BlockPhase from, BlockPhase to, Bytes bytes);
  // A retired block could not be released: it stays charged and is not expected back. Unmarked when its release
  // succeeds or is retried.
  void MarkStuck(Bytes bytes);
  void UnmarkStuck(Bytes bytes);
  // MarkBusy(): a retired block has open uses, of unknown duration. UnmarkBusy(): its uses have ended.
  void MarkBusy(Bytes bytes);
  void UnmarkBusy(Bytes bytes);
  // Claim() reserves bytes for future blocks; Unclaim() drops the claim of freed or drawn bytes.
  void Claim(Bytes bytes);
  void Unclaim(Bytes bytes);

  // Sets the daemon's own use of the layer.
  void set_daemon(Bytes bytes);

  // All bytes that count against the limit.
  Bytes charged() const;
  // The limit minus the charged bytes; UINT64_MAX without a limit.
  Bytes remaining() const;
  // The limit minus the held bytes: what remains once coming() and warm() bytes are released.
  Bytes capacity() const;
  // Charged bytes whose release waits only for the worker.
  Bytes coming() const;
  // Charged bytes of warm blocks, made or in the making: their release may be requested.
  Bytes warm() const;
  // Charged bytes in use by clients or by the daemon itself.
  Bytes held() const;
  Bytes stuck() const { return Bytes(stuck_); }
  Bytes busy() const { return Bytes(busy_); }
  ByteCounts counts() const;

  // kNow: fits. kAfterReclaim: fits once coming() and warm() bytes are released. kNever: does not fit even then.
  // kTooLarge: exceeds the limit alone.
  enum class Verdict { kNow, kAfterReclaim, kNever, kTooLarge };
  Verdict Judge(Bytes bytes) const;
  // Returns the refusal for kNever and kTooLarge. The reported counts leave out coming() and warm() bytes, so
  // `remaining` is what a request would get.
  absl::Status OverBudget(absl::string_view layer, uint32_t device, Bytes requested) const;

  // Rises with each enlisted budget: the list order.
  uint64_t number() const { return number_; }
  // Assigns the number. From then on the budget records changes of its persisted part in `journal`, and each change of
  // its counts in `changes` unless null. Both must outlive the budget.
  void Enlist(uint64_t number, Journal* journal, BudgetChanges* changes = nullptr);

  // ---- Metrics ---------------------------------------------------------------------------------------------

  // Most bytes at once of allocated blocks and claims; refused requests, warm blocks and blocks in the making are left
  // out.
  Bytes peak() const { return Bytes(persisted_.peak); }
  uint64_t allocations() const { return persisted_.allocations; }
  uint64_t refusals() const { return persisted_.refusals; }
  uint64_t failed_releases() const { return persisted_.failed_releases; }
  void RecordAllocated() { ++Changed().allocations; }
  void RecordRefused() { ++Changed().refusals; }

  // ---- State that outlives the broker ---------------------------------------------------------------------

  // State that does not follow from the blocks and claims.
  struct Persisted {
    // The limit, where an operator or a session set it explicitly.
    bool by_hand = false;
    std::optional<Bytes> limit;
    uint64_t peak = 0;
    uint64_t allocations = 0;
    uint64_t refusals = 0;
    uint64_t failed_releases = 0;
  };
  const Persisted& persisted() const { return persisted_; }
  void Restore(const Persisted& persisted);
  // Add() of a restored block.
  void RestoreBlock(BlockPhase phase, Bytes bytes, bool stuck, bool busy);

 private:
  uint64_t& Line(BlockPhase phase) { return lines_[static_cast<int>(phase)]; }
  uint64_t Line(BlockPhase phase) const { return lines_[static_cast<int>(phase)]; }
  void RecordPeak();
  // Returns the persisted part for a change, which it records in the journal.
  Persisted& Changed();
  void MarkChanged() {
    if (changes_ != nullptr) changes_->Mark(this);
  }

  std::optional<Bytes> limit_;
  uint64_t number_ = 0;
  std::array<uint64_t, kBlockPhases> lines_ = {};
  uint64_t claimed_ = 0;
  uint64_t stuck_ = 0;
  uint64_t busy_ = 0;
  uint64_t daemon_ = 0;
  Persisted persisted_;
  Journal* journal_ = nullptr;
  BudgetChanges* changes_ = nullptr;
};
template <typename Archive>
void Fields(Archive& archive, ByteBudget::Persisted& value) {
  archive(value.by_hand, value.limit, value.peak, value.allocations, value.refusals, value.failed_releases);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_BYTE_BUDGET_H_
