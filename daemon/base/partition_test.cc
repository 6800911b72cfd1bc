#include "daemon/base/partition.h"

#include <string.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <berth/bytes.h>
#include <berth/error.h>

#include "common/device_score.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

using Shares = std::vector<uint64_t>;

// Returns the ends of the tiles, which must be adjacent and start at 0.
std::vector<uint64_t> Ends(const std::vector<Tile>& tiles) {
  std::vector<uint64_t> ends;
  uint64_t at = 0;
  for (const Tile& tile : tiles) {
    EXPECT_EQ(tile.begin, at);
    EXPECT_LT(tile.begin, tile.end);
    at = tile.end;
    ends.push_back(at);
  }
  return ends;
}

// ---- The seven reference cases, with their values ----------------------------------------------------------------

TEST(PartitionTest, SoleDeviceGetsAllUnits) {
  EXPECT_EQ(BalancedPartition(100, {7}), (std::vector<Tile>{{.device = 0, .begin = 0, .end = 100}}));
  EXPECT_EQ(BalancedPartition(100, {kNone}), (std::vector<Tile>{{.device = 0, .begin = 0, .end = 100}}));
}

TEST(PartitionTest, EqualDevicesGetEqualTilesRestGoesFirst) {
  EXPECT_EQ(Ends(BalancedPartition(99, {5, 5, 5})), (std::vector<uint64_t>{33, 66, 99}));
  EXPECT_EQ(Ends(BalancedPartition(100, {5, 5, 5})), (std::vector<uint64_t>{34, 67, 100}));
}

TEST(PartitionTest, UnequalDevicesShareByScore) {
  const double large = DeviceScore({.sm_count = 132, .cc_major = 7, .free = GiB(40)});
  const double small = DeviceScore({.sm_count = 40, .cc_major = 7, .free = GiB(8)});
  const std::vector<Tile> tiles = BalancedPartition(1000, {large, small, small});
  ASSERT_EQ(tiles.size(), 3);
  EXPECT_EQ(Ends(tiles).back(), 1000);
  EXPECT_GT(tiles[0].units(), tiles[1].units());
  EXPECT_EQ(tiles[1].units(), tiles[2].units());
  for (const Tile& tile : tiles) {
    const double ideal = 1000 * (tile.device == 0 ? large : small) / (large + 2 * small);
    EXPECT_LE(std::abs(static_cast<double>(tile.units()) - ideal), 1);
  }
}

TEST(PartitionTest, TwoUnitsUseFirstTwoOfFiveDevices) {
  EXPECT_EQ(BalancedPartition(2, {3, 3, 3, 3, 3}),
            (std::vector<Tile>{{.device = 0, .begin = 0, .end = 1}, {.device = 1, .begin = 1, .end = 2}}));
}

TEST(PartitionTest, NoUnitsMakeNoTiles) {
  EXPECT_TRUE(BalancedPartition(0, {1, 2}).empty());
  EXPECT_TRUE(BalancedPartition(7, {}).empty());
}

// Device ordinals may be arbitrary, such as 0, 3 and 5: the split uses indexes alone.
TEST(PartitionTest, TilesNameDevicesByIndex) {
  const std::vector<uint32_t> ordinals = {0, 3, 5};
  std::vector<uint32_t> named;
  for (const Tile& tile : BalancedPartition(9, {1, 1, 1})) named.push_back(ordinals[tile.device]);
  EXPECT_EQ(named, ordinals);
}

TEST(PartitionTest, BudgetIsAtMostHalfOfMemory) {
  EXPECT_EQ(DeviceBudget(GiB(8), GiB(16)), GiB(8));
}

// ---- Weights without information -------------------------------------------------------------------------------

TEST(PartitionTest, UselessWeightsSplitEvenly) {
  const Shares even = {4, 3, 3};
  EXPECT_EQ(BalancedShares(10, {0, 0, 0}), even);
  EXPECT_EQ(BalancedShares(10, {-1, -5, kNone}), even);
  EXPECT_EQ(BalancedShares(10, {kInfinite, 1, 1}), even);
  EXPECT_EQ(BalancedShares(10, {1e308, 1e308, 1}), even) << "their sum is infinite";
  EXPECT_EQ(BalancedShares(10, {-kInfinite, kNone, -0.0}), even);
}

TEST(PartitionTest, NegativeAndNanWeightsCountAsZero) {
  EXPECT_EQ(BalancedShares(10, {1, -3, kNone, 0, 1, -kInfinite}), (Shares{5, 0, 0, 0, 5, 0}));
}

// ---- Exactness ------------------------------------------------------------------------------------------------

TEST(PartitionTest, SharesAreExactBeyondDoubles) {
  const uint64_t odd = (uint64_t{1} << 53) + 1;
  EXPECT_EQ(BalancedShares(odd, {1, 1}), (Shares{odd / 2 + 1, odd / 2}));
  EXPECT_EQ(BalancedShares(UINT64_MAX, {1, 1, 1}), (Shares(3, UINT64_MAX / 3)));
  EXPECT_EQ(BalancedShares(UINT64_MAX, {1, 0}), (Shares{UINT64_MAX, 0}));
  // 2^64 - 1 is 15 * 1229782938247303441.
  EXPECT_EQ(BalancedShares(UINT64_MAX, {8, 4, 2, 1}),
            (Shares{8 * 1229782938247303441u, 4 * 1229782938247303441u, 2 * 1229782938247303441u,
                    1229782938247303441u}));
}

TEST(PartitionTest, ExtremeWeightsKeepProportion) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(BalancedShares(30, {2 * tiny, tiny}), (Shares{20, 10}));
  EXPECT_EQ(BalancedShares(30, {8e307, 4e307}), (Shares{20, 10}));
  EXPECT_EQ(BalancedShares(UINT64_MAX, {1e300, 1e-300}), (Shares{UINT64_MAX, 0})) << "less than half a unit";
}

// Verifies the definition in wider integers: weights are multiples of a power of two, at most 58 bits long.
TEST(PartitionTest, SharesHaveLargestRemainders) {
  __extension__ using Wide = unsigned __int128;
  std::mt19937_64 random(20'260'321);
  for (int round = 0; round < 20'000; ++round) {
    const size_t count = 2 + random() % 63;
    const uint64_t units = random() >> (random() % 64);
    std::vector<double> weights;
    std::vector<uint64_t> whole;
    Wide sum = 0;
    const int bits = 1 + random() % 52;
    for (size_t i = 0; i < count; ++i) {
      whole.push_back(random() % 8 == 0 ? 0 : random() & ((uint64_t{1} << bits) - 1));
      weights.push_back(std::ldexp(static_cast<double>(whole.back()), static_cast<int>(round % 200) - 100));
      sum += whole.back();
    }
    if (sum == 0) continue;
    const Shares shares = BalancedShares(units, weights);
    EXPECT_EQ(shares, BalancedShares(units, weights));
    Wide covered = 0;
    for (size_t i = 0; i < count; ++i) {
      covered += shares[i];
      const Wide ideal = Wide{units} * whole[i];
      const Wide floor = ideal / sum;
      ASSERT_TRUE(shares[i] == floor || (shares[i] == floor + 1 && ideal % sum != 0));
      for (size_t j = 0; j < count; ++j) {
        // A device that was rounded up has no smaller remainder than a device that was not; among equals it is the
        // earlier one.
        const bool up = shares[i] > floor;
        const Wide other = Wide{units} * whole[j];
        const bool other_up = shares[j] > other / sum;
        if (!up || other_up) continue;
        ASSERT_TRUE(ideal % sum > other % sum || (ideal % sum == other % sum && i < j));
      }
    }
    ASSERT_EQ(covered, units);
    const std::vector<Tile> tiles = BalancedPartition(units, weights);
    EXPECT_EQ(tiles.empty() ? 0 : Ends(tiles).back(), units);
  }
}

TEST(PartitionTest, AnyWeightsCoverAllUnits) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<double> weights(1 + random() % 64);
    for (double& weight : weights) {
      const uint64_t bits = random();
      memcpy(&weight, &bits, sizeof(weight));
    }
    const uint64_t units = random();
    const Shares shares = BalancedShares(units, weights);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), uint64_t{0}), units);
    const std::vector<Tile> tiles = BalancedPartition(units, weights);
    EXPECT_EQ(tiles.empty() ? 0 : Ends(tiles).back(), units);
  }
}

}  // namespace
}  // namespace berth
