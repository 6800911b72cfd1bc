// Pool changes: validated, applied, and computed as the difference of two configurations.

#ifndef DAEMON_CORE_PERMITS_POOL_CHANGE_H_
#define DAEMON_CORE_PERMITS_POOL_CHANGE_H_

#include "absl/status/status.h"
#include "daemon/core/devices/placement.h"
#include "daemon/core/types/permit_types.h"

namespace berth::core {

// Returns OK if each value would be valid in a configuration, too. Errors: INVALID_FIELD.
absl::Status CheckChange(const PoolChange& change);
// Replaces the device names in `device_caps` by UUIDs. A configured or stored change keeps the names of devices that
// are absent. The removal of a cap in `config` keeps its key. Errors: NOT_FOUND, INVALID_FIELD (a prefix of several
// UUIDs; two names of one device; a device that the driver has not identified).
absl::Status ResolveDevices(const Placement& placement, const PoolConfig& config, PoolChange* change);
// Requires: resolved devices.
void ApplyChange(const PoolChange& change, PoolConfig* config);
bool IsEmpty(const PoolChange& change);
// Returns the change that turns `from` into `to`.
PoolChange Difference(const PoolConfig& from, const PoolConfig& to);

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_POOL_CHANGE_H_
