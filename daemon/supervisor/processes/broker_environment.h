// Environment variables that the broker gets in addition to its supervisor's environment: a malloc heap of large pages
// (docs/design/0023).
//
// The C library requests large pages (madvise) if a variable enables them, and reads that variable once, before main().
// The setting has no effect on a kernel without large pages. Not thread-safe: no function that accesses the environment
// is.

#ifndef DAEMON_SUPERVISOR_PROCESSES_BROKER_ENVIRONMENT_H_
#define DAEMON_SUPERVISOR_PROCESSES_BROKER_ENVIRONMENT_H_

#include <string>
#include <vector>

namespace berth {

// Returns entries of the form "NAME=value", as ChildProcess::Start() takes them.
std::vector<std::string> BrokerEnvironment();

// Sets the variables in this process, for the program that the process is about to exec. Returns whether the
// environment changed: a variable that is already set keeps its value.
bool EnterBrokerEnvironment();
// Removes the variables in a broker, so that the broker's child processes start without them.
void LeaveBrokerEnvironment();

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_PROCESSES_BROKER_ENVIRONMENT_H_
