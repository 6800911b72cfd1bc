// Permits that their processes keep between uses: lent, taken back from who does not use them, and how long they are
// held.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/invariant.h"
#include "daemon/core/permit_pool.h"

namespace berth::core {
namespace {

// Between two looks at the words while somebody waits. A process that puts its permit back tells the daemon; this is
// for one that is stopped before it does.
constexpr absl::Duration kLookPause = absl::Milliseconds(50);

// What a process may keep: nothing that the next use might not want.
bool MayKeep(const AcquireRequest& what) {
  return what.keep && what.units == 1 && what.client_cap == 0 && !what.adoptable && !what.exclusive &&
         what.device.pick == DevicePick::kNone;
}

}  // namespace

void PermitPool::Lend(Permit& permit, const Waiter& waiter, AcquisitionId acquisition) {
  if (words_ == nullptr || !MayKeep(waiter.what)) return;
  const ChannelId channel = waiter.request.channel;
  permit.word = words_->Lend(channel, permit.view.id);
  if (permit.word == nullptr) return;
  Note(permit);
  permit.was_kept = true;
  permit.keeper = channel;
  permit.kept = acquisition;
  permit.uses = 0;
  permit.word->SetWaiting(wanted_);
  kept_.emplace(channel, permit.view.id);
}

void PermitPool::EndKeeping(Permit& permit, bool taken_back) {
  if (permit.word == nullptr) return;
  Note(permit);
  if (!taken_back) permit.word->End(permit.view.id.value());
  words_->End(permit.keeper, std::exchange(permit.word, nullptr));
  kept_.erase(permit.keeper);
  if (kept_.empty()) wanted_ = false;
}

bool PermitPool::TakeBack(absl::Time now, std::map<PermitId, Permit>::iterator at, LeaseEnd how) {
  Permit& permit = at->second;
  if (permit.word == nullptr || !permit.word->TakeBack(permit.view.id.value())) return false;
  EndKeeping(permit, /*taken_back=*/true);
  EndAcquisition(permit, permit.kept);
  if (permit.acquisitions.empty()) Return(now, at, how);
  return true;
}

void PermitPool::SetWanted(absl::Time now, bool wanted) {
  if (wanted == wanted_ || kept_.empty()) return;
  wanted_ = wanted;
  if (wanted) looked_at_ = now;
  for (const auto& [channel, id] : kept_) {
    Permit& permit = permits_.at(id);
    permit.word->SetWaiting(wanted);
    // From now on nobody but a liar takes it again without having put it back for the daemon to see.
    if (wanted) RenewHold(now, permit);
  }
}

void PermitPool::TakeIdleBack(const PoolStep& step) {
  SetWanted(step.now, NeedsUnits());
  if (!wanted_) return;
  looked_at_ = step.now;
  for (auto it = kept_.begin(); it != kept_.end() && NeedsUnits();) {
    const auto at = permits_.find(it->second);
    ++it;
    // Where nobody waits here it is wanted by its own tenant, or not at all.
    if (!NeedsUnitsHere() && !tenants_->Presses(at->second.tenant)) continue;
    // The first may have found room for whoever waits: what the others keep is theirs.
    if (TakeBack(step.now, at, LeaseEnd::kTakenBack)) GrantFitting(step);
  }
  SetWanted(step.now, NeedsUnits());
}

bool PermitPool::ReleaseIfIdle(const PoolStep& step, AcquisitionId acquisition) {
  const auto found = acquisitions_.find(acquisition);
  BERTH_INVARIANT(found != acquisitions_.end());
  const auto at = permits_.find(found->second);
  if (at->second.kept != acquisition || !TakeBack(step.now, at, LeaseEnd::kReleased)) return false;
  Serve(step);
  return true;
}

void PermitPool::EndKeepingBy(const PoolStep& step, ChannelId channel) {
  const auto found = kept_.find(channel);
  if (found == kept_.end()) return;
  const auto at = permits_.find(found->second);
  if (!TakeBack(step.now, at, LeaseEnd::kReleased)) return EndKeeping(at->second);
  Serve(step);
}

bool PermitPool::RenewHold(absl::Time now, Permit& permit) {
  const uint32_t uses = permit.word->Look(permit.view.id.value()).uses;
  if (uses == permit.uses) return false;
  Note(permit);
  permit.uses = uses;
  permit.warned = false;
  EndHold(permit);
  permit.held_since = now;
  fresh_.emplace(now, permit.view.id);
  return true;
}

bool PermitPool::IsNotHeld(absl::Time now, PermitId id) {
  const auto at = permits_.find(id);
  if (at->second.word == nullptr) return false;
  if (TakeBack(now, at, LeaseEnd::kTakenBack)) return true;
  return !wanted_ && RenewHold(now, at->second);
}

void PermitPool::EndHold(const Permit& permit) {
  const HeldSince hold = {permit.held_since, permit.view.id};
  fresh_.erase(hold);
  overdue_.erase(hold);
}

void PermitPool::ExpireHolds(const PoolStep& step, std::vector<PermitView>* revoked,
                             std::vector<PermitView>* overdue) {
  const uint64_t before = out_;
  while (!fresh_.empty() && fresh_.begin()->first + config_.hold_warning <= step.now) {
    const HeldSince hold = *fresh_.begin();
    if (IsNotHeld(step.now, hold.second)) continue;
    overdue_.insert(fresh_.extract(hold));
    Permit& permit = permits_.at(hold.second);
    if (std::exchange(permit.warned, true)) continue;
    Note(permit);
    overdue->push_back(ViewPermit(permit));
  }
  while (true) {
    HeldSince hold = {absl::InfiniteFuture(), PermitId()};
    if (!fresh_.empty()) hold = *fresh_.begin();
    if (!overdue_.empty()) hold = std::min(hold, *overdue_.begin());
    if (hold.first + config_.hold_limit > step.now) break;
    if (!IsNotHeld(step.now, hold.second)) revoked->push_back(*Revoke(step, hold.second, LeaseEnd::kExpired));
  }
  if (out_ < before) Serve(step);
}

absl::Time PermitPool::next_hold() const {
  absl::Time next = absl::InfiniteFuture();
  if (!fresh_.empty()) next = fresh_.begin()->first + std::min(config_.hold_warning, config_.hold_limit);
  if (!overdue_.empty()) next = std::min(next, overdue_.begin()->first + config_.hold_limit);
  return next;
}

absl::Time PermitPool::next_look() const {
  return wanted_ ? looked_at_ + kLookPause : absl::InfiniteFuture();
}

absl::Status PermitPool::CheckKept() const {
  const auto broken = [this](absl::string_view what) {
    return absl::InternalError(absl::StrCat("pool ", config_.name, ": ", what));
  };
  uint64_t kept = 0;
  for (const auto& [id, permit] : permits_) {
    const HeldSince hold = {permit.held_since, id};
    if (fresh_.contains(hold) == overdue_.contains(hold)) return broken("a permit is held twice, or never");
    if (permit.word == nullptr) continue;
    ++kept;
    const auto found = kept_.find(permit.keeper);
    if (found == kept_.end() || found->second != id) return broken("a permit is kept by nobody");
    if (!permit.acquisitions.contains(permit.kept)) return broken("what is kept is not out");
  }
  if (kept != kept_.size() || fresh_.size() + overdue_.size() != permits_.size()) {
    return broken("more is kept than is out");
  }
  if (kept > 0 && wanted_ != NeedsUnits())
    return broken("who keeps a permit is not told whether somebody waits");
  return absl::OkStatus();
}

}  // namespace berth::core
