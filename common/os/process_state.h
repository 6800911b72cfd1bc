// ReadState, IsStopped: what a process does at this moment, as /proc shows its main thread.

#ifndef COMMON_OS_PROCESS_STATE_H_
#define COMMON_OS_PROCESS_STATE_H_

#include <cstdint>

namespace berth {

// Returns the state's letter, such as 'S' for a thread that sleeps and 'D' for one that no signal wakes; 0 for a
// process that /proc does not show. The answer may be out of date when it arrives.
char ReadState(int32_t pid);

// Returns whether the process is stopped by a signal or a debugger, as /proc shows its main thread, or another thread
// if the main thread has ended. False for a process that /proc does not show. The answer may be out of date when it
// arrives.
bool IsStopped(int32_t pid);

}  // namespace berth

#endif  // COMMON_OS_PROCESS_STATE_H_
