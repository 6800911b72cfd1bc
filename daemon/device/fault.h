// What a failed driver call means for the worker that made it, by the driver's code alone (seeds.md §4.4).

#ifndef DAEMON_DEVICE_FAULT_H_
#define DAEMON_DEVICE_FAULT_H_

#include "absl/status/status.h"
#include "daemon/device/worker_exit.h"

namespace berth {

enum class FaultDirective {
  // The call failed and the driver is sound: out of memory, a bad argument.
  kGoOn,
  // A sticky error: every later call of this process fails too, those of another do not.
  kRestartWorker,
  // Any worker would meet it again until the node is mended.
  kStopDevice,
  // The same, and the device's memory is not what it was.
  kLoseDevice,
  // A code that is not in the table. The worker ends, and the vault's count of restarts judges.
  kEscalate,
};

// For the code of a driver call that failed.
FaultDirective DirectiveOf(int driver_code);

// For a backend's answer: OK, and a refusal that is not the driver's, are no fault.
FaultDirective DirectiveOf(const absl::Status& status);

// How a worker with that directive ends.
// Requires: not kGoOn.
WorkerExit ExitFor(FaultDirective directive);

}  // namespace berth

#endif  // DAEMON_DEVICE_FAULT_H_
