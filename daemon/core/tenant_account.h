// TenantAccount: what the core keeps of a tenant. A plain value.

#ifndef DAEMON_CORE_TENANT_ACCOUNT_H_
#define DAEMON_CORE_TENANT_ACCOUNT_H_

#include <cstdint>
#include <map>

#include "daemon/core/byte_budget.h"

namespace berth::core {

// A tenant's shares of the devices. There while it has a session, bytes, or a limit of its own.
struct TenantAccount {
  uint64_t sessions = 0;
  // A limit was set by hand.
  bool limited = false;
  std::map<uint32_t, ByteBudget> budgets;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TENANT_ACCOUNT_H_
