// A split that follows another split is as even as a first split, and moves as few units as that allows.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "daemon/base/partition.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using Shares = std::vector<uint64_t>;

std::vector<PartitionDevice> Devices(const std::vector<uint64_t>& weights, const Shares& had) {
  std::vector<PartitionDevice> devices;
  for (size_t i = 0; i < weights.size(); ++i) {
    devices.push_back({.weight = static_cast<double>(weights[i]), .had_units = had[i]});
  }
  return devices;
}

// Returns the units that devices release; all other moved units belonged to removed devices.
uint64_t Moved(const Shares& had, const Shares& has) {
  uint64_t moved = 0;
  for (size_t i = 0; i < had.size(); ++i) moved += had[i] > has[i] ? had[i] - has[i] : 0;
  return moved;
}

// Returns the fewest moved units of all splits whose rounding has the largest sum of remainders, by trying all choices.
uint64_t FewestByForce(uint64_t units, const std::vector<uint64_t>& weights, const Shares& had) {
  uint64_t sum = 0;
  for (const uint64_t weight : weights) sum += weight;
  Shares whole, rests;
  uint64_t left = units;
  for (const uint64_t weight : weights) {
    whole.push_back(units * weight / sum);
    rests.push_back(units * weight % sum);
    left -= whole.back();
  }
  uint64_t most_rest = 0;
  uint64_t fewest = std::numeric_limits<uint64_t>::max();
  for (uint32_t up = 0; up < 1u << weights.size(); ++up) {
    if (static_cast<uint64_t>(std::popcount(up)) != left) continue;
    Shares has = whole;
    uint64_t rest = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if ((up >> i & 1) == 0) continue;
      ++has[i];
      rest += rests[i];
    }
    if (rest < most_rest) continue;
    if (rest > most_rest) fewest = std::numeric_limits<uint64_t>::max();
    most_rest = rest;
    fewest = std::min(fewest, Moved(had, has));
  }
  return fewest;
}

TEST(PartitionStabilityTest, EqualSharesDoNotMoveByRounding) {
  // 3.33 each: a device that had four keeps four, whichever device it is.
  for (const Shares& had : {Shares{4, 3, 3}, Shares{3, 4, 3}, Shares{3, 3, 4}}) {
    EXPECT_EQ(*ConstrainedShares(10, Devices({1, 1, 1}, had), {}), had);
  }
  EXPECT_EQ(*ConstrainedShares(10, Devices({1, 1, 1}, {2, 4, 4}), {}), (Shares{3, 4, 3}));
  // The device is back: only its new units move.
  EXPECT_EQ(*ConstrainedShares(10, Devices({1, 1, 1}, {0, 5, 5}), {}), (Shares{3, 4, 3}));
  const Shares halves = {UINT64_MAX / 2, UINT64_MAX / 2 + 1};
  EXPECT_EQ(*ConstrainedShares(UINT64_MAX, Devices({1, 1}, halves), {}), halves);
}

TEST(PartitionStabilityTest, EarlierSharesDoNotMakeSplitLessEven) {
  EXPECT_EQ(*ConstrainedShares(100, Devices({51, 49}, {50, 50}), {}), (Shares{51, 49}));
  // 2.01, 2.01 and 1.98.
  EXPECT_EQ(*ConstrainedShares(6, Devices({67, 67, 66}, {3, 3, 0}), {}), (Shares{2, 2, 2}));
  EXPECT_EQ(*ConstrainedShares(90, Devices({1, 1, 1}, {30, 60, 0}), {.min_units = 30}), (Shares{30, 30, 30}));
  auto bounded = Devices({1, 1, 1}, {45, 45, 0});
  bounded[0].most_units = 20;
  EXPECT_EQ(*ConstrainedShares(90, bounded, {}), (Shares{20, 35, 35}));
}

TEST(PartitionStabilityTest, NoEquallyEvenSplitMovesFewer) {
  std::mt19937_64 random(11);
  const auto draw = [&](uint64_t below) { return random() % below; };
  uint64_t stable = 0;
  for (int round = 0; round < 20'000; ++round) {
    const size_t count = 1 + draw(6);
    const uint64_t units = 1 + draw(40);
    std::vector<uint64_t> weights;
    for (size_t i = 0; i < count; ++i) weights.push_back(draw(4));
    if (std::all_of(weights.begin(), weights.end(), [](uint64_t weight) { return weight == 0; })) continue;
    // A previous split, in which removed devices may have units.
    Shares had(count, 0);
    for (uint64_t unit = 0; unit < units; ++unit) {
      const uint64_t place = draw(count + 1);
      if (place < count) ++had[place];
    }
    const Shares has = *ConstrainedShares(units, Devices(weights, had), {});
    ASSERT_EQ(Moved(had, has), FewestByForce(units, weights, had)) << "round " << round;
    stable += has != BalancedShares(units, std::vector<double>(weights.begin(), weights.end())) ? 1 : 0;
    // A further split finds nothing to move.
    ASSERT_EQ(*ConstrainedShares(units, Devices(weights, has), {}), has) << "round " << round;
  }
  EXPECT_GT(stable, 0u);
}

}  // namespace
}  // namespace berth
