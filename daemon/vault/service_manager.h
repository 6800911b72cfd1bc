// The service manager that started the daemon, by systemd's protocols: what it is told (sd_notify(3)) and what it hands
// over (sd_listen_fds(3)).

#ifndef DAEMON_VAULT_SERVICE_MANAGER_H_
#define DAEMON_VAULT_SERVICE_MANAGER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/unique_fd.h"

namespace berth {

// Whether there is one that can be told something: $NOTIFY_SOCKET.
bool HasServiceManager();

// Sends `state`, such as "READY=1", to it, and a duplicate of `fd`, where that is one. Never waits.
// Errors: kFailedPrecondition where there is none; kUnavailable if it takes nothing now; those of the system.
absl::Status SendToServiceManager(const std::string& state, int fd = -1);

// The same, where one that takes nothing is logged, and none is told nothing.
void TellServiceManager(const std::string& state);

// An fd that it has handed over, close-on-exec, under the name that it has there.
struct NamedFd {
  std::string name;
  UniqueFd fd;
};
// Takes what it has handed over to this very process ($LISTEN_PID), and clears the variables, which are nobody's
// else. What it named for another process is left alone. Called once, before anything is opened.
std::vector<NamedFd> TakeHandedOver();

}  // namespace berth

#endif  // DAEMON_VAULT_SERVICE_MANAGER_H_
