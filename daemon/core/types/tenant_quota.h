// The configured limits of one account. Plain values.

#ifndef DAEMON_CORE_TYPES_TENANT_QUOTA_H_
#define DAEMON_CORE_TYPES_TENANT_QUOTA_H_

#include <cstdint>
#include <map>
#include <optional>

#include "daemon/core/types/caller.h"

namespace berth::core {

// An unset limit leaves only the limits that apply to every account. Each value is at least 1.
struct TenantQuota {
  // Units out, over all pools.
  std::optional<uint64_t> permits;
  // Requests that wait for permits or bytes, or whose block is being created.
  std::optional<uint64_t> waiters;
  std::optional<uint64_t> sessions;
  // Blocks that it owns, until their memory is released, plus allocations that wait.
  std::optional<uint64_t> blocks;
  // Names of published blocks.
  std::optional<uint64_t> names;
  // gRPC connections, and their streaming calls (WatchDevices). Counted where they arrive.
  std::optional<uint64_t> connections;
  std::optional<uint64_t> streams;

  // Returns this quota with unset values taken from `other`.
  TenantQuota Or(const TenantQuota& other) const;
  friend bool operator==(const TenantQuota&, const TenantQuota&) = default;
};

// Visits each value with its name, in display order.
template <typename Quota, typename Visit>
void ForEachQuota(Quota& quota, Visit visit) {
  visit("permits", quota.permits);
  visit("waiters", quota.waiters);
  visit("sessions", quota.sessions);
  visit("blocks", quota.blocks);
  visit("names", quota.names);
  visit("connections", quota.connections);
  visit("streams", quota.streams);
}

inline TenantQuota TenantQuota::Or(const TenantQuota& other) const {
  TenantQuota both = *this;
  both.permits = permits.has_value() ? permits : other.permits;
  both.waiters = waiters.has_value() ? waiters : other.waiters;
  both.sessions = sessions.has_value() ? sessions : other.sessions;
  both.blocks = blocks.has_value() ? blocks : other.blocks;
  both.names = names.has_value() ? names : other.names;
  both.connections = connections.has_value() ? connections : other.connections;
  both.streams = streams.has_value() ? streams : other.streams;
  return both;
}

// The quotas of all accounts.
struct QuotaTable {
  // The quota of accounts without an entry, and the default of each unset value.
  TenantQuota all;
  // By uid: applies to the user's account, and to each container made by root in which this uid runs.
  std::map<uint32_t, TenantQuota> users;
  // By uid: applies to each such container, with precedence over the user's entry.
  std::map<uint32_t, TenantQuota> containers;

  TenantQuota Of(const Account& account) const {
    TenantQuota quota;
    if (const auto row = containers.find(account.uid); !account.container.empty() && row != containers.end())
      quota = row->second;
    if (const auto row = users.find(account.uid); row != users.end()) quota = quota.Or(row->second);
    return quota.Or(all);
  }
  friend bool operator==(const QuotaTable&, const QuotaTable&) = default;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_TENANT_QUOTA_H_
