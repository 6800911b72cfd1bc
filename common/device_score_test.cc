#include "common/device_score.h"

#include <cmath>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(DeviceScoreTest, ScoreFollowsFormulaExactly) {
  EXPECT_EQ(DeviceScore({.sm_count = 132, .cc_major = 7, .free = GiB(40)}), 132 + 160);
  EXPECT_EQ(DeviceScore({.sm_count = 40, .cc_major = 7, .free = GiB(8)}), 40 + 32);
  EXPECT_EQ(DeviceScore({.sm_count = 132, .cc_major = 9, .free = GiB(139)}), 132 + 556 + 150);
  EXPECT_EQ(DeviceScore({.sm_count = 108, .cc_major = 8, .free = MiB(512)}), 108 + 2 + 150);
  EXPECT_EQ(DeviceScore({}), 0);
}

TEST(DeviceScoreTest, ScoreIsFiniteForExtremeInput) {
  EXPECT_TRUE(std::isfinite(
      DeviceScore({.sm_count = UINT32_MAX, .cc_major = UINT32_MAX, .free = Bytes(UINT64_MAX)})));
}

TEST(DeviceScoreTest, BudgetIsFreeBytesUpToHalfOfTotal) {
  EXPECT_EQ(DeviceBudget(GiB(8), GiB(16)), GiB(8));
  EXPECT_EQ(DeviceBudget(GiB(15), GiB(16)), GiB(8));
  EXPECT_EQ(DeviceBudget(GiB(3), GiB(16)), GiB(3));
  EXPECT_EQ(DeviceBudget(GiB(9), Bytes(15)), Bytes(7)) << "half is cut off";
  EXPECT_EQ(DeviceBudget(Bytes(0), Bytes(0)), Bytes(0));
}

}  // namespace
}  // namespace berth
