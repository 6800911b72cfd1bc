#include "client/sdk/transport/retry_queue.h"

#include <atomic>
#include <memory>

#include "common/notification.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(RetryQueueTest, EntryIsRetriedUntilItSucceeds) {
  std::atomic<int> attempts = 0;
  RetryQueue retry_queue;
  retry_queue.Add([&] { return ++attempts == 3; });
  retry_queue.Flush(kPatience);
  EXPECT_EQ(attempts, 3);
  EXPECT_EQ(retry_queue.owed(), 0u);
}

TEST(RetryQueueTest, UnfinishedEntryDoesNotBlockOthers) {
  Notification other;
  Notification again;
  size_t owed = 0;
  RetryQueue retry_queue;
  retry_queue.Add([&] {
    if (other.HasBeenNotified() && !again.HasBeenNotified()) {
      owed = retry_queue.owed();
      again.Notify();
    }
    return false;
  });
  retry_queue.Add([&] {
    other.Notify();
    return true;
  });
  ASSERT_TRUE(again.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(owed, 1u);
}

TEST(RetryQueueTest, FlushIsBoundedAndDestructionDoesNotWait) {
  RetryQueue retry_queue;
  retry_queue.Add([] { return false; });
  EXPECT_FALSE(retry_queue.Flush(absl::Milliseconds(10)));
}

TEST(RetryQueueTest, FlushShortensLongPauses) {
  // The pauses grow: 20 ms, 40 ms, ... and after the seventh attempt one second each. With these the remaining attempts
  // would take far longer than the flush waits; with the shortest pauses they take far less.
  constexpr int kLong = 7;
  constexpr int kMore = 100;
  std::atomic<int> attempts = 0;
  Notification paused;
  RetryQueue retry_queue;
  retry_queue.Add([&] {
    if (++attempts == kLong) paused.Notify();
    return attempts == kLong + kMore;
  });
  ASSERT_TRUE(paused.WaitForNotificationWithTimeout(kPatience));
  ASSERT_GT(kMore * RetryQueue::kLastPause, kPatience);
  EXPECT_TRUE(retry_queue.Flush(kPatience));
}

TEST(RetryQueueTest, FinishedQueueRunsUntilEmptyThenRunsLastStep) {
  auto retry_queue = std::make_unique<RetryQueue>();
  std::atomic<bool> back = false;
  std::atomic<int> attempts = 0;
  Notification ended;
  retry_queue->Add([&] {
    ++attempts;
    return back.load();
  });
  EXPECT_FALSE(retry_queue->Flush(absl::ZeroDuration()));
  retry_queue->FinishWith([&] {
    retry_queue.reset();
    ended.Notify();
  });
  EXPECT_FALSE(ended.HasBeenNotified());
  back = true;
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kPatience));
  EXPECT_GT(attempts, 0);
  EXPECT_EQ(retry_queue, nullptr);
}

TEST(RetryQueueTest, SettledQueueFinishesAtOnce) {
  auto retry_queue = std::make_unique<RetryQueue>();
  retry_queue->Add([] { return true; });
  EXPECT_TRUE(retry_queue->Flush(kPatience));
  Notification ended;
  retry_queue->FinishWith([&] {
    retry_queue.reset();
    ended.Notify();
  });
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kPatience));
}

TEST(RetryQueueTest, AddDoesNotWaitForAttempt) {
  Notification go;
  RetryQueue retry_queue;
  retry_queue.Add([&] {
    go.WaitForNotification();
    return true;
  });
  for (int i = 0; i < 1000; ++i) retry_queue.Add([] { return true; });
  EXPECT_EQ(retry_queue.owed(), 1001u);
  go.Notify();
  retry_queue.Flush(kPatience);
  EXPECT_EQ(retry_queue.owed(), 0u);
}

}  // namespace
}  // namespace berth::internal
