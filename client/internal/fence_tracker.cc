#include "client/internal/fence_tracker.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error.h"
#include "common/status_macros.h"

namespace berth::internal {

// One per stream for the reads, and the last write.
static_assert(attach::HandedOver::kMaxMarks == kFenceSlots + 1);

std::shared_ptr<TrackedBlock> FenceTracker::Track(BlockId block, bool shared) {
  SpinLockHolder lock(&mu_);
  Known& known = blocks_[block];
  if (std::shared_ptr<TrackedBlock> tracked = known.shared.lock()) {
    tracked->shared_ = tracked->shared_ || shared;
    return tracked;
  }
  std::shared_ptr<TrackedBlock> tracked(new TrackedBlock(block, shared),
                                        [this](TrackedBlock* gone) { Forget(gone); });
  known = {.block = tracked.get(), .shared = tracked};
  return tracked;
}

void FenceTracker::Forget(TrackedBlock* block) {
  Rest rest;
  {
    SpinLockHolder lock(&mu_);
    DropMarks(*block, &rest);
    // It may have been imported anew meanwhile.
    const auto at = blocks_.find(block->id_);
    if (at != blocks_.end() && at->second.block == block) blocks_.erase(at);
  }
  delete block;
  Settle(rest, /*wake=*/false);
}

void FenceTracker::MarkShared(BlockId block) {
  SpinLockHolder lock(&mu_);
  if (const auto at = blocks_.find(block); at != blocks_.end()) at->second.block->shared_ = true;
}

// ---- Uses

const TrackedBlock* FenceTracker::FindObstacle(const TrackedStream& stream,
                                               absl::Span<const TrackedUse> uses) {
  for (const TrackedUse& use : uses) {
    if (use.block->shared_) continue;
    for (const TrackedBlock::Open& open : use.block->open_) {
      if (open.stream != &stream && (Writes(open.access) || Writes(use.access))) return use.block;
    }
  }
  return nullptr;
}

absl::Status FenceTracker::Begin(TrackedStream& stream, TrackedLaunch* launch, absl::Duration patience) {
  bool late = false;
  // A clock is read by those alone who wait.
  for (absl::Time deadline = absl::InfinitePast();;) {
    BlockId in_use;
    uint64_t seen = 0;
    {
      SpinLockHolder lock(&mu_);
      const TrackedBlock* const obstacle = FindObstacle(stream, launch->uses);
      if (obstacle == nullptr) {
        BeginLocked(stream, launch);
        return absl::OkStatus();
      }
      in_use = obstacle->id_;
      waiting_ += late ? 0 : 1;
      seen = changes_;
    }
    if (late) {
      return Refuse(
          Reason::kBlockInUse,
          "block {block} is in use by another stream of this process (pid {pid}), and the use was not "
          "finished",
          {{"block", absl::StrCat(absl::Hex(in_use.value()))}, {"pid", ::getpid()}});
    }
    if (deadline == absl::InfinitePast()) deadline = absl::Now() + patience;
    late = AwaitChange(seen, deadline);
  }
}

void FenceTracker::CollectWaits(TrackedBlock& block, const TrackedStream& stream, UseAccess access,
                                TrackedLaunch* launch) {
  const auto add = [&](LaunchEnd* end) {
    if (end->stream == &stream) return;
    for (LaunchEnd*& wait : launch->waits) {
      if (wait->stream != end->stream) continue;
      if (wait->place >= end->place) return;
      // The one before is still its block's, so this is not the last reference.
      --wait->references;
      wait = end;
      ++end->references;
      return;
    }
    launch->waits.push_back(end);
    ++end->references;
  };
  if (block.write_ != nullptr) add(block.write_);
  if (!Writes(access)) return;
  for (LaunchEnd* const read : block.reads_) add(read);
}

void FenceTracker::BeginLocked(TrackedStream& stream, TrackedLaunch* launch) {
  for (TrackedUse& use : launch->uses) {
    use.remote = use.block->shared_;
    if (use.remote) {
      launch->remote = true;
      continue;
    }
    launch->local = true;
    launch->local_writes = launch->local_writes || Writes(use.access);
    CollectWaits(*use.block, stream, use.access, launch);
    // Field by field: a struct that is copied whole waits for the stores of its parts.
    TrackedBlock::Open& open = use.block->open_.emplace_back();
    open.stream = &stream;
    open.access = use.access;
  }
  if (launch->local && !stream.free_.empty()) {
    launch->end = stream.free_.back();
    stream.free_.pop_back();
    launch->end->references = 1;
  }
  if (!launch->local_writes) return;
  ++stream.open_writes_;
  stream.words_.begun.store(stream.writes_ + stream.open_writes_, std::memory_order_release);
}

absl::Status FenceTracker::Record(TrackedStream& stream, TrackedLaunch* launch) {
  if (launch->end == nullptr) {
    BERTH_ASSIGN_OR_RETURN(std::unique_ptr<StreamEvent> event, stream.backend().CreateEvent());
    launch->end = new LaunchEnd{
        .event = std::move(event), .kind = stream.backend().kind(), .stream = &stream, .references = 1};
    SpinLockHolder lock(&mu_);
    stream.ends_.push_back(launch->end);
  }
  absl::Status recorded = stream.backend().Record(*launch->end->event);
  if (!recorded.ok()) Strand(launch);
  return recorded;
}

void FenceTracker::Strand(TrackedLaunch* launch) {
  Rest rest;
  {
    SpinLockHolder lock(&mu_);
    DropEnds(launch, &rest);
  }
  Settle(rest, /*wake=*/false);
}

void FenceTracker::RecordUse(TrackedBlock& block, LaunchEnd* end, UseAccess access, Rest* rest) {
  ++end->references;
  if (Writes(access)) {
    DropMarks(block, rest);
    block.write_ = end;
    return;
  }
  for (LaunchEnd*& read : block.reads_) {
    if (read->stream != end->stream) continue;
    Drop(read, rest);
    read = end;
    return;
  }
  block.reads_.push_back(end);
}

void FenceTracker::EndUse(const TrackedStream& stream, TrackedBlock& block, UseAccess access, Rest* rest) {
  const auto open = std::find_if(block.open_.begin(), block.open_.end(), [&](const TrackedBlock::Open& open) {
    return open.stream == &stream && open.access == access;
  });
  if (open != block.open_.end() - 1) *open = block.open_.back();
  block.open_.pop_back();
  if (block.hand_over_asked_ && block.open_.empty()) rest->leaving.push_back(TakeMarks(block));
}

bool FenceTracker::EndLaunch(TrackedStream& stream, TrackedLaunch* launch, Rest* rest) {
  DropEnds(launch, rest);
  if (launch->local_writes) {
    --stream.open_writes_;
    stream.words_.begun.store(stream.writes_ + stream.open_writes_, std::memory_order_release);
  }
  return Change();
}

void FenceTracker::Finish(TrackedStream& stream, TrackedLaunch* launch) {
  Rest rest;
  bool wake;
  {
    SpinLockHolder lock(&mu_);
    LaunchEnd* const end = launch->end;
    if (launch->local_writes) ++stream.writes_;
    end->place = stream.recorded() + 1;
    end->writes = stream.writes_;
    stream.recorded_.store(end->place, std::memory_order_relaxed);
    stream.newest_ = end;
    for (const TrackedUse& use : launch->uses) {
      if (use.remote) continue;
      RecordUse(*use.block, end, use.access, &rest);
      EndUse(stream, *use.block, use.access, &rest);
    }
    wake = EndLaunch(stream, launch, &rest);
  }
  Settle(rest, wake);
}

void FenceTracker::Abandon(TrackedStream& stream, TrackedLaunch* launch) {
  Rest rest;
  bool wake;
  {
    SpinLockHolder lock(&mu_);
    for (const TrackedUse& use : launch->uses) {
      if (!use.remote) EndUse(stream, *use.block, use.access, &rest);
    }
    wake = EndLaunch(stream, launch, &rest);
  }
  Settle(rest, wake);
}

// ---- Ends of launches

void FenceTracker::Drop(LaunchEnd* end, Rest* rest) {
  if (--end->references > 0) return;
  if (end->stream != nullptr) {
    end->stream->free_.push_back(end);
  } else {
    rest->dead.push_back(end);
  }
}

void FenceTracker::DropEnds(TrackedLaunch* launch, Rest* rest) {
  for (LaunchEnd* const wait : launch->waits) Drop(wait, rest);
  launch->waits.clear();
  if (launch->end != nullptr) Drop(std::exchange(launch->end, nullptr), rest);
}

void FenceTracker::DropMarks(TrackedBlock& block, Rest* rest) {
  if (block.write_ != nullptr) Drop(std::exchange(block.write_, nullptr), rest);
  for (LaunchEnd* const read : block.reads_) Drop(read, rest);
  block.reads_.clear();
}

uint64_t FenceTracker::Point(const TrackedStream& stream) const {
  SpinLockHolder lock(&mu_);
  return stream.writes_;
}

void FenceTracker::SawEnd(TrackedStream& stream, uint64_t point) {
  SpinLockHolder lock(&mu_);
  SawEndLocked(stream, point);
}

void FenceTracker::SawEndLocked(TrackedStream& stream, uint64_t point) {
  stream.seen_ = std::max(stream.seen_, point);
  stream.words_.ended.store(stream.seen_, std::memory_order_release);
}

void FenceTracker::Look(TrackedStream& stream) {
  // It is recorded anew by nobody meanwhile, and stands for all before it.
  if (stream.newest_ == nullptr) return;
  const absl::StatusOr<bool> reached = stream.backend().Reached(*stream.newest_->event);
  if (reached.ok() && *reached) SawEnd(stream, stream.newest_->writes);
}

void FenceTracker::Close(TrackedStream& stream) {
  Rest rest;
  while (true) {
    uint64_t seen = 0;
    {
      SpinLockHolder lock(&mu_);
      if (stream.pins_ == 0) {
        const auto of_stream = [&stream](const LaunchEnd* end) { return end->stream == &stream; };
        for (auto& [id, known] : blocks_) {
          TrackedBlock& block = *known.block;
          if (block.write_ != nullptr && of_stream(block.write_)) {
            Drop(std::exchange(block.write_, nullptr), &rest);
          }
          const auto read = std::find_if(block.reads_.begin(), block.reads_.end(), of_stream);
          if (read == block.reads_.end()) continue;
          Drop(*read, &rest);
          block.reads_.erase(read);
        }
        for (LaunchEnd* const end : stream.ends_) {
          end->stream = nullptr;
          if (end->references == 0) rest.dead.push_back(end);
        }
        stream.ends_.clear();
        stream.free_.clear();
        break;
      }
      ++waiting_;
      seen = changes_;
    }
    AwaitChange(seen, absl::InfiniteFuture());
  }
  Settle(rest, /*wake=*/false);
}

// ---- Hand-over

FenceTracker::Leaving FenceTracker::TakeMarks(TrackedBlock& block) {
  Leaving leaving{.block = &block};
  if (block.write_ != nullptr) {
    leaving.marks.push_back({std::exchange(block.write_, nullptr), UseAccess::kWrite});
  }
  for (LaunchEnd* const read : block.reads_) leaving.marks.push_back({read, UseAccess::kRead});
  block.reads_.clear();
  for (const Mark& mark : leaving.marks) ++mark.end->stream->pins_;
  return leaving;
}

void FenceTracker::AskHandOver(BlockId id) {
  // Outlives the lock, under which its last reference must not end.
  std::shared_ptr<TrackedBlock> block;
  Rest rest;
  {
    SpinLockHolder lock(&mu_);
    if (const auto at = blocks_.find(id); at != blocks_.end()) block = at->second.shared.lock();
    if (block != nullptr) {
      block->shared_ = true;
      block->hand_over_asked_ = true;
      if (!block->open_.empty()) return;
      rest.leaving.push_back(TakeMarks(*block));
    }
  }
  // Nothing here maps it any more, so nothing here uses it.
  if (block == nullptr) return send_({.block = id.value()});
  Settle(rest, /*wake=*/false);
}

void FenceTracker::HandOver(const Leaving& leaving) {
  attach::HandedOver handed = {.block = leaving.block->id_.value()};
  std::vector<LaunchEnd*> ended;
  absl::Status status;
  for (const Mark& mark : leaving.marks) {
    TrackedStream& stream = *mark.end->stream;
    const absl::StatusOr<bool> reached = stream.backend().Reached(*mark.end->event);
    if (reached.ok() && *reached) {
      ended.push_back(mark.end);
      continue;
    }
    const absl::StatusOr<uint64_t> value = stream.word().Publish(*mark.end->event, mark.end->place);
    status.Update(value.status());
    if (!status.ok()) break;
    handed.marks[handed.count++] = {
        .slot = stream.slot(), .access = static_cast<uint32_t>(mark.access), .value = *value};
  }
  Rest rest;
  bool wake;
  {
    SpinLockHolder lock(&mu_);
    for (LaunchEnd* const end : ended) SawEndLocked(*end->stream, end->writes);
    for (const Mark& mark : leaving.marks) {
      --mark.end->stream->pins_;
      Drop(mark.end, &rest);
    }
    wake = Change();
  }
  Settle(rest, wake);
  if (status.ok()) send_(handed);
}

absl::StatusOr<OwnWait> FenceTracker::WordOf(LaunchEnd& wait) {
  TrackedStream* stream;
  uint64_t place;
  {
    SpinLockHolder lock(&mu_);
    stream = wait.stream;
    if (stream == nullptr) return OwnWait{};
    ++stream->pins_;
    place = wait.place;
  }
  const absl::StatusOr<uint64_t> value = stream->word().Publish(*wait.event, place);
  const uint32_t slot = stream->slot();
  bool wake;
  {
    SpinLockHolder lock(&mu_);
    --stream->pins_;
    wake = Change();
  }
  Settle({}, wake);
  if (!value.ok()) return value.status();
  return OwnWait{.slot = slot, .value = *value};
}

// ---- What is done without the lock

bool FenceTracker::Change() {
  if (waiting_ == 0) return false;
  ++changes_;
  return true;
}

void FenceTracker::Settle(const Rest& rest, bool wake) {
  if (rest.dead.empty() && rest.leaving.empty() && !wake) return;
  for (LaunchEnd* const end : rest.dead) delete end;
  for (const Leaving& leaving : rest.leaving) HandOver(leaving);
  if (!wake) return;
  MutexLock lock(&sleep_mu_);
  changed_.SignalAll();
}

bool FenceTracker::AwaitChange(uint64_t seen, absl::Time deadline) {
  MutexLock sleep(&sleep_mu_);
  for (bool late = false;;) {
    {
      SpinLockHolder lock(&mu_);
      if (changes_ != seen || late) {
        --waiting_;
        return changes_ == seen;
      }
    }
    late = changed_.WaitWithDeadline(&sleep_mu_, deadline);
  }
}

}  // namespace berth::internal
