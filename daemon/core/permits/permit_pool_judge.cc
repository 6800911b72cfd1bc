// Verdicts on waiters, and the stalls of those that cannot be granted now.

#include <algorithm>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "daemon/core/permits/permit_pool.h"

namespace berth::core {
namespace {

WaitQueue::Verdict ToQueue(Placement::Verdict verdict) {
  switch (verdict) {
    case Placement::Verdict::kFits:
      return WaitQueue::Verdict::kFits;
    case Placement::Verdict::kWaits:
      return WaitQueue::Verdict::kWaits;
    case Placement::Verdict::kSkipped:
      break;
  }
  return WaitQueue::Verdict::kSkipped;
}

// A value above every count of outstanding units.
constexpr uint64_t kAllOut = UINT64_MAX;

// Returns the most units that may be out when a request for `units` of a pool of `cap` is granted; empty if never.
std::optional<uint64_t> MostOut(uint64_t cap, uint64_t units, bool exclusive, uint64_t client_cap) {
  if (units > cap) return std::nullopt;
  uint64_t most = exclusive ? 0 : cap - units;
  if (client_cap != 0) most = std::min(most, client_cap - 1);
  return most;
}

// Number of holders named in a refusal.
constexpr size_t kNamedHolders = 3;

std::string NameOf(const DeviceConstraint& constraint) {
  return constraint.pick == DevicePick::kNamed ? constraint.uuid : "of any kind";
}

}  // namespace

uint64_t PermitPool::CapacityOf(const Account& tenant) const {
  if (config_.tenant_cap == 0) return UINT64_MAX;
  const auto found = out_by_tenant_.find(tenant);
  const uint64_t out = found == out_by_tenant_.end() ? 0 : found->second;
  return config_.tenant_cap - std::min(out, config_.tenant_cap);
}

uint64_t PermitPool::CapacityWithoutDevice() const {
  if (config_.no_device_cap == 0) return UINT64_MAX;
  return config_.no_device_cap - std::min(out_without_device_, config_.no_device_cap);
}

PermitPool::GangPart PermitPool::PartOf(const Waiter& waiter) {
  const AcquireRequest& what = waiter.what;
  return {.tenant = waiter.requester.tenant,
          .units = what.units,
          .exclusive = what.exclusive,
          .client_cap = what.client_cap,
          .without_device = what.device.pick == DevicePick::kNone ? what.units : 0};
}

Placement::Ask PermitPool::AskOf(const AcquireRequest& what) const {
  return {.constraint = what.device, .units = what.units, .shares = &shares_};
}

WaitQueue::Verdict PermitPool::Judge(const Waiter& waiter, Gangs* gangs) const {
  if (waiter.detached) return WaitQueue::Verdict::kSkipped;
  if (!waiter.gang.empty()) return gangs->Judge(waiter);
  const AcquireRequest& what = waiter.what;
  const WaitQueue::Verdict units = JudgeUnits(PartOf(waiter));
  if (units != WaitQueue::Verdict::kFits || what.device.pick == DevicePick::kNone) return units;
  // If no released unit helps the waiter, other waiters need not wait for it.
  return ToQueue(placement_->Choose(AskOf(what)).verdict);
}

WaitQueue::Verdict PermitPool::JudgeUnits(const GangPart& part) const {
  if (!TenantMayHave(part.tenant, part.units) || !QuotaAllows(part.tenant, part.units)) {
    return WaitQueue::Verdict::kSkipped;
  }
  // Permits with a device need not wait for this waiter.
  if (part.without_device > CapacityWithoutDevice()) return WaitQueue::Verdict::kSkipped;
  return MayHaveUnits(part.units, part.exclusive, part.client_cap) ? WaitQueue::Verdict::kFits
                                                                   : WaitQueue::Verdict::kWaits;
}

bool PermitPool::MayHaveUnits(uint64_t units, bool exclusive, uint64_t client_cap) const {
  if (paused_ || exclusive_out_ > 0) return false;
  if (exclusive && out_ > 0) return false;
  return out_ < config_.cap && units <= config_.cap - out_ && (client_cap == 0 || out_ < client_cap);
}

bool PermitPool::ReservedFrom(uint64_t number, Gangs* gangs) const {
  const auto judge = [&](const Waiter& waiter) {
    if (waiter.detached) return WaitQueue::Verdict::kSkipped;
    return waiter.gang.empty() ? Judge(waiter, nullptr) : gangs->JudgeParts(waiter);
  };
  // The next search reopens all waiters.
  if (placement_shape_ != placement_->shape()) return queue_.ReservedFrom(number, judge);
  Arbiter arbiter(*this, gangs);
  return queue_.ReservedFrom(number, judge, arbiter);
}

Stalls PermitPool::WhyNot(const Waiter& waiter, WaitQueue::Verdict goal, Gangs* gangs) const {
  if (waiter.detached) return StalledForGood();
  if (!waiter.gang.empty()) return gangs->WhyNot(waiter, goal);
  const AcquireRequest& what = waiter.what;
  const GangPart part = PartOf(waiter);
  // Device capacity returns less often than units do, so it is reported first.
  Stalls stalls;
  if (what.device.pick != DevicePick::kNone) {
    const bool going = goal == WaitQueue::Verdict::kFits;
    stalls = placement_->WhyNot(AskOf(what), going ? Placement::Verdict::kFits : Placement::Verdict::kWaits);
    if (going && !stalls.empty()) return stalls;
    // Without free units the verdict would be a wait for units.
    const std::optional<uint64_t> most = MostOut(config_.cap, what.units, what.exclusive, what.client_cap);
    if (!stalls.empty() && most.has_value() && Out() <= *most) {
      stalls.push_back({.gauge = {.kind = Gauge::Kind::kOut, .of = this}, .threshold = *most + 1});
      return stalls;
    }
  }
  return WhyNoUnits(part);
}

Stalls PermitPool::WhyNoUnits(const GangPart& part) const {
  if (!TenantMayHave(part.tenant, part.units) || !QuotaAllows(part.tenant, part.units)) {
    return {{.gauge = {.kind = Gauge::Kind::kTenantUnits, .of = this}, .threshold = part.units}};
  }
  if (part.without_device > CapacityWithoutDevice()) {
    return {{.gauge = {.kind = Gauge::Kind::kUnitsWithoutDevice, .of = this}, .threshold = part.without_device}};
  }
  if (MayHaveUnits(part.units, part.exclusive, part.client_cap)) return {};
  const std::optional<uint64_t> most = MostOut(config_.cap, part.units, part.exclusive, part.client_cap);
  if (!most.has_value()) return StalledForGood();
  return {{.gauge = {.kind = Gauge::Kind::kUnits, .of = this}, .threshold = kAllOut - *most}};
}

uint64_t PermitPool::Out() const { return paused_ || exclusive_out_ > 0 ? kAllOut : out_; }

uint64_t PermitPool::Read(const Account& tenant, Gauge::Kind kind) const {
  switch (kind) {
    case Gauge::Kind::kUnits:
      return kAllOut - Out();
    case Gauge::Kind::kOut:
      return Out();
    case Gauge::Kind::kUnitsWithoutDevice:
      return CapacityWithoutDevice();
    default:
      return std::min(CapacityOf(tenant), tenants_ == nullptr ? UINT64_MAX : tenants_->CapacityOf(tenant));
  }
}

uint64_t PermitPool::Arbiter::Read(const Account& tenant, const Gauge& gauge) {
  switch (gauge.kind) {
    case Gauge::Kind::kNever:
      return 0;
    case Gauge::Kind::kUnits:
    case Gauge::Kind::kOut:
    case Gauge::Kind::kTenantUnits:
    case Gauge::Kind::kUnitsWithoutDevice:
      return static_cast<const PermitPool*>(gauge.of)->Read(tenant, gauge.kind);
    case Gauge::Kind::kDeviceNow:
    case Gauge::Kind::kDeviceEver:
    case Gauge::Kind::kDeviceShare:
      return pool_.placement_->Read(gauge);
    case Gauge::Kind::kQuota:
    case Gauge::Kind::kHeld:
    case Gauge::Kind::kBytes:
    case Gauge::Kind::kReserved:
      break;
  }
  return gangs_->Read(tenant, gauge);
}

uint64_t PermitPool::Arbiter::VersionOf(Gauge::Kind kind) {
  switch (kind) {
    case Gauge::Kind::kNever:
      return 1;
    case Gauge::Kind::kDeviceNow:
    case Gauge::Kind::kDeviceEver:
      return pool_.placement_->version();
    case Gauge::Kind::kBytes:
    case Gauge::Kind::kReserved:
      return gangs_->VersionOf(kind);
    case Gauge::Kind::kUnits:
    case Gauge::Kind::kOut:
    case Gauge::Kind::kTenantUnits:
    case Gauge::Kind::kUnitsWithoutDevice:
    case Gauge::Kind::kQuota:
    case Gauge::Kind::kDeviceShare:
    case Gauge::Kind::kHeld:
      break;
  }
  return StallBoard::kUnknown;
}

void PermitPool::OpenChanged() {
  if (std::exchange(placement_shape_, placement_->shape()) != placement_->shape()) queue_.Reopen();
}

// ---- Refusals of a pool, with their values -------------------------------------------------------------------

absl::Status PermitPool::CheckCaps(const Account& tenant, const AcquireRequest& what) const {
  BERTH_RETURN_IF_ERROR(CheckUnits(tenant, what.units));
  if (what.device.pick == DevicePick::kNone) return CheckWithoutDevice(what.units);
  return placement_->Check(config_.name, AskOf(what));
}

absl::Status PermitPool::CheckUnits(const Account& tenant, uint64_t units) const {
  if (units > config_.cap) {
    return Refuse(Reason::kOverCap,
                  "permit pool {pool}: asked {asked}, cap {cap}: request at most {cap}, or have the cap raised",
                  {{"pool", config_.name}, {"asked", units}, {"cap", config_.cap}});
  }
  if (config_.tenant_cap != 0 && units > config_.tenant_cap) {
    return Refuse(Reason::kOverCap,
                  "permit pool {pool}: asked {asked}, cap of one tenant {cap}: request at most {cap}, or have the "
                  "pool's tenant_cap raised",
                  {{"pool", config_.name}, {"asked", units}, {"cap", config_.tenant_cap}});
  }
  return tenants_ == nullptr ? absl::OkStatus() : tenants_->CheckUnits(tenant, config_.name, units);
}

absl::Status PermitPool::CheckWithoutDevice(uint64_t units) const {
  if (config_.no_device_cap == 0 || units <= config_.no_device_cap) return absl::OkStatus();
  return Refuse(Reason::kOverCap,
                "permit pool {pool}: asked {asked} without a device, no_device_cap {cap}: request devices, or have the "
                "pool's no_device_cap raised",
                {{"pool", config_.name}, {"asked", units}, {"cap", config_.no_device_cap}});
}

std::string PermitPool::WhyDenied(const Account& tenant, const AcquireRequest& what, uint64_t without_device) const {
  if (paused_) return "an operator is stopping the daemon, which grants no more permits";
  if (!TenantMayHave(tenant, what.units)) {
    return absl::StrCat("the tenant has ", config_.tenant_cap - CapacityOf(tenant), " of the ", config_.tenant_cap,
                        " units that the pool's tenant_cap allows");
  }
  if (!QuotaAllows(tenant, what.units)) return "the tenant has reached its quota of units over all pools";
  if (exclusive_out_ > 0) return "an exclusive permit is out";
  if (what.exclusive && out_ > 0) return "the request is exclusive, and other permits are out";
  if (without_device > CapacityWithoutDevice()) {
    return absl::StrCat(out_without_device_, " of ", config_.no_device_cap,
                        " units without a device are out: request a device");
  }
  if (out_ >= config_.cap || what.units > config_.cap - out_) return "";
  if (what.client_cap != 0 && out_ >= what.client_cap) {
    return absl::StrCat("the client's environment allows ", what.client_cap,
                        " (BERTH_GPU_TEST_CONCURRENCY, REALIZAR_GPU_TEST_CONCURRENCY)");
  }
  if (what.device.pick == DevicePick::kNone || placement_->Choose(AskOf(what)).verdict == Placement::Verdict::kFits) {
    return "the free units are reserved for an earlier waiter";
  }
  // Many waiters may expire in one step, so the text does not list what each device lacks.
  if (placement_->OnlyOld(what.device)) return "the last reading of the devices' free bytes is too old";
  return absl::StrCat(placement_->AnyServes(what.device) ? "no serving device " : "no device ", NameOf(what.device),
                      placement_->AnyServes(what.device) ? " has capacity" : " is in service");
}

bool PermitPool::LacksDevice(const AcquireRequest& what) const {
  return what.device.pick != DevicePick::kNone && MayHaveUnits(what.units, what.exclusive, what.client_cap) &&
         placement_->Choose(AskOf(what)).verdict != Placement::Verdict::kFits;
}

absl::Status PermitPool::TimedOut(const Account& tenant, const AcquireRequest& what, uint64_t without_device,
                                  uint64_t position, bool stopped) const {
  const std::string why = stopped ? "the waiting process was stopped, or away since the daemon's restart"
                                  : WhyDenied(tenant, what, without_device);
  std::vector<NamedValue> named_values = {{"pool", config_.name},
                                          {"asked", what.units},
                                          {"out", out_},
                                          {"cap", config_.cap},
                                          {"position", position}};
  if (!why.empty()) named_values.emplace_back("why", why);
  return Refuse(Reason::kWaitTimedOut,
                absl::StrCat("permit pool {pool}: asked {asked}, {out} of {cap} out; ", why.empty() ? "" : "{why}; ",
                             "the wait ended at place {position}"),
                named_values);
}

absl::Status PermitPool::NoPermit(const Requester& requester, const AcquireRequest& what,
                                  uint64_t without_device) const {
  if (!QuotaAllows(requester.tenant, what.units)) return tenants_->Lacking(requester.tenant, config_.name, what.units);
  std::vector<NamedValue> named_values = {{"pool", config_.name},
                                          {"asked", what.units},
                                          {"out", out_},
                                          {"cap", config_.cap},
                                          {"holders", NameHolders(requester)}};
  if (paused_) {
    return Refuse(Reason::kNoPermit,
                  "permit pool {pool}: asked {asked}, {out} of {cap} out; an operator is stopping the daemon, which "
                  "grants no more permits",
                  named_values);
  }
  const bool may_have = TenantMayHave(requester.tenant, what.units);
  if (may_have && exclusive_out_ == 0 && !(what.exclusive && out_ > 0) && without_device > CapacityWithoutDevice()) {
    named_values.emplace_back("without_device", out_without_device_);
    named_values.emplace_back("no_device_cap", config_.no_device_cap);
    return Refuse(
        Reason::kNoPermit,
        "permit pool {pool}: asked {asked}, {without_device} of {no_device_cap} without a device out, {out} of "
        "{cap} in total: request a device; held by {holders}",
        named_values);
  }
  if (!may_have || !LacksDevice(what)) {
    const std::string why = WhyDenied(requester.tenant, what, without_device);
    if (!why.empty()) named_values.emplace_back("why", why);
    return Refuse(Reason::kNoPermit,
                  absl::StrCat("permit pool {pool}: asked {asked}, {out} of {cap} out; ", why.empty() ? "" : "{why}; ",
                               "held by {holders}"),
                  named_values);
  }
  if (placement_->OnlyOld(what.device)) {
    return Refuse(
        Reason::kNoPermit,
        "permit pool {pool}: asked {asked}, {out} of {cap} out; the last reading of the devices' free bytes is "
        "too old; held by {holders}",
        named_values);
  }
  // The pool has the units; a device is missing.
  named_values.emplace_back("device", NameOf(what.device));
  named_values.emplace_back("lacking", placement_->Lacking(AskOf(what)));
  if (!placement_->AnyServes(what.device)) {
    return Refuse(Reason::kNoPermit,
                  "permit pool {pool}: asked {asked}, {out} of {cap} out; no device {device} is in service: {lacking}; "
                  "wait for one, or return one by `berth device undrain` or `berth device enable`; held by {holders}",
                  named_values);
  }
  const Bytes need = std::max(what.device.declared, what.device.min_free);
  if (need == Bytes()) {
    return Refuse(Reason::kNoPermit,
                  "permit pool {pool}: asked {asked}, {out} of {cap} out; no serving device {device} has capacity in "
                  "the pool: {lacking}; held by {holders}",
                  named_values);
  }
  named_values.emplace_back("bytes", need.count());
  named_values.emplace_back("free", placement_->MostFree(what.device).count());
  return Refuse(
      Reason::kNoPermit,
      "permit pool {pool}: asked {asked}, {out} of {cap} out; no serving device {device} has {bytes} bytes free and "
      "capacity in the pool: the most is {free} ({lacking}); held by {holders}",
      named_values);
}

std::string PermitPool::NameHolders(const Requester& requester) const {
  std::vector<std::string> names;
  for (const auto& [id, permit] : permits_) {
    if (names.size() == kNamedHolders) {
      names.push_back(absl::StrCat("and ", permits_.size() - kNamedHolders, " more"));
      break;
    }
    // Other tenants' processes and labels are not disclosed.
    const std::string who = permit.tenant == requester.tenant
                                ? absl::StrCat(permit.view.process.name, "[", permit.view.process.pid, "]",
                                               permit.view.label.empty() ? "" : " ", permit.view.label)
                                : "another tenant";
    names.push_back(absl::StrCat(who, " (", permit.view.units, ")"));
  }
  return names.empty() ? "no holder" : absl::StrJoin(names, ", ");
}

}  // namespace berth::core
