// WorkerExit: the exit code of a worker that ends by itself, which the supervisor acts on.

#ifndef DAEMON_DEVICE_WORKER_WORKER_EXIT_H_
#define DAEMON_DEVICE_WORKER_WORKER_EXIT_H_

namespace berth {

enum class WorkerExit : int {
  // Every other end of its socket was closed: the daemon stops.
  kDone = 0,
  // The worker could not start or serve; the next one may.
  kFailed = 1,
  // The driver's state in this process is beyond repair; the next worker's is sound.
  kPoisoned = 10,
  // The driver reported an unclassified error: the outcome of the next worker shows its nature.
  kUnjudged = 11,
  // Every worker would fail until the node is repaired.
  kUnusable = 12,
  // The device is lost, with the content of its memory.
  kDeviceLost = 13,
  // The driver does not list the worker's device.
  kDeviceMissing = 14,
};

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_WORKER_EXIT_H_
