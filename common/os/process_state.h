// ProcessState: whether a process is stopped.

#ifndef COMMON_OS_PROCESS_STATE_H_
#define COMMON_OS_PROCESS_STATE_H_

#include <cstdint>

namespace berth {

// Returns whether the process is stopped by a signal or a debugger, as /proc shows its main thread. False for a process
// that /proc does not show. The answer may be out of date when it arrives.
bool IsStopped(int32_t pid);

}  // namespace berth

#endif  // COMMON_OS_PROCESS_STATE_H_
