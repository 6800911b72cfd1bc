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
// When another process is about to map a block, the daemon asks for it. From then on the block's uses are the daemon's
// to order; the ends that are not reached by then become values of their streams' words, which every process can wait
// for, and are handed over. A use that is open then is finished as it was begun, and handed over with the rest.

#ifndef CLIENT_INTERNAL_FENCE_TRACKER_H_
#define CLIENT_INTERNAL_FENCE_TRACKER_H_

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
  TrackedBlock(BlockId id, bool shared) : id_(id), shared_(shared) {}
  BlockId id() const { return id_; }

 private:
  friend class FenceTracker;
  struct Open {
    const TrackedStream* stream = nullptr;
    UseAccess access = UseAccess::kRead;
  };

  const BlockId id_;
  // Tracked by the daemon, now or as soon as the open uses are finished and it is handed over.
  bool shared_;
  bool hand_over_asked_ = false;
  // Of the last write; null for none.
  LaunchEnd* write_ = nullptr;
  // Of reads since, one a stream.
  absl::InlinedVector<LaunchEnd*, 4> reads_;
  absl::InlinedVector<Open, 2> open_;
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
  // The launch's own end; null until there is one.
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
  // The local uses end with what was recorded. Remote ones are the daemon's to finish.
  void Finish(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);
  // As if they had never begun.
  void Abandon(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);

  // What SawEnd() is to be told once all that is queued on the stream by now has ended.
  uint64_t Point(const TrackedStream& stream) const ABSL_LOCKS_EXCLUDED(mu_);
  // The stream has come there. Only what was seen to end is known to have, should the process die.
  void SawEnd(TrackedStream& stream, uint64_t point) ABSL_LOCKS_EXCLUDED(mu_);
  // Sees whether all that is queued on the stream has ended, without waiting for it. For who queues on it.
  void Look(TrackedStream& stream) ABSL_LOCKS_EXCLUDED(mu_);
  // The stream goes; all that was queued on it has ended, or never will. Its events go with it, but for those that a
  // launch under way was told to wait for: these go with that launch.
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
    TrackedBlock* block;
    std::vector<Mark> marks;
  };
  // What a step under the lock leaves to be done without.
  struct Rest {
    std::vector<Leaving> leaving;
    std::vector<LaunchEnd*> dead;
  };

  void Forget(TrackedBlock* block) ABSL_LOCKS_EXCLUDED(mu_);
  // The block of a launch's that has an open use in the way; null for none.
  static const TrackedBlock* FindObstacle(const TrackedStream& stream, absl::Span<const TrackedUse> uses);
  static void CollectWaits(TrackedBlock& block, const TrackedStream& stream, UseAccess access,
                           TrackedLaunch* launch);
  void BeginLocked(TrackedStream& stream, TrackedLaunch* launch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecordUse(TrackedBlock& block, LaunchEnd* end, UseAccess access, Rest* rest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndUse(const TrackedStream& stream, TrackedBlock& block, UseAccess access, Rest* rest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The launch is over. Returns whether somebody is to be woken.
  bool EndLaunch(TrackedStream& stream, TrackedLaunch* launch, Rest* rest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nobody will know when the launch ends: its uses stay open.
  void Strand(TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);
  static void Drop(LaunchEnd* end, Rest* rest);
  static void DropEnds(TrackedLaunch* launch, Rest* rest);
  static Leaving TakeMarks(TrackedBlock& block);
  static void DropMarks(TrackedBlock& block, Rest* rest);
  void SawEndLocked(TrackedStream& stream, uint64_t point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns whether somebody waits who is to be woken.
  bool Change() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Settle(const Rest& rest, bool wake) ABSL_LOCKS_EXCLUDED(mu_);
  void HandOver(const Leaving& leaving) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for a change after `seen`. Returns whether the deadline came first.
  bool AwaitChange(uint64_t seen, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Set before the first use.
  SendHandOver send_;

  mutable SpinLock mu_;
  absl::flat_hash_map<BlockId, Known> blocks_ ABSL_GUARDED_BY(mu_);
  // Threads that wait for an open use or a hand-over to end, and how often one did while there were such.
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  // For them to sleep on; held around looks at what is under mu_.
  Mutex sleep_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  CondVar changed_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_FENCE_TRACKER_H_
