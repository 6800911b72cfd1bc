#include "tests/sim/alone_uses.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace berth::core {

void AloneUses::Use(StreamKey stream, BlockId block, bool writes, FenceValues* fence_values) {
  queued_[stream].push_back({.block = block, .writes = writes});
  if (writes) ++fence_values->begun;
}

void AloneUses::Run(StreamKey stream, FenceValues* fence_values, Chance chance) {
  std::deque<Queued>& queue = queued_[stream];
  while (!queue.empty() && queue.front().value <= fence_values->done && chance(50)) {
    unseen_[stream] += queue.front().writes ? 1 : 0;
    queue.pop_front();
  }
  if (chance(30)) fence_values->ended += std::exchange(unseen_[stream], 0);
}

void AloneUses::Drain(StreamKey stream, FenceValues* fence_values) {
  queued_.erase(stream);
  unseen_.erase(stream);
  fence_values->ended = fence_values->begun;
}

std::vector<HandedMark> AloneUses::HandOver(ChannelId channel, BlockId block,
                                            absl::FunctionRef<uint64_t(StreamKey)> publish) {
  std::vector<HandedMark> marks;
  alone_.erase({channel, block});
  for (auto& [stream, queue] : queued_) {
    if (stream.channel != channel) continue;
    for (Queued& use : queue) {
      if (use.block != block) continue;
      const uint64_t value = use.value = publish(stream);
      marks.push_back(
          {.slot = stream.slot, .value = value, .access = use.writes ? Access::kWrite : Access::kRead});
      handed_[block].push_back({.end = {stream, value}, .writes = use.writes});
    }
  }
  return marks;
}

void AloneUses::Die(ChannelId channel, absl::FunctionRef<bool(BlockId)> writable, Reached reached) {
  for (const auto& [block, marks] : handed_) {
    for (const Handed& mark : marks) {
      if (mark.end.stream.channel == channel && mark.writes && !reached(mark.end)) torn_[block] = channel;
    }
  }
  for (const auto& [stream, queue] : queued_) {
    if (stream.channel != channel) continue;
    for (const Queued& use : queue) {
      if (use.writes && Tracks(channel, use.block) && writable(use.block)) torn_[use.block] = channel;
    }
  }
}

void AloneUses::Forget(ChannelId channel) {
  const auto of_channel = [channel](const auto& entry) { return entry.first.channel == channel; };
  std::erase_if(queued_, of_channel);
  std::erase_if(unseen_, of_channel);
  std::erase_if(alone_, [channel](const auto& entry) { return entry.first == channel; });
  std::erase_if(unnotified_, [channel](const auto& entry) { return entry.first.first == channel; });
  for (auto& [block, marks] : handed_) {
    std::erase_if(marks, [channel](const Handed& mark) { return mark.end.stream.channel == channel; });
  }
}

std::string AloneUses::Check(StreamKey stream, const std::vector<BlockUse>& uses, const Prepared& prepared,
                             Reached reached) {
  for (const BlockUse& use : uses) {
    if (const auto torn = torn_.find(use.block); torn != torn_.end()) {
      const bool notified = std::find(prepared.torn.begin(), prepared.torn.end(), use.block) != prepared.torn.end();
      // A launch decided before the core knew of that end is notified when it finishes.
      const bool waits = std::any_of(prepared.waits.begin(), prepared.waits.end(),
                                     [&](const FenceWait& wait) { return wait.stream.channel == torn->second; });
      if (!notified && !waits) return "a block that its only process left torn is not told to be";
      if (notified) {
        ++notified_;
      } else {
        unnotified_[{stream.channel, prepared.use}].insert(use.block);
      }
    }
    const auto handed = handed_.find(use.block);
    if (handed == handed_.end()) continue;
    for (const Handed& mark : handed->second) {
      if (mark.end.stream == stream || reached(mark.end)) continue;
      if (!mark.writes && !Writes(use.access)) continue;
      const bool waits =
          std::any_of(prepared.waits.begin(), prepared.waits.end(), [&](const FenceWait& wait) {
            return wait.stream == mark.end.stream && wait.value >= mark.end.value;
          });
      if (!waits) {
        return absl::StrCat("a launch does not wait for what was handed over: value ", mark.end.value,
                            " of slot ", mark.end.stream.slot);
      }
      ++waited_;
    }
    // Every later use waits for this one.
    if (Writes(use.access)) handed_.erase(handed);
  }
  return "";
}

void AloneUses::ClearTorn(BlockId block) {
  torn_.erase(block);
  for (auto& [use, blocks] : unnotified_) blocks.erase(block);
}

std::string AloneUses::Finish(ChannelId channel, UseId use, const std::vector<BlockUse>& uses,
                              const std::vector<BlockId>& torn) {
  for (const BlockUse& own : uses) {
    if (own.access == Access::kWrite) ClearTorn(own.block);
  }
  const auto unnotified = unnotified_.extract({channel, use});
  if (unnotified.empty()) return "";
  for (const BlockId block : unnotified.mapped()) {
    if (std::find(torn.begin(), torn.end(), block) == torn.end()) {
      return "a launch that was let on beside a process's end is not told what that left torn";
    }
    ++notified_;
  }
  return "";
}

}  // namespace berth::core
