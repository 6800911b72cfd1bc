// The claims on a run folder's path and on its node id: abstract Unix socket names, which no deletion of files can
// remove.
//
// Each daemon binds "berth/<PID namespace>/<digest of the path>/<random number>". The kernel lists the bound names of
// that path and their users. A name that another user bound is ignored. No name can be bound ahead of the daemon,
// because its last part is random. Names are per network namespace. A container has its own PID namespace. A container
// in the host's network therefore does not collide with the host's daemon at the same path.
//
// A folder can be moved, copied or mounted at another path, with its leases. The claim on the node id covers all of
// these: "berth/<PID namespace>/node-<node id>/<the supervisor's pid>/<random number>".

#ifndef DAEMON_SUPERVISOR_FOLDER_FOLDER_CLAIM_H_
#define DAEMON_SUPERVISOR_FOLDER_FOLDER_CLAIM_H_

#include <cstdint>
#include <optional>
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

// Claims `node` for this process, for as long as a duplicate of the result is open. Does not check for other claims.
// Errors: those of the system.
absl::StatusOr<UniqueFd> ClaimNode(uint64_t node);
// Returns the pid of another process of this user that has claimed `node`; nullopt if there is none. `claim` is the
// caller's own. If two processes claim the node at once, each may find the other.
// Errors: as CheckUnclaimed().
absl::StatusOr<std::optional<std::string>> FindOtherOfNode(uint64_t node, const UniqueFd& claim);

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FOLDER_FOLDER_CLAIM_H_
