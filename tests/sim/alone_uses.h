// AloneUses: what simulated processes do with blocks that each maps alone. The core never hears of it until such a
// block is handed over or its process dies; then this says what the core has to know, and checks that it does.

#ifndef TESTS_SIM_ALONE_USES_H_
#define TESTS_SIM_ALONE_USES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/ids.h"
#include "daemon/core/fence_types.h"

namespace berth::core {

// Thread-compatible.
class AloneUses {
 public:
  using Chance = absl::FunctionRef<bool(uint64_t percent)>;
  using Reached = absl::FunctionRef<bool(const FenceWait&)>;

  // The process maps the block, and tracks it by itself from now on, or does not any more.
  void Map(ChannelId channel, BlockId block) { alone_.emplace(channel, block); }
  void Unmap(ChannelId channel, BlockId block) { alone_.erase({channel, block}); }
  bool Tracks(ChannelId channel, BlockId block) const { return alone_.contains({channel, block}); }

  // A use is queued on the stream. `words` are the stream's.
  void Use(StreamKey stream, BlockId block, bool writes, StreamWords* words);
  // Some of what is queued ends, and some of what has ended is seen to have.
  void Run(StreamKey stream, StreamWords* words, Chance chance);
  // All of it does.
  void Drain(StreamKey stream, StreamWords* words);

  // The process hands the block over. `publish` gives a stream's next value, which its word then comes to.
  std::vector<HandedMark> HandOver(ChannelId channel, BlockId block,
                                   absl::FunctionRef<uint64_t(StreamKey)> publish);
  // The process dies. `writable` says whether it could write a block.
  void Die(ChannelId channel, absl::FunctionRef<bool(BlockId)> writable, Reached reached);
  // Its words are gone too.
  void Forget(ChannelId channel);

  // A launch may be made: what is wrong with that, or nothing.
  std::string Check(StreamKey stream, const std::vector<BlockUse>& uses, const Prepared& prepared,
                    Reached reached);
  // The block is whole: somebody says so, or has written all of it.
  void ClearTorn(BlockId block);
  // It was finished, and told of these torn blocks: what is wrong with that, or nothing.
  std::string Finish(ChannelId channel, UseId use, const std::vector<BlockUse>& uses,
                     const std::vector<BlockId>& torn);
  // It never was made.
  void Abandon(ChannelId channel, UseId use) { untold_.erase({channel, use}); }

  // Launches that were found to wait for what was handed over, or to be told of what was torn.
  uint64_t waited() const { return waited_; }
  uint64_t told() const { return told_; }

 private:
  struct Queued {
    BlockId block;
    bool writes = false;
  };
  struct Handed {
    FenceWait end;
    bool writes = false;
  };

  // Processes with blocks that they map alone.
  std::set<std::pair<ChannelId, BlockId>> alone_;
  std::map<StreamKey, std::deque<Queued>> queued_;
  // Writes that have ended and were not seen to.
  std::map<StreamKey, uint64_t> unseen_;
  // What had not ended at the hand-over, until somebody else writes.
  std::map<BlockId, std::vector<Handed>> handed_;
  // By whose end.
  std::map<BlockId, ChannelId> torn_;
  // Of launches that were let on before the core knew of that end: what they are to be told once they have finished.
  std::map<std::pair<ChannelId, UseId>, std::set<BlockId>> untold_;
  uint64_t waited_ = 0;
  uint64_t told_ = 0;
};

}  // namespace berth::core

#endif  // TESTS_SIM_ALONE_USES_H_
