// OperatorSettings: the settings that operators have changed and not reset. A plain value.

#ifndef DAEMON_CORE_TYPES_OPERATOR_SETTINGS_H_
#define DAEMON_CORE_TYPES_OPERATOR_SETTINGS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "daemon/core/types/caller.h"
#include "daemon/core/types/permit_types.h"

namespace berth::core {

// SetPool(), DrainDevice() and RestoreBudget() apply the settings to a core with the same pools and devices. UUIDs name
// the devices, because ordinals change between boots.
struct OperatorSettings {
  struct Device {
    std::string uuid;
    // Empty if the device is not drained.
    std::string drain_reason;
    // Empty if the configured budget applies.
    std::optional<Bytes> budget;
  };
  struct TenantBudget {
    std::string uuid;
    Account account;
    Bytes limit;
  };

  // Changes relative to the configured pool, by pool name. Unchanged pools and devices have no entry.
  std::map<std::string, PoolChange> pools;
  std::vector<Device> devices;
  std::vector<TenantBudget> tenant_budgets;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_OPERATOR_SETTINGS_H_
