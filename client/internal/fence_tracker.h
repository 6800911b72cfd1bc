// FenceTracker orders this process's streams at the blocks that no other process maps, without the daemon: what the
// daemon's table (daemon/core/fence_table.h) is between processes, in some tens of nanoseconds.
//
// A launch begins and finishes; what it must wait for in between are words of this process's own page. When another
// process is about to map a block, the daemon asks for it, and the tracker hands over what has not ended;
// from then on the block is the daemon's to track.

#ifndef CLIENT_INTERNAL_FENCE_TRACKER_H_
#define CLIENT_INTERNAL_FENCE_TRACKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/attach_wire.h"
#include "common/fence_page.h"
#include "common/ids.h"
#include "common/mutex.h"

namespace berth::internal {

// What a launch does to a block; two bits.
enum class UseAccess : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };
constexpr bool Writes(UseAccess access) { return access != UseAccess::kRead; }
constexpr UseAccess operator|(UseAccess a, UseAccess b) {
  return static_cast<UseAccess>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}

// A block as its process sees it. Shared by all imports of the block here; all of it is the tracker's.
class TrackedBlock {
 public:
  explicit TrackedBlock(BlockId id, bool shared) : id_(id), shared_(shared) {}
  BlockId id() const { return id_; }

 private:
  friend class FenceTracker;
  struct Mark {
    uint32_t slot = 0;
    uint64_t value = 0;
  };
  struct Open {
    uint32_t slot = 0;
    UseAccess access = UseAccess::kRead;
  };

  const BlockId id_;
  // Tracked by the daemon, now or as soon as the open uses are finished and it is handed over.
  bool shared_;
  bool hand_over_asked_ = false;
  // The last write; value 0 for none.
  Mark write_;
  absl::InlinedVector<Mark, 4> reads_;
  absl::InlinedVector<Open, 2> open_;
};

// One block of a launch.
struct TrackedUse {
  TrackedBlock* block = nullptr;
  UseAccess access = UseAccess::kRead;
  // Set by FenceTracker::Begin(): the daemon tracks the block, and the use is to be prepared there.
  bool remote = false;
};

// A stream of this process: its words, and what was begun on it. All but the slot is the tracker's.
class TrackedStream {
 public:
  // `words` must outlive the stream. `last` is where the slot's values go on from.
  TrackedStream(uint32_t slot, FenceSlot* words, uint64_t last) : slot_(slot), words_(*words), last_(last) {}
  uint32_t slot() const { return slot_; }

 private:
  friend class FenceTracker;
  const uint32_t slot_;
  FenceSlot& words_;
  // Of the last use whose end is queued.
  uint64_t last_;
  // Begun and neither finished nor abandoned.
  uint64_t open_ = 0;
};

// A word of this process's own to wait for.
struct OwnWait {
  uint32_t slot = 0;
  uint64_t value = 0;
};
using OwnWaits = absl::InlinedVector<OwnWait, 4>;

// Thread-safe.
class FenceTracker {
 public:
  // What sends a hand-over to the daemon. Called without the tracker's lock.
  using SendHandOver = std::function<void(const attach::HandedOver&)>;

  // The page's words; null until the process has one. It must outlive the tracker.
  void SetPage(const FencePage* page) ABSL_LOCKS_EXCLUDED(mu_);
  void SetSender(SendHandOver send) { send_ = std::move(send); }

  // The block's state, the same for all imports of it here. `shared`: the daemon tracks it.
  std::shared_ptr<TrackedBlock> Track(BlockId block, bool shared) ABSL_LOCKS_EXCLUDED(mu_);
  // The daemon tracks the block from now on, and needs no hand-over: this process had no stream yet.
  void MarkShared(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Another process wants the block. Returns what there is to hand over, or nothing yet where a use is open:
  // that goes to the sender once it is finished. `ready` says which.
  bool AskHandOver(BlockId block, attach::HandedOver* handed) ABSL_LOCKS_EXCLUDED(mu_);

  // Begins a use of all the blocks, each named once: all or none. Waits while a use that conflicts is open on another
  // stream, `patience` long. `waits` is what the launch must wait for, each slot once. Uses that are the
  // daemon's to order are marked `remote` and left alone: what is begun here is to be abandoned should those
  // fail.
  // Errors: BLOCK_IN_USE, and nothing has begun.
  absl::Status Begin(TrackedStream& stream, absl::Span<TrackedUse> uses, absl::Duration patience,
                     OwnWaits* waits)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The value that the stream's next use ends with. Takes no lock: uses of one stream are finished one at a
  // time, from this call to Finish().
  static uint64_t NextValue(const TrackedStream& stream) { return stream.last_ + 1; }
  // The uses end when the stream's word is at `value`, whose write is queued. Remote ones are the daemon's to finish.
  void Finish(TrackedStream& stream, absl::Span<const TrackedUse> uses, uint64_t value)
      ABSL_LOCKS_EXCLUDED(mu_);
  // As if they had never begun.
  void Abandon(TrackedStream& stream, absl::Span<const TrackedUse> uses) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using HandOvers = std::vector<attach::HandedOver>;

  bool Done(const TrackedBlock::Mark& mark) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return page_->slot(mark.slot).done.load(std::memory_order_acquire) >= mark.value;
  }
  // Whether a use of `access` must wait for an open one.
  static bool Conflicts(const TrackedBlock& block, uint32_t slot, UseAccess access);
  void CollectWaits(TrackedBlock& block, uint32_t slot, UseAccess access, OwnWaits* waits)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until none of the local blocks has an open use that conflicts.
  absl::Status AwaitTurn(const TrackedStream& stream, absl::Span<const TrackedUse> uses,
                         absl::Duration patience)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  attach::HandedOver HandOver(TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndUse(const TrackedStream& stream, TrackedBlock& block, UseAccess access, HandOvers* handed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The launch is over; stores what the stream's word comes to.
  void EndLaunch(TrackedStream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(const HandOvers& handed) ABSL_LOCKS_EXCLUDED(mu_);

  // Set before the first use.
  SendHandOver send_;

  mutable Mutex mu_;
  CondVar ended_ ABSL_GUARDED_BY(mu_);
  // Threads in Begin() that wait for an open use to end.
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  const FencePage* page_ ABSL_GUARDED_BY(mu_) = nullptr;
  absl::flat_hash_map<BlockId, std::weak_ptr<TrackedBlock>> blocks_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_FENCE_TRACKER_H_
