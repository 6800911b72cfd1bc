// Changes of a pool: made, and found between two configurations of it.

#ifndef DAEMON_CORE_POOL_CHANGE_H_
#define DAEMON_CORE_POOL_CHANGE_H_

#include "absl/status/status.h"
#include "daemon/core/permit_types.h"

namespace berth::core {

// OK if nothing in it could not be configured either. Errors: INVALID_FIELD.
absl::Status CheckChange(const PoolChange& change);
void ApplyChange(const PoolChange& change, PoolConfig* config);
// What makes `to` of `from`.
PoolChange Difference(const PoolConfig& from, const PoolConfig& to);

}  // namespace berth::core

#endif  // DAEMON_CORE_POOL_CHANGE_H_
