#include "client/internal/settler.h"

#include <atomic>
#include <memory>

#include "common/notification.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(SettlerTest, ADebtIsRepeatedUntilItIsSettledAndThenNoMore) {
  std::atomic<int> attempts = 0;
  Settler settler;
  settler.Add([&] { return ++attempts == 3; });
  settler.Flush(kPatience);
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
  ASSERT_TRUE(again.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(owed, 1u);
}

TEST(SettlerTest, FlushIsBoundedAndTheEndDoesNotWaitForDebts) {
  Settler settler;
  settler.Add([] { return false; });
  EXPECT_FALSE(settler.Flush(absl::Milliseconds(10)));
}

TEST(SettlerTest, AFlushCutsTheLongPausesOfADaemonThatWasAwayShort) {
  // The pauses grow: 20, 40, ... after the seventh attempt a second each. With those the rest would take far longer
  // than the flush waits, with the shortest ones far less.
  constexpr int kLong = 7;
  constexpr int kMore = 100;
  std::atomic<int> attempts = 0;
  Notification paused;
  Settler settler;
  settler.Add([&] {
    if (++attempts == kLong) paused.Notify();
    return attempts == kLong + kMore;
  });
  ASSERT_TRUE(paused.WaitForNotificationWithTimeout(kPatience));
  ASSERT_GT(kMore * Settler::kLastPause, kPatience);
  EXPECT_TRUE(settler.Flush(kPatience));
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
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kPatience));
  EXPECT_GT(attempts, 0);
  EXPECT_EQ(settler, nullptr);
}

TEST(SettlerTest, LeftAloneAfterItsLastDebtItEndsAtOnce) {
  auto settler = std::make_unique<Settler>();
  settler->Add([] { return true; });
  EXPECT_TRUE(settler->Flush(kPatience));
  Notification ended;
  settler->FinishWith([&] {
    settler.reset();
    ended.Notify();
  });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kPatience));
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
  settler.Flush(kPatience);
  EXPECT_EQ(settler.owed(), 0u);
}

}  // namespace
}  // namespace berth::internal
