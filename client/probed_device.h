// ProbedDevice: a device that was found to work, and what a program needs to use it.

#ifndef CLIENT_PROBED_DEVICE_H_
#define CLIENT_PROBED_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/gpu_capability.h"

namespace berth {

namespace cuda {
class Driver;
}  // namespace cuda

// A device's default stream, with the context that it is in. Shared by all who probed the device; thread-safe, as far
// as launches on one stream are.
class ProbedStream {
 public:
  virtual ~ProbedStream() = default;

  // Waits until all that was queued on it has ended. Errors: the driver's.
  virtual absl::Status Synchronize() = 0;
  // Makes the context the calling thread's. On the host nothing is to be done.
  virtual absl::Status MakeCurrent() = 0;
  // Queues a function; on a host device alone. Errors: UNSUPPORTED.
  virtual absl::Status Enqueue(std::function<void()> work) = 0;
  // A CUcontext, the device's primary one, which lives as long as this; and a CUstream, null for the default stream.
  // Both are null on the host.
  virtual void* cuda_context() const = 0;
  virtual void* cuda_stream() const = 0;
  // The SDK's own; null on the host.
  virtual cuda::Driver* driver() const = 0;
};

// Whether the daemon serves it at the moment.
enum class DeviceHealth {
  kReady,
  // Its worker is being replaced: leases wait, and the device itself may well do.
  kRebuilding,
  // An operator wants it empty: nothing new is leased on it.
  kDraining,
  // It serves, and something is wrong with it, or its driver does not say how it is.
  kDegraded,
};

struct ProbedDevice {
  // The daemon's ordinal, and this process's own (on the host the same); the UUID is the identity.
  uint32_t device = 0;
  int local_ordinal = 0;
  std::string uuid;
  std::string name;
  // Host memory that stands for a device.
  bool host = false;
  GpuCapability capability;
  uint32_t multiprocessors = 0;
  Bytes total;
  // When it was probed.
  Bytes free;
  // Of its memory, at the daemon.
  uint64_t generation = 0;
  DeviceHealth health = DeviceHealth::kReady;
  // Of kDegraded: what is wrong, for people.
  std::string trouble;
  absl::Time probe_time;
  // It was synchronised.
  std::shared_ptr<ProbedStream> stream;
};

}  // namespace berth

#endif  // CLIENT_PROBED_DEVICE_H_
