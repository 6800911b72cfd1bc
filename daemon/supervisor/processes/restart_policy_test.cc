#include "daemon/supervisor/processes/restart_policy.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(WorkerRestartsTest, FourthDeathIn60SecondsIsLast) {
  WorkerRestarts restarts;
  const MonotonicTime start;
  EXPECT_TRUE(restarts.OnDeath(start));
  EXPECT_TRUE(restarts.OnDeath(start + seconds(20)));
  EXPECT_TRUE(restarts.OnDeath(start + seconds(40)));
  EXPECT_FALSE(restarts.OnDeath(start + seconds(60) - milliseconds(1)));
}

TEST(WorkerRestartsTest, RestartsExpireAfter60Seconds) {
  WorkerRestarts restarts;
  const MonotonicTime start;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(restarts.OnDeath(start + seconds(20 * i))) << i;
}

TEST(WorkerRestartsTest, RestartsLeftAreReportedWithNextChange) {
  WorkerRestarts restarts;
  const MonotonicTime start;
  EXPECT_EQ(restarts.left(), 3u);
  EXPECT_EQ(restarts.next_forgotten(), MonotonicTime::max());
  restarts.OnDeath(start);
  restarts.OnDeath(start + seconds(10));
  EXPECT_EQ(restarts.left(), 1u);
  EXPECT_EQ(restarts.next_forgotten(), start + seconds(60));
  restarts.Forget(start + seconds(60) - milliseconds(1));
  EXPECT_EQ(restarts.left(), 1u);
  restarts.Forget(restarts.next_forgotten());
  EXPECT_EQ(restarts.left(), 2u);
  EXPECT_EQ(restarts.next_forgotten(), start + seconds(70));
}

TEST(MonitorRestartsTest, LongLivedMonitorRestartsAtOnceOthersLater) {
  MonitorRestarts restarts;
  const MonotonicTime start = MonotonicTime() + std::chrono::hours(1);
  const auto dies = [&](std::chrono::seconds age) { return restarts.OnDeath(start, start + age).count(); };
  EXPECT_EQ(dies(std::chrono::seconds(10)), 0);
  EXPECT_EQ(dies(std::chrono::seconds(1)), 100);
  EXPECT_EQ(dies(std::chrono::seconds(1)), 200);
  EXPECT_EQ(dies(std::chrono::seconds(1)), 400);
  EXPECT_EQ(dies(std::chrono::seconds(5)), 0) << "it lived";
  for (int i = 0; i < 20; ++i) dies(std::chrono::seconds(0));
  EXPECT_EQ(dies(std::chrono::seconds(0)), 30'000);
}

TEST(BrokerRestartsTest, ServingBrokerIsAlwaysRestartedAtOnce) {
  BrokerRestarts restarts;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(restarts.OnDeath(/*had_served=*/true), milliseconds(0));
}

TEST(BrokerRestartsTest, FailedStartsDoublePauseAndEndAtFifth) {
  BrokerRestarts restarts;
  EXPECT_EQ(restarts.OnDeath(false), milliseconds(100));
  EXPECT_EQ(restarts.OnDeath(false), milliseconds(200));
  EXPECT_EQ(restarts.OnDeath(false), milliseconds(400));
  EXPECT_EQ(restarts.OnDeath(false), milliseconds(800));
  EXPECT_EQ(restarts.OnDeath(false), std::nullopt);
}

TEST(BrokerRestartsTest, ServingBrokerResetsBackOff) {
  BrokerRestarts restarts;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(restarts.OnDeath(false).has_value());
  EXPECT_EQ(restarts.OnDeath(true), milliseconds(0));
  EXPECT_EQ(restarts.OnDeath(false), milliseconds(100));
}

TEST(StartRetriesTest, EachPauseDoublesUntilSuccess) {
  StartRetries retries;
  for (const int pause : {50, 100, 200, 400, 800, 1600, 2000, 2000}) {
    EXPECT_EQ(retries.OnFailure(), milliseconds(pause));
  }
  retries.OnSuccess();
  EXPECT_EQ(retries.OnFailure(), milliseconds(50));
}

}  // namespace
}  // namespace berth
