#include "tests/bench/measurement.h"

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace berth::bench {
namespace {

TEST(MeasurementTest, BoundHoldsIfLowerEndOfRatioDoes) {
  Measurement measurement = {.name = "x", .ratio = Estimate{.value = 1.4, .low = 1.29, .high = 1.5}, .bound = 1.3};
  EXPECT_TRUE(measurement.holds());
  measurement.ratio->low = 1.31;
  EXPECT_FALSE(measurement.holds());
}

TEST(MeasurementTest, BoundWithoutRatioAppliesToValue) {
  Measurement measurement = {.name = "x", .value = {.value = 4, .low = 4, .high = 4}, .unit = "ns", .bound = 5};
  EXPECT_TRUE(measurement.holds());
  measurement.bound = 3;
  EXPECT_FALSE(measurement.holds());
}

TEST(MeasurementTest, RatioIsTakenPairByPair) {
  const Measurement measurement =
      ComparePairs("ours", {.ours = {2, 40, 600}, .theirs = {1, 10, 100}}, "us", "theirs", 5);
  EXPECT_DOUBLE_EQ(measurement.value.value, 40);
  EXPECT_DOUBLE_EQ(measurement.ratio->value, 4);
  EXPECT_EQ(measurement.against, "theirs (10 us)");
}

TEST(MeasurementTest, RoundCountsOnceForAnyNumberOfPairs) {
  const std::vector<Pairs> rounds = {{.ours = {1, 1, 1, 1, 1}, .theirs = {1, 1, 1, 1, 1}},
                                     {.ours = {3}, .theirs = {1}},
                                     {.ours = {4}, .theirs = {2}}};
  const Measurement measurement = CompareRounds("ours", rounds, "us", "theirs", std::nullopt);
  EXPECT_DOUBLE_EQ(measurement.ratio->value, 2);
  EXPECT_DOUBLE_EQ(measurement.ratio->low, 1);
  EXPECT_DOUBLE_EQ(measurement.ratio->high, 3);
}

TEST(MeasurementTest, LineHasSevenColumns) {
  const Measurement measurement = {.name = "permit",
                                   .value = {.value = 151.2, .low = 150, .high = 152},
                                   .unit = "us",
                                   .against = "two echoes",
                                   .ratio = Estimate{.value = 1.051, .low = 1.04, .high = 1.06},
                                   .bound = 1.3};
  EXPECT_EQ(FormatMeasurement(measurement, Format::kTable),
            "permit | 151 [150-152] | us | two echoes | 1.05 [1.04-1.06] | 1.30 | holds");
}

TEST(MeasurementTest, MeasurementWithoutTargetHasNoVerdict) {
  const Measurement measurement = {.name = "echo", .value = {.value = 70, .low = 70, .high = 70}, .unit = "us"};
  EXPECT_EQ(FormatMeasurement(measurement, Format::kTable), "echo | 70 | us | - | - | - | -");
}

TEST(MeasurementTest, JsonHasIntervalAndVerdict) {
  const Measurement measurement = {.name = "n", .value = {.value = 2, .low = 1, .high = 3}, .unit = "ns", .bound = 20};
  EXPECT_EQ(
      FormatMeasurement(measurement, Format::kJson),
      R"({"name":"n","value":{"value":2.0,"low":1.0,"high":3.0},"unit":"ns","bound":20.0,"verdict":"holds"})");
}

TEST(MeasurementTest, FailedMeasurementNamesReason) {
  EXPECT_EQ(FormatFailure("x", absl::InternalError("broke"), Format::kTable),
            "x | - | - | - | - | - | failed: INTERNAL: broke");
}

}  // namespace
}  // namespace berth::bench
