// A split that is made anew when devices come or go: who stays keeps what it has, and no more units move than must.
//
//   const Repartition next = MoveFewest({{kGone, 0, 50}, {0, 50, 100}}, {60, 40});   // 50 units move, not 60

#ifndef COMMON_REPARTITION_H_
#define COMMON_REPARTITION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/partition.h"

namespace berth {

// The place of a device that is not among the new ones.
inline constexpr size_t kGone = SIZE_MAX;

// Units that another device has from now on.
struct Move {
  // kGone where their device is not there any more.
  size_t from = 0;
  size_t to = 0;
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t units() const { return end - begin; }
  friend bool operator==(const Move&, const Move&) = default;
};

struct Repartition {
  // One after the other from 0; a device may have several that do not touch.
  std::vector<Tile> tiles;
  // By their begin.
  std::vector<Move> moves;

  uint64_t moved() const {
    uint64_t units = 0;
    for (const Move& move : moves) units += move.units();
    return units;
  }
};

// Gives each device its share. What a device has more than that it gives up from the end, what is nobody's goes to a
// neighbour that lacks some, else to the devices that lack some in their order. As many units move as devices have too
// many, or as had a device that is gone: no split into these shares moves fewer.
// Requires: `before` is one tile after the other from 0, by the places of `shares` or kGone, and has as many units as
// `shares`.
Repartition MoveFewest(absl::Span<const Tile> before, absl::Span<const uint64_t> shares);

}  // namespace berth

#endif  // COMMON_REPARTITION_H_
