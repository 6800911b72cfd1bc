// The error of a log file that the daemon cannot open.

#ifndef DAEMON_SERVICE_AUDIT_OPEN_ERROR_H_
#define DAEMON_SERVICE_AUDIT_OPEN_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth::service {

// Returns OsError(name, error) for the file at `path`. If the kernel denies the access, the text also names the owner
// of the file, or the folder in which the file cannot be made, and the daemon's user. A broker of root has no
// capabilities to open files of other users.
absl::Status OpenError(absl::string_view name, const std::string& path, int error);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_OPEN_ERROR_H_
