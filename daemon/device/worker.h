// The worker: a process that calls a device's driver. It serves its socket with one thread until the broker and the
// vault have closed their ends. Where its blocks are exported as fds it keeps nothing but the fds of blocks that are
// being freed; where by handles (a context worker), the blocks themselves.
//
// A driver error that only a new process is rid of (daemon/device/fault.h) is answered, and ends it.

#ifndef DAEMON_DEVICE_WORKER_H_
#define DAEMON_DEVICE_WORKER_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "daemon/device/memory_resource.h"
#include "daemon/device/worker_exit.h"

namespace berth {

// How a worker's service ended.
struct WorkerEnd {
  WorkerExit exit = WorkerExit::kDone;
  // What the driver said, where that ended it.
  absl::Status fault;
};

// Serves `socket` (blocking; daemon/device/worker_wire.h) from `resource`, both the caller's. `context` is what the
// process's context takes of the device, where it is a context worker.
// Returns: kDone at the end of stream; else what the driver's fault was, after it was answered.
// Errors: kInternal on a message that breaks the protocol; what sending failed with.
absl::StatusOr<WorkerEnd> ServeWorker(int socket, MemoryResource& resource,
                                      std::optional<Bytes> context = std::nullopt);

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_H_
