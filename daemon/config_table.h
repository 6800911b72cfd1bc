// The configuration as a table for people: every key with its value and where that came from.

#ifndef DAEMON_CONFIG_TABLE_H_
#define DAEMON_CONFIG_TABLE_H_

#include <vector>

#include "daemon/core/core.h"
#include "daemon/core_config.h"
#include "daemon/service/config_source.h"

namespace berth {

// In an order that never changes. `config` is what `settings` came to.
std::vector<service::ConfigValue> TableOf(const Settings& settings, const core::Config& config);

// Those of one pool, as it is configured; `settings` says where it came from.
std::vector<service::ConfigValue> TableOf(const Settings& settings, const core::PoolConfig& pool);

}  // namespace berth

#endif  // DAEMON_CONFIG_TABLE_H_
