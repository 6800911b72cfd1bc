// ConfigSource: reports the daemon's configuration, and reloads it.

#ifndef DAEMON_SERVICE_RPC_CONFIG_SOURCE_H_
#define DAEMON_SERVICE_RPC_CONFIG_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace berth::service {

// Source of a value. The numbers are those of the wire format.
enum class ConfigOrigin { kDefault = 1, kFile = 2, kEnvironment = 3, kFlag = 4, kOperator = 5 };

struct ConfigValue {
  // Such as "pools.gpu-tests.cap".
  std::string key;
  // Current value.
  std::string value;
  ConfigOrigin origin = ConfigOrigin::kDefault;
  // The file and line, the variable with its text, or the flag.
  std::string where;
  // True if a reload applies the value; otherwise it requires a new daemon.
  bool while_running = false;
  // Value in the file at its last read, if it requires a new daemon.
  std::string pending;
};

// A changed value that a reload found.
struct ConfigChange {
  std::string key;
  std::string from;
  std::string to;
  // Reason why the change was not applied; empty if applied.
  std::string why_not;
};

// Thread-safe.
class ConfigSource {
 public:
  virtual ~ConfigSource() = default;
  virtual std::vector<ConfigValue> Describe() = 0;
  // Reads the file again and applies the changes that can be applied. Errors, with nothing changed: INVALID_FIELD
  // naming file, line and key.
  virtual absl::StatusOr<std::vector<ConfigChange>> Reload() = 0;
  // Reopens the log files after a rotation. Errors, logged and with the earlier file still in use: INVALID_FIELD naming
  // the path of each file that was not opened.
  virtual absl::Status ReopenLogs() = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_CONFIG_SOURCE_H_
