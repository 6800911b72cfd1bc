// How n independent units are split over devices by weight, in exact arithmetic: every unit goes to one device, and
// the same weights always give the same split.
//
//   const std::vector<Tile> tiles = BalancedPartition(1'000, {292, 72, 72});   // 670 + 165 + 165 units

#ifndef COMMON_PARTITION_H_
#define COMMON_PARTITION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace berth {

// One value for each device, without an allocation where there are no more than a node commonly has.
template <typename T>
using PerDevice = absl::InlinedVector<T, 16>;

// A device's units: from `begin` up to, but not with, `end`. Never empty.
struct Tile {
  // Its place among the devices that were given.
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

// Splits `units` by largest remainder: of n * w / sum each device gets the whole part, and the units that are left go
// to the largest fractions, among equals to the earlier device. Tiles follow the order of the devices, one after the
// other, from 0 to n; who gets nothing has no tile. No tile is further than one unit from its ideal.
//
// A weight that is negative or no number counts as 0. Where the sum of all is 0 or not finite every device counts the
// same. One device gets all, whatever its weight. No units or no devices: no tiles.
//
// Exact: each weight becomes a whole number, its multiple of the power of two that brings the largest below 2^58,
// with what is less cut off; from there on everything is integers. So weights whose bits span no more than 58 places
// (whole numbers below 2^58, device scores) are taken as they are, and any other is off by less than 2^-57 of the
// largest.
std::vector<Tile> BalancedPartition(uint64_t units, absl::Span<const double> weights);

// The same as each device's number of units, 0 for who has no tile.
std::vector<uint64_t> BalancedShares(uint64_t units, absl::Span<const double> weights);

// The shares one after the other, in their order.
std::vector<Tile> LayOut(absl::Span<const uint64_t> shares);

// One device that may be given units.
struct PartitionDevice {
  double weight = 0;
  // Units that it has room for.
  uint64_t most_units = UINT64_MAX;
  // Devices of one island reach each other fast; those of none are each by themselves.
  std::optional<uint32_t> island;
  // Units that it has by the split before this one.
  uint64_t had_units = 0;
};

// What a split must keep; 0 is no limit.
struct PartitionConstraints {
  // Of each device that gets any.
  uint64_t min_units = 0;
  // Devices that get any.
  uint64_t max_devices = 0;
  bool one_island = false;
};

// Splits `units` as BalancedShares() does, within the constraints. Where they bind:
// - no device gets more than it has room for; the rest goes to the others by their weights;
// - of those who would get fewer than min_units the one of least weight (among equals the later) is left out, as
//   often as there are such; who is needed for its room gets min_units instead;
// - of more than max_devices those of the least weight are left out;
// - of the islands that can hold it all that is taken whose chosen devices weigh most (among equals the earlier one).
// Nobody is left out without whom the others could not hold all units; where leaving out by weight comes to no end,
// the devices with the most room are taken. What can hold is always found.
// Where fractions are equal, who had more than its whole part by the split before goes first: of all splits that are as
// even, that one leaves the most units where they are.
// Returns: one share for each device.
// Errors: CONSTRAINT, naming `constraint` ("room", "max_devices", "min_units", "one_island", or "devices" where none
// is given), the `value` that was asked, and the `limit` that can be had.
absl::StatusOr<std::vector<uint64_t>> ConstrainedShares(uint64_t units,
                                                        absl::Span<const PartitionDevice> devices,
                                                        const PartitionConstraints& constraints);

}  // namespace berth

#endif  // COMMON_PARTITION_H_
