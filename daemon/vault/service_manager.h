// What the daemon tells the service manager that started it, by systemd's protocol (sd_notify(3)).

#ifndef DAEMON_VAULT_SERVICE_MANAGER_H_
#define DAEMON_VAULT_SERVICE_MANAGER_H_

#include <string>

namespace berth {

// Sends `state`, such as "READY=1", to the socket that $NOTIFY_SOCKET names. Nothing where there is none; one that
// takes nothing is logged. Never waits.
void TellServiceManager(const std::string& state);

}  // namespace berth

#endif  // DAEMON_VAULT_SERVICE_MANAGER_H_
