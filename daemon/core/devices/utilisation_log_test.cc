#include "daemon/core/devices/utilisation_log.h"

#include "gtest/gtest.h"
#include "tests/support/environment.h"

namespace berth::core {
namespace {

absl::Time At(int64_t seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(UtilisationLogTest, MeanCoversTimeSince) {
  UtilisationLog log;
  EXPECT_EQ(log.MeanSince(At(0)), std::nullopt);
  log.Add(At(0), 100);
  EXPECT_EQ(log.MeanSince(At(0)), std::nullopt) << "of no time";
  log.Add(At(1), 40);
  log.Add(At(3), 10);
  EXPECT_EQ(log.MeanSince(At(-5)), 20u);
  EXPECT_EQ(log.MeanSince(At(0)), 20u);
  EXPECT_EQ(log.MeanSince(At(1)), 10u);
  EXPECT_EQ(log.MeanSince(At(2)), std::nullopt) << "part of that reading was before";
  EXPECT_EQ(log.MeanSince(At(4)), std::nullopt);
  log.Add(At(4), 250);
  EXPECT_EQ(log.MeanSince(At(2)), 100u) << "never more than all";
}

TEST(UtilisationLogTest, GapIsUnknownAndOldReadingIgnored) {
  UtilisationLog log;
  log.Add(At(0), 0);
  log.Add(At(1), 100);
  log.Add(At(1) + UtilisationLog::kLongestGap + absl::Milliseconds(1), 0);
  EXPECT_EQ(log.MeanSince(At(0)), 100u);
  log.Add(At(1), 0);
  EXPECT_EQ(log.MeanSince(At(0)), 100u);
  log.Add(At(1) + 2 * UtilisationLog::kLongestGap, 0);
  EXPECT_LT(*log.MeanSince(At(0)), 100u);
}

TEST(UtilisationLogTest, LogIsBoundedAndCoversLongAgo) {
  UtilisationLog log;
  constexpr int64_t kDay = 24 * 3600;
  // Readings further apart than kLongestGap would be gaps.
  const int64_t pause = static_cast<int64_t>(testing::GateOrSoak(4, 1));
  for (int64_t second = 0; second <= kDay; second += pause) {
    log.Add(At(second), second <= kDay / 2 ? 0 : 100);
    ASSERT_LE(log.moments(), UtilisationLog::kMoments);
  }
  EXPECT_EQ(log.MeanSince(At(0)), 50u);
  EXPECT_NEAR(*log.MeanSince(At(kDay / 4)), 66, 3);
  EXPECT_EQ(log.MeanSince(At(kDay - 100)), 100u);
}

}  // namespace
}  // namespace berth::core
