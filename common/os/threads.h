// The threads of a process whose main thread has ended. /proc/PID shows the main thread: without it, the process has no
// fds, namespaces or state there, although its other threads run.

#ifndef COMMON_OS_THREADS_H_
#define COMMON_OS_THREADS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace berth {

// Returns the ids of the process's threads without its main thread's. Empty if /proc does not show the process.
// Errors: kResourceExhausted if the kernel lacks an fd or memory. Retry.
absl::StatusOr<std::vector<int32_t>> OtherThreadsOf(int32_t pid);

}  // namespace berth

#endif  // COMMON_OS_THREADS_H_
