// The log of each process of the daemon: lines on stderr, which all of them share.
//
// No process waits for the reader of the log (common/line_output.h): that reader may be stopped, slow or gone, and
// every lease depends on these processes.

#ifndef DAEMON_BASE_STDERR_LOG_H_
#define DAEMON_BASE_STDERR_LOG_H_

#include "common/line_output.h"

namespace berth {

// Returns the log. Never destroyed: threads of a driver may outlive main().
LineOutput& StderrLog();

}  // namespace berth

#endif  // DAEMON_BASE_STDERR_LOG_H_
