#include "daemon/base/repartition.h"

#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

using Shares = std::vector<uint64_t>;

uint64_t UnitsMoved(const Repartition& next) {
  uint64_t units = 0;
  for (const Move& move : next.moves) units += move.units();
  return units;
}

TEST(RepartitionTest, UnchangedSharesMoveNothing) {
  const std::vector<Tile> before = {{0, 0, 40}, {1, 40, 100}};
  const Repartition next = MoveFewest(before, Shares{40, 60});
  EXPECT_EQ(next.tiles, before);
  EXPECT_TRUE(next.moves.empty());
}

TEST(RepartitionTest, OnlyUnitsOfLostDeviceMove) {
  const std::vector<Tile> before = {{0, 0, 30}, {kGone, 30, 60}, {1, 60, 90}};
  const Repartition next = MoveFewest(before, Shares{45, 45});
  EXPECT_EQ(next.tiles, (std::vector<Tile>{{0, 0, 45}, {1, 45, 90}}))
      << "the neighbours share it, and it touches";
  EXPECT_EQ(next.moves, (std::vector<Move>{{kGone, 0, 30, 45}, {kGone, 1, 45, 60}}));
  EXPECT_EQ(UnitsMoved(next), 30);
}

TEST(RepartitionTest, DistantUnitsBecomeTheirOwnTile) {
  const std::vector<Tile> before = {{kGone, 0, 30}, {0, 30, 60}, {1, 60, 90}};
  const Repartition next = MoveFewest(before, Shares{45, 45});
  EXPECT_EQ(next.tiles, (std::vector<Tile>{{1, 0, 15}, {0, 15, 60}, {1, 60, 90}}));
  EXPECT_EQ(UnitsMoved(next), 30);
}

TEST(RepartitionTest, NewDeviceTakesUnitsFromTileEnds) {
  const std::vector<Tile> before = {{0, 0, 50}, {1, 50, 100}};
  const Repartition next = MoveFewest(before, Shares{34, 33, 33});
  EXPECT_EQ(next.tiles, (std::vector<Tile>{{0, 0, 34}, {2, 34, 50}, {1, 50, 83}, {2, 83, 100}}));
  EXPECT_EQ(next.moves, (std::vector<Move>{{0, 2, 34, 50}, {1, 2, 83, 100}}));
}

TEST(RepartitionTest, UnitsOfAllLostDevicesMove) {
  const Repartition next = MoveFewest(std::vector<Tile>{{kGone, 0, 10}, {kGone, 10, 20}}, Shares{15, 0, 5});
  EXPECT_EQ(next.tiles, (std::vector<Tile>{{0, 0, 15}, {2, 15, 20}}));
  EXPECT_EQ(next.moves, (std::vector<Move>{{kGone, 0, 0, 15}, {kGone, 2, 15, 20}}));
}

TEST(RepartitionTest, RepartitionMovesFewestUnits) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20'000; ++round) {
    const size_t places = 1 + random() % 8;
    std::vector<Tile> before;
    uint64_t units = 0;
    Shares had(places, 0);
    uint64_t lost = 0;
    for (size_t i = 0; i < 1 + random() % 12; ++i) {
      const uint64_t width = 1 + random() % 20;
      const size_t device = random() % 4 == 0 ? kGone : random() % places;
      if (!before.empty() && before.back().device == device) continue;
      before.push_back({device, units, units + width});
      (device == kGone ? lost : had[device]) += width;
      units += width;
    }
    Shares shares(places, 0);
    for (uint64_t i = 0; i < units; ++i) ++shares[random() % places];
    uint64_t least = lost;
    for (size_t i = 0; i < places; ++i) least += had[i] > shares[i] ? had[i] - shares[i] : 0;
    const Repartition next = MoveFewest(before, shares);
    ASSERT_EQ(UnitsMoved(next), least);
    Shares has(places, 0);
    uint64_t at = 0;
    size_t last = kGone;
    for (const Tile& tile : next.tiles) {
      ASSERT_EQ(tile.begin, at);
      ASSERT_LT(tile.begin, tile.end);
      ASSERT_NE(tile.device, last) << "what touches is one tile";
      has[tile.device] += tile.units();
      at = tile.end;
      last = tile.device;
    }
    ASSERT_EQ(at, units);
    ASSERT_EQ(has, shares);
    // Every unit is at its previous device, or among the moves.
    size_t move = 0;
    for (uint64_t unit = 0; unit < units; ++unit) {
      const auto owner = [&](const std::vector<Tile>& tiles) {
        for (const Tile& tile : tiles) {
          if (tile.begin <= unit && unit < tile.end) return tile.device;
        }
        return kGone;
      };
      while (move < next.moves.size() && next.moves[move].end <= unit) ++move;
      const bool moved = move < next.moves.size() && next.moves[move].begin <= unit;
      ASSERT_EQ(owner(before) != owner(next.tiles), moved);
      if (!moved) continue;
      ASSERT_EQ(next.moves[move].from, owner(before));
      ASSERT_EQ(next.moves[move].to, owner(next.tiles));
    }
  }
}

}  // namespace
}  // namespace berth
