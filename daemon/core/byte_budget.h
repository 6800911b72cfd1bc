// ByteBudget: the bytes of one layer (a device, or one tenant's or session's share of it) by the phase of their
// blocks, against the layer's limit. Arithmetic only. Thread-compatible.

#ifndef DAEMON_CORE_BYTE_BUDGET_H_
#define DAEMON_CORE_BYTE_BUDGET_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "daemon/core/block_phase.h"
#include "daemon/core/device_types.h"
#include "daemon/core/journal.h"

namespace berth::core {

class ByteBudget {
 public:
  // Without a limit everything fits.
  explicit ByteBudget(std::optional<Bytes> limit = std::nullopt) : limit_(limit) {}

  const std::optional<Bytes>& limit() const { return limit_; }
  // `by_hand`: it outlives the broker, rather than follow the configuration.
  void set_limit(std::optional<Bytes> limit, bool by_hand);
  bool limit_by_hand() const { return kept_.by_hand; }

  // A block of `bytes` comes into the layer in `phase`, or passes from one to another; to kGone it leaves the layer.
  void Add(BlockPhase phase, Bytes bytes);
  void Move(BlockPhase from, BlockPhase to, Bytes bytes);
  // A retired block could not be released: it stays charged and is not expected back. Undone when it is released after
  // all, or tried again.
  void MarkStuck(Bytes bytes);
  void UnmarkStuck(Bytes bytes) { stuck_ -= bytes.count(); }
  // A retired block goes back when its uses have ended, whenever that is; and they have.
  void MarkBusy(Bytes bytes) { busy_ += bytes.count(); }
  void UnmarkBusy(Bytes bytes) { busy_ -= bytes.count(); }
  // Bytes set aside for blocks to come, and given up or drawn.
  void Claim(Bytes bytes);
  void Unclaim(Bytes bytes);

  // What the daemon itself takes of the layer.
  void set_daemon(Bytes bytes) { daemon_ = bytes.count(); }

  // Everything that counts against the limit.
  Bytes charged() const;
  // Charged bytes on their way back to the driver: nothing but the worker is waited for.
  Bytes coming() const;
  // Charged bytes that could be sent on their way back: what is kept or made warm.
  Bytes warm() const;
  // Charged bytes that somebody holds on to, or the daemon itself.
  Bytes held() const;
  Bytes stuck() const { return Bytes(stuck_); }
  Bytes busy() const { return Bytes(busy_); }
  ByteCounts counts() const;

  // kNow fits; kAfterReclaim will once everything is back that can come back by itself; kNever neither; kTooLarge
  // passes the limit alone.
  enum class Verdict { kNow, kAfterReclaim, kNever, kTooLarge };
  Verdict Judge(Bytes bytes) const;
  // The refusal for kNever and kTooLarge. Its figures leave out what comes back by itself, so `remaining` is what a
  // request would get.
  absl::Status OverBudget(absl::string_view layer, uint32_t device, Bytes requested) const;

  // Its place in the list of all: rises with each that is made.
  uint64_t number() const { return number_; }
  // Gives it its place. From then on it notes what changes of what is kept of it; `journal` must outlive it.
  void Enlist(uint64_t number, Journal* journal);

  // ---- What was, for those who look -----------------------------------------------------------------------

  // The most bytes at once of blocks that were there and of claims: neither what was refused nor what was only being
  // made or kept warm.
  Bytes peak() const { return Bytes(kept_.peak); }
  uint64_t allocations() const { return kept_.allocations; }
  uint64_t refusals() const { return kept_.refusals; }
  uint64_t failed_releases() const { return kept_.failed_releases; }
  void NoteAllocated() { ++Changed().allocations; }
  void NoteRefused() { ++Changed().refusals; }

  // ---- What outlives the broker ---------------------------------------------------------------------------

  // What does not follow from the blocks and claims.
  struct Kept {
    // The limit, where somebody set it by hand.
    bool by_hand = false;
    std::optional<Bytes> limit;
    uint64_t peak = 0;
    uint64_t allocations = 0;
    uint64_t refusals = 0;
    uint64_t failed_releases = 0;
  };
  const Kept& kept() const { return kept_; }
  void Restore(const Kept& kept);
  // Add() of a block that was there.
  void RestoreBlock(BlockPhase phase, Bytes bytes, bool stuck, bool busy);

 private:
  uint64_t& Line(BlockPhase phase) { return lines_[static_cast<int>(phase)]; }
  uint64_t Line(BlockPhase phase) const { return lines_[static_cast<int>(phase)]; }
  void NotePeak();
  // What is kept, to be changed.
  Kept& Changed();

  std::optional<Bytes> limit_;
  uint64_t number_ = 0;
  std::array<uint64_t, kBlockPhases> lines_ = {};
  uint64_t claimed_ = 0;
  uint64_t stuck_ = 0;
  uint64_t busy_ = 0;
  uint64_t daemon_ = 0;
  Kept kept_;
  Journal* journal_ = nullptr;
};
template <typename Archive>
void Fields(Archive& archive, ByteBudget::Kept& value) {
  archive(value.by_hand, value.limit, value.peak, value.allocations, value.refusals, value.failed_releases);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_BYTE_BUDGET_H_
