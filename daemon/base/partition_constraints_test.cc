#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <berth/error.h>

#include "daemon/base/partition.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using Devices = std::vector<PartitionDevice>;
using Shares = std::vector<uint64_t>;

Devices Weighing(const std::vector<double>& weights) {
  Devices devices;
  for (const double weight : weights) devices.push_back({.weight = weight});
  return devices;
}

Shares Must(uint64_t units, const Devices& devices, const PartitionConstraints& constraints) {
  const absl::StatusOr<Shares> shares = ConstrainedShares(units, devices, constraints);
  EXPECT_TRUE(shares.ok()) << shares.status();
  return shares.ok() ? *shares : Shares();
}

// Returns a text such as "room 11 10": the violated constraint, the requested value, and the limit.
std::string Refusal(uint64_t units, const Devices& devices, const PartitionConstraints& constraints) {
  const absl::StatusOr<Shares> shares = ConstrainedShares(units, devices, constraints);
  const auto details = GetErrorDetails(shares.status());
  if (!details.has_value() || details->reason != Reason::kConstraint) return shares.status().ToString();
  auto named_values = details->metadata;
  return named_values["constraint"] + " " + named_values["value"] + " " + named_values["limit"];
}

TEST(PartitionConstraintsTest, AbsentConstraintsChangeNothing) {
  EXPECT_EQ(Must(1000, Weighing({292, 72, 72}), {}), BalancedShares(1000, {292, 72, 72}));
  EXPECT_EQ(Must(2, Weighing({3, 3, 3}), {}), (Shares{1, 1, 0}));
  EXPECT_EQ(Must(0, Weighing({3, 3}), {.min_units = 5}), (Shares{0, 0}));
  EXPECT_EQ(Must(0, {}, {}), Shares());
}

TEST(PartitionConstraintsTest, UnitsAboveCapacityGoToOtherDevices) {
  Devices devices = Weighing({4, 1, 1});
  devices[0].most_units = 10;
  EXPECT_EQ(Must(60, devices, {}), (Shares{10, 25, 25}));
  devices[1].most_units = 20;
  EXPECT_EQ(Must(60, devices, {}), (Shares{10, 20, 30}));
  devices[2].most_units = 0;
  EXPECT_EQ(Must(30, devices, {}), (Shares{10, 20, 0}));
  EXPECT_EQ(Refusal(31, devices, {}), "room 31 30");
}

TEST(PartitionConstraintsTest, DeviceBelowMinimumIsLeftOut) {
  EXPECT_EQ(Must(100, Weighing({95, 5}), {.min_units = 10}), (Shares{100, 0}));
  EXPECT_EQ(Must(100, Weighing({90, 10}), {.min_units = 10}), (Shares{90, 10}));
  // The device of least weight, among equals the last, is left out: then the others have enough.
  EXPECT_EQ(Must(100, Weighing({1, 1, 1, 1}), {.min_units = 30}), (Shares{34, 33, 33, 0}));
  EXPECT_EQ(Must(5, Weighing({0, 3}), {.min_units = 5}), (Shares{0, 5}));
  EXPECT_EQ(Refusal(4, Weighing({1, 1}), {.min_units = 5}), "min_units 5 4");
}

TEST(PartitionConstraintsTest, DeviceNeededForCapacityGetsMinimum) {
  Devices devices = Weighing({99, 1});
  devices[0].most_units = 8;
  EXPECT_EQ(Must(12, devices, {.min_units = 5}), (Shares{7, 5}));
  devices[1].most_units = 5;
  EXPECT_EQ(Must(13, devices, {.min_units = 5}), (Shares{8, 5}));
  EXPECT_EQ(Refusal(14, devices, {.min_units = 5}), "room 14 13");
  EXPECT_EQ(Refusal(13, devices, {.min_units = 6}), "min_units 13 8");
  EXPECT_EQ(Refusal(9, devices, {.min_units = 5}), "min_units 10 9");
}

TEST(PartitionConstraintsTest, LightestDevicesAreLeftOutFirst) {
  EXPECT_EQ(Must(30, Weighing({1, 2, 1, 2}), {.max_devices = 2}), (Shares{0, 15, 0, 15}));
  EXPECT_EQ(Must(30, Weighing({1, 1, 1}), {.max_devices = 2}), (Shares{15, 15, 0}));
  EXPECT_EQ(Must(30, Weighing({1, 1, 1}), {.max_devices = 9}), (Shares{10, 10, 10}));
}

TEST(PartitionConstraintsTest, LargestDevicesServeWhereHeaviestLackCapacity) {
  Devices devices = Weighing({3, 2, 1});
  devices[0].most_units = devices[1].most_units = 6;
  devices[2].most_units = 12;
  EXPECT_EQ(Must(12, devices, {.max_devices = 1}), (Shares{0, 0, 12}));
  EXPECT_EQ(Refusal(13, devices, {.max_devices = 1}), "max_devices 2 1");
}

TEST(PartitionConstraintsTest, HeaviestIslandThatHoldsAllIsChosen) {
  Devices devices = Weighing({5, 1, 3, 3, 7});
  devices[0].island = devices[1].island = 1;
  devices[2].island = devices[3].island = 2;
  EXPECT_EQ(Must(10, devices, {.one_island = true}), (Shares{0, 0, 0, 0, 10})) << "one alone is an island";
  devices[4].most_units = 9;
  EXPECT_EQ(Must(12, devices, {.one_island = true}), (Shares{10, 2, 0, 0, 0})) << "among equals the first";
  EXPECT_EQ(Must(12, devices, {.max_devices = 1, .one_island = true}), (Shares{12, 0, 0, 0, 0}));
  devices[1].most_units = 1;
  devices[0].most_units = 5;
  EXPECT_EQ(Must(12, devices, {.one_island = true}), (Shares{0, 0, 6, 6, 0}));
  for (PartitionDevice& device : devices) device.most_units = 6;
  EXPECT_EQ(Refusal(13, devices, {.one_island = true}), "one_island 13 12");
  EXPECT_EQ(Refusal(31, devices, {.one_island = true}), "room 31 30") << "all together have no capacity either";
}

TEST(PartitionConstraintsTest, PartitionWithoutDevicesIsRejected) { EXPECT_EQ(Refusal(1, {}, {}), "devices 0 1"); }

// Compares with a brute-force search over all choices of devices: a valid split is always found, and every result is
// valid.
TEST(PartitionConstraintsTest, ValidSplitIsAlwaysFound) {
  std::mt19937_64 random(99);
  int found = 0, refused = 0;
  for (int round = 0; round < 30'000; ++round) {
    Devices devices(1 + random() % 6);
    for (PartitionDevice& device : devices) {
      device.weight = static_cast<double>(random() % 5);
      if (random() % 3 != 0) device.most_units = random() % 12;
      if (random() % 2 != 0) device.island = random() % 2;
    }
    const PartitionConstraints constraints = {
        .min_units = random() % 6, .max_devices = random() % 5, .one_island = random() % 3 == 0};
    const uint64_t units = 1 + random() % 40;
    bool possible = false;
    for (uint64_t chosen = 1; chosen < uint64_t{1} << devices.size(); ++chosen) {
      uint64_t count = 0, capacity = 0;
      std::optional<size_t> first;
      bool fits = true;
      for (size_t i = 0; i < devices.size(); ++i) {
        if ((chosen >> i & 1) == 0) continue;
        ++count;
        const uint64_t most = std::min<uint64_t>(devices[i].most_units, 1'000);
        capacity += most;
        fits = fits && most >= std::max<uint64_t>(constraints.min_units, 1);
        if (!first.has_value()) {
          first = i;
        } else if (constraints.one_island) {
          fits = fits && devices[i].island.has_value() && devices[i].island == devices[*first].island;
        }
      }
      possible = possible || (fits && capacity >= units && count * constraints.min_units <= units &&
                              (constraints.max_devices == 0 || count <= constraints.max_devices));
    }
    const absl::StatusOr<Shares> shares = ConstrainedShares(units, devices, constraints);
    ASSERT_EQ(shares.ok(), possible) << shares.status() << " in round " << round;
    if (!shares.ok()) {
      EXPECT_TRUE(IsRefusal(shares.status(), Reason::kConstraint));
      ++refused;
      continue;
    }
    ++found;
    uint64_t sum = 0, count = 0;
    std::optional<size_t> first;
    for (size_t i = 0; i < devices.size(); ++i) {
      if ((*shares)[i] == 0) continue;
      ++count;
      sum += (*shares)[i];
      ASSERT_GE((*shares)[i], constraints.min_units);
      ASSERT_LE((*shares)[i], devices[i].most_units);
      if (!first.has_value()) {
        first = i;
      } else if (constraints.one_island) {
        ASSERT_TRUE(devices[i].island.has_value() && devices[i].island == devices[*first].island);
      }
    }
    ASSERT_EQ(sum, units);
    ASSERT_TRUE(constraints.max_devices == 0 || count <= constraints.max_devices);
  }
  EXPECT_GT(found, 5'000);
  EXPECT_GT(refused, 5'000);
}

}  // namespace
}  // namespace berth
