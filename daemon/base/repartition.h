// Splits again when devices come or go: remaining devices keep their units, and as few units as possible move.
//
//   const Repartition next = MoveFewest({{kGone, 0, 50}, {0, 50, 100}}, {60, 40});   // 50 units move, not 60

#ifndef DAEMON_BASE_REPARTITION_H_
#define DAEMON_BASE_REPARTITION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "daemon/base/partition.h"

namespace berth {

// Index of a device that is not among the new devices.
inline constexpr size_t kGone = SIZE_MAX;

// Units that move to another device.
struct Move {
  // Index of the previous device; kGone if that device no longer exists.
  size_t from = 0;
  size_t to = 0;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t units() const { return end - begin; }
  friend bool operator==(const Move&, const Move&) = default;
};

struct Repartition {
  // Adjacent tiles from 0; a device may have several tiles that do not touch.
  std::vector<Tile> tiles;
  // Sorted by `begin`.
  std::vector<Move> moves;
};

// Gives each device its share. A device with too many units releases them from its end. A free unit goes to a neighbour
// that lacks units, else to the devices that lack units, in their order. The units that move are the surplus units and
// those of removed devices: no split into these shares moves fewer.
// Requires: `before` is adjacent tiles from 0, by index into `shares` or kGone, with as many units as `shares`.
Repartition MoveFewest(absl::Span<const Tile> before, absl::Span<const uint64_t> shares);

}  // namespace berth

#endif  // DAEMON_BASE_REPARTITION_H_
