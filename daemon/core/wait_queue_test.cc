#include "daemon/core/wait_queue.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

RequestId Request(uint64_t sequence) { return {ChannelId(1), sequence}; }

Waiter Make(uint64_t sequence, uint64_t units = 1, uint64_t session = 1,
            absl::Time deadline = absl::InfiniteFuture()) {
  return Waiter{.request = Request(sequence),
                .asker = {.session = SessionId(session)},
                .what = {.units = units, .deadline = deadline}};
}

uint64_t Next(WaitQueue& queue, uint64_t units) {
  const auto next = queue.TakeNext([units](const Waiter& waiter) { return waiter.what.units <= units; });
  return next.has_value() ? next->request.sequence : 0;
}

TEST(WaitQueueTest, FirstComeFirstServed) {
  WaitQueue queue(4);
  for (uint64_t i = 1; i <= 3; ++i) queue.Push(Make(i));
  EXPECT_EQ(Next(queue, 1), 1);
  EXPECT_EQ(Next(queue, 1), 2);
  EXPECT_EQ(Next(queue, 1), 3);
  EXPECT_EQ(Next(queue, 1), 0);
  EXPECT_EQ(queue.size(), 0);
}

TEST(WaitQueueTest, OneThatFitsPassesOthersUntilTheFirstWasPassedEnough) {
  WaitQueue queue(2);
  queue.Push(Make(1, 5));
  for (uint64_t i = 2; i <= 4; ++i) queue.Push(Make(i));
  EXPECT_EQ(Next(queue, 1), 2);
  EXPECT_TRUE(queue.MayBePassed());
  EXPECT_EQ(Next(queue, 1), 3);
  EXPECT_FALSE(queue.MayBePassed());
  EXPECT_EQ(Next(queue, 1), 0);
  EXPECT_EQ(Next(queue, 5), 1);
  EXPECT_EQ(Next(queue, 1), 4);
}

TEST(WaitQueueTest, SomebodyNewPassesAllWhoWait) {
  WaitQueue queue(1);
  EXPECT_TRUE(queue.MayBePassed());
  queue.Push(Make(1, 5));
  EXPECT_TRUE(queue.MayBePassed());
  queue.CountPass();
  EXPECT_FALSE(queue.MayBePassed());
  EXPECT_TRUE(queue.Remove(Request(1)).has_value());
  EXPECT_TRUE(queue.MayBePassed());
  EXPECT_FALSE(queue.Remove(Request(1)).has_value());
}

TEST(WaitQueueTest, TheEarliestDeadlineExpiresFirstWithItsPlace) {
  const absl::Time start = absl::UnixEpoch();
  WaitQueue queue(4);
  queue.Push(Make(1));
  queue.Push(Make(2, 1, 1, start + absl::Seconds(9)));
  queue.Push(Make(3, 1, 1, start + absl::Seconds(5)));
  EXPECT_EQ(queue.next_deadline(), start + absl::Seconds(5));
  EXPECT_FALSE(queue.TakeExpired(start + absl::Seconds(5) - absl::Nanoseconds(1)).has_value());
  const auto expired = queue.TakeExpired(start + absl::Seconds(5));
  ASSERT_TRUE(expired.has_value());
  EXPECT_EQ(expired->waiter.request.sequence, 3);
  EXPECT_EQ(expired->position, 3);
  queue.SetDeadline(Request(2), start + absl::Seconds(20));
  EXPECT_EQ(queue.next_deadline(), start + absl::Seconds(20));
  queue.Remove(Request(2));
  EXPECT_EQ(queue.next_deadline(), absl::InfiniteFuture());
}

TEST(WaitQueueTest, WaitersAreTakenBySessionOrByCondition) {
  WaitQueue queue(4);
  queue.Push(Make(1, 1, 1));
  queue.Push(Make(2, 9, 2));
  queue.Push(Make(3, 1, 2));
  queue.Push(Make(4, 9, 2));
  EXPECT_EQ(queue.CountOf(SessionId(2)), 3);
  const auto of = queue.TakeOf(SessionId(2), [](const Waiter& waiter) { return waiter.what.units == 9; });
  ASSERT_EQ(of.size(), 2);
  EXPECT_EQ(of[0].request.sequence, 2);
  EXPECT_EQ(of[1].request.sequence, 4);
  const auto rest = queue.TakeIf([](const Waiter&) { return true; });
  ASSERT_EQ(rest.size(), 2);
  EXPECT_EQ(rest[0].request.sequence, 1);
  EXPECT_FALSE(queue.Contains(Request(1)));
  EXPECT_EQ(queue.CountOf(SessionId(2)), 0);
}

}  // namespace
}  // namespace berth::core
