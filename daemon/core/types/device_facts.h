// Device properties that placement uses to choose among devices. Plain values.

#ifndef DAEMON_CORE_TYPES_DEVICE_FACTS_H_
#define DAEMON_CORE_TYPES_DEVICE_FACTS_H_

#include <cstdint>
#include <optional>

#include <berth/bytes.h>

#include "common/device_score.h"

namespace berth::core {

struct DeviceFacts {
  // Number of streaming multiprocessors, and the compute capability; 0 for host devices.
  uint32_t sm_count = 0;
  uint32_t cc_major = 0;
  uint32_t cc_minor = 0;
  // Devices of one island access each other's memory fast. Empty for a device without such peers.
  std::optional<uint32_t> island;
  // Bit mask of ordinals that the device reaches over NVLink. These devices belong to its island, too.
  uint64_t nvlink_peers = 0;

  // 10 x major + minor.
  uint32_t capability() const { return 10 * cc_major + cc_minor; }
  // Returns the device's score, relative to other devices, when `free` bytes of it are free.
  double ScoreWith(Bytes free) const {
    return DeviceScore({.sm_count = sm_count, .cc_major = cc_major, .free = free});
  }
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_DEVICE_FACTS_H_
