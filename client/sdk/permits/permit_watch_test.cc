#include "client/sdk/permits/permit_watch.h"

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr PermitEvent kOverdue = {.what = PermitEvent::kOverdue};
constexpr EndNotice kByLimit = {.reason = EndReason::kHoldLimit};
constexpr PermitEvent kEnded = {.what = PermitEvent::kEnded, .end = kByLimit};

TEST(PermitWatchTest, EventNotifiesEachGuardOfPermitOnce) {
  PermitWatch watch;
  int overdue = 0, ended = 0;
  const auto count = [&](const PermitEvent& event) {
    ++(event.what == PermitEvent::kEnded ? ended : overdue);
    if (event.what == PermitEvent::kEnded) {
      EXPECT_EQ(event.end, kByLimit);
    }
  };
  const auto first = watch.Watch(7, count);
  const auto second = watch.Watch(7, count);
  const auto other = watch.Watch(8, count);
  watch.Notify(7, kOverdue);
  watch.Notify(7, kOverdue);
  EXPECT_TRUE(watch.CallBack());
  EXPECT_EQ(overdue, 2);
  EXPECT_TRUE(first->overdue && second->overdue && !first->ended && !other->overdue);
  EXPECT_EQ(first->ended_by(), std::nullopt);
  watch.Notify(7, kEnded);
  watch.Notify(7, kEnded);
  EXPECT_EQ(ended, 0) << "not on the thread that is told";
  EXPECT_TRUE(watch.CallBack());
  EXPECT_FALSE(watch.CallBack());
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(first->ended_by(), kByLimit);
  EXPECT_FALSE(other->ended);
}

TEST(PermitWatchTest, EventBeforeGrantAnswerIsNotLost) {
  PermitWatch watch;
  watch.Notify(7, kEnded);
  EXPECT_TRUE(watch.Watch(7, {})->ended);
  EXPECT_FALSE(watch.Watch(8, {})->ended);
}

TEST(PermitWatchTest, SessionEndReachesEachPermitOnce) {
  PermitWatch watch;
  std::vector<EndNotice> ends;
  const auto note = [&](const PermitEvent& event) { ends.push_back(event.end); };
  const auto revoked = watch.Watch(7, note);
  const auto held = watch.Watch(8, note);
  watch.Notify(7, kEnded);
  const EndNotice stopped = {.reason = EndReason::kStopped, .uid = 3};
  watch.EndAll(stopped);
  watch.EndAll({.reason = EndReason::kNotResumed});
  const auto granted_late = watch.Watch(9, note);
  EXPECT_TRUE(watch.CallBack());
  EXPECT_EQ(ends, (std::vector<EndNotice>{kByLimit, stopped, stopped}));
  EXPECT_EQ(revoked->ended_by(), kByLimit);
  EXPECT_EQ(held->ended_by(), stopped);
  EXPECT_EQ(granted_late->ended_by(), stopped);
}

TEST(PermitWatchTest, DestroyedWatchIsNotCalled) {
  PermitWatch watch;
  bool called = false;
  watch.Watch(7, [&](const PermitEvent&) { called = true; }).reset();
  watch.Notify(7, kEnded);
  EXPECT_FALSE(watch.CallBack());
  EXPECT_FALSE(called);
  // Records of released permits are swept.
  for (uint64_t permit = 100; permit < 1'000; ++permit) watch.Watch(permit, {});
}

}  // namespace
}  // namespace berth::internal
