#include "daemon/core/permits/virtual_clock.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

TEST(VirtualClockTest, NewcomerStartsAtCurrentTime) {
  VirtualClock clock;
  EXPECT_EQ(clock.Enter({.uid = 1}), 0);
  clock.Advance(40);
  EXPECT_EQ(clock.Enter({.uid = 2}), 40);
  // No start moves the clock back.
  clock.Advance(10);
  EXPECT_EQ(clock.now(), 40);
}

TEST(VirtualClockTest, TenantAheadStaysAheadOnReturn) {
  VirtualClock clock;
  clock.Enter({.uid = 1});
  clock.Leave({.uid = 1}, 7);
  EXPECT_EQ(clock.Enter({.uid = 1}), 7);
}

TEST(VirtualClockTest, TenantBehindEarnsNothingByLeaving) {
  VirtualClock clock;
  clock.Enter({.uid = 1});
  clock.Advance(5);
  clock.Leave({.uid = 1}, 1);
  EXPECT_EQ(clock.Enter({.uid = 1}), 5);
}

TEST(VirtualClockTest, OnlyTenantsAheadAreRemembered) {
  VirtualClock clock;
  for (uint32_t uid = 0; uid < 100; ++uid) clock.Leave({.uid = uid}, uid);
  EXPECT_EQ(clock.remembered(), 99u);
  clock.Advance(60);
  EXPECT_EQ(clock.remembered(), 39u);
  EXPECT_EQ(clock.Enter({.uid = 60}), 60);
  EXPECT_EQ(clock.Enter({.uid = 61}), 61);
  clock.Advance(200);
  EXPECT_EQ(clock.remembered(), 0u);
}

}  // namespace
}  // namespace berth::core
