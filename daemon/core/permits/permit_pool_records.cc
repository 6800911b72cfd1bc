// Views of a pool, the check of its invariants, and its records.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/permits/permit_pool.h"
#include "daemon/core/permits/pool_change.h"

namespace berth::core {
namespace {

// Number of holders named in the view of a waiter.
constexpr size_t kViewedHolders = 8;

}  // namespace

// ---- Views of a pool, and the check of its invariants --------------------------------------------------------

PoolView PermitPool::View() const {
  PoolView view{.config = config_,
                .out = out_,
                .out_without_device = out_without_device_,
                .holders = permits_.size(),
                .waiters = queue_.size(),
                .stopped = queue_.detached(),
                .peak = peak_,
                .granted_total = granted_total_,
                .refused_total = refused_total_,
                .revoked_total = revoked_total_,
                .exclusive = exclusive_out_ > 0,
                .mean_hold = mean_hold_};
  view.overdue = overdue_.size();
  for (const auto& [channel, id] : cached_) view.cached += ViewPermit(permits_.at(id)).cached ? 1 : 0;
  return view;
}

PermitView PermitPool::ViewPermit(const Permit& permit) const {
  PermitView view = permit.view;
  view.depth = permit.acquisitions.size();
  view.overdue = overdue_.contains({permit.held_since, view.id});
  view.cached = permit.permit_slot != nullptr && permit.permit_slot->Look(view.id.value()).idle;
  return view;
}

LeaseRecord PermitPool::LeaseOf(const Permit& permit) {
  const PermitView& view = permit.view;
  LeaseRecord lease{.kind = LeaseKind::kPermit,
                    .id = view.id.value(),
                    .session = view.session,
                    .tenant = permit.tenant,
                    .process = view.process,
                    .label = view.label,
                    .pool = view.pool,
                    .units = view.units,
                    .bytes = view.declared,
                    .granted_at = view.granted_at,
                    .waited = view.waited};
  if (view.device.has_value()) lease.devices = view.device->uuid;
  return lease;
}

void PermitPool::AddLeases(std::vector<LeaseRecord>* leases) const {
  for (const auto& [id, permit] : permits_) leases->push_back(LeaseOf(permit));
}

WaiterView PermitPool::ViewWaiter(const Waiter& waiter, uint64_t position) const {
  return WaiterView{.number = waiter.number,
                    .pool = config_.name,
                    .units = waiter.what.units,
                    .position = position,
                    .session = waiter.requester.session,
                    .holder_key = waiter.what.holder_key,
                    .label = waiter.what.label,
                    .priority = waiter.what.priority,
                    .exclusive = waiter.what.exclusive,
                    .gang = waiter.gang,
                    .device = waiter.what.device,
                    .since = waiter.since,
                    .process = waiter.requester.process,
                    .stopped = waiter.detached};
}

uint64_t PermitPool::UnitsOf(SessionId session) const {
  uint64_t units = 0;
  for (auto it = by_holder_.lower_bound({session, ""}); it != by_holder_.end() && it->first.first == session;
       ++it) {
    units += permits_.at(it->second).view.units;
  }
  return units;
}

PoolUse PermitPool::CountUse(Wanted wanted) const {
  PoolUse use{.pool = config_.name,
              .cap = config_.cap,
              .all = {.units = out_, .holders = permits_.size(), .waiters = queue_.size()}};
  for (const auto& [id, permit] : permits_) {
    if (!wanted(permit.view.session)) continue;
    use.visible.units += permit.view.units;
    ++use.visible.holders;
  }
  use.visible.waiters = queue_.CountIf(wanted);
  return use;
}

void PermitPool::AddPermits(PermitId after, uint64_t most, Wanted wanted,
                            std::vector<PermitView>* views) const {
  uint64_t added = 0;
  for (auto it = permits_.upper_bound(after); it != permits_.end() && added < most; ++it) {
    const Permit& permit = it->second;
    if (!wanted(permit.view.session)) continue;
    views->push_back(ViewPermit(permit));
    ++added;
  }
}

void PermitPool::AddWaiters(uint64_t most, Wanted wanted, std::vector<WaiterView>* views) const {
  uint64_t position = 0;
  queue_.Walk([&](const Waiter& waiter) {
    ++position;
    if (views->size() >= most) return false;
    if (!wanted(waiter.requester.session)) return true;
    views->push_back(ViewWaiter(waiter, position));
    return true;
  });
}

WaitCause PermitPool::CauseOf(const Waiter& waiter, Gangs* gangs) const {
  const AcquireRequest& what = waiter.what;
  if (waiter.detached) return WaitCause::kStopped;
  if (paused_) return WaitCause::kStopping;
  if (!TenantMayHave(waiter.requester.tenant, what.units)) return WaitCause::kTenantCap;
  if (!QuotaAllows(waiter.requester.tenant, what.units)) return WaitCause::kTenantQuota;
  if (exclusive_out_ > 0) return WaitCause::kExclusiveOut;
  if (what.exclusive && out_ > 0) return WaitCause::kOthersOut;
  if (waiter.gang.empty() && PartOf(waiter).without_device > CapacityWithoutDevice()) return WaitCause::kNoDevice;
  if (out_ >= config_.cap || what.units > config_.cap - out_) return WaitCause::kUnits;
  if (!MayHaveUnits(what.units, what.exclusive, what.client_cap)) return WaitCause::kClientCap;
  if (ReservedFrom(waiter.number, gangs)) return WaitCause::kReservedForAnother;
  // This pool has the units for its part of the gang.
  if (!waiter.gang.empty()) return WaitCause::kElsewhere;
  if (Judge(waiter, gangs) == WaitQueue::Verdict::kFits) return WaitCause::kReservedForAnother;
  return placement_->OnlyOld(what.device) ? WaitCause::kOldReading : WaitCause::kDevice;
}

std::optional<WaitView> PermitPool::Explain(uint64_t number, const Tenant* viewer, Gangs* gangs) const {
  const Waiter* const waiter = queue_.Find(number);
  if (waiter == nullptr || (viewer != nullptr && *viewer != waiter->requester.tenant)) return std::nullopt;
  WaitView view{.pool = View(), .cause = CauseOf(*waiter, gangs), .passes = waiter->passes};
  double charged = 0;
  uint64_t position = 0;
  queue_.Walk([&](const Waiter& before) {
    ++position;
    charged += static_cast<double>(before.charge);
    if (before.number == number) return false;
    view.units_ahead += before.what.units;
    return true;
  });
  view.waiter = ViewWaiter(*waiter, position);
  // The release of permits does not help if a device or an operator blocks the waiter.
  const bool stands = view.cause == WaitCause::kStopping || view.cause == WaitCause::kStopped ||
                      view.cause == WaitCause::kOldReading ||
                      (waiter->what.device.pick != DevicePick::kNone &&
                       !placement_->AllServe({AskOf(waiter->what)}, {}));
  if (mean_hold_ > absl::ZeroDuration() && !stands) {
    view.estimate = mean_hold_ * (charged / static_cast<double>(config_.cap));
    absl::Time newest = absl::InfinitePast();
    for (const auto& [id, permit] : permits_) newest = std::max(newest, permit.view.granted_at);
    if (!permits_.empty()) view.estimate_until = newest + mean_hold_;
  }
  const auto out = out_by_tenant_.find(waiter->requester.tenant);
  view.tenant_out = out == out_by_tenant_.end() ? 0 : out->second;
  for (const auto& [id, permit] : permits_) {
    if (view.holders.size() == kViewedHolders) break;
    PermitView holder = ViewPermit(permit);
    // Other tenants' processes and labels are not disclosed.
    if (viewer != nullptr && permit.tenant != *viewer) {
      holder = {.pool = holder.pool,
                .units = holder.units,
                .exclusive = holder.exclusive,
                .overdue = holder.overdue,
                .cached = holder.cached,
                .granted_at = holder.granted_at};
    }
    view.holders.push_back(std::move(holder));
  }
  return view;
}

absl::Status PermitPool::CheckInvariants(Gangs* gangs) const {
  const auto broken = [this](absl::string_view what) {
    return absl::InternalError(absl::StrCat("pool ", config_.name, ": ", what));
  };
  uint64_t units = 0;
  uint64_t depth = 0;
  uint64_t adoptable = 0;
  uint64_t exclusive = 0;
  uint64_t without_device = 0;
  uint64_t one_gang = 0;
  std::map<uint32_t, uint64_t> by_device;
  absl::flat_hash_map<Account, uint64_t> by_tenant;
  for (const auto& [id, permit] : permits_) {
    units += permit.view.units;
    by_tenant[permit.tenant] += permit.view.units;
    depth += permit.acquisitions.size();
    exclusive += permit.view.exclusive ? 1 : 0;
    one_gang += permit.view.gang != 0 && permit.view.gang == permits_.begin()->second.view.gang ? 1 : 0;
    if (permit.view.device.has_value()) {
      by_device[permit.view.device->ordinal] += permit.view.units;
    } else {
      without_device += permit.view.units;
    }
    adoptable += permit.view.adoptable ? 1 : 0;
    if (permit.acquisitions.empty()) return broken("a permit without an acquisition is out");
    for (const AcquisitionId acquisition : permit.acquisitions) {
      const auto found = acquisitions_.find(acquisition);
      if (found == acquisitions_.end() || found->second != id)
        return broken("an acquisition belongs to another permit");
    }
    const auto holder = by_holder_.find({permit.view.session, permit.view.holder_key});
    if (holder == by_holder_.end() || holder->second != id) return broken("a permit does not belong to its holder");
    if (permit.view.adoptable && !adoptable_.contains({permit.view.session, id}))
      return broken("an adoption is lost");
  }
  BERTH_RETURN_IF_ERROR(CheckCached());
  BERTH_RETURN_IF_ERROR(queue_.CheckInvariants());
  if (exclusive != exclusive_out_) return broken("an exclusive permit is miscounted");
  if (exclusive > 0 && permits_.size() > 1 && one_gang < permits_.size()) {
    return broken("an exclusive permit is not the only one");
  }
  if (by_device != shares_.out) return broken("the units out on a device are miscounted");
  if (units != out_) return broken(absl::StrCat(out_, " out, but the permits sum to ", units));
  if (without_device != out_without_device_) return broken("the units out without a device are miscounted");
  if (by_tenant != out_by_tenant_) return broken("the units of tenants are miscounted");
  if (depth != acquisitions_.size() || permits_.size() != by_holder_.size() ||
      adoptable != adoptable_.size()) {
    return broken("an index holds more than the permits");
  }
  Arbiter arbiter(*this, gangs);
  if (placement_shape_ == placement_->shape()) BERTH_RETURN_IF_ERROR(queue_.CheckStalls(arbiter));
  if (queue_.AnyoneIdle([&](const Waiter& waiter) { return Judge(waiter, gangs); })) {
    return broken("a waiter could be granted");
  }
  absl::Status waiting = absl::OkStatus();
  uint64_t waiters = 0;
  queue_.Walk([&](const Waiter& waiter) {
    ++waiters;
    const SessionId session = waiter.requester.session;
    if (!waiter.gang.empty()) return true;
    if (waiter.detached) return true;
    if (by_holder_.contains({session, waiter.what.holder_key})) waiting = broken("a waiter could nest");
    if (const absl::Status never = CheckCaps(waiter.requester.tenant, waiter.what); !never.ok()) {
      waiting = broken(absl::StrCat("a waiter can never be granted: ", never.message()));
    }
    return true;
  });
  return waiters == queue_.size() ? waiting : broken("the order of the queue lacks a waiter");
}

// ---- Persistence of a pool across broker restarts ------------------------------------------------------------

void PermitPool::ListRecords(std::vector<RecordKey>* keys) const {
  keys->push_back(KeyOf(RecordKind::kPool, number_));
  keys->push_back(KeyOf(RecordKind::kPoolCounters, number_));
  for (const auto& [id, permit] : permits_) {
    keys->push_back(KeyOf(RecordKind::kPermit, id.value(), number_));
    for (const AcquisitionId acquisition : permit.acquisitions) {
      if (acquisition != permit.first) keys->push_back(KeyOf(RecordKind::kAcquisition, acquisition.value(), number_));
    }
  }
  queue_.ListRecords(keys);
}

bool PermitPool::WriteRecord(const RecordKey& key, ArchiveWriter& archive) const {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kPool:
      archive(config_, configured_);
      return true;
    case RecordKind::kPoolCounters:
      archive(queue_.clocks().now, peak_, granted_total_, refused_total_, revoked_total_, mean_hold_);
      archive.Since(3, queue_.clocks().searched);
      return true;
    case RecordKind::kPermit: {
      const auto found = permits_.find(PermitId(key.id));
      if (found == permits_.end()) return false;
      archive(found->second, found->second.permit_slot != nullptr);
      return true;
    }
    case RecordKind::kAcquisition: {
      const auto found = acquisitions_.find(AcquisitionId(key.id));
      if (found == acquisitions_.end() || permits_.at(found->second).first == found->first) return false;
      archive(found->second);
      return true;
    }
    default:
      return queue_.WriteRecord(key, archive);
  }
}

PoolConfig PermitPool::ReadConfig(ArchiveReader archive) {
  PoolConfig config;
  archive(config);
  return config;
}

void PermitPool::ReadRecord(const RecordKey& key, ArchiveReader& archive) {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kPool: {
      PoolConfig config, configured;
      archive(config, configured);
      if (archive.failed() || config.cap == 0 || config.name != config_.name) return archive.Fail();
      // Operators' changes stay, except where the configuration itself has changed.
      PoolChange change = Difference(configured, configured_);
      if (configured_.cap_by_devices) {
        // Another number of devices is no change of the configuration.
        if (config.cap != configured.cap) change.cap.reset();
        if (config.no_device_cap != configured.no_device_cap) change.no_device_cap.reset();
      }
      ApplyChange(change, &config);
      config_ = std::move(config);
      return ApplyConfig();
    }
    case RecordKind::kPoolCounters: {
      WaitQueue::Clocks clocks;
      archive(clocks.now, peak_, granted_total_, refused_total_, revoked_total_, mean_hold_);
      archive.Since(3, clocks.searched);
      return queue_.RestoreClocks(clocks);
    }
    case RecordKind::kPermit:
      return ReadPermit(PermitId(key.id), archive);
    case RecordKind::kAcquisition: {
      PermitId id;
      archive(id);
      const auto permit = permits_.find(id);
      const AcquisitionId acquisition(key.id);
      if (permit == permits_.end() || !acquisitions_.emplace(acquisition, id).second) return archive.Fail();
      permit->second.acquisitions.insert(acquisition);
      permit->second.restored.insert(acquisition);
      return;
    }
    default:
      queue_.ReadRecord(key, archive);
  }
}

void PermitPool::ReadPermit(PermitId id, ArchiveReader& archive) {
  Permit permit;
  bool lent = false;
  archive(permit, lent);
  permit.view.id = id;
  permit.view.pool = config_.name;
  const auto& device = permit.view.device;
  if (archive.failed() || (device.has_value() && !placement_->Knows(device->ordinal)) ||
      by_holder_.contains({permit.view.session, permit.view.holder_key})) {
    return archive.Fail();
  }
  if (permit.first) {
    permit.acquisitions.insert(permit.first);
    if (!acquisitions_.emplace(permit.first, id).second) return archive.Fail();
  }
  Permit& restored = Insert(std::move(permit));
  const PermitView& view = restored.view;
  // A gang's exclusive permits are charged once, with the first.
  const bool charged = view.gang == 0 || !view.exclusive || view.holder_key.find('#') == std::string::npos;
  const uint64_t whole = charged ? config_.cap : 0;
  restored.untaken = queue_.RestoredCharge(restored.tenant, view.exclusive ? whole : view.units);
  if (!lent || permit_slots_ == nullptr) return;
  restored.permit_slot = permit_slots_->LendAgain(restored.cached_by);
  if (restored.permit_slot != nullptr) {
    cached_.emplace(restored.cached_by, id);
  } else {
    // The fence page is gone: the permit becomes an ordinary permit.
    Mark(restored);
  }
}

void PermitPool::FinishRestoring() {
  const std::map<ChannelId, PermitId> cached = cached_;
  for (const auto& [channel, id] : cached) {
    const auto at = permits_.find(id);
    Permit& permit = at->second;
    switch (permit.permit_slot->StateOf(id.value())) {
      case PermitSlot::Lent::kYes:
        break;
      case PermitSlot::Lent::kEnded:
        EndCaching(permit);
        break;
      case PermitSlot::Lent::kTakenBack:
        EndCaching(permit, /*taken_back=*/true);
        EndAcquisition(permit, permit.cached);
        // History writers do not find the permit among the outstanding ones and take that as its end.
        if (permit.acquisitions.empty()) Return(permit.held_since, at, LeaseEnd::kUnseen);
        break;
    }
  }
  // The waiting flag of processes that cache permits may have to change.
  wanted_ = !cached_.empty() && NeedsUnits();
  looked_at_ = absl::InfinitePast();
  for (const auto& [channel, id] : cached_) permits_.at(id).permit_slot->SetWaiting(wanted_);
}

}  // namespace berth::core
