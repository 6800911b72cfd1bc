// ConfigSource: what the daemon is configured to be, for those who look, and the way to have it read anew.

#ifndef DAEMON_SERVICE_CONFIG_SOURCE_H_
#define DAEMON_SERVICE_CONFIG_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace berth::service {

// The numbers are the wire's.
enum class ConfigOrigin { kDefault = 1, kFile = 2, kEnvironment = 3, kFlag = 4, kOperator = 5 };

struct ConfigValue {
  // "pools.gpu-tests.cap".
  std::string key;
  // As it is now.
  std::string value;
  ConfigOrigin origin = ConfigOrigin::kDefault;
  // The file and line, the variable with its text, or the flag.
  std::string where;
  // A reload changes it; otherwise a new daemon.
  bool while_running = false;
  // What the file says since it was last read, where that needs a new daemon.
  std::string pending;
};

// What a reload came upon.
struct ConfigChange {
  std::string key;
  std::string from;
  std::string to;
  // Empty where it was changed; else why not.
  std::string why_not;
};

// Thread-safe.
class ConfigSource {
 public:
  virtual ~ConfigSource() = default;
  virtual std::vector<ConfigValue> Describe() = 0;
  // Reads the file anew and changes what can change. Errors, with nothing changed: INVALID_FIELD naming file, line and
  // key.
  virtual absl::StatusOr<std::vector<ConfigChange>> Reload() = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONFIG_SOURCE_H_
