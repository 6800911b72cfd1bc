#include "client/internal/settler.h"

#include <atomic>
#include <memory>

#include "common/notification.h"
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
  Notification other;
  Notification again;
  size_t owed = 0;
  Settler settler;
  settler.Add([&] {
    if (other.HasBeenNotified() && !again.HasBeenNotified()) {
      owed = settler.owed();
      again.Notify();
    }
    return false;
  });
  settler.Add([&] {
    other.Notify();
    return true;
  });
  ASSERT_TRUE(again.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_EQ(owed, 1u);
}

TEST(SettlerTest, FlushIsBoundedAndTheEndDoesNotWaitForDebts) {
  Settler settler;
  settler.Add([] { return false; });
  const absl::Time start = absl::Now();
  EXPECT_FALSE(settler.Flush(absl::Milliseconds(10)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST(SettlerTest, AFlushCutsTheLongPausesOfADaemonThatWasAwayShort) {
  std::atomic<bool> back = false;
  std::atomic<int> attempts = 0;
  Notification paused;
  Settler settler;
  // The pauses grow: 20, 40, ... after the sixth attempt 640 ms.
  settler.Add([&] {
    if (++attempts == 6) paused.Notify();
    return back.load();
  });
  ASSERT_TRUE(paused.WaitForNotificationWithTimeout(absl::Seconds(10)));
  back = true;
  const absl::Time start = absl::Now();
  EXPECT_TRUE(settler.Flush(absl::Seconds(10)));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(500));
}

TEST(SettlerTest, LeftAloneItGoesOnUntilNothingIsOwedAndThenRunsWhatIsLast) {
  auto settler = std::make_unique<Settler>();
  std::atomic<bool> back = false;
  std::atomic<int> attempts = 0;
  Notification ended;
  settler->Add([&] {
    ++attempts;
    return back.load();
  });
  EXPECT_FALSE(settler->Flush(absl::ZeroDuration()));
  settler->FinishWith([&] {
    settler.reset();
    ended.Notify();
  });
  EXPECT_FALSE(ended.HasBeenNotified());
  back = true;
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
  EXPECT_GT(attempts, 0);
  EXPECT_EQ(settler, nullptr);
}

TEST(SettlerTest, LeftAloneAfterItsLastDebtItEndsAtOnce) {
  auto settler = std::make_unique<Settler>();
  settler->Add([] { return true; });
  EXPECT_TRUE(settler->Flush(absl::Seconds(10)));
  Notification ended;
  settler->FinishWith([&] {
    settler.reset();
    ended.Notify();
  });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(10)));
}

TEST(SettlerTest, AddNeverWaitsForAnAttempt) {
  Notification go;
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
