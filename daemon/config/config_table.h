// The configuration as a table for display: every key with its value and the value's source.

#ifndef DAEMON_CONFIG_CONFIG_TABLE_H_
#define DAEMON_CONFIG_CONFIG_TABLE_H_

#include <vector>

#include "daemon/config/settings.h"
#include "daemon/core/core.h"
#include "daemon/service/rpc/config_source.h"

namespace berth {

// Returns all values, in a fixed order. `config` is made from `settings`.
std::vector<service::ConfigValue> TableOf(const Settings& settings, const core::Config& config);

// Returns the configured values of one pool; `settings` provides their sources.
std::vector<service::ConfigValue> TableOf(const Settings& settings, const core::PoolConfig& pool);

}  // namespace berth

#endif  // DAEMON_CONFIG_CONFIG_TABLE_H_
