// Constraints on the device of a permit. Plain values.

#ifndef DAEMON_CORE_TYPES_PLACEMENT_TYPES_H_
#define DAEMON_CORE_TYPES_PLACEMENT_TYPES_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>

namespace berth::core {

// How to pick among several suitable devices. Values match the wire.
enum class DevicePick { kNone = 0, kAny = 1, kBest = 2, kNamed = 3, kHighestScore = 4, kRoundRobin = 5 };
constexpr auto ArchivedValues(DevicePick) { return std::pair(DevicePick::kNone, DevicePick::kRoundRobin); }

struct DeviceConstraint {
  DevicePick pick = DevicePick::kNone;
  // UUID of the device for kNamed.
  std::string uuid;
  // Free bytes that the device must have at the grant.
  Bytes min_free;
  // For a permit: bytes that the holder's processes will allocate outside Berth; reserved until the release of the
  // permit.
  Bytes declared;
  // 10 x major + minor; 0 for any.
  uint32_t min_capability = 0;
  // The device must be in the island of the device with this UUID; empty for any.
  std::string island_of;
  // The device must be one of these; empty for any. UUIDs in order after Placement::Resolve().
  std::vector<std::string> among = {};
  // The device must be one that this CUDA_VISIBLE_DEVICES names; empty for any. Resolve() merges it into `among`.
  std::optional<std::string> visible = std::nullopt;
  // Waits while no suitable device serves; otherwise such a request is refused.
  bool wait_for_device = false;

  friend auto operator<=>(const DeviceConstraint&, const DeviceConstraint&) = default;
};

template <typename Archive>
void Fields(Archive& archive, DeviceConstraint& value) {
  archive(value.pick, value.uuid, value.min_free, value.declared, value.min_capability, value.island_of);
  // Only resolved constraints are persisted.
  archive.Since(3, value.among, value.wait_for_device);
}

// Adds the devices to which a request is bound to its fingerprint. Without an option the fingerprint equals that of
// versions before the option, so a retry is recognised across an upgrade.
void AddBounds(auto& add, const std::vector<std::string>& among, const std::optional<std::string>& visible) {
  if (!among.empty()) add("among", among.size(), among);
  if (visible.has_value()) add("visible", *visible);
}
void Payload(auto& add, const DeviceConstraint& constraint) {
  add(constraint.pick, constraint.uuid, constraint.min_free, constraint.declared, constraint.min_capability,
      constraint.island_of);
  if (constraint.wait_for_device) add("wait for device");
  AddBounds(add, constraint.among, constraint.visible);
}

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_PLACEMENT_TYPES_H_
