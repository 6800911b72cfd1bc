// TenantUse: what each tenant has in all, against its quota: units over all pools, and requests that wait.
//
// The pools ask it before they grant, as they ask their own cap of a tenant: who is at its quota stands aside until one
// of its own permits returns, and keeps nobody waiting. As a unit that returns in one pool may be what a waiter of
// another one waits for, what changes is to be looked at once a step (TakeChanged).
//
// All of it follows from permits and waiters: none of it outlives the broker by itself. Arithmetic only.
// Thread-compatible.

#ifndef DAEMON_CORE_TENANT_USE_H_
#define DAEMON_CORE_TENANT_USE_H_

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/core/caller.h"
#include "daemon/core/tenant_quota.h"

namespace berth::core {

class TenantUse {
 public:
  explicit TenantUse(QuotaTable quotas = {}) { SetQuotas(std::move(quotas)); }

  const QuotaTable& quotas() const { return quotas_; }
  // Lowered below what is out it drains.
  void SetQuotas(QuotaTable quotas);
  TenantQuota QuotaOf(const Tenant& tenant) const { return quotas_.Of(tenant); }

  // ---- Units ----------------------------------------------------------------------------------------------

  bool MayHave(const Tenant& tenant, uint64_t units) const;
  // OK, or why so many can never be granted. Errors: OVER_CAP.
  absl::Status CheckUnits(const Tenant& tenant, absl::string_view pool, uint64_t units) const;
  // Why so many are not granted now. Errors: NO_PERMIT. Requires: !MayHave().
  absl::Status Lacking(const Tenant& tenant, absl::string_view pool, uint64_t units) const;
  void Take(const Tenant& tenant, uint64_t units);
  // Requires: they were taken.
  void Give(const Tenant& tenant, uint64_t units);

  // ---- Requests that wait ---------------------------------------------------------------------------------

  // Whether one more may. Errors: LIMIT.
  absl::Status CheckMayWait(const Tenant& tenant) const;
  // `for_units`: for permits, rather than for bytes.
  void BeginWait(const Tenant& tenant, bool for_units);
  // Requires: it began.
  void EndWait(const Tenant& tenant, bool for_units);
  // A tenant with a quota of permits waits for units: what its processes keep and do not use is wanted, in every pool.
  bool Presses(const Tenant& tenant) const;
  bool AnyPresses() const { return pressing_ > 0; }

  // Whether there was anything since this was last asked by which somebody in another pool may be served, or whose
  // permit is wanted.
  bool TakeChanged() { return std::exchange(changed_, false); }

  uint64_t UnitsOf(const Tenant& tenant) const;
  uint64_t WaitersOf(const Tenant& tenant) const;

  struct Use {
    uint64_t units = 0;
    uint64_t waiters = 0;
    // Of these, for permits.
    uint64_t unit_waiters = 0;
    friend bool operator==(const Use&, const Use&) = default;
  };
  using Uses = absl::flat_hash_map<Tenant, Use>;
  // Of those who have any.
  const Uses& uses() const { return uses_; }
  // OK if `counted` is what it has, and what it says of pressing is so.
  absl::Status CheckBooks(const Uses& counted) const;

 private:
  bool Presses(const Tenant& tenant, const Use& use) const {
    return use.unit_waiters > 0 && QuotaOf(tenant).permits.has_value();
  }
  // Changes what a tenant has, and what follows from it.
  template <typename Act>
  void Change(const Tenant& tenant, Act act);

  QuotaTable quotas_;
  Uses uses_;
  // Whether there is a quota of permits at all.
  bool limits_permits_ = false;
  // Tenants that press.
  uint64_t pressing_ = 0;
  bool changed_ = false;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TENANT_USE_H_
