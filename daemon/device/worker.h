// The worker: the one process that calls a device's driver. It serves its socket with one thread until the
// broker and the vault have closed their ends, and keeps nothing but the fds of blocks that are being freed.
//
// A driver error that only a new process is rid of (daemon/device/fault.h) is answered, and ends it.

#ifndef DAEMON_DEVICE_WORKER_H_
#define DAEMON_DEVICE_WORKER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/memory_resource.h"
#include "daemon/device/worker_exit.h"

namespace berth {

// How a worker's service ended.
struct WorkerEnd {
  WorkerExit exit = WorkerExit::kDone;
  // What the driver said, where that ended it.
  absl::Status fault;
};

// Serves `socket` (blocking; daemon/device/worker_wire.h) from `resource`, both the caller's.
// Returns: kDone at the end of stream; else what the driver's fault was, after it was answered.
// Errors: kInternal on a message that breaks the protocol; what sending failed with.
absl::StatusOr<WorkerEnd> ServeWorker(int socket, MemoryResource& resource);

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_H_
