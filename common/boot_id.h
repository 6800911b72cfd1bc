// The kernel's name of this boot.

#ifndef COMMON_BOOT_ID_H_
#define COMMON_BOOT_ID_H_

#include <string>

#include "absl/status/statusor.h"

namespace berth {

// At most 39 bytes. Errors: those of the file system.
absl::StatusOr<std::string> ReadBootId();

}  // namespace berth

#endif  // COMMON_BOOT_ID_H_
