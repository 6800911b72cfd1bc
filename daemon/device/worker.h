// The worker: the one process that calls a device's driver. It serves its socket with one thread until the
// broker and the vault have closed their ends, and keeps nothing but the fds of blocks that are being freed.

#ifndef DAEMON_DEVICE_WORKER_H_
#define DAEMON_DEVICE_WORKER_H_

#include "absl/status/status.h"
#include "daemon/device/memory_backend.h"

namespace berth {

// Serves `socket` (blocking; daemon/device/worker_wire.h) from `backend`, both the caller's.
// Returns: OK at the end of stream.
// Errors: kInternal on a message that breaks the protocol; what sending failed with.
absl::Status ServeWorker(int socket, MemoryBackend& backend);

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_H_
