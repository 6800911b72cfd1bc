#include "daemon/core/devices/call_watch.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr CallLimits kLimits = {.base = absl::Seconds(10), .per_gib = absl::Seconds(1)};
const absl::Time kStart = absl::UnixEpoch();

TEST(CallWatchTest, WorkerWithoutCallHasNoDeadline) {
  CallWatch watch(kLimits);
  EXPECT_EQ(watch.deadline(), absl::InfiniteFuture());
  watch.OnAnswered(kStart, MiB(2));
  EXPECT_EQ(watch.deadline(), absl::InfiniteFuture());
}

TEST(CallWatchTest, CallTimeGrowsPerGibibyte) {
  CallWatch watch(kLimits);
  watch.OnAsked(kStart, GiB(4));
  EXPECT_EQ(watch.allowed(), absl::Seconds(14));
  EXPECT_EQ(watch.deadline(), kStart + absl::Seconds(14));
  watch.OnAnswered(kStart + absl::Seconds(3), GiB(4));
  EXPECT_EQ(watch.deadline(), absl::InfiniteFuture());
}

TEST(CallWatchTest, AnswerRestartsDeadlineOfNextCall) {
  CallWatch watch(kLimits);
  watch.OnAsked(kStart, Bytes(0));
  watch.OnAsked(kStart + absl::Seconds(5), Bytes(0));
  EXPECT_EQ(watch.deadline(), kStart + absl::Seconds(10)) << "the first is still under way";
  watch.OnAnswered(kStart + absl::Seconds(9), Bytes(0));
  EXPECT_EQ(watch.deadline(), kStart + absl::Seconds(19));
}

TEST(CallWatchTest, LargestPendingCallSetsDeadline) {
  CallWatch watch(kLimits);
  watch.OnAsked(kStart, GiB(1));
  watch.OnAsked(kStart, GiB(8));
  EXPECT_EQ(watch.allowed(), absl::Seconds(18));
  watch.OnAnswered(kStart, GiB(8));
  EXPECT_EQ(watch.allowed(), absl::Seconds(11));
}

TEST(CallWatchTest, EndedWorkerHasNoDeadline) {
  CallWatch watch(kLimits);
  watch.OnAsked(kStart, GiB(1));
  watch.Clear();
  EXPECT_EQ(watch.deadline(), absl::InfiniteFuture());
  watch.OnAsked(kStart + absl::Seconds(100), Bytes(0));
  EXPECT_EQ(watch.deadline(), kStart + absl::Seconds(110));
}

}  // namespace
}  // namespace berth::core
