#include "client/sdk/fences/fence_tracker.h"

#include <unistd.h>

#include <algorithm>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth::internal {

// One mark per stream for the reads, and one for the last write.
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

FenceTracker::~FenceTracker() {
  // Uses that are still open here have no known end.
  Rest rest;
  {
    SpinLockHolder lock(&mu_);
    for (const auto& block : unmapped_) {
      for (const TrackedBlock::Open& open : block->open_) Drop(open.end);
      for (LaunchEnd* const orphan : block->orphans_) Drop(orphan);
      DropMarks(*block);
    }
    unmapped_.clear();
    rest = TakeRest();
  }
  Settle(rest);
}

void FenceTracker::Forget(TrackedBlock* block) {
  Rest rest;
  std::unique_ptr<TrackedBlock> gone(block);
  {
    SpinLockHolder lock(&mu_);
    // The block may have been imported anew meanwhile.
    const auto at = blocks_.find(block->id_);
    if (at != blocks_.end() && at->second.block == block) blocks_.erase(at);
    block->attention_.store(true, std::memory_order_relaxed);
    unmapped_.push_back(std::move(gone));
    AttendUnmapped();
    rest = TakeRest();
  }
  Settle(rest);
}

void FenceTracker::MarkShared(BlockId block) {
  SpinLockHolder lock(&mu_);
  if (const auto at = blocks_.find(block); at != blocks_.end()) at->second.block->shared_ = true;
}

// ---- Uses

bool FenceTracker::InTheWay(const TrackedBlock& block, const TrackedStream& stream, UseAccess access) {
  for (const TrackedBlock::Open& open : block.open_) {
    if (open.end->stream != &stream && (Writes(open.access) || Writes(access))) return true;
  }
  return false;
}

absl::Status FenceTracker::Begin(TrackedStream& stream, TrackedLaunch* launch, absl::Duration patience) {
  if (TryBegin(stream, launch) == nullptr) [[likely]]
    return absl::OkStatus();
  return AwaitBegin(stream, launch, patience);
}

absl::Status FenceTracker::AwaitBegin(TrackedStream& stream, TrackedLaunch* launch, absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  Backoff backoff;
  while (true) {
    const bool late = SteadyNow() >= deadline;
    const TrackedBlock* const obstacle = TryBegin(stream, launch);
    if (obstacle == nullptr) return absl::OkStatus();
    if (late) {
      return Refuse(
          Reason::kBlockInUse,
          "block {block} is in use by another stream of this process (pid {pid}), and the use has not finished",
          {{"block", obstacle->id_.value()}, {"pid", ::getpid()}});
    }
    backoff.Wait();
  }
}

void FenceTracker::CollectWaits(const TrackedBlock& block, const TrackedStream& stream, UseAccess access,
                                TrackedLaunch* launch) {
  // The block holds a reference to the end while the launch is open there.
  const auto add = [&](LaunchEnd* end) {
    if (end->stream == &stream) return;
    for (LaunchEnd*& wait : launch->waits) {
      if (wait->stream != end->stream) continue;
      if (wait->place < end->place) wait = end;
      return;
    }
    launch->waits.push_back(end);
  };
  if (block.write_ != nullptr) add(block.write_);
  if (!Writes(access)) return;
  for (LaunchEnd* const read : block.reads_) add(read);
}

const TrackedBlock* FenceTracker::TryBegin(TrackedStream& stream, TrackedLaunch* launch) {
  SpinLockHolder lock(&mu_);
  bool local = false;
  bool local_writes = false;
  bool remote = false;
  for (TrackedUse& use : launch->uses) {
    TrackedBlock& block = *use.block;
    use.remote = block.shared_;
    remote |= use.remote;
    if (use.remote) continue;
    Fold(block);
    if (InTheWay(block, stream, use.access)) return &block;
    local = true;
    local_writes |= Writes(use.access);
  }
  launch->local = local;
  launch->local_writes = local_writes;
  launch->remote = remote;
  if (!local) return nullptr;
  if (stream.free_.empty()) {
    stream.ends_.push_back(new LaunchEnd(stream.backend().kind(), &stream));
    stream.free_.push_back(stream.ends_.back());
  }
  LaunchEnd* const end = launch->end = stream.free_.back();
  stream.free_.pop_back();
  end->finished.store(false, std::memory_order_relaxed);
  for (const TrackedUse& use : launch->uses) {
    if (use.remote) continue;
    CollectWaits(*use.block, stream, use.access, launch);
    // Assign field by field: the copy of a whole struct waits for the stores of its parts.
    TrackedBlock::Open& open = use.block->open_.emplace_back();
    open.end = end;
    open.access = use.access;
    ++end->references;
  }
  if (launch->local_writes) stream.values_.begun.store(++stream.begun_, std::memory_order_release);
  return nullptr;
}

absl::Status FenceTracker::Record(TrackedStream& stream, TrackedLaunch* launch) {
  LaunchEnd& end = *launch->end;
  if (end.event == nullptr) [[unlikely]] {
    BERTH_ASSIGN_OR_RETURN(end.event, stream.backend().CreateEvent());
  }
  return stream.backend().Record(*end.event);
}

void FenceTracker::SetFinished(TrackedStream& stream, const TrackedLaunch& launch) {
  LaunchEnd& end = *launch.end;
  end.place = stream.recorded() + 1;
  end.writes = stream.writes_.load(std::memory_order_relaxed) + (launch.local_writes ? 1 : 0);
  stream.recorded_.store(end.place, std::memory_order_relaxed);
  stream.writes_.store(end.writes, std::memory_order_release);
  stream.newest_ = &end;
  // This store publishes the end to all threads. The code after it reads no block of the launch.
  end.finished.store(true, std::memory_order_release);
}

void FenceTracker::Finish(TrackedStream& stream, TrackedLaunch* launch) {
  bool attention = false;
  for (const TrackedUse& use : launch->uses) {
    attention = attention || (!use.remote && use.block->attention_.load(std::memory_order_relaxed));
  }
  if (!attention) [[likely]] {
    SetFinished(stream, *launch);
    return;
  }
  Rest rest;
  {
    SpinLockHolder lock(&mu_);
    SetFinished(stream, *launch);
    for (const TrackedUse& use : launch->uses) {
      if (!use.remote) Attend(*use.block);
    }
    AttendUnmapped();
    rest = TakeRest();
  }
  Settle(rest);
}

void FenceTracker::Abandon(TrackedStream& stream, TrackedLaunch* launch) {
  if (!launch->local) return;
  Rest rest;
  {
    SpinLockHolder lock(&mu_);
    for (const TrackedUse& use : launch->uses) {
      if (use.remote) continue;
      TrackedBlock& block = *use.block;
      const auto open =
          std::find_if(block.open_.begin(), block.open_.end(),
                       [launch](const TrackedBlock::Open& open) { return open.end == launch->end; });
      *open = block.open_.back();
      block.open_.pop_back();
      Drop(launch->end);
      if (block.attention_.load(std::memory_order_relaxed)) Attend(block);
    }
    AttendUnmapped();
    if (launch->local_writes) stream.values_.begun.store(--stream.begun_, std::memory_order_release);
    rest = TakeRest();
  }
  Settle(rest);
}

void FenceTracker::Fold(TrackedBlock& block) {
  while (true) {
    // Take finished uses of one stream in the order of their ends. Finished uses of different streams do not conflict.
    TrackedBlock::Open* next = nullptr;
    for (TrackedBlock::Open& open : block.open_) {
      if (!open.end->finished.load(std::memory_order_acquire)) continue;
      if (next == nullptr || open.end->place < next->end->place) next = &open;
    }
    if (next == nullptr) return;
    LaunchEnd* const end = next->end;
    const UseAccess access = next->access;
    if (next != &block.open_.back()) *next = block.open_.back();
    block.open_.pop_back();
    RecordUse(block, end, access);
  }
}

void FenceTracker::RecordUse(TrackedBlock& block, LaunchEnd* end, UseAccess access) {
  if (Writes(access)) {
    DropMarks(block);
    block.write_ = end;
    return;
  }
  for (LaunchEnd*& read : block.reads_) {
    if (read->stream != end->stream) continue;
    Drop(read);
    read = end;
    return;
  }
  block.reads_.push_back(end);
}

void FenceTracker::Attend(TrackedBlock& block) {
  Fold(block);
  if (!block.open_.empty()) return;
  block.attention_.store(false, std::memory_order_relaxed);
  for (LaunchEnd* const orphan : block.orphans_) Drop(orphan);
  block.orphans_.clear();
  if (std::exchange(block.hand_over_asked_, false)) rest_.leaving.push_back(TakeMarks(block));
}

void FenceTracker::AttendUnmapped() {
  for (size_t i = 0; i < unmapped_.size();) {
    TrackedBlock& block = *unmapped_[i];
    Attend(block);
    if (!block.open_.empty()) {
      ++i;
      continue;
    }
    DropMarks(block);
    rest_.gone.push_back(std::move(unmapped_[i]));
    unmapped_[i] = std::move(unmapped_.back());
    unmapped_.pop_back();
  }
}

// ---- Ends of launches

void FenceTracker::Drop(LaunchEnd* end) {
  if (--end->references > 0) return;
  if (end->stream != nullptr) {
    end->stream->free_.push_back(end);
  } else {
    rest_.dead.push_back(end);
  }
}

void FenceTracker::DropMarks(TrackedBlock& block) {
  if (block.write_ != nullptr) Drop(std::exchange(block.write_, nullptr));
  for (LaunchEnd* const read : block.reads_) Drop(read);
  block.reads_.clear();
}

void FenceTracker::DropMarksOf(const TrackedStream& stream, TrackedBlock& block) {
  // An open launch may wait for these ends.
  const auto drop = [&](LaunchEnd* end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (block.open_.empty()) return Drop(end);
    block.orphans_.push_back(end);
    block.attention_.store(true, std::memory_order_relaxed);
  };
  if (block.write_ != nullptr && block.write_->stream == &stream) drop(std::exchange(block.write_, nullptr));
  const auto read = std::find_if(block.reads_.begin(), block.reads_.end(),
                                 [&stream](const LaunchEnd* end) { return end->stream == &stream; });
  if (read == block.reads_.end()) return;
  drop(*read);
  block.reads_.erase(read);
}

uint64_t FenceTracker::Point(const TrackedStream& stream) {
  return stream.writes_.load(std::memory_order_acquire);
}

void FenceTracker::SawEnd(TrackedStream& stream, uint64_t point) {
  SpinLockHolder lock(&mu_);
  SawEndLocked(stream, point);
}

void FenceTracker::SawEndLocked(TrackedStream& stream, uint64_t point) {
  stream.seen_ = std::max(stream.seen_, point);
  stream.values_.ended.store(stream.seen_, std::memory_order_release);
}

void FenceTracker::Look(TrackedStream& stream) {
  // No thread records the newest event anew meanwhile, and the event covers all work before it.
  if (stream.newest_ == nullptr) return;
  const absl::StatusOr<bool> reached = stream.backend().Reached(*stream.newest_->event);
  if (reached.ok() && *reached) SawEnd(stream, stream.newest_->writes);
}

void FenceTracker::Close(TrackedStream& stream) {
  Rest rest;
  {
    // Pending hand-overs pin the stream, so finish them first.
    SpinLockHolder lock(&mu_);
    AttendUnmapped();
    rest = TakeRest();
  }
  Settle(rest);
  for (Backoff backoff;; backoff.Wait()) {
    SpinLockHolder lock(&mu_);
    if (stream.pins_ > 0) continue;
    const auto forget = [&](TrackedBlock& block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      Fold(block);
      DropMarksOf(stream, block);
    };
    for (auto& [id, known] : blocks_) forget(*known.block);
    for (const auto& block : unmapped_) forget(*block);
    for (LaunchEnd* const end : stream.ends_) {
      end->stream = nullptr;
      if (end->references == 0) rest_.dead.push_back(end);
    }
    stream.ends_.clear();
    stream.free_.clear();
    rest = TakeRest();
    break;
  }
  Settle(rest);
}

// ---- Hand-over

FenceTracker::Leaving FenceTracker::TakeMarks(TrackedBlock& block) {
  Leaving leaving{.block = block.id_};
  if (block.write_ != nullptr) {
    leaving.marks.push_back({std::exchange(block.write_, nullptr), UseAccess::kWrite});
  }
  for (LaunchEnd* const read : block.reads_) leaving.marks.push_back({read, UseAccess::kRead});
  block.reads_.clear();
  for (const Mark& mark : leaving.marks) ++mark.end->stream->pins_;
  return leaving;
}

void FenceTracker::AskHandOver(BlockId id) {
  // Outlives the lock: the last reference must not be released under it.
  std::shared_ptr<TrackedBlock> block;
  {
    SpinLockHolder lock(&mu_);
    if (const auto at = blocks_.find(id); at != blocks_.end()) block = at->second.shared.lock();
    if (block != nullptr) {
      block->shared_ = true;
      block->hand_over_asked_ = true;
      block->attention_.store(true, std::memory_order_relaxed);
      held_up_.push_back(id);
    }
  }
  // Nothing in this process maps the block, so nothing here uses it.
  if (block == nullptr) return send_({.block = id.value()});
  FinishHandOvers();
}

bool FenceTracker::FinishHandOvers() {
  std::vector<std::shared_ptr<TrackedBlock>> looked_at;
  Rest rest;
  bool more;
  {
    SpinLockHolder lock(&mu_);
    std::erase_if(held_up_, [&](BlockId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const auto at = blocks_.find(id);
      if (at == blocks_.end()) return true;
      const auto& block = looked_at.emplace_back(at->second.shared.lock());
      if (block == nullptr || !block->hand_over_asked_) return true;
      Attend(*block);
      return !block->hand_over_asked_;
    });
    more = !held_up_.empty();
    rest = TakeRest();
  }
  Settle(rest);
  return more;
}

void FenceTracker::HandOver(const Leaving& leaving) {
  attach::HandedOver handed = {.block = leaving.block.value()};
  std::vector<LaunchEnd*> ended;
  absl::Status status;
  for (const Mark& mark : leaving.marks) {
    TrackedStream& stream = *mark.end->stream;
    const absl::StatusOr<bool> reached = stream.backend().Reached(*mark.end->event);
    if (reached.ok() && *reached) {
      ended.push_back(mark.end);
      continue;
    }
    const absl::StatusOr<uint64_t> value = stream.fence_value().Publish(*mark.end->event, mark.end->place);
    status.Update(value.status());
    if (!status.ok()) break;
    handed.marks[handed.count++] = {
        .slot = stream.slot(), .access = static_cast<uint32_t>(mark.access), .value = *value};
  }
  Rest rest;
  {
    SpinLockHolder lock(&mu_);
    for (LaunchEnd* const end : ended) SawEndLocked(*end->stream, end->writes);
    for (const Mark& mark : leaving.marks) {
      --mark.end->stream->pins_;
      Drop(mark.end);
    }
    rest = TakeRest();
  }
  Settle(rest);
  if (status.ok()) send_(handed);
}

absl::StatusOr<OwnWait> FenceTracker::FenceValueOf(LaunchEnd& wait) {
  TrackedStream* stream;
  uint64_t place;
  {
    SpinLockHolder lock(&mu_);
    stream = wait.stream;
    if (stream == nullptr) return OwnWait{};
    ++stream->pins_;
    place = wait.place;
  }
  const absl::StatusOr<uint64_t> value = stream->fence_value().Publish(*wait.event, place);
  const uint32_t slot = stream->slot();
  {
    SpinLockHolder lock(&mu_);
    --stream->pins_;
  }
  if (!value.ok()) return value.status();
  return OwnWait{.slot = slot, .value = *value};
}

void FenceTracker::Settle(const Rest& rest) {
  for (LaunchEnd* const end : rest.dead) delete end;
  for (const Leaving& leaving : rest.leaving) HandOver(leaving);
}

}  // namespace berth::internal
