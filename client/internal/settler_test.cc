#include "client/internal/settler.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(SettlerTest, ADebtIsRepeatedUntilItIsSettledAndThenNoMore) {
  std::atomic<int> attempts = 0;
  Settler settler;
  settler.Add([&] { return ++attempts == 3; });
  settler.Flush(absl::Seconds(10));
  EXPECT_EQ(attempts, 3);
  EXPECT_EQ(settler.owed(), 0u);
}

TEST(SettlerTest, ADebtThatCannotBeSettledDoesNotHoldUpTheOthers) {
  absl::Notification other;
  Settler settler;
  settler.Add([] { return false; });
  settler.Add([&] {
    other.Notify();
    return true;
  });
  EXPECT_TRUE(other.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(settler.owed(), 1u);
}

TEST(SettlerTest, FlushIsBoundedAndTheEndDoesNotWaitForDebts) {
  Settler settler;
  settler.Add([] { return false; });
  const absl::Time start = absl::Now();
  settler.Flush(absl::Milliseconds(10));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(SettlerTest, AddNeverWaitsForAnAttempt) {
  absl::Notification go;
  Settler settler;
  settler.Add([&] {
    go.WaitForNotification();
    return true;
  });
  for (int i = 0; i < 1000; ++i) settler.Add([] { return true; });
  EXPECT_EQ(settler.owed(), 1001u);
  go.Notify();
  settler.Flush(absl::Seconds(10));
  EXPECT_EQ(settler.owed(), 0u);
}

}  // namespace
}  // namespace berth::internal
