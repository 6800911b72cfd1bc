// The broker role of berthd.

#ifndef DAEMON_RUN_BROKER_H_
#define DAEMON_RUN_BROKER_H_

#include "daemon/options.h"

namespace berth {

// Serves until the vault asks it to stop. Returns: the process's exit code; what went wrong is on stderr.
int RunBroker(const BrokerOptions& options);

}  // namespace berth

#endif  // DAEMON_RUN_BROKER_H_
