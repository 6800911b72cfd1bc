#include "daemon/core/room_queue.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

RequestId Request(uint64_t sequence) { return {ChannelId(7), sequence}; }

Waiting Patient(uint64_t sequence, absl::Time deadline, uint32_t device = 0) {
  return {.request = Request(sequence),
          .asks = {{.device = device, .bytes = Bytes(1)}},
          .patient = true,
          .deadline = deadline};
}

TEST(RoomQueueTest, EntriesStayInTheOrderInWhichTheyCame) {
  Journal journal;
  RoomQueue queue(&journal, 2, absl::Seconds(1));
  for (const uint64_t sequence : {5, 3, 4}) queue.Push({.request = Request(sequence)});
  EXPECT_EQ(queue.Take(Request(3)).request, Request(3));
  EXPECT_EQ(queue.Find(Request(3)), nullptr);
  EXPECT_EQ(queue.entries().front().request, Request(5));
  EXPECT_EQ(queue.entries().back().request, Request(4));
}

TEST(RoomQueueTest, OnlyPatientOnesHaveADeadline) {
  Journal journal;
  RoomQueue queue(&journal, 2, absl::Seconds(1));
  queue.Push({.request = Request(1), .deadline = kStart});
  EXPECT_EQ(queue.next_deadline(), absl::InfiniteFuture());
  queue.Push(Patient(2, kStart + absl::Seconds(9)));
  queue.Push(Patient(3, kStart + absl::Seconds(5)));
  EXPECT_EQ(queue.next_deadline(), kStart + absl::Seconds(5));
  queue.SetDeadline(Request(2), kStart + absl::Seconds(2));
  queue.SetDeadline(Request(1), kStart);
  EXPECT_EQ(queue.next_deadline(), kStart + absl::Seconds(2));
  EXPECT_TRUE(queue.TakeExpired(kStart + absl::Seconds(2) - absl::Nanoseconds(1)).empty());
  const std::vector<Waiting> expired = queue.TakeExpired(kStart + absl::Seconds(5));
  ASSERT_EQ(expired.size(), 2);
  EXPECT_EQ(expired[0].request, Request(2));
  EXPECT_EQ(queue.size(), 1);
  EXPECT_EQ(queue.next_deadline(), absl::InfiniteFuture());
}

TEST(RoomQueueTest, RoomIsKeptAfterEnoughPassesAndOnlySoLong) {
  Journal journal;
  RoomQueue queue(&journal, 2, absl::Seconds(1));
  Waiting& waiting = queue.Push(Patient(1, absl::InfiniteFuture()));
  queue.NotePassed(waiting, kStart);
  EXPECT_FALSE(queue.Keeps(waiting));
  queue.NotePassed(waiting, kStart);
  EXPECT_TRUE(queue.Keeps(waiting));
  EXPECT_EQ(queue.next_deadline(), kStart + absl::Seconds(1));
  EXPECT_FALSE(queue.EndKeeps(kStart + absl::Milliseconds(999)));
  EXPECT_TRUE(queue.EndKeeps(kStart + absl::Seconds(1)));
  EXPECT_FALSE(queue.Keeps(waiting));
  EXPECT_EQ(queue.next_deadline(), absl::InfiniteFuture());
  // It begins anew.
  queue.NotePassed(waiting, kStart);
  EXPECT_FALSE(queue.Keeps(waiting));
}

TEST(RoomQueueTest, CountsTheWaitersOfADevice) {
  Journal journal;
  RoomQueue queue(&journal, 2, absl::Seconds(1));
  queue.Push(Patient(1, kStart, 0));
  queue.Push(Patient(2, kStart, 1));
  queue.Push({.request = Request(3), .asks = {{.device = 0}, {.device = 1}}});
  EXPECT_EQ(queue.CountOf(0), 2);
  EXPECT_EQ(queue.CountOf(1), 2);
  EXPECT_EQ(queue.CountOf(2), 0);
}

}  // namespace
}  // namespace berth::core
