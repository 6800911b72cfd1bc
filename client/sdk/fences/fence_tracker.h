// FenceTracker orders this process's streams at blocks that no other process maps, without the daemon. The daemon's
// table (daemon/core/fences/fence_table.h) does the same between processes; the tracker takes some tens of nanoseconds.
//
// Uses wait for events of this process. A launch begins, is queued behind its waits, records its end, and finishes:
//
//   tracker.Begin(stream, &launch, patience);     // then queue launch.waits, and the work
//   tracker.Record(stream, &launch);              // queues the launch's end
//   tracker.Finish(stream, &launch);
//
// Finish() takes no lock as a rule: it marks the launch's end as recorded, and the next use of the same blocks updates
// their state. Therefore a waiter for the end of a use polls.
//
// Before another process maps a block, the daemon asks for its hand-over. From then on the daemon orders the block's
// uses. The tracker converts the ends that the streams have not reached to fence values, which every process can wait
// for, and hands them over. A use that is open at that moment finishes as usual and is handed over with the rest.

#ifndef CLIENT_SDK_FENCES_FENCE_TRACKER_H_
#define CLIENT_SDK_FENCES_FENCE_TRACKER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/sdk/fences/tracked_stream.h"
#include "client/sdk/permits/spin_lock.h"
#include "common/wire/attach_wire.h"

namespace berth::internal {

// Access of a launch to a block: a mask of two bits.
enum class UseAccess : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };
constexpr bool Writes(UseAccess access) { return access != UseAccess::kRead; }
constexpr UseAccess operator|(UseAccess a, UseAccess b) {
  return static_cast<UseAccess>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}

// State of a block in this process. Shared by all imports of the block here. Only the tracker reads and writes it.
class TrackedBlock {
 public:
  TrackedBlock(BlockId id, bool shared) : id_(id), shared_(shared) {}
  BlockId id() const { return id_; }

 private:
  friend class FenceTracker;
  // A use that is not known to be finished; the next user of the block checks whether it is.
  struct Open {
    LaunchEnd* end = nullptr;
    UseAccess access = UseAccess::kRead;
  };

  const BlockId id_;
  // Whether more than the next use waits for the end of an open use. Written under the lock, read without: a thread
  // that finishes a use may not see the new value yet.
  std::atomic<bool> attention_ = false;

  // Whether the daemon tracks the block, now or as soon as the open uses are finished and the block is handed over.
  bool shared_;
  // Whether the hand-over is requested and not yet done.
  bool hand_over_asked_ = false;
  // End of the last write; null for none.
  LaunchEnd* write_ = nullptr;
  // Ends of the reads since the last write, one per stream.
  absl::InlinedVector<LaunchEnd*, 4> reads_;
  absl::InlinedVector<Open, 2> open_;
  // Ends of closed streams. The ends stay until the launches that were open here have finished, because those launches
  // may wait for them.
  std::vector<LaunchEnd*> orphans_;
};

// One block of a launch.
struct TrackedUse {
  TrackedBlock* block = nullptr;
  UseAccess access = UseAccess::kRead;
  // Set by FenceTracker::Begin(): the daemon tracks the block, and the caller must prepare the use with the daemon.
  bool remote = false;
};

// One launch, from Begin() to Finish() or Abandon().
struct TrackedLaunch {
  // Each block once.
  absl::InlinedVector<TrackedUse, 4> uses;

  // The fields from here on are set by the tracker. Whether the tracker orders any use, whether any of these writes,
  // and whether the daemon orders any use.
  bool local = false;
  bool local_writes = false;
  bool remote = false;
  // Ends that the stream must wait for before the launch: at most one of each other stream.
  absl::InlinedVector<LaunchEnd*, 4> waits;
  // End of the launch; set where `local`.
  LaunchEnd* end = nullptr;
};

// A fence value of this process to wait for.
struct OwnWait {
  uint32_t slot = 0;
  // 0: nothing to wait for.
  uint64_t value = 0;
};

// Thread-safe. The tracker calls no stream backend under its lock.
class FenceTracker {
 public:
  // Sends a hand-over to the daemon.
  using SendHandOver = std::function<void(const attach::HandedOver&)>;

  FenceTracker() = default;
  FenceTracker(const FenceTracker&) = delete;
  FenceTracker& operator=(const FenceTracker&) = delete;
  // Requires: no block and no stream is left.
  ~FenceTracker();

  void SetSender(SendHandOver send) { send_ = std::move(send); }

  // Returns the block's state, the same for all imports of the block in this process. `shared`: the daemon tracks the
  // block. The state must not outlive the tracker.
  std::shared_ptr<TrackedBlock> Track(BlockId block, bool shared) ABSL_LOCKS_EXCLUDED(mu_);
  // Marks the block as tracked by the daemon, without a hand-over: this process had no stream yet.
  void MarkShared(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Requests the hand-over of a block, because another process wants to map it. Sends the hand-over now, or when the
  // last open use is finished. Sends nothing where a stream's driver fails: the end of its work is unknown, so the
  // daemon waits for the end of the process.
  void AskHandOver(BlockId block) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends hand-overs that waited for open uses which are finished by now. Such a hand-over exists when a finish and the
  // daemon's request cross. The caller repeats the call from time to time while the result is true: more hand-overs
  // wait.
  bool FinishHandOvers() ABSL_LOCKS_EXCLUDED(mu_);

  // Begins a use of all the blocks, or of none. Waits up to `patience` while a conflicting use is open on another
  // stream. Marks uses that the daemon orders as `remote` and does not begin them. If those fail at the daemon, the
  // caller must abandon the launch.
  // Errors: BLOCK_IN_USE; then no use has begun.
  absl::Status Begin(TrackedStream& stream, TrackedLaunch* launch, absl::Duration patience)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the fence value that corresponds to a wait, for a stream of another kind than the wait's stream.
  absl::StatusOr<OwnWait> FenceValueOf(LaunchEnd& wait) ABSL_LOCKS_EXCLUDED(mu_);
  // Queues the end of a launch that has local uses. Errors: the driver's; then the end of the launch is unknown, and
  // the launch must stay open.
  absl::Status Record(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);
  // Finishes the local uses with the recorded end. The daemon finishes remote uses. Requires: the launch has local
  // uses.
  void Finish(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);
  // Undoes Begin(), as if the uses had never begun.
  void Abandon(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the point to pass to SawEnd() once all work that is queued on the stream now has ended.
  static uint64_t Point(const TrackedStream& stream);
  // Records that the stream has reached `point`. If the process dies, only work that was seen to end counts as ended.
  void SawEnd(TrackedStream& stream, uint64_t point) ABSL_LOCKS_EXCLUDED(mu_);
  // Checks, without waiting, whether all work queued on the stream has ended. Requires: called by the thread that
  // queues on the stream.
  void Look(TrackedStream& stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the stream. Requires: all work queued on it has ended or never will. Releases the stream's events, except
  // those that an open launch may wait for: these are released with that launch.
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
  // A block that is being handed over to the daemon, with marks whose streams are pinned.
  struct Leaving {
    BlockId block;
    std::vector<Mark> marks;
  };
  // Work that a step under the lock leaves for after the lock is released.
  struct Rest {
    std::vector<Leaving> leaving;
    std::vector<LaunchEnd*> dead;
    std::vector<std::unique_ptr<TrackedBlock>> gone;
  };

  // Drops a block that nothing in this process maps any more.
  void Forget(TrackedBlock* block) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins the uses. Returns null on success, else a block with a conflicting open use; then no use has begun.
  const TrackedBlock* TryBegin(TrackedStream& stream, TrackedLaunch* launch) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AwaitBegin(TrackedStream& stream, TrackedLaunch* launch, absl::Duration patience)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Whether an open use of another stream conflicts with `access`.
  static bool InTheWay(const TrackedBlock& block, const TrackedStream& stream, UseAccess access);
  static void CollectWaits(const TrackedBlock& block, const TrackedStream& stream, UseAccess access,
                           TrackedLaunch* launch);
  // Moves the block's finished uses from open uses to marks.
  void Fold(TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes `end` the block's mark. The mark takes over the open use's reference.
  void RecordUse(TrackedBlock& block, LaunchEnd* end, UseAccess access) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Handles a block with a waiter for its open uses; checks whether the last open use is finished.
  void Attend(TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls Attend() for blocks that are no longer mapped.
  void AttendUnmapped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void SetFinished(TrackedStream& stream, const TrackedLaunch& launch);
  void Drop(LaunchEnd* end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropMarks(TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // As DropMarks(), for the marks of a stream that closes.
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
  // Blocks to hand over when their open uses are finished.
  std::vector<BlockId> held_up_ ABSL_GUARDED_BY(mu_);
  // Blocks that are no longer mapped but still have open uses.
  std::vector<std::unique_ptr<TrackedBlock>> unmapped_ ABSL_GUARDED_BY(mu_);
  Rest rest_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_FENCE_TRACKER_H_
