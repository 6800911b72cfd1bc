// The claim on a run folder's path: an abstract Unix socket name, which no deletion of files can remove.
//
// Each daemon binds "berth/<PID namespace>/<digest of the path>/<random number>". The kernel lists the bound names of
// that path and their users. A name that another user bound is ignored. No name can be bound ahead of the daemon,
// because its last part is random. Names are per network namespace. A container has its own PID namespace. A container
// in the host's network therefore does not collide with the host's daemon at the same path.

#ifndef DAEMON_SUPERVISOR_FOLDER_FOLDER_CLAIM_H_
#define DAEMON_SUPERVISOR_FOLDER_FOLDER_CLAIM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Checks that no process of this user has claimed `path`. `path` is absolute; its last part need not exist.
// Errors: kFailedPrecondition if a process has; kUnavailable if the kernel does not list sockets; those of the system.
absl::Status CheckUnclaimed(const std::string& path);

// Claims `path` for as long as a duplicate of the result is open. If two processes claim the path at once, both may
// fail.
// Errors: as CheckUnclaimed().
absl::StatusOr<UniqueFd> ClaimFolder(const std::string& path);

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FOLDER_FOLDER_CLAIM_H_
