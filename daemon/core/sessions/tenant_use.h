// TenantUse: each tenant's total usage against its quota: units over all pools, and waiting requests.
//
// The pools check it before a grant, as they check their own per-tenant cap. A tenant at its quota is skipped until one
// of its own permits is released, and delays no other tenant. A unit released in one pool may serve a waiter of another
// pool, so the core checks for changes once a step (TakeChanged).
//
// All values derive from permits and waiters; nothing is persisted. Arithmetic only. Thread-compatible.

#ifndef DAEMON_CORE_SESSIONS_TENANT_USE_H_
#define DAEMON_CORE_SESSIONS_TENANT_USE_H_

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/shared_count.h"
#include "daemon/core/types/tenant_quota.h"

namespace berth::core {

class TenantUse {
 public:
  // `waiting_bytes` counts the weight of all waiting requests.
  explicit TenantUse(QuotaTable quotas = {},
                     SharedCount waiting_bytes = SharedCount("waiting_bytes", SharedCount::kUnlimited,
                                                             SharedCount::kUnlimited))
      : waiting_bytes_(std::move(waiting_bytes)) {
    SetQuotas(std::move(quotas));
  }

  const QuotaTable& quotas() const { return quotas_; }
  // Sets the quotas. A quota lowered below the current usage takes effect as units are released.
  void SetQuotas(QuotaTable quotas);
  TenantQuota QuotaOf(const Account& account) const { return quotas_.Of(account); }

  // ---- Units ----------------------------------------------------------------------------------------------

  // Returns the units that the quota leaves the account; UINT64_MAX if there is no quota.
  uint64_t CapacityOf(const Account& account) const;
  bool MayHave(const Account& account, uint64_t units) const { return units <= CapacityOf(account); }
  // Returns OK, or why that many units can never be granted. Errors: OVER_CAP.
  absl::Status CheckUnits(const Account& account, absl::string_view pool, uint64_t units) const;
  // Returns why that many units are not granted now. Errors: NO_PERMIT. Requires: !MayHave().
  absl::Status Lacking(const Account& account, absl::string_view pool, uint64_t units) const;
  void Take(const Account& account, uint64_t units);
  // Requires: the units were taken.
  void Give(const Account& account, uint64_t units);

  // ---- Requests that wait ---------------------------------------------------------------------------------

  // Checks that one more request of that weight (wait_weight.h) may wait. Errors: LIMIT.
  absl::Status CheckMayWait(const Account& account, const Claimant& claimant, uint64_t weight) const;
  struct Wait {
    Claimant claimant;
    uint64_t weight = 0;
    // The request waits for permits, not for bytes.
    bool for_units = false;
  };
  void BeginWait(const Account& account, const Wait& wait);
  // Requires: the same wait has begun.
  void EndWait(const Account& account, const Wait& wait);
  // Returns whether a tenant with a quota of permits waits for units. Then its cached permits not in use are taken back
  // in every pool.
  bool Presses(const Account& account) const;
  bool AnyPresses() const { return pressing_ > 0; }

  // Returns whether anything has changed since the last call that may serve a waiter of another pool or require a
  // cached permit back.
  bool TakeChanged() { return std::exchange(changed_, false); }

  uint64_t UnitsOf(const Account& account) const;
  uint64_t WaitersOf(const Account& account) const;

  struct Use {
    uint64_t units = 0;
    uint64_t waiters = 0;
    // The part of `waiters` that waits for permits.
    uint64_t unit_waiters = 0;
    friend bool operator==(const Use&, const Use&) = default;
  };
  using Uses = absl::flat_hash_map<Account, Use>;
  // Accounts with any usage.
  const Uses& uses() const { return uses_; }
  // Returns OK if `counted` and `waiting_bytes` equal the usage and the pressing state is consistent.
  absl::Status CheckInvariants(const Uses& counted, const SharedCount& waiting_bytes) const;

 private:
  bool Presses(const Account& account, const Use& use) const {
    return use.unit_waiters > 0 && QuotaOf(account).permits.has_value();
  }
  // Changes a tenant's usage and the values derived from it.
  template <typename Act>
  void Change(const Account& account, Act act);

  QuotaTable quotas_;
  Uses uses_;
  SharedCount waiting_bytes_;
  // Whether any quota of permits exists.
  bool limits_permits_ = false;
  // Number of tenants that press.
  uint64_t pressing_ = 0;
  bool changed_ = false;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSIONS_TENANT_USE_H_
