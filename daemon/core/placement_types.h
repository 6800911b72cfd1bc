// Which device somebody is to get. Plain values.

#ifndef DAEMON_CORE_PLACEMENT_TYPES_H_
#define DAEMON_CORE_PLACEMENT_TYPES_H_

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "common/bytes.h"

namespace berth::core {

// Of several that would do: the numbers are the wire's.
enum class DevicePick { kNone = 0, kAny = 1, kBest = 2, kNamed = 3, kHighestScore = 4, kRoundRobin = 5 };
constexpr auto ArchivedValues(DevicePick) { return std::pair(DevicePick::kNone, DevicePick::kRoundRobin); }

struct DeviceWish {
  DevicePick pick = DevicePick::kNone;
  // kNamed.
  std::string uuid;
  // Free bytes that the device must have when it is given.
  Bytes min_free;
  // Of a permit: bytes that the holder's processes will take there past Berth: set aside until the permit is back.
  Bytes declared;
  // 10 x major + minor; 0 for any.
  uint32_t min_capability = 0;
  // It must be in the island of the device of this UUID; empty for any.
  std::string island_of;

  friend auto operator<=>(const DeviceWish&, const DeviceWish&) = default;
};

template <typename Archive>
void Fields(Archive& archive, DeviceWish& value) {
  archive(value.pick, value.uuid, value.min_free, value.declared, value.min_capability, value.island_of);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_PLACEMENT_TYPES_H_
