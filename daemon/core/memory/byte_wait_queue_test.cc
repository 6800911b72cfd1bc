#include "daemon/core/memory/byte_wait_queue.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

RequestId Request(uint64_t sequence) { return {ChannelId(7), sequence}; }

Waiting Patient(uint64_t sequence, absl::Time deadline, uint32_t device = 0, Bytes bytes = Bytes(1)) {
  return {.request = Request(sequence),
          .asks = {{.device = device, .bytes = bytes}},
          .patient = true,
          .deadline = deadline};
}

// A queue, and a budget of 100 bytes that other clients hold.
class ByteWaitQueueTest : public ::testing::Test {
 protected:
  ByteWaitQueueTest() {
    budget_.Enlist(1, &journal_, queue_.changes());
    inner_.Enlist(2, &journal_, queue_.changes());
    budget_.Add(BlockPhase::kLive, Bytes(100));
  }
  ~ByteWaitQueueTest() override { EXPECT_TRUE(queue_.CheckInvariants().ok()) << queue_.CheckInvariants(); }

  Waiting& PushParked(uint64_t sequence, Bytes bytes = Bytes(1)) {
    Waiting& waiting = queue_.Push(Patient(sequence, absl::InfiniteFuture(), 0, bytes));
    queue_.Park(waiting, &budget_, {&inner_, &budget_});
    return waiting;
  }
  std::vector<uint64_t> Awake() {
    std::vector<uint64_t> awake;
    queue_.Wake();
    uint64_t number = 0;
    while (const Waiting* const waiting = queue_.NextAwake(number)) awake.push_back(number = waiting->number);
    return awake;
  }
  using Numbers = std::vector<uint64_t>;

  Journal journal_;
  ByteWaitQueue queue_{&journal_, {.passes_before_reserve = 2, .reserve_time = absl::Seconds(1)}};
  ByteBudget budget_{Bytes(100)};
  ByteBudget inner_;
};

TEST_F(ByteWaitQueueTest, EntriesStayInOrder) {
  for (const uint64_t sequence : {5, 3, 4}) queue_.Push({.request = Request(sequence), .asks = {{}}});
  EXPECT_EQ(queue_.Take(Request(3)).request, Request(3));
  EXPECT_EQ(queue_.Find(Request(3)), nullptr);
  std::vector<uint64_t> order;
  queue_.ForEach([&](const Waiting& waiting) { order.push_back(waiting.request.sequence); });
  EXPECT_EQ(order, (Numbers{5, 4}));
}

TEST_F(ByteWaitQueueTest, OnlyPatientEntriesHaveDeadline) {
  queue_.Push({.request = Request(1), .asks = {{}}, .deadline = kStart});
  EXPECT_EQ(queue_.next_deadline(), absl::InfiniteFuture());
  queue_.Push(Patient(2, kStart + absl::Seconds(9)));
  queue_.Push(Patient(3, kStart + absl::Seconds(5)));
  EXPECT_EQ(queue_.next_deadline(), kStart + absl::Seconds(5));
  queue_.SetDeadline(Request(2), kStart + absl::Seconds(2));
  queue_.SetDeadline(Request(1), kStart);
  EXPECT_EQ(queue_.next_deadline(), kStart + absl::Seconds(2));
  EXPECT_TRUE(queue_.TakeExpired(kStart + absl::Seconds(2) - absl::Nanoseconds(1)).empty());
  const std::vector<Waiting> expired = queue_.TakeExpired(kStart + absl::Seconds(5));
  ASSERT_EQ(expired.size(), 2);
  EXPECT_EQ(expired[0].request, Request(2));
  EXPECT_EQ(queue_.size(), 1);
  EXPECT_EQ(queue_.next_deadline(), absl::InfiniteFuture());
}

TEST_F(ByteWaitQueueTest, CapacityIsHeldAfterPassesForLimitedTime) {
  Waiting& waiting = PushParked(1);
  EXPECT_EQ(queue_.RecordGrant(budget_, kStart), nullptr);
  EXPECT_EQ(queue_.RecordGrant(inner_, kStart), nullptr);
  EXPECT_FALSE(queue_.Reserves(waiting));
  EXPECT_EQ(queue_.RecordGrant(budget_, kStart), &waiting);
  EXPECT_TRUE(queue_.Reserves(waiting));
  EXPECT_EQ(queue_.next_deadline(), kStart + absl::Seconds(1));
  EXPECT_FALSE(queue_.EndReserves(kStart + absl::Milliseconds(999)));
  EXPECT_TRUE(queue_.EndReserves(kStart + absl::Seconds(1)));
  EXPECT_FALSE(queue_.Reserves(waiting));
  EXPECT_EQ(queue_.next_deadline(), absl::InfiniteFuture());
  // The pass count starts again.
  queue_.Park(waiting, &budget_, {&budget_});
  EXPECT_EQ(queue_.RecordGrant(budget_, kStart), nullptr);
}

TEST_F(ByteWaitQueueTest, CapacityIsHeldForOldestWaiterAlone) {
  Waiting& first = PushParked(1);
  Waiting& second = PushParked(2);
  queue_.RecordGrant(budget_, kStart);
  EXPECT_EQ(queue_.RecordGrant(budget_, kStart), &first);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(queue_.RecordGrant(budget_, kStart), nullptr);
  queue_.Take(Request(1));
  EXPECT_EQ(queue_.RecordGrant(budget_, kStart), nullptr);
  EXPECT_EQ(queue_.RecordGrant(budget_, kStart), &second);
}

TEST_F(ByteWaitQueueTest, PassesStayWithRequestAcrossBudgets) {
  Waiting& waiting = PushParked(1, Bytes(10));
  queue_.RecordGrant(budget_, kStart);
  budget_.Move(BlockPhase::kLive, BlockPhase::kGone, Bytes(10));
  EXPECT_EQ(Awake(), Numbers{1});
  EXPECT_EQ(waiting.passes, 1);
  inner_.set_limit(Bytes(10), /*by_hand=*/true);
  inner_.Add(BlockPhase::kLive, Bytes(1));
  queue_.Park(waiting, &inner_, {&inner_, &budget_});
  EXPECT_EQ(queue_.RecordGrant(inner_, kStart), &waiting);
}

TEST_F(ByteWaitQueueTest, ChangeWakesFittingAndImpossibleWaiters) {
  PushParked(1, Bytes(30));
  PushParked(2, Bytes(10));
  PushParked(3, Bytes(90));
  PushParked(4, Bytes(20));
  EXPECT_EQ(Awake(), Numbers{});
  budget_.Move(BlockPhase::kLive, BlockPhase::kGone, Bytes(20));
  EXPECT_EQ(Awake(), (Numbers{2, 4}));
  inner_.set_limit(Bytes(89), /*by_hand=*/true);
  EXPECT_EQ(Awake(), (Numbers{2, 3, 4}));
}

TEST_F(ByteWaitQueueTest, HeldCapacityWakesNoLaterWaiters) {
  PushParked(1, Bytes(50));
  PushParked(2, Bytes(10));
  queue_.RecordGrant(budget_, kStart);
  queue_.RecordGrant(budget_, kStart);
  budget_.Move(BlockPhase::kLive, BlockPhase::kGone, Bytes(20));
  EXPECT_EQ(Awake(), Numbers{1});
  queue_.EndReserves(kStart + absl::Seconds(1));
  EXPECT_EQ(Awake(), (Numbers{1, 2}));
}

TEST_F(ByteWaitQueueTest, QueueCountsWaitersPerDevice) {
  queue_.Push(Patient(1, kStart, 0));
  queue_.Push(Patient(2, kStart, 1));
  queue_.Push({.request = Request(3), .asks = {{.device = 0}, {.device = 1}}, .reserve_for = absl::Seconds(1)});
  EXPECT_EQ(queue_.CountOf(0), 2);
  EXPECT_EQ(queue_.CountOf(1), 2);
  EXPECT_EQ(queue_.CountOf(2), 0);
  EXPECT_EQ(queue_.Of(0, WorkerKind::kMain), (std::set<uint64_t>{1, 3}));
  EXPECT_TRUE(queue_.Of(0, WorkerKind::kContext).empty());
  EXPECT_EQ(queue_.CountBlocksFor(Account{}), 2);
  EXPECT_EQ(queue_.CountReservationsFor(SessionId()), 1);
  queue_.Take(Request(1));
  EXPECT_EQ(queue_.CountOf(0), 1);
  EXPECT_EQ(queue_.CountBlocksFor(Account{}), 1);
}

}  // namespace
}  // namespace berth::core
