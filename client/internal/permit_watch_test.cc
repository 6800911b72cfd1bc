#include "client/internal/permit_watch.h"

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(PermitWatchTest, EachEventIsToldOnceToEachGuardOfThePermit) {
  PermitWatch watch;
  int overdue = 0, revoked = 0;
  const auto count = [&](PermitEvent event) { ++(event == PermitEvent::kRevoked ? revoked : overdue); };
  const auto first = watch.Watch(7, count);
  const auto second = watch.Watch(7, count);
  const auto other = watch.Watch(8, count);
  watch.Tell(7, PermitEvent::kOverdue);
  watch.Tell(7, PermitEvent::kOverdue);
  EXPECT_TRUE(watch.CallBack());
  EXPECT_EQ(overdue, 2);
  EXPECT_TRUE(first->overdue && second->overdue && !first->revoked && !other->overdue);
  watch.Tell(7, PermitEvent::kRevoked);
  watch.Tell(7, PermitEvent::kRevoked);
  EXPECT_EQ(revoked, 0) << "not on the thread that is told";
  EXPECT_TRUE(watch.CallBack());
  EXPECT_FALSE(watch.CallBack());
  EXPECT_EQ(revoked, 2);
  EXPECT_TRUE(first->revoked && !other->revoked);
}

TEST(PermitWatchTest, WhatIsToldBeforeTheGrantIsAnsweredIsNotLost) {
  PermitWatch watch;
  watch.Tell(7, PermitEvent::kRevoked);
  EXPECT_TRUE(watch.Watch(7, {})->revoked);
  EXPECT_FALSE(watch.Watch(8, {})->revoked);
}

TEST(PermitWatchTest, WhoIsGoneIsNotCalled) {
  PermitWatch watch;
  bool called = false;
  watch.Watch(7, [&](PermitEvent) { called = true; }).reset();
  watch.Tell(7, PermitEvent::kRevoked);
  EXPECT_FALSE(watch.CallBack());
  EXPECT_FALSE(called);
  // Many come and go: the permits of those that went are not kept.
  for (uint64_t permit = 100; permit < 1'000; ++permit) watch.Watch(permit, {});
}

}  // namespace
}  // namespace berth::internal
