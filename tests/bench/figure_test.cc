#include "tests/bench/figure.h"

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace berth::bench {
namespace {

TEST(FigureTest, HoldsWhenTheLowerEndOfTheRatiosIntervalDoes) {
  Figure figure = {.name = "x", .ratio = Estimate{.value = 1.4, .low = 1.29, .high = 1.5}, .bound = 1.3};
  EXPECT_TRUE(figure.holds());
  figure.ratio->low = 1.31;
  EXPECT_FALSE(figure.holds());
}

TEST(FigureTest, WithoutARatioTheBoundIsOnTheValue) {
  Figure figure = {.name = "x", .value = {.value = 4, .low = 4, .high = 4}, .unit = "ns", .bound = 5};
  EXPECT_TRUE(figure.holds());
  figure.bound = 3;
  EXPECT_FALSE(figure.holds());
}

TEST(FigureTest, TheRatioIsTakenPairByPair) {
  const Figure figure =
      ComparePairs("ours", {.ours = {2, 40, 600}, .theirs = {1, 10, 100}}, "us", "theirs", 5);
  EXPECT_DOUBLE_EQ(figure.value.value, 40);
  EXPECT_DOUBLE_EQ(figure.ratio->value, 4);
  EXPECT_EQ(figure.against, "theirs (10 us)");
}

TEST(FigureTest, ARoundCountsOnceHoweverManyPairsItHas) {
  const std::vector<Pairs> rounds = {{.ours = {1, 1, 1, 1, 1}, .theirs = {1, 1, 1, 1, 1}},
                                     {.ours = {3}, .theirs = {1}},
                                     {.ours = {4}, .theirs = {2}}};
  const Figure figure = CompareRounds("ours", rounds, "us", "theirs", std::nullopt);
  EXPECT_DOUBLE_EQ(figure.ratio->value, 2);
  EXPECT_DOUBLE_EQ(figure.ratio->low, 1);
  EXPECT_DOUBLE_EQ(figure.ratio->high, 3);
}

TEST(FigureTest, ALineHasItsSevenColumns) {
  const Figure figure = {.name = "permit",
                         .value = {.value = 151.2, .low = 150, .high = 152},
                         .unit = "us",
                         .against = "two echoes",
                         .ratio = Estimate{.value = 1.051, .low = 1.04, .high = 1.06},
                         .bound = 1.3};
  EXPECT_EQ(FormatFigure(figure, Format::kTable),
            "permit | 151 [150-152] | us | two echoes | 1.05 [1.04-1.06] | 1.30 | holds");
}

TEST(FigureTest, AFigureThatIsOnlyToldHasNoVerdict) {
  const Figure figure = {.name = "echo", .value = {.value = 70, .low = 70, .high = 70}, .unit = "us"};
  EXPECT_EQ(FormatFigure(figure, Format::kTable), "echo | 70 | us | - | - | - | -");
}

TEST(FigureTest, JsonCarriesTheIntervalAndTheVerdict) {
  const Figure figure = {.name = "n", .value = {.value = 2, .low = 1, .high = 3}, .unit = "ns", .bound = 20};
  EXPECT_EQ(
      FormatFigure(figure, Format::kJson),
      R"({"name":"n","value":{"value":2.0,"low":1.0,"high":3.0},"unit":"ns","bound":20.0,"verdict":"holds"})");
}

TEST(FigureTest, AFigureThatCouldNotBeTakenSaysWhy) {
  EXPECT_EQ(FormatFailure("x", absl::InternalError("broke"), Format::kTable),
            "x | - | - | - | - | - | failed: INTERNAL: broke");
}

}  // namespace
}  // namespace berth::bench
