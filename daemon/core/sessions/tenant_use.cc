#include "daemon/core/sessions/tenant_use.h"

#include <algorithm>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {

template <typename Act>
void TenantUse::Change(const Account& account, Act act) {
  const auto at = uses_.try_emplace(account).first;
  const Use before = at->second;
  act(at->second);
  const bool pressed = Presses(account, before);
  const bool presses = Presses(account, at->second);
  // The change of units may unblock another of the tenant's waiters in another pool, or make it skipped in favour of
  // others.
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
  for (const auto& [account, use] : uses_) pressing_ += Presses(account, use) ? 1 : 0;
  changed_ = true;
}

uint64_t TenantUse::CapacityOf(const Account& account) const {
  if (!limits_permits_) return UINT64_MAX;
  const std::optional<uint64_t> limit = QuotaOf(account).permits;
  if (!limit.has_value()) return UINT64_MAX;
  return *limit - std::min(*limit, UnitsOf(account));
}

absl::Status TenantUse::CheckUnits(const Account& account, absl::string_view pool, uint64_t units) const {
  const std::optional<uint64_t> limit = QuotaOf(account).permits;
  if (!limit.has_value() || units <= *limit) return absl::OkStatus();
  return Refuse(Reason::kOverCap,
                "permit pool {pool}: asked {asked}, quota of the tenant over all pools {cap}: request at most {cap}, "
                "or have the tenant's quota raised",
                {{"what", "permits_of_tenant"}, {"pool", pool}, {"asked", units}, {"cap", *limit}});
}

absl::Status TenantUse::Lacking(const Account& account, absl::string_view pool, uint64_t units) const {
  return Refuse(Reason::kNoPermit,
                "permit pool {pool}: asked {asked}; the tenant has {out} out over all pools, quota {cap}",
                {{"what", "permits_of_tenant"},
                 {"pool", pool},
                 {"asked", units},
                 {"out", UnitsOf(account)},
                 {"cap", QuotaOf(account).permits.value_or(0)}});
}

void TenantUse::Take(const Account& account, uint64_t units) {
  Change(account, [&](Use& use) { use.units += units; });
}

void TenantUse::Give(const Account& account, uint64_t units) {
  Change(account, [&](Use& use) {
    BERTH_INVARIANT(use.units >= units);
    use.units -= units;
  });
}

absl::Status TenantUse::CheckMayWait(const Account& account, const Claimant& claimant, uint64_t weight) const {
  const std::optional<uint64_t> limit = QuotaOf(account).waiters;
  const uint64_t waiters = WaitersOf(account);
  if (!limit.has_value() || waiters < *limit) return waiting_bytes_.Check(claimant, weight);
  return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "waiting requests of the tenant: {current}, limit {limit}",
                         {{"what", "waiters_of_tenant"}, {"current", waiters}, {"limit", *limit}});
}

void TenantUse::BeginWait(const Account& account, const Wait& wait) {
  waiting_bytes_.Take(wait.claimant, wait.weight);
  Change(account, [&](Use& use) {
    ++use.waiters;
    use.unit_waiters += wait.for_units ? 1 : 0;
  });
}

void TenantUse::EndWait(const Account& account, const Wait& wait) {
  waiting_bytes_.Give(wait.claimant, wait.weight);
  Change(account, [&](Use& use) {
    BERTH_INVARIANT(use.waiters > 0);
    --use.waiters;
    use.unit_waiters -= wait.for_units ? 1 : 0;
  });
}

bool TenantUse::Presses(const Account& account) const {
  const auto found = uses_.find(account);
  return found != uses_.end() && Presses(account, found->second);
}

uint64_t TenantUse::UnitsOf(const Account& account) const {
  const auto found = uses_.find(account);
  return found == uses_.end() ? 0 : found->second.units;
}

uint64_t TenantUse::WaitersOf(const Account& account) const {
  const auto found = uses_.find(account);
  return found == uses_.end() ? 0 : found->second.waiters;
}

absl::Status TenantUse::CheckInvariants(const Uses& counted, const SharedCount& waiting_bytes) const {
  const auto broken = [](absl::string_view what) { return absl::InternalError(absl::StrCat("tenants: ", what)); };
  if (!(waiting_bytes == waiting_bytes_)) return broken("the weight of a user's waiting requests is miscounted");
  if (counted.size() != uses_.size()) return broken("a tenant without use is counted, or a tenant with use is not");
  uint64_t pressing = 0;
  for (const auto& [account, use] : uses_) {
    const auto found = counted.find(account);
    if (found == counted.end() || !(found->second == use)) return broken("a tenant's use in total is miscounted");
    pressing += Presses(account, use) ? 1 : 0;
  }
  return pressing == pressing_ ? absl::OkStatus() : broken("the waiters of a tenant are miscounted");
}

}  // namespace berth::core
