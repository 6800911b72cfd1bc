#include "daemon/core/permits/wait_queue.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/copy_records.h"
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
                .requester = {.session = SessionId(ask.session), .tenant = {.uid = ask.uid}},
                .what = {.units = ask.units, .deadline = ask.deadline, .priority = ask.priority},
                .since = ask.since,
                .charge = ask.units};
}

// Judges by a function and returns no stalls: every waiter is judged at each search.
class Plain final : public WaitQueue::Arbiter {
 public:
  explicit Plain(WaitQueue::Judge judge) : judge_(judge) {}
  Verdict Judge(const Waiter& waiter) override { return judge_(waiter); }
  Stalls WhyNot(const Waiter&, Verdict) override { return {}; }
  uint64_t Read(const Account&, const Gauge&) override { return 0; }
  uint64_t VersionOf(Gauge::Kind) override { return StallBoard::kUnknown; }

 private:
  const WaitQueue::Judge judge_;
};

// Returns the next waiter for which `units` suffice, charged to its tenant; 0 for none.
uint64_t Next(WaitQueue& queue, uint64_t units = 1, absl::Time now = kStart) {
  const auto fits = [units](const Waiter& waiter) {
    return waiter.what.units <= units ? Verdict::kFits : Verdict::kWaits;
  };
  Plain arbiter(fits);
  const auto next = queue.TakeNext(now, arbiter);
  if (!next.has_value()) return 0;
  queue.Charge(next->requester.tenant, next->what.units);
  return next->request.sequence;
}

// Returns all waiters in the order in which they are taken: "1 2 3".
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

TEST(WaitQueueTest, WaitersOfSameTenantAreServedInOrder) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (uint64_t i = 1; i <= 3; ++i) queue.Push(Make(i, {.units = 4 - i}));
  EXPECT_EQ(Walked(queue), "1 2 3 ");
  EXPECT_EQ(Drain(queue), "1 2 3 ");
  EXPECT_TRUE(queue.empty());
}

TEST(WaitQueueTest, HigherPriorityIsServedFirst) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Push(Make(1, {.priority = -3}));
  queue.Push(Make(2));
  queue.Push(Make(3, {.uid = 7, .priority = 2}));
  queue.Push(Make(4, {.priority = 2}));
  EXPECT_EQ(Walked(queue), "3 4 2 1 ");
  EXPECT_EQ(Drain(queue), "3 4 2 1 ");
}

TEST(WaitQueueTest, AgedWaiterIsServedAtHighestPriority) {
  Journal journal;
  WaitQueue queue({.ageing = absl::Minutes(1)}, &journal);
  queue.Push(Make(1));
  queue.Push(Make(2, {.priority = -10, .since = kStart + absl::Seconds(1)}));
  queue.Push(Make(3, {.priority = 10, .since = kStart + absl::Seconds(30)}));
  EXPECT_EQ(Walked(queue), "3 1 2 ");
  // Waiter 1 has waited for a minute, waiter 2 for a second less.
  queue.Push(Make(4, {.priority = 10, .since = kStart + absl::Minutes(1)}));
  EXPECT_EQ(Walked(queue), "1 3 4 2 ");
  EXPECT_EQ(Drain(queue, kStart + absl::Minutes(1)), "1 3 4 2 ");
}

TEST(WaitQueueTest, LongWaitDoesNotRaiseTenantShare) {
  Journal journal;
  WaitQueue queue({.ageing = absl::Minutes(1)}, &journal);
  // The waiters of tenant 1 have waited long, those of tenant 2 have just arrived; all have one priority.
  for (uint64_t i = 1; i <= 3; ++i) queue.Push(Make(i, {.uid = 1}));
  const absl::Time late = kStart + absl::Minutes(5);
  for (uint64_t i = 4; i <= 6; ++i) queue.Push(Make(i, {.uid = 2, .since = late}));
  EXPECT_EQ(Walked(queue), "1 4 2 5 3 6 ");
  EXPECT_EQ(Drain(queue, late), "1 4 2 5 3 6 ");
}

TEST(WaitQueueTest, TenantsAreServedByWeight) {
  Journal journal;
  WaitQueue queue({.weights = {{1, 3}}}, &journal);
  for (uint64_t i = 1; i <= 6; ++i) queue.Push(Make(i, {.uid = 1}));
  for (uint64_t i = 7; i <= 8; ++i) queue.Push(Make(i, {.uid = 2}));
  EXPECT_EQ(Walked(queue), "1 7 2 3 4 8 5 6 ");
  EXPECT_EQ(Drain(queue), "1 7 2 3 4 8 5 6 ");
}

TEST(WaitQueueTest, TenantsAreChargedByUnits) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (uint64_t i = 1; i <= 2; ++i) queue.Push(Make(i, {.units = 3, .uid = 1}));
  for (uint64_t i = 3; i <= 6; ++i) queue.Push(Make(i, {.uid = 2}));
  EXPECT_EQ(Drain(queue), "1 3 4 5 2 6 ");
}

TEST(WaitQueueTest, ReturningTenantGetsNoBurst) {
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

TEST(WaitQueueTest, GrantsOutsideQueueAreCharged) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Charge({.uid = 1}, 5);
  queue.Push(Make(1, {.uid = 1}));
  for (uint64_t i = 2; i <= 7; ++i) queue.Push(Make(i, {.uid = 2}));
  EXPECT_EQ(Drain(queue), "2 3 4 5 6 1 7 ");
}

TEST(WaitQueueTest, FittingWaiterPassesUntilLimit) {
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

TEST(WaitQueueTest, HeldWaiterIsNotPassedAtAnyPriority) {
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

TEST(WaitQueueTest, UnitsHeldForLeavingWaiterAreFreeAgain) {
  Journal journal;
  WaitQueue queue({.passes_before_hold = 0}, &journal);
  queue.Push(Make(1, {.units = 5}));
  queue.Push(Make(2));
  EXPECT_EQ(Next(queue), 0);
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_EQ(Next(queue), 2);
}

TEST(WaitQueueTest, WaiterForOwnTenantDelaysNoOthers) {
  Journal journal;
  WaitQueue queue({.passes_before_hold = 0}, &journal);
  queue.Push(Make(1, {.uid = 1, .priority = 5}));
  for (uint64_t i = 2; i <= 4; ++i) queue.Push(Make(i, {.uid = 2}));
  const auto judge = [](const Waiter& waiter) {
    return waiter.requester.tenant.uid == 1 ? Verdict::kSkipped : Verdict::kFits;
  };
  Plain arbiter(judge);
  for (int i = 0; i < 2; ++i) queue.Charge(queue.TakeNext(kStart, arbiter)->requester.tenant, 1);
  // Tenant 1 has earned nothing while it was skipped.
  queue.Push(Make(5, {.uid = 1}));
  const auto skipped = [](const Waiter&) { return Verdict::kSkipped; };
  Plain nobody(skipped);
  EXPECT_FALSE(queue.TakeNext(kStart, nobody).has_value());
  EXPECT_EQ(Drain(queue), "1 4 5 ");
}

TEST(WaitQueueTest, ExpiredWaitersLeaveTogetherWithPlaces) {
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

TEST(WaitQueueTest, DistantPlaceIsCapped) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (uint64_t i = 1; i <= 2 * WaitQueue::kLastPlace; ++i) queue.Push(Make(i));
  queue.SetDeadline(1'500, kStart);
  EXPECT_EQ(queue.TakeExpired(kStart)[0].position, WaitQueue::kLastPlace);
}

TEST(WaitQueueTest, WaitersAreTakenByCondition) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (uint64_t i = 1; i <= 4; ++i) queue.Push(Make(i, {.units = 1 + 8 * (i % 2), .session = 1 + i / 2}));
  EXPECT_EQ(queue.CountOf(SessionId(2)), 2u);
  const auto taken = queue.TakeIf([](const Waiter& waiter) { return waiter.what.units == 9; });
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].request.sequence, 1u);
  EXPECT_EQ(taken[1].request.sequence, 3u);
  EXPECT_FALSE(queue.Contains(1));
  EXPECT_EQ(queue.CountOf(SessionId(1)), 0u);
  EXPECT_EQ(queue.CountOf(SessionId(2)), 1u);
  EXPECT_TRUE(queue.CheckInvariants().ok()) << queue.CheckInvariants();
}

// Returns waiters of two sessions; some nest in a permit of the first session.
WaitQueue OfTwoSessions(Journal* journal) {
  WaitQueue queue({}, journal);
  const auto push = [&](uint64_t number, const char* key, bool independent, const char* gang, uint64_t session) {
    Waiter waiter = Make(number, {.session = session});
    waiter.what.holder_key = key;
    waiter.what.independent = independent;
    waiter.gang = gang;
    queue.Push(std::move(waiter));
  };
  push(1, "a", true, "", 1);
  push(2, "b", false, "", 1);
  push(3, "a", false, "", 2);
  push(4, "a", false, "gang", 1);
  push(5, "b", true, "gang", 1);
  push(6, "b", true, "", 1);
  push(7, "a", false, "", 1);
  return queue;
}

TEST(WaitQueueTest, NestingFindsMatchingHolderKeys) {
  struct Case {
    const char* key;
    bool adoptable;
    std::string nest;
    std::string gangs;
  };
  const Case cases[] = {{"a", false, "1 7 ", "4 "},  {"b", false, "2 6 ", "5 "},   {"a", true, "1 2 7 ", "4 "},
                        {"b", true, "2 6 7 ", "4 5 "}, {"c", true, "2 7 ", "4 "},    {"c", false, "", ""},
                        {"a#2", false, "", "4 "},    {"b#2", true, "2 7 ", "4 5 "}, {"#2", false, "", ""}};
  for (const Case& one : cases) {
    Journal journal;
    WaitQueue queue = OfTwoSessions(&journal);
    std::string gangs, nest;
    for (const uint64_t number : queue.GangsNesting(SessionId(1), one.key, one.adoptable)) {
      absl::StrAppend(&gangs, number, " ");
    }
    for (const Waiter& waiter : queue.TakeNesting(SessionId(1), one.key, one.adoptable)) {
      absl::StrAppend(&nest, waiter.number, " ");
    }
    EXPECT_EQ(nest, one.nest) << one.key << " " << one.adoptable;
    EXPECT_EQ(gangs, one.gangs) << one.key << " " << one.adoptable;
    EXPECT_TRUE(queue.CheckInvariants().ok()) << queue.CheckInvariants();
  }
}

// Restores the records of `from` in a queue of the same pool.
void Restore(const WaitQueue& from, WaitQueue* to) {
  to->RestoreClocks(from.clocks());
  CopyRecords(from, to);
  EXPECT_TRUE(to->CheckInvariants().ok()) << to->CheckInvariants();
}

TEST(WaitQueueTest, RestoredQueueHasSameOrder) {
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
  EXPECT_TRUE(restored.CheckInvariants().ok()) << restored.CheckInvariants();
}

TEST(WaitQueueTest, PassesAndHoldsAreRestored) {
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

TEST(WaitQueueTest, ChargesAreRestored) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Charge({.uid = 1}, 10);
  WaitQueue restored({}, &journal);
  Restore(queue, &restored);
  restored.Push(Make(1, {.uid = 1}));
  restored.Push(Make(2, {.uid = 2}));
  EXPECT_EQ(Drain(restored), "2 1 ");
}

// Returns the next waiter of all tenants but `idle`; 0 for none.
uint64_t NextBeside(WaitQueue& queue, uint32_t idle) {
  const auto judge = [idle](const Waiter& waiter) {
    return waiter.requester.tenant.uid == idle ? Verdict::kSkipped : Verdict::kFits;
  };
  Plain arbiter(judge);
  const auto next = queue.TakeNext(kStart, arbiter);
  if (!next.has_value()) return 0;
  queue.Charge(next->requester.tenant, next->what.units);
  return next->request.sequence;
}

TEST(WaitQueueTest, IdleTenantHasNoCreditAlsoAfterRestart) {
  Journal journal;
  WaitQueue queue({}, &journal);
  for (const uint64_t number : {1, 2}) queue.Push(Make(number, {.uid = 1}));
  for (uint64_t number = 3; number <= 8; ++number) {
    queue.Push(Make(number, {.uid = 2}));
    EXPECT_EQ(NextBeside(queue, 1), number);
    EXPECT_EQ(NextBeside(queue, 1), 0u);
  }
  queue.Push(Make(9, {.uid = 3}));
  WaitQueue restored({}, &journal);
  Restore(queue, &restored);
  for (const uint64_t number : {1, 2, 9}) restored.Attach(number);
  EXPECT_EQ(Walked(queue), "1 9 2 ");
  EXPECT_EQ(Walked(restored), "1 9 2 ");
  EXPECT_EQ(Drain(queue), "1 9 2 ");
  EXPECT_EQ(Drain(restored), "1 9 2 ");
}

TEST(WaitQueueTest, TenantPassesWaitersOnlyIfNoneRaces) {
  Journal journal;
  WaitQueue queue({}, &journal);
  queue.Push(Make(1, {.units = 2, .uid = 1}));
  Verdict verdict = Verdict::kSkipped;
  const auto judge = [&](const Waiter&) { return verdict; };
  Plain arbiter(judge);
  EXPECT_FALSE(queue.Next(kStart, arbiter).has_value());
  EXPECT_TRUE(queue.LetsPass(kStart, {.uid = 2}, arbiter));
  EXPECT_FALSE(queue.LetsPass(kStart, {.uid = 1}, arbiter)) << "a request passes none of its own tenant";
  verdict = Verdict::kWaits;
  EXPECT_FALSE(queue.LetsPass(kStart, {.uid = 2}, arbiter));
  verdict = Verdict::kSkipped;
  EXPECT_FALSE(queue.Next(kStart, arbiter).has_value());
  EXPECT_TRUE(queue.LetsPass(kStart, {.uid = 2}, arbiter));
  queue.Hold(1);
  EXPECT_FALSE(queue.LetsPass(kStart, {.uid = 2}, arbiter));
}

}  // namespace
}  // namespace berth::core
