// ProbedDevice: a device that was verified to work, and the data that a program needs to use it.

#ifndef BERTH_PROBED_DEVICE_H_
#define BERTH_PROBED_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <berth/bytes.h>
#include <berth/gpu_capability.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace berth {

namespace cuda {
class Driver;
}  // namespace cuda

// A device's default stream, with its context. Shared by all users that probed the device. Thread-safe, as far as
// launches on one stream are.
class ProbedStream {
 public:
  virtual ~ProbedStream() = default;

  // Waits until all work queued on the stream has ended. Errors: the driver's.
  virtual absl::Status Synchronize() = 0;
  // Makes the context current in the calling thread. Does nothing on a host device.
  virtual absl::Status MakeCurrent() = 0;
  // Queues a function; on host devices only. Errors: UNSUPPORTED.
  virtual absl::Status Enqueue(std::function<void()> work) = 0;
  // The device's primary CUcontext, which lives as long as this object; null on a host device.
  virtual void* cuda_context() const = 0;
  // A CUstream; null for the default stream, and on a host device.
  virtual void* cuda_stream() const = 0;
  // For internal use by the SDK; null on a host device.
  virtual cuda::Driver* driver() const = 0;
};

// Whether the daemon currently serves the device.
enum class DeviceHealth {
  kReady,
  // The device's worker is being replaced: leases wait; the device itself may work.
  kRebuilding,
  // An operator drains the device: the daemon grants no new lease on it.
  kDraining,
  // The device serves, but has a problem, or its driver does not report its health.
  kDegraded,
};

struct ProbedDevice {
  // The daemon's ordinal.
  uint32_t device = 0;
  // This process's own ordinal; equal to `device` on a host device.
  int local_ordinal = 0;
  // The device's identity: ordinals may change when a node boots.
  std::string uuid;
  // The product's name.
  std::string name;
  // Whether host memory stands in for a device.
  bool host = false;
  GpuCapability capability;
  uint32_t multiprocessors = 0;
  Bytes total;
  // Free bytes at the time of the probe.
  Bytes free;
  // Generation of the device's memory at the daemon.
  uint64_t generation = 0;
  DeviceHealth health = DeviceHealth::kReady;
  // For kDegraded: the problem, for people.
  std::string trouble;
  absl::Time probe_time;
  // The probe has synchronised it.
  std::shared_ptr<ProbedStream> stream;
};

}  // namespace berth

#endif  // BERTH_PROBED_DEVICE_H_
