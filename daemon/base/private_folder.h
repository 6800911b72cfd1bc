// Checks that a folder is safe for files that the daemon trusts: a user who can write to it could replace them.

#ifndef DAEMON_BASE_PRIVATE_FOLDER_H_
#define DAEMON_BASE_PRIVATE_FOLDER_H_

#include <string>

#include "absl/status/status.h"

namespace berth {

// Checks the folder that `fd` is open on; `path` names it in errors.
// Errors: kFailedPrecondition if another user owns it, or its group or others can write to it; the system's.
absl::Status CheckPrivate(int fd, const std::string& path);
// Checks the folder at `path`, following a link. A missing folder passes. Errors: as above; kFailedPrecondition if a
// file is in the place of the folder or of one above it.
absl::Status CheckPrivate(const std::string& path);

}  // namespace berth

#endif  // DAEMON_BASE_PRIVATE_FOLDER_H_
