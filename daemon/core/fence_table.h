// FenceTable: which streams use which blocks, across processes, and what each new use has to wait for.
//
// A launch is prepared and finished. Prepare() answers for all its blocks at once the words to wait for:
//
//   a read   waits for the last write
//   a write  waits for the last write and every read since
//   a free   waits for all of it
//
// but never for its own stream, nor for what has ended already; and for what the last write itself waited for, where
// another process is at it, because the writer may die first. Finish() says which value the launch writes into its
// stream's word when it ends. In between the use is open, and a Prepare() that conflicts with it is queued,
// so no answer ever names a value that is not on its way: two orders of two blocks cannot deadlock the GPU.
// Queued ones are served all or nothing, first come first served at each block, until their deadline.
//
// When a process dies its uses end. What it was writing is torn until a living process has finished a write of the
// whole block, and every answer about the block says so meanwhile.
//
// Tracks blocks that several processes map; one alone tracks a block by itself, and hands it over (BeginHandOver,
// EndHandOver) before the second comes. Pure arithmetic: words are read through an argument. Thread-compatible.

#ifndef DAEMON_CORE_FENCE_TABLE_H_
#define DAEMON_CORE_FENCE_TABLE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/archive.h"
#include "common/ids.h"
#include "common/row.h"
#include "daemon/core/caller.h"
#include "daemon/core/fence_types.h"
#include "daemon/core/journal.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/stream_table.h"

namespace berth::core {

// A queued Prepare() that has ended.
struct PrepareOutcome {
  RequestId request;
  absl::StatusOr<Prepared> result;
};

using PrepareOutcomes = std::vector<PrepareOutcome>;

// What every step of the table's is given: when it is, the words as they are, and where queued ones come out.
struct FenceStep {
  absl::Time now;
  const ReadWords& read;
  PrepareOutcomes* outcomes;
};

class FenceTable {
 public:
  struct Limits {
    // Beside the default stream; at least 1.
    uint32_t streams_per_device = 16;
    // Each bounds what one process can make the others' steps cost.
    uint64_t blocks_per_use = 256;
    uint64_t open_uses_per_channel = 256;
    uint64_t queued_prepares_per_channel = 64;
  };

  // Notes streams, uses, what is to be waited for at blocks, and counters; not what is queued, which is asked anew.
  FenceTable(Journal* journal, const Limits& limits)
      : journal_(*journal), limits_(limits), streams_(journal, limits.streams_per_device) {}

  StreamTable& streams() { return streams_; }
  const StreamTable& streams() const { return streams_; }

  // Begins a use of all the blocks, each named once or more, or queues it: nothing is returned then, and
  // `request` comes out of this or a later step. Errors: NOT_FOUND (stream); INVALID_FIELD (no blocks, or too
  // many); LIMIT.
  absl::StatusOr<std::optional<Prepared>> Prepare(const FenceStep& step, const RequestId& request,
                                                  uint32_t slot, std::vector<BlockUse> uses,
                                                  absl::Time deadline);
  // The use ends when its stream's word is at `value`. Returns the blocks of it that are torn: the process of
  // a use that it waited for may have died meanwhile.
  // Uses of one stream run in the order of their values, and may be told in any: one that is told late, because its
  // request was, is recorded as what it was.
  // Errors, with nothing changed: NOT_FOUND; INVALID_FIELD where it is no value.
  absl::StatusOr<std::vector<BlockId>> Finish(const FenceStep& step, ChannelId channel, UseId use,
                                              uint64_t value);
  // The launch never came about: as if it had not been prepared. Errors: NOT_FOUND.
  absl::Status Abandon(const FenceStep& step, ChannelId channel, UseId use);
  // The blocks of an open use of the process's; none where there is no such.
  std::vector<BlockUse> UsesOf(ChannelId channel, UseId use) const;
  // Takes a queued Prepare() back.
  void Leave(const FenceStep& step, const RequestId& request);
  bool Waits(const RequestId& request) const { return tickets_.contains(request); }

  // Ends queued ones whose deadline has come: BLOCK_IN_USE, naming who is in the way.
  void Expire(const FenceStep& step);
  // InfiniteFuture for none.
  absl::Time next_deadline() const;

  // Whether nothing of the process's is open or queued, and its words say that all that it began has ended: then
  // nothing is lost when it is dropped alive.
  bool Quiet(ChannelId channel, const ReadWords& read) const;
  // The process is gone and its words are still as it left them. `local` are blocks that it tracked by itself
  // and could write: they are torn if it was in doubt about any of its streams.
  // Returns the blocks that are torn by it and were not before.
  std::vector<BlockId> ProcessGone(const FenceStep& step, ChannelId channel,
                                   const std::vector<BlockId>& local);

  // The process is asked to hand the block over: to everybody else it is in use until then.
  void BeginHandOver(absl::Time now, BlockId block, ChannelId from, const ProcessInfo& process);
  // It has. Marks on streams that it has not opened mean nothing. Returns whether the process had been asked to.
  bool EndHandOver(const FenceStep& step, BlockId block, ChannelId from,
                   const std::vector<HandedMark>& marks);
  bool HandingOver(BlockId block) const;
  // Why who waits for the hand-over waits no longer. Requires: HandingOver(block).
  absl::Status HandOverRefusal(absl::Time now, BlockId block) const;

  // Whether somebody died while writing the block, and nobody has written it since.
  bool Torn(BlockId block) const;
  // Somebody who knows says that the block is whole.
  void ClearTorn(BlockId block);
  // What has not ended yet of the block's finished uses.
  std::vector<FenceWait> Pending(BlockId block, const ReadWords& read);
  // Whether no use of the block is open and none pending.
  bool Idle(BlockId block, const ReadWords& read);
  // The block takes no more uses: what is queued for it ends with `why`. What is open stays, and Idle() tells when it
  // has ended.
  void Refuse(const FenceStep& step, BlockId block, const absl::Status& why);
  // Requires: Idle(), and nothing queued.
  void Erase(BlockId block);

  // Oldest first.
  std::vector<StreamView> View(const ReadWords& read) const;
  // OK, or what is broken.
  absl::Status CheckBooks() const;

  // ---- What outlives the broker (fence_rows.cc) ------------------------------------------------------------

  void ListRows(std::vector<RowKey>* keys) const;
  // kUse and kFence. Returns whether there is such a row.
  bool WriteRow(const RowKey& key, ArchiveWriter& archive) const;
  // Takes in what an earlier table had: the last use's id, and rows in the order of their keys.
  uint64_t last_use() const { return last_use_; }
  void RestoreLastUse(uint64_t use) { last_use_ = use; }
  void ReadRow(const RowKey& key, ArchiveReader& archive);

 private:
  using Ticket = uint64_t;

  // A use to wait for.
  struct Mark {
    uint64_t value = 0;
    // The block is torn if the process dies before.
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
    // By block, each once.
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
    // What everybody waits for: the last write, and what a dead one's write would have waited for.
    Marks writes;
    // What only writes wait for.
    Marks reads;
    // What the last write waited for: stands in for it should its process die before.
    Marks superseded;
    std::map<UseId, Access> open;
    std::optional<HandOver> hand_over;
    // The last use that began before marks were handed over: it did not wait for them, nor did those before it.
    UseId last_before_marks;
    // Queued ones, in their order.
    std::map<Ticket, Access> queue;
    bool torn = false;

    // But for what is open, which has rows of its own, and queued.
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

  // The block's, to be changed: the second is null where there is none.
  Fence& FenceOf(BlockId block);
  Fence* FindFence(BlockId block);

  static void Raise(Marks& marks, StreamKey stream, Mark mark);
  static void Merge(Marks& into, const Marks& from);
  // Adds what the last write waited for and would outlive its process: that may die once the answer is given, and its
  // word then lets everybody on. Costs no time, as all of it ends before the write does.
  static void MergeStandIns(Marks& into, const Fence& fence);
  // Forgets what has ended.
  static void Prune(Fence& fence, const ReadWords& read);

  // Who is in the way of `access` to the block by `stream`: an open use, the hand-over, or one queued before
  // `ticket`.
  struct Obstacle {
    ChannelId channel;
    ProcessInfo process;
    absl::Time since;
  };
  std::optional<Obstacle> FindObstacle(const Fence& fence, StreamKey stream, Access access,
                                       Ticket ticket) const;
  // Why the queued one did not get on: the first of its blocks with an obstacle.
  absl::Status InUse(absl::Time now, Ticket ticket, const Queued& queued) const;
  static absl::Status InUse(absl::Time now, BlockId block, const Obstacle& obstacle);
  bool MayBegin(StreamKey stream, const std::vector<BlockUse>& blocks, Ticket ticket) const;
  Prepared Begin(const FenceStep& step, StreamKey stream, std::vector<BlockUse> blocks);
  using Uses = std::map<UseId, OpenUse>;
  absl::StatusOr<Uses::iterator> FindUse(ChannelId channel, UseId use);
  // Takes the use out of everything but the marks. Returns what it was.
  OpenUse End(Uses::iterator at);
  // What the finished use leaves behind at one of its blocks. While it was open no other stream's use could begin that
  // it conflicts with: what is behind it is its own stream's.
  static void Record(Fence& fence, StreamKey stream, Access access, uint64_t value);
  Queued Dequeue(Ticket ticket);
  // Begins what is queued at these blocks and can begin now.
  void Serve(const FenceStep& step, const std::set<BlockId>& blocks);
  // The process of these marks is gone.
  static void EndMarksOf(ChannelId channel, Fence& fence, const ReadWords& read);
  // Whether the process has marks there, or was asked to hand the block over.
  static bool Concerns(const Fence& fence, ChannelId channel);

  Journal& journal_;
  const Limits limits_;
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

#endif  // DAEMON_CORE_FENCE_TABLE_H_
