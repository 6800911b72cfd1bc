// Why a pool refuses: in words and figures.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/permit_pool.h"

namespace berth::core {
namespace {

// Holders named in a refusal.
constexpr size_t kNamedHolders = 3;

}  // namespace

absl::Status PermitPool::FullQueue(uint64_t waiting) const {
  return RefuseWithRetry(
      Reason::kLimit, absl::Seconds(1), "permit pool {pool}: {current} wait, limit {limit}",
      {{"what", "waiters_per_pool"}, {"pool", config_.name}, {"current", waiting}, {"limit", max_waiters_}});
}

absl::Status PermitPool::CheckCaps(const Tenant& tenant, const AcquireRequest& what) const {
  BERTH_RETURN_IF_ERROR(CheckUnits(tenant, what.units));
  if (what.device.pick == DevicePick::kNone) return absl::OkStatus();
  return placement_->Check(config_.name, AskOf(what));
}

absl::Status PermitPool::CheckUnits(const Tenant& tenant, uint64_t units) const {
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
  if (!QuotaAllows(asker.tenant, what.units)) return tenants_->Lacking(asker.tenant, config_.name, what.units);
  std::vector<Figure> figures = {{"pool", config_.name},
                                 {"asked", what.units},
                                 {"out", out_},
                                 {"cap", config_.cap},
                                 {"holders", NameHolders(asker)}};
  if (what.device.pick == DevicePick::kNone || !MayHaveUnits(what.units, what.exclusive, what.client_cap)) {
    return Refuse(Reason::kNoPermit,
                  "permit pool {pool}: asked {asked}, {out} of {cap} out; held by {holders}", figures);
  }
  if (placement_->OnlyOld(what.device)) {
    return Refuse(Reason::kNoPermit,
                  "permit pool {pool}: asked {asked}, {out} of {cap} out; what is free on the devices was "
                  "last read too "
                  "long ago to go by; held by {holders}",
                  figures);
  }
  // The pool has the units; what lacks is a device.
  figures.emplace_back("device", what.device.pick == DevicePick::kNamed ? what.device.uuid : "of any kind");
  figures.emplace_back("bytes", std::max(what.device.declared, what.device.min_free).count());
  figures.emplace_back("free", placement_->MostFree(what.device).count());
  figures.emplace_back("lacking", placement_->Lacking(AskOf(what)));
  return Refuse(
      Reason::kNoPermit,
      "permit pool {pool}: asked {asked}, {out} of {cap} out; no device {device} that serves has {bytes} bytes "
      "free and room in the pool: the most is {free} ({lacking}); held by {holders}", figures);
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
