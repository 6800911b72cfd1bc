#include "client/sdk/plans/plan_watch.h"

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(PlanWatchTest, StalenessReachesRecordAndCallbackOnce) {
  PlanWatch watch;
  int calls = 0;
  const std::shared_ptr<PlanRecord> record = watch.Watch(7, [&] { ++calls; });
  watch.Notify({.plan = 8, .revision = 1, .why = 2});
  EXPECT_EQ(record->stale_revision, 0);
  EXPECT_FALSE(watch.CallBack());
  watch.Notify({.plan = 7, .revision = 1, .why = 2, .device = 3});
  watch.Notify({.plan = 7, .revision = 1, .why = 4, .device = 5});
  EXPECT_EQ(record->stale_revision, 1);
  EXPECT_EQ(record->why, 2) << "the first says why";
  EXPECT_EQ(record->device, 3);
  EXPECT_TRUE(watch.CallBack());
  EXPECT_EQ(calls, 1);
  watch.Notify({.plan = 7, .revision = 2, .why = 4, .device = 5});
  EXPECT_EQ(record->stale_revision, 2);
  EXPECT_TRUE(watch.CallBack());
  EXPECT_EQ(calls, 2);
}

TEST(PlanWatchTest, EventMayPrecedePlan) {
  PlanWatch watch;
  watch.Notify({.plan = 7, .revision = 1, .why = 2});
  int calls = 0;
  EXPECT_EQ(watch.Watch(7, [&] { ++calls; })->stale_revision, 1);
  // The callback runs even where the caller has released the record before: the event was queued.
  EXPECT_TRUE(watch.CallBack());
  EXPECT_EQ(calls, 1);
}

TEST(PlanWatchTest, DestroyedWatchIsNotNotified) {
  PlanWatch watch;
  int calls = 0;
  watch.Watch(7, [&] { ++calls; }).reset();
  watch.Notify({.plan = 7, .revision = 1});
  EXPECT_FALSE(watch.CallBack());
  EXPECT_EQ(calls, 0);
  for (uint64_t plan = 100; plan < 1'000; ++plan) watch.Watch(plan, nullptr).reset();
}

}  // namespace
}  // namespace berth::internal
