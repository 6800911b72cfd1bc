// The service manager that started the daemon, by systemd's protocols: state notifications to it (sd_notify(3)) and fds
// handed over by it (sd_listen_fds(3)).

#ifndef DAEMON_SUPERVISOR_FD_STORE_SERVICE_MANAGER_H_
#define DAEMON_SUPERVISOR_FD_STORE_SERVICE_MANAGER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/os/unique_fd.h"

namespace berth {

// Returns whether a service manager receives notifications: $NOTIFY_SOCKET.
bool HasServiceManager();

// Sends it `state`, such as "READY=1", and a duplicate of `fd` unless that is -1. Never waits.
// Errors: kFailedPrecondition without a service manager; kUnavailable if it takes no message now; those of the system.
absl::Status SendToServiceManager(const std::string& state, int fd = -1);

// As SendToServiceManager(), but logs a failure. Does nothing without a service manager.
void NotifyServiceManager(const std::string& state);

// An fd that the service manager has handed over, close-on-exec, with its name there.
struct NamedFd {
  std::string name;
  UniqueFd fd;
};
// Takes the fds handed over to this very process ($LISTEN_PID) and unsets the variables. Leaves fds for another process
// alone. Called once, before any file is opened.
std::vector<NamedFd> TakeHandedOver();

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FD_STORE_SERVICE_MANAGER_H_
