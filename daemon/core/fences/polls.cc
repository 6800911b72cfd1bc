// Polls of freed blocks in use, and of sessions that may be over: nothing reports a change of fence values.

#include <algorithm>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "daemon/core/fences/fences.h"
#include "daemon/core/managers.h"

namespace berth::core {
namespace {

// Pause between two reads of the fence values that a freed block waits for.
constexpr absl::Duration kFirstPollPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPollPause = absl::Milliseconds(50);

}  // namespace

bool Fences::MayGoBack(StepContext& step, Block& block) {
  if (fences_.Idle(block.id, read_fence_values_)) {
    busy_.erase(block.id);
    if (std::exchange(block.busy, false)) {
      core_.budgets.ForEachBudget(block, [&](ByteBudget& budget) { budget.UnmarkBusy(block.bytes); });
    }
    return true;
  }
  if (busy_.insert(block.id).second) {
    block.busy = true;
    core_.budgets.ForEachBudget(block, [&](ByteBudget& budget) { budget.MarkBusy(block.bytes); });
    // Busy bytes no longer count as coming: re-evaluates the waiters that relied on them.
    step.MarkCapacityChanged();
    PollSoon(step);
  }
  return false;
}

void Fences::PollSoon(StepContext& step) {
  poll_pause_ = kFirstPollPause;
  next_poll_ = std::min(next_poll_, step.now + poll_pause_);
}

void Fences::Poll(StepContext& step) {
  next_poll_ = absl::InfiniteFuture();
  const std::set<BlockId> looked_at = busy_;
  for (const BlockId id : looked_at) {
    Block* const block = core_.blocks.Find(id);
    if (block->phase == BlockPhase::kRetired && !block->asked) core_.workers.AskRelease(step, *block);
  }
  if (busy_.empty() && leaving_.empty()) return;
  poll_pause_ = std::min(poll_pause_ * 2, kLongestPollPause);
  next_poll_ = step.now + poll_pause_;
}

void Fences::LookAtLater(StepContext& step, SessionId session) {
  if (leaving_.insert(session).second) PollSoon(step);
}

void Fences::FinishLeaving(StepContext& step) {
  const std::set<SessionId> looked_at = leaving_;
  for (const SessionId id : looked_at) {
    const Session* const session = core_.sessions.table().Find(id);
    if (session == nullptr || !core_.sessions.HoldsNothing(*session)) {
      leaving_.erase(id);
    } else {
      core_.sessions.FinishIfOver(step, *session);
    }
  }
}

void Fences::RestoreBusy(BlockId block) {
  busy_.insert(block);
  next_poll_ = absl::InfinitePast();
}

void Fences::ResumeBlocks(StepContext& step) {
  if (!busy_.empty()) PollSoon(step);
}

void Fences::ResumeSessions(StepContext& step) {
  FinishLeaving(step);
  if (!leaving_.empty()) PollSoon(step);
}

}  // namespace berth::core
