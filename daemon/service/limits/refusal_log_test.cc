#include "daemon/service/limits/refusal_log.h"

#include "gtest/gtest.h"

namespace berth::service {
namespace {

TEST(RefusalLogTest, FloodIsLoggedAsFewLinesAndCount) {
  RefusalLog log;
  absl::Time now = absl::UnixEpoch();
  int lines = 0;
  for (int i = 0; i < 1000; ++i) lines += log.LineFor(now, "refused").has_value() ? 1 : 0;
  EXPECT_EQ(lines, RefusalLog::kLinesPerSecond);
  now += absl::Milliseconds(999);
  EXPECT_EQ(log.LineFor(now, "refused"), std::nullopt);
  now += absl::Milliseconds(1);
  EXPECT_EQ(log.LineFor(now, "refused"), "refused (996 earlier refusals not logged)");
  EXPECT_EQ(log.LineFor(now, "refused"), "refused");
}

TEST(RefusalLogTest, RareRefusalIsLoggedUnchanged) {
  RefusalLog log;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(log.LineFor(absl::UnixEpoch() + absl::Seconds(i), "refused"), "refused");
  }
}

}  // namespace
}  // namespace berth::service
