#include "daemon/core/tenant_use.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/error.h"
#include "daemon/core/invariant.h"

namespace berth::core {

template <typename Act>
void TenantUse::Change(const Tenant& tenant, Act act) {
  const auto at = uses_.try_emplace(tenant).first;
  const Use before = at->second;
  act(at->second);
  const bool pressed = Presses(tenant, before);
  const bool presses = Presses(tenant, at->second);
  // With its units one of its own that waits in another pool may go on, or stand aside and let others on.
  changed_ = changed_ || (presses && at->second.units != before.units);
  if (pressed != presses) {
    changed_ = true;
    if (presses) {
      ++pressing_;
    } else {
      --pressing_;
    }
  }
  if (at->second == Use()) uses_.erase(at);
}

void TenantUse::SetQuotas(QuotaTable quotas) {
  quotas_ = std::move(quotas);
  limits_permits_ = quotas_.all.permits.has_value();
  for (const auto* const rows : {&quotas_.users, &quotas_.containers}) {
    for (const auto& [uid, row] : *rows) limits_permits_ = limits_permits_ || row.permits.has_value();
  }
  pressing_ = 0;
  for (const auto& [tenant, use] : uses_) pressing_ += Presses(tenant, use) ? 1 : 0;
  changed_ = true;
}

bool TenantUse::MayHave(const Tenant& tenant, uint64_t units) const {
  if (!limits_permits_) return true;
  const std::optional<uint64_t> limit = QuotaOf(tenant).permits;
  if (!limit.has_value()) return true;
  const uint64_t out = UnitsOf(tenant);
  return out <= *limit && units <= *limit - out;
}

absl::Status TenantUse::CheckUnits(const Tenant& tenant, absl::string_view pool, uint64_t units) const {
  const std::optional<uint64_t> limit = QuotaOf(tenant).permits;
  if (!limit.has_value() || units <= *limit) return absl::OkStatus();
  return Refuse(Reason::kOverCap, "permit pool {pool}: asked {asked}, quota of the tenant over all pools {cap}",
                {{"what", "permits_of_tenant"}, {"pool", pool}, {"asked", units}, {"cap", *limit}});
}

absl::Status TenantUse::Lacking(const Tenant& tenant, absl::string_view pool, uint64_t units) const {
  return Refuse(Reason::kNoPermit,
                "permit pool {pool}: asked {asked}; the tenant has {out} out over all pools, quota {cap}",
                {{"what", "permits_of_tenant"},
                 {"pool", pool},
                 {"asked", units},
                 {"out", UnitsOf(tenant)},
                 {"cap", QuotaOf(tenant).permits.value_or(0)}});
}

void TenantUse::Take(const Tenant& tenant, uint64_t units) {
  Change(tenant, [&](Use& use) { use.units += units; });
}

void TenantUse::Give(const Tenant& tenant, uint64_t units) {
  Change(tenant, [&](Use& use) {
    BERTH_INVARIANT(use.units >= units);
    use.units -= units;
  });
}

absl::Status TenantUse::CheckMayWait(const Tenant& tenant) const {
  const std::optional<uint64_t> limit = QuotaOf(tenant).waiters;
  const uint64_t waiters = WaitersOf(tenant);
  if (!limit.has_value() || waiters < *limit) return absl::OkStatus();
  return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "requests of the tenant that wait: {current}, limit {limit}",
                         {{"what", "waiters_of_tenant"}, {"current", waiters}, {"limit", *limit}});
}

void TenantUse::BeginWait(const Tenant& tenant, bool for_units) {
  Change(tenant, [&](Use& use) {
    ++use.waiters;
    use.unit_waiters += for_units ? 1 : 0;
  });
}

void TenantUse::EndWait(const Tenant& tenant, bool for_units) {
  Change(tenant, [&](Use& use) {
    BERTH_INVARIANT(use.waiters > 0);
    --use.waiters;
    use.unit_waiters -= for_units ? 1 : 0;
  });
}

bool TenantUse::Presses(const Tenant& tenant) const {
  const auto found = uses_.find(tenant);
  return found != uses_.end() && Presses(tenant, found->second);
}

uint64_t TenantUse::UnitsOf(const Tenant& tenant) const {
  const auto found = uses_.find(tenant);
  return found == uses_.end() ? 0 : found->second.units;
}

uint64_t TenantUse::WaitersOf(const Tenant& tenant) const {
  const auto found = uses_.find(tenant);
  return found == uses_.end() ? 0 : found->second.waiters;
}

absl::Status TenantUse::CheckBooks(const Uses& counted) const {
  const auto broken = [](absl::string_view what) { return absl::InternalError(absl::StrCat("tenants: ", what)); };
  if (counted.size() != uses_.size()) return broken("somebody is counted who has nothing, or the other way round");
  uint64_t pressing = 0;
  for (const auto& [tenant, use] : uses_) {
    const auto found = counted.find(tenant);
    if (found == counted.end() || !(found->second == use)) return broken("what one has in all is miscounted");
    pressing += Presses(tenant, use) ? 1 : 0;
  }
  return pressing == pressing_ ? absl::OkStatus() : broken("who presses is miscounted");
}

}  // namespace berth::core
