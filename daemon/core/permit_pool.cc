#include "daemon/core/permit_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/fingerprint.h"
#include "daemon/core/invariant.h"
#include "daemon/core/pool_change.h"

namespace berth::core {
namespace {

// Acquisitions that nest in one permit: each is a row, and all of them end in one step.
constexpr size_t kMaxAcquisitions = 65'536;
// Holds that the mean goes back over.
constexpr int kHoldsRemembered = 8;

WaitQueue::Verdict ToQueue(Placement::Verdict verdict) {
  switch (verdict) {
    case Placement::Verdict::kFits:
      return WaitQueue::Verdict::kFits;
    case Placement::Verdict::kWaits:
      return WaitQueue::Verdict::kWaits;
    case Placement::Verdict::kAside:
      break;
  }
  return WaitQueue::Verdict::kAside;
}

}  // namespace

PermitPool::PermitPool(Options options, PermitIds* ids, Placement* placement, Journal* journal, PermitWords* words)
    : number_(NumberOf(options.config.name)),
      max_waiters_(options.max_waiters),
      epoch_(options.epoch),
      ids_(ids),
      placement_(placement),
      journal_(journal),
      words_(words),
      tenants_(options.tenants),
      leases_(options.leases),
      configured_(std::move(options.config)),
      config_(configured_),
      queue_({.passes_before_hold = options.passes_before_hold}, journal, number_) {
  ApplyConfig();
  NoteFigures();
}

uint64_t PermitPool::NumberOf(absl::string_view name) { return Fingerprint().Add(name).value(); }

void PermitPool::ApplyConfig() {
  BERTH_INVARIANT(config_.cap > 0);
  shares_.cap = config_.device_cap;
  shares_.caps = config_.device_caps;
  queue_.SetOptions({.passes_before_hold = queue_.options().passes_before_hold,
                     .ageing = config_.ageing,
                     .weights = config_.weights});
  journal_->Touch(RowKind::kPool, number_);
}

const Waiter* PermitPool::Acquire(const PoolStep& step, const RequestId& request, const Asker& asker,
                                  const AcquireRequest& what) {
  const auto tell = [&](absl::StatusOr<AcquireResult> result) -> const Waiter* {
    Tell(step, request, std::move(result));
    return nullptr;
  };
  if (what.units == 0) {
    return tell(Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                       {{"field", "units"}, {"value", 0}, {"limit", 1}}));
  }
  if (const Permit* const held = FindNest(asker, what); held != nullptr) {
    return tell(Nest(permits_.at(held->view.id), what));
  }
  journal_->Touch(RowKind::kCounters);
  Waiter waiter{.number = ++ids_->last_waiter,
                .request = request,
                .asker = asker,
                .what = what,
                .since = step.now,
                .charge = what.exclusive ? config_.cap : what.units};
  // In a pool of devices each permit names one.
  if (shares_.per_device() && what.device.pick == DevicePick::kNone)
    waiter.what.device.pick = DevicePick::kAny;
  if (absl::Status never = CheckCaps(asker.tenant, waiter.what); !never.ok()) {
    return tell(std::move(never));
  }
  if (queue_.empty() && Judge(waiter, step.gangs) == WaitQueue::Verdict::kFits) {
    Grant(step, waiter);
    // What it has been lent its tenant may want elsewhere.
    if (NeedsUnits()) Serve(step);
    return nullptr;
  }
  const uint64_t number = waiter.number;
  const AcquireRequest asked = waiter.what;
  // Whether it is its turn the queue says. Who will not wait leaves it at once.
  queue_.Push(std::move(waiter));
  Serve(step);
  // What was put back a moment ago by one that has not said so yet.
  if (!what.wait && queue_.Contains(number)) TakeIdleBack(step);
  const Waiter* const waits = queue_.Find(number);
  if (waits == nullptr) return nullptr;
  absl::Status refusal = WhyNotWait(step.now, asker, asked);
  if (refusal.ok()) return waits;
  queue_.Remove(number);
  Tell(step, request, std::move(refusal));
  // Units may have been kept for it.
  Serve(step);
  return nullptr;
}

absl::Status PermitPool::WhyNotWait(absl::Time now, const Asker& asker, const AcquireRequest& what) const {
  if (!what.wait) return NoPermit(asker, what);
  if (what.deadline <= now) return TimedOut(what, queue_.size());
  if (queue_.size() > max_waiters_) return FullQueue(queue_.size() - 1);
  return tenants_ == nullptr ? absl::OkStatus() : tenants_->CheckMayWait(asker.tenant);
}

const PermitPool::Permit* PermitPool::FindNest(const Asker& asker, const AcquireRequest& what) const {
  if (const auto own = by_holder_.find({asker.session, what.holder_key}); own != by_holder_.end()) {
    return &permits_.at(own->second);
  }
  return what.independent ? nullptr : FindAdoptable(asker.session, what);
}

const PermitPool::Permit* PermitPool::FindAdoptable(SessionId session, const AcquireRequest& what) const {
  const Permit* first = nullptr;
  for (auto it = adoptable_.lower_bound({session, PermitId()});
       it != adoptable_.end() && it->first == session; ++it) {
    const Permit* const permit = &permits_.at(it->second);
    if (CheckNest(*permit, what).ok()) return permit;
    if (first == nullptr) first = permit;
  }
  return first;
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
  if (!placement_->Suits(held.device->ordinal, wish)) return refuse("another device", held.device->uuid);
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
  journal_->Touch(RowKind::kCounters);
  if (nested) {
    NoteNested(acquisition);
  } else {
    permit.first = acquisition;
    Note(permit);
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
    Note(permit);
  } else {
    NoteNested(acquisition);
  }
  acquisitions_.erase(acquisition);
  permit.acquisitions.erase(acquisition);
}

bool PermitPool::TenantMayHave(const Tenant& tenant, uint64_t units) const {
  if (config_.tenant_cap == 0) return true;
  const auto found = out_by_tenant_.find(tenant);
  const uint64_t out = found == out_by_tenant_.end() ? 0 : found->second;
  return out < config_.tenant_cap && units <= config_.tenant_cap - out;
}

Placement::Ask PermitPool::AskOf(const AcquireRequest& what) const {
  return {.wish = what.device, .units = what.units, .shares = &shares_};
}

WaitQueue::Verdict PermitPool::Judge(const Waiter& waiter, Gangs* gangs) const {
  if (waiter.absent) return WaitQueue::Verdict::kAside;
  if (!waiter.gang.empty()) return gangs->Judge(waiter);
  const AcquireRequest& what = waiter.what;
  const WaitQueue::Verdict units = JudgeUnits({.tenant = waiter.asker.tenant,
                                               .units = what.units,
                                               .exclusive = what.exclusive,
                                               .client_cap = what.client_cap});
  if (units != WaitQueue::Verdict::kFits || what.device.pick == DevicePick::kNone) return units;
  // Where no unit that comes back helps it, the others need not wait for it.
  return ToQueue(placement_->Choose(AskOf(what)).verdict);
}

WaitQueue::Verdict PermitPool::JudgeUnits(const GangPart& part) const {
  if (!TenantMayHave(part.tenant, part.units) || !QuotaAllows(part.tenant, part.units)) {
    return WaitQueue::Verdict::kAside;
  }
  return MayHaveUnits(part.units, part.exclusive, part.client_cap) ? WaitQueue::Verdict::kFits
                                                                   : WaitQueue::Verdict::kWaits;
}

bool PermitPool::MayHaveUnits(uint64_t units, bool exclusive, uint64_t client_cap) const {
  if (exclusive_out_ > 0) return false;
  if (exclusive && out_ > 0) return false;
  return out_ < config_.cap && units <= config_.cap - out_ && (client_cap == 0 || out_ < client_cap);
}

void PermitPool::Grant(const PoolStep& step, const Waiter& waiter) {
  std::optional<uint32_t> device;
  if (waiter.what.device.pick != DevicePick::kNone) {
    const Placement::Choice choice = placement_->Choose(AskOf(waiter.what));
    BERTH_INVARIANT(choice.verdict == Placement::Verdict::kFits);
    device = choice.ordinal;
  }
  Permit& permit = Admit(step, waiter, device);
  AcquireResult granted = AddAcquisition(permit, /*nested=*/false);
  Lend(permit, waiter, granted.acquisition);
  granted.kept = permit.word != nullptr;
  Tell(step, waiter.request, std::move(granted));
  NestWaiters(step, permit);
}

PermitPool::Permit& PermitPool::Admit(const PoolStep& step, const Waiter& waiter,
                                      std::optional<uint32_t> device) {
  const PermitId id(++ids_->last_permit);
  Permit permit;
  permit.view = PermitView{.id = id,
                           .pool = config_.name,
                           .units = waiter.what.units,
                           .session = waiter.asker.session,
                           .holder_key = waiter.what.holder_key,
                           .label = waiter.what.label,
                           .adoptable = waiter.what.adoptable,
                           .exclusive = waiter.what.exclusive,
                           .priority = waiter.what.priority,
                           .gang = waiter.gang.empty() ? 0 : waiter.number,
                           .granted_at = step.now,
                           .waited = step.now - waiter.since,
                           .process = waiter.asker.process};
  permit.tenant = waiter.asker.tenant;
  permit.held_since = step.now;
  if (device.has_value()) {
    permit.view.device = placement_->Describe(*device);
    permit.view.declared = waiter.what.device.declared;
  }
  Permit& admitted = Insert(std::move(permit));
  queue_.Charge(waiter.asker.tenant, waiter.charge);
  peak_ = std::max(peak_, out_);
  ++granted_total_;
  NoteFigures();
  if (leases_ != nullptr) leases_->NoteGrant(LeaseOf(admitted));
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
  return permit;
}

AcquireResult PermitPool::GrantPart(const PoolStep& step, const Waiter& waiter,
                                    std::optional<uint32_t> device) {
  Permit& permit = Admit(step, waiter, device);
  const AcquireResult result = AddAcquisition(permit, /*nested=*/false);
  NestWaiters(step, permit);
  return result;
}

void PermitPool::NestWaiters(const PoolStep& step, Permit& permit) {
  const PermitView view = permit.view;
  const auto nests = [&](const Waiter& waiter) {
    return waiter.gang.empty() && !waiter.absent &&
           (waiter.what.holder_key == view.holder_key || (view.adoptable && !waiter.what.independent));
  };
  for (const Waiter& waiter : queue_.TakeOf(view.session, nests)) {
    Tell(step, waiter.request, Nest(permit, waiter.what));
  }
  if (step.gangs == nullptr) return;
  for (const uint64_t number : queue_.GangsOf(view.session)) {
    const Waiter* const gang = queue_.Find(number);
    if (gang != nullptr) step.gangs->PermitGranted(RequestId(gang->request), view);
  }
}

void PermitPool::Serve(const PoolStep& step) {
  GrantFitting(step);
  // Those who are told already say so when they put a permit back.
  if (!kept_.empty() && NeedsUnits() != wanted_) TakeIdleBack(step);
}

void PermitPool::GrantFitting(const PoolStep& step) {
  const auto judge = [&](const Waiter& waiter) { return Judge(waiter, step.gangs); };
  while (out_ < config_.cap && exclusive_out_ == 0 && !queue_.empty()) {
    const std::optional<WaitQueue::Turn> turn = queue_.Next(step.now, judge);
    NoteHeld(step);
    if (!turn.has_value()) return;
    if (const Waiter& next = *queue_.Find(turn->number); !next.gang.empty()) {
      step.gangs->Grant(RequestId(next.request));
    } else {
      Grant(step, queue_.Take(*turn));
    }
  }
}

void PermitPool::NoteHeld(const PoolStep& step) {
  const uint64_t held = queue_.TakeNewlyHeld();
  if (held == 0) return;
  if (const Waiter& waiter = *queue_.Find(held); !waiter.gang.empty()) step.gangs->Hold(waiter.request);
}

std::optional<PermitView> PermitPool::FindHeld(const Asker& asker, const AcquireRequest& what) const {
  const Permit* const held = FindNest(asker, what);
  if (held == nullptr) return std::nullopt;
  return ViewPermit(*held);
}

absl::Status PermitPool::Push(Waiter waiter) {
  if (queue_.size() >= max_waiters_) return FullQueue(queue_.size());
  queue_.Push(std::move(waiter));
  return absl::OkStatus();
}

bool PermitPool::MayGo(const PoolStep& step, uint64_t number) {
  const bool may = queue_
                       .NextIf(
                           step.now, [&](const Waiter& waiter) { return Judge(waiter, step.gangs); }, number)
                       .has_value();
  NoteHeld(step);
  return may;
}

void PermitPool::TakeTurn(const PoolStep& step, uint64_t number) {
  const std::optional<WaitQueue::Turn> turn = queue_.NextIf(
      step.now, [&](const Waiter& waiter) { return Judge(waiter, step.gangs); }, number);
  BERTH_INVARIANT(turn.has_value());
  queue_.Take(*turn);
}

uint64_t PermitPool::PositionOf(uint64_t number) const {
  uint64_t position = 0;
  queue_.Walk([&](const Waiter& waiter) {
    ++position;
    return waiter.number != number;
  });
  return position;
}

bool PermitPool::KeptFrom(uint64_t number, Gangs* gangs) const {
  return queue_.KeptFrom(number, [&](const Waiter& waiter) {
    if (waiter.absent) return WaitQueue::Verdict::kAside;
    return waiter.gang.empty() ? Judge(waiter, nullptr) : gangs->JudgeParts(waiter);
  });
}

void PermitPool::Attach(const PoolStep& step, uint64_t number) {
  queue_.Attach(number);
  const Waiter& waiter = *queue_.Find(number);
  // Its session may have been granted a permit meanwhile.
  const Permit* const held = waiter.gang.empty() ? FindNest(waiter.asker, waiter.what) : nullptr;
  if (held == nullptr) return;
  Tell(step, waiter.request, Nest(permits_.at(held->view.id), waiter.what));
  queue_.Remove(number);
}

bool PermitPool::Holds(SessionId session, AcquisitionId acquisition) const {
  const auto found = acquisitions_.find(acquisition);
  return found != acquisitions_.end() && permits_.at(found->second).view.session == session;
}

ReleaseResult PermitPool::Release(const PoolStep& step, AcquisitionId acquisition, LeaseEnd how) {
  const auto found = acquisitions_.find(acquisition);
  BERTH_INVARIANT(found != acquisitions_.end());
  const auto at = permits_.find(found->second);
  if (at->second.kept == acquisition) EndKeeping(at->second);
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
  if (leases_ != nullptr && how != LeaseEnd::kUnseen) leases_->NoteEnd(now, LeaseOf(permit), how);
  EndKeeping(permit);
  EndHold(permit);
  // How long one is held that is kept between its uses the daemon does not see.
  if (!permit.was_kept) {
    const absl::Duration held = std::max(now - permit.view.granted_at, absl::ZeroDuration());
    const bool first = mean_hold_ == absl::ZeroDuration();
    mean_hold_ = first ? held : mean_hold_ + (held - mean_hold_) / kHoldsRemembered;
    NoteFigures();
  }
  if (permit.view.exclusive) --exclusive_out_;
  if (const auto& device = permit.view.device; device.has_value()) {
    placement_->Give(device->ordinal, permit.view.session, permit.view.declared);
    const auto share = shares_.out.find(device->ordinal);
    share->second -= permit.view.units;
    if (share->second == 0) shares_.out.erase(share);
  }
  while (!permit.acquisitions.empty()) EndAcquisition(permit, *permit.acquisitions.begin());
  Note(permit);
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
  NoteFigures();
  Return(step.now, at, how);
  Serve(step);
  return view;
}

absl::Time PermitPool::next_deadline() const {
  return std::min({queue_.next_deadline(), next_hold(), next_look()});
}

void PermitPool::Expire(const PoolStep& step, std::vector<PermitView>* revoked,
                        std::vector<PermitView>* overdue) {
  ExpireHolds(step, revoked, overdue);
  const std::vector<WaitQueue::Expired> expired = queue_.TakeExpired(step.now);
  for (const auto& [waiter, position] : expired) Tell(step, waiter.request, TimedOut(waiter.what, position));
  // Units may have been kept for one that left.
  if (!expired.empty()) Serve(step);
  if (next_look() <= step.now) TakeIdleBack(step);
}

void PermitPool::Change(const PoolStep& step, const PoolChange& change) {
  ApplyChange(change, &config_);
  if (change.configured) ApplyChange(change, &configured_);
  ApplyConfig();
  // Who is held past the warning is looked at anew.
  fresh_.merge(overdue_);
  TakeIdleBack(step);
  Reconsider(step);
}

void PermitPool::Reconsider(const PoolStep& step) {
  const auto never = [this](const Waiter& waiter) {
    return waiter.gang.empty() && !CheckCaps(waiter.asker.tenant, waiter.what).ok();
  };
  for (const Waiter& waiter : queue_.TakeIf(never)) {
    Tell(step, waiter.request, CheckCaps(waiter.asker.tenant, waiter.what));
  }
  Serve(step);
}

void PermitPool::Tell(const PoolStep& step, const RequestId& request, absl::StatusOr<AcquireResult> result) {
  if (result.ok()) {
    step.outcomes->push_back({request, Response(*std::move(result))});
  } else {
    NoteRefused();
    step.outcomes->push_back({request, result.status()});
  }
}

}  // namespace berth::core
