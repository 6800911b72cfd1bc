// Consequences of a failed driver call for its worker, by the driver's code alone.

#ifndef DAEMON_DEVICE_WORKER_FAULT_H_
#define DAEMON_DEVICE_WORKER_FAULT_H_

#include "absl/status/status.h"
#include "daemon/device/worker/worker_exit.h"

namespace berth {

enum class FaultDirective {
  // The call failed and the driver is sound: out of memory, or an invalid argument.
  kGoOn,
  // A sticky error: every later call of this process fails too, but calls of another process do not.
  kRestartWorker,
  // Any worker would get the error again until the node is repaired.
  kStopDevice,
  // As kStopDevice, and the device's memory content is lost.
  kLoseDevice,
  // A code that is not in the table. The worker ends, and the supervisor's restart limit decides.
  kEscalate,
};

// Returns the directive for the code of a failed driver call.
FaultDirective DirectiveOf(int driver_code);

// Returns the directive for a backend's status. OK, and errors that are not the driver's, are no fault.
FaultDirective DirectiveOf(const absl::Status& status);

// Returns the exit code of a worker with that directive.
// Requires: not kGoOn.
WorkerExit ExitFor(FaultDirective directive);

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_FAULT_H_
