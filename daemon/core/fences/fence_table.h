// FenceTable: records which streams use which blocks, across processes, and what each new use must wait for.
//
// A client prepares each launch and finishes it later. Prepare() returns, for all blocks of the launch at once, the
// fence values to wait for:
//
//   a read   waits for the last write
//   a write  waits for the last write and every read since
//   a free   waits for all of these
//
// A use never waits for its own stream or for uses that have ended. It also waits for the uses of other processes that
// the last write itself waited for, because the writer may die first. Finish() reports the value that the launch writes
// to its stream's fence slot when it ends. Until Finish() the use is open, and a conflicting Prepare() is queued. So no
// answer names a value that is not already on its way. Two launches that use two blocks in opposite order cannot
// deadlock the GPU. Queued prepares are served all or nothing, first come first served at each block, until their
// deadline.
//
// When a process dies, its uses end. The blocks that it was writing are torn until a living process finishes a write of
// the whole block. Until then every answer about such a block reports it as torn.
//
// Tracks blocks that several processes map. A single process tracks a block itself and hands the tracking over
// (BeginHandOver, EndHandOver) before a second process maps it. Pure arithmetic: reads fence values through an
// argument. Thread-compatible.

#ifndef DAEMON_CORE_FENCES_FENCE_TABLE_H_
#define DAEMON_CORE_FENCES_FENCE_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/fences/stream_table.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/fence_types.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/limits.h"
#include "daemon/core/types/request_id.h"

namespace berth::core {

// The result of a queued Prepare() that has ended.
struct PrepareOutcome {
  RequestId request;
  absl::StatusOr<Prepared> result;
};

using PrepareOutcomes = std::vector<PrepareOutcome>;

// Input and output of every step of the table: the time, the current fence values, and the results of queued prepares.
struct FenceStep {
  absl::Time now;
  const ReadFenceValues& read;
  PrepareOutcomes* outcomes;
};

class FenceTable {
 public:
  // Records streams, uses, pending marks of blocks and counters in the journal. Queued prepares are not recorded:
  // clients send them again.
  FenceTable(Journal* journal, const FenceLimits& limits)
      : journal_(*journal), limits_(limits), streams_(journal, limits.streams_per_device) {}

  StreamTable& streams() { return streams_; }
  const StreamTable& streams() const { return streams_; }

  // Begins a use of all the blocks, each named once or more, or queues it. If queued, returns nothing, and `request`
  // appears in the outcomes of this step or a later one. Errors: NOT_FOUND (stream); INVALID_FIELD (no blocks, or too
  // many); LIMIT.
  absl::StatusOr<std::optional<Prepared>> Prepare(const FenceStep& step, const RequestId& request,
                                                  uint32_t slot, std::vector<BlockUse> uses,
                                                  absl::Time deadline);
  // Finishes the launch: the use ends when its stream's `done` reaches `value`. Returns the torn blocks of the use: the
  // process of a use that it waited for may have died meanwhile. Uses of one stream run in the order of their values,
  // and calls may report them in any order. A late report, caused by a late request, is recorded like a timely one.
  // Errors, with nothing changed: NOT_FOUND; INVALID_FIELD if `value` is not a valid value.
  absl::StatusOr<std::vector<BlockId>> Finish(const FenceStep& step, ChannelId channel, UseId use,
                                              uint64_t value);
  // Abandons the use of a launch that never happened, as if it had not been prepared. Errors: NOT_FOUND.
  absl::Status Abandon(const FenceStep& step, ChannelId channel, UseId use);
  // Returns the blocks of the process's open use; empty if there is no such use.
  std::vector<BlockUse> UsesOf(ChannelId channel, UseId use) const;
  // Cancels a queued Prepare().
  void Leave(const FenceStep& step, const RequestId& request);
  bool Waits(const RequestId& request) const { return tickets_.contains(request); }

  // Ends queued prepares whose deadline has passed with BLOCK_IN_USE, which names the process that blocks them.
  void Expire(const FenceStep& step);
  // Returns the earliest deadline; InfiniteFuture if nothing is queued.
  absl::Time next_deadline() const;

  // Returns whether the process has nothing open or queued and its fence values show that all its work has ended. Then
  // dropping the live process loses nothing.
  bool Quiet(ChannelId channel, const ReadFenceValues& read) const;
  // Ends the uses of a dead process, whose fence values are still as it left them. `local` are the blocks that the
  // process tracked by itself and could write: they become torn if any of its streams was in doubt. Returns the newly
  // torn blocks.
  std::vector<BlockId> ProcessGone(const FenceStep& step, ChannelId channel,
                                   const std::vector<BlockId>& local);

  // Records that the process was asked to hand the block over. Until it does, the block is in use for other processes.
  void BeginHandOver(absl::Time now, BlockId block, ChannelId from, const ProcessInfo& process);
  // Ends the hand-over with the process's marks. Ignores marks on streams that the process has not opened. Returns
  // whether the process had been asked to hand the block over.
  bool EndHandOver(const FenceStep& step, BlockId block, ChannelId from,
                   const std::vector<HandedMark>& marks);
  bool HandingOver(BlockId block) const;
  // Returns the refusal for a request whose wait for the hand-over ends unsuccessfully. Requires: HandingOver(block).
  absl::Status HandOverRefusal(absl::Time now, BlockId block) const;

  // Returns whether a process died while writing the block and no process has written it since.
  bool Torn(BlockId block) const;
  // Clears the torn state: a caller with knowledge of the content declares the block consistent.
  void ClearTorn(BlockId block);
  // Returns the waits for the block's finished uses that have not ended yet.
  std::vector<FenceWait> Pending(BlockId block, const ReadFenceValues& read);
  // Returns whether the block has no open and no pending use.
  bool Idle(BlockId block, const ReadFenceValues& read);
  // Makes the block reject further uses: prepares queued for it end with `why`. Open uses stay; Idle() reports when
  // they have ended.
  void Refuse(const FenceStep& step, BlockId block, const absl::Status& why);
  // Requires: Idle(), and nothing queued for the block.
  void Erase(BlockId block);

  // Returns all streams, oldest first.
  std::vector<StreamView> View(const ReadFenceValues& read) const;
  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants() const;

  // ---- Persistence across broker restarts (fence_records.cc) -----------------------------------------------

  void ListRecords(std::vector<RecordKey>* keys) const;
  // Writes a record of kind kUse or kFence. Returns whether the record exists.
  bool WriteRecord(const RecordKey& key, ArchiveWriter& archive) const;
  // Restores an earlier table's state: the id of its last use, and its records in the order of their keys.
  uint64_t last_use() const { return last_use_; }
  void RestoreLastUse(uint64_t use) { last_use_ = use; }
  void ReadRecord(const RecordKey& key, ArchiveReader& archive);

 private:
  using Ticket = uint64_t;

  // A use to wait for.
  struct Mark {
    uint64_t value = 0;
    // The process's death before `value` is reached makes the block torn.
    bool tears = false;

    template <typename Archive>
    friend void Fields(Archive& archive, Mark& mark) {
      archive(mark.value, mark.tears);
    }
  };
  using Marks = std::map<StreamKey, Mark>;

  struct OpenUse {
    StreamKey stream;
    absl::Time since;
    // Sorted by block, without duplicates.
    std::vector<BlockUse> blocks;

    template <typename Archive>
    friend void Fields(Archive& archive, OpenUse& use) {
      archive(use.stream, use.since, use.blocks);
    }
  };

  struct HandOver {
    ChannelId from;
    ProcessInfo process;
    absl::Time since;

    template <typename Archive>
    friend void Fields(Archive& archive, HandOver& hand_over) {
      archive(hand_over.from, hand_over.process, hand_over.since);
    }
  };

  struct Fence {
    // Marks that every use waits for: the last write, and the marks that a dead process's write would have waited for.
    Marks writes;
    // Marks that only writes wait for.
    Marks reads;
    // Marks that the last write waited for; they replace that write if its process dies before its end.
    Marks superseded;
    std::map<UseId, Access> open;
    std::optional<HandOver> hand_over;
    // The last use that began before marks were handed over. It and all earlier uses did not wait for these marks.
    UseId last_before_marks;
    // Queued prepares, in arrival order.
    std::map<Ticket, Access> queue;
    bool torn = false;

    // Excludes `open`, whose uses have their own records, and `queue`.
    template <typename Archive>
    friend void Fields(Archive& archive, Fence& fence) {
      archive(fence.writes, fence.reads, fence.superseded, fence.hand_over, fence.last_before_marks, fence.torn);
    }
  };

  struct Queued {
    RequestId request;
    StreamKey stream;
    std::vector<BlockUse> blocks;
    absl::Time since;
    absl::Time deadline;
  };

  // Return the block's fence for modification; FindFence() returns null if there is none.
  Fence& FenceOf(BlockId block);
  Fence* FindFence(BlockId block);

  static void Raise(Marks& marks, StreamKey stream, Mark mark);
  static void Merge(Marks& into, const Marks& from);
  // Adds the marks that the last write waited for and that would outlive the writer's process. The process may die
  // after the answer is given, and its fence values then release all waiters. Costs no time: these uses all end before
  // the write does.
  static void MergeStandIns(Marks& into, const Fence& fence);
  // Removes marks that have ended.
  static void Prune(Fence& fence, const ReadFenceValues& read);

  // An obstacle to `access` to the block by `stream`: an open use, the hand-over, or a prepare queued before `ticket`.
  struct Obstacle {
    ChannelId channel;
    ProcessInfo process;
    absl::Time since;
  };
  std::optional<Obstacle> FindObstacle(const Fence& fence, StreamKey stream, Access access,
                                       Ticket ticket) const;
  // Returns why the queued prepare did not begin: names the first of its blocks with an obstacle.
  absl::Status InUse(absl::Time now, Ticket ticket, const Queued& queued) const;
  static absl::Status InUse(absl::Time now, BlockId block, const Obstacle& obstacle);
  bool MayBegin(StreamKey stream, const std::vector<BlockUse>& blocks, Ticket ticket) const;
  Prepared Begin(const FenceStep& step, StreamKey stream, std::vector<BlockUse> blocks);
  using Uses = std::map<UseId, OpenUse>;
  absl::StatusOr<Uses::iterator> FindUse(ChannelId channel, UseId use);
  // Removes the use from all tables but the marks. Returns the removed use.
  OpenUse End(Uses::iterator at);
  // Records the marks that the finished use leaves at one of its blocks. While it was open, no conflicting use of
  // another stream could begin, so any later conflicting use belongs to its own stream.
  static void Record(Fence& fence, StreamKey stream, Access access, uint64_t value);
  Queued Dequeue(Ticket ticket);
  // Begins the prepares queued at these blocks that can begin now.
  void Serve(const FenceStep& step, const std::set<BlockId>& blocks);
  // Ends the marks of a dead process.
  static void EndMarksOf(ChannelId channel, Fence& fence, const ReadFenceValues& read);
  // Returns whether the process has marks at the block or was asked to hand it over.
  static bool Concerns(const Fence& fence, ChannelId channel);

  Journal& journal_;
  const FenceLimits limits_;
  StreamTable streams_;
  uint64_t last_use_ = 0;
  Ticket last_ticket_ = 0;
  std::map<BlockId, Fence> fences_;
  Uses uses_;
  std::map<Ticket, Queued> queue_;
  absl::flat_hash_map<RequestId, Ticket> tickets_;
  std::set<std::pair<absl::Time, Ticket>> deadlines_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_FENCES_FENCE_TABLE_H_
