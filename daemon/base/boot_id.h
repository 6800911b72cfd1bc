// Reads the kernel's boot id.

#ifndef DAEMON_BASE_BOOT_ID_H_
#define DAEMON_BASE_BOOT_ID_H_

#include <string>

#include "absl/status/statusor.h"

namespace berth {

// Returns at most 39 bytes. Errors: those of the file system.
absl::StatusOr<std::string> ReadBootId();

}  // namespace berth

#endif  // DAEMON_BASE_BOOT_ID_H_
