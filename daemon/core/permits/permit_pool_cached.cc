// Permits that processes cache between uses: lending them, taking unused ones back, and measuring how long they are
// held.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/permits/permit_pool.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

// Interval between reads of the permit slots while a request waits. A process that puts its permit back reports it; the
// reads cover a process that is stopped before it does.
constexpr absl::Duration kLookPause = absl::Milliseconds(50);

// Returns whether a process may cache the permit: only if any next use would accept it.
bool MayCache(const AcquireRequest& what) {
  return what.keep && what.units == 1 && what.client_cap == 0 && !what.adoptable && !what.exclusive &&
         what.device.pick == DevicePick::kNone;
}

}  // namespace

void PermitPool::Lend(Permit& permit, const Waiter& waiter, AcquisitionId acquisition) {
  if (permit_slots_ == nullptr || !MayCache(waiter.what)) return;
  const ChannelId channel = waiter.request.channel;
  permit.permit_slot = permit_slots_->Lend(channel, permit.view.id);
  if (permit.permit_slot == nullptr) return;
  Mark(permit);
  permit.was_cached = true;
  permit.cached_by = channel;
  permit.cached = acquisition;
  permit.uses = 0;
  permit.permit_slot->SetWaiting(wanted_);
  cached_.emplace(channel, permit.view.id);
}

void PermitPool::EndCaching(Permit& permit, bool taken_back) {
  if (permit.permit_slot == nullptr) return;
  Mark(permit);
  if (!taken_back) permit.permit_slot->End(permit.view.id.value());
  permit_slots_->End(permit.cached_by, std::exchange(permit.permit_slot, nullptr));
  cached_.erase(permit.cached_by);
  if (cached_.empty()) wanted_ = false;
}

bool PermitPool::TakeBack(absl::Time now, std::map<PermitId, Permit>::iterator at, LeaseEnd how) {
  Permit& permit = at->second;
  if (permit.permit_slot == nullptr || !permit.permit_slot->TakeBack(permit.view.id.value())) return false;
  EndCaching(permit, /*taken_back=*/true);
  EndAcquisition(permit, permit.cached);
  if (permit.acquisitions.empty()) Return(now, at, how);
  return true;
}

void PermitPool::SetWanted(absl::Time now, bool wanted) {
  if (wanted == wanted_ || cached_.empty()) return;
  wanted_ = wanted;
  if (wanted) looked_at_ = now;
  for (const auto& [channel, id] : cached_) {
    Permit& permit = permits_.at(id);
    permit.permit_slot->SetWaiting(wanted);
    // From now on a correct process cannot start another use without a put-back that the daemon sees.
    if (wanted) RenewHold(now, permit);
  }
}

void PermitPool::TakeIdleBack(const PoolStep& step) {
  SetWanted(step.now, NeedsUnits());
  if (!wanted_) return;
  looked_at_ = step.now;
  for (auto it = cached_.begin(); it != cached_.end() && NeedsUnits();) {
    const auto at = permits_.find(it->second);
    ++it;
    // If no request waits here, only the permit's own tenant can need it.
    if (!NeedsUnitsHere() && !tenants_->Presses(at->second.tenant)) continue;
    // The first permits may be enough for the waiters; the other processes retain theirs.
    if (TakeBack(step.now, at, LeaseEnd::kTakenBack)) GrantFitting(step);
  }
  SetWanted(step.now, NeedsUnits());
}

bool PermitPool::ReleaseIfIdle(const PoolStep& step, AcquisitionId acquisition) {
  const auto found = acquisitions_.find(acquisition);
  BERTH_INVARIANT(found != acquisitions_.end());
  const auto at = permits_.find(found->second);
  if (at->second.cached != acquisition || !TakeBack(step.now, at, LeaseEnd::kReleased)) return false;
  Serve(step);
  return true;
}

void PermitPool::EndCachingBy(const PoolStep& step, ChannelId channel) {
  const auto found = cached_.find(channel);
  if (found == cached_.end()) return;
  const auto at = permits_.find(found->second);
  if (!TakeBack(step.now, at, LeaseEnd::kReleased)) return EndCaching(at->second);
  Serve(step);
}

bool PermitPool::RenewHold(absl::Time now, Permit& permit) {
  const uint32_t uses = permit.permit_slot->Look(permit.view.id.value()).uses;
  if (uses == permit.uses) return false;
  Mark(permit);
  permit.uses = uses;
  permit.warned = false;
  EndHold(permit);
  permit.held_since = now;
  fresh_.emplace(now, permit.view.id);
  return true;
}

bool PermitPool::IsNotHeld(absl::Time now, PermitId id) {
  const auto at = permits_.find(id);
  if (at->second.permit_slot == nullptr) return false;
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
  bool taken_back = false;
  const auto is_not_held = [&](PermitId id) {
    const uint64_t before = out_;
    const bool is_not = IsNotHeld(step.now, id);
    taken_back = taken_back || out_ < before;
    return is_not;
  };
  while (!fresh_.empty() && fresh_.begin()->first + config_.hold_warning <= step.now) {
    const HeldSince hold = *fresh_.begin();
    if (is_not_held(hold.second)) continue;
    overdue_.insert(fresh_.extract(hold));
    Permit& permit = permits_.at(hold.second);
    if (std::exchange(permit.warned, true)) continue;
    Mark(permit);
    overdue->push_back(ViewPermit(permit));
  }
  while (true) {
    HeldSince hold = {absl::InfiniteFuture(), PermitId()};
    if (!fresh_.empty()) hold = *fresh_.begin();
    if (!overdue_.empty()) hold = std::min(hold, *overdue_.begin());
    if (hold.first + config_.hold_limit > step.now) break;
    if (!is_not_held(hold.second)) revoked->push_back(*Revoke(step, hold.second, LeaseEnd::kExpired));
  }
  // A revocation serves by itself.
  if (taken_back) Serve(step);
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

absl::Status PermitPool::CheckCached() const {
  const auto broken = [this](absl::string_view what) {
    return absl::InternalError(absl::StrCat("pool ", config_.name, ": ", what));
  };
  uint64_t cached = 0;
  for (const auto& [id, permit] : permits_) {
    const HeldSince hold = {permit.held_since, id};
    if (fresh_.contains(hold) == overdue_.contains(hold)) return broken("a permit is held twice, or by no process");
    if (permit.permit_slot == nullptr) continue;
    ++cached;
    const auto found = cached_.find(permit.cached_by);
    if (found == cached_.end() || found->second != id) return broken("a cached permit has no process");
    if (!permit.acquisitions.contains(permit.cached)) return broken("a cached permit is not out");
  }
  if (cached != cached_.size() || fresh_.size() + overdue_.size() != permits_.size()) {
    return broken("more units are cached than are out");
  }
  if (cached > 0 && wanted_ != NeedsUnits())
    return broken("a process with a cached permit is not notified of a waiter");
  return absl::OkStatus();
}

}  // namespace berth::core
