// How a broker starts a vault that follows one that is gone.

#ifndef DAEMON_VAULT_SUCCESSOR_H_
#define DAEMON_VAULT_SUCCESSOR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace berth {

// Starts this process's own program as a vault with `flags`, which waits for an estate on its end of the socket that is
// returned. It outlives this process. Who calls this has SIGCHLD ignored, so that nobody has to reap it.
// Errors: those of the system.
absl::StatusOr<UniqueFd> StartSuccessor(std::vector<std::string> flags);

}  // namespace berth

#endif  // DAEMON_VAULT_SUCCESSOR_H_
