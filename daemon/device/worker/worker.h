// The worker: a process that calls a device's driver. The worker serves its socket with one thread until the broker and
// the supervisor have closed their ends. A worker that exports blocks as fds holds only the fds of blocks that are
// being freed. A worker that exports handles (a context worker) holds the blocks themselves.
//
// A driver error that only a new process can clear (daemon/device/worker/fault.h) is answered and then ends the worker.

#ifndef DAEMON_DEVICE_WORKER_WORKER_H_
#define DAEMON_DEVICE_WORKER_WORKER_H_

#include <optional>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/memory/memory_resource.h"
#include "daemon/device/worker/worker_exit.h"

namespace berth {

// How a worker's service ended.
struct WorkerEnd {
  WorkerExit exit = WorkerExit::kDone;
  // The driver's error, if that ended the service.
  absl::Status fault;
};

// Serves `socket` (blocking; daemon/device/worker/worker_wire.h) from `resource`; both stay the caller's. `context` is
// the device memory that the process's context takes, for a context worker.
// Returns: kDone at the end of stream; otherwise the driver's fault, after it was answered.
// Errors: kInternal on a message that breaks the protocol; those of sending.
absl::StatusOr<WorkerEnd> ServeWorker(int socket, MemoryResource& resource,
                                      std::optional<Bytes> context = std::nullopt);

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_WORKER_H_
