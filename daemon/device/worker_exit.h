// WorkerExit: how a worker ends of itself, as its exit code, which the vault acts on.

#ifndef DAEMON_DEVICE_WORKER_EXIT_H_
#define DAEMON_DEVICE_WORKER_EXIT_H_

namespace berth {

enum class WorkerExit : int {
  // Its socket was closed everywhere: the daemon stops.
  kDone = 0,
  // It could not start or serve; the next one may.
  kFailed = 1,
  // The driver's state in this process is past mending; the next worker's is sound.
  kPoisoned = 10,
  // The driver answered what nobody has judged: the next worker shows what it was.
  kUnjudged = 11,
  // No worker will do better until something on the node is mended.
  kUnusable = 12,
  // The device is lost, and what was in its memory with it.
  kDeviceLost = 13,
  // The driver has another device at the worker's ordinal, which its last words name.
  kOtherDevice = 14,
};

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_EXIT_H_
