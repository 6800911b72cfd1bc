// Pool changes: validated, applied, and computed as the difference of two configurations.

#ifndef DAEMON_CORE_PERMITS_POOL_CHANGE_H_
#define DAEMON_CORE_PERMITS_POOL_CHANGE_H_

#include "absl/status/status.h"
#include "daemon/core/types/permit_types.h"

namespace berth::core {

// Returns OK if each value would be valid in a configuration, too. Errors: INVALID_FIELD.
absl::Status CheckChange(const PoolChange& change);
void ApplyChange(const PoolChange& change, PoolConfig* config);
bool IsEmpty(const PoolChange& change);
// Returns the change that turns `from` into `to`.
PoolChange Difference(const PoolConfig& from, const PoolConfig& to);

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_POOL_CHANGE_H_
