// Device memory that a CUDA context takes, for the accounting, as NVML reports it.

#ifndef DAEMON_DEVICE_MONITOR_CONTEXT_MEMORY_H_
#define DAEMON_DEVICE_MONITOR_CONTEXT_MEMORY_H_

#include <cstdint>
#include <string>

#include <berth/bytes.h>

#include "common/cuda/nvml.h"

namespace berth {

// Returns the bytes of process `pid`, which has a context and nothing else. NVML reports pids of the outermost PID
// namespace and may not list `pid`. Then returns the rise in used memory since `used_before`, if a context may take
// that much: other processes allocate and free meanwhile. Otherwise, and if NVML does not answer, returns 0: not known.
Bytes MeasureContext(cuda::Nvml& nvml, const std::string& uuid, uint32_t pid, Bytes used_before);

// ContextMeter reads a device's used memory before this process has a context there, and again once it has.
class ContextMeter {
 public:
  // For the device with the UUID `uuid`; measures nothing if NVML knows no such device.
  explicit ContextMeter(const std::string& uuid);
  Bytes Measure() const;

 private:
  cuda::Nvml* nvml_ = nullptr;
  std::string uuid_;
  Bytes used_before_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MONITOR_CONTEXT_MEMORY_H_
