// AloneUses: the uses of blocks that only one simulated process maps. The core sees none of them until such a block is
// handed over or its process dies. Then this class reports what the core has to know, and checks the core's answers.

#ifndef TESTS_SIM_ALONE_USES_H_
#define TESTS_SIM_ALONE_USES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/functional/function_ref.h"
#include "daemon/core/types/fence_types.h"

namespace berth::core {

// Thread-compatible.
class AloneUses {
 public:
  using Chance = absl::FunctionRef<bool(uint64_t percent)>;
  using Reached = absl::FunctionRef<bool(const FenceWait&)>;

  // The process starts, or stops, mapping the block and tracking its uses by itself.
  void Map(ChannelId channel, BlockId block) { alone_.emplace(channel, block); }
  void Unmap(ChannelId channel, BlockId block) { alone_.erase({channel, block}); }
  bool Tracks(ChannelId channel, BlockId block) const { return alone_.contains({channel, block}); }

  // Queues a use on the stream, whose fence values are `fence_values`.
  void Use(StreamKey stream, BlockId block, bool writes, FenceValues* fence_values);
  // Completes some queued uses, and observes some completions.
  void Run(StreamKey stream, FenceValues* fence_values, Chance chance);
  // Completes and observes all of them.
  void Drain(StreamKey stream, FenceValues* fence_values);

  // Hands over the process's block. `publish` returns the stream's next value, which its fence value reaches later.
  std::vector<HandedMark> HandOver(ChannelId channel, BlockId block,
                                   absl::FunctionRef<uint64_t(StreamKey)> publish);
  // The process dies. `writable` returns whether it could write a block.
  void Die(ChannelId channel, absl::FunctionRef<bool(BlockId)> writable, Reached reached);
  // Forgets the process together with its fence page.
  void Forget(ChannelId channel);

  // Checks the core's answer that a launch may run. Returns an error text, or an empty one.
  std::string Check(StreamKey stream, const std::vector<BlockUse>& uses, const Prepared& prepared,
                    Reached reached);
  // Marks the block as whole: a client declared it, or has written all of it.
  void ClearTorn(BlockId block);
  // Checks the torn blocks in the core's answer to a finished use. Returns an error text, or an empty one.
  std::string Finish(ChannelId channel, UseId use, const std::vector<BlockUse>& uses,
                     const std::vector<BlockId>& torn);
  // The use never ran.
  void Abandon(ChannelId channel, UseId use) { unnotified_.erase({channel, use}); }

  // Launches that waited for a handed-over use, or that were to be notified of a torn block.
  uint64_t waited() const { return waited_; }
  uint64_t notified() const { return notified_; }

 private:
  struct Queued {
    BlockId block;
    bool writes = false;
    // Once the use is handed over, the stream's value that marks its end.
    uint64_t value = 0;
  };
  struct Handed {
    FenceWait end;
    bool writes = false;
  };

  // Processes with the blocks that only they map.
  std::set<std::pair<ChannelId, BlockId>> alone_;
  std::map<StreamKey, std::deque<Queued>> queued_;
  // Writes that completed without being observed.
  std::map<StreamKey, uint64_t> unseen_;
  // Uses that had not completed at the hand-over, until another process writes.
  std::map<BlockId, std::vector<Handed>> handed_;
  // Torn blocks, with the process whose end tore them.
  std::map<BlockId, ChannelId> torn_;
  // Torn blocks of launches that were decided before the core knew of that end; reported once the launch finishes.
  std::map<std::pair<ChannelId, UseId>, std::set<BlockId>> unnotified_;
  uint64_t waited_ = 0;
  uint64_t notified_ = 0;
};

}  // namespace berth::core

#endif  // TESTS_SIM_ALONE_USES_H_
