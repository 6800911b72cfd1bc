// The signals that control the daemon: SIGTERM and SIGINT stop it, and SIGHUP makes it reload its configuration.
//
// Every process of the daemon starts with them blocked. A signal that arrives during the start stays pending until the
// process handles it like a later one.

#ifndef DAEMON_BASE_CONTROL_SIGNALS_H_
#define DAEMON_BASE_CONTROL_SIGNALS_H_

#include <signal.h>

namespace berth {

sigset_t ControlSignals();

// Blocks the control signals. Makes a system call only, and may run before the libraries' initialisers.
void BlockControlSignals();

// Blocks the control signals, except SIGTERM and SIGINT if the parent made the process ignore them: a pending signal of
// these is discarded. Returns the blocked control signals. For the supervisor.
sigset_t TakeControlSignals();

// Ignores SIGHUP and gives SIGTERM and SIGINT their usual effect. For every process but the supervisor: only the
// supervisor handles SIGHUP, even if it is sent to all processes.
void LeaveControlSignals();

}  // namespace berth

#endif  // DAEMON_BASE_CONTROL_SIGNALS_H_
