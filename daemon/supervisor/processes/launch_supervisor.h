// Starts a supervisor that replaces one that has ended.

#ifndef DAEMON_SUPERVISOR_PROCESSES_LAUNCH_SUPERVISOR_H_
#define DAEMON_SUPERVISOR_PROCESSES_LAUNCH_SUPERVISOR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Starts this process's own program as a supervisor with `flags`. The supervisor waits for the handover state on its
// end of the returned socket, and outlives this process. Requires: the caller ignores SIGCHLD, so that no process has
// to reap the supervisor.
// Errors: those of the system.
absl::StatusOr<UniqueFd> LaunchSupervisor(std::vector<std::string> flags);

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_PROCESSES_LAUNCH_SUPERVISOR_H_
