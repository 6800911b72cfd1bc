#include "daemon/core/fences/fence_table.h"

#include <algorithm>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/fence_page.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

// Returns each block once, with the union of its accesses.
std::vector<BlockUse> Combine(const std::vector<BlockUse>& uses) {
  std::map<BlockId, Access> access;
  for (const BlockUse& use : uses) {
    const auto [at, fresh] = access.emplace(use.block, use.access);
    if (!fresh) at->second = at->second | use.access;
  }
  std::vector<BlockUse> combined;
  for (const auto& [block, how] : access) combined.push_back({block, how});
  return combined;
}

bool Conflict(Access a, Access b) { return Writes(a) || Writes(b); }

std::set<BlockId> BlocksOf(const std::vector<BlockUse>& uses) {
  std::set<BlockId> blocks;
  for (const BlockUse& use : uses) blocks.insert(use.block);
  return blocks;
}

absl::Status AtLimit(absl::string_view what, uint64_t current, uint64_t limit) {
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                {{"what", what}, {"current", current}, {"limit", limit}});
}

}  // namespace

FenceTable::Fence& FenceTable::FenceOf(BlockId block) {
  journal_.Touch(RecordKind::kFence, block.value());
  return fences_[block];
}

FenceTable::Fence* FenceTable::FindFence(BlockId block) {
  const auto found = fences_.find(block);
  if (found == fences_.end()) return nullptr;
  journal_.Touch(RecordKind::kFence, block.value());
  return &found->second;
}

void FenceTable::Raise(Marks& marks, StreamKey stream, Mark mark) {
  Mark& latest = marks[stream];
  latest.value = std::max(latest.value, mark.value);
  latest.tears = latest.tears || mark.tears;
}

void FenceTable::Merge(Marks& into, const Marks& from) {
  for (const auto& [stream, mark] : from) Raise(into, stream, mark);
}

void FenceTable::MergeStandIns(Marks& into, const Fence& fence) {
  for (const auto& superseded : fence.superseded) {
    const bool dies_alone = std::any_of(fence.writes.begin(), fence.writes.end(), [&](const auto& write) {
      return write.first.channel != superseded.first.channel;
    });
    if (dies_alone) Raise(into, superseded.first, superseded.second);
  }
}

void FenceTable::Prune(Fence& fence, const ReadFenceValues& read) {
  const auto ended = [&read](const auto& entry) { return read(entry.first).done >= entry.second.value; };
  std::erase_if(fence.writes, ended);
  std::erase_if(fence.reads, ended);
  // The write has ended, so all that it waited for has ended, too.
  if (fence.writes.empty()) {
    fence.superseded.clear();
  } else {
    std::erase_if(fence.superseded, ended);
  }
}

absl::StatusOr<std::optional<Prepared>> FenceTable::Prepare(const FenceStep& step, const RequestId& request,
                                                            uint32_t slot, std::vector<BlockUse> uses,
                                                            absl::Time deadline) {
  const StreamKey stream{request.channel, slot};
  BERTH_RETURN_IF_ERROR(streams_.Check(stream));
  if (uses.empty() || uses.size() > limits_.blocks_per_use) {
    return berth::Refuse(Reason::kInvalidField, "{field}: {value} blocks; a use takes 1 to {limit}",
                         {{"field", "uses"}, {"value", uses.size()}, {"limit", limits_.blocks_per_use}});
  }
  uint64_t open = 0;
  uint64_t queued = 0;
  for (uint32_t other = 0; other < streams_.SlotsOf(request.channel); ++other) {
    const StreamEntry* const entry = streams_.Find({request.channel, other});
    open += entry == nullptr ? 0 : entry->open_uses;
    queued += entry == nullptr ? 0 : entry->queued_prepares;
  }
  if (open >= limits_.open_uses_per_channel) {
    return AtLimit("open_uses_per_channel", open, limits_.open_uses_per_channel);
  }
  std::vector<BlockUse> blocks = Combine(uses);
  const Ticket ticket = ++last_ticket_;
  if (MayBegin(stream, blocks, ticket)) return Begin(step, stream, std::move(blocks));
  if (queued >= limits_.queued_prepares_per_channel) {
    return AtLimit("queued_prepares_per_channel", queued, limits_.queued_prepares_per_channel);
  }
  for (const BlockUse& use : blocks) FenceOf(use.block).queue.emplace(ticket, use.access);
  streams_.AddPrepare(stream);
  tickets_.emplace(request, ticket);
  deadlines_.emplace(deadline, ticket);
  queue_.emplace(ticket, Queued{.request = request,
                                .stream = stream,
                                .blocks = std::move(blocks),
                                .since = step.now,
                                .deadline = deadline});
  Expire(step);
  return std::nullopt;
}

std::optional<FenceTable::Obstacle> FenceTable::FindObstacle(const Fence& fence, StreamKey stream,
                                                             Access access, Ticket ticket) const {
  if (fence.hand_over.has_value()) {
    return Obstacle{fence.hand_over->from, fence.hand_over->process, fence.hand_over->since};
  }
  for (const auto& [use, how] : fence.open) {
    const OpenUse& open = uses_.at(use);
    // Launches of one stream run in the order in which they are made.
    if (open.stream == stream || !Conflict(how, access)) continue;
    return Obstacle{open.stream.channel, streams_.ProcessOf(open.stream.channel), open.since};
  }
  for (const auto& [before, how] : fence.queue) {
    if (before >= ticket) break;
    if (!Conflict(how, access)) continue;
    const Queued& queued = queue_.at(before);
    return Obstacle{queued.stream.channel, streams_.ProcessOf(queued.stream.channel), queued.since};
  }
  return std::nullopt;
}

bool FenceTable::MayBegin(StreamKey stream, const std::vector<BlockUse>& blocks, Ticket ticket) const {
  return std::all_of(blocks.begin(), blocks.end(), [&](const BlockUse& use) {
    const auto fence = fences_.find(use.block);
    return fence == fences_.end() || !FindObstacle(fence->second, stream, use.access, ticket).has_value();
  });
}

Prepared FenceTable::Begin(const FenceStep& step, StreamKey stream, std::vector<BlockUse> blocks) {
  Prepared prepared{.use = UseId(++last_use_)};
  journal_.Touch(RecordKind::kMemoryCounters);
  journal_.Touch(RecordKind::kUse, last_use_);
  Marks waits;
  for (const BlockUse& use : blocks) {
    Fence& fence = FenceOf(use.block);
    Prune(fence, step.read);
    Merge(waits, fence.writes);
    if (Writes(use.access)) Merge(waits, fence.reads);
    MergeStandIns(waits, fence);
    fence.open.emplace(prepared.use, use.access);
    if (fence.torn) prepared.torn.push_back(use.block);
  }
  for (const auto& [other, mark] : waits) {
    if (other != stream) prepared.waits.push_back({other, mark.value});
  }
  streams_.AddUse(stream);
  uses_.emplace(prepared.use, OpenUse{.stream = stream, .since = step.now, .blocks = std::move(blocks)});
  return prepared;
}

absl::StatusOr<FenceTable::Uses::iterator> FenceTable::FindUse(ChannelId channel, UseId use) {
  const auto at = uses_.find(use);
  if (at == uses_.end() || at->second.stream.channel != channel) {
    return berth::Refuse(Reason::kNotFound, "no open {kind} {id} in this process",
                         {{"kind", "use"}, {"id", use.value()}});
  }
  return at;
}

FenceTable::OpenUse FenceTable::End(Uses::iterator at) {
  OpenUse ended = std::move(at->second);
  journal_.Touch(RecordKind::kUse, at->first.value());
  for (const BlockUse& use : ended.blocks) fences_.at(use.block).open.erase(at->first);
  streams_.EndUse(ended.stream);
  uses_.erase(at);
  return ended;
}

void FenceTable::Record(Fence& fence, StreamKey stream, Access access, uint64_t value) {
  if (!Writes(access)) return Raise(fence.reads, stream, {.value = value});
  const auto after = [&](const Marks& marks) {
    const auto own = marks.find(stream);
    return own != marks.end() && own->second.value > value ? own->second.value : 0;
  };
  const bool rewritten = after(fence.writes) > 0;
  const uint64_t read_after = after(fence.reads);
  if (!rewritten) {
    Merge(fence.superseded, fence.writes);
    Merge(fence.superseded, fence.reads);
  }
  if (access == Access::kWrite) {
    // The write replaces all earlier content, torn or not.
    fence.torn = false;
    for (auto& [other, mark] : fence.superseded) mark.tears = false;
  }
  if (rewritten) return;
  fence.writes = {{stream, Mark{.value = value, .tears = true}}};
  fence.reads.clear();
  if (read_after > 0) Raise(fence.reads, stream, {.value = read_after});
}

absl::StatusOr<std::vector<BlockId>> FenceTable::Finish(const FenceStep& step, ChannelId channel, UseId use,
                                                        uint64_t value) {
  BERTH_ASSIGN_OR_RETURN(const Uses::iterator at, FindUse(channel, use));
  if (value == 0 || value >= kFenceTop) {
    return berth::Refuse(Reason::kInvalidField, "invalid {field} {value}: expected 1 to below {limit}",
                         {{"field", "value"}, {"value", value}, {"limit", kFenceTop}});
  }
  streams_.RecordValue(at->second.stream, value);
  const OpenUse ended = End(at);
  std::vector<BlockId> torn;
  for (const BlockUse& block : ended.blocks) {
    Fence& fence = FenceOf(block.block);
    Prune(fence, step.read);
    if (use <= fence.last_before_marks && Writes(block.access)) {
      Raise(fence.writes, ended.stream, {.value = value, .tears = true});
    } else {
      Record(fence, ended.stream, block.access, value);
    }
    if (fence.torn) torn.push_back(block.block);
  }
  Serve(step, BlocksOf(ended.blocks));
  return torn;
}

std::vector<BlockUse> FenceTable::UsesOf(ChannelId channel, UseId use) const {
  const auto at = uses_.find(use);
  if (at == uses_.end() || at->second.stream.channel != channel) return {};
  return at->second.blocks;
}

absl::Status FenceTable::Abandon(const FenceStep& step, ChannelId channel, UseId use) {
  BERTH_ASSIGN_OR_RETURN(const Uses::iterator at, FindUse(channel, use));
  Serve(step, BlocksOf(End(at).blocks));
  return absl::OkStatus();
}

FenceTable::Queued FenceTable::Dequeue(Ticket ticket) {
  const auto at = queue_.find(ticket);
  Queued queued = std::move(at->second);
  queue_.erase(at);
  tickets_.erase(queued.request);
  deadlines_.erase({queued.deadline, ticket});
  streams_.EndPrepare(queued.stream);
  for (const BlockUse& use : queued.blocks) fences_.at(use.block).queue.erase(ticket);
  return queued;
}

void FenceTable::Serve(const FenceStep& step, const std::set<BlockId>& blocks) {
  std::set<Ticket> candidates;
  const auto add = [&](BlockId block, Ticket after) {
    const auto fence = fences_.find(block);
    if (fence == fences_.end()) return;
    for (const auto& [ticket, access] : fence->second.queue) {
      if (ticket > after) candidates.insert(ticket);
    }
  };
  for (const BlockId block : blocks) add(block, 0);
  // Starting a use can unblock only later waiters, so the scan goes by ascending ticket.
  while (!candidates.empty()) {
    const Ticket ticket = *candidates.begin();
    candidates.erase(candidates.begin());
    const Queued& waiting = queue_.at(ticket);
    if (!MayBegin(waiting.stream, waiting.blocks, ticket)) continue;
    // The use keeps a closing stream open during the change from the queue to the open uses.
    const StreamKey stream = waiting.stream;
    streams_.AddUse(stream);
    Queued queued = Dequeue(ticket);
    for (const BlockUse& use : queued.blocks) add(use.block, ticket);
    step.outcomes->push_back({queued.request, Begin(step, stream, std::move(queued.blocks))});
    streams_.EndUse(stream);
  }
}

void FenceTable::Leave(const FenceStep& step, const RequestId& request) {
  const auto ticket = tickets_.find(request);
  if (ticket == tickets_.end()) return;
  Serve(step, BlocksOf(Dequeue(ticket->second).blocks));
}

absl::Status FenceTable::InUse(absl::Time now, BlockId block, const Obstacle& obstacle) {
  return berth::Refuse(
      Reason::kBlockInUse,
      "block {block} has been in use by {process} (pid {pid}) for {held_ms} ms, and the use has not finished",
      {{"block", block.value()},
       {"process", obstacle.process.name},
       {"pid", obstacle.process.pid},
       {"channel", obstacle.channel.value()},
       {"held_ms", absl::ToInt64Milliseconds(now - obstacle.since)}});
}

absl::Status FenceTable::InUse(absl::Time now, Ticket ticket, const Queued& queued) const {
  for (const BlockUse& use : queued.blocks) {
    const auto obstacle = FindObstacle(fences_.at(use.block), queued.stream, use.access, ticket);
    if (obstacle.has_value()) return InUse(now, use.block, *obstacle);
  }
  BERTH_INVARIANT(false);
}

void FenceTable::Expire(const FenceStep& step) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= step.now) {
    const Ticket ticket = deadlines_.begin()->second;
    const absl::Status why = InUse(step.now, ticket, queue_.at(ticket));
    const Queued queued = Dequeue(ticket);
    step.outcomes->push_back({queued.request, why});
    Serve(step, BlocksOf(queued.blocks));
  }
}

absl::Time FenceTable::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

bool FenceTable::Quiet(ChannelId channel, const ReadFenceValues& read) const {
  for (uint32_t slot = 0; slot < streams_.SlotsOf(channel); ++slot) {
    const StreamKey stream{channel, slot};
    const StreamEntry& entry = streams_.EntryOf(stream);
    const FenceValues fence_values = read(stream);
    if (entry.open_uses + entry.queued_prepares > 0 || fence_values.done < entry.last_value || fence_values.in_doubt())
      return false;
  }
  return true;
}

void FenceTable::EndMarksOf(ChannelId channel, Fence& fence, const ReadFenceValues& read) {
  const auto gone = [channel](const auto& entry) { return entry.first.channel == channel; };
  bool write_lost = false;
  for (Marks* const marks : {&fence.writes, &fence.reads, &fence.superseded}) {
    for (const auto& [stream, mark] : *marks) {
      if (stream.channel != channel || read(stream).done >= mark.value) continue;
      fence.torn = fence.torn || mark.tears;
      write_lost = write_lost || marks == &fence.writes;
    }
    std::erase_if(*marks, gone);
  }
  // Uses that the lost write waited for may still be running.
  if (write_lost) Merge(fence.writes, fence.superseded);
  if (write_lost || fence.writes.empty()) fence.superseded.clear();
}

std::vector<BlockId> FenceTable::ProcessGone(const FenceStep& step, ChannelId channel,
                                             const std::vector<BlockId>& local) {
  std::vector<BlockId> torn;
  const auto tear = [&](BlockId block, Fence& fence) {
    if (!std::exchange(fence.torn, true)) torn.push_back(block);
  };
  bool working = false;
  for (uint32_t slot = 0; slot < streams_.SlotsOf(channel); ++slot) {
    working = working || step.read({channel, slot}).in_doubt();
  }
  std::set<BlockId> touched;
  if (working) {
    for (const BlockId block : local) tear(block, FenceOf(block));
  }
  for (auto at = queue_.begin(); at != queue_.end();) {
    const Ticket ticket = (at++)->first;
    if (queue_.at(ticket).stream.channel == channel) touched.merge(BlocksOf(Dequeue(ticket).blocks));
  }
  for (auto at = uses_.begin(); at != uses_.end();) {
    const auto use = at++;
    if (use->second.stream.channel != channel) continue;
    for (const BlockUse& block : End(use).blocks) {
      touched.insert(block.block);
      if (Writes(block.access)) tear(block.block, FenceOf(block.block));
    }
  }
  for (auto& [block, fence] : fences_) {
    if (!Concerns(fence, channel)) continue;
    journal_.Touch(RecordKind::kFence, block.value());
    const bool before = fence.torn;
    EndMarksOf(channel, fence, step.read);
    if (fence.torn && !before) torn.push_back(block);
    if (!fence.hand_over.has_value() || fence.hand_over->from != channel) continue;
    fence.hand_over.reset();
    touched.insert(block);
  }
  streams_.Erase(channel);
  Serve(step, touched);
  return torn;
}

bool FenceTable::Concerns(const Fence& fence, ChannelId channel) {
  const auto has = [channel](const Marks& marks) {
    const auto first = marks.lower_bound({channel, 0});
    return first != marks.end() && first->first.channel == channel;
  };
  return has(fence.writes) || has(fence.reads) || has(fence.superseded) ||
         (fence.hand_over.has_value() && fence.hand_over->from == channel);
}

void FenceTable::BeginHandOver(absl::Time now, BlockId block, ChannelId from, const ProcessInfo& process) {
  FenceOf(block).hand_over = HandOver{.from = from, .process = process, .since = now};
}

bool FenceTable::HandingOver(BlockId block) const {
  const auto fence = fences_.find(block);
  return fence != fences_.end() && fence->second.hand_over.has_value();
}

absl::Status FenceTable::HandOverRefusal(absl::Time now, BlockId block) const {
  const HandOver& hand_over = *fences_.at(block).hand_over;
  return InUse(now, block, Obstacle{hand_over.from, hand_over.process, hand_over.since});
}

bool FenceTable::EndHandOver(const FenceStep& step, BlockId block, ChannelId from,
                             const std::vector<HandedMark>& marks) {
  const auto found = fences_.find(block);
  if (found == fences_.end() || !found->second.hand_over.has_value()) return false;
  if (found->second.hand_over->from != from) return false;
  Fence& fence = FenceOf(block);
  fence.hand_over.reset();
  fence.last_before_marks = UseId(last_use_);
  for (const HandedMark& mark : marks) {
    if (mark.slot >= streams_.SlotsOf(from) || mark.value >= kFenceTop) continue;
    const bool writes = Writes(mark.access);
    streams_.RecordValue({from, mark.slot}, mark.value);
    Raise(writes ? fence.writes : fence.reads, {from, mark.slot}, {.value = mark.value, .tears = writes});
  }
  Serve(step, {block});
  return true;
}

bool FenceTable::Torn(BlockId block) const {
  const auto fence = fences_.find(block);
  return fence != fences_.end() && fence->second.torn;
}

void FenceTable::ClearTorn(BlockId block) {
  if (Fence* const fence = FindFence(block)) fence->torn = false;
}

std::vector<FenceWait> FenceTable::Pending(BlockId block, const ReadFenceValues& read) {
  std::vector<FenceWait> waits;
  Fence* const fence = FindFence(block);
  if (fence == nullptr) return waits;
  Prune(*fence, read);
  Marks all = fence->writes;
  Merge(all, fence->reads);
  Merge(all, fence->superseded);
  for (const auto& [stream, mark] : all) waits.push_back({stream, mark.value});
  return waits;
}

bool FenceTable::Idle(BlockId block, const ReadFenceValues& read) {
  const auto fence = fences_.find(block);
  return fence == fences_.end() || (fence->second.open.empty() && Pending(block, read).empty());
}

void FenceTable::Refuse(const FenceStep& step, BlockId block, const absl::Status& why) {
  Fence* const fence = FindFence(block);
  if (fence == nullptr) return;
  std::set<BlockId> touched;
  fence->hand_over.reset();
  while (!fence->queue.empty()) {
    Queued queued = Dequeue(fence->queue.begin()->first);
    touched.merge(BlocksOf(queued.blocks));
    step.outcomes->push_back({queued.request, why});
  }
  Serve(step, touched);
}

void FenceTable::Erase(BlockId block) {
  const auto fence = fences_.find(block);
  if (fence == fences_.end()) return;
  BERTH_INVARIANT(fence->second.open.empty() && fence->second.queue.empty());
  journal_.Touch(RecordKind::kFence, block.value());
  fences_.erase(fence);
}

std::vector<StreamView> FenceTable::View(const ReadFenceValues& read) const {
  std::map<StreamKey, absl::Time> oldest;
  for (const auto& [id, use] : uses_) {
    const auto [at, fresh] = oldest.emplace(use.stream, use.since);
    if (!fresh) at->second = std::min(at->second, use.since);
  }
  std::vector<StreamView> views;
  streams_.ForEach([&](StreamKey stream, const StreamEntry& entry) {
    const auto open = oldest.find(stream);
    views.push_back({.number = entry.number,
                     .stream = stream,
                     .process = streams_.ProcessOf(stream.channel),
                     .device = entry.device,
                     .id = entry.id,
                     .since = entry.since,
                     .fence_values = read(stream),
                     .last_value = entry.last_value,
                     .open_uses = entry.open_uses,
                     .open_since = open == oldest.end() ? absl::InfiniteFuture() : open->second});
  });
  std::sort(views.begin(), views.end(),
            [](const StreamView& a, const StreamView& b) { return a.number < b.number; });
  return views;
}

absl::Status FenceTable::CheckInvariants() const {
  const auto broken = [](absl::string_view what) { return absl::InternalError(what); };
  std::map<StreamKey, std::pair<uint64_t, uint64_t>> counts;
  uint64_t places = 0;
  for (const auto& [id, use] : uses_) {
    ++counts[use.stream].first;
    if (streams_.Find(use.stream) == nullptr) return broken("a use is open on a stream that is not open");
    for (const BlockUse& block : use.blocks) {
      const auto fence = fences_.find(block.block);
      if (fence == fences_.end() || !fence->second.open.contains(id))
        return broken("an open use is not at its block");
    }
    places += use.blocks.size();
  }
  for (const auto& [ticket, queued] : queue_) {
    ++counts[queued.stream].second;
    if (streams_.Find(queued.stream) == nullptr) return broken("a prepare is queued for a stream that is not open");
    if (MayBegin(queued.stream, queued.blocks, ticket)) return broken("a prepare waits without need");
    places += queued.blocks.size();
  }
  bool counted = true;
  streams_.ForEach([&](StreamKey stream, const StreamEntry& entry) {
    counted = counted && counts[stream] == std::pair(entry.open_uses, entry.queued_prepares);
  });
  if (!counted) return broken("a stream's uses are miscounted");
  for (const auto& [block, fence] : fences_) {
    places -= fence.open.size() + fence.queue.size();
    for (const Marks* const marks : {&fence.writes, &fence.reads, &fence.superseded}) {
      for (const auto& [stream, mark] : *marks) {
        if (!streams_.Knows(stream.channel)) return broken("a use waits for an absent process");
      }
    }
    if (fence.writes.empty() && !fence.superseded.empty()) return broken("a superseded write has no later write");
  }
  if (places != 0) return broken("a block has an absent use");
  if (tickets_.size() != queue_.size() || deadlines_.size() != queue_.size())
    return broken("the queue is miscounted");
  return absl::OkStatus();
}

}  // namespace berth::core
