// Refusals of a pool, with their values.

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

// Number of holders named in a refusal.
constexpr size_t kNamedHolders = 3;

}  // namespace

absl::Status PermitPool::CheckCaps(const Account& tenant, const AcquireRequest& what) const {
  BERTH_RETURN_IF_ERROR(CheckUnits(tenant, what.units));
  if (what.device.pick == DevicePick::kNone) return CheckWithoutDevice(what.units);
  return placement_->Check(config_.name, AskOf(what));
}

absl::Status PermitPool::CheckUnits(const Account& tenant, uint64_t units) const {
  if (units > config_.cap) {
    return Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked}, cap {cap}",
                  {{"pool", config_.name}, {"asked", units}, {"cap", config_.cap}});
  }
  if (config_.tenant_cap != 0 && units > config_.tenant_cap) {
    return Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked}, cap of one tenant {cap}",
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

absl::Status PermitPool::TimedOut(const AcquireRequest& what, uint64_t position) const {
  return Refuse(Reason::kWaitTimedOut,
                "permit pool {pool}: asked {asked}, {out} of {cap} out; the wait ended at place {position}",
                {{"pool", config_.name},
                 {"asked", what.units},
                 {"out", out_},
                 {"cap", config_.cap},
                 {"position", position}});
}

absl::Status PermitPool::NoPermit(const Requester& requester, const AcquireRequest& what) const {
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
  if (what.device.pick == DevicePick::kNone && what.units > CapacityWithoutDevice()) {
    named_values.emplace_back("without_device", out_without_device_);
    named_values.emplace_back("no_device_cap", config_.no_device_cap);
    return Refuse(
        Reason::kNoPermit,
        "permit pool {pool}: asked {asked}, {without_device} of {no_device_cap} without a device out, {out} of "
        "{cap} in total: request a device; held by {holders}",
        named_values);
  }
  if (what.device.pick == DevicePick::kNone || !MayHaveUnits(what.units, what.exclusive, what.client_cap)) {
    return Refuse(Reason::kNoPermit,
                  "permit pool {pool}: asked {asked}, {out} of {cap} out; held by {holders}", named_values);
  }
  if (placement_->OnlyOld(what.device)) {
    return Refuse(
        Reason::kNoPermit,
        "permit pool {pool}: asked {asked}, {out} of {cap} out; the last reading of the devices' free bytes is "
        "too old; held by {holders}",
        named_values);
  }
  // The pool has the units; a device is missing.
  named_values.emplace_back("device", what.device.pick == DevicePick::kNamed ? what.device.uuid : "of any kind");
  named_values.emplace_back("bytes", std::max(what.device.declared, what.device.min_free).count());
  named_values.emplace_back("free", placement_->MostFree(what.device).count());
  named_values.emplace_back("lacking", placement_->Lacking(AskOf(what)));
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
