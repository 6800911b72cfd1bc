// What one tenant may have at a time, as it is configured. Plain values.

#ifndef DAEMON_CORE_TENANT_QUOTA_H_
#define DAEMON_CORE_TENANT_QUOTA_H_

#include <cstdint>
#include <map>
#include <optional>

#include "daemon/core/caller.h"

namespace berth::core {

// What is not set is bound by what binds everybody. Each at least 1.
struct TenantQuota {
  // Units out, over all pools.
  std::optional<uint64_t> permits;
  // Requests for permits or bytes that wait, or whose block is being made.
  std::optional<uint64_t> waiters;
  std::optional<uint64_t> sessions;
  // Blocks that it owns, until their memory is back; and those that wait to be made.
  std::optional<uint64_t> blocks;
  // Of published blocks.
  std::optional<uint64_t> names;
  // gRPC connections, and the calls on them that go on sending (WatchDevices). Counted where they come in.
  std::optional<uint64_t> connections;
  std::optional<uint64_t> streams;

  // What this one does not say, `other` does.
  TenantQuota Or(const TenantQuota& other) const;
  friend bool operator==(const TenantQuota&, const TenantQuota&) = default;
};

// Visits each figure with its name, in the order in which they are shown.
template <typename Quota, typename Visit>
void ForEachFigure(Quota& quota, Visit visit) {
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

// Every tenant's.
struct QuotaTable {
  // Whoever has no row, or a row that leaves something out.
  TenantQuota all;
  // By uid: of the user outside containers, and of each of its containers.
  std::map<uint32_t, TenantQuota> users;
  // By uid: of each of its containers, before the user's row.
  std::map<uint32_t, TenantQuota> containers;

  TenantQuota Of(const Tenant& tenant) const {
    TenantQuota quota;
    if (const auto row = containers.find(tenant.uid); !tenant.container.empty() && row != containers.end())
      quota = row->second;
    if (const auto row = users.find(tenant.uid); row != users.end()) quota = quota.Or(row->second);
    return quota.Or(all);
  }
  friend bool operator==(const QuotaTable&, const QuotaTable&) = default;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TENANT_QUOTA_H_
