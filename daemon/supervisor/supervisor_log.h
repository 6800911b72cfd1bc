// Log and clock shared by the parts of the supervisor.

#ifndef DAEMON_SUPERVISOR_SUPERVISOR_LOG_H_
#define DAEMON_SUPERVISOR_SUPERVISOR_LOG_H_

#include "daemon/supervisor/processes/restart_policy.h"

namespace berth {

// Writes a line by LogLine().
__attribute__((format(printf, 1, 2))) void Log(const char* format, ...);

MonotonicTime Now();

// Returns the milliseconds until `deadline`, as poll() takes them: at most one minute.
int PollTimeout(MonotonicTime deadline);

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_SUPERVISOR_LOG_H_
