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

// Checks the folders above `path`: a user who can rename what is in one of them could put another folder at the path.
// Folders with the sticky bit pass, and those writable for root's group or the daemon's own. Missing folders pass, too,
// and those of a user whom the daemon's user namespace does not map. Errors: kFailedPrecondition if a user other than
// root and the daemon's owns a folder, or if a group or others can write to it.
absl::Status CheckAbove(const std::string& path);

// Checks the file at `path`, if there is one. Errors: kFailedPrecondition if a user other than root and the daemon's
// owns it, and so could change it; the system's.
absl::Status CheckOwner(const std::string& path);

}  // namespace berth

#endif  // DAEMON_BASE_PRIVATE_FOLDER_H_
