#include "daemon/core/permits/virtual_clock.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

TEST(VirtualClockTest, NewcomerStartsAtCurrentTime) {
  VirtualClock clock;
  EXPECT_EQ(clock.Enter({.uid = 1}).value(), 0);
  clock.Advance(40);
  EXPECT_EQ(clock.Enter({.uid = 2}).value(), 40);
  // No start moves the clock back.
  clock.Advance(10);
  EXPECT_EQ(clock.now(), 40);
}

TEST(VirtualClockTest, TenantAheadStaysAheadOnReturn) {
  VirtualClock clock;
  clock.Enter({.uid = 1});
  clock.Leave({.uid = 1}, OwnClock(7));
  EXPECT_EQ(clock.Enter({.uid = 1}).value(), 7);
}

TEST(VirtualClockTest, TenantBehindEarnsNothingByLeaving) {
  VirtualClock clock;
  clock.Enter({.uid = 1});
  clock.Advance(5);
  clock.Leave({.uid = 1}, OwnClock(1));
  EXPECT_EQ(clock.Enter({.uid = 1}).value(), 5);
}

TEST(VirtualClockTest, OnlyTenantsAheadAreRemembered) {
  VirtualClock clock;
  for (uint32_t uid = 0; uid < 100; ++uid) clock.Leave({.uid = uid}, OwnClock(uid));
  EXPECT_EQ(clock.remembered(), 99u);
  clock.Advance(60);
  EXPECT_EQ(clock.remembered(), 39u);
  EXPECT_EQ(clock.Enter({.uid = 60}).value(), 60);
  EXPECT_EQ(clock.Enter({.uid = 61}).value(), 61);
  clock.Advance(200);
  EXPECT_EQ(clock.remembered(), 0u);
}

TEST(VirtualClockTest, ChargeIsTakenBackFromRememberedTenant) {
  VirtualClock clock;
  clock.Advance(0);
  OwnClock own(0);
  own.Add(5);
  clock.Leave({.uid = 1}, own);
  EXPECT_EQ(clock.TakeBack({.uid = 1}, {.cost = 2, .number = 1}), true);
  EXPECT_EQ(clock.ahead().at({.uid = 1}).value(), 3);
  EXPECT_EQ(clock.TakeBack({.uid = 1}, {.cost = 3, .number = 1}), false);
  EXPECT_EQ(clock.TakeBack({.uid = 1}, {.cost = 3, .number = 1}), std::nullopt);
  EXPECT_EQ(clock.Enter({.uid = 1}).value(), 0);
}

TEST(OwnClockTest, TakenBackChargeLeavesTenantWhereItStartedAgain) {
  OwnClock own(0);
  own.Add(10);
  const ClockCharge charge = {.cost = 10, .number = 1};
  // The tenant was idle until the common clock was at 4, and has had 3 since.
  own.Start(4, 1);
  own.Add(3);
  EXPECT_EQ(own.value(), 13);
  own.TakeBack(charge);
  EXPECT_EQ(own.value(), 7);
  own.TakeBack({.cost = 3, .number = 2});
  EXPECT_EQ(own.value(), 4);
}

// Compares the clock with one that is computed anew, without the charges that were taken back.
TEST(OwnClockTest, TakenBackChargesLeaveNoTrace) {
  struct Event {
    double start = 0;
    ClockCharge charge;
  };
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(random); };
    OwnClock own(0);
    std::vector<Event> events;
    std::vector<ClockCharge> refundable;
    uint64_t charges = 0;
    double common = 0;
    for (int step = 0; step < 60; ++step) {
      const uint64_t die = draw(10);
      if (die < 5) {
        events.push_back({.charge = {.cost = 0.25 * (1 + draw(12)), .number = ++charges}});
        own.Add(events.back().charge.cost);
        if (draw(3) > 0) refundable.push_back(events.back().charge);
      } else if (die < 7) {
        common += 0.25 * draw(16);
        events.push_back({.start = common});
        own.Start(common, charges);
      } else if (!refundable.empty()) {
        const size_t at = draw(refundable.size());
        own.TakeBack(refundable[at]);
        std::erase_if(events, [&](const Event& event) { return event.charge.number == refundable[at].number; });
        refundable.erase(refundable.begin() + at);
      }
      double expected = 0;
      for (const Event& event : events) expected = std::max(expected, event.start) + event.charge.cost;
      ASSERT_EQ(own.value(), expected) << "seed " << seed << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace berth::core
