// Splits n independent units over devices by weight, in exact arithmetic: every unit goes to one device, and the same
// weights always yield the same split.
//
//   const std::vector<Tile> tiles = BalancedPartition(1'000, {292, 72, 72});   // 670 + 165 + 165 units

#ifndef DAEMON_BASE_PARTITION_H_
#define DAEMON_BASE_PARTITION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace berth {

// One value for each device; no allocation for the device counts of common nodes.
template <typename T>
using PerDevice = absl::InlinedVector<T, 16>;

// A device's units, the half-open range [begin, end). Never empty.
struct Tile {
  // Index in the list of given devices.
  size_t device = 0;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t units() const { return end - begin; }
  friend bool operator==(const Tile&, const Tile&) = default;
};

template <typename Archive>
void Fields(Archive& archive, Tile& value) {
  archive(value.device, value.begin, value.end);
}

// Splits `units` by largest remainder: each device gets the whole part of n * w / sum. The remaining units go to the
// largest fractions, among equals to the earlier device. Tiles follow the device order and cover 0 to n without gaps; a
// device without units has no tile. Every tile is within one unit of its ideal.
//
// A negative or NaN weight counts as 0. If the sum of all weights is 0 or not finite, all devices weigh the same. A
// single device gets all units, whatever its weight. Without units or devices there are no tiles.
//
// Exact: each weight becomes an integer, its multiple of the power of two that brings the largest below 2^58,
// truncated. All further arithmetic is on integers. Weights whose bits span at most 58 places (whole numbers below
// 2^58, device scores) are exact; any other is off by less than 2^-57 of the largest.
std::vector<Tile> BalancedPartition(uint64_t units, absl::Span<const double> weights);

// Like BalancedPartition(), as the number of units of each device; 0 for a device without a tile.
std::vector<uint64_t> BalancedShares(uint64_t units, absl::Span<const double> weights);

// Lays the shares out as adjacent tiles, in their order.
std::vector<Tile> LayOut(absl::Span<const uint64_t> shares);

// A device that may be given units.
struct PartitionDevice {
  double weight = 0;
  // Capacity in units.
  uint64_t most_units = UINT64_MAX;
  // NVLink island: devices of one island have a fast interconnect. A device without an island forms its own.
  std::optional<uint32_t> island;
  // Units that the device has in the previous split.
  uint64_t had_units = 0;
};

// Constraints of a split; 0 is no limit.
struct PartitionConstraints {
  // Least number of units for each device that gets any.
  uint64_t min_units = 0;
  // Most devices that may get units.
  uint64_t max_devices = 0;
  bool one_island = false;
};

// Splits `units` as BalancedShares() does, within the constraints. If they bind:
// - no device gets more than its capacity; the rest goes to the other devices by their weights;
// - while devices would get fewer than min_units, the device of least weight among them (among equals the later) is
//   left out; a device whose capacity is needed gets min_units instead;
// - of more than max_devices, the devices of least weight are left out;
// - of the islands that can hold all units, the one whose chosen devices have the largest total weight is taken (among
//   equals the earlier one).
// A device is left out only if the others can hold all units. If leaving out by weight finds no solution, the devices
// with the largest capacity are taken. If a valid split exists, one is found.
// Among equal fractions, a device that had more than its whole part in the previous split goes first: of all equally
// even splits, the result moves the fewest units.
// Returns: one share for each device.
// Errors: CONSTRAINT, naming `constraint` ("room", "max_devices", "min_units", "one_island", or "devices" if none is
// given), the requested `value`, and the achievable `limit`.
absl::StatusOr<std::vector<uint64_t>> ConstrainedShares(uint64_t units,
                                                        absl::Span<const PartitionDevice> devices,
                                                        const PartitionConstraints& constraints);

}  // namespace berth

#endif  // DAEMON_BASE_PARTITION_H_
