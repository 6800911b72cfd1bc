#include "tests/bench/statistics.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace berth::bench {
namespace {

std::vector<double> OneTo(int n) {
  std::vector<double> samples;
  for (int i = n; i >= 1; --i) samples.push_back(i);
  return samples;
}

TEST(StatisticsTest, MedianOfEvenSampleIsMeanOfMiddle) {
  EXPECT_DOUBLE_EQ(Median({4, 1, 3, 2}).value, 2.5);
  EXPECT_DOUBLE_EQ(Median({3, 1, 2}).value, 2);
  EXPECT_DOUBLE_EQ(Median({7}).value, 7);
}

TEST(StatisticsTest, SmallSampleEqualsItsInterval) {
  const Estimate median = Median(OneTo(5));
  EXPECT_DOUBLE_EQ(median.low, 1);
  EXPECT_DOUBLE_EQ(median.high, 5);
}

TEST(StatisticsTest, MedianRanksMatchTables) {
  // The textbook's 95 % interval of the median: ranks 2 and 9 of 10, 40 and 61 of 100.
  EXPECT_DOUBLE_EQ(Median(OneTo(10)).low, 2);
  EXPECT_DOUBLE_EQ(Median(OneTo(10)).high, 9);
  EXPECT_DOUBLE_EQ(Median(OneTo(100)).low, 40);
  EXPECT_DOUBLE_EQ(Median(OneTo(100)).high, 61);
}

TEST(StatisticsTest, HighQuantileHasItsOwnInterval) {
  const Estimate p99 = Quantile(OneTo(1000), 0.99);
  EXPECT_NEAR(p99.value, 990, 1);
  EXPECT_NEAR(p99.low, 984, 1);
  EXPECT_NEAR(p99.high, 996, 1);
}

TEST(StatisticsTest, IntervalCoversMedianAtStatedRate) {
  std::mt19937_64 random(20240229);
  std::exponential_distribution<double> skewed(1.0);
  int covered = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> samples(60);
    std::generate(samples.begin(), samples.end(), [&] { return skewed(random); });
    const Estimate median = Median(std::move(samples));
    if (median.low <= 0.6931 && 0.6931 <= median.high) ++covered;
  }
  EXPECT_GE(covered, kTrials * 0.94);
}

}  // namespace
}  // namespace berth::bench
