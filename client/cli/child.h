// Starts a command and waits for it. Without fork(): the process has gRPC's threads, of which one would make ruins.

#ifndef CLIENT_CLI_CHILD_H_
#define CLIENT_CLI_CHILD_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/exit_status.h"

namespace berth::cli {

// The environment of this process with `entries` ("NAME=value") in the place of those of the same names.
std::vector<std::string> EnvironmentWith(const std::vector<std::string>& entries);

// Starts `command`, found along PATH, in this process's group and terminal; in the control group whose folder is open
// as `cgroup`, if that is not negative. Errors: kNotFound when there is no such command; kFailedPrecondition when it
// cannot be executed, or not there.
absl::StatusOr<pid_t> SpawnCommand(const std::vector<std::string>& command,
                                   const std::vector<std::string>& environment, const sigset_t& mask,
                                   int cgroup = -1);

// Becomes `command`, found along PATH. Returns only where that fails, with SpawnCommand()'s errors.
absl::Status ExecCommand(const std::vector<std::string>& command,
                         const std::vector<std::string>& environment);

// Waits until the child has ended, and leaves it a zombie: until Reap() its pid is nobody else's, and a signal
// that is still passed on to it reaches nobody.
void AwaitEnd(pid_t child);

// Takes the child's end. Returns its exit code, or the signal that it died of.
ExitStatus Reap(pid_t child);

}  // namespace berth::cli

#endif  // CLIENT_CLI_CHILD_H_
