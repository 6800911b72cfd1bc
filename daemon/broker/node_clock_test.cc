#include "daemon/broker/node_clock.h"

#include <time.h>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Clocks that the test sets.
class NodeClockTest : public testing::Test {
 protected:
  static constexpr int64_t kSecond = 1'000'000'000;
  static constexpr int64_t kYear2026 = 1'772'366'400 * kSecond;

  int64_t boot_ = 100 * kSecond;
  int64_t wall_ = kYear2026;
  NodeClock clock_{[this] { return boot_; }, [this] { return wall_; }};
};

TEST_F(NodeClockTest, ClockFollowsBootTimeNotWallTime) {
  EXPECT_EQ(clock_.Now(), absl::UnixEpoch() + absl::Seconds(100));
  wall_ += 3600 * kSecond;
  EXPECT_EQ(clock_.Now(), absl::UnixEpoch() + absl::Seconds(100));
  wall_ = 0;
  EXPECT_EQ(clock_.Now(), absl::UnixEpoch() + absl::Seconds(100));
  boot_ += kSecond;
  EXPECT_EQ(clock_.Now(), absl::UnixEpoch() + absl::Seconds(101));
}

TEST_F(NodeClockTest, AgeIsStableAcrossWallClockJumps) {
  const absl::Time granted = clock_.Now();
  boot_ += 5 * kSecond;
  wall_ += 5 * kSecond;
  const auto age = [&] { return absl::FromUnixNanos(wall_) - clock_.ToWall(granted); };
  EXPECT_EQ(age(), absl::Seconds(5));
  for (const int64_t jump : {int64_t{3600}, int64_t{-7200}, int64_t{-1'000'000'000}, int64_t{2'000'000'000}}) {
    wall_ += jump * kSecond;
    EXPECT_EQ(age(), absl::Seconds(5)) << jump;
  }
}

TEST_F(NodeClockTest, WallTimeIsStableUntilClockIsSet) {
  const absl::Time shown = clock_.ToWall(absl::UnixEpoch());
  EXPECT_EQ(shown, absl::FromUnixNanos(kYear2026 - 100 * kSecond));
  // Read slightly apart.
  wall_ += 900'000;
  EXPECT_EQ(clock_.ToWall(absl::UnixEpoch()), shown);
  wall_ += 200'000;
  EXPECT_EQ(clock_.ToWall(absl::UnixEpoch()), shown + absl::Nanoseconds(1'100'000));
}

TEST_F(NodeClockTest, WallConversionRoundTripsAndPreservesInfinity) {
  EXPECT_EQ(clock_.FromWall(clock_.ToWall(clock_.Now())), clock_.Now());
  EXPECT_EQ(clock_.ToWall(absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(clock_.FromWall(absl::InfinitePast()), absl::InfinitePast());
}

TEST(RealNodeClockTest, RealClockFollowsBootTime) {
  timespec boot;
  ASSERT_EQ(::clock_gettime(CLOCK_BOOTTIME, &boot), 0);
  const absl::Duration apart = NodeClock::Real().Now() - absl::TimeFromTimespec(boot);
  EXPECT_GE(apart, absl::ZeroDuration());
  EXPECT_LT(apart, absl::Minutes(1));
  const absl::Duration off = NodeClock::Real().ToWall(NodeClock::Real().Now()) - absl::Now();
  EXPECT_LT(off, absl::Minutes(1));
  EXPECT_GT(off, -absl::Minutes(1));
}

}  // namespace
}  // namespace berth
