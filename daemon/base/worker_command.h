// WorkerCommand: commands to the supervisor about a device or the daemon. The core decides them, except the daemon's
// own. CommandMessage carries the values, so a value keeps its meaning for ever.

#ifndef DAEMON_BASE_WORKER_COMMAND_H_
#define DAEMON_BASE_WORKER_COMMAND_H_

#include <cstdint>

namespace berth {

enum class WorkerCommand : uint32_t {
  // Kill the worker, which hangs. Afterwards as if the worker had ended by itself.
  kKill = 1,
  // End the worker and start another; this restart does not count. A context worker starts when it is next needed.
  kRestart,
  // Bring a stopped worker back: a main worker after the device has passed its self-test.
  kEnable,
  // The device's memory is lost: advance its generation and replace its workers.
  kReset,
  // The device is gone from the node: end its workers and start no others.
  kDrop,
  // Start the context worker, if it is idle.
  kStart,
  // End the context worker, which is then idle.
  kEnd,
  // The driver has lost the device: advance its generation, end its workers, start no others.
  kLose,
  // Remember for later brokers that the device is drained, with the reason; or that it is not drained.
  kDrain,
  kUndrain,
  // Kill the monitor, which hangs. Another monitor starts.
  kKillMonitor,
  // Make every process run the program that is now installed, in this order: the supervisor by exec, the broker, the
  // main workers one by one, the monitor. Names no device; the core never sends it.
  kUpgrade,
  // End the daemon, as SIGTERM does. Names no device; the core never sends it.
  kStop,
};

}  // namespace berth

#endif  // DAEMON_BASE_WORKER_COMMAND_H_
