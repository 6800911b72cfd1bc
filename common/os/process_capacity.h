// Checks the threads, address space and file descriptors that this process may still use. Call CheckCapacity() before
// entering a library that aborts when it lacks one of them.

#ifndef COMMON_OS_PROCESS_CAPACITY_H_
#define COMMON_OS_PROCESS_CAPACITY_H_

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

struct ProcessNeeds {
  // Threads at the same time, each with the C library's default stack.
  int threads = 0;
  // Memory in addition to the threads' stacks and heaps.
  Bytes memory = Bytes(0);
  int fds = 0;
};

// Returns the number of threads that gRPC 1.51 starts in a client: one for each processor, from 2 to 32, plus threads
// for timers, name resolution and late work.
int GrpcThreads();

// Allocates all that `purpose` needs at once, and releases it. Starts threads only if a thread limit is near or the
// address space is limited; the rest takes a few system calls. Other threads and processes may still exhaust the
// resources afterwards.
// Errors: kResourceExhausted: the missing resource, the limits in force, and how to raise them.
absl::Status CheckCapacity(absl::string_view purpose, const ProcessNeeds& needs);

// Returns the error for `what`, a thread or a process that failed to start with errno `error`: kResourceExhausted with
// the limits in force if a limit was reached, else OsError()'s.
absl::Status NotStarted(absl::string_view what, int error);

}  // namespace berth

#endif  // COMMON_OS_PROCESS_CAPACITY_H_
