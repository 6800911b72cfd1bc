#include "client/internal/fence_tracker.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error.h"

namespace berth::internal {

static_assert(attach::HandedOver::kMaxMarks == kFenceSlots + 1);

void FenceTracker::SetPage(const FencePage* page) {
  MutexLock lock(&mu_);
  page_ = page;
}

std::shared_ptr<TrackedBlock> FenceTracker::Track(BlockId block, bool shared) {
  MutexLock lock(&mu_);
  std::weak_ptr<TrackedBlock>& weak = blocks_[block];
  std::shared_ptr<TrackedBlock> tracked = weak.lock();
  if (tracked != nullptr) {
    tracked->shared_ = tracked->shared_ || shared;
    return tracked;
  }
  tracked = std::make_shared<TrackedBlock>(block, shared);
  weak = tracked;
  // What nobody here maps any more goes when the table has doubled: a constant cost per block.
  if (blocks_.size() >= sweep_at_) {
    absl::erase_if(blocks_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, blocks_.size() * 2);
  }
  return tracked;
}

void FenceTracker::MarkShared(BlockId block) {
  MutexLock lock(&mu_);
  const auto at = blocks_.find(block);
  if (at == blocks_.end()) return;
  if (const std::shared_ptr<TrackedBlock> tracked = at->second.lock()) tracked->shared_ = true;
}

attach::HandedOver FenceTracker::HandOver(TrackedBlock& block) {
  attach::HandedOver handed = {.block = block.id_.value()};
  std::vector<std::pair<TrackedBlock::Mark, UseAccess>> marks = {{block.write_, UseAccess::kWrite}};
  for (const TrackedBlock::Mark& read : block.reads_) marks.emplace_back(read, UseAccess::kRead);
  for (const auto& [mark, access] : marks) {
    if (mark.value == 0 || Done(mark)) continue;
    handed.marks[handed.count++] = {
        .slot = mark.slot, .access = static_cast<uint32_t>(access), .value = mark.value};
  }
  block.hand_over_asked_ = false;
  block.write_ = {};
  block.reads_.clear();
  return handed;
}

bool FenceTracker::AskHandOver(BlockId block, attach::HandedOver* handed) {
  *handed = attach::HandedOver{.block = block.value()};
  MutexLock lock(&mu_);
  const auto at = blocks_.find(block);
  const std::shared_ptr<TrackedBlock> tracked = at == blocks_.end() ? nullptr : at->second.lock();
  // Nothing here maps it any more, so nothing here uses it.
  if (tracked == nullptr) return true;
  tracked->shared_ = true;
  tracked->hand_over_asked_ = !tracked->open_.empty();
  if (tracked->hand_over_asked_) return false;
  *handed = HandOver(*tracked);
  return true;
}

bool FenceTracker::Conflicts(const TrackedBlock& block, uint32_t slot, UseAccess access) {
  for (const TrackedBlock::Open& open : block.open_) {
    if (open.slot != slot && (Writes(open.access) || Writes(access))) return true;
  }
  return false;
}

absl::Status FenceTracker::AwaitTurn(const TrackedStream& stream, absl::Span<const TrackedUse> uses,
                                     absl::Duration patience) {
  bool late = false;
  // A clock is read by those alone who wait.
  for (absl::Time deadline = absl::InfinitePast();;) {
    const auto in_the_way = std::find_if(uses.begin(), uses.end(), [&stream](const TrackedUse& use) {
      return !use.block->shared_ && Conflicts(*use.block, stream.slot_, use.access);
    });
    if (in_the_way == uses.end()) return absl::OkStatus();
    if (late) {
      return Refuse(
          Reason::kBlockInUse,
          "block {block} is in use by another stream of this process (pid {pid}), and the use was not "
          "finished",
          {{"block", absl::StrCat(absl::Hex(in_the_way->block->id_.value()))}, {"pid", ::getpid()}});
    }
    if (deadline == absl::InfinitePast()) deadline = absl::Now() + patience;
    ++waiting_;
    late = ended_.WaitWithDeadline(&mu_, deadline);
    --waiting_;
  }
}

void FenceTracker::CollectWaits(TrackedBlock& block, uint32_t slot, UseAccess access, OwnWaits* waits) {
  const auto add = [&](const TrackedBlock::Mark& mark) {
    if (mark.slot == slot) return;
    const auto same = std::find_if(waits->begin(), waits->end(),
                                   [&mark](const OwnWait& wait) { return wait.slot == mark.slot; });
    if (same == waits->end()) {
      waits->push_back({mark.slot, mark.value});
    } else {
      same->value = std::max(same->value, mark.value);
    }
  };
  if (block.write_.value != 0) {
    if (Done(block.write_)) {
      block.write_ = {};
    } else {
      add(block.write_);
    }
  }
  if (!Writes(access)) return;
  for (size_t i = 0; i < block.reads_.size();) {
    if (Done(block.reads_[i])) {
      block.reads_[i] = block.reads_.back();
      block.reads_.pop_back();
    } else {
      add(block.reads_[i++]);
    }
  }
}

absl::Status FenceTracker::Begin(TrackedStream& stream, absl::Span<TrackedUse> uses, absl::Duration patience,
                                 OwnWaits* waits) {
  MutexLock lock(&mu_);
  if (absl::Status status = AwaitTurn(stream, uses, patience); !status.ok()) return status;
  for (TrackedUse& use : uses) {
    use.remote = use.block->shared_;
    if (use.remote) continue;
    CollectWaits(*use.block, stream.slot_, use.access, waits);
    use.block->open_.push_back({stream.slot_, use.access});
  }
  ++stream.open_;
  stream.words_.begun.store(stream.last_ + 1, std::memory_order_release);
  return absl::OkStatus();
}

void FenceTracker::EndUse(const TrackedStream& stream, TrackedBlock& block, UseAccess access,
                          HandOvers* handed) {
  const auto open = std::find_if(block.open_.begin(), block.open_.end(), [&](const TrackedBlock::Open& open) {
    return open.slot == stream.slot_ && open.access == access;
  });
  *open = block.open_.back();
  block.open_.pop_back();
  if (block.hand_over_asked_ && block.open_.empty()) handed->push_back(HandOver(block));
}

void FenceTracker::EndLaunch(TrackedStream& stream) {
  --stream.open_;
  stream.words_.begun.store(stream.last_ + (stream.open_ > 0 ? 1 : 0), std::memory_order_release);
  if (waiting_ > 0) ended_.SignalAll();
}

void FenceTracker::Send(const HandOvers& handed) {
  for (const attach::HandedOver& message : handed) send_(message);
}

void FenceTracker::Finish(TrackedStream& stream, absl::Span<const TrackedUse> uses, uint64_t value) {
  HandOvers handed;
  {
    MutexLock lock(&mu_);
    stream.last_ = value;
    for (const TrackedUse& use : uses) {
      if (use.remote) continue;
      TrackedBlock& block = *use.block;
      if (Writes(use.access)) {
        block.write_ = {stream.slot_, value};
        block.reads_.clear();
      } else {
        const auto same = std::find_if(block.reads_.begin(), block.reads_.end(),
                                       [&](const auto& read) { return read.slot == stream.slot_; });
        if (same == block.reads_.end()) {
          block.reads_.push_back({stream.slot_, value});
        } else {
          same->value = value;
        }
      }
      EndUse(stream, block, use.access, &handed);
    }
    EndLaunch(stream);
  }
  if (!handed.empty()) Send(handed);
}

void FenceTracker::Abandon(TrackedStream& stream, absl::Span<const TrackedUse> uses) {
  HandOvers handed;
  {
    MutexLock lock(&mu_);
    for (const TrackedUse& use : uses) {
      if (!use.remote) EndUse(stream, *use.block, use.access, &handed);
    }
    EndLaunch(stream);
  }
  if (!handed.empty()) Send(handed);
}

}  // namespace berth::internal
