// The broker role of berthd.

#ifndef DAEMON_SERVER_RUN_BROKER_H_
#define DAEMON_SERVER_RUN_BROKER_H_

#include "daemon/config/options.h"

namespace berth {

// Serves until the supervisor requests a stop. Returns the process's exit code; errors are on stderr.
int RunBroker(const Options& options);

}  // namespace berth

#endif  // DAEMON_SERVER_RUN_BROKER_H_
