// FenceTracker orders this process's streams at the blocks that no other process maps, without the daemon: what the
// daemon's table (daemon/core/fence_table.h) is between processes, in some tens of nanoseconds.
//
// Uses wait for events of this process's. A launch begins, is queued behind its waits, has its end recorded, and
// finishes:
//
//   tracker.Begin(stream, &launch, patience);     // then queue launch.waits, and the work
//   tracker.Record(stream, &launch);              // queues the launch's end
//   tracker.Finish(stream, &launch);
//
// To finish takes no lock: the launch says that its end is recorded, and whoever uses its blocks next takes that into
// their accounts. So who waits for a use to be finished looks again and again.
//
// When another process is about to map a block, the daemon asks for it. From then on the block's uses are the daemon's
// to order; the ends that are not reached by then become values of their streams' words, which every process can wait
// for, and are handed over. A use that is open then is finished as it was begun, and handed over with the rest.

#ifndef CLIENT_INTERNAL_FENCE_TRACKER_H_
#define CLIENT_INTERNAL_FENCE_TRACKER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/internal/spin_lock.h"
#include "client/internal/tracked_stream.h"
#include "common/attach_wire.h"
#include "common/ids.h"

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
  TrackedBlock(BlockId id, bool shared) : id_(id), shared_(shared) {}
  BlockId id() const { return id_; }

 private:
  friend class FenceTracker;
  // A use that is not known to be finished: whoever comes next looks whether it is.
  struct Open {
    LaunchEnd* end = nullptr;
    UseAccess access = UseAccess::kRead;
  };

  const BlockId id_;
  // The end of an open use is waited for by more than the next use. Set under the lock, read without: who finishes a
  // use may not see it yet.
  std::atomic<bool> attention_ = false;

  // Tracked by the daemon, now or as soon as the open uses are finished and it is handed over.
  bool shared_;
  // It is to be handed over, and was not yet.
  bool hand_over_asked_ = false;
  // Of the last write; null for none.
  LaunchEnd* write_ = nullptr;
  // Of reads since, one a stream.
  absl::InlinedVector<LaunchEnd*, 4> reads_;
  absl::InlinedVector<Open, 2> open_;
  // Ends of streams that were closed while launches were open here which may wait for them.
  std::vector<LaunchEnd*> orphans_;
};

// One block of a launch.
struct TrackedUse {
  TrackedBlock* block = nullptr;
  UseAccess access = UseAccess::kRead;
  // Set by FenceTracker::Begin(): the daemon tracks the block, and the use is to be prepared there.
  bool remote = false;
};

// One launch, from Begin() to Finish() or Abandon().
struct TrackedLaunch {
  // Each block once.
  absl::InlinedVector<TrackedUse, 4> uses;

  // What follows is set by the tracker. Whether there are uses that are its own to order, such that write, and such
  // that are the daemon's.
  bool local = false;
  bool local_writes = false;
  bool remote = false;
  // What the stream must wait for before the launch: one of each other stream at most.
  absl::InlinedVector<LaunchEnd*, 4> waits;
  // The launch's own end, where it is local.
  LaunchEnd* end = nullptr;
};

// A word of this process's own to wait for.
struct OwnWait {
  uint32_t slot = 0;
  // 0 for nothing to wait for.
  uint64_t value = 0;
};

// Thread-safe. No call of a stream's backend is made under its lock.
class FenceTracker {
 public:
  // What sends a hand-over to the daemon.
  using SendHandOver = std::function<void(const attach::HandedOver&)>;

  FenceTracker() = default;
  FenceTracker(const FenceTracker&) = delete;
  FenceTracker& operator=(const FenceTracker&) = delete;
  // Requires: every block and every stream is gone.
  ~FenceTracker();

  void SetSender(SendHandOver send) { send_ = std::move(send); }

  // The block's state, the same for all imports of it here. `shared`: the daemon tracks it. It must not outlive the
  // tracker.
  std::shared_ptr<TrackedBlock> Track(BlockId block, bool shared) ABSL_LOCKS_EXCLUDED(mu_);
  // The daemon tracks the block from now on, and needs no hand-over: this process had no stream yet.
  void MarkShared(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Another process wants the block. Sends what there is to hand over, now or when the last use that is open is
  // finished. Where a stream's driver fails, nothing is sent: nobody can tell when its work ends, so the daemon is to
  // wait for the end of the process.
  void AskHandOver(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends what open uses held up that are finished by now, and that was not sent as they were: a finish and the
  // daemon's wish may pass each other. To be called now and then as long as it returns that more is held up.
  bool FinishHandOvers() ABSL_LOCKS_EXCLUDED(mu_);

  // Begins a use of all the blocks: all or none. Waits while a use that conflicts is open on another stream,
  // `patience` long. Uses that are the daemon's to order are marked `remote` and left alone: what is begun here is to
  // be abandoned should those fail.
  // Errors: BLOCK_IN_USE, and nothing has begun.
  absl::Status Begin(TrackedStream& stream, TrackedLaunch* launch, absl::Duration patience)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The word that comes with a wait, for a stream of another kind than the wait's.
  absl::StatusOr<OwnWait> WordOf(LaunchEnd& wait) ABSL_LOCKS_EXCLUDED(mu_);
  // Queues the end of a launch that has local uses. Errors: the driver's, and nobody knows when the launch ends: it is
  // to stay open.
  absl::Status Record(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);
  // The local uses end with what was recorded. Remote ones are the daemon's to finish. Requires: the launch has local
  // ones.
  void Finish(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);
  // As if they had never begun.
  void Abandon(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);

  // What SawEnd() is to be told once all that is queued on the stream by now has ended.
  static uint64_t Point(const TrackedStream& stream);
  // The stream has come there. Only what was seen to end is known to have, should the process die.
  void SawEnd(TrackedStream& stream, uint64_t point) ABSL_LOCKS_EXCLUDED(mu_);
  // Sees whether all that is queued on the stream has ended, without waiting for it. For who queues on it.
  void Look(TrackedStream& stream) ABSL_LOCKS_EXCLUDED(mu_);
  // The stream goes; all that was queued on it has ended, or never will. Its events go with it, but for those that a
  // launch under way may have been told to wait for: these go with that launch.
  void Close(TrackedStream& stream) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Known {
    TrackedBlock* block = nullptr;
    std::weak_ptr<TrackedBlock> shared;
  };
  struct Mark {
    LaunchEnd* end;
    UseAccess access;
  };
  // A block on its way to the daemon, with marks whose streams are pinned.
  struct Leaving {
    BlockId block;
    std::vector<Mark> marks;
  };
  // What a step under the lock leaves to be done without.
  struct Rest {
    std::vector<Leaving> leaving;
    std::vector<LaunchEnd*> dead;
    std::vector<std::unique_ptr<TrackedBlock>> gone;
  };

  // Nothing here maps the block any more.
  void Forget(TrackedBlock* block) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins the uses. Returns the block that has an open use in the way, and then nothing has begun; null for none.
  const TrackedBlock* TryBegin(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitBegin(TrackedStream& stream, TrackedLaunch* launch, absl::Duration patience)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether an open use of another stream is in the way of that one.
  static bool InTheWay(const TrackedBlock& block, const TrackedStream& stream, UseAccess access);
  static void CollectWaits(const TrackedBlock& block, const TrackedStream& stream, UseAccess access,
                           TrackedLaunch* launch);
  // Takes the uses that are finished into account.
  void Fold(TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The block's mark from now on; its reference, too.
  void RecordUse(TrackedBlock& block, LaunchEnd* end, UseAccess access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The end of an open use of the block is waited for; looks whether it is the last.
  void Attend(TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Attend() for blocks that are not mapped any more.
  void AttendUnmapped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void SetFinished(TrackedStream& stream, const TrackedLaunch& launch);
  void Drop(LaunchEnd* end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropMarks(TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // As DropMarks(), for what comes of a stream that closes.
  void DropMarksOf(const TrackedStream& stream, TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Leaving TakeMarks(TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Rest TakeRest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return std::exchange(rest_, Rest()); }
  void SawEndLocked(TrackedStream& stream, uint64_t point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Settle(const Rest& rest) ABSL_LOCKS_EXCLUDED(mu_);
  void HandOver(const Leaving& leaving) ABSL_LOCKS_EXCLUDED(mu_);

  // Set before the first use.
  SendHandOver send_;

  mutable SpinLock mu_;
  absl::flat_hash_map<BlockId, Known> blocks_ ABSL_GUARDED_BY(mu_);
  // To be handed over when their open uses are finished.
  std::vector<BlockId> held_up_ ABSL_GUARDED_BY(mu_);
  // Not mapped any more, though uses are open.
  std::vector<std::unique_ptr<TrackedBlock>> unmapped_ ABSL_GUARDED_BY(mu_);
  Rest rest_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_FENCE_TRACKER_H_
