// What a device is, as far as choosing among devices goes. Plain values.

#ifndef DAEMON_CORE_DEVICE_FACTS_H_
#define DAEMON_CORE_DEVICE_FACTS_H_

#include <cstdint>
#include <optional>

#include "common/bytes.h"
#include "common/device_score.h"

namespace berth::core {

struct DeviceFacts {
  // Streaming multiprocessors, and the compute capability; 0 for host devices.
  uint32_t sm_count = 0;
  uint32_t cc_major = 0;
  uint32_t cc_minor = 0;
  // Devices of the same island reach each other's memory fast; nothing for one that is by itself.
  std::optional<uint32_t> island;
  // Ordinals that it reaches over NVLink, a bit each: they are of its island, too.
  uint64_t nvlink_peers = 0;

  // 10 x major + minor.
  uint32_t capability() const { return 10 * cc_major + cc_minor; }
  // What it is worth beside others with so much of it free.
  double ScoreWith(Bytes free) const {
    return DeviceScore({.sm_count = sm_count, .cc_major = cc_major, .free = free});
  }
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICE_FACTS_H_
