// DeviceFacts: what a device is, as far as decisions turn on it. Plain values.

#ifndef DAEMON_CORE_DEVICE_FACTS_H_
#define DAEMON_CORE_DEVICE_FACTS_H_

#include <cstdint>

#include "common/device_capability.h"

namespace berth::core {

struct DeviceFacts {
  // Streaming multiprocessors; 0 for host memory.
  uint32_t multiprocessors = 0;
  // 0 for host memory.
  DeviceCapability capability;
  // Ordinals that it reaches over NVLink, a bit each, when the daemon started.
  uint64_t nvlink_peers = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICE_FACTS_H_
