// TenantAccount: the core's state of one tenant. A plain value.

#ifndef DAEMON_CORE_SESSIONS_TENANT_ACCOUNT_H_
#define DAEMON_CORE_SESSIONS_TENANT_ACCOUNT_H_

#include <cstdint>
#include <map>

#include "daemon/core/memory/byte_budget.h"

namespace berth::core {

// A tenant's shares of the devices. Exists while the tenant has a session, bytes, or its own limit.
struct TenantAccount {
  uint64_t sessions = 0;
  // An operator has set a limit.
  bool limited = false;
  std::map<uint32_t, ByteBudget> budgets;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSIONS_TENANT_ACCOUNT_H_
