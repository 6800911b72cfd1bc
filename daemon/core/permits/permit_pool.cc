#include "daemon/core/permits/permit_pool.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "daemon/core/permits/pool_change.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/wait_weight.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

// Limit of acquisitions nested in one permit: each is a ledger record, and all of them end in one step.
constexpr size_t kMaxAcquisitions = 65'536;
// Number of holds over which the mean hold time averages.
constexpr int kHoldsRemembered = 8;

}  // namespace

PermitPool::PermitPool(Options options, PermitIds* ids, Placement* placement, Journal* journal,
                       PermitSlots* permit_slots)
    : number_(NumberOf(options.config.name)),
      epoch_(options.epoch),
      ids_(ids),
      placement_(placement),
      journal_(journal),
      permit_slots_(permit_slots),
      tenants_(options.tenants),
      leases_(options.leases),
      configured_(std::move(options.config)),
      config_(configured_),
      queue_({.passes_before_hold = options.passes_before_hold}, journal, number_,
             SharedCount("waiters_per_pool", options.max_waiters, options.max_operator_waiters,
                         absl::StrCat("permit pool ", configured_.name))) {
  ApplyConfig();
  MarkCounters();
}

uint64_t PermitPool::NumberOf(absl::string_view name) { return Fingerprint().Add(name).value(); }

void PermitPool::ApplyConfig() {
  BERTH_INVARIANT(config_.cap > 0);
  shares_.cap = config_.device_cap;
  shares_.caps = config_.device_caps;
  placement_->RecordCaps();
  queue_.SetOptions({.passes_before_hold = queue_.options().passes_before_hold,
                     .ageing = config_.ageing,
                     .weights = config_.weights});
  journal_->Touch(RecordKind::kPool, number_);
}

const Waiter* PermitPool::Acquire(const PoolStep& step, const RequestId& request, const Requester& requester,
                                  const AcquireRequest& wanted) {
  const auto notify = [&](absl::StatusOr<AcquireResult> result) -> const Waiter* {
    Notify(step, request, std::move(result));
    return nullptr;
  };
  if (wanted.units == 0) {
    return notify(Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                         {{"field", "units"}, {"value", 0}, {"limit", 1}}));
  }
  std::optional<AcquireRequest> resolved;
  if (wanted.device.pick != DevicePick::kNone) {
    resolved = wanted;
    if (absl::Status unknown = placement_->Resolve(&resolved->device); !unknown.ok()) return notify(std::move(unknown));
  }
  const AcquireRequest& what = resolved.has_value() ? *resolved : wanted;
  if (const Permit* const held = FindNest(requester, what); held != nullptr) {
    return notify(Nest(permits_.at(held->view.id), what));
  }
  journal_->Touch(RecordKind::kCounters);
  Waiter waiter{.number = ++ids_->last_waiter,
                .request = request,
                .requester = requester,
                .what = what,
                .since = step.now,
                .charge = what.exclusive ? config_.cap : what.units};
  // In a pool with device limits each permit names a device.
  if (shares_.per_device() && what.device.pick == DevicePick::kNone)
    waiter.what.device.pick = DevicePick::kAny;
  if (absl::Status unknown = placement_->Resolve(&waiter.what.device); !unknown.ok()) return notify(std::move(unknown));
  if (absl::Status never = CheckCaps(requester.tenant, waiter.what); !never.ok()) {
    return notify(std::move(never));
  }
  if (GoesAtOnce(step, waiter)) {
    const GrantOffer offer = OfferTo(step, waiter);
    Grant(step, std::move(waiter), offer);
    // The tenant may need the permit just lent to its process in another pool.
    if (!queue_.empty() || NeedsUnits()) Serve(step);
    return nullptr;
  }
  const uint64_t number = waiter.number;
  // The queue decides whether it is this waiter's turn. A request that does not wait leaves at once.
  queue_.Push(std::move(waiter));
  Serve(step);
  // A process may just have put its cached permit back without having reported it yet.
  if (!what.wait && queue_.Contains(number)) TakeIdleBack(step);
  const Waiter* const waits = queue_.Find(number);
  if (waits == nullptr) return nullptr;
  absl::Status refusal = WhyNotWait(step.now, *waits);
  if (refusal.ok()) return waits;
  queue_.Remove(number);
  Notify(step, request, std::move(refusal));
  // Units may have been reserved for it.
  Serve(step);
  return nullptr;
}

bool PermitPool::GoesAtOnce(const PoolStep& step, const Waiter& waiter) {
  if (Judge(waiter, step.gangs) != WaitQueue::Verdict::kFits) return false;
  if (queue_.empty()) return true;
  OpenChanged();
  Arbiter arbiter(*this, step.gangs);
  return queue_.LetsPass(step.now, waiter.requester.tenant, arbiter);
}

absl::Status PermitPool::WhyNotWait(absl::Time now, const Waiter& waiter) const {
  const auto& [requester, what] = std::tie(waiter.requester, waiter.what);
  const uint64_t without_device = PartOf(waiter).without_device;
  if (!what.wait) return NoPermit(requester, what, without_device);
  if (what.deadline <= now) {
    return TimedOut(requester.tenant, what, without_device, queue_.size(), /*stopped=*/false);
  }
  BERTH_RETURN_IF_ERROR(queue_.places().CheckTaken(requester.claimant()));
  if (tenants_ == nullptr) return absl::OkStatus();
  return tenants_->CheckMayWait(requester.tenant, requester.claimant(), WaitWeight(waiter));
}

const PermitPool::Permit* PermitPool::FindNest(const Requester& requester, const AcquireRequest& what) const {
  if (const auto own = by_holder_.find({requester.session, what.holder_key}); own != by_holder_.end()) {
    return &permits_.at(own->second);
  }
  return what.independent ? nullptr : FindAdoptable(requester.session, what);
}

const PermitPool::Permit* PermitPool::FindAdoptable(SessionId session, const AcquireRequest& what) const {
  // The permit that a refusal names: that of the requested device, otherwise the first one.
  const Permit* nearest = nullptr;
  const Permit* best = nullptr;
  for (auto it = adoptable_.lower_bound({session, PermitId()});
       it != adoptable_.end() && it->first == session; ++it) {
    const Permit* const permit = &permits_.at(it->second);
    const std::optional<PlacedDevice>& device = permit->view.device;
    const bool named = what.device.pick == DevicePick::kNamed && device.has_value() && device->uuid == what.device.uuid;
    if (nearest == nullptr || named) nearest = permit;
    if (!CheckNest(*permit, what).ok()) continue;
    // Processes that each request one of several devices are spread over the permits. Those that request none use none.
    const bool spreads = what.device.pick != DevicePick::kNone;
    if (best == nullptr || (spreads && permit->device_use() < best->device_use())) best = permit;
  }
  return best == nullptr ? nearest : best;
}

absl::Status PermitPool::CheckNest(const Permit& permit, const AcquireRequest& what) const {
  const PermitView& held = permit.view;
  // A request of the permit's own holder nests even if it asks for an independent permit.
  const absl::string_view beside =
      held.holder_key == what.holder_key ? "release it first" : "--independent for a permit beside it";
  const auto refuse = [&](const absl::AlphaNum& asked, const absl::AlphaNum& has) {
    return Refuse(Reason::kNestedOverHeld,
                  absl::StrCat("permit pool {pool}: asked {asked}, but the enclosing permit {permit} holds {held}: "
                               "request no more than it holds, or ",
                               beside),
                  {{"pool", config_.name},
                   {"asked", std::string(asked.Piece())},
                   {"held", std::string(has.Piece())},
                   {"permit", held.id.value()}});
  };
  if (what.units > held.units) return refuse(what.units, held.units);
  if (what.exclusive && !held.exclusive) return refuse("all of the pool", "a part of the pool");
  const DeviceConstraint& constraint = what.device;
  if (constraint.pick == DevicePick::kNone) return absl::OkStatus();
  if (!held.device.has_value()) return refuse("a device", "none");
  if (constraint.pick == DevicePick::kNamed && constraint.uuid != held.device->uuid) {
    return refuse(absl::StrCat("device ", constraint.uuid), held.device->uuid);
  }
  if (!placement_->Suits(held.device->ordinal, constraint)) {
    return refuse(Placement::Describe(constraint), held.device->uuid);
  }
  if (constraint.declared > held.declared) {
    return refuse(absl::StrCat(constraint.declared.count(), " bytes"), held.declared.count());
  }
  return absl::OkStatus();
}

absl::StatusOr<AcquireResult> PermitPool::Nest(Permit& permit, const AcquireRequest& what) {
  BERTH_RETURN_IF_ERROR(CheckNest(permit, what));
  if (permit.acquisitions.size() >= kMaxAcquisitions) {
    return Refuse(Reason::kLimit, "permit {permit}: {current} nested acquisitions, limit {limit}",
                  {{"what", "acquisitions_per_permit"},
                   {"permit", permit.view.id.value()},
                   {"current", permit.acquisitions.size()},
                   {"limit", kMaxAcquisitions}});
  }
  AcquireResult nested = AddAcquisition(permit, /*nested=*/true);
  if (what.device.pick == DevicePick::kNone) {
    // An acquisition without a device constraint leaves its process the devices that it sees.
    nested.device.reset();
  } else {
    nested.device_sharers = permit.on_device.size();
    permit.on_device.insert(nested.acquisition);
  }
  return nested;
}

AcquireResult PermitPool::AddAcquisition(Permit& permit, bool nested) {
  const AcquisitionId acquisition(++ids_->last_acquisition);
  journal_->Touch(RecordKind::kCounters);
  if (nested) {
    RecordNested(acquisition);
  } else {
    permit.first = acquisition;
    Mark(permit);
  }
  permit.acquisitions.insert(acquisition);
  acquisitions_.emplace(acquisition, permit.view.id);
  return AcquireResult{.acquisition = acquisition,
                       .permit = permit.view.id,
                       .nested = nested,
                       .device = permit.view.device,
                       .epoch = epoch_};
}

void PermitPool::EndAcquisition(Permit& permit, AcquisitionId acquisition) {
  if (acquisition == permit.first) {
    permit.first = AcquisitionId();
    Mark(permit);
  } else {
    RecordNested(acquisition);
  }
  acquisitions_.erase(acquisition);
  permit.acquisitions.erase(acquisition);
  permit.on_device.erase(acquisition);
  permit.restored.erase(acquisition);
}

GrantOffer PermitPool::OfferTo(const PoolStep& step, const Waiter& waiter) {
  return step.offers == nullptr ? GrantOffer::kFinal : step.offers->Offer(waiter.request);
}

void PermitPool::Grant(const PoolStep& step, Waiter waiter, GrantOffer offer) {
  // Before anything is granted that another waiter could nest in.
  if (offer == GrantOffer::kWithheld) return NotifyWaiter(step, std::move(waiter), AcquireResult(), offer);
  if (offer == GrantOffer::kFinal) queue_.RecordTaken();
  std::optional<uint32_t> device;
  if (waiter.what.device.pick != DevicePick::kNone) {
    const Placement::Choice choice = placement_->Choose(AskOf(waiter.what));
    BERTH_INVARIANT(choice.verdict == Placement::Verdict::kFits);
    device = choice.ordinal;
  }
  Permit& permit = Admit(step, waiter, device);
  AcquireResult granted = AddAcquisition(permit, /*nested=*/false);
  Lend(permit, waiter, granted.acquisition);
  granted.cached = permit.permit_slot != nullptr;
  NotifyWaiter(step, std::move(waiter), std::move(granted), offer);
  NestWaiters(step, permit);
}

PermitPool::Permit& PermitPool::Admit(const PoolStep& step, const Waiter& waiter,
                                      std::optional<uint32_t> device) {
  const PermitId id(++ids_->last_permit);
  Permit permit;
  permit.view = PermitView{.id = id,
                           .pool = config_.name,
                           .units = waiter.what.units,
                           .session = waiter.requester.session,
                           .holder_key = waiter.what.holder_key,
                           .label = waiter.what.label,
                           .adoptable = waiter.what.adoptable,
                           .exclusive = waiter.what.exclusive,
                           .priority = waiter.what.priority,
                           .gang = waiter.gang.empty() ? 0 : waiter.number,
                           .granted_at = step.now,
                           .waited = step.now - waiter.since,
                           .process = waiter.requester.process};
  permit.tenant = waiter.requester.tenant;
  permit.held_since = step.now;
  if (device.has_value()) {
    permit.view.device = placement_->Describe(*device);
    permit.view.declared = waiter.what.device.declared;
  }
  Permit& admitted = Insert(std::move(permit));
  admitted.untaken = queue_.Charge(waiter.requester.tenant, waiter.charge);
  peak_ = std::max(peak_, out_);
  ++granted_total_;
  MarkCounters();
  if (leases_ != nullptr) leases_->RecordGrant(LeaseOf(admitted));
  return admitted;
}

PermitPool::Permit& PermitPool::Insert(Permit inserted) {
  const PermitId id = inserted.view.id;
  Permit& permit = permits_.emplace(id, std::move(inserted)).first->second;
  const PermitView& view = permit.view;
  fresh_.emplace(permit.held_since, id);
  if (view.device.has_value()) {
    placement_->Take(view.device->ordinal, view.session, view.declared);
    shares_.out[view.device->ordinal] += view.units;
  }
  const bool first = by_holder_.emplace(Holder(view.session, view.holder_key), id).second;
  BERTH_INVARIANT(first);
  if (view.adoptable) adoptable_.emplace(view.session, id);
  out_ += view.units;
  out_by_tenant_[permit.tenant] += view.units;
  if (tenants_ != nullptr) tenants_->Take(permit.tenant, view.units);
  exclusive_out_ += view.exclusive ? 1 : 0;
  if (!view.device.has_value()) out_without_device_ += view.units;
  return permit;
}

AcquireResult PermitPool::GrantPart(const PoolStep& step, const Waiter& waiter,
                                    std::optional<uint32_t> device) {
  Permit& permit = Admit(step, waiter, device);
  const AcquireResult result = AddAcquisition(permit, /*nested=*/false);
  NestWaiters(step, permit);
  return result;
}

void PermitPool::NestWaiter(const PoolStep& step, Permit& permit, Waiter waiter) {
  absl::StatusOr<AcquireResult> nested = Nest(permit, waiter.what);
  const GrantOffer offer = nested.ok() ? OfferTo(step, waiter) : GrantOffer::kFinal;
  if (offer == GrantOffer::kWithheld) EndAcquisition(permit, nested->acquisition);
  NotifyWaiter(step, std::move(waiter), std::move(nested), offer);
}

void PermitPool::NestWaiters(const PoolStep& step, Permit& permit) {
  const PermitView view = permit.view;
  for (Waiter& waiter : queue_.TakeNesting(view.session, view.holder_key, view.adoptable)) {
    NestWaiter(step, permit, std::move(waiter));
  }
  if (step.gangs == nullptr) return;
  for (const uint64_t number : queue_.GangsNesting(view.session, view.holder_key, view.adoptable)) {
    const Waiter* const gang = queue_.Find(number);
    if (gang != nullptr) step.gangs->PermitGranted(RequestId(gang->request), view);
  }
}

void PermitPool::Serve(const PoolStep& step) {
  GrantFitting(step);
  // Processes that see the waiting flag already report when they put a permit back.
  if (!cached_.empty() && NeedsUnits() != wanted_) TakeIdleBack(step);
}

void PermitPool::GrantFitting(const PoolStep& step) {
  OpenChanged();
  Arbiter arbiter(*this, step.gangs);
  while (!paused_ && out_ < config_.cap && exclusive_out_ == 0 && !queue_.empty()) {
    std::optional<WaitQueue::Turn> turn = queue_.Next(step.now, arbiter);
    MarkHeld(step);
    if (!turn.has_value()) return;
    const Waiter& next = *queue_.Find(turn->number);
    if (!next.gang.empty()) {
      step.gangs->Grant(RequestId(next.request));
      continue;
    }
    const GrantOffer offer = OfferTo(step, next);
    // A withheld grant passes no waiter.
    if (offer == GrantOffer::kWithheld) turn->passed = 0;
    Grant(step, queue_.Take(*turn), offer);
  }
}

void PermitPool::MarkHeld(const PoolStep& step) {
  const uint64_t held = queue_.TakeNewlyHeld();
  if (held == 0) return;
  if (const Waiter& waiter = *queue_.Find(held); !waiter.gang.empty()) step.gangs->Hold(waiter.request);
}

std::optional<PermitView> PermitPool::FindHeld(const Requester& requester, const AcquireRequest& what) const {
  const Permit* const held = FindNest(requester, what);
  if (held == nullptr) return std::nullopt;
  return ViewPermit(*held);
}

absl::Status PermitPool::Push(Waiter waiter) {
  BERTH_RETURN_IF_ERROR(queue_.places().Check(waiter.requester.claimant()));
  queue_.Push(std::move(waiter));
  return absl::OkStatus();
}

bool PermitPool::MayGo(const PoolStep& step, uint64_t number) {
  OpenChanged();
  Arbiter arbiter(*this, step.gangs);
  const bool may = queue_.NextIf(step.now, arbiter, number).has_value();
  MarkHeld(step);
  return may;
}

uint64_t PermitPool::TakeTurn(const PoolStep& step, uint64_t number) {
  Arbiter arbiter(*this, step.gangs);
  const std::optional<WaitQueue::Turn> turn = queue_.NextIf(step.now, arbiter, number);
  BERTH_INVARIANT(turn.has_value());
  return queue_.Take(*turn).passes;
}

uint64_t PermitPool::PositionOf(uint64_t number) const {
  uint64_t position = 0;
  queue_.Walk([&](const Waiter& waiter) {
    ++position;
    return waiter.number != number && position < WaitQueue::kLastPlace;
  });
  return position;
}

void PermitPool::Attach(const PoolStep& step, uint64_t number) {
  queue_.Attach(number);
  const Waiter& waiter = *queue_.Find(number);
  // The session may have been granted a permit meanwhile.
  const Permit* const held = waiter.gang.empty() ? FindNest(waiter.requester, waiter.what) : nullptr;
  if (held == nullptr) return;
  Waiter nests = waiter;
  queue_.Remove(number);
  NestWaiter(step, permits_.at(held->view.id), std::move(nests));
}

const Waiter* PermitPool::PutBack(Waiter waiter) {
  if (!queue_.places().Check(waiter.requester.claimant()).ok()) return nullptr;
  // The pool may have changed while the waiter had its grant.
  if (!CheckCaps(waiter.requester.tenant, waiter.what).ok()) return nullptr;
  waiter.detached = true;
  return &queue_.Push(std::move(waiter));
}

bool PermitPool::Holds(SessionId session, AcquisitionId acquisition) const {
  const auto found = acquisitions_.find(acquisition);
  return found != acquisitions_.end() && permits_.at(found->second).view.session == session;
}

ReleaseResult PermitPool::Release(const PoolStep& step, AcquisitionId acquisition, LeaseEnd how) {
  const auto found = acquisitions_.find(acquisition);
  BERTH_INVARIANT(found != acquisitions_.end());
  const auto at = permits_.find(found->second);
  if (at->second.cached == acquisition) EndCaching(at->second);
  if (how != LeaseEnd::kNotTakenUp) at->second.untaken.reset();
  EndAcquisition(at->second, acquisition);
  if (!at->second.acquisitions.empty()) return ReleaseResult{.returned = false};
  Return(step.now, at, how);
  Serve(step);
  return ReleaseResult{.returned = true};
}

void PermitPool::ReturnAll(const PoolStep& step, SessionId session) {
  for (auto it = by_holder_.lower_bound({session, ""});
       it != by_holder_.end() && it->first.first == session;) {
    const PermitId id = it->second;
    ++it;
    Return(step.now, permits_.find(id), LeaseEnd::kSessionEnd);
  }
  Serve(step);
}

void PermitPool::Return(absl::Time now, std::map<PermitId, Permit>::iterator at, LeaseEnd how) {
  Permit& permit = at->second;
  if (leases_ != nullptr && how != LeaseEnd::kUnseen) leases_->RecordEnd(now, LeaseOf(permit), how);
  EndCaching(permit);
  EndHold(permit);
  const bool untaken = how == LeaseEnd::kNotTakenUp && permit.untaken.has_value();
  if (untaken) {
    queue_.TakeBack(permit.tenant, *permit.untaken);
    queue_.RecordUntaken(permit.tenant);
  }
  // The daemon cannot measure how long a cached permit was in use. A permit that was not taken up was in no use.
  if (!permit.was_cached && !untaken) {
    const absl::Duration held = std::max(now - permit.view.granted_at, absl::ZeroDuration());
    const bool first = mean_hold_ == absl::ZeroDuration();
    mean_hold_ = first ? held : mean_hold_ + (held - mean_hold_) / kHoldsRemembered;
    MarkCounters();
  }
  if (permit.view.exclusive) --exclusive_out_;
  if (const auto& device = permit.view.device; device.has_value()) {
    placement_->Give(device->ordinal, permit.view.session, permit.view.declared);
    const auto share = shares_.out.find(device->ordinal);
    share->second -= permit.view.units;
    if (share->second == 0) shares_.out.erase(share);
  } else {
    out_without_device_ -= permit.view.units;
  }
  while (!permit.acquisitions.empty()) EndAcquisition(permit, *permit.acquisitions.begin());
  Mark(permit);
  by_holder_.erase({permit.view.session, permit.view.holder_key});
  adoptable_.erase({permit.view.session, permit.view.id});
  BERTH_INVARIANT(out_ >= permit.view.units);
  out_ -= permit.view.units;
  const auto by_tenant = out_by_tenant_.find(permit.tenant);
  by_tenant->second -= permit.view.units;
  if (by_tenant->second == 0) out_by_tenant_.erase(by_tenant);
  if (tenants_ != nullptr) tenants_->Give(permit.tenant, permit.view.units);
  permits_.erase(at);
}

std::optional<PermitView> PermitPool::Revoke(const PoolStep& step, PermitId permit, LeaseEnd how) {
  const auto at = permits_.find(permit);
  if (at == permits_.end()) return std::nullopt;
  PermitView view = ViewPermit(at->second);
  ++revoked_total_;
  MarkCounters();
  Return(step.now, at, how);
  Serve(step);
  return view;
}

absl::Time PermitPool::next_deadline() const {
  return std::min({queue_.next_deadline(), next_hold(), next_look()});
}

void PermitPool::Expire(const PoolStep& step, std::vector<PermitView>* revoked,
                        std::vector<PermitView>* overdue) {
  // Before units become free: an expired waiter that owes a proof would return to the queue.
  const std::vector<WaitQueue::Expired> expired = queue_.TakeExpired(step.now);
  for (const auto& [waiter, position] : expired) {
    Notify(step, waiter.request,
           TimedOut(waiter.requester.tenant, waiter.what, PartOf(waiter).without_device, position, waiter.detached));
  }
  ExpireHolds(step, revoked, overdue);
  // Units may have been reserved for an expired waiter.
  if (!expired.empty()) Serve(step);
  if (next_look() <= step.now) TakeIdleBack(step);
}

void PermitPool::Change(const PoolStep& step, const PoolChange& change) {
  if (change.defaults) config_ = configured_;
  ApplyChange(change, &config_);
  if (change.configured) ApplyChange(change, &configured_);
  ApplyConfig();
  // Permits past the old warning are checked against the new one.
  fresh_.merge(overdue_);
  TakeIdleBack(step);
  Reconsider(step);
}

PoolChange PermitPool::ChangeByHand() const { return Difference(configured_, config_); }

void PermitPool::SetPaused(const PoolStep& step, bool paused) {
  paused_ = paused;
  TakeIdleBack(step);
  Serve(step);
}

void PermitPool::Reconsider(const PoolStep& step) {
  const auto never = [this](const Waiter& waiter) {
    return waiter.gang.empty() && !CheckCaps(waiter.requester.tenant, waiter.what).ok();
  };
  for (const Waiter& waiter : queue_.TakeIf(never)) {
    Notify(step, waiter.request, CheckCaps(waiter.requester.tenant, waiter.what));
  }
  Serve(step);
}

void PermitPool::NotifyWaiter(const PoolStep& step, Waiter waiter, absl::StatusOr<AcquireResult> result,
                              GrantOffer offer) {
  Notify(step, waiter.request, result);
  if (!result.ok()) return;
  AcquireOutcome& outcome = step.outcomes->back();
  outcome.offer = offer;
  outcome.granted = GrantedWaiter{.pool = this, .waiter = std::move(waiter)};
  if (offer != GrantOffer::kWithheld) outcome.granted->acquisition = result->acquisition;
}

void PermitPool::Notify(const PoolStep& step, const RequestId& request, absl::StatusOr<AcquireResult> result) {
  if (result.ok()) {
    step.outcomes->push_back({request, Response(*std::move(result))});
  } else {
    RecordRefused();
    step.outcomes->push_back({request, result.status()});
  }
}

}  // namespace berth::core
