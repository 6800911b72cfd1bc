#include "daemon/core/permit_pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/invariant.h"

namespace berth::core {
namespace {

// Holders named in a refusal.
constexpr size_t kNamedHolders = 3;
// Acquisitions that nest in one permit: each is a row, and all of them end in one step.
constexpr size_t kMaxAcquisitions = 65'536;
// Holds that the mean goes back over.
constexpr int kHoldsRemembered = 8;

}  // namespace

PermitPool::PermitPool(Options options, PermitIds* ids, Placement* placement)
    : max_waiters_(options.max_waiters),
      epoch_(options.epoch),
      ids_(ids),
      placement_(placement),
      config_(std::move(options.config)),
      queue_({.passes_before_hold = options.passes_before_hold,
              .ageing = config_.ageing,
              .weights = config_.weights}) {
  BERTH_INVARIANT(config_.cap > 0);
}

void PermitPool::Acquire(absl::Time now, const RequestId& request, const Asker& asker,
                         const AcquireRequest& what, AcquireOutcomes* outcomes) {
  if (what.units == 0) {
    Tell(request,
         Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                {{"field", "units"}, {"value", 0}, {"limit", 1}}),
         outcomes);
    return;
  }
  if (Permit* const held = FindNest(asker, what); held != nullptr) {
    Tell(request, Nest(*held, what), outcomes);
    return;
  }
  if (absl::Status never = CheckCaps(what); !never.ok()) {
    Tell(request, std::move(never), outcomes);
    return;
  }
  Waiter waiter{.number = ++ids_->last_waiter,
                .request = request,
                .asker = asker,
                .what = what,
                .since = now,
                .charge = what.exclusive ? config_.cap : what.units};
  if (queue_.empty() && Judge(waiter) == WaitQueue::Verdict::kFits) {
    Grant(now, std::move(waiter), outcomes);
    return;
  }
  // Whether it is its turn the queue says. Who will not wait leaves it at once.
  queue_.Push(std::move(waiter));
  Serve(now, outcomes);
  if (!queue_.Contains(request)) return;
  if (absl::Status refusal = WhyNotWait(now, asker, what); !refusal.ok()) {
    queue_.Remove(request);
    Tell(request, std::move(refusal), outcomes);
    // Units may have been kept for it.
    Serve(now, outcomes);
  }
}

absl::Status PermitPool::WhyNotWait(absl::Time now, const Asker& asker, const AcquireRequest& what) const {
  if (!what.wait) return NoPermit(asker, what);
  if (what.deadline <= now) return TimedOut(what, queue_.size());
  if (queue_.size() > max_waiters_) {
    return RefuseWithRetry(Reason::kLimit, absl::Seconds(1),
                           "permit pool {pool}: {current} wait, limit {limit}",
                           {{"what", "waiters_per_pool"},
                            {"pool", config_.name},
                            {"current", queue_.size() - 1},
                            {"limit", max_waiters_}});
  }
  return absl::OkStatus();
}

PermitPool::Permit* PermitPool::FindNest(const Asker& asker, const AcquireRequest& what) {
  if (const auto own = by_holder_.find({asker.session, what.holder_key}); own != by_holder_.end()) {
    return &permits_.at(own->second);
  }
  if (what.independent) return nullptr;
  const auto adoptable = adoptable_.lower_bound({asker.session, PermitId()});
  if (adoptable == adoptable_.end() || adoptable->first != asker.session) return nullptr;
  return &permits_.at(adoptable->second);
}

absl::Status PermitPool::CheckNest(const Permit& permit, const AcquireRequest& what) const {
  const PermitView& held = permit.view;
  const auto refuse = [&](const absl::AlphaNum& asked, const absl::AlphaNum& has) {
    return Refuse(Reason::kNestedOverHeld,
                  "permit pool {pool}: asked {asked}, but permit {permit} it would nest in holds {held}",
                  {{"pool", config_.name},
                   {"asked", std::string(asked.Piece())},
                   {"held", std::string(has.Piece())},
                   {"permit", held.id.value()}});
  };
  if (what.units > held.units) return refuse(what.units, held.units);
  if (what.exclusive && !held.exclusive) return refuse("all of the pool", "a share of it");
  const DeviceWish& wish = what.device;
  if (wish.pick == DevicePick::kNone) return absl::OkStatus();
  if (!held.device.has_value()) return refuse("a device", "none");
  if (wish.pick == DevicePick::kNamed && wish.uuid != held.device->uuid) {
    return refuse(absl::StrCat("device ", wish.uuid), held.device->uuid);
  }
  if (wish.declared > held.declared) {
    return refuse(absl::StrCat(wish.declared.count(), " bytes"), held.declared.count());
  }
  return absl::OkStatus();
}

absl::StatusOr<AcquireResult> PermitPool::Nest(Permit& permit, const AcquireRequest& what) {
  BERTH_RETURN_IF_ERROR(CheckNest(permit, what));
  if (permit.acquisitions.size() >= kMaxAcquisitions) {
    return Refuse(Reason::kLimit, "permit {permit}: {current} acquisitions nest in it, limit {limit}",
                  {{"what", "acquisitions_per_permit"},
                   {"permit", permit.view.id.value()},
                   {"current", permit.acquisitions.size()},
                   {"limit", kMaxAcquisitions}});
  }
  return AddAcquisition(permit, /*nested=*/true);
}

AcquireResult PermitPool::AddAcquisition(Permit& permit, bool nested) {
  const AcquisitionId acquisition(++ids_->last_acquisition);
  permit.acquisitions.insert(acquisition);
  acquisitions_.emplace(acquisition, permit.view.id);
  return AcquireResult{.acquisition = acquisition,
                       .permit = permit.view.id,
                       .nested = nested,
                       .device = permit.view.device,
                       .epoch = epoch_};
}

bool PermitPool::TenantMayHave(const Tenant& tenant, uint64_t units) const {
  if (config_.tenant_cap == 0) return true;
  const auto found = out_by_tenant_.find(tenant);
  const uint64_t out = found == out_by_tenant_.end() ? 0 : found->second;
  return out < config_.tenant_cap && units <= config_.tenant_cap - out;
}

WaitQueue::Verdict PermitPool::Judge(const Waiter& waiter) const {
  const AcquireRequest& what = waiter.what;
  if (!TenantMayHave(waiter.asker.tenant, what.units)) return WaitQueue::Verdict::kAside;
  if (!MayHaveUnits(what)) return WaitQueue::Verdict::kWaits;
  if (what.device.pick == DevicePick::kNone) return WaitQueue::Verdict::kFits;
  switch (placement_->Choose(what.device).verdict) {
    case Placement::Verdict::kFits:
      return WaitQueue::Verdict::kFits;
    case Placement::Verdict::kWaits:
      return WaitQueue::Verdict::kWaits;
    case Placement::Verdict::kAside:
      // No unit that comes back helps it: the others need not wait for it.
      return WaitQueue::Verdict::kAside;
  }
  return WaitQueue::Verdict::kAside;
}

bool PermitPool::MayHaveUnits(const AcquireRequest& what) const {
  if (exclusive_out_) return false;
  if (what.exclusive) return out_ == 0;
  return out_ < config_.cap && what.units <= config_.cap - out_ &&
         (what.client_cap == 0 || out_ < what.client_cap);
}

void PermitPool::Grant(absl::Time now, Waiter waiter, AcquireOutcomes* outcomes) {
  const PermitId id(++ids_->last_permit);
  Permit& permit = permits_[id];
  permit.view = PermitView{.id = id,
                           .pool = config_.name,
                           .units = waiter.what.units,
                           .session = waiter.asker.session,
                           .holder_key = waiter.what.holder_key,
                           .label = waiter.what.label,
                           .adoptable = waiter.what.adoptable,
                           .exclusive = waiter.what.exclusive,
                           .priority = waiter.what.priority,
                           .granted_at = now,
                           .waited = now - waiter.since,
                           .process = waiter.asker.process};
  permit.tenant = waiter.asker.tenant;
  if (const DeviceWish& wish = waiter.what.device; wish.pick != DevicePick::kNone) {
    const Placement::Choice choice = placement_->Choose(wish);
    BERTH_INVARIANT(choice.verdict == Placement::Verdict::kFits);
    permit.view.device = placement_->Describe(choice.ordinal);
    permit.view.declared = wish.declared;
    placement_->Take(choice.ordinal, wish.declared);
  }
  const bool first = by_holder_.emplace(Holder(waiter.asker.session, waiter.what.holder_key), id).second;
  BERTH_INVARIANT(first);
  if (waiter.what.adoptable) adoptable_.emplace(waiter.asker.session, id);
  out_ += waiter.what.units;
  out_by_tenant_[waiter.asker.tenant] += waiter.what.units;
  queue_.Charge(waiter.asker.tenant, waiter.charge);
  exclusive_out_ = waiter.what.exclusive;
  peak_ = std::max(peak_, out_);
  ++granted_total_;
  Tell(waiter.request, AddAcquisition(permit, /*nested=*/false), outcomes);
  NestWaiters(permit, outcomes);
}

void PermitPool::NestWaiters(Permit& permit, AcquireOutcomes* outcomes) {
  const auto nests = [&permit](const Waiter& waiter) {
    return waiter.what.holder_key == permit.view.holder_key ||
           (permit.view.adoptable && !waiter.what.independent);
  };
  for (const Waiter& waiter : queue_.TakeOf(permit.view.session, nests)) {
    Tell(waiter.request, Nest(permit, waiter.what), outcomes);
  }
}

void PermitPool::Serve(absl::Time now, AcquireOutcomes* outcomes) {
  while (out_ < config_.cap && !exclusive_out_ && !queue_.empty()) {
    std::optional<Waiter> next = queue_.TakeNext(now, [this](const Waiter& waiter) { return Judge(waiter); });
    if (!next.has_value()) return;
    Grant(now, *std::move(next), outcomes);
  }
}

bool PermitPool::Holds(SessionId session, AcquisitionId acquisition) const {
  const auto found = acquisitions_.find(acquisition);
  return found != acquisitions_.end() && permits_.at(found->second).view.session == session;
}

ReleaseResult PermitPool::Release(absl::Time now, AcquisitionId acquisition, AcquireOutcomes* outcomes) {
  const auto found = acquisitions_.find(acquisition);
  BERTH_INVARIANT(found != acquisitions_.end());
  const auto at = permits_.find(found->second);
  acquisitions_.erase(found);
  at->second.acquisitions.erase(acquisition);
  if (!at->second.acquisitions.empty()) return ReleaseResult{.returned = false};
  Return(now, at);
  Serve(now, outcomes);
  return ReleaseResult{.returned = true};
}

void PermitPool::ReturnAll(absl::Time now, SessionId session, AcquireOutcomes* outcomes) {
  for (auto it = by_holder_.lower_bound({session, ""});
       it != by_holder_.end() && it->first.first == session;) {
    const PermitId id = it->second;
    ++it;
    Return(now, permits_.find(id));
  }
  Serve(now, outcomes);
}

void PermitPool::Return(absl::Time now, std::map<PermitId, Permit>::iterator at) {
  const Permit& permit = at->second;
  const absl::Duration held = std::max(now - permit.view.granted_at, absl::ZeroDuration());
  const bool first = mean_hold_ == absl::ZeroDuration();
  mean_hold_ = first ? held : mean_hold_ + (held - mean_hold_) / kHoldsRemembered;
  if (permit.view.exclusive) exclusive_out_ = false;
  if (permit.view.device.has_value()) placement_->Give(permit.view.device->ordinal, permit.view.declared);
  for (const AcquisitionId acquisition : permit.acquisitions) acquisitions_.erase(acquisition);
  by_holder_.erase({permit.view.session, permit.view.holder_key});
  adoptable_.erase({permit.view.session, permit.view.id});
  BERTH_INVARIANT(out_ >= permit.view.units);
  out_ -= permit.view.units;
  const auto by_tenant = out_by_tenant_.find(permit.tenant);
  by_tenant->second -= permit.view.units;
  if (by_tenant->second == 0) out_by_tenant_.erase(by_tenant);
  permits_.erase(at);
}

std::optional<PermitView> PermitPool::Revoke(absl::Time now, PermitId permit, AcquireOutcomes* outcomes) {
  const auto at = permits_.find(permit);
  if (at == permits_.end()) return std::nullopt;
  PermitView view = ViewPermit(at->second);
  ++revoked_total_;
  Return(now, at);
  Serve(now, outcomes);
  return view;
}

absl::Time PermitPool::next_deadline() const {
  absl::Time next = queue_.next_deadline();
  if (!permits_.empty()) next = std::min(next, permits_.begin()->second.view.granted_at + config_.hold_limit);
  const auto unwarned = permits_.upper_bound(warned_);
  if (unwarned != permits_.end()) {
    next = std::min(next, unwarned->second.view.granted_at + config_.hold_warning);
  }
  return next;
}

void PermitPool::Expire(absl::Time now, AcquireOutcomes* outcomes, std::vector<SessionId>* revoked) {
  for (auto at = permits_.upper_bound(warned_);
       at != permits_.end() && at->second.view.granted_at + config_.hold_warning <= now; ++at) {
    warned_ = at->first;
  }
  while (!permits_.empty() && permits_.begin()->second.view.granted_at + config_.hold_limit <= now) {
    revoked->push_back(permits_.begin()->second.view.session);
    Revoke(now, permits_.begin()->first, outcomes);
  }
  const std::vector<WaitQueue::Expired> expired = queue_.TakeExpired(now);
  for (const auto& [waiter, position] : expired) {
    Tell(waiter.request, TimedOut(waiter.what, position), outcomes);
  }
  // Units may have been kept for one that left.
  if (!expired.empty()) Serve(now, outcomes);
}

void PermitPool::SetConfig(absl::Time now, PoolConfig config, AcquireOutcomes* outcomes) {
  BERTH_INVARIANT(config.cap > 0 && config.name == config_.name);
  config_ = std::move(config);
  queue_.SetOptions({.passes_before_hold = queue_.options().passes_before_hold,
                     .ageing = config_.ageing,
                     .weights = config_.weights});
  // Who is held past the warning is looked at anew.
  warned_ = PermitId();
  Reconsider(now, outcomes);
}

void PermitPool::Reconsider(absl::Time now, AcquireOutcomes* outcomes) {
  for (const Waiter& waiter :
       queue_.TakeIf([this](const Waiter& waiter) { return !CheckCaps(waiter.what).ok(); })) {
    Tell(waiter.request, CheckCaps(waiter.what), outcomes);
  }
  Serve(now, outcomes);
}

void PermitPool::Tell(const RequestId& request, absl::StatusOr<AcquireResult> result,
                      AcquireOutcomes* outcomes) {
  if (!result.ok()) ++refused_total_;
  outcomes->push_back({request, std::move(result)});
}

absl::Status PermitPool::CheckCaps(const AcquireRequest& what) const {
  if (what.units > config_.cap) {
    return Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked}, cap {cap}",
                  {{"pool", config_.name}, {"asked", what.units}, {"cap", config_.cap}});
  }
  if (config_.tenant_cap != 0 && what.units > config_.tenant_cap) {
    return Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked}, cap of one tenant {cap}",
                  {{"pool", config_.name}, {"asked", what.units}, {"cap", config_.tenant_cap}});
  }
  if (what.device.pick == DevicePick::kNone) return absl::OkStatus();
  return placement_->Check(config_.name, what.device);
}

absl::Status PermitPool::TimedOut(const AcquireRequest& what, uint64_t position) const {
  return Refuse(Reason::kWaitTimedOut,
                "permit pool {pool}: asked {asked}, {out} of {cap} out; the wait ended at place {position}",
                {{"pool", config_.name},
                 {"asked", what.units},
                 {"out", out_},
                 {"cap", config_.cap},
                 {"position", position}});
}

absl::Status PermitPool::NoPermit(const Asker& asker, const AcquireRequest& what) const {
  return Refuse(Reason::kNoPermit, "permit pool {pool}: asked {asked}, {out} of {cap} out; held by {holders}",
                {{"pool", config_.name},
                 {"asked", what.units},
                 {"out", out_},
                 {"cap", config_.cap},
                 {"holders", NameHolders(asker)}});
}

std::string PermitPool::NameHolders(const Asker& asker) const {
  std::vector<std::string> names;
  for (const auto& [id, permit] : permits_) {
    if (names.size() == kNamedHolders) {
      names.push_back(absl::StrCat("and ", permits_.size() - kNamedHolders, " more"));
      break;
    }
    // Another tenant's processes and labels are not for this one's eyes.
    const std::string who = permit.tenant == asker.tenant
                                ? absl::StrCat(permit.view.process.name, "[", permit.view.process.pid, "]",
                                               permit.view.label.empty() ? "" : " ", permit.view.label)
                                : "another tenant";
    names.push_back(absl::StrCat(who, " (", permit.view.units, ")"));
  }
  return names.empty() ? "nobody" : absl::StrJoin(names, ", ");
}

}  // namespace berth::core
