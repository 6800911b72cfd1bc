#include "daemon/core/wait_queue.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/copy_rows.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

using Verdict = WaitQueue::Verdict;

const absl::Time kStart = absl::UnixEpoch();

RequestId Request(uint64_t sequence) { return {ChannelId(1), sequence}; }

struct Ask {
  uint64_t units = 1;
  uint32_t uid = 0;
  int32_t priority = 0;
  absl::Time since = kStart;
  absl::Time deadline = absl::InfiniteFuture();
  uint64_t session = 1;
};

Waiter Make(uint64_t sequence, const Ask& ask = {}) {
  return Waiter{.number = sequence,
                .request = Request(sequence),
                .asker = {.session = SessionId(ask.session), .tenant = {.uid = ask.uid}},
                .what = {.units = ask.units, .deadline = ask.deadline, .priority = ask.priority},
                .since = ask.since,
                .charge = ask.units};
}

// The next for whom `units` are enough, charged to its tenant; 0 for none.
uint64_t Next(WaitQueue& queue, uint64_t units = 1, absl::Time now = kStart) {
  const auto next = queue.TakeNext(now, [units](const Waiter& waiter) {
    return waiter.what.units <= units ? Verdict::kFits : Verdict::kWaits;
  });
  if (!next.has_value()) return 0;
  queue.Charge(next->asker.tenant, next->what.units);
  return next->request.sequence;
}

// Everybody, in the order in which they come out: "1 2 3".
std::string Drain(WaitQueue& queue, absl::Time now = kStart) {
  std::string order;
  while (const uint64_t next = Next(queue, UINT64_MAX, now)) absl::StrAppend(&order, next, " ");
  return order;
}

std::string Walked(const WaitQueue& queue) {
  std::string order;
  queue.Walk([&](const Waiter& waiter) {
    absl::StrAppend(&order, waiter.request.sequence, " ");
    return true;
  });
  return order;
}

TEST(WaitQueueTest, OneTenantsWaitersAreServedAsTheyCame) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (uint64_t i = 1; i <= 3; ++i) queue.Push(Make(i, {.units = 4 - i}));
  EXPECT_EQ(Walked(queue), "1 2 3 ");
  EXPECT_EQ(Drain(queue), "1 2 3 ");
  EXPECT_TRUE(queue.empty());
}

TEST(WaitQueueTest, AHigherPriorityGoesFirst) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Push(Make(1, {.priority = -3}));
  queue.Push(Make(2));
  queue.Push(Make(3, {.uid = 7, .priority = 2}));
  queue.Push(Make(4, {.priority = 2}));
  EXPECT_EQ(Walked(queue), "3 4 2 1 ");
  EXPECT_EQ(Drain(queue), "3 4 2 1 ");
}

TEST(WaitQueueTest, WhoHasWaitedLongEnoughIsServedAsOneOfTheHighestPriority) {
  Journal journal;
  WaitQueue queue({.ageing = absl::Minutes(1)}, &journal);
  queue.Push(Make(1));
  queue.Push(Make(2, {.priority = -10, .since = kStart + absl::Seconds(1)}));
  queue.Push(Make(3, {.priority = 10, .since = kStart + absl::Seconds(30)}));
  EXPECT_EQ(Walked(queue), "3 1 2 ");
  // 1 has waited for a minute, 2 for a second less.
  queue.Push(Make(4, {.priority = 10, .since = kStart + absl::Minutes(1)}));
  EXPECT_EQ(Walked(queue), "1 3 4 2 ");
  EXPECT_EQ(Drain(queue, kStart + absl::Minutes(1)), "1 3 4 2 ");
}

TEST(WaitQueueTest, WaitingLongAddsNothingToATenantsShare) {
  Journal journal;
  WaitQueue queue({.ageing = absl::Minutes(1)}, &journal);
  // Tenant 1's have waited long, tenant 2's have just come; all are of one priority.
  for (uint64_t i = 1; i <= 3; ++i) queue.Push(Make(i, {.uid = 1}));
  const absl::Time late = kStart + absl::Minutes(5);
  for (uint64_t i = 4; i <= 6; ++i) queue.Push(Make(i, {.uid = 2, .since = late}));
  EXPECT_EQ(Walked(queue), "1 4 2 5 3 6 ");
  EXPECT_EQ(Drain(queue, late), "1 4 2 5 3 6 ");
}

TEST(WaitQueueTest, TenantsAreServedByTheirWeights) {
  Journal journal;
  WaitQueue queue({.weights = {{1, 3}}}, &journal);
  for (uint64_t i = 1; i <= 6; ++i) queue.Push(Make(i, {.uid = 1}));
  for (uint64_t i = 7; i <= 8; ++i) queue.Push(Make(i, {.uid = 2}));
  EXPECT_EQ(Walked(queue), "1 7 2 3 4 8 5 6 ");
  EXPECT_EQ(Drain(queue), "1 7 2 3 4 8 5 6 ");
}

TEST(WaitQueueTest, UnitsAreWhatATenantIsChargedFor) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (uint64_t i = 1; i <= 2; ++i) queue.Push(Make(i, {.units = 3, .uid = 1}));
  for (uint64_t i = 3; i <= 6; ++i) queue.Push(Make(i, {.uid = 2}));
  EXPECT_EQ(Drain(queue), "1 3 4 5 2 6 ");
}

TEST(WaitQueueTest, ATenantThatComesBackGetsNoBurst) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (uint64_t i = 1; i <= 100; ++i) queue.Push(Make(i, {.uid = 1}));
  for (int i = 0; i < 50; ++i) Next(queue);
  for (uint64_t i = 201; i <= 204; ++i) queue.Push(Make(i, {.uid = 2}));
  EXPECT_EQ(Next(queue), 201);
  EXPECT_EQ(Next(queue), 51);
  EXPECT_EQ(Next(queue), 202);
  EXPECT_EQ(Next(queue), 52);
}

TEST(WaitQueueTest, WhatWasHadOutOfTheQueueIsCharged) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Charge({.uid = 1}, 5);
  queue.Push(Make(1, {.uid = 1}));
  for (uint64_t i = 2; i <= 7; ++i) queue.Push(Make(i, {.uid = 2}));
  EXPECT_EQ(Drain(queue), "2 3 4 5 6 1 7 ");
}

TEST(WaitQueueTest, OneThatFitsPassesOthersUntilTheFirstWasPassedEnough) {
  Journal journal;
  WaitQueue queue({.passes_before_hold = 2}, &journal);
  queue.Push(Make(1, {.units = 5}));
  for (uint64_t i = 2; i <= 4; ++i) queue.Push(Make(i));
  EXPECT_EQ(Next(queue), 2);
  EXPECT_EQ(Next(queue), 3);
  EXPECT_EQ(Next(queue), 0);
  EXPECT_EQ(Next(queue), 0);
  EXPECT_EQ(Next(queue, 5), 1);
  EXPECT_EQ(Next(queue), 4);
}

TEST(WaitQueueTest, WhoIsHeldForIsPassedByNobodyOfWhateverPriority) {
  Journal journal;
  WaitQueue queue({.passes_before_hold = 0}, &journal);
  queue.Push(Make(1, {.units = 5}));
  queue.Push(Make(2, {.priority = 1}));
  EXPECT_EQ(Next(queue), 2);
  queue.Push(Make(3));
  EXPECT_EQ(Next(queue), 0);
  queue.Push(Make(4, {.uid = 9, .priority = 10}));
  EXPECT_EQ(Next(queue), 0);
  EXPECT_EQ(Walked(queue), "1 4 3 ");
  EXPECT_EQ(Drain(queue), "1 4 3 ");
}

TEST(WaitQueueTest, WhatIsKeptForOneThatLeavesIsFreeAgain) {
  Journal journal;
  WaitQueue queue({.passes_before_hold = 0}, &journal);
  queue.Push(Make(1, {.units = 5}));
  queue.Push(Make(2));
  EXPECT_EQ(Next(queue), 0);
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_EQ(Next(queue), 2);
}

TEST(WaitQueueTest, NobodyWaitsForOneThatWaitsForItsOwnTenant) {
  Journal journal;
  WaitQueue queue({.passes_before_hold = 0}, &journal);
  queue.Push(Make(1, {.uid = 1, .priority = 5}));
  for (uint64_t i = 2; i <= 4; ++i) queue.Push(Make(i, {.uid = 2}));
  const auto judge = [](const Waiter& waiter) {
    return waiter.asker.tenant.uid == 1 ? Verdict::kAside : Verdict::kFits;
  };
  for (int i = 0; i < 2; ++i) queue.Charge(queue.TakeNext(kStart, judge)->asker.tenant, 1);
  // The time aside has earned tenant 1 nothing.
  queue.Push(Make(5, {.uid = 1}));
  EXPECT_FALSE(queue.TakeNext(kStart, [](const Waiter&) { return Verdict::kAside; }).has_value());
  EXPECT_EQ(Drain(queue), "1 4 5 ");
}

TEST(WaitQueueTest, ThoseWhoseDeadlineHasPassedComeOutTogetherWithTheirPlaces) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Push(Make(1));
  queue.Push(Make(2, {.deadline = kStart + absl::Seconds(9)}));
  queue.Push(Make(3, {.priority = 1, .deadline = kStart + absl::Seconds(5)}));
  queue.Push(Make(4, {.deadline = kStart + absl::Seconds(4)}));
  EXPECT_EQ(queue.next_deadline(), kStart + absl::Seconds(4));
  EXPECT_TRUE(queue.TakeExpired(kStart + absl::Seconds(4) - absl::Nanoseconds(1)).empty());
  const auto expired = queue.TakeExpired(kStart + absl::Seconds(5));
  ASSERT_EQ(expired.size(), 2u);
  EXPECT_EQ(expired[0].waiter.request.sequence, 4u);
  EXPECT_EQ(expired[0].position, 4u);
  EXPECT_EQ(expired[1].waiter.request.sequence, 3u);
  EXPECT_EQ(expired[1].position, 1u);
  queue.SetDeadline(2, kStart + absl::Seconds(20));
  EXPECT_EQ(queue.next_deadline(), kStart + absl::Seconds(20));
  queue.Remove(2);
  EXPECT_EQ(queue.next_deadline(), absl::InfiniteFuture());
}

TEST(WaitQueueTest, APlaceFarBehindIsNotCountedOut) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (uint64_t i = 1; i <= 2 * WaitQueue::kLastPlace; ++i) queue.Push(Make(i));
  queue.SetDeadline(1'500, kStart);
  EXPECT_EQ(queue.TakeExpired(kStart)[0].position, WaitQueue::kLastPlace);
}

TEST(WaitQueueTest, WaitersAreTakenBySessionOrByCondition) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Push(Make(1, {.session = 1}));
  queue.Push(Make(2, {.units = 9, .session = 2}));
  queue.Push(Make(3, {.session = 2}));
  queue.Push(Make(4, {.units = 9, .session = 2}));
  EXPECT_EQ(queue.CountOf(SessionId(2)), 3u);
  const auto of = queue.TakeOf(SessionId(2), [](const Waiter& waiter) { return waiter.what.units == 9; });
  ASSERT_EQ(of.size(), 2u);
  EXPECT_EQ(of[0].request.sequence, 2u);
  EXPECT_EQ(of[1].request.sequence, 4u);
  const auto rest = queue.TakeIf([](const Waiter&) { return true; });
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[0].request.sequence, 1u);
  EXPECT_FALSE(queue.Contains(1));
  EXPECT_EQ(queue.CountOf(SessionId(2)), 0u);
}

// The rows of `from`, read by a queue of the same pool.
void Restore(const WaitQueue& from, WaitQueue* to) {
  to->RestoreClock(from.clock());
  CopyRows(from, to);
  EXPECT_TRUE(to->CheckBooks().ok()) << to->CheckBooks();
}

TEST(WaitQueueTest, AnotherBrokerHasTheSameOrderAsSoonAsAllAreBack) {
  Journal journal;
  WaitQueue queue({.weights = {{1, 3}}}, &journal, 5);
  for (uint64_t i = 1; i <= 9; ++i) {
    queue.Push(Make(i, {.units = 1 + i % 3, .uid = static_cast<uint32_t>(i % 2), .priority = i == 7 ? 2 : 0}));
  }
  EXPECT_EQ(Next(queue, 1), 3u);
  EXPECT_EQ(Next(queue, 1), 6u);
  WaitQueue restored({.weights = {{1, 3}}}, &journal, 5);
  Restore(queue, &restored);
  EXPECT_EQ(Walked(restored), Walked(queue));
  for (const uint64_t i : {9, 2, 1, 8, 4, 5, 7}) restored.Attach(i);
  EXPECT_EQ(Walked(restored), Walked(queue));
  EXPECT_EQ(Drain(restored), Drain(queue));
  EXPECT_TRUE(restored.CheckBooks().ok()) << restored.CheckBooks();
}

TEST(WaitQueueTest, WhoIsHeldForAndPassedIsThatInAnotherBrokerToo) {
  Journal journal;
  WaitQueue queue({.passes_before_hold = 1}, &journal);
  queue.Push(Make(1, {.units = 4}));
  for (uint64_t i = 2; i <= 4; ++i) queue.Push(Make(i));
  EXPECT_EQ(Next(queue, 1), 2u);
  EXPECT_EQ(Next(queue, 1), 0u) << "the first has been passed often enough";
  WaitQueue restored({.passes_before_hold = 1}, &journal);
  Restore(queue, &restored);
  for (uint64_t i : {1, 3, 4}) restored.Attach(i);
  EXPECT_TRUE(restored.AnyoneHeldFor());
  EXPECT_EQ(restored.Find(1)->passes, 1u);
  EXPECT_EQ(Next(restored, 1), 0u);
  EXPECT_EQ(Drain(restored), "1 3 4 ");
}

TEST(WaitQueueTest, WhatWasHadAheadOfTheOthersIsNotForgotten) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Charge({.uid = 1}, 10);
  WaitQueue restored({}, &journal);
  Restore(queue, &restored);
  restored.Push(Make(1, {.uid = 1}));
  restored.Push(Make(2, {.uid = 2}));
  EXPECT_EQ(Drain(restored), "2 1 ");
}

}  // namespace
}  // namespace berth::core
